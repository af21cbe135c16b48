// The host's side of the bootstrap: takes connections, lets in who knows the secret and fits, relays blobs and
// farewells between the ranks, and tells everybody of the first failure.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "transport/bootstrap_engine.h"

namespace gradlane {
namespace {

constexpr size_t kMaxStrangers = 64;  // connections that have not proved themselves yet
constexpr int64_t kLingerMs = 5'000;  // most time to tell late ranks why the job could not start

class HostEngine final : public BootstrapEngine {
 public:
  HostEngine(const BootstrapOptions& options, Fd parent, BootstrapState* state, Fd listener, std::string address)
      : BootstrapEngine(options, std::move(parent), state),
        table_(self_, JoinMessage{members_, static_cast<uint32_t>(options.peer_timeout_ms), options.agreed},
               std::move(address)),
        told_(members_.Count()) {
    listener_ = std::move(listener);
    told_[members_.IndexOf(self_)] = true;
  }

 private:
  void OnStart() override {
    if (table_.Complete()) Complete();
  }

  void OnAccept(Fd fd, const SocketAddress& address) override {
    MakeRoom();
    AddConnection(std::move(fd), Channel::Side::kHost, address.ToString());
  }

  void OnAuthenticated(Connection& connection) override {
    const HelloMessage& peer = *connection.channel.peer();
    if (peer.version == kBootstrapVersion) return;
    // The other side has both numbers and makes the same sentence; what comes after the handshake may not be
    // understood.
    SetTold(peer.member);
    Condemn(connection);
    FailJoin(VersionMismatch(peer.member, peer.version, self_, kBootstrapVersion));
  }

  void OnMessage(Connection& connection, FrameType type, std::string&& body) override {
    if (connection.phase == Connection::Phase::kHandshake) {
      if (type != FrameType::kJoin) return Close(connection);
      if (auto join = ParseJoin(body))
        OnJoin(connection, *join);
      else
        Close(connection);
      return;
    }
    const uint32_t index = members_.IndexOf(connection.member);
    switch (type) {
      case FrameType::kHeartbeat:
        return;
      case FrameType::kGather: {
        auto message = ParseGather(body);
        if (!message) return OnBadBytes(connection, message.error());
        if (message->member != index || !joined_) return OnBadBytes(connection, OutOfTurn());
        if (auto added = state_->AddBlob(std::move(*message)); !added) {
          if (added.error().code == ErrorCode::kMismatch) return Fail(added.error());
          return OnBadBytes(connection, added.error());
        }
        Relay(type, std::make_shared<const std::string>(std::move(body)), &connection);
        return;
      }
      case FrameType::kLeave: {
        const auto message = ParseLeave(body);
        if (!message) return OnBadBytes(connection, message.error());
        if (message->member != index || !joined_) return OnBadBytes(connection, OutOfTurn());
        state_->SetLeft(index);
        Relay(type, std::make_shared<const std::string>(std::move(body)), &connection);
        return;
      }
      case FrameType::kAbort: {
        const auto error = ParseAbort(body);
        if (!error) return OnBadBytes(connection, error.error());
        if (joined_) return Fail(*error);
        return FailJoin(Error{error->code, ToString(connection.member) + " gave up: " + error->message});
      }
      default:
        return OnBadBytes(connection, OutOfTurn());
    }
  }

  void OnBadBytes(Connection& connection, const Error& error) override {
    if (connection.phase == Connection::Phase::kMember) {
      Fail(Error{ErrorCode::kMalformed, ToString(connection.member) + " sent " + error.message});
      return Condemn(connection);
    }
    if (error.code == ErrorCode::kUnauthenticated) {
      const Member claimed = connection.channel.peer()->member;
      table_.AddRejected(claimed, connection.address);
      if (num_rejected_++ < 8) {  // a flood must not fill the log
        spdlog::warn("{}: rejected a process at {} that says it is {}: its secret is not the job's", ToString(self_),
                     connection.address, ToString(claimed));
      }
      return Condemn(connection);  // REJECT still goes out
    }
    Close(connection);
  }

  void OnEnd(Connection& connection) override {
    const bool member = connection.phase == Connection::Phase::kMember;
    Close(connection);
    if (!member || state_->HasLeft(members_.IndexOf(connection.member))) return;
    FailJoin(Error{ErrorCode::kPeerFailed, EndedSentence(connection, connection.member)});
  }

  void OnDeadline(Connection& connection) override { Close(connection); }

  void OnTick() override {
    if (!joined_ && now_ms_ - start_ms_ >= options_.join_timeout_ms) Fail(table_.Timeout(options_.join_timeout_ms));
  }

  void Announce(const Error& error) override {
    abort_body_ = std::make_shared<const std::string>(EncodeAbort(error));
    for (auto& connection : connections_) {
      if (connection->phase != Connection::Phase::kMember) continue;
      connection->channel.Send(FrameType::kAbort, abort_body_);
      SetTold(connection->member);
    }
  }

  void SendGather(const std::shared_ptr<const std::string>& body) override { Relay(FrameType::kGather, body, nullptr); }

  void SendLeave() override {
    Relay(FrameType::kLeave, std::make_shared<const std::string>(EncodeLeave({members_.IndexOf(self_)})), nullptr);
  }

  bool NothingToFinish() override {
    return now_ms_ >= linger_until_ms_ || std::all_of(told_.begin(), told_.end(), [](bool told) { return told; });
  }

  void OnJoin(Connection& connection, const JoinMessage& join) {
    const Member member = connection.channel.peer()->member;
    auto added = abort_body_ ? Result<void>() : table_.Add(member, join, connection.address);
    if (abort_body_ || !added) {
      connection.channel.Send(FrameType::kAbort, abort_body_ ? *abort_body_ : EncodeAbort(added.error()));
      SetTold(member);
      Condemn(connection);
      if (!added) FailJoin(added.error());
      return;
    }
    connection.phase = Connection::Phase::kMember;
    connection.member = member;
    if (table_.Complete()) return Complete();
    const auto waiting = std::make_shared<const std::string>(EncodeWaiting({table_.Missing()}));
    for (auto& other : connections_)
      if (other->phase == Connection::Phase::kMember) other->channel.Send(FrameType::kWaiting, waiting);
  }

  void Complete() {
    joined_ = true;
    heartbeat_ms_ = std::max<int64_t>(table_.MinPeerTimeoutMs() / 4, 1);
    const auto welcome = std::make_shared<const std::string>(EncodeWelcome({static_cast<uint32_t>(heartbeat_ms_)}));
    for (auto& connection : connections_) {
      if (connection->phase != Connection::Phase::kMember) continue;
      connection->channel.Send(FrameType::kWelcome, welcome);
      connection->heard_ms = now_ms_;
    }
    state_->SetJoined();
  }

  // A newcomer that does not fit, or a rank that died. A job that is under way is not disturbed by the first; one that
  // has yet to start cannot, and its late ranks are waited for a little so that they hear why.
  void FailJoin(const Error& error) {
    if (abort_body_ || (joined_ && error.code == ErrorCode::kMismatch)) return;
    if (!joined_) {
      linger_until_ms_ = now_ms_ + std::min<int64_t>(kLingerMs, options_.peer_timeout_ms);
      SetFinish(linger_until_ms_);
    }
    Fail(error);
  }

  void Relay(FrameType type, const std::shared_ptr<const std::string>& body, const Connection* from) {
    for (auto& connection : connections_)
      if (connection->phase == Connection::Phase::kMember && connection.get() != from && !connection->ended)
        connection->channel.Send(type, body);
  }

  void SetTold(Member member) {
    if (!RankOutOfRange(member, members_)) told_[members_.IndexOf(member)] = true;
  }

  // The oldest stranger goes first: a rank's handshake takes two round trips, so the newest are the likely ones.
  void MakeRoom() {
    size_t strangers = 0;
    Connection* oldest = nullptr;
    for (auto& connection : connections_) {
      if (connection->phase != Connection::Phase::kHandshake && connection->phase != Connection::Phase::kClosing)
        continue;
      ++strangers;
      if (oldest == nullptr) oldest = connection.get();
    }
    if (strangers >= kMaxStrangers) Close(*oldest);
  }

  static Error OutOfTurn() { return Error{ErrorCode::kMalformed, "a bootstrap message out of turn"}; }

  JoinTable table_;
  std::vector<bool> told_;                         // by member index: ABORT is on its way there
  std::shared_ptr<const std::string> abort_body_;  // once the job has failed; shared by all connections
  int64_t linger_until_ms_ = 0;
  uint64_t num_rejected_ = 0;
};

}  // namespace

std::unique_ptr<BootstrapEngine> MakeHostEngine(const BootstrapOptions& options, Fd parent, BootstrapState* state,
                                                Fd listener, std::string address) {
  return std::make_unique<HostEngine>(options, std::move(parent), state, std::move(listener), std::move(address));
}

}  // namespace gradlane
