// What FEC is compared with: 1-bit and top-k as small baselines of our own, zstd and LZ4 from their libraries.
// (The 2-bit scheme is in kernels/two_bit.h.) Stateless but for the scratch that a caller keeps; any thread.
//
// With error feedback as fec::Encode: value = grad + residual is coded, residual = value - decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gradlane::perf {

// Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014): the sign of each value, and for either sign the
// mean of the values that have it, which the sign stands for. Zero counts as positive.
namespace one_bit {
// mean of the others, mean of the negatives; one bit an element, 1 for negative, 64 to a word.
struct Encoded {
  float mean_positive = 0;
  float mean_negative = 0;
  std::vector<uint64_t> negative;
  size_t Bytes() const { return 2 * sizeof(float) + negative.size() * sizeof(uint64_t); }
};
void Encode(std::span<const float> grad, std::span<float> residual, Encoded& encoded);
void DecodeAdd(const Encoded& encoded, std::span<float> sum);  // sum: (N,) fp32 of the encoded N
}  // namespace one_bit

// Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (EMNLP 2017): the k largest magnitudes, as
// they are, each with its position.
namespace top_k {
struct Entry {
  uint32_t position;
  float value;
};
struct Encoded {
  std::vector<Entry> entries;  // by position
  std::vector<float> scratch;  // the magnitudes, to select from
  size_t Bytes() const { return entries.size() * sizeof(Entry); }
};
// k: 1 to N. Of equal magnitudes at the boundary those at the lower positions go.
void Encode(std::span<const float> grad, std::span<float> residual, size_t k, Encoded& encoded);
void DecodeAdd(const Encoded& encoded, std::span<float> sum);
}  // namespace top_k

// Bytes written, after room was made in dst.
size_t ZstdCompress(std::span<const std::byte> src, std::vector<std::byte>& dst);  // level 1
size_t Lz4Compress(std::span<const std::byte> src, std::vector<std::byte>& dst);   // src: 2,113,929,216 bytes at most

}  // namespace gradlane::perf
