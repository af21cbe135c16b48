// The 2-bit scheme against a naive model of MXNet's.
#include "kernels/two_bit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "tests/kernels/random_tensor.h"

namespace gradlane {
namespace {

constexpr float kThreshold = 0.5f;

// One character an element: + - or 0. Updates residual.
std::string Model(std::span<const float> grad, std::vector<float>& residual) {
  std::string symbols;
  for (size_t i = 0; i < grad.size(); ++i) {
    residual[i] += grad[i];
    if (residual[i] >= kThreshold) {
      symbols += '+';
      residual[i] -= kThreshold;
    } else if (residual[i] <= -kThreshold) {
      symbols += '-';
      residual[i] += kThreshold;
    } else {
      symbols += '0';
    }
  }
  return symbols;
}

TEST(TwoBit, GivenRandomTensorsExpectWhatTheModelSends) {
  for (size_t num_elems : {0, 1, 3, 15, 16, 17, 1000}) {
    std::vector<float> residual = Gaussian(num_elems, 0.3f, 1), model_residual = residual;
    for (uint32_t step = 0; step < 4; ++step) {
      const std::vector<float> grad = Gaussian(num_elems, 0.3f, 2 + step);
      std::vector<std::byte> bytes(two_bit::EncodedBytes(num_elems), std::byte{0xff});
      const two_bit::EncodeStats stats = two_bit::Encode(grad, residual, kThreshold, bytes);
      const std::string symbols = Model(grad, model_residual);
      EXPECT_TRUE(stats.finite);
      EXPECT_EQ(stats.survivors, static_cast<size_t>(std::count_if(symbols.begin(), symbols.end(),
                                                                   [](char symbol) { return symbol != '0'; })));
      EXPECT_EQ(Bits(residual), Bits(model_residual));

      std::vector<float> dst = Gaussian(num_elems, 1.0f, 50), expected = dst;
      ASSERT_TRUE(two_bit::DecodeAdd(bytes, kThreshold, dst));
      for (size_t i = 0; i < num_elems; ++i) {
        if (symbols[i] != '0') expected[i] += symbols[i] == '+' ? kThreshold : -kThreshold;
      }
      EXPECT_EQ(Bits(dst), Bits(expected));
    }
  }
}

TEST(TwoBit, GivenFourElementsExpectMxnetsByte) {
  std::vector<float> residual(4);
  std::vector<std::byte> bytes(4);
  two_bit::Encode(std::vector<float>{0.7f, -0.5f, 0.1f, 0.5f}, residual, kThreshold, bytes);
  EXPECT_EQ(bytes[0], std::byte{0b11'10'00'11});
}

TEST(TwoBit, GivenANonFiniteValueExpectItReportedAndResidualUntouched) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> grad(40, 0.1f), residual(40, 0.2f);
    grad[39] = bad;
    std::vector<std::byte> bytes(two_bit::EncodedBytes(40));
    EXPECT_FALSE(two_bit::Encode(grad, residual, kThreshold, bytes).finite);
    EXPECT_THAT(residual, testing::Each(0.2f));
  }
}

TEST(TwoBit, GivenAWrongLengthOrTheUnusedCodeExpectFalseAndAnUntouchedDestination) {
  std::vector<float> dst(20, 7.0f);
  std::vector<std::byte> bytes(8, std::byte{0xff});
  EXPECT_FALSE(two_bit::DecodeAdd(std::span(bytes).first(4), kThreshold, dst));
  EXPECT_FALSE(two_bit::DecodeAdd(std::vector<std::byte>(12), kThreshold, dst));
  for (int shift = 0; shift < 8; shift += 2) {
    bytes[4] = std::byte(0xff ^ (2 << shift));
    EXPECT_FALSE(two_bit::DecodeAdd(bytes, kThreshold, dst));
  }
  EXPECT_THAT(dst, testing::Each(7.0f));
}

}  // namespace
}  // namespace gradlane
