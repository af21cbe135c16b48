// The encoder's inner loops for one instruction set, included once for each by fec_blocks.cc. Byte for byte what
// fec_encode.cc writes; tests/kernels/fec_codec_test.cc compares them on every target.
//
// A block takes three steps. The first, over all elements, is bound by memory: add, compare, one bit an element. The
// second gathers the survivors' positions from the bits and the third, over survivors only, works out symbols, residual
// and bytes; so the cost beyond a plain pass follows the survivors.
#if defined(GRADLANE_KERNELS_FEC_BLOCKS_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADLANE_KERNELS_FEC_BLOCKS_ENCODE_INL_H_
#undef GRADLANE_KERNELS_FEC_BLOCKS_ENCODE_INL_H_
#else
#define GRADLANE_KERNELS_FEC_BLOCKS_ENCODE_INL_H_
#endif

#include "kernels/fec_blocks_bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradlane::fec {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLineElems = 16;  // of a cache line

// The processor's own prefetching stops at the end of each page and while survivors are coded: 2 KiB ahead measured
// best of 1 to 16 (gradlane-perf codec). Past the end of the tensor it does no harm.
HWY_INLINE void PrefetchAhead(const float* at) {
  constexpr uintptr_t kAheadBytes = 2048;
  hwy::Prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + kAheadBytes));
}

// Step one of a whole number of words. Returns the largest magnitude's bits, as a signed number: NaN and infinity are
// above all others. present: one word for each 64 elements; nonzero: a bit for each word of present.
template <bool kFeedback>
HWY_INLINE int32_t MarkSurvivors(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, float* HWY_RESTRICT undo,
                                 size_t num_words, uint32_t limit_bits, uint64_t* HWY_RESTRICT present,
                                 uint64_t& nonzero) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const auto limit = hn::BitCast(d, hn::Set(di, static_cast<int32_t>(limit_bits)));
  auto largest = hn::Zero(di);
  nonzero = 0;
  for (size_t w = 0; w < num_words; ++w) {
    uint64_t word = 0;
    for (size_t i = 0; i < kWordElems; i += kLineElems) {
      PrefetchAhead(grad + w * kWordElems + i);
      if constexpr (kFeedback) PrefetchAhead(residual + w * kWordElems + i);
    }
    for (size_t i = 0; i < kWordElems; i += kLanes) {
      const size_t at = w * kWordElems + i;
      auto value = hn::LoadU(d, grad + at);
      if constexpr (kFeedback) {
        const auto before = hn::LoadU(d, residual + at);
        hn::StoreU(before, d, undo + at);
        value = hn::Add(before, value);
        hn::StoreU(value, d, residual + at);
      }
      const auto magnitude = hn::Abs(value);
      largest = hn::Max(largest, hn::BitCast(di, magnitude));
      word |= MaskBits(d, hn::Ge(magnitude, limit)) << i;
    }
    present[w] = word;
    nonzero |= static_cast<uint64_t>(word != 0) << w;
  }
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

// The same for what is left behind the last whole word; its bits are those of word 0.
template <bool kFeedback>
HWY_INLINE int32_t MarkTail(const float* grad, float* residual, float* undo, size_t num_elems, uint32_t limit_bits,
                            uint64_t* present, uint64_t& nonzero) {
  float padded_grad[kWordElems] = {}, padded_residual[kWordElems] = {}, padded_undo[kWordElems];
  std::copy_n(grad, num_elems, padded_grad);
  if constexpr (kFeedback) std::copy_n(residual, num_elems, padded_residual);
  const int32_t largest =
      MarkSurvivors<kFeedback>(padded_grad, padded_residual, padded_undo, 1, limit_bits, present, nonzero);
  if constexpr (kFeedback) {
    std::copy_n(padded_residual, num_elems, residual);
    std::copy_n(padded_undo, num_elems, undo);
  }
  return largest;
}

// One block's working memory, on the stack.
struct EncodeBlock : BlockSums {
  uint64_t present[kBlockElems / kWordElems];
  // Of the survivors. position[0] is -1 for the first one's gap, so survivor i's is at i + 1.
  uint32_t position[1 + kBlockElems + kSlackElems];
  uint32_t field[kBlockElems + kSlackElems];  // low bits of the gap, and the sign above them
  uint32_t high[kBlockElems + kSlackElems];   // the gap's other bits
  uint8_t code[kBlockElems + kSlackElems];
  uint64_t sign[kBlockElems / kWordElems + 1];
  uint64_t exceptional[kBlockElems / kWordElems + 1];  // a bit for each survivor: its code is above 0
  // Of the exceptions, once GatherExceptions ran: which survivors they are, from 1 on, as in position.
  uint32_t exception[1 + kBlockElems + kSlackElems];

  uint32_t Gap(uint32_t i) const { return position[i + 1] - position[i] - 1; }
  uint32_t ExceptionGap(uint32_t i) const { return exception[i + 1] - exception[i] - 1; }
};

HWY_INLINE void GatherPositions(EncodeBlock& block, uint64_t nonzero) {
  block.position[0] = ~0u;
  uint32_t* out = block.position + 1;
  for (; nonzero != 0; nonzero &= nonzero - 1) {
    const uint32_t w = static_cast<uint32_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(nonzero));
    out = PutOnes(block.present[w], w * static_cast<uint32_t>(kWordElems), out);
  }
  block.num_survivors = static_cast<uint32_t>(out - block.position - 1);
}

// Step three: symbols, residual, sums. The survivors' values lie in the residual, or without one in the gradient.
template <bool kFeedback>
HWY_INLINE void CodeSurvivors(const float* HWY_RESTRICT grad, float* HWY_RESTRICT residual, uint32_t first_elem,
                              const Rule& rule, EncodeBlock& block) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const uint32_t k = block.num_survivors;
  const uint32_t shift = format::GapShift(block.num_elems, k);
  // Lanes behind the last survivor repeat it: they scatter what it does, and count for nothing.
  std::fill_n(block.position + 1 + k, kLanes, block.position[k]);
  std::fill_n(block.sign, k / kWordElems + 1, 0u);
  std::fill_n(block.exceptional, k / kWordElems + 1, 0u);

  const auto base = hn::Set(du, rule.base_bits);
  const auto low_mask = hn::Set(du, (1u << shift) - 1);
  const auto one = hn::Set(du, 1);
  auto max_code = hn::Zero(du);
  auto unary_bits = hn::Zero(du);
  auto high_sum = hn::Zero(du);
  for (uint32_t i = 0; i < k; i += kLanes) {
    const auto valid = hn::FirstN(du, k - i);
    const auto position = hn::LoadU(du, block.position + 1 + i);
    const auto index = hn::BitCast(di, position);
    const auto value = hn::GatherIndex(d, kFeedback ? residual : grad, index);
    const auto bits = hn::BitCast(du, value);
    const auto magnitude = hn::And(bits, hn::Set(du, rules::kMagnitudeBits));
    auto rounding = hn::Set(du, rule.rounding_bits);
    if (rule.stochastic) rounding = StochasticBits(du, rule.seed, hn::Add(position, hn::Set(du, first_elem)));
    const auto code = hn::Min(hn::ShiftRight<rules::kMantissaBits>(hn::Sub(hn::Add(magnitude, rounding), base)),
                              hn::Set(du, kMaxCode));
    const auto sign = hn::ShiftRight<31>(bits);
    if constexpr (kFeedback) {
      const auto decoded = hn::Or(hn::ShiftLeft<31>(sign), hn::Add(base, hn::ShiftLeft<rules::kMantissaBits>(code)));
      hn::ScatterIndex(hn::Sub(value, hn::BitCast(d, decoded)), d, residual, index);
    }
    const auto gap = hn::Sub(hn::Sub(position, hn::LoadU(du, block.position + i)), one);
    const auto high = hn::IfThenElseZero(valid, hn::ShiftRightSame(gap, static_cast<int>(shift)));
    hn::StoreU(hn::Or(hn::And(gap, low_mask), hn::ShiftLeftSame(sign, static_cast<int>(shift))), du, block.field + i);
    hn::StoreU(high, du, block.high + i);
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, code)), d8, block.code + i);
    block.sign[i / kWordElems] |= MaskBits(du, hn::And(valid, hn::Eq(sign, one))) << (i % kWordElems);
    block.exceptional[i / kWordElems] |= MaskBits(du, hn::And(valid, hn::Ne(code, hn::Zero(du)))) << (i % kWordElems);
    max_code = hn::Max(max_code, code);
    unary_bits = hn::Add(unary_bits, hn::IfThenElseZero(valid, hn::Min(hn::Add(code, one), hn::Set(du, kMaxCode))));
    high_sum = hn::Add(high_sum, high);
  }
  block.max_code = hn::GetLane(hn::MaxOfLanes(du, max_code));
  block.unary_bits = hn::GetLane(hn::SumOfLanes(du, unary_bits));
  block.gap_high_sum = hn::GetLane(hn::SumOfLanes(du, high_sum));
  block.num_exceptions = 0;
  for (uint32_t w = 0; w <= k / kWordElems; ++w) {
    block.num_exceptions += static_cast<uint32_t>(hwy::PopCount(block.exceptional[w]));
  }
}

HWY_INLINE void GatherExceptions(EncodeBlock& block) {
  block.exception[0] = ~0u;
  uint32_t* out = block.exception + 1;
  for (uint32_t first = 0; first < block.num_survivors; first += kWordElems) {
    const uint64_t word = block.exceptional[first / kWordElems];
    if (word != 0) out = PutOnes(word, first, out);
  }
}

// Appends bits; stores eight bytes at a time, so up to eight behind the end are overwritten.
class WideBitWriter {
 public:
  explicit WideBitWriter(uint8_t* out) : out_(out) {}

  // width: 0 .. 56; value < 2^width.
  HWY_INLINE void Put(uint64_t value, uint32_t width) {
    pending_ |= value << num_pending_;
    num_pending_ += width;
    Store();
  }

  // width: 0 .. 64.
  HWY_INLINE void PutWord(uint64_t value, uint32_t width) {
    const uint32_t low = width < 32 ? width : 32;
    Put(value & ((uint64_t{1} << low) - 1), low);
    Put(value >> (width < 32 ? 0 : 32) & (width < 32 ? 0 : ~uint64_t{0}), width - low);
  }

  // For each of zeros: that many bits 0, then one bit 1.
  HWY_INLINE void PutUnary(const uint32_t* zeros, uint32_t count) {
    uint32_t at = num_pending_;
    for (uint32_t i = 0; i < count; ++i) {
      at += zeros[i];
      while (at >= 64) {
        StoreWord();
        out_ += 8;
        pending_ = 0;
        at -= 64;
      }
      pending_ |= uint64_t{1} << at++;
    }
    if (at == 64) {
      StoreWord();
      out_ += 8;
      pending_ = 0;
      at = 0;
    }
    num_pending_ = at;
    Store();
  }

  // Pads with zero bits to a whole byte; returns the end.
  uint8_t* Finish() {
    StoreWord();
    return out_ + (num_pending_ + 7) / 8;
  }

 private:
  HWY_INLINE void StoreWord() { std::memcpy(out_, &pending_, sizeof(pending_)); }
  HWY_INLINE void Store() {
    StoreWord();
    out_ += num_pending_ / 8;
    pending_ >>= num_pending_ & ~7u;
    num_pending_ &= 7;
  }

  uint8_t* out_;
  uint64_t pending_ = 0;
  uint32_t num_pending_ = 0;  // below 8 between calls
};

HWY_INLINE void PutSparsePositions(const EncodeBlock& block, uint32_t shift, WideBitWriter& writer) {
  const uint32_t k = block.num_survivors, width = shift + 1;  // 13 at most, so four fit a word
  const uint32_t* field = block.field;
  uint32_t i = 0;
  for (; i + 4 <= k; i += 4) {
    const uint64_t low = field[i] | uint64_t{field[i + 1]} << width;
    const uint64_t high = field[i + 2] | uint64_t{field[i + 3]} << width;
    writer.Put(low | high << (2 * width), 4 * width);
  }
  for (; i < k; ++i) writer.Put(field[i], width);
  writer.PutUnary(block.high, k);
}

HWY_INLINE void PutSigns(const EncodeBlock& block, WideBitWriter& writer) {
  for (uint32_t i = 0; i < block.num_survivors; i += kWordElems) {
    writer.PutWord(block.sign[i / kWordElems], std::min<uint32_t>(kWordElems, block.num_survivors - i));
  }
}

// From plane `first` on. members: a bit for each survivor that reached the plane before; used up.
HWY_INLINE void PutCodePlanes(const EncodeBlock& block, uint32_t first, uint64_t* members, WideBitWriter& writer) {
  const uint32_t num_words = (block.num_survivors + kWordElems - 1) / kWordElems;
  for (uint32_t plane = first; plane <= block.max_code + 1 && plane <= kMaxCode; ++plane) {
    for (uint32_t w = 0; w < num_words; ++w) {
      if (members[w] == 0) continue;
      const uint64_t reached =
          AtLeastBits(block.code + size_t{w} * kWordElems, static_cast<uint8_t>(plane)) & members[w];
      writer.PutWord(ExtractBits(reached, members[w]), static_cast<uint32_t>(hwy::PopCount(members[w])));
      members[w] = reached;
    }
  }
}

// After GatherExceptions. Uses up block.exceptional.
HWY_INLINE void PutExceptions(EncodeBlock& block, WideBitWriter& writer) {
  const uint32_t count = block.num_exceptions;
  writer.Put(count - 1, format::BitWidth(block.num_survivors - 1));
  const uint32_t shift = format::GapShift(block.num_survivors, count);
  const uint32_t low_mask = (1u << shift) - 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t gap = block.ExceptionGap(i);
    writer.Put(gap & low_mask, shift);
    block.high[i] = gap >> shift;
  }
  writer.PutUnary(block.high, count);
  PutCodePlanes(block, 2, block.exceptional, writer);
}

HWY_INLINE void PutCodes(const EncodeBlock& block, format::Codes codes, WideBitWriter& writer) {
  if (codes == format::Codes::kUnary) {
    uint64_t members[kBlockElems / kWordElems];
    FillOnes(block.num_survivors, members);
    PutCodePlanes(block, 1, members, writer);
  }
  if (codes == format::Codes::kNibble) {
    for (uint32_t i = 0; i < block.num_survivors; ++i) writer.Put(block.code[i], 4);
  }
}

HWY_INLINE void PutRuns(const EncodeBlock& block, WideBitWriter& writer) {
  PutSigns(block, writer);
  for (uint32_t i = 0; i < block.num_survivors; ++i) {
    uint32_t gap = block.Gap(i);
    uint64_t nibbles = 0;
    uint32_t width = 0;
    for (; gap >= 8; gap >>= 3, width += 4) nibbles |= uint64_t{(gap & 7) | 8} << width;
    nibbles |= uint64_t{gap} << width;
    writer.Put(nibbles | uint64_t{block.code[i]} << (width + 4), width + 8);
  }
}

// Overwrites up to eight bytes behind the body. Returns the body's end.
HWY_INLINE uint8_t* WriteBody(EncodeBlock& block, const Plan& plan, uint8_t* out) {
  uint8_t* const end = out + plan.body_bytes;
  if (plan.form == Plan::Form::kTiny) {
    WideBitWriter writer(out);
    PutSparsePositions(block, plan.gap_shift, writer);
    for (uint8_t* at = writer.Finish(); at < end; ++at) *at = 0;
    return end;
  }
  const bool exceptions = plan.kind == format::kExceptionsKind;
  const bool bitmap = !exceptions && (plan.kind & static_cast<uint8_t>(format::Positions::kBitmap));
  if (!bitmap) out = PutCount(block.num_survivors, out);
  WideBitWriter writer(out);
  if (plan.kind == format::kRunsKind) {
    PutRuns(block, writer);
  } else {
    if (bitmap) {
      for (uint32_t i = 0; i < block.num_elems; i += kWordElems) {
        writer.PutWord(block.present[i / kWordElems], std::min<uint32_t>(kWordElems, block.num_elems - i));
      }
      PutSigns(block, writer);
    } else {
      PutSparsePositions(block, plan.gap_shift, writer);
    }
    if (exceptions) {
      PutExceptions(block, writer);
    } else {
      PutCodes(block, static_cast<format::Codes>(plan.kind & 3), writer);
    }
  }
  writer.Finish();
  return end;
}

template <bool kFeedback>
RangeStats EncodeBlocks(const EncodeRange& range) {
  RangeStats stats;
  EncodeBlock block;
  uint8_t* out = range.bodies.data();
  uint8_t* const bodies_end = out + range.bodies.size();
  uint8_t padded[format::kMaxBodyBytes + 16];
  for (size_t first = 0, index = 0; first < range.num_elems; first += kBlockElems, ++index) {
    block.num_elems = static_cast<uint32_t>(std::min(kBlockElems, range.num_elems - first));
    const float* const grad = range.grad + first;
    float* const residual = kFeedback ? range.residual + first : nullptr;
    float* const undo = kFeedback ? range.undo + first : nullptr;
    const size_t num_words = block.num_elems / kWordElems, tail_at = num_words * kWordElems;
    uint64_t nonzero;
    int32_t largest =
        MarkSurvivors<kFeedback>(grad, residual, undo, num_words, range.rule.limit_bits, block.present, nonzero);
    if (tail_at < block.num_elems) {
      uint64_t tail_nonzero;
      largest = std::max(largest, MarkTail<kFeedback>(grad + tail_at, residual + (kFeedback ? tail_at : 0),
                                                      undo + (kFeedback ? tail_at : 0), block.num_elems - tail_at,
                                                      range.rule.limit_bits, block.present + num_words, tail_nonzero));
      nonzero |= tail_nonzero << num_words;
    }
    stats.elems_changed = first + block.num_elems;
    if (largest >= static_cast<int32_t>(rules::kInfinityBits)) {
      stats.finite = false;
      return stats;
    }
    BlockEntry& entry = range.entries[index];
    entry = {};
    if (nonzero == 0) continue;
    GatherPositions(block, nonzero);
    CodeSurvivors<kFeedback>(grad, residual, range.first_elem + static_cast<uint32_t>(first), range.rule, block);
    const Plan plan = ChoosePlan(
        block, range.layout,
        [&block] {
          uint32_t nibbles = 0;
          for (uint32_t i = 0; i < block.num_survivors; ++i) nibbles += GapNibbles(block.Gap(i));
          return nibbles;
        },
        [&block](uint32_t shift) {
          GatherExceptions(block);
          uint32_t sum = 0;
          for (uint32_t i = 0; i < block.num_exceptions; ++i) sum += block.ExceptionGap(i) >> shift;
          return sum;
        });
    entry.form = plan.form;
    entry.kind = plan.kind;
    entry.body_bytes = static_cast<uint16_t>(plan.body_bytes);
    entry.num_survivors = static_cast<uint16_t>(block.num_survivors);
    if (static_cast<size_t>(bodies_end - out) >= plan.body_bytes + sizeof(uint64_t)) {
      out = WriteBody(block, plan, out);
    } else {
      WriteBody(block, plan, padded);
      out = std::copy_n(padded, plan.body_bytes, out);
    }
    stats.survivors += block.num_survivors;
  }
  stats.body_bytes = static_cast<size_t>(out - range.bodies.data());
  return stats;
}

inline RangeStats Encode(const EncodeRange& range) {
  return range.residual != nullptr ? EncodeBlocks<true>(range) : EncodeBlocks<false>(range);
}

}  // namespace HWY_NAMESPACE
}  // namespace gradlane::fec
HWY_AFTER_NAMESPACE();

#endif
