#include "perf/entropy.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace gradlane::perf {
namespace {

TEST(Entropy, GivenKnownCounts_ExpectKnownBits) {
  EXPECT_EQ(Order0Entropy({}), 0);
  EXPECT_EQ(Order0Entropy(std::array<uint64_t, 2>{0, 0}), 0);
  EXPECT_EQ(Order0Entropy(std::array<uint64_t, 3>{0, 7, 0}), 0);
  EXPECT_DOUBLE_EQ(Order0Entropy(std::array<uint64_t, 2>{5, 5}), 1);
  EXPECT_DOUBLE_EQ(Order0Entropy(std::array<uint64_t, 4>{4, 2, 1, 1}), 1.75);
}

TEST(Entropy, GivenATensorOfWhichAQuarterSurvives_ExpectPositionsSignsAndCodes) {
  std::vector<float> decoded(64);
  for (size_t i = 0; i < decoded.size(); i += 4) decoded[i] = i % 8 == 0 ? 0.5f : -2.0f;
  // h(1/4) = 2 - 3/4 log2 3 bits an element; one bit for the sign of each of the 16 survivors and one for its code.
  EXPECT_NEAR(QuantisedEntropyBytes(decoded), (64 * (2 - 0.75 * 1.5849625007211562) + 16 + 16) / 8, 1e-9);
}

TEST(Entropy, GivenNothingOrAllAlike_ExpectZero) {
  EXPECT_EQ(QuantisedEntropyBytes({}), 0);
  EXPECT_EQ(QuantisedEntropyBytes(std::vector<float>(100)), 0);
  EXPECT_EQ(QuantisedEntropyBytes(std::vector<float>(100, 0.25f)), 0);
}

}  // namespace
}  // namespace gradlane::perf
