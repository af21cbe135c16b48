#include "kernels/accumulate.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace gradlane::accumulate {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;

// 1 where the value is not finite. An OR over a chunk keeps the loop free of branches, so that it vectorises.
uint32_t NonFinite(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & kMagnitude) >= kInfinity;
}

float Load(const std::byte* src, size_t index) {
  float value;
  std::memcpy(&value, src + index * sizeof value, sizeof value);
  return value;
}

bool ChunkFinite(const std::byte* src, size_t num_elems) {
  uint32_t bad = 0;
  for (size_t i = 0; i < num_elems; ++i) bad |= NonFinite(Load(src, i));
  return bad == 0;
}

template <bool kAdd>
bool Accumulate(const std::byte* src, float* sum, size_t num_elems) {
  for (size_t first = 0; first < num_elems; first += kChunkElems) {
    const size_t count = std::min(kChunkElems, num_elems - first);
    const std::byte* const chunk = src + first * sizeof(float);
    if (!ChunkFinite(chunk, count)) return false;
    for (size_t i = 0; i < count; ++i) sum[first + i] = kAdd ? sum[first + i] + Load(chunk, i) : Load(chunk, i);
  }
  return true;
}

}  // namespace

bool Assign(std::span<const std::byte> src, std::span<float> sum) {
  return Accumulate<false>(src.data(), sum.data(), sum.size());
}

bool Add(std::span<const std::byte> src, std::span<float> sum) {
  return Accumulate<true>(src.data(), sum.data(), sum.size());
}

bool AllFinite(std::span<const float> src) {
  return ChunkFinite(std::as_bytes(src).data(), src.size());
}

}  // namespace gradlane::accumulate
