// The scalar encoder: the reading version of kernels/FORMAT.md, and the oracle of faster ones.
//
// Two passes over the segment. The first only asks whether every value is finite, so that a NaN in the last block
// leaves the residual of the first untouched; the second does the work, block by block, with a block's symbols on the
// stack.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/bit_io.h"
#include "kernels/check.h"
#include "kernels/fec.h"
#include "kernels/fec_format.h"
#include "kernels/fec_plan.h"
#include "kernels/fec_rules.h"

namespace gradlane::fec {
namespace {

using format::Codes;
using format::Positions;

constexpr size_t kWordElems = 64;

// What is left of one block: its survivors in order.
struct Block : BlockSums {
  uint64_t present[kBlockElems / kWordElems];
  uint16_t gap[kBlockElems];  // elements dropped between the one before and this one
  uint8_t sign[kBlockElems];
  uint8_t code[kBlockElems];
};

bool AllFinite(std::span<const float> grad, std::span<const float> residual) {
  constexpr int32_t kLargestFinite = static_cast<int32_t>(rules::kInfinityBits) - 1;
  int32_t negative_if_not = 0;
  auto look = [&negative_if_not](float value) {
    negative_if_not |= kLargestFinite - static_cast<int32_t>(std::bit_cast<uint32_t>(value) & rules::kMagnitudeBits);
  };
  if (residual.empty()) {
    for (size_t i = 0; i < grad.size(); ++i) look(grad[i]);
  } else {
    for (size_t i = 0; i < grad.size(); ++i) look(grad[i] + residual[i]);
  }
  return negative_if_not >= 0;
}

// Bit i: value i survives. values: (64,).
uint64_t SurvivorMask(const float* values, uint32_t limit_bits) {
  uint8_t survives[kWordElems];
  for (size_t i = 0; i < kWordElems; ++i) {
    const auto magnitude = static_cast<int32_t>(std::bit_cast<uint32_t>(values[i]) & rules::kMagnitudeBits);
    survives[i] = magnitude >= static_cast<int32_t>(limit_bits);
  }
  uint64_t mask = 0;
  for (size_t i = 0; i < kWordElems; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, survives + i, sizeof(eight));
    mask |= (eight * 0x0102040810204080u >> 56) << i;  // byte j, 0 or 1, to bit j
  }
  return mask;
}

// grad: the block's, which starts at element `first` of the call. residual: the block's, or null; receives what is not
// sent.
void CollectSurvivors(const float* grad, float* residual, uint32_t first, const Rule& rule, Block& block) {
  block.num_survivors = 0;
  block.max_code = 0;
  block.unary_bits = 0;
  block.num_exceptions = 0;
  block.gap_high_sum = 0;
  uint32_t next = 0;  // the first element after the last survivor
  for (uint32_t base = 0; base < block.num_elems; base += kWordElems) {
    const uint32_t num_elems = std::min<uint32_t>(kWordElems, block.num_elems - base);
    const float* values = grad + base;
    if (residual != nullptr) {
      float* sums = residual + base;
      for (uint32_t i = 0; i < num_elems; ++i) sums[i] += grad[base + i];
      values = sums;
    }
    float padded[kWordElems];
    if (num_elems < kWordElems) {
      std::fill(std::copy(values, values + num_elems, padded), padded + kWordElems, 0.0f);
      values = padded;
    }
    uint64_t mask = SurvivorMask(values, rule.limit_bits);
    block.present[base / kWordElems] = mask;
    for (; mask != 0; mask &= mask - 1) {
      const uint32_t i = static_cast<uint32_t>(std::countr_zero(mask));
      const float value = values[i];
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      const uint32_t code = rules::Code(bits, rule.base_bits, rule.RoundingBitsAt(first + base + i));
      const uint32_t sign = rules::Sign(bits);
      const uint32_t slot = block.num_survivors++;
      block.gap[slot] = static_cast<uint16_t>(base + i - next);
      block.sign[slot] = static_cast<uint8_t>(sign);
      block.code[slot] = static_cast<uint8_t>(code);
      block.max_code = std::max(block.max_code, code);
      block.unary_bits += std::min(code + 1, kMaxCode);
      block.num_exceptions += code > 0;
      next = base + i + 1;
      if (residual != nullptr) {
        residual[base + i] = value - std::bit_cast<float>(rules::DecodedBits(sign, code, rule.base_bits));
      }
    }
  }
  if (block.num_survivors == 0) return;
  const uint32_t shift = format::GapShift(block.num_elems, block.num_survivors);
  for (uint32_t i = 0; i < block.num_survivors; ++i) block.gap_high_sum += block.gap[i] >> shift;
}

uint32_t CountGapNibbles(const Block& block) {
  uint32_t nibbles = 0;
  for (uint32_t i = 0; i < block.num_survivors; ++i) nibbles += GapNibbles(block.gap[i]);
  return nibbles;
}

// visit(gap) for each exception: how many survivors without a code above 0 lie between the one before and it.
template <typename Visit>
void ForEachExceptionGap(const Block& block, Visit&& visit) {
  uint32_t next = 0;
  for (uint32_t i = 0; i < block.num_survivors; ++i) {
    if (block.code[i] == 0) continue;
    visit(i - next);
    next = i + 1;
  }
}

uint32_t CountExceptionHighs(const Block& block, uint32_t shift) {
  uint32_t sum = 0;
  ForEachExceptionGap(block, [&sum, shift](uint32_t gap) { sum += gap >> shift; });
  return sum;
}

void PutSparsePositions(const Block& block, uint32_t shift, BitWriter& writer) {
  const uint32_t low_mask = (1u << shift) - 1;
  for (uint32_t i = 0; i < block.num_survivors; ++i) {
    writer.Put((block.gap[i] & low_mask) | (static_cast<uint32_t>(block.sign[i]) << shift), shift + 1);
  }
  for (uint32_t i = 0; i < block.num_survivors; ++i) writer.PutUnary(block.gap[i] >> shift);
}

void PutSigns(const Block& block, BitWriter& writer) {
  for (uint32_t i = 0; i < block.num_survivors; ++i) writer.Put(block.sign[i], 1);
}

void PutBitmap(const Block& block, BitWriter& writer) {
  for (uint32_t base = 0; base < block.num_elems; base += 32) {
    const uint64_t word = block.present[base / kWordElems] >> (base % kWordElems);
    writer.Put(static_cast<uint32_t>(word), std::min<uint32_t>(32, block.num_elems - base));
  }
}

// Plane j holds a bit for each survivor whose code is at least j - 1: whether it is at least j.
// write_first: plane 1 is written as well.
void PutCodePlanes(Block& block, bool write_first, BitWriter& writer) {
  uint32_t num_members = block.num_survivors;
  for (uint32_t plane = 1; plane <= kMaxCode && num_members > 0; ++plane) {
    uint32_t num_kept = 0;
    for (uint32_t i = 0; i < num_members; ++i) {
      const uint8_t code = block.code[i];
      const bool reaches = code >= plane;
      if (plane > 1 || write_first) writer.Put(reaches, 1);
      block.code[num_kept] = code;
      num_kept += reaches;
    }
    num_members = num_kept;
  }
}

void PutExceptions(Block& block, BitWriter& writer) {
  writer.Put(block.num_exceptions - 1, format::BitWidth(block.num_survivors - 1));
  const uint32_t shift = format::GapShift(block.num_survivors, block.num_exceptions);
  const uint32_t low_mask = (1u << shift) - 1;
  ForEachExceptionGap(block, [&](uint32_t gap) { writer.Put(gap & low_mask, shift); });
  ForEachExceptionGap(block, [&](uint32_t gap) { writer.PutUnary(gap >> shift); });
  PutCodePlanes(block, /*write_first=*/false, writer);
}

void PutCodes(Block& block, Codes codes, BitWriter& writer) {
  if (codes == Codes::kUnary) PutCodePlanes(block, /*write_first=*/true, writer);
  if (codes == Codes::kNibble) {
    for (uint32_t i = 0; i < block.num_survivors; ++i) writer.Put(block.code[i], 4);
  }
}

void PutRuns(const Block& block, BitWriter& writer) {
  PutSigns(block, writer);
  for (uint32_t i = 0; i < block.num_survivors; ++i) {
    uint32_t gap = block.gap[i];
    for (; gap >= 8; gap >>= 3) writer.Put((gap & 7) | 8, 4);
    writer.Put(gap, 4);
    writer.Put(block.code[i], 4);
  }
}

// Uses up block.code. Returns the body's end.
uint8_t* WriteBody(Block& block, const Plan& plan, uint8_t* out) {
  if (plan.form == Plan::Form::kTiny) {
    uint8_t* const end = out + plan.body_bytes;
    BitWriter writer(out);
    PutSparsePositions(block, plan.gap_shift, writer);
    std::fill(writer.Finish(), end, uint8_t{0});
    return end;
  }
  const bool bitmap = plan.kind != format::kExceptionsKind && (plan.kind & static_cast<uint8_t>(Positions::kBitmap));
  if (!bitmap) out = PutCount(block.num_survivors, out);
  BitWriter writer(out);
  if (plan.kind == format::kRunsKind) {
    PutRuns(block, writer);
    return writer.Finish();
  }
  if (bitmap) {
    PutBitmap(block, writer);
    PutSigns(block, writer);
  } else {
    PutSparsePositions(block, plan.gap_shift, writer);
  }
  if (plan.kind == format::kExceptionsKind) {
    PutExceptions(block, writer);
  } else {
    PutCodes(block, static_cast<Codes>(plan.kind & 3), writer);
  }
  return writer.Finish();
}

}  // namespace

EncodeStats Encode(std::span<const float> grad, std::span<float> residual, const Params& params,
                   std::span<std::byte> dst) {
  GRADLANE_KERNELS_CHECK(residual.empty() || residual.size() == grad.size());
  GRADLANE_KERNELS_CHECK(dst.size() >= Bound(grad.size()));
  const Rule rule = MakeRule(params);
  EncodeStats stats;
  stats.finite = AllFinite(grad, residual);
  if (!stats.finite) return stats;

  auto* const begin = reinterpret_cast<uint8_t*>(dst.data());
  // Bodies are written behind room for the longest directory, and moved up to it when it turned out shorter.
  const size_t num_blocks = (grad.size() + kBlockElems - 1) / kBlockElems;
  DirectoryWriter directory(PutHeader(rule.base_bits, begin));
  uint8_t* const bodies = begin + format::kSegmentHeaderBytes + num_blocks * format::kMaxEntryBytes;
  uint8_t* out = bodies;
  Block block;
  for (size_t first = 0; first < grad.size(); first += kBlockElems) {
    block.num_elems = static_cast<uint32_t>(std::min(kBlockElems, grad.size() - first));
    CollectSurvivors(grad.data() + first, residual.empty() ? nullptr : residual.data() + first,
                     static_cast<uint32_t>(first), rule, block);
    const Plan plan = ChoosePlan(
        block, params.layout, [&block] { return CountGapNibbles(block); },
        [&block](uint32_t shift) { return CountExceptionHighs(block, shift); });
    directory.Add(plan, block.num_survivors);
    if (plan.form != Plan::Form::kEmpty) out = WriteBody(block, plan, out);
    stats.survivors += block.num_survivors;
  }
  uint8_t* const directory_end = directory.Finish();
  const size_t body_bytes = static_cast<size_t>(out - bodies);
  if (directory_end != bodies && body_bytes > 0) std::memmove(directory_end, bodies, body_bytes);
  stats.bytes = static_cast<size_t>(directory_end - begin) + body_bytes;
  return stats;
}

}  // namespace gradlane::fec
