#include "transport/bootstrap.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "transport/base/secret.h"
#include "transport/base/socket.h"
#include "transport/bootstrap_engine.h"
#include "transport/bootstrap_rules.h"
#include "transport/bootstrap_state.h"

namespace gradlane {
namespace {

constexpr int kAbortFlushMs = 500;

class BootstrapNode final : public Bootstrap {
 public:
  BootstrapNode(Member self, Membership members, int peer_timeout_ms, Fd wake)
      : self_(self), members_(members), peer_timeout_ms_(peer_timeout_ms), state_(self, members, std::move(wake)) {}

  ~BootstrapNode() override {
    if (!thread_.joinable()) return;
    CHECK(std::this_thread::get_id() != thread_.get_id());  // not from OnFailure's callback
    state_.Stop();
    thread_.join();
  }

  BootstrapState* state() { return &state_; }

  // The thread takes no signals: those are the main thread's affair.
  Result<void> Start(std::unique_ptr<BootstrapEngine> engine) {
    engine_ = std::move(engine);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = 0;
    try {
      thread_ = std::thread([this] { engine_->Run(); });
    } catch (const std::system_error& error) {
      code = error.code().value();
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    if (code != 0)
      return Fail(ErrorCode::kSystem, std::string("cannot start the bootstrap's thread: ") + std::strerror(code), code);
    return {};
  }

  Result<std::vector<std::string>> AllGather(const std::string& name, const std::string& blob) override {
    return state_.AllGather(name, blob);
  }

  Result<void> Barrier(const std::string& name) override {
    auto blobs = state_.AllGather(name, "");
    if (!blobs) return tl::unexpected<Error>(blobs.error());
    return {};
  }

  Result<void> Leave() override { return state_.Leave(peer_timeout_ms_); }

  void Abort(const Error& error) override {
    state_.Abort(Error{error.code, ToString(self_) + ": " + error.message, error.native_code});
    if (std::this_thread::get_id() != thread_.get_id()) state_.Flush(kAbortFlushMs);
  }

  std::optional<Error> Failure() const override { return state_.Failure(); }

  void OnFailure(std::function<void(const Error&)> callback) override { state_.SetCallback(std::move(callback)); }

 private:
  const Member self_;
  const Membership members_;
  const int peer_timeout_ms_;
  BootstrapState state_;
  std::unique_ptr<BootstrapEngine> engine_;
  std::thread thread_;
};

Result<void> CheckOptions(const BootstrapOptions& options) {
  const Membership& members = options.members;
  if (members.num_workers == 0)
    return Fail(ErrorCode::kInvalidArgument, "a job needs at least one worker: give --workers");
  if (members.num_workers > kMaxMembers || members.num_servers > kMaxMembers)
    return Fail(ErrorCode::kInvalidArgument, "a job has at most " + std::to_string(kMaxMembers) + " members of a role");
  if (auto sentence = RankOutOfRange(options.self, members))
    return Fail(ErrorCode::kInvalidArgument, *sentence + "; give --rank and --workers or --servers that fit");
  if (options.join_timeout_ms <= 0 || options.peer_timeout_ms <= 0)
    return Fail(ErrorCode::kInvalidArgument, "the join timeout and the peer timeout must be more than 0");
  size_t bytes = 16;
  for (const auto& [name, value] : options.agreed) {
    bytes += 8 + name.size() + value.size();
    if (name.size() > kMaxNameBytes || value.size() > kMaxValueBytes)
      return Fail(ErrorCode::kInvalidArgument,
                  "the option '" + Printable(name, kMaxNameBytes) + "' is too long to agree on");
  }
  if (options.agreed.size() > kMaxAgreed || bytes > kMaxJoinBytes)
    return Fail(ErrorCode::kInvalidArgument, "there are too many options to agree on");
  return CheckSecret(options.secret, "the job's secret");
}

Result<Fd> TakeListener(Fd inherited) {
  int listening = 0;
  socklen_t bytes = sizeof listening;
  if (getsockopt(inherited.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) != 0 || listening == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "--listen-fd " + std::to_string(inherited.get()) + " is not a listening socket");
  }
  SetNonBlocking(inherited.get());
  SetCloseOnExec(inherited.get(), true);
  return inherited;
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> Bootstrap::Join(BootstrapOptions options) {
  Fd inherited(std::exchange(options.listen_fd, -1));
  Fd parent(std::exchange(options.parent_fd, -1));
  TRY(CheckOptions(options));
  if (parent) {
    if (fcntl(parent.get(), F_GETFD) < 0)
      return Fail(ErrorCode::kInvalidArgument, "--parent-fd " + std::to_string(parent.Release()) + " is not open");
    SetNonBlocking(parent.get());
    SetCloseOnExec(parent.get(), true);
  }
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Fail(ErrorCode::kSystem, std::string("eventfd: ") + std::strerror(errno), errno);
  auto node = std::make_unique<BootstrapNode>(options.self, options.members, options.peer_timeout_ms, std::move(wake));

  std::unique_ptr<BootstrapEngine> engine;
  if (options.members.IndexOf(options.self) == 0) {
    Fd listener;
    std::string address = options.rendezvous;
    if (inherited) {
      ASSIGN_OR_RETURN(listener, TakeListener(std::move(inherited)));
      if (const auto bound = LocalAddress(listener.get())) address = bound->ToString();
    } else if (options.members.Count() > 1 || !options.rendezvous.empty()) {
      ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(options.rendezvous));
      ASSIGN_OR_RETURN(listener, ListenTcp(host_port));
    }
    engine = MakeHostEngine(options, std::move(parent), node->state(), std::move(listener), std::move(address));
  } else {
    ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(options.rendezvous));
    ASSIGN_OR_RETURN(auto addresses, Resolve(host_port));
    engine = MakeClientEngine(options, std::move(parent), node->state(), std::move(addresses));
  }
  sodium_memzero(options.secret.data(), options.secret.size());
  TRY(node->Start(std::move(engine)));
  TRY(node->state()->WaitJoined());
  return std::unique_ptr<Bootstrap>(std::move(node));
}

}  // namespace gradlane
