// Feeds hostile bytes to everything of the bootstrap that reads what a peer sends: frame headers, message bodies (what
// parses must encode to a message that parses to the same), and the handshake of either side. The first byte picks
// which.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/bootstrap_channel.h"
#include "transport/bootstrap_rules.h"
#include "transport/bootstrap_wire.h"

namespace gradlane {
namespace {

void FuzzHeader(std::string_view bytes) {
  const auto header = ParseHeader(bytes);
  if (!header) return;
  CHECK(header->body_bytes <= MaxBodyBytes(header->type));
  const auto again = EncodeHeader(*header);
  CHECK(std::string_view(again.data(), again.size()) == bytes);
}

void FuzzHello(std::string_view body) {
  if (const auto message = ParseHello(body)) CHECK(EncodeHello(*message) == body);
}

// Bodies that parse go through the checks that the host makes of them.
void FuzzJoin(std::string_view body) {
  const auto message = ParseJoin(body);
  if (!message) return;
  CHECK(ParseJoin(EncodeJoin(*message)).value() == *message);
  JoinTable table({Role::kServer, 0}, {{2, 1}, 1000, {{"model", "lenet5"}}}, "127.0.0.1:1");
  (void)table.Add({Role::kWorker, 0}, *message, "127.0.0.1:2");
  (void)table.Add({Role::kWorker, 1}, *message, "127.0.0.1:3");
  (void)table.Timeout(1000);
}

void FuzzGather(std::string_view body) {
  const auto message = ParseGather(body);
  if (message) CHECK(EncodeGather(message->sequence, message->member, message->name, message->blob) == body);
}

void FuzzSmall(std::string_view body) {
  (void)ParseMac(body);
  (void)ParseWaiting(body);
  if (const auto message = ParseWelcome(body)) CHECK(EncodeWelcome(*message) == body);
  if (const auto message = ParseLeave(body)) CHECK(EncodeLeave(*message) == body);
  if (const auto error = ParseAbort(body)) {
    for (const char c : error->message) CHECK(static_cast<uint8_t>(c) >= 0x20);
    CHECK(ParseAbort(EncodeAbort(*error)).value().message == error->message);
  }
}

// In pieces whose lengths come from the input. No input can authenticate: it would have to be the keyed hash of itself.
void FuzzHandshake(Channel::Side side, std::string_view bytes) {
  static const JobKeys keys = JobKeys::FromSecret("the secret of the fuzz target");
  Channel channel(side, &keys, {Role::kServer, 0}, kBootstrapVersion, Nonce{});
  while (!bytes.empty()) {
    const size_t piece = 1 + static_cast<uint8_t>(bytes[0]) % 64;
    channel.Receive(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
    const auto event = channel.Next();
    if (!event) break;
    CHECK(!*event);
  }
  CHECK(!channel.authenticated());
  iovec pieces[4];
  while (channel.Output(pieces, 4) > 0) channel.Sent(pieces[0].iov_len);
}

}  // namespace
}  // namespace gradlane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace gradlane;
  if (num_bytes == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, num_bytes - 1);
  switch (data[0] % 7) {
    case 0:
      FuzzHeader(rest);
      break;
    case 1:
      FuzzHello(rest);
      break;
    case 2:
      FuzzJoin(rest);
      break;
    case 3:
      FuzzGather(rest);
      break;
    case 4:
      FuzzSmall(rest);
      break;
    case 5:
      FuzzHandshake(Channel::Side::kHost, rest);
      break;
    case 6:
      FuzzHandshake(Channel::Side::kClient, rest);
      break;
  }
  return 0;
}
