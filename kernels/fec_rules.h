// What FEC does to one element, as integer operations on the bits of an IEEE 754 binary32. The scalar codec, the SIMD code
// and the device kernels share these functions or are tested byte-equal to them.
//
//   dropped    exponent(x) < threshold, judged before rounding: 1.99 * 2^(T-1) is dropped although 2^T is nearest to it.
//              Zeros of either sign and denormals have the exponent field 0, and 2^T is always normal, so they are dropped.
//              With error feedback what is dropped stays in the residual with all its bits.
//   code       exponent(x) - threshold, after rounding, saturated at 15. What saturation cuts off stays in the residual.
//   rounding   nearest: 1.5 * 2^e and above becomes 2^(e+1) (a tie goes away from zero). Truncate: 2^e.
//   decoded    sign * 2^(threshold + code). Thresholds are -126 .. 112, so this is normal and finite for every code.
//   finite     a value with the exponent field 255 (NaN, infinity) is never coded; see Encode.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GRADLANE_HOST_DEVICE __host__ __device__
#else
#define GRADLANE_HOST_DEVICE
#endif

namespace gradlane::fec {

inline constexpr int kMinThreshold = -126;  // 2^T is normal
inline constexpr int kMaxThreshold = 112;   // 2^(T + 15) is finite
inline constexpr uint32_t kMaxCode = 15;

namespace rules {

inline constexpr uint32_t kSignBit = 0x80000000u;
inline constexpr uint32_t kMagnitudeBits = 0x7fffffffu;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;
inline constexpr int kMantissaBits = 23;

GRADLANE_HOST_DEVICE constexpr bool ValidThreshold(int exponent) {
  return exponent >= kMinThreshold && exponent <= kMaxThreshold;
}

GRADLANE_HOST_DEVICE constexpr bool IsFinite(uint32_t bits) { return (bits & kMagnitudeBits) < kInfinityBits; }

// The bits of 2^threshold: what the other rules take, computed once a call.
GRADLANE_HOST_DEVICE constexpr uint32_t ThresholdBits(int exponent) {
  return static_cast<uint32_t>(exponent + 127) << kMantissaBits;
}

// Added to the magnitude before the mantissa is cut off.
GRADLANE_HOST_DEVICE constexpr uint32_t RoundingBits(bool nearest) { return nearest ? 0x00400000u : 0u; }

GRADLANE_HOST_DEVICE constexpr bool Survives(uint32_t bits, uint32_t threshold_bits) {
  return (bits & kMagnitudeBits) >= threshold_bits;
}

// Of a survivor: 0 .. 15.
GRADLANE_HOST_DEVICE constexpr uint32_t Code(uint32_t bits, uint32_t threshold_bits, uint32_t rounding_bits) {
  const uint32_t code = ((bits & kMagnitudeBits) - threshold_bits + rounding_bits) >> kMantissaBits;
  return code < kMaxCode ? code : kMaxCode;
}

GRADLANE_HOST_DEVICE constexpr uint32_t Sign(uint32_t bits) { return bits >> 31; }

GRADLANE_HOST_DEVICE constexpr uint32_t DecodedBits(uint32_t sign, uint32_t code, uint32_t threshold_bits) {
  return (sign << 31) | (threshold_bits + (code << kMantissaBits));
}

}  // namespace rules
}  // namespace gradlane::fec
