// The sentences of the join checks.
#include <gtest/gtest.h>

#include "transport/bootstrap_rules.h"

namespace gradlane {
namespace {

constexpr Member kServer0{Role::kServer, 0};
constexpr Member kWorker0{Role::kWorker, 0};
constexpr Member kWorker1{Role::kWorker, 1};

JoinMessage Join(std::map<std::string, std::string> agreed = {}) { return {{2, 1}, 10'000, std::move(agreed)}; }

JoinTable Table() { return JoinTable(kServer0, Join(), "10.0.0.1:7000"); }

TEST(RulesTest, CompleteWhenEveryRankIsThere) {
  JoinTable table = Table();
  EXPECT_EQ(table.Missing(), "worker 0, worker 1");
  EXPECT_TRUE(table.Add(kWorker1, Join(), "a"));
  EXPECT_EQ(table.Missing(), "worker 0");
  EXPECT_FALSE(table.Complete());
  EXPECT_TRUE(table.Add(kWorker0, Join(), "b"));
  EXPECT_TRUE(table.Complete());
}

TEST(RulesTest, TheShortestPeerTimeoutCounts) {
  JoinTable table = Table();
  JoinMessage join = Join();
  join.peer_timeout_ms = 400;
  ASSERT_TRUE(table.Add(kWorker1, join, "a"));
  EXPECT_EQ(table.MinPeerTimeoutMs(), 400u);
}

TEST(RulesTest, CountsMustBeEqual) {
  JoinTable table = Table();
  JoinMessage join = Join();
  join.members = {3, 2};
  const auto added = table.Add(kWorker1, join, "a");
  EXPECT_EQ(added.error().code, ErrorCode::kMismatch);
  EXPECT_EQ(added.error().message,
            "worker 1 was started with 3 workers and 2 servers but server 0 with 2 workers and 1 server: start every "
            "rank with the same --workers and --servers");
}

TEST(RulesTest, RanksMustExist) {
  JoinTable table = Table();
  EXPECT_EQ(table.Add({Role::kWorker, 2}, Join(), "a").error().message,
            "worker 2 is out of range: this job has 2 workers, ranks 0 to 1");
  EXPECT_EQ(table.Add({Role::kServer, 0xffffffff}, Join(), "a").error().message,
            "server 4294967295 is out of range: this job has 1 server, ranks 0 to 0");
  EXPECT_EQ(*RankOutOfRange(kServer0, {2, 0}), "server 0 is out of range: this job has no servers");
}

TEST(RulesTest, RanksMustBeUnique) {
  JoinTable table = Table();
  ASSERT_TRUE(table.Add(kWorker0, Join(), "10.0.0.2:1"));
  EXPECT_EQ(table.Add(kWorker0, Join(), "10.0.0.3:2").error().message,
            "two processes say that they are worker 0, at 10.0.0.2:1 and at 10.0.0.3:2: give every process a --rank of "
            "its own");
  EXPECT_EQ(table.Add(kServer0, Join(), "10.0.0.4:3").error().message,
            "two processes say that they are server 0, at 10.0.0.1:7000 and at 10.0.0.4:3: give every process a --rank "
            "of its own");
}

// Given two ranks with different options, expect the same sentence whoever came first.
TEST(RulesTest, OptionsMustAgreeWhereBothStateThem) {
  const auto lenet = Join({{"model", "lenet5"}, {"codec", "fec"}});
  const auto mlp = Join({{"model", "mlp"}, {"codec", "fec"}, {"seed", "1"}});
  const std::string expected =
      "worker 1 has model=mlp but worker 0 has model=lenet5: start every rank with the same options";
  JoinTable one = Table();
  ASSERT_TRUE(one.Add(kWorker0, lenet, "a"));
  EXPECT_EQ(one.Add(kWorker1, mlp, "b").error().message, expected);
  JoinTable other = Table();
  ASSERT_TRUE(other.Add(kWorker1, mlp, "b"));
  const auto added = other.Add(kWorker0, lenet, "a");
  EXPECT_EQ(added.error().message, expected);
  EXPECT_EQ(added.error().code, ErrorCode::kMismatch);
}

TEST(RulesTest, EveryOptionThatDiffersIsNamed) {
  JoinTable table = Table();
  ASSERT_TRUE(table.Add(kWorker0, Join({{"codec", "fec"}, {"model", "lenet5"}}), "a"));
  EXPECT_EQ(table.Add(kWorker1, Join({{"codec", "none"}, {"model", "mlp\x1b"}}), "b").error().message,
            "worker 1 has codec=none, model=mlp  but worker 0 has codec=fec, model=lenet5: start every rank with the "
            "same options");
}

TEST(RulesTest, TimeoutNamesWhoIsMissing) {
  JoinTable table = Table();
  EXPECT_EQ(
      table.Timeout(30'000).message,
      "worker 0, worker 1 have not joined server 0 at 10.0.0.1:7000 within 30 s: start the missing ranks, or look "
      "at what they say");
  ASSERT_TRUE(table.Add(kWorker0, Join(), "a"));
  EXPECT_EQ(table.Timeout(1500).message,
            "worker 1 has not joined server 0 at 10.0.0.1:7000 within 1.5 s: start the missing ranks, or look at what "
            "they say");
  EXPECT_EQ(table.Timeout(1500).code, ErrorCode::kTimeout);
}

TEST(RulesTest, TimeoutTellsOfRejectedProcesses) {
  JoinTable table = Table();
  ASSERT_TRUE(table.Add(kWorker0, Join(), "a"));
  table.AddRejected(kWorker1, "10.0.0.9:1");
  table.AddRejected(kWorker1, "10.0.0.9:2");
  EXPECT_EQ(table.Timeout(30'000).message,
            "worker 1 has not joined server 0 at 10.0.0.1:7000 within 30 s; a process at 10.0.0.9:2 that says it is "
            "worker 1 was rejected because its secret is not the job's: give every rank the same --secret-file or "
            "GRADLANE_SECRET");
  EXPECT_EQ(table.Timeout(30'000).code, ErrorCode::kUnauthenticated);
}

// Given a stranger that claims a rank which is there, expect the timeout to stay a timeout.
TEST(RulesTest, AStrangerDoesNotChangeTheReason) {
  JoinTable table = Table();
  ASSERT_TRUE(table.Add(kWorker0, Join(), "a"));
  table.AddRejected(kWorker0, "10.0.0.9:1");
  table.AddRejected({Role::kWorker, 77}, "10.0.0.9:1");
  EXPECT_EQ(table.Timeout(30'000).code, ErrorCode::kTimeout);
}

TEST(RulesTest, VersionMismatchNamesBothNumbers) {
  const Error error = VersionMismatch(kWorker1, 2, kServer0, 1);
  EXPECT_EQ(error.code, ErrorCode::kMismatch);
  EXPECT_EQ(error.message,
            "worker 1 speaks version 2 of the bootstrap but server 0 speaks version 1: start every rank with the same "
            "build of Gradlane");
}

}  // namespace
}  // namespace gradlane
