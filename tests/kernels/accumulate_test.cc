#include "kernels/accumulate.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "random_tensor.h"

namespace gradlane {
namespace {

constexpr size_t kChunk = accumulate::kChunkElems;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void ExpectSameBits(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i])) << i;
  }
}

std::span<const std::byte> Bytes(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }

TEST(Accumulate, GivenAnyFiniteValuesExpectThemAssignedBitForBit) {
  std::vector<float> src = AnyFinite(3 * kChunk + 17, 5);  // denormals among them
  src[0] = -0.0f;
  src[1] = std::bit_cast<float>(0x80000001u);
  src[kChunk] = std::numeric_limits<float>::max();
  std::vector<float> sum(src.size(), 1.0f);
  ASSERT_TRUE(accumulate::Assign(Bytes(src), sum));
  ExpectSameBits(sum, src);
  EXPECT_TRUE(accumulate::AllFinite(src));
}

TEST(Accumulate, GivenZerosOfBothSignsAndDenormalsExpectTheirSumsBitForBit) {
  const float tiny = std::bit_cast<float>(0x00000001u);
  const std::vector<float> src = {-0.0f, -0.0f, 0.0f, tiny, tiny, -tiny};
  std::vector<float> sum = {-0.0f, 0.0f, -0.0f, tiny, -0.0f, tiny};
  ASSERT_TRUE(accumulate::Add(Bytes(src), sum));
  ExpectSameBits(sum, {-0.0f, 0.0f, 0.0f, std::bit_cast<float>(0x00000002u), tiny, 0.0f});
}

// Given a bad value anywhere / expect the chunks before it done, and its own and the later ones untouched.
TEST(Accumulate, GivenAValueThatIsNotFiniteExpectItNeverToEnterTheSum) {
  const size_t num_elems = 2 * kChunk + 5;
  for (const float bad : {kNan, -kNan, INFINITY, -INFINITY, std::bit_cast<float>(0x7f800001u)}) {
    for (const size_t at : {size_t{0}, kChunk - 1, kChunk, 2 * kChunk - 1, 2 * kChunk, num_elems - 1}) {
      std::vector<float> src(num_elems, 2.0f);
      src[at] = bad;
      const size_t untouched = at / kChunk * kChunk;
      std::vector<float> assigned(num_elems, 1.0f), added(num_elems, 1.0f);
      EXPECT_FALSE(accumulate::Assign(Bytes(src), assigned));
      EXPECT_FALSE(accumulate::Add(Bytes(src), added));
      EXPECT_FALSE(accumulate::AllFinite(src));
      for (size_t i = 0; i < num_elems; ++i) {
        ASSERT_EQ(assigned[i], i < untouched ? 2.0f : 1.0f) << i;
        ASSERT_EQ(added[i], i < untouched ? 3.0f : 1.0f) << i;
      }
    }
  }
}

TEST(Accumulate, GivenNothingExpectSuccess) {
  EXPECT_TRUE(accumulate::Assign({}, {}));
  EXPECT_TRUE(accumulate::AllFinite({}));
}

}  // namespace
}  // namespace gradlane
