// The decoder on damaged bytes: an error or other values, never a crash, and never a half-written destination.
#include <gtest/gtest.h>

#include "kernels/fec.h"
#include "tests/kernels/random_tensor.h"

namespace gradlane {
namespace {

using fec::DecodeStatus;

// One of each form: sparse, empty, tiny, bitmap, runs (a burst), and a short block.
std::vector<float> MixedTensor() {
  std::vector<float> grad = Gaussian(5 * 4096 + 100, 0.004f, 1);
  for (size_t i = 4096; i < 5 * 4096; ++i) grad[i] = 0.0f;
  grad[2 * 4096 + 5] = 0.01f;
  for (size_t i = 3 * 4096; i < 4 * 4096; ++i) grad[i] = i % 3 == 0 ? 0.0f : 0.02f;
  for (size_t i = 4 * 4096; i < 4 * 4096 + 40; ++i) grad[i] = std::ldexp(1.0f, static_cast<int>(i % 14) - 7);
  return grad;
}

// Decodes both ways from an allocation of exactly these bytes; on an error nothing may have changed.
DecodeStatus DecodeBothWays(const std::vector<std::byte>& source, size_t num_elems) {
  const std::vector<std::byte> bytes(source.begin(), source.end());
  std::vector<float> assigned(num_elems, 7.0f), added(num_elems, 7.0f);
  const DecodeStatus status = fec::Decode(bytes, assigned);
  EXPECT_EQ(fec::DecodeAdd(bytes, added), status);
  if (status != DecodeStatus::kOk) {
    const std::vector<float> untouched(num_elems, 7.0f);
    EXPECT_TRUE(assigned == untouched);
    EXPECT_TRUE(added == untouched);
  }
  return status;
}

TEST(FecHostile, GivenEveryPrefixExpectTruncated) {
  const std::vector<float> grad = MixedTensor();
  const Encoded encoded = EncodeAll(grad, {}, {});
  for (size_t num_bytes = 0; num_bytes < encoded.bytes.size(); num_bytes += num_bytes < 40 ? 1 : 17) {
    const std::vector<std::byte> prefix(encoded.bytes.begin(), encoded.bytes.begin() + static_cast<long>(num_bytes));
    ASSERT_EQ(DecodeBothWays(prefix, grad.size()), DecodeStatus::kTruncated) << num_bytes;
  }
}

TEST(FecHostile, GivenBytesBehindTheEndExpectTrailing) {
  const std::vector<float> grad = MixedTensor();
  Encoded encoded = EncodeAll(grad, {}, {});
  encoded.bytes.push_back(std::byte{0});
  EXPECT_EQ(DecodeBothWays(encoded.bytes, grad.size()), DecodeStatus::kTrailing);
}

TEST(FecHostile, GivenAnotherNumberOfBlocksExpectAnError) {
  const std::vector<float> grad = MixedTensor();
  const Encoded encoded = EncodeAll(grad, {}, {});
  for (size_t num_elems : {size_t{0}, size_t{1}, size_t{4096}, grad.size() - 4096, grad.size() + 4096}) {
    EXPECT_NE(DecodeBothWays(encoded.bytes, num_elems), DecodeStatus::kOk) << num_elems;
  }
}

TEST(FecHostile, GivenEachBitFlippedExpectAnErrorOrOtherValues) {
  const std::vector<float> grad = MixedTensor();
  const Encoded encoded = EncodeAll(grad, {}, {});
  std::vector<float> expected(grad.size());
  ASSERT_EQ(fec::Decode(encoded.bytes, expected), DecodeStatus::kOk);
  for (size_t bit = 0; bit < encoded.bytes.size() * 8; bit += bit < 200 ? 1 : 13) {
    std::vector<std::byte> bytes = encoded.bytes;
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    std::vector<float> decoded(grad.size());
    if (DecodeBothWays(bytes, grad.size()) != DecodeStatus::kOk) continue;
    ASSERT_EQ(fec::Decode(bytes, decoded), DecodeStatus::kOk);
    EXPECT_NE(Bits(decoded), Bits(expected)) << bit;
  }
}

TEST(FecHostile, GivenRandomBytesBehindAGoodHeaderExpectNoCrash) {
  std::mt19937 random(77);
  size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(2 + random() % 64);
    for (std::byte& byte : bytes) byte = std::byte(random());
    bytes[0] = std::byte{0xf1};
    bytes[1] = std::byte(random() % 100);
    const size_t num_elems = 1 + random() % 40;
    // A block entry whose size fits is rare by chance, so make it fit.
    if (bytes.size() > 4 && round % 2 == 0) {
      bytes[2] = std::byte(0x80 | (random() % 8) << 4);
      bytes[3] = std::byte(bytes.size() - 4);
    }
    accepted += DecodeBothWays(bytes, num_elems) == DecodeStatus::kOk;
  }
  EXPECT_GT(accepted, 0u);
}

TEST(FecHostile, GivenEachStatusExpectASentence) {
  for (int status = 0; status <= static_cast<int>(DecodeStatus::kBadCount); ++status) {
    EXPECT_STRNE(fec::ToString(static_cast<DecodeStatus>(status)), "unknown status");
  }
}

}  // namespace
}  // namespace gradlane
