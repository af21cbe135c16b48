// One connection of the bootstrap without its socket: bytes in, messages out, and the other way round. It runs the
// handshake that proves to each side that the other knows the job's secret, derives the keys of this connection, and
// puts a MAC on every later frame. Pure: no I/O, no clock, no thread; randomness comes in as a nonce. Owned by the
// connection, one thread.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "transport/bootstrap_wire.h"

namespace gradlane {

// What is derived from the job's secret, once per process. Wiped on destruction.
class JobKeys {
 public:
  static JobKeys FromSecret(std::string_view secret);
  ~JobKeys();
  JobKeys(const JobKeys&) = default;
  JobKeys& operator=(const JobKeys&) = default;

  std::array<uint8_t, 32> proof{};
  std::array<uint8_t, 32> session{};

 private:
  JobKeys() = default;
};

Nonce RandomNonce();

class Channel {
 public:
  enum class Side { kHost, kClient };
  enum class EventKind { kAuthenticated, kMessage };
  struct Event {
    EventKind kind = EventKind::kMessage;
    FrameType type = FrameType::kHeartbeat;  // kMessage only; likewise below
    std::string body;
  };

  // `keys` must outlive the channel. `nonce` must be fresh. A client's HELLO is queued at once.
  Channel(Side side, const JobKeys* keys, Member self, uint32_t version, const Nonce& nonce);
  ~Channel();
  Channel(const Channel&) = delete;

  // Bytes from the peer, in any pieces; take what became of them with Next until it has nothing more.
  void Receive(std::string_view bytes);

  // kMalformed: bytes that no Gradlane sends, or a frame whose MAC is wrong (altered, replayed, out of order).
  // kUnauthenticated: the peer does not know the secret (a host then has REJECT queued for it), or says that we do not.
  // After an error the channel is of no more use; every further call gives the same error.
  Result<std::optional<Event>> Next();

  // Queues a frame behind the handshake. The body is shared because a relayed blob goes to every connection at once.
  void Send(FrameType type, std::shared_ptr<const std::string> body);
  void Send(FrameType type, std::string body = {});

  // The first queued bytes, as up to `max` pieces for writev; and how many of them were taken.
  size_t Output(iovec* pieces, size_t max) const;
  void Sent(size_t num_bytes);
  bool HasOutput() const { return !output_.empty(); }

  bool authenticated() const { return state_ == State::kOpen; }
  // Who the peer says it is: set by HELLO or CHALLENGE, to be believed once authenticated.
  const std::optional<HelloMessage>& peer() const { return peer_; }

 private:
  enum class State { kWaitHello, kWaitProof, kWaitChallenge, kWaitAccept, kOpen, kBroken };
  struct OutFrame {
    std::array<char, kFrameHeaderBytes> header;
    std::shared_ptr<const std::string> body;
    Mac mac;
    size_t mac_bytes = 0;
    size_t Bytes() const { return header.size() + body->size() + mac_bytes; }
  };

  Result<std::optional<Event>> Advance();
  Result<std::optional<Event>> OnHandshakeFrame(FrameType type, std::string_view body);
  void SendPlain(FrameType type, std::string body);
  void DeriveSessionKeys();
  Mac Proof(std::string_view label) const;

  const Side side_;
  const JobKeys* const keys_;
  HelloMessage self_;
  std::optional<HelloMessage> peer_;
  State state_;
  Error error_;

  std::string input_;
  size_t input_begin_ = 0;
  std::deque<OutFrame> output_;
  size_t output_begin_ = 0;  // bytes of the first frame that are already sent

  std::array<uint8_t, 32> send_key_{};
  std::array<uint8_t, 32> receive_key_{};
  uint64_t send_sequence_ = 0;
  uint64_t receive_sequence_ = 0;
};

}  // namespace gradlane
