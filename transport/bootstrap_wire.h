// The bytes of the bootstrap: frames and message bodies, as transport/BOOTSTRAP.md specifies them. Pure functions; a
// parser treats its input as hostile and answers kMalformed. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "transport/base/error.h"
#include "transport/base/members.h"
#include "transport/bootstrap.h"

namespace gradlane {

inline constexpr size_t kFrameHeaderBytes = 12;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kMacBytes = 32;
inline constexpr size_t kHelloBytes = 4 + 1 + 4 + kNonceBytes;
inline constexpr size_t kMaxNameBytes = 128;        // of a gather, of an agreed option
inline constexpr size_t kMaxValueBytes = 16 << 10;  // of an agreed option
inline constexpr size_t kMaxAgreed = 256;
inline constexpr size_t kMaxSentenceBytes = 4 << 10;
inline constexpr size_t kMaxJoinBytes = 256 << 10;
inline constexpr uint32_t kMaxMembers = 4096;

using Nonce = std::array<uint8_t, kNonceBytes>;
using Mac = std::array<uint8_t, kMacBytes>;

enum class FrameType : uint8_t {
  // The handshake, which never changes from version to version. Without a MAC.
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kAccept = 4,
  kReject = 5,
  // Every one of these is followed by a MAC.
  kJoin = 16,
  kWaiting = 17,
  kWelcome = 18,
  kGather = 19,
  kLeave = 20,
  kAbort = 21,
  kHeartbeat = 22,
};

struct FrameHeader {
  FrameType type = FrameType::kHeartbeat;
  uint32_t body_bytes = 0;  // without the MAC
};

size_t MaxBodyBytes(FrameType type);
std::array<char, kFrameHeaderBytes> EncodeHeader(const FrameHeader& header);
// `bytes`: exactly kFrameHeaderBytes. An unknown type or a body beyond the type's limit is kMalformed.
Result<FrameHeader> ParseHeader(std::string_view bytes);

// Body of HELLO (the connecting rank) and CHALLENGE (the host rank).
struct HelloMessage {
  uint32_t version = kBootstrapVersion;
  Member member;
  Nonce nonce{};
  bool operator==(const HelloMessage&) const = default;
};

struct JoinMessage {
  Membership members;
  uint32_t peer_timeout_ms = 0;
  std::map<std::string, std::string> agreed;
  bool operator==(const JoinMessage&) const = default;
};

struct WaitingMessage {
  std::string missing;  // for people: "worker 1, worker 2"
};

struct WelcomeMessage {
  uint32_t heartbeat_ms = 0;
};

struct GatherMessage {
  uint64_t sequence = 0;  // counts the collectives of this job
  uint32_t member = 0;    // whose blob
  std::string name;
  std::string blob;
  bool operator==(const GatherMessage&) const = default;
};

struct LeaveMessage {
  uint32_t member = 0;
};

std::string EncodeHello(const HelloMessage& message);
std::string EncodeJoin(const JoinMessage& message);
std::string EncodeWaiting(const WaitingMessage& message);
std::string EncodeWelcome(const WelcomeMessage& message);
std::string EncodeGather(uint64_t sequence, uint32_t member, std::string_view name, std::string_view blob);
std::string EncodeLeave(const LeaveMessage& message);
std::string EncodeAbort(const Error& error);  // a longer sentence is cut

Result<HelloMessage> ParseHello(std::string_view body);
Result<Mac> ParseMac(std::string_view body);
Result<JoinMessage> ParseJoin(std::string_view body);
Result<WaitingMessage> ParseWaiting(std::string_view body);
Result<WelcomeMessage> ParseWelcome(std::string_view body);
Result<GatherMessage> ParseGather(std::string_view body);
Result<LeaveMessage> ParseLeave(std::string_view body);
Result<Error> ParseAbort(std::string_view body);

// What came from a peer and goes into a sentence: control characters become spaces, at most `max_bytes`.
std::string Printable(std::string_view text, size_t max_bytes = kMaxSentenceBytes);

}  // namespace gradlane
