// One end of two processes that talk over UCX: what ucx_process_test and the process that it starts share.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/transport/fabric_cluster.h"

namespace gradlane {

constexpr size_t kSlotBytes = 300'000;
constexpr uint32_t kRounds = 50;

inline bool SendText(int socket, const std::string& text) {
  const uint32_t bytes = static_cast<uint32_t>(text.size());
  if (write(socket, &bytes, sizeof(bytes)) != sizeof(bytes)) return false;
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = write(socket, text.data() + at, text.size() - at);
    if (written <= 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

inline std::string ReceiveText(int socket) {
  uint32_t bytes = 0;
  if (recv(socket, &bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes)) return {};
  std::string text(bytes, '\0');
  return recv(socket, text.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes) ? text : std::string();
}

// One end: peer `self` of two, connected through the socket.
struct End {
  std::unique_ptr<Fabric> fabric;
  Region source, slots;
  std::string error;

  End(int socket, PeerId self, const std::string& transports) {
    UcxOptions options;
    options.transports = transports;
    Result<std::unique_ptr<Fabric>> opened = OpenUcxFabric(options);
    if (!opened) {
      error = opened.error().message;
      return;
    }
    fabric = *std::move(opened);
    source = *fabric->Allocate(2 * kSlotBytes);
    slots = *fabric->Allocate(2 * kSlotBytes);
    const std::string mine = *fabric->LocalAddress();
    if (!SendText(socket, mine)) error = "the other process is gone";
    const std::string theirs = ReceiveText(socket);
    const std::string addresses[] = {self == 0 ? mine : theirs, self == 0 ? theirs : mine};
    if (Result<void> connected = fabric->Connect(self, addresses, kTestLimitMs); !connected)
      error = connected.error().message;
  }

  // Sleeps in Wait until an event comes.
  Event Next() {
    Event event;
    const int64_t limit_ns = NowNs() + int64_t{kTestLimitMs} * 1'000'000;
    while (fabric->Poll({&event, 1}) == 0) {
      if (NowNs() > limit_ns) return {.kind = EventKind::kFailed, .imm = 0xdead};
      fabric->Wait(1000);
    }
    return event;
  }
};

}  // namespace gradlane
