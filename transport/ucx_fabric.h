// The UCX fabric: InfiniBand and RoCE, shared memory and tcp, by UCP. Where the path to a peer puts in hardware or
// through shared memory, PutNotify is a one-sided put and a notice; elsewhere (tcp) it is one eager active message.
// Source of the choice: on tcp UCX 1.13 emulates put in 8 KiB pieces, 10 to 70 times slower than its messages.
//
// Slots belong to both paths: a message is received in its slot too, or, if it is longer than 1 MiB, kept where UCX
// assembled it. Endpoints, a greeting both ways and all request records are made in Connect.
//
// Loss of a peer is learnt from UCX (errors, and its own look at idle peers every 2 s), from a goodbye that the destructor
// sends, and, on the same host, from the end of the peer's process. Messages are checked whatever they contain; addresses
// are checked against damage only, since UCX 1.13 cannot bear a forged one: take them from authenticated peers.
//
// UCX settings come from its own environment variables first, then from UcxOptions and what this fabric needs. UCX's log
// level is one for the process; it is set to "error" unless UCX_LOG_LEVEL says otherwise.
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
