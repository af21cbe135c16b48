// What FEC does to one element, as integer operations on the bits of an IEEE 754 binary32. The scalar codec, the SIMD
// code and the device kernels share these functions or are tested byte-equal to them.
//
//   dropped    |x| < limit, judged before rounding: just below 2^T is dropped although 2^T is nearest to it. The limit
//   is
//              2^T as published, or, so that a density can be steered finely, 2^T * (1 + m / 2^23): only the encoder
//              knows. Zeros of either sign and denormals lie below every limit. With error feedback what is dropped
//              stays in the residual with all its bits.
//   rounding   nearest: 1.5 * 2^e and above becomes 2^(e+1) (a tie goes away from zero). Truncate: 2^e. Stochastic:
//              2^e * (1 + f) becomes 2^(e+1) with probability f, so that the mean is the value; the draw is a function
//              of the call's seed and the element's position in it.
//   base       the limit, rounded (truncated, if stochastic): the smallest magnitude that can be sent. Its exponent
//   goes
//              into the segment's header; it is T, or T + 1 with nearest rounding and m / 2^23 >= 0.5.
//   code       exponent of the rounded x, less the base's, saturated at 15. What saturation cuts off stays in the
//              residual.
//   decoded    sign * 2^(base + code). Base exponents are -126 .. 112, so this is normal and finite for every code.
//   finite     a value with the exponent field 255 (NaN, infinity) is never coded; see Encode.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GRADLANE_HOST_DEVICE __host__ __device__
#else
#define GRADLANE_HOST_DEVICE
#endif

namespace gradlane::fec {

inline constexpr int kMinBase = -126;  // 2^base is normal
inline constexpr int kMaxBase = 112;   // 2^(base + 15) is finite
inline constexpr uint32_t kMaxCode = 15;

namespace rules {

inline constexpr uint32_t kSignBit = 0x80000000u;
inline constexpr uint32_t kMagnitudeBits = 0x7fffffffu;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;
inline constexpr int kMantissaBits = 23;
inline constexpr uint32_t kMantissaMask = 0x007fffffu;

GRADLANE_HOST_DEVICE constexpr bool ValidBase(int exponent) { return exponent >= kMinBase && exponent <= kMaxBase; }

GRADLANE_HOST_DEVICE constexpr bool IsFinite(uint32_t bits) { return (bits & kMagnitudeBits) < kInfinityBits; }

// The bits of 2^exponent * (1 + mantissa / 2^23).
GRADLANE_HOST_DEVICE constexpr uint32_t FloatBits(int exponent, uint32_t mantissa = 0) {
  return (static_cast<uint32_t>(exponent + 127) << kMantissaBits) + mantissa;
}

// Added to a magnitude before its mantissa is cut off.
GRADLANE_HOST_DEVICE constexpr uint32_t RoundingBits(bool nearest) { return nearest ? 0x00400000u : 0u; }

// The same for stochastic rounding: a uniform draw from 0 .. 2^23 - 1, by the finaliser of MurmurHash3 (Appleby).
GRADLANE_HOST_DEVICE constexpr uint32_t StochasticBits(uint32_t seed, uint32_t position) {
  uint32_t hash = position * 0x9e3779b1u + seed;
  hash = (hash ^ hash >> 16) * 0x85ebca6bu;
  hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
  return (hash ^ hash >> 16) >> (32 - kMantissaBits);
}

GRADLANE_HOST_DEVICE constexpr uint32_t BaseBits(uint32_t limit_bits, uint32_t rounding_bits) {
  return (limit_bits + rounding_bits) & ~kMantissaMask;
}

GRADLANE_HOST_DEVICE constexpr bool Survives(uint32_t bits, uint32_t limit_bits) {
  return (bits & kMagnitudeBits) >= limit_bits;
}

// Of a survivor: 0 .. 15.
GRADLANE_HOST_DEVICE constexpr uint32_t Code(uint32_t bits, uint32_t base_bits, uint32_t rounding_bits) {
  const uint32_t code = ((bits & kMagnitudeBits) + rounding_bits - base_bits) >> kMantissaBits;
  return code < kMaxCode ? code : kMaxCode;
}

GRADLANE_HOST_DEVICE constexpr uint32_t Sign(uint32_t bits) { return bits >> 31; }

GRADLANE_HOST_DEVICE constexpr uint32_t DecodedBits(uint32_t sign, uint32_t code, uint32_t base_bits) {
  return (sign << 31) | (base_bits + (code << kMantissaBits));
}

}  // namespace rules
}  // namespace gradlane::fec
