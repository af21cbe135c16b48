// Addresses and listening sockets, and the secret's file.
#include "transport/base/secret.h"
#include "transport/base/socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "transport/bootstrap.h"

namespace gradlane {
namespace {

using testing::HasSubstr;

TEST(SocketTest, HostPortParses) {
  EXPECT_EQ(ParseHostPort("node-1.cluster:7000")->host, "node-1.cluster");
  EXPECT_EQ(ParseHostPort("[::1]:65535")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:65535")->port, 65535);
  EXPECT_EQ(ParseHostPort("[fe80::1]:80")->ToString(), "[fe80::1]:80");
  EXPECT_EQ(ParseHostPort("10.0.0.1:80")->ToString(), "10.0.0.1:80");
}

TEST(SocketTest, BadHostPortsAreNamed) {
  for (const char* text : {"", "host", "host:", ":80", "host:0", "host:65536", "host:8x", "host:-1", "::1:80", "[::1]",
                           "[::1:80", "[]:80", "host:000080", "a:1:2"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(parsed.error().message, HasSubstr("--rendezvous '" + std::string(text) + "' is not HOST:PORT"));
  }
}

TEST(SocketTest, NamesResolveAndUnknownOnesAreNamed) {
  EXPECT_TRUE(Resolve({"localhost", 1}));
  const auto unknown = Resolve({"no-such-host.invalid", 7000});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(unknown.error().message,
              HasSubstr("cannot resolve 'no-such-host.invalid' of --rendezvous no-such-host.invalid:7000"));
}

TEST(SocketTest, AnAddressInUseIsNamedWithWhatToDo) {
  const Fd first = std::move(ListenLoopback().value());
  const uint16_t port = LocalAddress(first.get())->port();
  const auto second = ListenTcp({"127.0.0.1", port});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(ExitCode(second.error()), 2);
  EXPECT_EQ(second.error().message, "cannot listen on 127.0.0.1:" + std::to_string(port) +
                                        ", the address is in use: stop the program that listens there, or give every "
                                        "rank a --rendezvous with another port");
}

TEST(SocketTest, AForeignAddressIsNamed) {
  const auto listener = ListenTcp({"192.0.2.1", 7000});  // TEST-NET-1
  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(listener.error().message, HasSubstr("192.0.2.1:7000, it is not an address of this machine"));
}

TEST(SocketTest, DescriptorsAreCloseOnExec) {
  const Fd listener = std::move(ListenLoopback().value());
  EXPECT_NE(fcntl(listener.get(), F_GETFD) & FD_CLOEXEC, 0);
}

class SecretFileTest : public testing::Test {
 protected:
  void Write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
  }
  ~SecretFileTest() override { unlink(path_.c_str()); }
  const std::string path_ = testing::TempDir() + "gradlane_secret_" + std::to_string(getpid());
};

TEST_F(SecretFileTest, TheFirstLineIsTheSecret) {
  Write("0123456789abcdef\r\nnot this\n");
  EXPECT_EQ(ReadSecretFile(path_).value(), "0123456789abcdef");
  Write("0123456789abcdefg");
  EXPECT_EQ(ReadSecretFile(path_).value(), "0123456789abcdefg");
}

TEST_F(SecretFileTest, AShortSecretIsRefused) {
  Write("0123456789abcde\n");
  EXPECT_EQ(ReadSecretFile(path_).error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(ReadSecretFile(path_).error().message, HasSubstr("has 15 characters; between 16 and 4096 are needed"));
  Write("");
  EXPECT_FALSE(ReadSecretFile(path_));
  Write(std::string(5000, 'x'));
  EXPECT_FALSE(ReadSecretFile(path_));
}

TEST_F(SecretFileTest, AFileOpenToOthersIsRefused) {
  for (const mode_t mode : {0644, 0640, 0604}) {
    Write("0123456789abcdef\n", mode);
    const auto secret = ReadSecretFile(path_);
    ASSERT_FALSE(secret);
    EXPECT_EQ(secret.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(secret.error().message, HasSubstr("chmod 600"));
  }
}

TEST_F(SecretFileTest, AMissingFileIsUnavailable) {
  EXPECT_EQ(ReadSecretFile(path_).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(ReadSecretFile(testing::TempDir()).error().code, ErrorCode::kInvalidArgument);
}

TEST(SecretTest, FreshSecretsDiffer) {
  EXPECT_EQ(MakeSecret().size(), 64u);
  EXPECT_NE(MakeSecret(), MakeSecret());
}

}  // namespace
}  // namespace gradlane
