#include "transport/bootstrap_channel.h"

#include <sodium.h>

#include <cstring>

namespace gradlane {
namespace {

// 16 bytes each, so that no label is the beginning of another.
constexpr std::string_view kClientProof = "client's proof  ";
constexpr std::string_view kHostProof = "host's proof    ";
constexpr std::string_view kClientToHost = "client to host  ";
constexpr std::string_view kHostToClient = "host to client  ";
constexpr char kKdfContext[] = "GrdlBoot";
static_assert(sizeof kKdfContext - 1 == crypto_kdf_CONTEXTBYTES);
static_assert(kMacBytes >= crypto_generichash_BYTES_MIN && kMacBytes <= crypto_generichash_BYTES_MAX);

const uint8_t* Data(std::string_view bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }

class KeyedHash {
 public:
  explicit KeyedHash(const std::array<uint8_t, 32>& key) {
    crypto_generichash_init(&state_, key.data(), key.size(), kMacBytes);
  }
  KeyedHash& Add(std::string_view bytes) {
    crypto_generichash_update(&state_, Data(bytes), bytes.size());
    return *this;
  }
  Mac Finish() {
    Mac mac;
    crypto_generichash_final(&state_, mac.data(), mac.size());
    return mac;
  }

 private:
  crypto_generichash_state state_;
};

Mac FrameMac(const std::array<uint8_t, 32>& key, uint64_t sequence, std::string_view header, std::string_view body) {
  std::array<char, 8> number;
  for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<char>(sequence >> (8 * i));
  return KeyedHash(key).Add({number.data(), number.size()}).Add(header).Add(body).Finish();
}

bool IsHandshake(FrameType type) { return static_cast<uint8_t>(type) < static_cast<uint8_t>(FrameType::kJoin); }

}  // namespace

JobKeys JobKeys::FromSecret(std::string_view secret) {
  CHECK(sodium_init() >= 0);
  std::array<uint8_t, crypto_kdf_KEYBYTES> master;
  crypto_generichash(master.data(), master.size(), Data(secret), secret.size(), nullptr, 0);
  JobKeys keys;
  crypto_kdf_derive_from_key(keys.proof.data(), keys.proof.size(), 1, kKdfContext, master.data());
  crypto_kdf_derive_from_key(keys.session.data(), keys.session.size(), 2, kKdfContext, master.data());
  sodium_memzero(master.data(), master.size());
  return keys;
}

JobKeys::~JobKeys() {
  sodium_memzero(proof.data(), proof.size());
  sodium_memzero(session.data(), session.size());
}

Nonce RandomNonce() {
  CHECK(sodium_init() >= 0);
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Channel::Channel(Side side, const JobKeys* keys, Member self, uint32_t version, const Nonce& nonce)
    : side_(side),
      keys_(keys),
      self_{version, self, nonce},
      state_(side == Side::kHost ? State::kWaitHello : State::kWaitChallenge) {
  if (side_ == Side::kClient) SendPlain(FrameType::kHello, EncodeHello(self_));
}

Channel::~Channel() {
  sodium_memzero(send_key_.data(), send_key_.size());
  sodium_memzero(receive_key_.data(), receive_key_.size());
}

void Channel::Receive(std::string_view bytes) {
  if (state_ == State::kBroken) return;
  if (input_begin_ > 0) {
    input_.erase(0, input_begin_);
    input_begin_ = 0;
  }
  input_.append(bytes);
}

Result<std::optional<Channel::Event>> Channel::Next() {
  if (state_ == State::kBroken) return tl::unexpected<Error>(error_);
  auto event = Advance();
  if (!event) {
    state_ = State::kBroken;
    error_ = event.error();
    input_.clear();
    input_begin_ = 0;
  }
  return event;
}

Result<std::optional<Channel::Event>> Channel::Advance() {
  while (true) {
    const std::string_view input = std::string_view(input_).substr(input_begin_);
    // A stranger is recognised by its first bytes, not after a whole header's worth.
    const std::string_view magic = std::string_view("GLBS").substr(0, input.size());
    if (input.substr(0, magic.size()) != magic)
      return Fail(ErrorCode::kMalformed, "the first bytes are not those of a Gradlane rank");
    if (input.size() < kFrameHeaderBytes) return std::optional<Event>();
    const std::string_view header_bytes = input.substr(0, kFrameHeaderBytes);
    ASSIGN_OR_RETURN(const FrameHeader header, ParseHeader(header_bytes));
    if (IsHandshake(header.type) == (state_ == State::kOpen))
      return Fail(ErrorCode::kMalformed, "a bootstrap frame out of turn");
    const size_t frame_bytes = kFrameHeaderBytes + header.body_bytes + (state_ == State::kOpen ? kMacBytes : 0);
    if (input.size() < frame_bytes) return std::optional<Event>();
    const std::string_view body = input.substr(kFrameHeaderBytes, header.body_bytes);
    input_begin_ += frame_bytes;

    if (state_ != State::kOpen) {
      ASSIGN_OR_RETURN(auto event, OnHandshakeFrame(header.type, body));
      if (event) return event;
      continue;
    }
    const Mac expected = FrameMac(receive_key_, receive_sequence_++, header_bytes, body);
    if (sodium_memcmp(expected.data(), input.data() + kFrameHeaderBytes + body.size(), kMacBytes) != 0) {
      return Fail(
          ErrorCode::kMalformed,
          "a bootstrap frame with a wrong authentication code: it was altered, replayed or reordered on the way");
    }
    return std::optional<Event>(Event{EventKind::kMessage, header.type, std::string(body)});
  }
}

Result<std::optional<Channel::Event>> Channel::OnHandshakeFrame(FrameType type, std::string_view body) {
  if (state_ == State::kWaitHello && type == FrameType::kHello) {
    ASSIGN_OR_RETURN(peer_, ParseHello(body));
    SendPlain(FrameType::kChallenge, EncodeHello(self_));
    state_ = State::kWaitProof;
    return std::optional<Event>();
  }
  if (state_ == State::kWaitChallenge && type == FrameType::kChallenge) {
    ASSIGN_OR_RETURN(peer_, ParseHello(body));
    const Mac proof = Proof(kClientProof);
    SendPlain(FrameType::kProof, std::string(proof.begin(), proof.end()));
    state_ = State::kWaitAccept;
    return std::optional<Event>();
  }
  if (state_ == State::kWaitProof && type == FrameType::kProof) {
    ASSIGN_OR_RETURN(const Mac proof, ParseMac(body));
    if (sodium_memcmp(proof.data(), Proof(kClientProof).data(), kMacBytes) != 0) {
      SendPlain(FrameType::kReject, {});
      return Fail(ErrorCode::kUnauthenticated, "the peer does not know the job's secret");
    }
    const Mac mine = Proof(kHostProof);
    SendPlain(FrameType::kAccept, std::string(mine.begin(), mine.end()));
    DeriveSessionKeys();
    state_ = State::kOpen;
    return std::optional<Event>(Event{EventKind::kAuthenticated});
  }
  if (state_ == State::kWaitAccept && type == FrameType::kAccept) {
    ASSIGN_OR_RETURN(const Mac proof, ParseMac(body));
    if (sodium_memcmp(proof.data(), Proof(kHostProof).data(), kMacBytes) != 0)
      return Fail(ErrorCode::kUnauthenticated, "the host does not know the secret of this rank");
    DeriveSessionKeys();
    state_ = State::kOpen;
    return std::optional<Event>(Event{EventKind::kAuthenticated});
  }
  if (state_ == State::kWaitAccept && type == FrameType::kReject)
    return Fail(ErrorCode::kUnauthenticated, "the secret of this rank is not the job's");
  return Fail(ErrorCode::kMalformed, "a bootstrap frame out of turn");
}

// Over everything both sides said so far: versions, roles, ranks and nonces, the client's first.
Mac Channel::Proof(std::string_view label) const {
  const std::string mine = EncodeHello(self_);
  const std::string theirs = EncodeHello(*peer_);
  KeyedHash hash(keys_->proof);
  hash.Add(label);
  if (side_ == Side::kClient) return hash.Add(mine).Add(theirs).Finish();
  return hash.Add(theirs).Add(mine).Finish();
}

void Channel::DeriveSessionKeys() {
  const std::string mine = EncodeHello(self_);
  const std::string theirs = EncodeHello(*peer_);
  const bool client = side_ == Side::kClient;
  const auto derive = [&](std::string_view label) {
    KeyedHash hash(keys_->session);
    return hash.Add(label).Add(client ? mine : theirs).Add(client ? theirs : mine).Finish();
  };
  send_key_ = derive(client ? kClientToHost : kHostToClient);
  receive_key_ = derive(client ? kHostToClient : kClientToHost);
}

void Channel::SendPlain(FrameType type, std::string body) {
  OutFrame frame{.header = EncodeHeader({type, static_cast<uint32_t>(body.size())}), .mac = {}};
  frame.body = std::make_shared<const std::string>(std::move(body));
  output_.push_back(std::move(frame));
}

void Channel::Send(FrameType type, std::shared_ptr<const std::string> body) {
  CHECK(state_ == State::kOpen || state_ == State::kBroken);
  if (state_ == State::kBroken) return;
  CHECK(body->size() <= MaxBodyBytes(type));
  OutFrame frame{
      .header = EncodeHeader({type, static_cast<uint32_t>(body->size())}), .body = std::move(body), .mac = {}};
  frame.mac = FrameMac(send_key_, send_sequence_++, {frame.header.data(), frame.header.size()}, *frame.body);
  frame.mac_bytes = kMacBytes;
  output_.push_back(std::move(frame));
}

void Channel::Send(FrameType type, std::string body) {
  Send(type, std::make_shared<const std::string>(std::move(body)));
}

size_t Channel::Output(iovec* pieces, size_t max) const {
  size_t count = 0;
  size_t skip = output_begin_;
  const auto add = [&](const void* data, size_t num_bytes) {
    if (skip >= num_bytes) {
      skip -= num_bytes;
      return;
    }
    if (count < max) pieces[count++] = {static_cast<char*>(const_cast<void*>(data)) + skip, num_bytes - skip};
    skip = 0;
  };
  for (const OutFrame& frame : output_) {
    if (count == max) break;
    add(frame.header.data(), frame.header.size());
    add(frame.body->data(), frame.body->size());
    add(frame.mac.data(), frame.mac_bytes);
  }
  return count;
}

void Channel::Sent(size_t num_bytes) {
  output_begin_ += num_bytes;
  while (!output_.empty() && output_begin_ >= output_.front().Bytes()) {
    output_begin_ -= output_.front().Bytes();
    output_.pop_front();
  }
  CHECK(output_begin_ == 0 || !output_.empty());
}

}  // namespace gradlane
