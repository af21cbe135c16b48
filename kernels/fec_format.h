// The numbers of kernels/FORMAT.md that encoder and decoder share, host and device.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/fec.h"
#include "kernels/fec_rules.h"

namespace gradlane::fec::format {

inline constexpr uint8_t kVersionByte = 0xf1;
inline constexpr size_t kSegmentHeaderBytes = 2;
inline constexpr size_t kMaxEntryBytes = 2;
inline constexpr size_t kMaxEmptyRun = 64;
inline constexpr size_t kMaxTinySurvivors = 64;
inline constexpr size_t kMaxBodyBytes = 0xfff;

// First byte of a directory entry.
inline constexpr uint8_t kTinyTag = 0x40;  // below it: a run of empty blocks
inline constexpr uint8_t kBodyTag = 0x80;

enum class Positions : uint8_t { kSparse = 0, kBitmap = 4 };
enum class Codes : uint8_t { kZero = 0, kUnary = 1, kNibble = 2 };
inline constexpr uint8_t kRunsKind = 3;
inline constexpr uint8_t kExceptionsKind = 7;  // sparse positions; only what has a code above 0 is listed with one

GRADLANE_HOST_DEVICE constexpr uint32_t BitWidth(uint32_t value) {
#if defined(__CUDA_ARCH__)
  return 32 - static_cast<uint32_t>(__clz(static_cast<int>(value)));
#else
  return static_cast<uint32_t>(std::bit_width(value));
#endif
}

// Bits of a gap that are stored as they are; the rest is unary. The smallest s with num_survivors * 2^(s+1) >= the
// elements between the survivors: within 0.05 bits a survivor of the best Rice code when the gaps are geometric.
// num_survivors: 1 .. block_elems.
GRADLANE_HOST_DEVICE constexpr uint32_t GapShift(uint32_t block_elems, uint32_t num_survivors) {
  if (block_elems - num_survivors <= 2 * num_survivors) return 0;
  const uint32_t last = block_elems - num_survivors - 1;
  const uint32_t shift = BitWidth(last) - BitWidth(num_survivors);  // 1 or more; one too many at most
  return num_survivors << shift > last ? shift - 1 : shift;
}

// Bits of a tiny body: its gap stream is padded to the longest that fits the block, so that its size follows from the
// count.
GRADLANE_HOST_DEVICE constexpr uint32_t TinyBits(uint32_t block_elems, uint32_t num_survivors) {
  const uint32_t shift = GapShift(block_elems, num_survivors);
  return num_survivors * (shift + 2) + ((block_elems - num_survivors) >> shift);
}

GRADLANE_HOST_DEVICE constexpr uint32_t BitsToBytes(uint32_t bits) { return (bits + 7) / 8; }

GRADLANE_HOST_DEVICE constexpr uint32_t CountBytes(uint32_t num_survivors) { return num_survivors <= 128 ? 1 : 2; }

// The largest body that an encoder makes: a bitmap, and a sign and a 4-bit code for each element.
GRADLANE_HOST_DEVICE constexpr uint32_t LargestBodyBytes(uint32_t block_elems) { return BitsToBytes(block_elems * 6); }

static_assert(LargestBodyBytes(kBlockElems) <= kMaxBodyBytes);

}  // namespace gradlane::fec::format
