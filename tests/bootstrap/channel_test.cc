// The handshake and the authenticated frames, without sockets: two channels whose bytes the test carries, alters,
// replays and drops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "transport/bootstrap_channel.h"

namespace gradlane {
namespace {

constexpr Member kServer0{Role::kServer, 0};
constexpr Member kWorker1{Role::kWorker, 1};

std::string TakeOutput(Channel& channel, size_t max_pieces = 8) {
  std::string bytes;
  iovec pieces[8];
  while (const size_t count = channel.Output(pieces, max_pieces)) {
    size_t num_bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      bytes.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
      num_bytes += pieces[i].iov_len;
    }
    channel.Sent(num_bytes);
  }
  return bytes;
}

struct Pair {
  explicit Pair(const char* host_secret = "the secret of this job",
                const char* client_secret = "the secret of this job", uint32_t client_version = kBootstrapVersion)
      : host_keys(JobKeys::FromSecret(host_secret)),
        client_keys(JobKeys::FromSecret(client_secret)),
        host(Channel::Side::kHost, &host_keys, kServer0, kBootstrapVersion, RandomNonce()),
        client(Channel::Side::kClient, &client_keys, kWorker1, client_version, RandomNonce()) {}

  // HELLO, CHALLENGE, PROOF; what the host then says is the test's.
  void ShakeUpToProof() {
    host.Receive(TakeOutput(client));
    ASSERT_FALSE(host.Next().value());
    client.Receive(TakeOutput(host));
    ASSERT_FALSE(client.Next().value());
    host.Receive(TakeOutput(client));
  }
  void Shake() {
    ShakeUpToProof();
    ASSERT_EQ(host.Next().value()->kind, Channel::EventKind::kAuthenticated);
    client.Receive(TakeOutput(host));
    ASSERT_EQ(client.Next().value()->kind, Channel::EventKind::kAuthenticated);
  }

  JobKeys host_keys, client_keys;
  Channel host, client;
};

void ExpectMessage(Channel& channel, FrameType type, const std::string& body) {
  auto event = channel.Next();
  ASSERT_TRUE(event) << event.error().message;
  ASSERT_TRUE(*event);
  EXPECT_EQ((*event)->kind, Channel::EventKind::kMessage);
  EXPECT_EQ((*event)->type, type);
  EXPECT_EQ((*event)->body, body);
}

void ExpectError(Channel& channel, ErrorCode code) {
  for (int i = 0; i < 2; ++i) {  // and it stays
    auto event = channel.Next();
    ASSERT_FALSE(event);
    EXPECT_EQ(event.error().code, code) << event.error().message;
  }
}

TEST(ChannelTest, BothSidesLearnWhoTheOtherIs) {
  Pair pair;
  pair.Shake();
  EXPECT_TRUE(pair.host.authenticated());
  EXPECT_TRUE(pair.client.authenticated());
  EXPECT_EQ(pair.host.peer()->member, kWorker1);
  EXPECT_EQ(pair.client.peer()->member, kServer0);
}

TEST(ChannelTest, MessagesArriveInOrderBothWaysInAnyPieces) {
  Pair pair;
  pair.Shake();
  pair.client.Send(FrameType::kLeave, EncodeLeave({3}));
  pair.client.Send(FrameType::kHeartbeat);
  const std::string bytes = TakeOutput(pair.client, 1);
  for (const char c : bytes.substr(0, bytes.size() - 1)) {
    pair.host.Receive({&c, 1});
  }
  ExpectMessage(pair.host, FrameType::kLeave, EncodeLeave({3}));
  EXPECT_FALSE(pair.host.Next().value());
  pair.host.Receive(bytes.substr(bytes.size() - 1));
  ExpectMessage(pair.host, FrameType::kHeartbeat, "");
  pair.host.Send(FrameType::kWelcome, EncodeWelcome({5}));
  pair.client.Receive(TakeOutput(pair.host));
  ExpectMessage(pair.client, FrameType::kWelcome, EncodeWelcome({5}));
}

TEST(ChannelTest, PartialSendsContinueWhereTheyStopped) {
  Pair pair;
  pair.Shake();
  pair.client.Send(FrameType::kGather, EncodeGather(0, 1, "name", std::string(1000, 'b')));
  pair.client.Send(FrameType::kHeartbeat);
  std::string bytes;
  iovec pieces[8];
  while (pair.client.Output(pieces, 8) > 0) {
    const size_t num_bytes = std::min<size_t>(pieces[0].iov_len, 7);
    bytes.append(static_cast<const char*>(pieces[0].iov_base), num_bytes);
    pair.client.Sent(num_bytes);
  }
  pair.host.Receive(bytes);
  ExpectMessage(pair.host, FrameType::kGather, EncodeGather(0, 1, "name", std::string(1000, 'b')));
  ExpectMessage(pair.host, FrameType::kHeartbeat, "");
}

TEST(ChannelTest, WrongSecretIsRefusedOnBothSides) {
  Pair pair("the secret of this job", "some other secret, sorry");
  pair.ShakeUpToProof();
  ExpectError(pair.host, ErrorCode::kUnauthenticated);
  EXPECT_EQ(pair.host.peer()->member, kWorker1);  // for the sentence
  pair.client.Receive(TakeOutput(pair.host));
  ExpectError(pair.client, ErrorCode::kUnauthenticated);
}

// Given a host that accepts anybody without knowing the secret, expect the client to notice.
TEST(ChannelTest, AnImpostorHostIsFound) {
  Pair pair;
  pair.ShakeUpToProof();
  (void)TakeOutput(pair.host);
  const auto header = EncodeHeader({FrameType::kAccept, kMacBytes});
  pair.client.Receive(std::string(header.data(), header.size()) + std::string(kMacBytes, 'x'));
  ExpectError(pair.client, ErrorCode::kUnauthenticated);
}

// Given a client's own proof sent back to it as the host's, expect no acceptance: the roles are part of the proof.
TEST(ChannelTest, AReflectedProofIsNoProof) {
  Pair pair;
  pair.host.Receive(TakeOutput(pair.client));
  ASSERT_FALSE(pair.host.Next().value());
  pair.client.Receive(TakeOutput(pair.host));
  ASSERT_FALSE(pair.client.Next().value());
  std::string proof = TakeOutput(pair.client);
  proof[5] = static_cast<char>(FrameType::kAccept);
  pair.client.Receive(proof);
  ExpectError(pair.client, ErrorCode::kUnauthenticated);
}

// Given the handshake of an earlier connection, replayed, expect a fresh nonce to make its proof worthless.
TEST(ChannelTest, AReplayedHandshakeIsRefused) {
  Pair pair;
  const std::string hello = TakeOutput(pair.client);
  pair.host.Receive(hello);
  ASSERT_FALSE(pair.host.Next().value());
  pair.client.Receive(TakeOutput(pair.host));
  ASSERT_FALSE(pair.client.Next().value());
  const std::string proof = TakeOutput(pair.client);
  Channel other(Channel::Side::kHost, &pair.host_keys, kServer0, kBootstrapVersion, RandomNonce());
  other.Receive(hello + proof);
  ExpectError(other, ErrorCode::kUnauthenticated);
}

// Given a rank or version altered on the way, expect the proof not to fit what the host then believes.
TEST(ChannelTest, AnAlteredHelloIsRefused) {
  for (const size_t at : {0, 4, 5, 20}) {
    Pair pair;
    std::string hello = TakeOutput(pair.client);
    hello[kFrameHeaderBytes + at] = static_cast<char>(hello[kFrameHeaderBytes + at] ^ 1);
    pair.host.Receive(hello);
    ASSERT_FALSE(pair.host.Next().value());
    pair.client.Receive(TakeOutput(pair.host));
    ASSERT_FALSE(pair.client.Next().value());
    pair.host.Receive(TakeOutput(pair.client));
    ExpectError(pair.host, ErrorCode::kUnauthenticated);
  }
}

TEST(ChannelTest, OtherVersionsStillAuthenticate) {
  Pair pair("the secret of this job", "the secret of this job", 2);
  pair.Shake();
  EXPECT_EQ(pair.host.peer()->version, 2u);
  EXPECT_EQ(pair.client.peer()->version, kBootstrapVersion);
}

TEST(ChannelTest, EveryAlteredByteOfAFrameIsFound) {
  const std::string body = EncodeGather(0, 1, "name", "blob");
  for (size_t at = 0; at < kFrameHeaderBytes + body.size() + kMacBytes; ++at) {
    Pair pair;
    pair.Shake();
    pair.client.Send(FrameType::kGather, body);
    std::string bytes = TakeOutput(pair.client);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    pair.host.Receive(bytes);
    const auto event = pair.host.Next();
    // A length made longer waits for bytes that do not come; everything else is noticed at once.
    if (event)
      EXPECT_FALSE(*event) << at;
    else
      EXPECT_EQ(event.error().code, ErrorCode::kMalformed);
  }
}

TEST(ChannelTest, AReplayedFrameIsFound) {
  Pair pair;
  pair.Shake();
  pair.client.Send(FrameType::kHeartbeat);
  const std::string bytes = TakeOutput(pair.client);
  pair.host.Receive(bytes + bytes);
  ExpectMessage(pair.host, FrameType::kHeartbeat, "");
  ExpectError(pair.host, ErrorCode::kMalformed);
}

TEST(ChannelTest, ADroppedFrameIsFound) {
  Pair pair;
  pair.Shake();
  pair.client.Send(FrameType::kHeartbeat);
  (void)TakeOutput(pair.client);
  pair.client.Send(FrameType::kHeartbeat);
  pair.host.Receive(TakeOutput(pair.client));
  ExpectError(pair.host, ErrorCode::kMalformed);
}

// Given a frame sent back to who made it, expect the direction's key not to fit.
TEST(ChannelTest, AReflectedFrameIsFound) {
  Pair pair;
  pair.Shake();
  pair.client.Send(FrameType::kHeartbeat);
  pair.client.Receive(TakeOutput(pair.client));
  ExpectError(pair.client, ErrorCode::kMalformed);
}

TEST(ChannelTest, FramesOutOfTurnAreMalformed) {
  Pair early;  // a message before the handshake
  const auto heartbeat = EncodeHeader({FrameType::kHeartbeat, 0});
  early.host.Receive({heartbeat.data(), heartbeat.size()});
  ExpectError(early.host, ErrorCode::kMalformed);

  Pair late;  // a handshake frame after it
  late.Shake();
  const auto hello = EncodeHeader({FrameType::kHello, kHelloBytes});
  late.host.Receive({hello.data(), hello.size()});
  ExpectError(late.host, ErrorCode::kMalformed);

  Pair wrong;  // a client that answers like a host
  const auto challenge = EncodeHeader({FrameType::kChallenge, kHelloBytes});
  wrong.host.Receive(std::string(challenge.data(), challenge.size()) + EncodeHello({}));
  ExpectError(wrong.host, ErrorCode::kMalformed);
}

TEST(ChannelTest, StrangersAreKnownByTheirFirstByte) {
  for (const char* greeting : {"GET / HTTP/1.1\r\n", "\x16\x03\x01", "SSH-2.0-x", "H", "\r\n"}) {
    Pair pair;
    pair.host.Receive(greeting);
    ExpectError(pair.host, ErrorCode::kMalformed);
    EXPECT_FALSE(pair.host.HasOutput());
  }
}

}  // namespace
}  // namespace gradlane
