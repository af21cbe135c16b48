// Reads the directory of a FEC segment, which is hostile: see kernels/FORMAT.md, "What a decoder accepts". Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/fec.h"
#include "kernels/fec_format.h"
#include "kernels/fec_rules.h"

namespace gradlane::fec {

// One directory entry.
struct Entry {
  uint8_t first = 0;
  uint32_t empty_run = 0;  // blocks; the others cover one block
  uint32_t body_bytes = 0;
};

// at: where the entry starts; moved behind it. elems_left: from the entry's first block to the segment's end.
inline DecodeStatus ReadEntry(std::span<const uint8_t> src, size_t& at, size_t elems_left, Entry& entry) {
  if (at >= src.size()) return DecodeStatus::kTruncated;
  entry = {.first = src[at++]};
  if (entry.first < format::kTinyTag) {
    entry.empty_run = entry.first + 1u;
    const size_t blocks_left = (elems_left - 1) / kBlockElems + 1;
    return entry.empty_run <= blocks_left ? DecodeStatus::kOk : DecodeStatus::kBadCount;
  }
  if (entry.first < format::kBodyTag) {
    const uint32_t block_elems = static_cast<uint32_t>(std::min(kBlockElems, elems_left));
    const uint32_t num_survivors = entry.first - format::kTinyTag + 1u;
    if (num_survivors > block_elems) return DecodeStatus::kBadCount;
    entry.body_bytes = format::BitsToBytes(format::TinyBits(block_elems, num_survivors));
    return DecodeStatus::kOk;
  }
  if (at >= src.size()) return DecodeStatus::kTruncated;
  entry.body_bytes = (entry.first & 15u) << 8 | src[at++];
  return DecodeStatus::kOk;
}

// The header: base_bits are those of 2^base.
inline DecodeStatus ReadHeader(std::span<const uint8_t> src, uint32_t& base_bits) {
  if (src.size() < format::kSegmentHeaderBytes) return DecodeStatus::kTruncated;
  const int base = static_cast<int8_t>(src[1]);
  if (src[0] != format::kVersionByte || !rules::ValidBase(base)) return DecodeStatus::kBadVersion;
  base_bits = rules::FloatBits(base);
  return DecodeStatus::kOk;
}

}  // namespace gradlane::fec
