#include "ps/fabric_choice.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#ifdef GRADLANE_HAVE_UCX
#include "transport/ucx_fabric.h"
#endif

namespace gradlane {
namespace {

#ifdef GRADLANE_HAVE_UCX
Result<OpenedFabric> OpenUcx(const FabricChoice&, size_t max_put_bytes, std::string reason) {
  UcxOptions options;
  options.max_put_bytes = max_put_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric, OpenUcxFabric(options));
  return OpenedFabric{std::move(fabric), std::move(reason)};
}
#else
Result<OpenedFabric> OpenUcx(const FabricChoice& choice, size_t, std::string) {
  return Fail(ErrorCode::kUnavailable,
              "--fabric " + choice.name + ": this program was built without UCX, so its ranks cannot be processes; "
              "install libucx-dev and build again, or use --local WxS --fabric loopback.");
}
#endif

}  // namespace

Result<OpenedFabric> OpenFabric(const FabricChoice& choice, PeerId self, size_t max_put_bytes) {
  if (choice.name == "verbs") {
    return Fail(ErrorCode::kUnavailable,
                "--fabric verbs: this version has no verbs fabric of its own; use --fabric ucx, which drives InfiniBand "
                "and RoCE.");
  }
  if (choice.name == "loopback" && choice.hub == nullptr) {
    return Fail(ErrorCode::kUnavailable,
                "--fabric loopback joins threads of one process: it needs --local, not --role.");
  }
  if (choice.hub != nullptr) {
    return OpenedFabric{choice.hub->Open(self), "loopback: the ranks are threads of one process"};
  }
  if (choice.name == "ucx") return OpenUcx(choice, max_put_bytes, "ucx: asked for by name");
  return OpenUcx(choice, max_put_bytes, "ucx: chosen by auto; verbs is not used: this version has no verbs fabric of its own");
}

Error FirstCause(const Bootstrap& bootstrap, const Error& seen) {
  constexpr auto kPatience = std::chrono::milliseconds(1000);
  constexpr auto kPause = std::chrono::milliseconds(5);
  for (auto waited = kPause; seen.code == ErrorCode::kPeerFailed && waited < kPatience; waited += kPause) {
    if (bootstrap.Failure()) break;
    std::this_thread::sleep_for(kPause);
  }
  return bootstrap.Failure().value_or(seen);
}

Result<void> ConnectFabric(Fabric& fabric, Bootstrap& bootstrap, Membership members, Member self, int timeout_ms) {
  ASSIGN_OR_RETURN(const std::string address, fabric.LocalAddress());
  ASSIGN_OR_RETURN(std::vector<std::string> addresses, bootstrap.AllGather("fabric addresses", address));
  for (uint32_t i = 0; i < members.Count(); ++i) {
    if (members.At(i).role == self.role) addresses[i].clear();
  }
  TRY(fabric.Connect(members.IndexOf(self), addresses, timeout_ms));
  return bootstrap.Barrier("fabric connected");
}

}  // namespace gradlane
