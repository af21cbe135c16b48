// The UCX fabric: InfiniBand and RoCE, shared memory and tcp, by UCP. Where the path to a peer puts in hardware or
// through shared memory, PutNotify is a one-sided put and a notice; elsewhere (tcp) it is one eager active message.
// Source of the choice: on tcp UCX 1.13 emulates put in 8 KiB pieces, 10 to 70 times slower than its messages.
#pragma once

#include <memory>
#include <string>

#include "transport/fabric.h"

namespace gradlane {

struct UcxOptions {
  std::string transports;          // as UCX_TLS: "tcp", "shm", "rc"; empty: what UCX finds best
  std::string net_devices;         // as UCX_NET_DEVICES; empty: all
  size_t max_put_bytes = 1 << 20;  // the largest PutRequest::source
  size_t max_outstanding = 64;
};

Result<std::unique_ptr<Fabric>> OpenUcxFabric(const UcxOptions& options);

}  // namespace gradlane
