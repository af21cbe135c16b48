// Opens the fabric that the user named, or the best there is, and connects it to every peer. Called once by each rank's
// main function, before its communication thread runs.
#pragma once

#include <memory>
#include <string>

#include "transport/bootstrap.h"
#include "transport/fabric.h"
#include "transport/loopback_fabric.h"

namespace gradlane {

struct FabricChoice {
  std::string name = "auto";    // auto, ucx, verbs, loopback
  LoopbackHub* hub = nullptr;   // set where the ranks are threads of this process
};

struct OpenedFabric {
  std::unique_ptr<Fabric> fabric;
  std::string reason;  // for the start-up report: what was chosen, why, and why not the others
};

// kUnavailable: asked for by name and not there. max_put_bytes: the largest put.
Result<OpenedFabric> OpenFabric(const FabricChoice& choice, PeerId self, size_t max_put_bytes);

// What to tell of an error of this rank. A rank that ends because another died closes its fabric, and its peers may see
// that before they hear why: so where a peer is lost, the bootstrap gets a moment to name the first cause. Any thread.
Error FirstCause(const Bootstrap& bootstrap, const Error& seen);

// Collective: exchanges addresses through the bootstrap and connects. Only workers and servers talk to one another.
Result<void> ConnectFabric(Fabric& fabric, Bootstrap& bootstrap, Membership members, Member self, int timeout_ms);

}  // namespace gradlane
