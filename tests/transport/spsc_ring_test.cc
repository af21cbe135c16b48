#include "transport/base/spsc_ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace gradlane {
namespace {

TEST(SpscRing, IsBoundedAndInOrder) {
  SpscRing<int> ring(3);
  EXPECT_EQ(ring.capacity(), 4u);
  EXPECT_TRUE(ring.Empty());
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.TryPush(10 * round + i));
    EXPECT_FALSE(ring.TryPush(99));
    int value = -1;
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(ring.TryPop(value));
      EXPECT_EQ(value, 10 * round + i);
    }
    EXPECT_FALSE(ring.TryPop(value));
    EXPECT_EQ(value, 10 * round + 3);
  }
}

TEST(SpscRing, RefusedValueIsUntouched) {
  SpscRing<std::unique_ptr<int>> ring(2);
  EXPECT_TRUE(ring.TryPush(std::make_unique<int>(1)));
  EXPECT_TRUE(ring.TryPush(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(ring.TryPush(std::move(third)));
  ASSERT_NE(third, nullptr);
  std::unique_ptr<int> value;
  EXPECT_TRUE(ring.TryPop(value));
  EXPECT_EQ(*value, 1);
}

// Given a producer and a consumer thread / expect every value once, in order, with what it points to.
TEST(SpscRing, HandsOverBetweenThreads) {
  constexpr int kValues = 100'000;
  struct Box {
    int value = 0;
  };
  std::vector<Box> boxes(kValues);
  SpscRing<Box*> ring(64);
  std::thread producer([&] {
    for (int i = 0; i < kValues; ++i) {
      boxes[static_cast<size_t>(i)].value = i;  // plain memory: the ring publishes it
      while (!ring.TryPush(&boxes[static_cast<size_t>(i)])) std::this_thread::yield();
    }
  });
  for (int i = 0; i < kValues; ++i) {
    Box* box = nullptr;
    while (!ring.TryPop(box)) std::this_thread::yield();
    ASSERT_EQ(box->value, i);
  }
  producer.join();
  EXPECT_TRUE(ring.Empty());
}

}  // namespace
}  // namespace gradlane
