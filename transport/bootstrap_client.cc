// The side of every rank that is not the host: connects, again and again until the join timeout, proves that it knows
// the secret, says what it was started with, and then hears of the others through the host.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/bootstrap_engine.h"

namespace gradlane {
namespace {

constexpr int64_t kConnectMs = 3'000;  // one attempt; lost SYNs are sent again after 1 s and 3 s (tcp(7))
constexpr int64_t kFirstRetryMs = 20;
constexpr int64_t kMaxRetryMs = 500;
// Once admitted, the host's verdict at its own timeout is waited for a little longer than this rank's: it knows more.
constexpr int64_t kVerdictMs = 2'000;

class ClientEngine final : public BootstrapEngine {
 public:
  ClientEngine(const BootstrapOptions& options, Fd parent, BootstrapState* state, std::vector<SocketAddress> addresses)
      : BootstrapEngine(options, std::move(parent), state), addresses_(std::move(addresses)) {}

 private:
  void OnStart() override { Connect(); }

  void OnConnected(Connection& connection) override {
    int code = 0;
    socklen_t bytes = sizeof code;
    getsockopt(connection.fd.get(), SOL_SOCKET, SO_ERROR, &code, &bytes);
    const auto local = LocalAddress(connection.fd.get());
    // Where nobody listens, a port of the ephemeral range can be connected to itself (simultaneous open).
    if (code == 0 && local && local->ToString() == connection.address) code = ECONNREFUSED;
    if (code != 0) return Retry(connection, std::strerror(code));
    SetNoDelay(connection.fd.get());
    connection.phase = Connection::Phase::kHandshake;
    connection.deadline_ms = INT64_MAX;  // the join timeout bounds it: the host may be listening but not yet running
    progress_ = Progress::kConnected;
  }

  void OnAuthenticated(Connection& connection) override {
    const HelloMessage& host = *connection.channel.peer();
    if (host.version != kBootstrapVersion) {
      Close(connection);
      return Fail(VersionMismatch(self_, kBootstrapVersion, host.member, host.version));
    }
    if (host.member != Host()) {
      Close(connection);
      return Fail(Error{ErrorCode::kMismatch, "the rank at " + options_.rendezvous + " is " + ToString(host.member) +
                                                  " but " + ToString(self_) + " expects " + ToString(Host()) +
                                                  ": start every rank with the same --workers and --servers"});
    }
    connection.phase = Connection::Phase::kMember;
    connection.member = host.member;
    progress_ = Progress::kAdmitted;
    connection.channel.Send(FrameType::kJoin,
                            EncodeJoin({members_, static_cast<uint32_t>(options_.peer_timeout_ms), options_.agreed}));
  }

  void OnMessage(Connection& connection, FrameType type, std::string&& body) override {
    switch (type) {
      case FrameType::kHeartbeat:
        return;
      case FrameType::kWaiting: {
        auto message = ParseWaiting(body);
        if (!message) return OnBadBytes(connection, message.error());
        missing_ = std::move(message->missing);
        return;
      }
      case FrameType::kWelcome: {
        const auto message = ParseWelcome(body);
        if (!message) return OnBadBytes(connection, message.error());
        if (joined_) return OnBadBytes(connection, OutOfTurn());
        joined_ = true;
        heartbeat_ms_ = message->heartbeat_ms;
        return state_->SetJoined();
      }
      case FrameType::kGather: {
        auto message = ParseGather(body);
        if (!message) return OnBadBytes(connection, message.error());
        if (!joined_ || message->member == members_.IndexOf(self_)) return OnBadBytes(connection, OutOfTurn());
        const auto added = state_->AddBlob(std::move(*message));
        if (!added && added.error().code == ErrorCode::kMismatch) return Fail(added.error());
        if (!added) return OnBadBytes(connection, added.error());
        return;
      }
      case FrameType::kLeave: {
        const auto message = ParseLeave(body);
        if (!message) return OnBadBytes(connection, message.error());
        if (!joined_ || message->member >= members_.Count()) return OnBadBytes(connection, OutOfTurn());
        return state_->SetLeft(message->member);
      }
      case FrameType::kAbort: {
        const auto error = ParseAbort(body);
        if (!error) return OnBadBytes(connection, error.error());
        told_ = true;
        return Fail(*error);
      }
      default:
        return OnBadBytes(connection, OutOfTurn());
    }
  }

  void OnBadBytes(Connection& connection, const Error& error) override {
    if (connection.phase == Connection::Phase::kMember) {
      Fail(Error{ErrorCode::kMalformed, ToString(Host()) + " sent " + error.message});
      return Condemn(connection);
    }
    Close(connection);
    if (error.code == ErrorCode::kUnauthenticated) {
      return Fail(Error{ErrorCode::kUnauthenticated,
                        "the secret of this rank is not the job's: " + ToString(self_) + " and " + ToString(Host()) +
                            " at " + options_.rendezvous +
                            " have different ones; give every rank the same --secret-file or GRADLANE_SECRET"});
    }
    Fail(Error{ErrorCode::kUnavailable, "what answers at " + options_.rendezvous + " is not a Gradlane rank (" +
                                            error.message + "): give every rank the --rendezvous of " +
                                            ToString(Host())});
  }

  void OnEnd(Connection& connection) override {
    if (connection.phase == Connection::Phase::kMember) {
      Close(connection);
      if (state_->HasLeft(members_.IndexOf(Host()))) {
        // It waited for the rest as long as it had promised. Nobody can tell this rank of the others any more.
        for (uint32_t i = 0; i < members_.Count(); ++i)
          if (i != members_.IndexOf(self_)) state_->SetLeft(i);
        return;
      }
      return Fail(Error{ErrorCode::kPeerFailed, EndedSentence(connection, Host())});
    }
    Retry(connection, "the connection was closed before it was answered");
  }

  void OnDeadline(Connection& connection) override { Retry(connection, std::strerror(ETIMEDOUT)); }

  void OnTick() override {
    if (joined_ || state_->Failure()) return;
    const int64_t waited_ms = now_ms_ - start_ms_;
    if (waited_ms >= options_.join_timeout_ms + (progress_ == Progress::kAdmitted ? kVerdictMs : 0))
      return Fail(TimeoutError());
    if (connections_.empty() && now_ms_ >= retry_ms_) Connect();
  }

  // To the host, which tells the others.
  void Announce(const Error& error) override {
    if (told_) return;
    for (auto& connection : connections_)
      if (connection->phase == Connection::Phase::kMember)
        connection->channel.Send(FrameType::kAbort, EncodeAbort(error));
  }

  void SendGather(const std::shared_ptr<const std::string>& body) override {
    for (auto& connection : connections_)
      if (connection->phase == Connection::Phase::kMember) connection->channel.Send(FrameType::kGather, body);
  }

  void SendLeave() override {
    for (auto& connection : connections_)
      if (connection->phase == Connection::Phase::kMember)
        connection->channel.Send(FrameType::kLeave, EncodeLeave({members_.IndexOf(self_)}));
  }

  void Connect() {
    const SocketAddress& address = addresses_[next_address_++ % addresses_.size()];
    auto fd = StartConnect(address);
    if (!fd) {
      problem_ = fd.error().message;
      return Backoff();
    }
    Connection& connection = AddConnection(std::move(*fd), Channel::Side::kClient, address.ToString());
    connection.phase = Connection::Phase::kConnecting;
    connection.deadline_ms = now_ms_ + kConnectMs;
  }

  void Retry(Connection& connection, const std::string& problem) {
    Close(connection);
    problem_ = problem;
    Backoff();
  }

  void Backoff() {
    retry_ms_ = now_ms_ + (next_address_ % addresses_.size() == 0 ? backoff_ms_ : 0);
    backoff_ms_ = std::min(2 * backoff_ms_, kMaxRetryMs);
  }

  Error TimeoutError() const {
    const std::string within = " within " + Seconds(options_.join_timeout_ms);
    const std::string host = ToString(Host()) + " at " + options_.rendezvous;
    if (progress_ == Progress::kAdmitted) {
      const std::string missing = missing_.empty() ? "the other ranks" : missing_;
      const bool many = missing_.empty() || missing_.find(',') != std::string::npos;
      return Error{ErrorCode::kTimeout, missing + (many ? " have" : " has") + " not joined " + host + within +
                                            ": start the missing ranks, or look at what they say"};
    }
    if (progress_ == Progress::kConnected && problem_.empty()) {
      return Error{ErrorCode::kTimeout, host + " takes connections but did not answer " + ToString(self_) + within +
                                            ": look at whether it runs, and what it says"};
    }
    return Error{ErrorCode::kTimeout, host + " could not be reached" + within + " (" + problem_ +
                                          "): start it, and give every rank the same --rendezvous"};
  }

  Member Host() const { return members_.At(0); }
  static Error OutOfTurn() { return Error{ErrorCode::kMalformed, "a bootstrap message out of turn"}; }

  enum class Progress { kNone, kConnected, kAdmitted };

  const std::vector<SocketAddress> addresses_;  // of the host, tried in turn
  size_t next_address_ = 0;
  int64_t retry_ms_ = 0;
  int64_t backoff_ms_ = kFirstRetryMs;
  Progress progress_ = Progress::kNone;
  std::string problem_;  // of the last attempt
  std::string missing_;  // as the host last said
  bool told_ = false;    // the failure came from the host
};

}  // namespace

std::unique_ptr<BootstrapEngine> MakeClientEngine(const BootstrapOptions& options, Fd parent, BootstrapState* state,
                                                  std::vector<SocketAddress> addresses) {
  return std::make_unique<ClientEngine>(options, std::move(parent), state, std::move(addresses));
}

}  // namespace gradlane
