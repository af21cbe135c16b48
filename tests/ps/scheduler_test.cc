#include "transport/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gradlane {
namespace {

constexpr uint64_t kItemBytes = 100;

// Layer 0 has one item; layer 4 has two; layer 9 is one large tensor of eight.
std::vector<Scheduler::Group> ThreeLayers() { return {{0, 0}, {1, 4}, {3, 9}}; }
constexpr uint32_t kNumItems = 11;
constexpr uint32_t kUrgent = 0;
constexpr uint32_t kLargeFirst = 3;

Scheduler Make(SendPolicy policy, uint64_t window_bytes = kItemBytes) {
  return Scheduler(policy, ThreeLayers(), kNumItems, window_bytes, 64);
}

// Takes and completes everything, one item in flight at a time.
std::vector<uint32_t> Drain(Scheduler& scheduler) {
  std::vector<uint32_t> order;
  while (const auto taken = scheduler.Take(kItemBytes)) {
    order.push_back(taken->item);
    scheduler.OnSent(kItemBytes);
  }
  return order;
}

// Given a large tensor of layer 9 under way, with layer 4 queued behind it, layer 0 is pushed.
std::vector<uint32_t> OrderWithAnUrgentArrival(SendPolicy policy, uint64_t* preemptions = nullptr) {
  Scheduler scheduler = Make(policy);
  for (uint32_t item = kLargeFirst; item < kNumItems; ++item) scheduler.Push(item);
  EXPECT_EQ(scheduler.Take(kItemBytes)->item, kLargeFirst);
  scheduler.OnSent(kItemBytes);
  scheduler.Push(kUrgent);
  std::vector<uint32_t> order = Drain(scheduler);
  if (preemptions != nullptr) *preemptions = scheduler.preemptions();
  return order;
}

TEST(Scheduler, GivenPreemptiveAnUrgentItemIsNextAndIsCounted) {
  uint64_t preemptions = 0;
  const auto order = OrderWithAnUrgentArrival(SendPolicy::kPreemptive, &preemptions);
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(preemptions, 1u);
}

TEST(Scheduler, GivenPriorityTheTensorUnderWayFinishesFirst) {
  Scheduler scheduler = Make(SendPolicy::kPriority);
  for (uint32_t item = kLargeFirst; item < kNumItems; ++item) scheduler.Push(item);
  EXPECT_EQ(scheduler.Take(kItemBytes)->item, kLargeFirst);
  scheduler.OnSent(kItemBytes);
  scheduler.Push(1);
  scheduler.Push(kUrgent);
  EXPECT_EQ(Drain(scheduler), (std::vector<uint32_t>{4, 5, 6, 7, 8, 9, 10, 0, 1}));
  EXPECT_EQ(scheduler.preemptions(), 0u);
}

TEST(Scheduler, GivenFifoAnUrgentItemIsLast) {
  EXPECT_EQ(OrderWithAnUrgentArrival(SendPolicy::kFifo), (std::vector<uint32_t>{4, 5, 6, 7, 8, 9, 10, 0}));
}

TEST(Scheduler, GivenAHeadThatDoesNotFitNothingSlipsPast) {
  Scheduler scheduler = Make(SendPolicy::kPreemptive, 2 * kItemBytes);
  scheduler.Push(3);
  scheduler.Push(4);
  ASSERT_TRUE(scheduler.Take(kItemBytes));
  scheduler.Push(0);
  EXPECT_FALSE(scheduler.Take(kItemBytes + 1));  // item 0 is too large for what is left of the window
  EXPECT_EQ(scheduler.Head(), 0u);               // and item 4, which would fit, stays behind it
  scheduler.OnSent(kItemBytes);
  EXPECT_EQ(scheduler.Take(kItemBytes + 1)->item, 0u);
}

TEST(Scheduler, GivenAnItemLimitItIsKept) {
  Scheduler scheduler(SendPolicy::kFifo, ThreeLayers(), kNumItems, 1000, 2);
  for (uint32_t item = 0; item < 3; ++item) scheduler.Push(item);
  EXPECT_TRUE(scheduler.Take(0));
  EXPECT_TRUE(scheduler.Take(0));
  EXPECT_FALSE(scheduler.Take(0));
  scheduler.OnSent(0);
  EXPECT_TRUE(scheduler.Take(0));
}

TEST(Scheduler, GivenEqualUrgencyNothingCountsAsPreempted) {
  Scheduler scheduler(SendPolicy::kPreemptive, {{0, 5}, {1, 5}}, 3, 1000, 8);
  scheduler.Push(1);
  scheduler.Push(2);
  EXPECT_FALSE(scheduler.Take(1)->preempting);
  scheduler.Push(0);
  EXPECT_FALSE(scheduler.Take(1)->preempting);
  EXPECT_EQ(scheduler.preemptions(), 0u);
}

// Random pushes and completions against a naive model; the window is never exceeded.
TEST(Scheduler, GivenRandomTrafficItAgreesWithANaiveModel) {
  for (const SendPolicy policy : {SendPolicy::kFifo, SendPolicy::kPreemptive}) {
    std::mt19937 random(7);
    constexpr uint32_t kItems = 5000;
    std::vector<Scheduler::Group> groups;
    for (uint32_t first = 0; first < kItems; first += 50) groups.push_back({first, first / 50});
    Scheduler scheduler(policy, groups, kItems, 1000, 7);
    std::vector<uint32_t> queued;
    std::vector<uint64_t> in_flight;
    for (int round = 0; round < 50'000; ++round) {
      if (random() % 2 == 0) {
        const uint32_t item = random() % kItems;
        if (std::ranges::find(queued, item) == queued.end()) {
          scheduler.Push(item);
          queued.push_back(item);
        }
      } else if (!in_flight.empty() && random() % 2 == 0) {
        scheduler.OnSent(in_flight.back());
        in_flight.pop_back();
      }
      const uint64_t bytes = random() % 400;
      const auto expected = policy == SendPolicy::kFifo ? queued.begin() : std::ranges::min_element(queued);
      if (const auto taken = scheduler.Take(bytes)) {
        ASSERT_EQ(taken->item, *expected);
        queued.erase(expected);
        in_flight.push_back(bytes);
      }
      uint64_t total = 0;
      for (uint64_t b : in_flight) total += b;
      ASSERT_EQ(scheduler.in_flight_bytes(), total);
      ASSERT_LE(total, 1000u);
      ASSERT_LE(in_flight.size(), 7u);
      ASSERT_EQ(scheduler.empty(), queued.empty());
    }
  }
}

}  // namespace
}  // namespace gradlane
