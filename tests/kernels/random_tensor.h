// Tensors for the tests of kernels/, the same on every run and machine.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "kernels/fec.h"

namespace gradlane {

inline std::vector<float> Gaussian(size_t num_elems, float sigma, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(num_elems);
  auto uniform = [&random] { return (static_cast<double>(random()) + 0.5) / 4294967296.0; };
  for (float& value : values) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = static_cast<float>(sigma * radius * std::cos(6.283185307179586 * uniform()));
  }
  return values;
}

// Any finite bits: denormals, zeros of both signs, everything up to the largest float.
inline std::vector<float> AnyFinite(size_t num_elems, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(num_elems);
  for (float& value : values) {
    uint32_t bits = random();
    if (random() % 16 == 0) bits &= 0x807fffffu;
    if (random() % 16 == 0) bits &= 0x80000000u;
    if ((bits & 0x7f800000u) == 0x7f800000u) bits ^= 0x40000000u;
    value = std::bit_cast<float>(bits);
  }
  return values;
}

inline std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}

struct Encoded {
  std::vector<std::byte> bytes;
  fec::EncodeStats stats;
};

// dst is exactly Bound(N) bytes on the heap, so that a sanitizer sees a byte too many.
inline Encoded EncodeAll(std::span<const float> grad, std::span<float> residual, const fec::Params& params) {
  Encoded encoded;
  encoded.bytes.resize(fec::Bound(grad.size()));
  encoded.stats = fec::Encode(grad, residual, params, encoded.bytes);
  encoded.bytes.resize(encoded.stats.bytes);
  encoded.bytes.shrink_to_fit();
  return encoded;
}

}  // namespace gradlane
