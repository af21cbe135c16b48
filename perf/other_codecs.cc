#include "perf/other_codecs.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "transport/base/error.h"

namespace gradlane::perf {

void one_bit::Encode(std::span<const float> grad, std::span<float> residual, Encoded& encoded) {
  constexpr size_t kBits = 64;
  std::array<double, 2> sums = {};
  std::array<size_t, 2> counts = {};
  encoded.negative.resize((grad.size() + kBits - 1) / kBits);
  for (size_t first = 0; first < grad.size(); first += kBits) {
    const size_t count = std::min(kBits, grad.size() - first);
    uint64_t word = 0;
    // In fp32 within a word and in double across: sums of millions stay exact enough.
    float all = 0, below = 0;
    for (size_t i = 0; i < count; ++i) {
      const float value = residual[first + i] += grad[first + i];
      const bool negative = value < 0;
      word |= uint64_t{negative} << i;
      all += value;
      below += negative ? value : 0;
    }
    encoded.negative[first / kBits] = word;
    const auto num_negative = static_cast<size_t>(std::popcount(word));
    sums[0] += double{all} - double{below};
    sums[1] += double{below};
    counts[0] += count - num_negative;
    counts[1] += num_negative;
  }
  const auto mean = [&](size_t sign) {
    return counts[sign] == 0 ? 0 : static_cast<float>(sums[sign] / static_cast<double>(counts[sign]));
  };
  encoded.mean_positive = mean(0);
  encoded.mean_negative = mean(1);
  for (float& value : residual) value -= value < 0 ? encoded.mean_negative : encoded.mean_positive;
}

void one_bit::DecodeAdd(const Encoded& encoded, std::span<float> sum) {
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] += encoded.negative[i / 64] >> i % 64 & 1 ? encoded.mean_negative : encoded.mean_positive;
  }
}

void top_k::Encode(std::span<const float> grad, std::span<float> residual, size_t k, Encoded& encoded) {
  CHECK(k >= 1 && k <= grad.size());
  encoded.scratch.resize(grad.size());
  for (size_t i = 0; i < grad.size(); ++i) encoded.scratch[i] = std::abs(residual[i] += grad[i]);
  const auto last = encoded.scratch.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(encoded.scratch.begin(), last, encoded.scratch.end(), std::greater{});
  const float limit = *last;
  auto equals = static_cast<size_t>(std::count(encoded.scratch.begin(), last + 1, limit));
  encoded.entries.clear();
  for (size_t i = 0; i < residual.size(); ++i) {
    const float magnitude = std::abs(residual[i]);
    if (magnitude < limit || (magnitude == limit && equals == 0)) continue;
    if (magnitude == limit) --equals;
    encoded.entries.push_back({static_cast<uint32_t>(i), std::exchange(residual[i], 0.0f)});
  }
}

void top_k::DecodeAdd(const Encoded& encoded, std::span<float> sum) {
  for (const auto [position, value] : encoded.entries) sum[position] += value;
}

size_t ZstdCompress(std::span<const std::byte> src, std::vector<std::byte>& dst) {
  dst.resize(ZSTD_compressBound(src.size()));
  const size_t bytes = ZSTD_compress(dst.data(), dst.size(), src.data(), src.size(), 1);
  CHECK(!ZSTD_isError(bytes));
  return bytes;
}

size_t Lz4Compress(std::span<const std::byte> src, std::vector<std::byte>& dst) {
  CHECK(src.size() <= LZ4_MAX_INPUT_SIZE);
  dst.resize(static_cast<size_t>(LZ4_compressBound(static_cast<int>(src.size()))));
  const int bytes = LZ4_compress_default(reinterpret_cast<const char*>(src.data()), reinterpret_cast<char*>(dst.data()),
                                         static_cast<int>(src.size()), static_cast<int>(dst.size()));
  CHECK(bytes > 0);
  return static_cast<size_t>(bytes);
}

}  // namespace gradlane::perf
