// What a server takes from the network: the job as text, and notices with their payloads, fed to a Shard. Whatever
// comes, it is either taken or refused with a sentence; nothing is read or written out of bounds.
//
// Input: one byte of configuration, then messages of: 4 bytes notice, 1 byte worker, 1 byte length, payload. The whole
// input is also parsed as a job.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ps/shard.h"

namespace {

using namespace gradlane;

constexpr uint32_t kWorkers = 2;

void FeedShard(const uint8_t* data, size_t num_bytes) {
  Job job;
  job.tensors = {{"a", 40, 0, true}, {"b", 12, 1, false}};
  job.codec = Codec(data[0] % 3);
  job.sync.kind = SyncKind(data[0] / 3 % 3);
  job.reply = ReplyCodec(data[0] / 9 % 2);
  if (job.codec == Codec::kFec && data[0] / 18 % 2 == 1) job.codec = Codec::kAuto;
  const auto layout = Layout::Make(job, {kWorkers, 1});
  const uint32_t lanes = Shard::NumLanes(job, kWorkers);
  const size_t elems = layout->ServerElems(0);
  std::vector<std::vector<float>> arrays(5 + lanes, std::vector<float>(elems, 0.0f));
  ShardMemory memory{arrays[0], arrays[1], arrays[2], arrays[3], {}, arrays[4]};
  if (job.reply == ReplyCodec::kFec) {
    for (uint32_t lane = 0; lane < lanes; ++lane) memory.held.push_back(arrays[5 + lane]);
  }
  Shard shard(job, *layout, 0, kWorkers, std::move(memory));

  // A payload stays where it is until its token comes back: the input itself holds them.
  std::vector<uint64_t> released;
  std::vector<Shard::Reply> due;
  std::vector<std::byte> slot(layout->segments()[0].slot_bytes);
  size_t at = 1;
  while (num_bytes - at >= 6) {
    uint32_t imm;
    std::memcpy(&imm, data + at, sizeof imm);
    const uint32_t worker = data[at + 4];
    const size_t length = std::min<size_t>(data[at + 5], num_bytes - at - 6);
    const auto payload = std::as_bytes(std::span(data + at + 6, length));
    at += 6 + length;
    const Message message = Unpack(imm);
    const auto outcome = shard.OnPush({worker, message, payload, at}, released);
    if (!outcome) {
      if (outcome.error().message.empty()) std::abort();
      return;  // the job would have ended
    }
    if (*outcome != Shard::Outcome::kComplete) continue;
    if (!shard.Update(message.segment, worker, released, due)) return;
    for (const Shard::Reply& reply : due) {
      if (shard.FlaggedBy(reply.segment)) continue;
      if (!shard.EncodeReply(reply.segment, shard.LaneOf(reply.worker), slot)) return;
    }
    due.clear();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  if (num_bytes == 0) return 0;
  FeedShard(data, num_bytes);
  const std::string text(reinterpret_cast<const char*>(data), num_bytes);
  if (const auto job = gradlane::Job::Parse(text)) {
    // What is taken can be said again, and means the same.
    const auto again = gradlane::Job::Parse(job->ToJson());
    if (!again || again->ToJson() != job->ToJson()) std::abort();
  }
  return 0;
}
