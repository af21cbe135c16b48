// What only the loopback hub can do: faults on demand.
#include <thread>

#include "tests/transport/fabric_cluster.h"

namespace gradlane {
namespace {

const FabricKind kLoopback{"loopback"};

std::vector<uint32_t> ArrivalOrder(const FabricCluster& cluster, PeerId self) {
  std::vector<uint32_t> order;
  for (const Event& event : cluster.events[self]) {
    if (event.kind == EventKind::kArrived) order.push_back(event.imm);
  }
  return order;
}

void PutMany(FabricCluster& cluster, PeerId from, PeerId to, uint32_t first, uint32_t count) {
  for (uint32_t i = first; i < first + count; ++i)
    ASSERT_TRUE(cluster.fabrics[from]->PutNotify({to, {}, {0, 0}, i, i}));
}

// Given manual mode / expect nothing to move until Step, then one put a step, oldest first.
TEST(LoopbackFabric, StepsInOrder) {
  FabricCluster cluster(kLoopback, 3, {64});
  cluster.hub->SetManual(true);
  EXPECT_FALSE(cluster.hub->Step());
  PutMany(cluster, 0, 1, 0, 3);
  PutMany(cluster, 2, 1, 3, 2);
  EXPECT_EQ(cluster.PollAll(), 0u);
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(cluster.hub->Step());
    cluster.PollAll();
    EXPECT_EQ(ArrivalOrder(cluster, 1).size(), i + 1);
  }
  EXPECT_FALSE(cluster.hub->Step());
  EXPECT_EQ(ArrivalOrder(cluster, 1), (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(cluster.Count(0, EventKind::kSent), 3u);
}

// Given a source changed between the post and its step / expect the receiver to see the change: the bytes are read
// late.
TEST(LoopbackFabric, ReadsTheSourceAtDelivery) {
  FabricCluster cluster(kLoopback, 2, {64});
  cluster.hub->SetManual(true);
  FillPattern(cluster.regions[0][0].bytes, 1);
  ASSERT_TRUE(cluster.fabrics[0]->PutNotify({1, cluster.regions[0][0].bytes, {0, 0}, 0, 0}));
  FillPattern(cluster.regions[0][0].bytes, 2);
  ASSERT_TRUE(cluster.hub->Step());
  cluster.PollAll();
  ASSERT_EQ(cluster.Count(1, EventKind::kArrived), 1u);
  EXPECT_TRUE(HasPattern(cluster.events[1][0].payload, 2));
}

// Given reordering / expect the same seed to give the same permutation, and another than the order of posting.
TEST(LoopbackFabric, ReorderingFollowsTheSeed) {
  const auto order = [](uint64_t seed, bool manual) {
    FabricCluster cluster(kLoopback, 2, {64});
    cluster.hub->SetReordering(seed);
    cluster.hub->SetManual(manual);
    PutMany(cluster, 0, 1, 0, 20);
    while (manual && cluster.hub->Step()) {
    }
    cluster.PollAll();
    cluster.PollAll();
    return ArrivalOrder(cluster, 1);
  };
  std::vector<uint32_t> posted(20);
  for (uint32_t i = 0; i < 20; ++i) posted[i] = i;
  for (const bool manual : {false, true}) {
    std::vector<uint32_t> first = order(7, manual);
    EXPECT_EQ(first, order(7, manual));
    EXPECT_NE(first, order(8, manual));
    EXPECT_NE(first, posted);
    EXPECT_EQ(order(0, manual), posted);
    std::sort(first.begin(), first.end());
    EXPECT_EQ(first, posted);
  }
}

// Given a delay one way / expect the put back and one posted later without delay to come first.
TEST(LoopbackFabric, DelayIsPerDirection) {
  FabricCluster cluster(kLoopback, 2, {64});
  cluster.hub->SetDelay(0, 1, 50'000'000);
  const int64_t begin_ns = NowNs();
  PutMany(cluster, 0, 1, 1, 1);
  cluster.hub->SetDelay(0, 1, 0);
  PutMany(cluster, 0, 1, 2, 1);
  PutMany(cluster, 1, 0, 3, 1);
  ASSERT_TRUE(cluster.PollUntil([&] { return cluster.Count(1, EventKind::kArrived) == 2; }));
  EXPECT_GE(NowNs() - begin_ns, 50'000'000);
  EXPECT_EQ(ArrivalOrder(cluster, 1), (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(ArrivalOrder(cluster, 0), (std::vector<uint32_t>{3}));
}

// Given a delayed put and a receiver asleep in Wait / expect it to wake up in time by itself.
TEST(LoopbackFabric, WaitWakesForADelayedPut) {
  FabricCluster cluster(kLoopback, 2, {64});
  cluster.hub->SetDelay(0, 1, 5'000'000);
  PutMany(cluster, 0, 1, 1, 1);
  while (cluster.Count(1, EventKind::kArrived) == 0) {
    cluster.fabrics[1]->Wait(3'600'000);
    cluster.PollAll();
  }
}

// Given a kill with puts in flight / expect them to vanish, everybody to hear of it once, and the room they took to be
// free.
TEST(LoopbackFabric, KillDropsWhatIsInFlight) {
  FabricCluster cluster(kLoopback, 3, {64});
  cluster.hub->SetManual(true);
  PutMany(cluster, 0, 1, 0, kTestMaxOutstanding);
  PutMany(cluster, 1, 2, 100, 2);
  cluster.hub->Kill(1);
  cluster.hub->Kill(1);
  EXPECT_FALSE(cluster.hub->Step());
  for (int i = 0; i < 3; ++i) cluster.PollAll();
  EXPECT_EQ(cluster.events[0].size(), 1u);
  EXPECT_EQ(cluster.events[2].size(), 1u);
  EXPECT_EQ(cluster.events[0][0].kind, EventKind::kFailed);
  EXPECT_EQ(cluster.events[0][0].peer, 1u);
  EXPECT_EQ(cluster.Count(1, EventKind::kFailed), 2u) << "the dead one is alone";
  EXPECT_FALSE(cluster.fabrics[1]->PutNotify({0, {}, {0, 0}, 0, 0}));
  PutMany(cluster, 0, 2, 0, kTestMaxOutstanding);
  while (cluster.hub->Step()) {
  }
  cluster.PollAll();
  EXPECT_TRUE(cluster.PollUntil([&] { return cluster.Count(0, EventKind::kSent) == kTestMaxOutstanding; }));
}

// Given one put more than MaxOutstanding, or a token released twice / expect the caller's bug to stop the program.
TEST(LoopbackFabricDeathTest, CatchesBugsOfTheCaller) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  FabricCluster cluster(kLoopback, 2, {64});
  cluster.hub->SetManual(true);
  PutMany(cluster, 0, 1, 0, kTestMaxOutstanding);
  EXPECT_DEATH((void)cluster.fabrics[0]->PutNotify({1, {}, {0, 0}, 0, 0}).has_value(), "CHECK failed");
  ASSERT_TRUE(cluster.hub->Step());
  cluster.PollAll();
  const uint64_t release = cluster.events[1][0].release;
  cluster.fabrics[1]->Release(release);
  EXPECT_DEATH(cluster.fabrics[1]->Release(release), "CHECK failed");
}

// Given eight threads that put to one another while one is killed / expect the rest to finish or to see the loss.
TEST(LoopbackFabric, EightThreadsAndAKill) {
  constexpr uint32_t kPeers = 8;
  constexpr uint32_t kPuts = 300;  // to each peer
  FabricCluster cluster(kLoopback, kPeers, {kPeers * 64, kPeers * 64});
  cluster.hub->SetReordering(3);
  std::vector<std::thread> threads;
  for (PeerId self = 0; self < kPeers; ++self) {
    threads.emplace_back([&, self] {
      Fabric& fabric = *cluster.fabrics[self];
      std::vector<uint32_t> posted(kPeers), arrived(kPeers);
      std::vector<bool> lost(kPeers), busy(kPeers);
      lost[self] = true;
      const auto done = [&] {
        for (PeerId peer = 0; peer < kPeers; ++peer) {
          if (!lost[peer] && (posted[peer] < kPuts || busy[peer] || arrived[peer] < kPuts)) return false;
        }
        return true;
      };
      while (!done()) {
        for (PeerId peer = 0; peer < kPeers; ++peer) {
          if (lost[peer] || busy[peer] || posted[peer] == kPuts) continue;
          const std::span<std::byte> source = cluster.regions[self][0].bytes.subspan(peer * 64, 64);
          FillPattern(source, posted[peer]);
          if (fabric.PutNotify({peer, source, {1, self * 64}, 0, 0})) {
            busy[peer] = true;
            ++posted[peer];
          }
        }
        Event events[16];
        const size_t num_events = fabric.Poll(events);
        if (num_events == 0) fabric.Wait(1000);
        for (const Event& event : std::span(events, num_events)) {
          if (event.kind == EventKind::kSent) busy[event.peer] = false;
          if (event.kind == EventKind::kFailed) lost[event.peer] = true;
          if (event.kind == EventKind::kArrived) {
            ++arrived[event.peer];
            fabric.Release(event.release);
          }
        }
        if (self == 0 && posted[1] > kPuts / 2) cluster.hub->Kill(5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradlane
