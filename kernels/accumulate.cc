#include "kernels/accumulate.h"

#include <cstdint>
#include <cstring>

namespace gradlane::accumulate {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;

// 1 where the value is not finite. An OR over all elements keeps the loop free of branches, so that it vectorises.
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

template <bool kAdd>
bool Accumulate(const std::byte* src, float* sum, size_t num_elems) {
  uint32_t bad = 0;
  for (size_t i = 0; i < num_elems; ++i) {
    const float value = Load(src, i);
    bad |= NonFinite(value);
    sum[i] = kAdd ? sum[i] + value : value;
  }
  return bad == 0;
}

}  // namespace

bool Assign(std::span<const std::byte> src, std::span<float> sum) {
  return Accumulate<false>(src.data(), sum.data(), sum.size());
}

bool Add(std::span<const std::byte> src, std::span<float> sum) {
  return Accumulate<true>(src.data(), sum.data(), sum.size());
}

}  // namespace gradlane::accumulate
