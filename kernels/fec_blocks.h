// The inner loops of fec::Codec over a range of whole blocks, one set of functions for each instruction set. Internal
// to kernels/: nothing here checks its arguments or owns memory. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fec.h"
#include "kernels/fec_plan.h"

namespace gradlane::fec {

// Bodies are written eight bytes at a time, and vectors read and written whole: what a buffer holds behind its last
// element. The codec's own buffers have it, a caller's need not.
inline constexpr size_t kSlackElems = 64;

// One block, as the directory will tell or told of it.
struct BlockEntry {
  uint32_t body_at = 0;  // decoding: where the body starts in the segment
  uint16_t body_bytes = 0;
  uint16_t num_survivors = 0;  // encoding; decoding: of a tiny block only
  Plan::Form form = Plan::Form::kEmpty;
  uint8_t kind = 0;
};

struct EncodeRange {
  const float* grad = nullptr;
  float* residual = nullptr;  // or null
  float* undo = nullptr;      // receives the residual as it was; not null with a residual
  size_t num_elems = 0;       // a whole number of blocks, unless it is the call's end
  uint32_t first_elem = 0;    // of the range in the call
  Rule rule;
  Layout layout = Layout::kSmallest;
  BlockEntry* entries = nullptr;  // one for each block: written
  std::span<uint8_t> bodies;      // LargestBodyBytes for each block: written from the front
};

struct RangeStats {
  bool finite = true;        // false: it ended at the first block that is not
  size_t elems_changed = 0;  // of the residual, from the front
  size_t body_bytes = 0;
  size_t survivors = 0;
};

// Room for what was decoded and checked but not written yet. position and bits: kCapacity + kBlockElems + kSlackElems.
struct Survivors {
  static constexpr size_t kCapacity = 16384;
  static constexpr size_t kElems = kCapacity + kBlockElems + kSlackElems;
  uint32_t* position = nullptr;  // in the range
  float* value = nullptr;
};

struct DecodeRange {
  std::span<const uint8_t> src;  // the segment
  const BlockEntry* entries = nullptr;
  uint32_t base_bits = 0;
  std::span<float> dst;  // of the range
  Survivors survivors;
  // What Check leaves for Apply: that many blocks' survivors are kept, and need not be decoded again.
  size_t kept_blocks = 0;
  size_t kept_survivors = 0;
};

struct BlockKernels {
  RangeStats (*encode)(const EncodeRange& range);
  // Whether every block holds together; writes nothing to dst.
  DecodeStatus (*check)(DecodeRange& range);
  // After check. Not kOk only when src was changed in between; then dst is partly written.
  DecodeStatus (*assign)(const DecodeRange& range);
  DecodeStatus (*add)(const DecodeRange& range);
};

struct BlockTarget {
  const char* name;  // as Highway calls it: "AVX3_DL", "AVX3", "AVX2", "SSE4", "SSSE3", "SCALAR"
  const BlockKernels* kernels;
};

// What this processor runs, the best first. Made once; the first call may come from any thread.
const std::vector<BlockTarget>& BlockTargets();

}  // namespace gradlane::fec
