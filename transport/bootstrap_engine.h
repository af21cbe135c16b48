// The bootstrap's thread: sockets, poll, heartbeats and deadlines. BootstrapEngine is what the host and the other ranks
// have in common; HostEngine and ClientEngine say what a connection, a message or the end of one means to them.
// Made by Bootstrap::Join, then used by the bootstrap's thread only, until that thread ends.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "transport/base/socket.h"
#include "transport/bootstrap.h"
#include "transport/bootstrap_channel.h"
#include "transport/bootstrap_rules.h"
#include "transport/bootstrap_state.h"

namespace gradlane {

struct Connection {
  enum class Phase {
    kConnecting,  // client: connect() is under way
    kHandshake,   // until JOIN (host) or ACCEPT (client)
    kMember,      // a rank of this job
    kClosing,     // what is queued still goes out, what comes in is dropped
    kClosed,      // removed at the end of the round
  };
  Connection(Fd socket, Channel::Side side, const JobKeys* keys, Member self)
      : fd(std::move(socket)), channel(side, keys, self, kBootstrapVersion, RandomNonce()) {}

  Fd fd;
  Channel channel;
  std::string address;  // of the peer
  Phase phase = Phase::kHandshake;
  Member member;            // kMember only
  int64_t deadline_ms = 0;  // kConnecting, kHandshake and kClosing: closed then
  int64_t heard_ms = 0;     // when bytes last came
  bool send_broken = false;
  bool ended = false;  // end of file or an error, after all that came before it was handled
  int end_errno = 0;
};

class BootstrapEngine {
 public:
  // `options` without its descriptors. `state` must outlive the engine.
  BootstrapEngine(const BootstrapOptions& options, Fd parent, BootstrapState* state);
  virtual ~BootstrapEngine() = default;

  void Run();  // until BootstrapState::Stop; bounded after it

 protected:
  static constexpr int64_t kHandshakeMs = 5'000;  // for a connecting process to prove itself and to say JOIN
  static constexpr int64_t kFinishMs = 1'000;     // for the last bytes to reach the peers after Stop

  // What happened. A hook may call Close, Condemn and Fail; connections stay valid until the round ends.
  virtual void OnStart() = 0;
  virtual void OnAccept(Fd, const SocketAddress&) {}
  virtual void OnConnected(Connection&) {}
  virtual void OnAuthenticated(Connection&) = 0;
  virtual void OnMessage(Connection&, FrameType, std::string&& body) = 0;
  virtual void OnBadBytes(Connection&, const Error&) = 0;
  virtual void OnEnd(Connection&) = 0;       // the peer's end of the connection is gone
  virtual void OnDeadline(Connection&) = 0;  // of a connecting or shaking connection
  virtual void OnTick() = 0;                 // every round
  virtual void Announce(const Error&) = 0;   // tells the peers why the job fails; once
  virtual void SendGather(const std::shared_ptr<const std::string>& body) = 0;
  virtual void SendLeave() = 0;
  virtual bool NothingToFinish() { return true; }  // after Stop, beside unsent bytes

  Connection& AddConnection(Fd fd, Channel::Side side, std::string address);
  void Condemn(Connection& connection);  // closes it once its last bytes are out
  void Close(Connection& connection) { connection.phase = Connection::Phase::kClosed; }
  // The job fails, for the first time or not: only the first reason counts and is announced.
  void Fail(const Error& error);
  std::string EndedSentence(const Connection& connection, Member member) const;
  void SetFinish(int64_t at_ms) { finish_ms_ = std::max(finish_ms_, at_ms); }  // no earlier, unless all is done

  const BootstrapOptions options_;
  const Member self_;
  const Membership members_;
  const JobKeys keys_;
  BootstrapState* const state_;
  Fd listener_;  // host only
  std::vector<std::unique_ptr<Connection>> connections_;
  bool joined_ = false;       // the whole job is there: heartbeats run, silence counts
  int64_t heartbeat_ms_ = 0;  // from WELCOME on
  int64_t now_ms_ = 0;        // of this round
  int64_t start_ms_ = 0;
  int64_t accept_again_ms_ = 0;

 private:
  void HandleCommands();
  void PollOnce();
  void Accept();
  void Read(Connection& connection);
  void Write(Connection& connection);
  void CheckParent();
  void CheckTime(const std::vector<bool>& had_input);
  bool Drained() const;

  Fd parent_;
  int64_t next_heartbeat_ms_ = 0;
  bool announced_ = false;
  bool stopping_ = false;
  int64_t finish_ms_ = 0;
  uint64_t flush_ticket_ = 0;
  std::string buffer_;
};

std::unique_ptr<BootstrapEngine> MakeHostEngine(const BootstrapOptions& options, Fd parent, BootstrapState* state,
                                                Fd listener, std::string address);
std::unique_ptr<BootstrapEngine> MakeClientEngine(const BootstrapOptions& options, Fd parent, BootstrapState* state,
                                                  std::vector<SocketAddress> addresses);

}  // namespace gradlane
