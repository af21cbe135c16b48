// Coming together: who is let in, who is not, and what every rank is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bootstrap/ranks.h"
#include "transport/bootstrap_channel.h"

namespace gradlane {
namespace {

using testing::AnyOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

void LeaveAll(std::vector<std::unique_ptr<Bootstrap>>& ranks) {
  OnEveryRank(ranks.size(), [&](size_t i) {
    if (ranks[i] == nullptr) return;
    const auto left = ranks[i]->Leave();
    EXPECT_TRUE(left) << left.error().message;
  });
}

// Carries a Channel over a blocking socket: a client that does as the test says.
class ScriptedPeer {
 public:
  ScriptedPeer(RawClient socket, Channel::Side side, Member self, uint32_t version = kBootstrapVersion,
               const char* secret = kSecret)
      : socket_(std::move(socket)),
        keys_(JobKeys::FromSecret(secret)),
        channel_(side, &keys_, self, version, RandomNonce()) {}

  Channel& channel() { return channel_; }
  std::string TakeBytes() {
    std::string bytes;
    iovec piece;
    while (channel_.Output(&piece, 1) > 0) {
      bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
      channel_.Sent(piece.iov_len);
    }
    return bytes;
  }
  void SendBytes(const std::string& bytes) { socket_.Send(bytes); }
  // The next event; nothing at the end of the connection or an error.
  std::optional<Channel::Event> Next() {
    while (true) {
      auto event = channel_.Next();
      SendBytes(TakeBytes());
      if (!event) return std::nullopt;
      if (*event) return *event;
      const std::string bytes = socket_.Receive();
      if (bytes.empty()) return std::nullopt;
      channel_.Receive(bytes);
    }
  }
  // Up to and including `type`.
  std::optional<std::string> NextOf(FrameType type) {
    while (auto event = Next())
      if (event->kind == Channel::EventKind::kMessage && event->type == type) return event->body;
    return std::nullopt;
  }
  bool Shake() {
    SendBytes(TakeBytes());
    const auto event = Next();
    return event && event->kind == Channel::EventKind::kAuthenticated;
  }
  void Send(FrameType type, const std::string& body) {
    channel_.Send(type, body);
    SendBytes(TakeBytes());
  }

 private:
  RawClient socket_;
  JobKeys keys_;
  Channel channel_;
};

TEST(JoinTest, OneWorkerAlone) {
  BootstrapOptions options;
  options.self = kWorker0;
  options.members = {1, 0};
  options.secret = kSecret;
  auto rank = Bootstrap::Join(options);
  ASSERT_TRUE(rank) << rank.error().message;
  EXPECT_EQ((*rank)->AllGather("a", "blob").value(), std::vector<std::string>{"blob"});
  EXPECT_TRUE((*rank)->Barrier("b"));
  EXPECT_TRUE((*rank)->Leave());
  EXPECT_FALSE((*rank)->Failure());
}

TEST(JoinTest, EightRanks) {
  TestJob job({5, 3});
  auto ranks = JoinAllOrDie(job.AllOptions());
  LeaveAll(ranks);
}

TEST(JoinTest, WithoutServersTheFirstWorkerHosts) {
  TestJob job({3, 0});
  auto ranks = JoinAllOrDie(job.AllOptions());
  LeaveAll(ranks);
}

// Given no inherited socket, expect the host to bind the rendezvous itself, in either family and by name; the others
// may have been started before.
TEST(JoinTest, TheHostBindsTheRendezvous) {
  for (const char* host : {"127.0.0.1", "[::1]", "localhost"}) {
    if (std::string(host) == "[::1]") {
      const Fd probe(socket(AF_INET6, SOCK_STREAM, 0));
      sockaddr_in6 address{};
      address.sin6_family = AF_INET6;
      address.sin6_addr = in6addr_loopback;
      if (bind(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;  // no IPv6 here
    }
    const uint16_t port = LocalAddress(ListenLoopback()->get())->port();  // free a moment ago
    TestJob job({2, 1});
    auto all = job.AllOptions();
    for (auto& options : all) {
      Fd(std::exchange(options.listen_fd, -1));
      options.rendezvous = std::string(host) + ":" + std::to_string(port);
    }
    std::swap(all[0], all[2]);
    auto ranks = JoinAllOrDie(std::move(all));
    LeaveAll(ranks);
  }
}

TEST(JoinTest, AnAddressInUse) {
  const Fd other = std::move(ListenLoopback().value());
  TestJob job({1, 1});
  auto options = job.Options(kServer0);
  Fd(std::exchange(options.listen_fd, -1));
  options.rendezvous = LocalAddress(other.get())->ToString();
  const auto rank = Bootstrap::Join(options);
  ASSERT_FALSE(rank);
  EXPECT_EQ(ExitCode(rank.error()), 2);
  EXPECT_THAT(rank.error().message, StartsWith("cannot listen on " + options.rendezvous + ", the address is in use: "));
}

TEST(JoinTest, BadOptionsAreRefusedBeforeAnythingIsSent) {
  TestJob job({2, 1});
  const auto refused = [&](auto spoil) {
    auto options = job.Options(kWorker1);
    spoil(options);
    const auto rank = Bootstrap::Join(options);
    EXPECT_FALSE(rank);
    EXPECT_EQ(rank.error().code, ErrorCode::kInvalidArgument);
    return rank.error().message;
  };
  EXPECT_EQ(refused([](auto& options) { options.self.rank = 2; }),
            "worker 2 is out of range: this job has 2 workers, ranks 0 to 1; give --rank and --workers or --servers "
            "that fit");
  EXPECT_THAT(refused([](auto& options) { options.secret = "short"; }),
              StartsWith("the job's secret has 5 characters; between 16 and 4096 are needed"));
  EXPECT_THAT(refused([](auto& options) { options.rendezvous = "nonsense"; }), HasSubstr("is not HOST:PORT"));
  EXPECT_THAT(refused([](auto& options) { options.members.num_workers = 0; }), HasSubstr("--workers"));
  EXPECT_THAT(refused([](auto& options) { options.parent_fd = 987; }), HasSubstr("--parent-fd 987 is not open"));
  EXPECT_THAT(refused([](auto& options) {
                options.self = kServer0;
                options.listen_fd = open("/dev/null", O_RDONLY);
              }),
              HasSubstr("is not a listening socket"));
}

// Given one worker with another secret, expect it to hear so at once, and the others when the time is up.
TEST(JoinTest, AWrongSecret) {
  TestJob job({2, 1});
  auto all = job.AllOptions();
  for (auto& options : all) options.join_timeout_ms = 2'000;
  all[2].join_timeout_ms = 60'000;  // worker 1: must not need its time
  all[2].secret = "another secret altogether";
  const auto results = JoinAll(std::move(all));
  ASSERT_FALSE(results[0]);
  ASSERT_FALSE(results[1]);
  ASSERT_FALSE(results[2]);
  EXPECT_EQ(results[2].error().code, ErrorCode::kUnauthenticated);
  EXPECT_EQ(results[2].error().message, "the secret of this rank is not the job's: worker 1 and server 0 at " +
                                            job.rendezvous() +
                                            " have different ones; give every rank the same --secret-file or "
                                            "GRADLANE_SECRET");
  for (int i : {0, 1}) {
    EXPECT_EQ(results[i].error().code, ErrorCode::kUnauthenticated);
    EXPECT_EQ(ExitCode(results[i].error()), 2);
    EXPECT_THAT(results[i].error().message, StartsWith("worker 1 has not joined server 0 at " + job.rendezvous() +
                                                       " within 2 s; a process at 127.0.0.1:"));
    EXPECT_THAT(results[i].error().message,
                EndsWith(" that says it is worker 1 was rejected because its secret is not the job's: give every rank "
                         "the same --secret-file or GRADLANE_SECRET"));
  }
}

// Given a wrong process first and the real one later, expect the job to start.
TEST(JoinTest, ARejectedProcessDoesNotDisturb) {
  TestJob job({1, 1});
  auto server = job.Options(kServer0);
  auto wrong = job.Options(kWorker0);
  wrong.secret = "another secret altogether";
  const auto right = job.Options(kWorker0);
  std::unique_ptr<Bootstrap> host;
  std::thread hosting([&] { host = std::move(Bootstrap::Join(server).value()); });
  const auto rejected = Bootstrap::Join(wrong);
  ASSERT_FALSE(rejected);
  EXPECT_EQ(rejected.error().code, ErrorCode::kUnauthenticated);
  std::vector<std::unique_ptr<Bootstrap>> ranks;
  ranks.push_back(std::move(Bootstrap::Join(right).value()));
  hosting.join();
  ranks.push_back(std::move(host));
  LeaveAll(ranks);
}

// Given port scanners, browsers, half frames and silence on the port, more than the host keeps, expect the job to
// start.
TEST(JoinTest, StrangersDoNotDisturb) {
  TestJob job({2, 1});
  std::vector<RawClient> strangers;
  const auto header = EncodeHeader({FrameType::kHello, kHelloBytes});
  const auto oversized = EncodeHeader({FrameType::kGather, 0xffffffff});
  const std::string frames[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                std::string(100'000, '\xff'),
                                std::string(header.data(), header.size()),
                                std::string(header.data(), header.size()) + EncodeHello({}),
                                std::string(oversized.data(), oversized.size()),
                                "GLB",
                                ""};
  auto all = job.AllOptions();
  std::vector<BootstrapOptions> host;
  host.push_back(std::move(all[0]));
  std::unique_ptr<Bootstrap> server;
  std::thread hosting([&] { server = std::move(JoinAllOrDie(std::move(host))[0]); });
  for (int i = 0; i < 100; ++i) {
    strangers.emplace_back(job.rendezvous());
    strangers.back().Send(frames[i % 7]);
    if (i % 3 == 0) strangers.back().Close();
  }
  all.erase(all.begin());
  auto ranks = JoinAllOrDie(std::move(all));
  hosting.join();
  ranks.push_back(std::move(server));
  strangers[1].WaitForEnd();  // garbage is hung up on
  LeaveAll(ranks);
}

TEST(JoinTest, CountsThatDiffer) {
  TestJob job({2, 1});
  auto all = job.AllOptions();
  all[2].members = {3, 1};
  const auto results = JoinAll(std::move(all));
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(ExitCode(result.error()), 2);
    EXPECT_EQ(result.error().message,
              "worker 1 was started with 3 workers and 1 server but server 0 with 2 workers and 1 server: start every "
              "rank with the same --workers and --servers");
  }
}

// Given a worker that believes worker 0 to be the host, expect a mismatch and not a hang.
TEST(JoinTest, AnotherIdeaOfTheHost) {
  TestJob job({2, 1});
  auto all = job.AllOptions();
  for (auto& options : all) options.join_timeout_ms = 1'000;
  all[2].members = {2, 0};
  const auto results = JoinAll(std::move(all));
  ASSERT_FALSE(results[2]);
  EXPECT_EQ(results[2].error().message, "the rank at " + job.rendezvous() +
                                            " is server 0 but worker 1 expects worker 0: start every rank with the "
                                            "same --workers and --servers");
  EXPECT_EQ(ExitCode(results[2].error()), 2);
}

TEST(JoinTest, ADuplicateRank) {
  TestJob job({2, 1});
  auto all = job.AllOptions();
  for (auto& options : all) options.peer_timeout_ms = 500;  // how long the missing worker 1 is waited for to be told
  all[2].self = kWorker0;
  const auto results = JoinAll(std::move(all));
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kMismatch);
    EXPECT_THAT(result.error().message, StartsWith("two processes say that they are worker 0, at 127.0.0.1:"));
    EXPECT_THAT(result.error().message, EndsWith(": give every process a --rank of its own"));
  }
}

TEST(JoinTest, OptionsThatDiffer) {
  TestJob job({3, 1});
  auto all = job.AllOptions();
  all[1].agreed = {{"model", "lenet5"}, {"codec", "fec"}};
  all[2].agreed = {{"model", "mlp"}, {"codec", "fec"}};
  all[3].agreed = {{"codec", "fec"}};
  const auto results = JoinAll(std::move(all));
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(result.error().message,
              "worker 1 has model=mlp but worker 0 has model=lenet5: start every rank with the same options");
  }
}

// Given a rank that comes after the job has failed to start, expect it to hear why.
TEST(JoinTest, LateRanksHearWhyToo) {
  TestJob job({3, 1});
  auto all = job.AllOptions();
  all[0].agreed = {{"model", "lenet5"}};
  all[1].agreed = {{"model", "mlp"}};
  std::vector<Result<std::unique_ptr<Bootstrap>>> results(4);
  std::thread host([&] { results[0] = Bootstrap::Join(all[0]); });
  results[1] = Bootstrap::Join(all[1]);
  results[2] = Bootstrap::Join(all[2]);
  results[3] = Bootstrap::Join(all[3]);
  host.join();
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message,
              "worker 0 has model=mlp but server 0 has model=lenet5: start every rank with the same options");
  }
}

TEST(JoinTest, AMissingRankIsNamedByEverybody) {
  TestJob job({3, 1});
  auto all = job.AllOptions();
  all.erase(all.begin() + 2);
  for (auto& options : all) options.join_timeout_ms = 1'000;
  for (const auto& result : JoinAll(std::move(all))) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kTimeout);
    EXPECT_EQ(ExitCode(result.error()), 1);
    EXPECT_EQ(result.error().message, "worker 1 has not joined server 0 at " + job.rendezvous() +
                                          " within 1 s: start the missing ranks, or look at what they say");
  }
}

// Given a rank with less patience than the host, expect it to name the missing rank by itself, and the host to name it.
TEST(JoinTest, AnImpatientRankEndsTheJob) {
  TestJob job({2, 1});
  auto all = job.AllOptions();
  all.erase(all.begin() + 2);
  all[1].join_timeout_ms = 200;
  all[0].peer_timeout_ms = 500;  // how long worker 1 is waited for to be told
  const auto results = JoinAll(std::move(all));
  const std::string sentence = "worker 1 has not joined server 0 at " + job.rendezvous() +
                               " within 0.2 s: start the missing ranks, or look at what they say";
  ASSERT_FALSE(results[1]);
  EXPECT_EQ(results[1].error().message, sentence);
  ASSERT_FALSE(results[0]);
  EXPECT_EQ(results[0].error().message, "worker 0 gave up: " + sentence);
}

TEST(JoinTest, NobodyListens) {
  TestJob job({1, 1});
  auto options = job.Options(kWorker0);
  options.rendezvous = LocalAddress(ListenLoopback()->get())->ToString();
  options.join_timeout_ms = 300;
  const auto rank = Bootstrap::Join(options);
  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(rank.error().message, "server 0 at " + options.rendezvous +
                                      " could not be reached within 0.3 s (Connection refused): start it, and give "
                                      "every rank the same --rendezvous");
}

// Given a socket that takes connections while nobody answers (a host that is still starting), expect a timeout.
TEST(JoinTest, NobodyAnswers) {
  TestJob job({1, 1});
  auto options = job.Options(kWorker0);
  options.join_timeout_ms = 300;
  const auto rank = Bootstrap::Join(options);
  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().message, "server 0 at " + job.rendezvous() +
                                      " takes connections but did not answer worker 0 within 0.3 s: look at whether "
                                      "it runs, and what it says");
}

TEST(JoinTest, SomethingElseAnswers) {
  const Fd listener = std::move(ListenLoopback().value());
  std::thread web([&] {
    pollfd polled{listener.get(), POLLIN, 0};
    poll(&polled, 1, -1);
    RawClient client(Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    client.Send("HTTP/1.1 400 Bad Request\r\n\r\n");
    client.WaitForEnd();
  });
  TestJob job({1, 1});
  auto options = job.Options(kWorker0);
  options.rendezvous = LocalAddress(listener.get())->ToString();
  const auto rank = Bootstrap::Join(options);
  web.join();
  ASSERT_FALSE(rank);
  EXPECT_EQ(ExitCode(rank.error()), 2);
  EXPECT_THAT(rank.error().message, StartsWith("what answers at " + options.rendezvous + " is not a Gradlane rank ("));
}

TEST(JoinTest, AnotherVersionOfAWorker) {
  TestJob job({2, 1});
  auto all = job.AllOptions();
  all.erase(all.begin() + 2);
  for (auto& options : all) options.join_timeout_ms = 10'000;
  std::thread other([&] {
    ScriptedPeer peer(RawClient(job.rendezvous()), Channel::Side::kClient, kWorker1, 2);
    EXPECT_TRUE(peer.Shake());
    EXPECT_EQ(peer.channel().peer()->version, kBootstrapVersion);
    EXPECT_FALSE(peer.Next());  // hung up on: it makes its own sentence
  });
  const auto results = JoinAll(std::move(all));
  other.join();
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(
        result.error().message,
        "worker 1 speaks version 2 of the bootstrap but server 0 speaks version 1: start every rank with the same "
        "build of Gradlane");
  }
}

TEST(JoinTest, AnotherVersionOfTheHost) {
  const Fd listener = std::move(ListenLoopback().value());
  std::thread host([&] {
    pollfd polled{listener.get(), POLLIN, 0};
    poll(&polled, 1, -1);
    ScriptedPeer peer(RawClient(Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))), Channel::Side::kHost,
                      kServer0, 2);
    EXPECT_TRUE(peer.Shake());
    while (peer.Next()) {
    }
  });
  TestJob job({1, 1});
  auto options = job.Options(kWorker0);
  options.rendezvous = LocalAddress(listener.get())->ToString();
  const auto rank = Bootstrap::Join(options);
  host.join();
  ASSERT_FALSE(rank);
  EXPECT_EQ(ExitCode(rank.error()), 2);
  EXPECT_EQ(rank.error().message,
            "worker 0 speaks version 1 of the bootstrap but server 0 speaks version 2: start every rank with the same "
            "build of Gradlane");
}

TEST(JoinTest, ARankThatDiesWhileTheOthersGather) {
  TestJob job({2, 1});
  auto server = job.Options(kServer0);
  server.peer_timeout_ms = 500;
  std::thread other([&] {
    ScriptedPeer peer(RawClient(job.rendezvous()), Channel::Side::kClient, kWorker1);
    EXPECT_TRUE(peer.Shake());
    peer.Send(FrameType::kJoin, EncodeJoin({job.members(), 1000, {}}));
    EXPECT_TRUE(peer.NextOf(FrameType::kWaiting));
  });
  const auto host = Bootstrap::Join(server);
  other.join();
  ASSERT_FALSE(host);
  EXPECT_EQ(host.error().code, ErrorCode::kPeerFailed);
  EXPECT_THAT(host.error().message, StartsWith("worker 1 died: its connection to server 0 ended without a goodbye"));
}

// Given a recorded frame sent a second time over a connection of its own kind, expect the host to end the job over it.
TEST(JoinTest, AReplayedFrameIsNotObeyed) {
  TestJob job({1, 1});
  std::unique_ptr<Bootstrap> host;
  auto server = job.Options(kServer0);
  std::thread hosting([&] { host = std::move(Bootstrap::Join(server).value()); });
  ScriptedPeer peer(RawClient(job.rendezvous()), Channel::Side::kClient, kWorker0);
  ASSERT_TRUE(peer.Shake());
  peer.Send(FrameType::kJoin, EncodeJoin({job.members(), 30'000, {}}));
  ASSERT_TRUE(peer.NextOf(FrameType::kWelcome));
  hosting.join();
  peer.channel().Send(FrameType::kGather, EncodeGather(0, 1, "a", "blob"));
  const std::string recorded = peer.TakeBytes();
  peer.SendBytes(recorded);
  EXPECT_EQ(host->AllGather("a", "").value()[1], "blob");
  peer.SendBytes(recorded);
  EXPECT_EQ(
      WaitForFailure(*host).message,
      "worker 0 sent a bootstrap frame with a wrong authentication code: it was altered, replayed or reordered on "
      "the way");
}

// Given an authenticated rank that breaks the rules, expect the job to end with its name.
TEST(JoinTest, ARankThatBreaksTheRulesIsNamed) {
  const std::pair<FrameType, std::string> bad[] = {
      {FrameType::kGather, EncodeGather(0, 0, "a", "not its own blob")},
      {FrameType::kGather, EncodeGather(7, 1, "a", "of no collective")},
      {FrameType::kGather, "cut"},
      {FrameType::kLeave, EncodeLeave({0})},
      {FrameType::kLeave, ""},
      {FrameType::kAbort, "x"},
      {FrameType::kJoin, EncodeJoin({{1, 1}, 1, {}})},
      {FrameType::kWelcome, EncodeWelcome({1})},
  };
  for (const auto& [type, body] : bad) {
    TestJob job({1, 1});
    std::unique_ptr<Bootstrap> host;
    auto server = job.Options(kServer0);
    std::thread hosting([&] { host = std::move(Bootstrap::Join(server).value()); });
    ScriptedPeer peer(RawClient(job.rendezvous()), Channel::Side::kClient, kWorker0);
    ASSERT_TRUE(peer.Shake());
    peer.Send(FrameType::kJoin, EncodeJoin({job.members(), 30'000, {}}));
    ASSERT_TRUE(peer.NextOf(FrameType::kWelcome));
    hosting.join();
    peer.Send(type, body);
    EXPECT_THAT(WaitForFailure(*host).message, StartsWith("worker 0 sent a "));
    const auto abort = peer.NextOf(FrameType::kAbort);
    ASSERT_TRUE(abort);
    EXPECT_THAT(ParseAbort(*abort)->message, StartsWith("worker 0 sent a "));
  }
}

// Given a running job, expect a second worker 0 to be refused with a sentence and the job to go on.
TEST(JoinTest, ARunningJobIsNotDisturbedByNewcomers) {
  TestJob job({1, 1});
  auto second = job.Options(kWorker0);
  auto other_counts = second;
  other_counts.members = {2, 1};
  auto ranks = JoinAllOrDie(job.AllOptions());
  const auto refused = Bootstrap::Join(second);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, StartsWith("two processes say that they are worker 0"));
  const auto also_refused = Bootstrap::Join(other_counts);
  ASSERT_FALSE(also_refused);
  EXPECT_THAT(also_refused.error().message, StartsWith("worker 0 was started with 2 workers"));
  OnEveryRank(2, [&](size_t i) { EXPECT_TRUE(ranks[i]->Barrier("still here")); });
  LeaveAll(ranks);
}

}  // namespace
}  // namespace gradlane
