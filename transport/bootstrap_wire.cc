#include "transport/bootstrap_wire.h"

#include <algorithm>
#include <cstring>

namespace gradlane {
namespace {

constexpr std::string_view kMagic = "GLBS";
constexpr uint8_t kFraming = 1;

class Writer {
 public:
  template <typename T>
  void Integer(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void Bytes(const void* data, size_t num_bytes) { bytes_.append(static_cast<const char*>(data), num_bytes); }
  void String(std::string_view text) {
    Integer(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  void Reserve(size_t num_bytes) { bytes_.reserve(num_bytes); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads past the end give zeros and are remembered: a parser reads all its fields and then asks Done().
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Integer() {
    if (rest_.size() < sizeof(T)) {
      ok_ = false;
      rest_ = {};
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    rest_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }
  std::string_view Bytes(size_t num_bytes) {
    if (rest_.size() < num_bytes) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view bytes = rest_.substr(0, num_bytes);
    rest_.remove_prefix(num_bytes);
    return bytes;
  }
  std::string_view String(size_t max_bytes) {
    const uint32_t num_bytes = Integer<uint32_t>();
    if (num_bytes > max_bytes) ok_ = false;
    return Bytes(num_bytes);
  }
  std::string_view Rest() { return std::exchange(rest_, {}); }
  bool ok() const { return ok_; }
  bool Done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

tl::unexpected<Error> Malformed(const char* what) {
  return Fail(ErrorCode::kMalformed, std::string("a bootstrap frame that breaks the format: ") + what);
}

}  // namespace

size_t MaxBodyBytes(FrameType type) {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kChallenge:
      return kHelloBytes;
    case FrameType::kProof:
    case FrameType::kAccept:
      return kMacBytes;
    case FrameType::kReject:
      return 0;
    case FrameType::kJoin:
      return kMaxJoinBytes;
    case FrameType::kWaiting:
      return 4 + kMaxSentenceBytes;
    case FrameType::kWelcome:
      return 4;
    case FrameType::kGather:
      return 8 + 4 + 4 + kMaxNameBytes + kMaxBlobBytes;
    case FrameType::kLeave:
      return 4;
    case FrameType::kAbort:
      return 1 + 4 + kMaxSentenceBytes;
    case FrameType::kHeartbeat:
      return 0;
  }
  return 0;
}

std::array<char, kFrameHeaderBytes> EncodeHeader(const FrameHeader& header) {
  Writer writer;
  writer.Bytes(kMagic.data(), kMagic.size());
  writer.Integer(kFraming);
  writer.Integer(static_cast<uint8_t>(header.type));
  writer.Integer(uint16_t{0});
  writer.Integer(header.body_bytes);
  std::array<char, kFrameHeaderBytes> bytes;
  std::memcpy(bytes.data(), writer.Take().data(), bytes.size());
  return bytes;
}

Result<FrameHeader> ParseHeader(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.Bytes(kMagic.size()) != kMagic) return Malformed("it does not begin with GLBS");
  if (reader.Integer<uint8_t>() != kFraming) return Malformed("its framing is not 1");
  const uint8_t type = reader.Integer<uint8_t>();
  if (reader.Integer<uint16_t>() != 0) return Malformed("its reserved bytes are not zero");
  const FrameHeader header{static_cast<FrameType>(type), reader.Integer<uint32_t>()};
  if (!reader.Done()) return Malformed("its header is not 12 bytes");
  const bool known = (type >= 1 && type <= 5) || (type >= 16 && type <= 22);
  if (!known) return Malformed("its type is unknown");
  if (header.body_bytes > MaxBodyBytes(header.type)) return Malformed("its body is longer than its type allows");
  return header;
}

std::string EncodeHello(const HelloMessage& message) {
  Writer writer;
  writer.Integer(message.version);
  writer.Integer(static_cast<uint8_t>(message.member.role));
  writer.Integer(message.member.rank);
  writer.Bytes(message.nonce.data(), message.nonce.size());
  return writer.Take();
}

Result<HelloMessage> ParseHello(std::string_view body) {
  Reader reader(body);
  HelloMessage message;
  message.version = reader.Integer<uint32_t>();
  const uint8_t role = reader.Integer<uint8_t>();
  message.member = Member{static_cast<Role>(role), reader.Integer<uint32_t>()};
  const std::string_view nonce = reader.Bytes(kNonceBytes);
  if (!reader.Done()) return Malformed("HELLO or CHALLENGE of a wrong length");
  if (role > static_cast<uint8_t>(Role::kWorker)) return Malformed("an unknown role");
  std::memcpy(message.nonce.data(), nonce.data(), kNonceBytes);
  return message;
}

Result<Mac> ParseMac(std::string_view body) {
  Mac mac;
  if (body.size() != mac.size()) return Malformed("PROOF or ACCEPT of a wrong length");
  std::memcpy(mac.data(), body.data(), mac.size());
  return mac;
}

std::string EncodeJoin(const JoinMessage& message) {
  Writer writer;
  writer.Integer(message.members.num_workers);
  writer.Integer(message.members.num_servers);
  writer.Integer(message.peer_timeout_ms);
  writer.Integer(static_cast<uint32_t>(message.agreed.size()));
  for (const auto& [name, value] : message.agreed) {
    writer.String(name);
    writer.String(value);
  }
  return writer.Take();
}

Result<JoinMessage> ParseJoin(std::string_view body) {
  Reader reader(body);
  JoinMessage message;
  message.members.num_workers = reader.Integer<uint32_t>();
  message.members.num_servers = reader.Integer<uint32_t>();
  message.peer_timeout_ms = reader.Integer<uint32_t>();
  const uint32_t count = reader.Integer<uint32_t>();
  if (!reader.ok()) return Malformed("JOIN ends early");
  if (count > kMaxAgreed) return Malformed("JOIN with too many options");
  for (uint32_t i = 0; i < count; ++i) {
    const std::string_view name = reader.String(kMaxNameBytes);
    const std::string_view value = reader.String(kMaxValueBytes);
    if (!reader.ok()) return Malformed("JOIN with an option that is cut or too long");
    if (!message.agreed.emplace(name, value).second) return Malformed("JOIN with an option twice");
  }
  if (!reader.Done()) return Malformed("JOIN with bytes left over");
  if (message.members.num_workers > kMaxMembers || message.members.num_servers > kMaxMembers)
    return Malformed("JOIN with too many members");
  if (message.peer_timeout_ms == 0) return Malformed("JOIN with a peer timeout of 0");
  return message;
}

std::string EncodeWaiting(const WaitingMessage& message) {
  Writer writer;
  writer.String(std::string_view(message.missing).substr(0, kMaxSentenceBytes));
  return writer.Take();
}

Result<WaitingMessage> ParseWaiting(std::string_view body) {
  Reader reader(body);
  const std::string_view missing = reader.String(kMaxSentenceBytes);
  if (!reader.Done()) return Malformed("WAITING of a wrong length");
  return WaitingMessage{Printable(missing)};
}

std::string EncodeWelcome(const WelcomeMessage& message) {
  Writer writer;
  writer.Integer(message.heartbeat_ms);
  return writer.Take();
}

Result<WelcomeMessage> ParseWelcome(std::string_view body) {
  Reader reader(body);
  const WelcomeMessage message{reader.Integer<uint32_t>()};
  if (!reader.Done() || message.heartbeat_ms == 0) return Malformed("WELCOME without a heartbeat interval");
  return message;
}

std::string EncodeGather(uint64_t sequence, uint32_t member, std::string_view name, std::string_view blob) {
  Writer writer;
  writer.Reserve(16 + name.size() + blob.size());
  writer.Integer(sequence);
  writer.Integer(member);
  writer.String(name);
  writer.Bytes(blob.data(), blob.size());
  return writer.Take();
}

Result<GatherMessage> ParseGather(std::string_view body) {
  Reader reader(body);
  GatherMessage message;
  message.sequence = reader.Integer<uint64_t>();
  message.member = reader.Integer<uint32_t>();
  message.name = reader.String(kMaxNameBytes);
  if (!reader.ok()) return Malformed("GATHER ends early or its name is too long");
  const std::string_view blob = reader.Rest();
  if (blob.size() > kMaxBlobBytes) return Malformed("GATHER with a blob that is too long");
  message.blob = blob;
  return message;
}

std::string EncodeLeave(const LeaveMessage& message) {
  Writer writer;
  writer.Integer(message.member);
  return writer.Take();
}

Result<LeaveMessage> ParseLeave(std::string_view body) {
  Reader reader(body);
  const LeaveMessage message{reader.Integer<uint32_t>()};
  if (!reader.Done()) return Malformed("LEAVE of a wrong length");
  return message;
}

std::string EncodeAbort(const Error& error) {
  Writer writer;
  writer.Integer(static_cast<uint8_t>(error.code));
  writer.String(std::string_view(error.message).substr(0, kMaxSentenceBytes));
  return writer.Take();
}

Result<Error> ParseAbort(std::string_view body) {
  Reader reader(body);
  const uint8_t code = reader.Integer<uint8_t>();
  const std::string_view sentence = reader.String(kMaxSentenceBytes);
  if (!reader.Done()) return Malformed("ABORT of a wrong length");
  if (code > static_cast<uint8_t>(ErrorCode::kSystem)) return Malformed("ABORT with an unknown code");
  return Error{static_cast<ErrorCode>(code), Printable(sentence)};
}

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string result(text.substr(0, max_bytes));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; }, ' ');
  if (text.size() > max_bytes) result += "...";
  return result;
}

}  // namespace gradlane
