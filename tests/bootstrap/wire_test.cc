// Frames and message bodies: what is encoded parses back, and nothing else parses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/bootstrap_wire.h"

namespace gradlane {
namespace {

using testing::HasSubstr;

std::string Header(FrameType type, uint32_t body_bytes) {
  const auto bytes = EncodeHeader({type, body_bytes});
  return {bytes.data(), bytes.size()};
}

JoinMessage SomeJoin() { return {{3, 2}, 10'000, {{"model", "lenet5"}, {"codec", "fec"}}}; }

TEST(WireTest, HeaderIsAsDocumented) {
  EXPECT_EQ(Header(FrameType::kGather, 0x01020304), std::string("GLBS\x01\x13\x00\x00\x04\x03\x02\x01", 12));
}

TEST(WireTest, HeaderRoundTrips) {
  const auto header = ParseHeader(Header(FrameType::kAbort, 77));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->type, FrameType::kAbort);
  EXPECT_EQ(header->body_bytes, 77u);
}

TEST(WireTest, BadHeadersAreMalformed) {
  const std::string good = Header(FrameType::kJoin, 5);
  for (size_t i = 0; i < 8; ++i) {  // magic, framing, type, reserved
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    EXPECT_FALSE(ParseHeader(bad)) << i;
  }
  EXPECT_FALSE(ParseHeader(good.substr(0, 11)));
  EXPECT_FALSE(ParseHeader(good + "x"));
  EXPECT_FALSE(ParseHeader(""));
}

TEST(WireTest, OversizedBodiesAreRefusedByTheirHeader) {
  for (int type = 0; type < 256; ++type) {
    const auto frame_type = static_cast<FrameType>(type);
    const auto limit = static_cast<uint32_t>(MaxBodyBytes(frame_type));
    EXPECT_FALSE(ParseHeader(Header(frame_type, limit + 1))) << type;
    EXPECT_FALSE(ParseHeader(Header(frame_type, 0xffffffff))) << type;
  }
  EXPECT_TRUE(ParseHeader(Header(FrameType::kGather, static_cast<uint32_t>(kMaxBlobBytes))));
}

TEST(WireTest, MessagesRoundTrip) {
  HelloMessage hello{7, kMaxMembers > 3 ? Member{Role::kWorker, 3} : Member{}, {}};
  hello.nonce.fill(0xab);
  EXPECT_EQ(ParseHello(EncodeHello(hello)).value(), hello);
  EXPECT_EQ(ParseJoin(EncodeJoin(SomeJoin())).value(), SomeJoin());
  const GatherMessage gather{12, 3, "addresses", std::string("\0\1blob", 6)};
  EXPECT_EQ(ParseGather(EncodeGather(12, 3, gather.name, gather.blob)).value(), gather);
  EXPECT_EQ(ParseLeave(EncodeLeave({9})).value().member, 9u);
  EXPECT_EQ(ParseWelcome(EncodeWelcome({250})).value().heartbeat_ms, 250u);
  EXPECT_EQ(ParseWaiting(EncodeWaiting({"worker 1"})).value().missing, "worker 1");
  const auto abort = ParseAbort(EncodeAbort(Error{ErrorCode::kTimeout, "too late"}));
  ASSERT_TRUE(abort);
  EXPECT_EQ(abort->code, ErrorCode::kTimeout);
  EXPECT_EQ(abort->message, "too late");
}

// Given any message cut short or with a byte too many, expect kMalformed (a gather's blob has no length of its own).
TEST(WireTest, TruncatedAndPaddedMessagesAreMalformed) {
  const auto check = [](const std::string& body, auto parse) {
    ASSERT_TRUE(parse(body));
    for (size_t length = 0; length < body.size(); ++length) {
      auto result = parse(body.substr(0, length));
      ASSERT_FALSE(result) << length;
      EXPECT_EQ(result.error().code, ErrorCode::kMalformed);
    }
    EXPECT_FALSE(parse(body + '\0'));
  };
  check(EncodeHello({}), ParseHello);
  check(EncodeJoin(SomeJoin()), ParseJoin);
  check(EncodeWaiting({"worker 1"}), ParseWaiting);
  check(EncodeWelcome({1}), ParseWelcome);
  check(EncodeLeave({1}), ParseLeave);
  check(EncodeAbort(Error{ErrorCode::kTimeout, "x"}), ParseAbort);
  check(std::string(kMacBytes, 'm'), ParseMac);
  const std::string gather = EncodeGather(1, 2, "name", "");
  for (size_t length = 0; length < gather.size(); ++length) EXPECT_FALSE(ParseGather(gather.substr(0, length)));
}

TEST(WireTest, ValuesOutOfRangeAreMalformed) {
  std::string hello = EncodeHello({});
  hello[4] = 2;  // the role
  EXPECT_FALSE(ParseHello(hello));

  EXPECT_FALSE(ParseJoin(EncodeJoin({{kMaxMembers + 1, 1}, 1, {}})));
  EXPECT_FALSE(ParseJoin(EncodeJoin({{1, 1}, 0, {}})));
  EXPECT_FALSE(ParseJoin(EncodeJoin({{1, 1}, 1, {{std::string(kMaxNameBytes + 1, 'n'), "v"}}})));
  EXPECT_FALSE(ParseJoin(EncodeJoin({{1, 1}, 1, {{"n", std::string(kMaxValueBytes + 1, 'v')}}})));
  std::string twice = EncodeJoin({{1, 1}, 1, {{"a", "1"}, {"b", "2"}}});
  twice[twice.find('b')] = 'a';
  EXPECT_FALSE(ParseJoin(twice));
  std::string many = EncodeJoin(SomeJoin());
  many[15] = '\x7f';  // the top byte of the number of options
  EXPECT_FALSE(ParseJoin(many));

  EXPECT_FALSE(ParseWelcome(EncodeWelcome({0})));
  EXPECT_FALSE(ParseGather(EncodeGather(0, 0, std::string(kMaxNameBytes + 1, 'n'), "")));
  std::string abort = EncodeAbort(Error{ErrorCode::kTimeout, "x"});
  abort[0] = '\x20';
  EXPECT_FALSE(ParseAbort(abort));
}

TEST(WireTest, SentencesOfPeersCannotDriveATerminal) {
  const auto abort = ParseAbort(EncodeAbort(Error{ErrorCode::kSystem, "\x1b[2Jgone\nnext"}));
  EXPECT_EQ(abort.value().message, " [2Jgone next");
  const auto longest = ParseAbort(EncodeAbort(Error{ErrorCode::kSystem, std::string(kMaxSentenceBytes + 9, 's')}));
  EXPECT_EQ(longest.value().message.size(), kMaxSentenceBytes);
}

}  // namespace
}  // namespace gradlane
