// What every FEC encoder decides alike, so that all write the same bytes: the integers that a call's Params become, how
// a block is written, and the directory. Pure. See kernels/FORMAT.md, "What an encoder sends".
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/fec.h"
#include "kernels/fec_format.h"
#include "kernels/fec_rules.h"

namespace gradlane::fec {

struct Rule {
  uint32_t limit_bits = 0;
  uint32_t rounding_bits = 0;  // of nearest and truncate
  uint32_t base_bits = 0;
  bool stochastic = false;
  uint32_t seed = 0;  // of stochastic

  // For element i of the call.
  uint32_t RoundingBitsAt(uint32_t i) const { return stochastic ? rules::StochasticBits(seed, i) : rounding_bits; }
};

inline Rule MakeRule(const Params& params) {
  GRADLANE_KERNELS_CHECK(params.threshold_exponent >= kMinBase && params.threshold_exponent <= kMaxBase);
  GRADLANE_KERNELS_CHECK(params.threshold_mantissa <= rules::kMantissaMask);
  Rule rule;
  rule.limit_bits = rules::FloatBits(params.threshold_exponent, params.threshold_mantissa);
  rule.rounding_bits = rules::RoundingBits(params.rounding == Rounding::kNearest);
  rule.base_bits = rules::BaseBits(rule.limit_bits, rule.rounding_bits);
  rule.stochastic = params.rounding == Rounding::kStochastic;
  rule.seed = params.rounding_seed;
  GRADLANE_KERNELS_CHECK(rule.base_bits <= rules::FloatBits(kMaxBase));
  return rule;
}

// The sums over one block's survivors that the sizes of the layouts follow from.
struct BlockSums {
  uint32_t num_elems = 0;
  uint32_t num_survivors = 0;
  uint32_t max_code = 0;
  uint32_t unary_bits = 0;      // of the codes
  uint32_t num_exceptions = 0;  // survivors with a code above 0
  uint32_t gap_high_sum = 0;    // of gap >> GapShift(num_elems, num_survivors)
};

// How a block is written.
struct Plan {
  enum class Form : uint8_t { kEmpty, kTiny, kBody } form = Form::kEmpty;
  uint8_t kind = 0;  // of kBody
  uint32_t body_bytes = 0;
  uint32_t gap_shift = 0;  // of kTiny and of the sparse kinds
};

inline uint32_t GapNibbles(uint32_t gap) { return gap < 8 ? 1 : (static_cast<uint32_t>(std::bit_width(gap)) + 2) / 3; }

// gap_nibbles: the sum of GapNibbles over the survivors.
inline uint32_t RunsBytes(uint32_t num_survivors, uint32_t gap_nibbles) {
  return format::CountBytes(num_survivors) + format::BitsToBytes(num_survivors + 4 * (num_survivors + gap_nibbles));
}

// The fewest bytes, directory entry included; of equals the first in this order: tiny, bitmap, sparse, runs.
// count_gap_nibbles() and count_exception_highs(shift), the sum of gap >> shift over the exceptions, whose gaps are
// counted in survivors, are asked only when they matter.
template <typename CountGapNibbles, typename CountExceptionHighs>
Plan ChoosePlan(const BlockSums& block, Layout layout, CountGapNibbles&& count_gap_nibbles,
                CountExceptionHighs&& count_exception_highs) {
  using enum Plan::Form;
  using format::Codes;
  using format::Positions;
  const uint32_t num_elems = block.num_elems, num_survivors = block.num_survivors;
  if (num_survivors == 0) return {.form = kEmpty};
  if (layout == Layout::kRuns) {
    const uint32_t runs_bytes = RunsBytes(num_survivors, count_gap_nibbles());
    if (runs_bytes <= format::LargestBodyBytes(num_elems)) {
      return {.form = kBody, .kind = format::kRunsKind, .body_bytes = runs_bytes};
    }
  }
  uint32_t code_bits = 0;
  Codes codes = Codes::kZero;
  if (block.max_code > 0) {
    codes = block.unary_bits <= 4 * num_survivors ? Codes::kUnary : Codes::kNibble;
    code_bits = codes == Codes::kUnary ? block.unary_bits : 4 * num_survivors;
  }
  Plan best = {.form = kBody,
               .kind = static_cast<uint8_t>(static_cast<uint8_t>(Positions::kBitmap) | static_cast<uint8_t>(codes)),
               .body_bytes = format::BitsToBytes(num_elems + num_survivors + code_bits)};

  const uint32_t shift = format::GapShift(num_elems, num_survivors);
  uint8_t sparse_kind = static_cast<uint8_t>(static_cast<uint8_t>(Positions::kSparse) | static_cast<uint8_t>(codes));
  if (block.max_code > 0) {
    const uint32_t exceptions_shift = format::GapShift(num_survivors, block.num_exceptions);
    uint32_t exceptions_bits = format::BitWidth(num_survivors - 1) + block.num_exceptions * (exceptions_shift + 1) +
                               block.unary_bits - num_survivors;
    if (exceptions_bits < code_bits) exceptions_bits += count_exception_highs(exceptions_shift);
    if (exceptions_bits < code_bits) {
      code_bits = exceptions_bits;
      sparse_kind = format::kExceptionsKind;
    }
  }
  const uint32_t sparse_bits = num_survivors * (shift + 2) + block.gap_high_sum + code_bits;
  const uint32_t sparse_bytes = format::CountBytes(num_survivors) + format::BitsToBytes(sparse_bits);
  if (sparse_bytes < best.body_bytes) {
    best = {.form = kBody, .kind = sparse_kind, .body_bytes = sparse_bytes, .gap_shift = shift};
  }
  if (RunsBytes(num_survivors, num_survivors) < best.body_bytes) {
    const uint32_t runs_bytes = RunsBytes(num_survivors, count_gap_nibbles());
    if (runs_bytes < best.body_bytes) best = {.form = kBody, .kind = format::kRunsKind, .body_bytes = runs_bytes};
  }
  if (num_survivors <= format::kMaxTinySurvivors && block.max_code == 0) {
    const uint32_t tiny_bytes = format::BitsToBytes(format::TinyBits(num_elems, num_survivors));
    if (1 + tiny_bytes <= 2 + best.body_bytes) best = {.form = kTiny, .body_bytes = tiny_bytes, .gap_shift = shift};
  }
  return best;
}

inline uint8_t* PutCount(uint32_t num_survivors, uint8_t* out) {
  const uint32_t value = num_survivors - 1;
  if (value < 128) {
    *out++ = static_cast<uint8_t>(value);
  } else {
    *out++ = static_cast<uint8_t>(value | 0x80);
    *out++ = static_cast<uint8_t>(value >> 7);
  }
  return out;
}

// Appends directory entries; joins empty blocks.
class DirectoryWriter {
 public:
  explicit DirectoryWriter(uint8_t* out) : out_(out) {}

  void Add(const Plan& plan, uint32_t num_survivors) {
    if (plan.form == Plan::Form::kEmpty) {
      if (++empty_run_ == format::kMaxEmptyRun) FlushEmptyRun();
      return;
    }
    FlushEmptyRun();
    if (plan.form == Plan::Form::kTiny) {
      *out_++ = static_cast<uint8_t>(format::kTinyTag + num_survivors - 1);
    } else {
      *out_++ = static_cast<uint8_t>(format::kBodyTag | plan.kind << 4 | plan.body_bytes >> 8);
      *out_++ = static_cast<uint8_t>(plan.body_bytes);
    }
  }

  uint8_t* Finish() {
    FlushEmptyRun();
    return out_;
  }

 private:
  void FlushEmptyRun() {
    if (empty_run_ > 0) *out_++ = static_cast<uint8_t>(empty_run_ - 1);
    empty_run_ = 0;
  }

  uint8_t* out_;
  size_t empty_run_ = 0;
};

// The segment's header.
inline uint8_t* PutHeader(uint32_t base_bits, uint8_t* out) {
  *out++ = format::kVersionByte;
  *out++ = static_cast<uint8_t>((base_bits >> rules::kMantissaBits) - 127);
  return out;
}

}  // namespace gradlane::fec
