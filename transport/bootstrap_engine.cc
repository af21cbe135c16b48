#include "transport/bootstrap_engine.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace gradlane {
namespace {

// Deadlines are kept to within this; a tick costs a few microseconds.
constexpr int64_t kTickMs = 100;
constexpr int64_t kFlushTickMs = 2;
constexpr size_t kReadBytes = 64 << 10;
constexpr int kReadsPerRound = 16;  // so that no peer starves the others
constexpr size_t kPieces = 64;

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

BootstrapEngine::BootstrapEngine(const BootstrapOptions& options, Fd parent, BootstrapState* state)
    : options_(options),
      self_(options.self),
      members_(options.members),
      keys_(JobKeys::FromSecret(options.secret)),
      state_(state),
      parent_(std::move(parent)),
      buffer_(kReadBytes, '\0') {}

void BootstrapEngine::Run() {
  now_ms_ = start_ms_ = NowMs();
  OnStart();
  while (true) {
    HandleCommands();
    state_->RunCallback();
    // A ticket is answered once everything that was queued before it has arrived at the peers' machines.
    if (flush_ticket_ != 0 && Drained()) state_->SetFlushed(std::exchange(flush_ticket_, 0));
    if (stopping_ && ((Drained() && NothingToFinish()) || now_ms_ >= finish_ms_)) break;
    PollOnce();
  }
  connections_.clear();
  listener_.Reset();
}

void BootstrapEngine::HandleCommands() {
  for (BootstrapCommand& command : state_->TakeCommands()) {
    switch (command.kind) {
      case BootstrapCommand::Kind::kGather:
        SendGather(command.body);
        break;
      case BootstrapCommand::Kind::kLeave:
        SendLeave();
        break;
      case BootstrapCommand::Kind::kAbort:
        if (!std::exchange(announced_, true)) Announce(command.error);
        break;
      case BootstrapCommand::Kind::kFlush:
        flush_ticket_ = std::max(flush_ticket_, command.ticket);
        break;
      case BootstrapCommand::Kind::kStop:
        stopping_ = true;
        finish_ms_ = std::max(finish_ms_, now_ms_ + kFinishMs);
        break;
    }
  }
  for (auto& connection : connections_) Write(*connection);
}

void BootstrapEngine::PollOnce() {
  std::vector<pollfd> polled;
  polled.push_back({state_->wake_fd(), POLLIN, 0});
  polled.push_back({parent_ ? parent_.get() : -1, POLLIN, 0});
  polled.push_back({listener_ && now_ms_ >= accept_again_ms_ ? listener_.get() : -1, POLLIN, 0});
  const size_t first = polled.size();
  const size_t count = connections_.size();
  for (const auto& connection : connections_) {
    const bool connecting = connection->phase == Connection::Phase::kConnecting;
    const bool writes = connecting || (connection->channel.HasOutput() && !connection->send_broken);
    const bool reads = !connecting && !connection->ended;
    const bool any = writes || reads;
    polled.push_back(
        {any ? connection->fd.get() : -1, static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0});
  }
  int64_t timeout = kTickMs;
  if (joined_) timeout = std::clamp<int64_t>(heartbeat_ms_ / 2, 1, kTickMs);
  if (flush_ticket_ != 0 || stopping_) timeout = kFlushTickMs;

  const int64_t expected = now_ms_ + timeout;
  const int ready = poll(polled.data(), polled.size(), static_cast<int>(timeout));
  now_ms_ = NowMs();
  if (ready < 0) return;  // EINTR
  if (now_ms_ > expected + options_.peer_timeout_ms / 2) {
    // This process itself did not run (stopped, or starved): what the others sent meanwhile is judged from now on.
    for (auto& connection : connections_) connection->heard_ms = now_ms_;
  }

  if (polled[1].revents != 0) CheckParent();  // before the peers, who die of the same
  if (polled[2].revents != 0) Accept();
  std::vector<bool> had_input(count);
  for (size_t i = 0; i < count; ++i) {
    Connection& connection = *connections_[i];
    const short events = polled[first + i].revents;
    if (events == 0 || connection.phase == Connection::Phase::kClosed) continue;
    if (connection.phase == Connection::Phase::kConnecting) {
      OnConnected(connection);
      continue;
    }
    had_input[i] = (events & (POLLIN | POLLHUP | POLLERR)) != 0;
    if (had_input[i]) Read(connection);
    Write(connection);
  }
  CheckTime(had_input);
  OnTick();
  for (auto& connection : connections_) Write(*connection);
  std::erase_if(connections_, [](const auto& connection) { return connection->phase == Connection::Phase::kClosed; });
}

void BootstrapEngine::Accept() {
  for (int i = 0; i < 16; ++i) {
    SocketAddress address;
    address.num_bytes = sizeof address.storage;
    Fd fd(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.num_bytes,
                  SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      SetNoDelay(fd.get());
      OnAccept(std::move(fd), address);
      continue;
    }
    // Out of descriptors or memory: without a pause poll would spin.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) accept_again_ms_ = now_ms_ + kTickMs;
    return;
  }
}

void BootstrapEngine::Read(Connection& connection) {
  for (int i = 0; i < kReadsPerRound && !connection.ended; ++i) {
    const ssize_t bytes = recv(connection.fd.get(), buffer_.data(), buffer_.size(), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (bytes <= 0) {
      connection.ended = true;
      connection.end_errno = bytes < 0 ? errno : 0;
      if (connection.phase == Connection::Phase::kClosing)
        Close(connection);
      else
        OnEnd(connection);
      return;
    }
    connection.heard_ms = now_ms_;
    if (connection.phase == Connection::Phase::kClosing) continue;
    connection.channel.Receive({buffer_.data(), static_cast<size_t>(bytes)});
    while (connection.phase == Connection::Phase::kHandshake || connection.phase == Connection::Phase::kMember) {
      auto event = connection.channel.Next();
      if (!event) {
        OnBadBytes(connection, event.error());
        break;
      }
      if (!*event) break;
      if ((*event)->kind == Channel::EventKind::kAuthenticated)
        OnAuthenticated(connection);
      else
        OnMessage(connection, (*event)->type, std::move((*event)->body));
    }
    if (connection.phase == Connection::Phase::kClosed) return;
  }
}

void BootstrapEngine::Write(Connection& connection) {
  if (connection.phase == Connection::Phase::kConnecting || connection.phase == Connection::Phase::kClosed) return;
  while (connection.channel.HasOutput() && !connection.send_broken) {
    iovec pieces[kPieces];
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = connection.channel.Output(pieces, kPieces);
    const ssize_t bytes = sendmsg(connection.fd.get(), &message, MSG_NOSIGNAL);
    if (bytes >= 0) {
      connection.channel.Sent(static_cast<size_t>(bytes));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      // What the peer said before it went may still be there to read: the reading side decides what this means.
      connection.send_broken = true;
    }
  }
}

void BootstrapEngine::CheckParent() {
  char scratch[64];
  const ssize_t bytes = read(parent_.get(), scratch, sizeof scratch);
  if (bytes > 0 || (bytes < 0 && (errno == EINTR || errno == EAGAIN))) return;
  parent_.Reset();
  Fail(Error{ErrorCode::kPeerFailed, "the launcher of this job (--local) died"});
}

void BootstrapEngine::CheckTime(const std::vector<bool>& had_input) {
  for (size_t i = 0; i < had_input.size(); ++i) {  // connections that came in this round have time
    Connection& connection = *connections_[i];
    switch (connection.phase) {
      case Connection::Phase::kConnecting:
      case Connection::Phase::kHandshake:
        if (now_ms_ >= connection.deadline_ms) OnDeadline(connection);
        break;
      case Connection::Phase::kClosing:
        if (now_ms_ >= connection.deadline_ms) Close(connection);
        break;
      case Connection::Phase::kMember:
        if (joined_ && !connection.ended && !had_input[i] &&
            now_ms_ - connection.heard_ms >= options_.peer_timeout_ms &&
            !state_->HasLeft(members_.IndexOf(connection.member))) {
          Fail(Error{ErrorCode::kPeerFailed, ToString(connection.member) + " has been silent for " +
                                                 Seconds(options_.peer_timeout_ms) +
                                                 ": it hangs, is stopped, or cannot be reached any more"});
        }
        break;
      case Connection::Phase::kClosed:
        break;
    }
  }
  if (joined_ && now_ms_ >= next_heartbeat_ms_) {
    next_heartbeat_ms_ = now_ms_ + heartbeat_ms_;
    for (auto& connection : connections_)
      if (connection->phase == Connection::Phase::kMember && !connection->ended && !connection->send_broken)
        connection->channel.Send(FrameType::kHeartbeat);
  }
}

bool BootstrapEngine::Drained() const {
  for (const auto& connection : connections_) {
    if (connection->ended || connection->send_broken) continue;
    if (connection->phase != Connection::Phase::kMember && connection->phase != Connection::Phase::kClosing) continue;
    if (connection->channel.HasOutput()) return false;
    int unacknowledged = 0;  // tcp(7), SIOCOUTQ: until then closing with unread input could throw it away
    if (ioctl(connection->fd.get(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0) return false;
  }
  return true;
}

Connection& BootstrapEngine::AddConnection(Fd fd, Channel::Side side, std::string address) {
  connections_.push_back(std::make_unique<Connection>(std::move(fd), side, &keys_, self_));
  Connection& connection = *connections_.back();
  connection.address = std::move(address);
  connection.heard_ms = now_ms_;
  connection.deadline_ms = now_ms_ + kHandshakeMs;
  return connection;
}

void BootstrapEngine::Condemn(Connection& connection) {
  connection.phase = Connection::Phase::kClosing;
  connection.deadline_ms = now_ms_ + kFinishMs;
}

void BootstrapEngine::Fail(const Error& error) {
  if (state_->SetFailure(error) && !std::exchange(announced_, true)) Announce(error);
}

std::string BootstrapEngine::EndedSentence(const Connection& connection, Member member) const {
  const std::string why =
      connection.end_errno == 0 ? "" : std::string(" (") + std::strerror(connection.end_errno) + ")";
  return ToString(member) + " died: its connection to " + ToString(self_) + " ended without a goodbye" + why;
}

}  // namespace gradlane
