// Masks, words of bits and what goes between them, for one instruction set. Included by
// fec_blocks_{encode,decode}-inl.h.
#if defined(GRADLANE_KERNELS_FEC_BLOCKS_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADLANE_KERNELS_FEC_BLOCKS_BITS_INL_H_
#undef GRADLANE_KERNELS_FEC_BLOCKS_BITS_INL_H_
#else
#define GRADLANE_KERNELS_FEC_BLOCKS_BITS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/fec_rules.h"

HWY_BEFORE_NAMESPACE();
namespace gradlane::fec {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kWordElems = 64;

// Targets from AVX2 on have pext and pdep.
#undef GRADLANE_FEC_BMI2
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2
#define GRADLANE_FEC_BMI2 1
#else
#define GRADLANE_FEC_BMI2 0
#endif

// Bit i: lane i is true.
template <class D, class M>
HWY_INLINE uint64_t MaskBits(D d, M mask) {
  uint64_t bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<uint8_t*>(&bits));
  return bits;
}

// Appends base + i for each bit i of word that is 1. Writes up to 3 more: four at a time, as how many there are cannot
// be predicted.
HWY_INLINE uint32_t* PutOnes(uint64_t word, uint32_t base, uint32_t* out) {
  const size_t count = hwy::PopCount(word);
  for (uint32_t* at = out;; at += 4) {
    for (int i = 0; i < 4; ++i) {
      at[i] = base + static_cast<uint32_t>(std::countr_zero(word));
      word &= word - 1;
    }
    if (word == 0) return out + count;
  }
}

// The lowest `count` bits of words are 1, those up to the end of the last word 0.
HWY_INLINE void FillOnes(uint32_t count, uint64_t* words) {
  uint32_t w = 0;
  for (; (w + 1) * kWordElems <= count; ++w) words[w] = ~uint64_t{0};
  if (count % kWordElems != 0) words[w] = (uint64_t{1} << (count % kWordElems)) - 1;
}

// The bits of word where mask is 1, moved together.
HWY_INLINE uint64_t ExtractBits(uint64_t word, uint64_t mask) {
#if GRADLANE_FEC_BMI2
  return _pext_u64(word, mask);
#else
  if (mask == ~uint64_t{0}) return word;
  uint64_t out = 0;
  for (uint32_t at = 0; mask != 0; mask &= mask - 1, ++at) out |= (word >> std::countr_zero(mask) & 1) << at;
  return out;
#endif
}

// The lowest bits of word, moved to where mask is 1.
HWY_INLINE uint64_t DepositBits(uint64_t word, uint64_t mask) {
#if GRADLANE_FEC_BMI2
  return _pdep_u64(word, mask);
#else
  if (mask == ~uint64_t{0}) return word;
  uint64_t out = 0;
  for (; mask != 0; mask &= mask - 1, word >>= 1) out |= (mask & (~mask + 1)) * (word & 1);
  return out;
#endif
}

// Bit i: codes[i] >= least. codes: (64,).
HWY_INLINE uint64_t AtLeastBits(const uint8_t* codes, uint8_t least) {
  const hn::CappedTag<uint8_t, kWordElems> d;
  const auto bound = hn::Set(d, least);
  uint64_t bits = 0;
  for (size_t i = 0; i < kWordElems; i += hn::MaxLanes(d)) {
    const auto code = hn::LoadU(d, codes + i);
    bits |= MaskBits(d, hn::Eq(hn::Max(code, bound), code)) << i;
  }
  return bits;
}

// rules::StochasticBits of each lane.
template <class D, class V>
HWY_INLINE V StochasticBits(D d, uint32_t seed, V position) {
  auto hash = hn::Add(hn::Mul(position, hn::Set(d, 0x9e3779b1u)), hn::Set(d, seed));
  hash = hn::Mul(hn::Xor(hash, hn::ShiftRight<16>(hash)), hn::Set(d, 0x85ebca6bu));
  hash = hn::Mul(hn::Xor(hash, hn::ShiftRight<13>(hash)), hn::Set(d, 0xc2b2ae35u));
  return hn::ShiftRight<32 - rules::kMantissaBits>(hn::Xor(hash, hn::ShiftRight<16>(hash)));
}

}  // namespace HWY_NAMESPACE
}  // namespace gradlane::fec
HWY_AFTER_NAMESPACE();

#endif
