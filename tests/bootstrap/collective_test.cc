// AllGather, Barrier, Leave, Abort and what a rank hears of the others' ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "tests/bootstrap/ranks.h"

namespace gradlane {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(CollectiveTest, AllGatherGivesEveryBlobByMemberIndex) {
  TestJob job({5, 3});
  auto ranks = JoinAllOrDie(job.AllOptions());
  OnEveryRank(8, [&](size_t i) {
    for (int round = 0; round < 20; ++round) {
      const auto blobs =
          ranks[i]->AllGather("round " + std::to_string(round), std::to_string(round) + "/" + std::to_string(i));
      ASSERT_TRUE(blobs) << blobs.error().message;
      ASSERT_EQ(blobs->size(), 8u);
      for (size_t j = 0; j < 8; ++j) EXPECT_EQ((*blobs)[j], std::to_string(round) + "/" + std::to_string(j));
    }
    EXPECT_TRUE(ranks[i]->Barrier("end"));
    const auto left = ranks[i]->Leave();
    EXPECT_TRUE(left) << left.error().message;
  });
}

TEST(CollectiveTest, BigBlobs) {
  TestJob job({3, 1});
  auto ranks = JoinAllOrDie(job.AllOptions());
  OnEveryRank(4, [&](size_t i) {
    const size_t num_bytes = i == 3 ? kMaxBlobBytes : size_t{1} << 20;
    const auto blobs = ranks[i]->AllGather("big", std::string(num_bytes, static_cast<char>('a' + i)));
    ASSERT_TRUE(blobs) << blobs.error().message;
    for (size_t j = 0; j < 4; ++j) {
      EXPECT_EQ((*blobs)[j], std::string(j == 3 ? kMaxBlobBytes : size_t{1} << 20, static_cast<char>('a' + j)));
    }
    const auto too_big = ranks[i]->AllGather("too big", std::string(kMaxBlobBytes + 1, 'x'));
    ASSERT_FALSE(too_big);
    EXPECT_EQ(too_big.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(ranks[i]->Leave());
  });
}

// Given a rank that is late by more than the peer timeout, expect the others to wait: it is alive.
TEST(CollectiveTest, LateIsNotDead) {
  TestJob job({1, 1});
  auto all = job.AllOptions();
  for (auto& options : all) options.peer_timeout_ms = 1'000;
  auto ranks = JoinAllOrDie(std::move(all));
  OnEveryRank(2, [&](size_t i) {
    if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2'500));
    const auto met = ranks[i]->Barrier("late");
    EXPECT_TRUE(met) << met.error().message;
  });
}

// Given ranks with different peer timeouts, expect heartbeats often enough for the shortest.
TEST(CollectiveTest, TheShortestPeerTimeoutSetsTheHeartbeat) {
  TestJob job({2, 1});
  auto all = job.AllOptions();
  all[1].peer_timeout_ms = 1'000;
  auto ranks = JoinAllOrDie(std::move(all));
  std::this_thread::sleep_for(std::chrono::milliseconds(2'500));
  OnEveryRank(3, [&](size_t i) {
    const auto met = ranks[i]->Barrier("b");
    EXPECT_TRUE(met) << met.error().message;
  });
}

TEST(CollectiveTest, DifferentCollectivesAreAMismatch) {
  TestJob job({2, 1});
  auto ranks = JoinAllOrDie(job.AllOptions());
  OnEveryRank(3, [&](size_t i) {
    const auto blobs = ranks[i]->AllGather(i == 2 ? "results" : "addresses", "");
    ASSERT_FALSE(blobs);
    EXPECT_EQ(blobs.error().code, ErrorCode::kMismatch);
    EXPECT_THAT(blobs.error().message, StartsWith("worker 1 is in 'results' but "));
    EXPECT_THAT(blobs.error().message, HasSubstr(" is in 'addresses'"));
  });
}

TEST(CollectiveTest, AfterLeavingAVanishingPeerIsNoFailure) {
  TestJob job({2, 1});
  auto ranks = JoinAllOrDie(job.AllOptions());
  std::atomic<int> failures = 0;
  for (auto& rank : ranks) rank->OnFailure([&](const Error&) { ++failures; });
  OnEveryRank(3, [&](size_t i) {
    const auto left = ranks[i]->Leave();
    EXPECT_TRUE(left) << left.error().message;
    if (i != 1) ranks[i].reset();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(ranks[1]->Failure());
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(ranks[1]->Barrier("too late").error().code, ErrorCode::kInvalidArgument);
}

TEST(CollectiveTest, LeaveWaitsForTheOthersUpToThePeerTimeout) {
  TestJob job({2, 1});
  auto all = job.AllOptions();
  for (auto& options : all) options.peer_timeout_ms = 1'000;
  auto ranks = JoinAllOrDie(std::move(all));
  const auto left = ranks[0]->Leave();
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(left.error().message, "worker 0, worker 1 did not leave the job within 1 s of server 0");
  EXPECT_FALSE(ranks[0]->Failure());
  // The host is gone from the others' view, but not dead: they can still end well.
  ranks[0].reset();
  EXPECT_THAT(ranks[1]->Barrier("alone").error().message, StartsWith("server 0 left the job while worker 0 waited"));
  EXPECT_TRUE(ranks[1]->Leave());
  EXPECT_TRUE(ranks[2]->Leave());
}

TEST(CollectiveTest, ARankThatVanishesIsNamedByEverybody) {
  TestJob job({3, 1});
  auto ranks = JoinAllOrDie(job.AllOptions());
  ranks[2].reset();  // worker 1, without Leave
  for (int i : {0, 1, 3}) {
    const Error failure = WaitForFailure(*ranks[i]);
    EXPECT_EQ(failure.code, ErrorCode::kPeerFailed);
    EXPECT_THAT(failure.message, StartsWith("worker 1 died: its connection to server 0 ended without a goodbye"));
  }
}

TEST(CollectiveTest, AHostThatVanishesIsNamedByEverybody) {
  TestJob job({3, 1});
  auto ranks = JoinAllOrDie(job.AllOptions());
  ranks[0].reset();
  for (int i : {1, 2, 3}) {
    const Error failure = WaitForFailure(*ranks[i]);
    EXPECT_EQ(failure.code, ErrorCode::kPeerFailed);
    EXPECT_THAT(failure.message, StartsWith("server 0 died: its connection to worker " + std::to_string(i - 1)));
  }
}

// Given ranks that wait in a collective, expect one rank's Abort to end them all, with its reason.
TEST(CollectiveTest, AbortEndsPendingCollectives) {
  for (const size_t who : {0, 2}) {
    TestJob job({3, 1});
    auto ranks = JoinAllOrDie(job.AllOptions());
    const std::string expected = (who == 0 ? "server 0" : "worker 1") + std::string(": the disk is full");
    OnEveryRank(4, [&](size_t i) {
      if (i == who) {
        ranks[i]->Abort(Error{ErrorCode::kSystem, "the disk is full"});
        EXPECT_EQ(ranks[i]->Failure()->message, expected);
        ranks[i].reset();  // what it said must come before its end
        return;
      }
      const auto blobs = ranks[i]->AllGather("a", "b");
      ASSERT_FALSE(blobs);
      EXPECT_EQ(blobs.error().message, expected);
      EXPECT_EQ(blobs.error().code, ErrorCode::kSystem);
      EXPECT_EQ(ranks[i]->Barrier("c").error().message, expected);
      EXPECT_EQ(ranks[i]->Leave().error().message, expected);
    });
  }
}

TEST(CollectiveTest, TheFirstReasonWins) {
  TestJob job({2, 1});
  auto ranks = JoinAllOrDie(job.AllOptions());
  ranks[1]->Abort(Error{ErrorCode::kSystem, "first"});
  ranks[1]->Abort(Error{ErrorCode::kSystem, "second"});
  EXPECT_EQ(WaitForFailure(*ranks[0]).message, "worker 0: first");
  EXPECT_EQ(WaitForFailure(*ranks[2]).message, "worker 0: first");
  ranks[2]->Abort(Error{ErrorCode::kSystem, "third"});
  ranks[0]->Abort(Error{ErrorCode::kSystem, "fourth"});
  ranks[1].reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (int i : {0, 2}) EXPECT_EQ(ranks[i]->Failure()->message, "worker 0: first");
}

TEST(CollectiveTest, AbortFromManyThreadsAtOnce) {
  TestJob job({3, 1});
  auto ranks = JoinAllOrDie(job.AllOptions());
  OnEveryRank(12, [&](size_t i) { ranks[i % 4]->Abort(Error{ErrorCode::kSystem, "thread " + std::to_string(i)}); });
  for (size_t i = 0; i < 4; ++i) EXPECT_THAT(WaitForFailure(*ranks[i]).message, HasSubstr(": thread "));
}

TEST(CollectiveTest, OnFailureIsCalledOnceFromTheBootstrapsThread) {
  TestJob job({2, 1});
  auto ranks = JoinAllOrDie(job.AllOptions());
  std::mutex mutex;
  std::condition_variable called;
  std::vector<std::string> sentences;
  std::thread::id where;
  const auto note = [&](const Error& error) {
    const std::lock_guard lock(mutex);
    sentences.push_back(error.message);
    where = std::this_thread::get_id();
    called.notify_all();
  };
  // From within the callback Abort is allowed, and changes nothing.
  ranks[1]->OnFailure([&](const Error& error) {
    ranks[1]->Abort(error);
    note(error);
  });
  ranks[2]->Abort(Error{ErrorCode::kSystem, "why"});
  {
    std::unique_lock lock(mutex);
    called.wait(lock, [&] { return sentences.size() == 1; });
    EXPECT_NE(where, std::this_thread::get_id());
  }
  ranks[0]->OnFailure(note);  // may come after the failure
  {
    std::unique_lock lock(mutex);
    called.wait(lock, [&] { return sentences.size() == 2; });
  }
  ranks.clear();
  EXPECT_EQ(sentences, (std::vector<std::string>{"worker 1: why", "worker 1: why"}));
}

TEST(CollectiveTest, TheLaunchersEndIsAFailure) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  TestJob job({1, 1});
  auto all = job.AllOptions();
  for (auto& options : all) options.parent_fd = dup(ends[0]);
  auto ranks = JoinAllOrDie(std::move(all));
  close(ends[0]);
  EXPECT_FALSE(ranks[0]->Failure());
  close(ends[1]);
  for (auto& rank : ranks) EXPECT_EQ(WaitForFailure(*rank).message, "the launcher of this job (--local) died");
}

TEST(CollectiveTest, TheLaunchersEndEndsAJoin) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  TestJob job({2, 1});
  auto all = job.AllOptions();
  all.pop_back();
  for (auto& options : all) options.parent_fd = dup(ends[0]);
  close(ends[0]);
  std::thread launcher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    close(ends[1]);
  });
  const auto results = JoinAll(std::move(all));
  launcher.join();
  for (const auto& result : results) EXPECT_EQ(result.error().message, "the launcher of this job (--local) died");
}

}  // namespace
}  // namespace gradlane
