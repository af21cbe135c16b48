// A saved state, fed to a server and a worker: whatever comes, it is either taken, and then saved as the same bytes, or
// refused with a sentence; nothing is read or written out of bounds.
//
// Input: one byte of configuration, then the body of a state, around which head and hash are put: a fuzzer finds no
// hash. The whole input is also taken for a state as it is.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "ps/server.h"
#include "ps/state_file.h"
#include "ps/worker.h"
#include "transport/loopback_fabric.h"

namespace {

using namespace gradlane;

std::vector<std::byte> Framed(const StateOwner& owner, std::span<const uint8_t> body) {
  StateWriter out(owner);
  for (const uint8_t byte : body) out.U8(byte);
  return std::move(out).Finish();
}

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  if (num_bytes == 0) return 0;
  Job job;
  job.tensors = {{"a", 5, 0, true}, {"b", 3, 1, false}};
  job.codec = Codec(data[0] % 4);
  job.sync.kind = SyncKind(data[0] / 4 % 3);
  job.reply = ReplyCodec(data[0] / 12 % 2);
  job.fec_auto = data[0] / 24 % 2 == 1;
  job.optimizer = OptimizerKind(data[0] / 48 % 2);
  const Membership members{2, 1};
  const auto layout = Layout::Make(job, members);
  const auto hub = LoopbackHub::Create(members.Count());
  const auto server = *Server::Open({&job, &*layout, members, 0, nullptr}, hub->Open(0));
  const auto worker = *Worker::Open({&job, &*layout, members, 0, nullptr}, hub->Open(1));
  const std::span<const uint8_t> body(data + 1, num_bytes - 1);

  const auto of_server = Framed({job, members, {Role::kServer, 0}}, body);
  if (const auto loaded = server->LoadState(of_server)) {
    const auto saved = server->SaveState(0);
    Require(saved && *saved == of_server);
  } else {
    Require(!loaded.error().message.empty());
  }
  const auto of_worker = Framed({job, members, {Role::kWorker, 0}}, body);
  if (const auto loaded = worker->LoadState(of_worker)) {
    const auto saved = worker->SaveState();
    Require(saved && *saved == of_worker);
  } else {
    Require(!loaded.error().message.empty());
  }
  Require(!server->LoadState(std::as_bytes(std::span(data, num_bytes))));
  return 0;
}
