// The codec of every target and number of threads against the scalar reference: the same bytes, residuals and refusals.
#include "kernels/fec_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/random_tensor.h"

namespace gradlane {
namespace {

using fec::DecodeStatus;
using fec::Layout;
using fec::Rounding;

constexpr size_t kSizes[] = {0, 1, 3, 63, 64, 65, 1000, 4095, 4096, 4097, 3 * 4096 + 17};
constexpr size_t kMaxElems = 70 * 4096 + 13;

class FecCodec : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  fec::Codec codec_{{kMaxElems, std::get<int>(GetParam()), std::get<std::string>(GetParam())}};

  // Encodes with both and expects no difference; gives the bytes.
  std::vector<std::byte> EncodeAlike(std::span<const float> grad, std::span<const float> residual,
                                     const fec::Params& params) {
    std::vector<float> expected_residual(residual.begin(), residual.end()), actual_residual = expected_residual;
    const Encoded expected = EncodeAll(grad, expected_residual, params);
    std::vector<std::byte> actual(fec::Bound(grad.size()));
    const fec::EncodeStats stats = codec_.Encode(grad, actual_residual, params, actual);
    EXPECT_EQ(stats.finite, expected.stats.finite);
    EXPECT_EQ(stats.survivors, expected.stats.survivors);
    EXPECT_EQ(Bits(actual_residual), Bits(expected_residual));
    actual.resize(stats.bytes);
    EXPECT_EQ(actual, expected.bytes);
    return actual;
  }

  void DecodeAlike(std::span<const std::byte> bytes, size_t num_elems) {
    std::vector<float> expected = Gaussian(num_elems, 1.0f, 21), actual = expected;
    const std::vector<std::byte> exact(bytes.begin(), bytes.end());  // so that a sanitizer sees a byte too many
    EXPECT_EQ(codec_.DecodeAdd(exact, actual), fec::DecodeAdd(exact, expected));
    EXPECT_EQ(Bits(actual), Bits(expected));
    EXPECT_EQ(codec_.Decode(exact, actual), fec::Decode(exact, expected));
    EXPECT_EQ(Bits(actual), Bits(expected));
  }
};

std::string NameOf(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<std::string>(info.param) + "_" + std::to_string(std::get<int>(info.param)) + "threads";
}

INSTANTIATE_TEST_SUITE_P(Targets, FecCodec,
                         testing::Combine(testing::ValuesIn(fec::CodecTargets()), testing::Values(1, 3)), NameOf);

TEST_P(FecCodec, GivenEachSizeDensityAndRuleExpectTheReferencesBytes) {
  for (const size_t num_elems : kSizes) {
    for (const float sigma : {1e-6f, 2.2e-3f, 3e-3f, 5e-3f, 2e-2f, 1.0f, 1e4f}) {
      for (const Layout layout : {Layout::kSmallest, Layout::kRuns}) {
        for (const Rounding rounding : {Rounding::kNearest, Rounding::kTruncate, Rounding::kStochastic}) {
          const fec::Params params = {
              .threshold_mantissa = 0x123456, .layout = layout, .rounding = rounding, .rounding_seed = 9};
          const std::vector<float> grad = Gaussian(num_elems, sigma, 3);
          DecodeAlike(EncodeAlike(grad, {}, params), num_elems);
          DecodeAlike(EncodeAlike(grad, Gaussian(num_elems, 2e-3f, 4), params), num_elems);
          if (HasFailure()) FAIL() << num_elems << " elements, sigma " << sigma;
        }
      }
    }
  }
}

TEST_P(FecCodec, GivenEveryKindOfFiniteBitsExpectTheReferencesBytes) {
  for (const int exponent : {-126, -20, 0, 100}) {
    const fec::Params params = {.threshold_exponent = exponent};
    const std::vector<float> grad = AnyFinite(3 * 4096 + 17, 11);
    const std::vector<std::byte> bytes = EncodeAlike(grad, {}, params);
    std::vector<float> expected(grad.size()), actual(grad.size(), -1.0f);
    ASSERT_EQ(fec::Decode(bytes, expected), DecodeStatus::kOk);
    ASSERT_EQ(codec_.Decode(bytes, actual), DecodeStatus::kOk);
    EXPECT_EQ(Bits(actual), Bits(expected));
  }
}

TEST_P(FecCodec, GivenAValueThatIsNotFiniteAnywhereExpectTheResidualUntouched) {
  const size_t num_elems = 9 * 4096 + 100;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t{0}, size_t{5000}, size_t{6 * 4096 + 4095}, num_elems - 1}) {
      std::vector<float> grad = Gaussian(num_elems, 0.01f, 1);
      grad[at] = bad;
      const std::vector<float> before = Gaussian(num_elems, 0.01f, 2);
      std::vector<float> residual = before;
      std::vector<std::byte> bytes(fec::Bound(num_elems));
      EXPECT_FALSE(codec_.Encode(grad, residual, {}, bytes).finite);
      EXPECT_EQ(Bits(residual), Bits(before));
      EXPECT_FALSE(codec_.Encode(grad, {}, {}, bytes).finite);
    }
  }
}

TEST_P(FecCodec, GivenASumThatOverflowsExpectTheResidualUntouched) {
  const std::vector<float> grad(5000, std::numeric_limits<float>::max());
  std::vector<float> residual = grad;
  std::vector<std::byte> bytes(fec::Bound(grad.size()));
  EXPECT_FALSE(codec_.Encode(grad, residual, {}, bytes).finite);
  EXPECT_EQ(Bits(residual), Bits(grad));
}

// Every layout is among them: empty, tiny, sparse and bitmap with all kinds of codes, runs.
TEST_P(FecCodec, GivenDamagedBytesExpectTheReferencesVerdict) {
  std::mt19937 random(5);
  for (const float sigma : {1e-3f, 2.2e-3f, 3e-3f, 5e-3f, 2e-2f, 1.0f}) {
    for (const Layout layout : {Layout::kSmallest, Layout::kRuns}) {
      const size_t num_elems = 3 * 4096 + 17;
      const Encoded encoded = EncodeAll(Gaussian(num_elems, sigma, 3), {}, {.layout = layout});
      for (int round = 0; round < 60; round++) {
        std::vector<std::byte> bytes = encoded.bytes;
        switch (round % 3) {
          case 0:
            bytes[random() % bytes.size()] ^= std::byte(1u << random() % 8);
            break;
          case 1:
            bytes.resize(random() % bytes.size());
            break;
          case 2:
            bytes[random() % std::min<size_t>(bytes.size(), 16)] = std::byte(random());
            break;
        }
        DecodeAlike(bytes, num_elems);
        if (HasFailure()) FAIL() << "sigma " << sigma << ", round " << round;
      }
    }
  }
}

// Large enough to be shared among threads. The dense one has more survivors than Check keeps, so that a part is decoded
// twice.
TEST_P(FecCodec, GivenALargeSegmentSparseOrDenseExpectTheReferencesBytes) {
  const std::vector<float> residual = Gaussian(kMaxElems, 2e-3f, 4);
  for (const float sigma : {1e-3f, 3e-3f, 1.0f}) {
    DecodeAlike(EncodeAlike(Gaussian(kMaxElems, sigma, 8), residual, {.threshold_exponent = -7}), kMaxElems);
  }
}

}  // namespace
}  // namespace gradlane
