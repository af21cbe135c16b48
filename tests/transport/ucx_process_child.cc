// The other process of ucx_process_test.
//
// usage: ucx_process_child SOCKET echo|die|... [TRANSPORTS]
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/transport/ucx_process_end.h"

namespace gradlane {
namespace {

// What the other process does; its exit code.
int RunChild(int socket, const std::string& what, const std::string& transports) {
  End end(socket, 1, transports);
  if (!end.error.empty()) {
    std::fprintf(stderr, "child: %s\n", end.error.c_str());
    return 3;
  }
  if (what == "die") {
    while (end.Next().kind != EventKind::kArrived) {
    }
    raise(SIGKILL);
  }
  for (uint32_t round = 0; round < kRounds;) {  // gives every payload back, one byte longer in its seed
    const Event event = end.Next();
    if (event.kind == EventKind::kFailed) return 4;
    if (event.kind == EventKind::kSent) continue;
    if (!HasPattern(event.payload, event.imm)) return 5;
    const std::span<std::byte> source = end.source.bytes.subspan(round % 2 * kSlotBytes, event.payload.size());
    FillPattern(source, event.imm + 1000);
    end.fabric->Release(event.release);
    if (!end.fabric->PutNotify({0, source, {1, round % 2 * kSlotBytes}, event.imm + 1000, 0})) return 6;
    ++round;
  }
  // The sender must not leave before its last bytes were taken.
  return ReceiveText(socket) == "done" ? 0 : 7;
}

}  // namespace
}  // namespace gradlane

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return gradlane::RunChild(std::atoi(argv[1]), argv[2], argv[3]);
}
