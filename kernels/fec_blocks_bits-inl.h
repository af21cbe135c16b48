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

// What Highway has no operation for, AVX-512 VBMI and VBMI2 do in one instruction.
#undef GRADLANE_FEC_VBMI
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL
#define GRADLANE_FEC_VBMI 1
#else
#define GRADLANE_FEC_VBMI 0
#endif

#if GRADLANE_FEC_VBMI
alignas(64) constexpr uint8_t kIota[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                           16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                           32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                           48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
#endif

// Appends base + i for each bit i of word, which is not 0, that is 1. Writes up to 15 more: many at a time, as how many
// there are cannot be predicted.
HWY_INLINE uint32_t* PutOnes(uint64_t word, uint32_t base, uint32_t* out) {
  const size_t count = hwy::PopCount(word);
#if GRADLANE_FEC_VBMI
  __m512i ones = _mm512_maskz_compress_epi8(word, _mm512_load_si512(kIota));
  const __m512i bases = _mm512_set1_epi32(static_cast<int>(base));
  for (size_t i = 0;; ones = _mm512_shuffle_i64x2(ones, ones, 0x39)) {
    _mm512_storeu_si512(out + i, _mm512_add_epi32(bases, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(ones))));
    if ((i += 16) >= count) return out + count;
  }
#else
  for (uint32_t* at = out;; at += 4) {
    for (int i = 0; i < 4; ++i) {
      at[i] = base + static_cast<uint32_t>(std::countr_zero(word));
      word &= word - 1;
    }
    if (word == 0) return out + count;
  }
#endif
}

// value[i] becomes start + value[0] + ... + value[i]; up to a vector more is overwritten.
HWY_INLINE void PrefixSum(uint32_t start, uint32_t count, uint32_t* value) {
#if GRADLANE_FEC_VBMI
  const __m512i zero = _mm512_setzero_si512(), last = _mm512_set1_epi32(15);
  __m512i before = _mm512_set1_epi32(static_cast<int>(start));
  for (uint32_t i = 0; i < count; i += 16) {
    __m512i sum = _mm512_loadu_si512(value + i);
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 15));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 14));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 12));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 8));
    _mm512_storeu_si512(value + i, _mm512_add_epi32(sum, before));
    before = _mm512_add_epi32(before, _mm512_permutexvar_epi32(last, sum));
  }
#else
  for (uint32_t i = 0; i < count; ++i) value[i] = start += value[i];
#endif
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
