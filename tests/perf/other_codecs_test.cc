#include "perf/other_codecs.h"

#include <gtest/gtest.h>
#include <lz4.h>
#include <zstd.h>

#include <cmath>
#include <cstring>

#include "kernels/fec_codec.h"
#include "perf/dense_add.h"
#include "perf/tensors.h"

namespace gradlane::perf {
namespace {

class OtherCodecs : public testing::Test {
 protected:
  // What was decoded and what stayed in the residual are together what went in.
  void ExpectConserved(const std::vector<float>& decoded, const std::vector<float>& residual) const {
    for (size_t i = 0; i < grad_.size(); ++i) {
      ASSERT_NEAR(decoded[i] + residual[i], grad_[i] + first_residual_[i], 1e-8) << i;
    }
  }

  const std::vector<float> grad_ = MakePattern("laplace", 1000).value();
  const std::vector<float> first_residual_ = std::vector<float>(grad_.rbegin(), grad_.rend());
};

TEST_F(OtherCodecs, GivenOneBit_ExpectWhatIsNotSentInTheResidual) {
  std::vector<float> residual = first_residual_, decoded(grad_.size());
  one_bit::Encoded encoded;
  one_bit::Encode(grad_, residual, encoded);
  one_bit::DecodeAdd(encoded, decoded);
  EXPECT_EQ(encoded.Bytes(), 8u + 16 * 8);
  EXPECT_GT(encoded.mean_positive, 0);
  EXPECT_LT(encoded.mean_negative, 0);
  ExpectConserved(decoded, residual);
}

TEST_F(OtherCodecs, GivenOneBitOfKnownValues_ExpectTheMeansOfEitherSign) {
  std::vector<float> residual(5);
  one_bit::Encoded encoded;
  one_bit::Encode(std::vector<float>{1, -2, 3, 0, -4}, residual, encoded);
  EXPECT_EQ(encoded.negative, std::vector<uint64_t>{0b10010});
  EXPECT_FLOAT_EQ(encoded.mean_positive, 4.0f / 3);
  EXPECT_FLOAT_EQ(encoded.mean_negative, -3);
}

TEST_F(OtherCodecs, GivenTopK_ExpectTheLargestSentAndTheRestInTheResidual) {
  constexpr size_t kSent = 100;
  std::vector<float> residual = first_residual_, decoded(grad_.size());
  top_k::Encoded encoded;
  top_k::Encode(grad_, residual, kSent, encoded);
  top_k::DecodeAdd(encoded, decoded);
  EXPECT_EQ(encoded.entries.size(), kSent);
  EXPECT_EQ(encoded.Bytes(), kSent * 8);
  float least_sent = INFINITY, most_kept = 0;
  for (const top_k::Entry& entry : encoded.entries) least_sent = std::min(least_sent, std::abs(entry.value));
  for (const float value : residual) most_kept = std::max(most_kept, std::abs(value));
  EXPECT_GE(least_sent, most_kept);
  ExpectConserved(decoded, residual);
}

TEST_F(OtherCodecs, GivenEqualMagnitudes_ExpectTheFirstKSent) {
  std::vector<float> residual(4);
  top_k::Encoded encoded;
  top_k::Encode(std::vector<float>{1, 2, -1, 1}, residual, 3, encoded);
  EXPECT_EQ(residual, (std::vector<float>{0, 0, 0, 1}));
}

TEST_F(OtherCodecs, GivenZstdAndLz4_ExpectTheirLibrariesToGiveTheBytesBack) {
  const auto raw = std::as_bytes(std::span(grad_));
  std::vector<std::byte> compressed;
  std::vector<float> restored(grad_.size());
  const size_t zstd_bytes = ZstdCompress(raw, compressed);
  EXPECT_EQ(ZSTD_decompress(restored.data(), raw.size(), compressed.data(), zstd_bytes), raw.size());
  EXPECT_EQ(restored, grad_);
  restored.assign(grad_.size(), 0);
  const auto lz4_bytes = static_cast<int>(Lz4Compress(raw, compressed));
  EXPECT_EQ(LZ4_decompress_safe(reinterpret_cast<const char*>(compressed.data()),
                                reinterpret_cast<char*>(restored.data()), lz4_bytes, static_cast<int>(raw.size())),
            static_cast<int>(raw.size()));
  EXPECT_EQ(restored, grad_);
}

TEST_F(OtherCodecs, GivenEveryTarget_ExpectTheDenseLoopToAdd) {
  for (const std::string& target : fec::CodecTargets()) {
    std::vector<float> sum = first_residual_;
    DenseAdd(target, 2).Run(grad_, sum);
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], first_residual_[i] + grad_[i]) << target;
  }
}

}  // namespace
}  // namespace gradlane::perf
