// What FEC keeps and loses: round trips, error feedback, bounds, and values that are not numbers.
#include "kernels/fec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/fec_rules.h"
#include "tests/kernels/random_tensor.h"

namespace gradlane {
namespace {

using fec::DecodeStatus;
using fec::Layout;
using fec::Rounding;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr size_t kSizes[] = {0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 3 * 4096, 70 * 4096 + 13};

// The element rule in floating point, as a check on the one in integers.
float Quantise(float value, const fec::Params& params) {
  const float limit =
      std::ldexp(1.0f + static_cast<float>(params.threshold_mantissa) / 8388608.0f, params.threshold_exponent);
  if (std::fabs(value) < limit) return 0.0f;
  auto round = [&params](float x) {
    int exponent;
    const float fraction = std::frexp(x, &exponent);  // 0.5 .. 1
    return exponent - 1 + (params.rounding == Rounding::kNearest && fraction >= 0.75f);
  };
  const int base = round(limit);
  return std::copysign(std::ldexp(1.0f, std::min(round(std::fabs(value)), base + 15)), value);
}

std::vector<fec::Params> SomeParams() {
  std::vector<fec::Params> all;
  for (int exponent : {-126, -20, -7, 0, 100}) {
    for (uint32_t mantissa : {0u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
      for (Layout layout : {Layout::kSmallest, Layout::kRuns}) {
        for (Rounding rounding : {Rounding::kNearest, Rounding::kTruncate}) {
          all.push_back({exponent, mantissa, layout, rounding});
        }
      }
    }
  }
  return all;
}

TEST(Fec, GivenAnyFiniteTensorExpectDecodedToFollowTheElementRule) {
  for (const fec::Params& params : SomeParams()) {
    const std::vector<float> grad = AnyFinite(4096 + 700, 11);
    const Encoded encoded = EncodeAll(grad, {}, params);
    std::vector<float> decoded(grad.size(), -1.0f);
    ASSERT_EQ(fec::Decode(encoded.bytes, decoded), DecodeStatus::kOk);
    size_t survivors = 0;
    for (size_t i = 0; i < grad.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(Quantise(grad[i], params)))
          << grad[i] << " at exponent " << params.threshold_exponent;
      survivors += decoded[i] != 0;
    }
    EXPECT_EQ(encoded.stats.survivors, survivors);
  }
}

TEST(Fec, GivenEachSizeAndDensityExpectRoundTripWithinBound) {
  for (size_t num_elems : kSizes) {
    for (float sigma : {1e-6f, 1e-4f, 0.003f, 0.005f, 0.01f, 1.0f, 1e4f}) {
      for (Layout layout : {Layout::kSmallest, Layout::kRuns}) {
        const fec::Params params = {.layout = layout};
        const std::vector<float> grad = Gaussian(num_elems, sigma, 3);
        const Encoded encoded = EncodeAll(grad, {}, params);
        EXPECT_LE(encoded.stats.bytes, fec::Bound(num_elems));
        std::vector<float> decoded(num_elems, -1.0f);
        ASSERT_EQ(fec::Decode(encoded.bytes, decoded), DecodeStatus::kOk);
        for (size_t i = 0; i < num_elems; ++i) ASSERT_EQ(decoded[i], Quantise(grad[i], params));
      }
    }
  }
}

TEST(Fec, GivenErrorFeedbackExpectNothingToBeLost) {
  for (const fec::Params& params : SomeParams()) {
    if (params.threshold_exponent == 100) continue;
    std::vector<float> residual = Gaussian(4096 + 700, std::ldexp(1.0f, params.threshold_exponent), 5);
    for (uint32_t step = 0; step < 3; ++step) {
      const std::vector<float> before = residual;
      std::vector<float> grad = Gaussian(residual.size(), std::ldexp(1.0f, params.threshold_exponent), 6 + step);
      grad[17] = std::ldexp(1.9f, params.threshold_exponent + 20);  // saturates
      const Encoded encoded = EncodeAll(grad, residual, params);
      std::vector<float> decoded(grad.size());
      ASSERT_EQ(fec::Decode(encoded.bytes, decoded), DecodeStatus::kOk);
      for (size_t i = 0; i < grad.size(); ++i) {
        const float value = grad[i] + before[i];
        ASSERT_EQ(decoded[i], Quantise(value, params));
        ASSERT_EQ(std::bit_cast<uint32_t>(residual[i]), std::bit_cast<uint32_t>(value - decoded[i]));
        if (i == 17) continue;
        ASSERT_EQ(residual[i] + decoded[i], value);  // exact: both lie within a factor of two
      }
      EXPECT_GT(residual[17], std::ldexp(1.0f, params.threshold_exponent + 18));
    }
  }
}

TEST(Fec, GivenSignedZerosAndDenormalsExpectThemInTheResidualBitForBit) {
  const std::vector<float> grad = {-0.0f, std::bit_cast<float>(0x00000001u), std::bit_cast<float>(0x807fffffu), 0.0f};
  std::vector<float> residual = {-0.0f, 0.0f, 0.0f, 0.0f};
  const Encoded encoded = EncodeAll(grad, residual, {.threshold_exponent = fec::kMinBase});
  EXPECT_EQ(encoded.stats.survivors, 0u);
  EXPECT_EQ(Bits(residual), Bits(grad));
  std::vector<float> decoded(grad.size(), 1.0f);
  ASSERT_EQ(fec::Decode(encoded.bytes, decoded), DecodeStatus::kOk);
  EXPECT_THAT(Bits(decoded), testing::Each(0u));
}

TEST(Fec, GivenAValueJustBelowTheLimitExpectItDroppedAlthoughItWouldRoundUp) {
  const float below = std::nextafter(std::ldexp(1.0f, -7), 0.0f);
  std::vector<float> residual = {0.0f};
  EXPECT_EQ(EncodeAll(std::vector<float>{below}, residual, {}).stats.survivors, 0u);
  EXPECT_EQ(residual[0], below);
}

TEST(Fec, GivenANonFiniteValueAnywhereExpectItReportedAndResidualUntouched) {
  for (float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
    for (size_t at : {size_t{0}, size_t{4095}, size_t{3 * 4096 + 9}}) {
      for (bool in_residual : {false, true}) {
        std::vector<float> grad = Gaussian(3 * 4096 + 10, 0.01f, 1), residual = Gaussian(grad.size(), 0.01f, 2);
        (in_residual ? residual : grad)[at] = bad;
        const std::vector<uint32_t> before = Bits(residual);
        const Encoded encoded = EncodeAll(grad, residual, {});
        EXPECT_FALSE(encoded.stats.finite);
        EXPECT_EQ(encoded.stats.bytes, 0u);
        EXPECT_EQ(Bits(residual), before);
        EXPECT_EQ(EncodeAll(grad, {}, {}).stats.finite, in_residual);
      }
    }
  }
}

TEST(Fec, GivenFiniteValuesWhoseSumOverflowsExpectItReported) {
  std::vector<float> grad(10, 0.0f), residual(10, 0.0f);
  grad[9] = residual[9] = std::numeric_limits<float>::max();
  EXPECT_FALSE(EncodeAll(grad, residual, {}).stats.finite);
  EXPECT_EQ(residual[9], std::numeric_limits<float>::max());
}

TEST(Fec, GivenDenseAndClusteredTensorsExpectBoundToHold) {
  std::mt19937 random(9);
  for (int round = 0; round < 300; ++round) {
    const size_t num_elems = round < 200 ? random() % 300 : random() % 9000;
    std::vector<float> grad(num_elems, 0.0f);
    const uint32_t burst = 2 + random() % 200, codes = 1 + random() % 16;
    for (size_t i = 0; i < num_elems;) {
      if (random() % 2 == 0) i += random() % burst;
      for (uint32_t j = random() % burst; j > 0 && i < num_elems; --j) {
        grad[i++] = std::ldexp(random() % 2 ? 1.0f : -1.0f, static_cast<int>(random() % codes));
      }
    }
    for (Layout layout : {Layout::kSmallest, Layout::kRuns}) {
      const fec::Params params = {.threshold_exponent = 0, .layout = layout};
      const Encoded encoded = EncodeAll(grad, {}, params);
      ASSERT_LE(encoded.stats.bytes, fec::Bound(num_elems));
      std::vector<float> decoded(num_elems, -1.0f);
      ASSERT_EQ(fec::Decode(encoded.bytes, decoded), DecodeStatus::kOk);
      ASSERT_EQ(Bits(decoded), Bits(grad));
    }
  }
}

TEST(Fec, GivenEveryElementAtTheLargestCodeExpectExactlyBound) {
  for (size_t num_elems : kSizes) {
    const std::vector<float> grad(num_elems, std::ldexp(1.0f, 8));
    EXPECT_EQ(EncodeAll(grad, {}, {}).stats.bytes, fec::Bound(num_elems));
  }
}

TEST(Fec, GivenASmallestLayoutExpectNoMoreBytesThanForcedRuns) {
  for (float sigma : {0.002f, 0.004f, 0.01f, 0.1f}) {
    const std::vector<float> grad = Gaussian(8 * 4096, sigma, 21);
    EXPECT_LE(EncodeAll(grad, {}, {}).stats.bytes, EncodeAll(grad, {}, {.layout = Layout::kRuns}).stats.bytes);
  }
}

TEST(Fec, GivenAnEmptySegmentExpectAFewBytes) {
  EXPECT_EQ(EncodeAll({}, {}, {}).stats.bytes, 2u);
  EXPECT_EQ(EncodeAll(std::vector<float>(4096), {}, {}).stats.bytes, 3u);
  EXPECT_EQ(EncodeAll(std::vector<float>(1024 * 4096), {}, {}).stats.bytes, 2u + 16u);
}

TEST(Fec, GivenDecodeAddExpectDecodeAndThenAdd) {
  for (size_t num_elems : kSizes) {
    const Encoded encoded = EncodeAll(Gaussian(num_elems, 0.006f, 31), {}, {});
    const std::vector<float> before = Gaussian(num_elems, 1.0f, 32);
    std::vector<float> decoded(num_elems), expected = before, added = before;
    ASSERT_EQ(fec::Decode(encoded.bytes, decoded), DecodeStatus::kOk);
    for (size_t i = 0; i < num_elems; ++i) {
      if (decoded[i] != 0) expected[i] += decoded[i];
    }
    ASSERT_EQ(fec::DecodeAdd(encoded.bytes, added), DecodeStatus::kOk);
    EXPECT_EQ(Bits(added), Bits(expected));
  }
}

TEST(Fec, GivenATensorCutAtBlocksExpectTheSameValuesAsInOnePiece) {
  const std::vector<float> grad = Gaussian(5 * 4096 + 77, 0.006f, 41);
  std::vector<float> whole(grad.size()), pieces(grad.size());
  ASSERT_EQ(fec::Decode(EncodeAll(grad, {}, {}).bytes, whole), DecodeStatus::kOk);
  for (size_t first = 0; first < grad.size(); first += 2 * 4096) {
    const size_t num_elems = std::min<size_t>(2 * 4096, grad.size() - first);
    const Encoded encoded = EncodeAll(std::span(grad).subspan(first, num_elems), {}, {});
    ASSERT_EQ(fec::Decode(encoded.bytes, std::span(pieces).subspan(first, num_elems)), DecodeStatus::kOk);
  }
  EXPECT_EQ(Bits(pieces), Bits(whole));
}

TEST(Fec, GivenGaussianGradientsUnderErrorFeedbackExpectAHundredfoldAtThreePercent) {
  constexpr size_t kElems = 64 * 4096;
  for (auto [density, ratio] : {std::pair{0.03, 100.0}, std::pair{0.01, 257.0}}) {
    fec::DensitySteering steering(density);
    std::vector<float> residual(kElems);
    size_t bytes = 0, survivors = 0;
    for (uint32_t step = 0; step < 60; ++step) {
      fec::Params params;
      steering.ApplyTo(params);
      const Encoded encoded = EncodeAll(Gaussian(kElems, 0.01f, 100 + step), residual, params);
      steering.Observe(encoded.stats.survivors, kElems);
      if (step < 40) continue;
      bytes += encoded.stats.bytes;
      survivors += encoded.stats.survivors;
    }
    EXPECT_NEAR(static_cast<double>(survivors) / (20 * kElems), density, density * 0.1);
    EXPECT_GT(20.0 * kElems * sizeof(float) / static_cast<double>(bytes), ratio);
  }
}

TEST(FecDeathTest, GivenAThresholdOutOfRangeOrAShortDestinationExpectAnAbort) {
  const std::vector<float> grad(10, 1.0f);
  std::vector<float> short_residual(9);
  std::vector<std::byte> dst(fec::Bound(10));
  EXPECT_DEATH(fec::Encode(grad, {}, {.threshold_exponent = fec::kMinBase - 1}, dst), "precondition");
  EXPECT_DEATH(fec::Encode(grad, {}, {.threshold_exponent = fec::kMaxBase + 1}, dst), "precondition");
  EXPECT_DEATH(fec::Encode(grad, {}, {.threshold_exponent = 112, .threshold_mantissa = 0x400000}, dst), "precondition");
  EXPECT_DEATH(fec::Encode(grad, short_residual, {}, dst), "precondition");
  EXPECT_DEATH(fec::Encode(grad, {}, {}, std::span(dst).first(dst.size() - 1)), "precondition");
}

}  // namespace
}  // namespace gradlane
