// The decoder's inner loops for one instruction set, included once for each by fec_blocks.cc. The input is hostile:
// every count, length and position is checked before it is used, and Check looks at all blocks before anything is
// written. It keeps what it decoded, as far as there is room, so that a sparse segment is decoded once; the rest is
// decoded again, with the same checks, since a peer may change the bytes in between.
#if defined(GRADLANE_KERNELS_FEC_BLOCKS_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADLANE_KERNELS_FEC_BLOCKS_DECODE_INL_H_
#undef GRADLANE_KERNELS_FEC_BLOCKS_DECODE_INL_H_
#else
#define GRADLANE_KERNELS_FEC_BLOCKS_DECODE_INL_H_
#endif

#include "kernels/bit_io.h"
#include "kernels/fec_blocks_bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradlane::fec {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// How far behind a body's end is read, what lies there not being used.
constexpr size_t kReadAhead = 32;

// Reads one block. Methods return false when the block does not hold together. position: what is decoded goes here,
// plus `first`; bits: of the decoded floats. Both have room for kBlockElems + kSlackElems.
class BlockReader {
 public:
  BlockReader(BitView body, uint32_t num_elems, uint32_t base_bits, uint32_t first, uint32_t* position, float* value)
      : body_(body), num_elems_(num_elems), base_bits_(base_bits), first_(first), position_(position), value_(value) {}

  // The number of survivors, or nothing.
  bool Read(const BlockEntry& entry, uint32_t& num_survivors) {
    const bool fits = entry.form == Plan::Form::kTiny ? ReadTiny(entry.num_survivors) : ReadBody(entry.kind);
    num_survivors = count_;
    return fits;
  }

 private:
  HWY_INLINE bool ReadTiny(uint32_t num_survivors) {
    count_ = num_survivors;
    return ReadSparsePositions() && body_.ZeroFrom(at_);
  }

  HWY_INLINE bool ReadBody(uint8_t kind) {
    if (kind == format::kRunsKind) return ReadCount() && ReadRuns() && AtEnd();
    if (kind == format::kExceptionsKind) return ReadCount() && ReadSparsePositions() && ReadExceptions() && AtEnd();
    const bool bitmap = kind & static_cast<uint8_t>(format::Positions::kBitmap);
    const bool positions_fit = bitmap ? ReadBitmapPositions() : ReadCount() && ReadSparsePositions();
    return positions_fit && ReadCodes(static_cast<format::Codes>(kind & 3)) && AtEnd();
  }

  HWY_INLINE bool Has(size_t num_bits) const { return body_.num_bits() - at_ >= num_bits; }
  HWY_INLINE bool AtEnd() const { return (at_ + 7) / 8 == body_.num_bytes && body_.ZeroFrom(at_); }

  HWY_INLINE bool ReadCount() {
    if (!Has(8)) return false;
    uint32_t value = body_.data[0];
    at_ = 8;
    if (value >= 128) {
      if (!Has(8)) return false;
      value = (value & 127) | uint32_t{body_.data[1]} << 7;
      at_ = 16;
    }
    count_ = value + 1;
    return count_ <= num_elems_;
  }

  // `count` fields of `width` bits (13 at most), from bit `at` on, into field; up to a vector more.
  HWY_INLINE void UnpackFields(size_t at, uint32_t count, uint32_t width, uint32_t* field) const {
    const uint8_t* data = body_.data + at / 8;
    const uint32_t first_bit = at % 8;
#if GRADLANE_FEC_VBMI
    // 16 fields are a whole number of bytes: every 16 lie at the same bits of their bytes.
    const __m512i bit =
        _mm512_add_epi32(_mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                            _mm512_set1_epi32(static_cast<int>(width))),
                         _mm512_set1_epi32(static_cast<int>(first_bit)));
    const __m512i byte = _mm512_mullo_epi32(_mm512_srli_epi32(bit, 3), _mm512_set1_epi32(0x01010101));
    const __m512i from = _mm512_add_epi8(byte, _mm512_set1_epi32(0x03020100));
    const __m512i shift = _mm512_and_epi32(bit, _mm512_set1_epi32(7));
    const __m512i mask = _mm512_set1_epi32((1 << width) - 1);
    for (uint32_t i = 0; i < count; i += 16, data += 2 * width) {
      const __m512i bytes = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
      const __m512i words = _mm512_permutexvar_epi8(from, bytes);
      _mm512_storeu_si512(field + i, _mm512_and_epi32(_mm512_srlv_epi32(words, shift), mask));
    }
#else
    const uint32_t mask = (1u << width) - 1;
    for (uint32_t i = 0; i < count; i += 4) {
      const size_t bit = first_bit + size_t{i} * width;
      uint64_t word;
      std::memcpy(&word, data + bit / 8, sizeof(word));
      word >>= bit % 8;
      for (uint32_t j = 0; j < 4; ++j) field[i + j] = static_cast<uint32_t>(word >> (j * width)) & mask;
    }
#endif
  }

  // `count` ascending places below num_places, coded by their gaps: fields of the gaps' low bits, with a sign above
  // them if kSigned, then the gaps' high bits in unary. place: receives them, plus first. Their signs go into value_.
  template <bool kSigned>
  HWY_INLINE bool ReadAscending(uint32_t count, uint32_t num_places, uint32_t first, uint32_t* place) {
    const uint32_t shift = format::GapShift(num_places, count);
    const uint32_t width = shift + (kSigned ? 1 : 0);
    if (!Has(size_t{count} * width)) return false;
    const size_t gaps_at = at_ + size_t{count} * width;
    // The ones of the unary stream; place holds them for now.
    uint32_t num_ones = 0;
    for (size_t base = gaps_at; num_ones < count; base += BitView::kWindowBits) {
      if (base >= body_.num_bits()) return false;
      const uint64_t word = body_.Bits(base, BitView::kWindowBits);
      const uint32_t relative = static_cast<uint32_t>(base - gaps_at);
      if (word != 0) num_ones = static_cast<uint32_t>(PutOnes(word, relative, place + num_ones) - place);
    }
    const size_t end = gaps_at + place[count - 1] + 1;
    if (end > body_.num_bits()) return false;
    uint32_t low[kBlockElems + kSlackElems];
    UnpackFields(at_, count, width, low);
    at_ = end;

    const hn::ScalableTag<uint32_t> d;
    constexpr uint32_t kLanes = static_cast<uint32_t>(hn::MaxLanes(d));
    if constexpr (kSigned) {
      const auto base = hn::Set(d, base_bits_);
      const auto low_mask = hn::Set(d, (1u << shift) - 1);
      for (uint32_t i = 0; i < count; i += kLanes) {
        const auto both = hn::LoadU(d, low + i);
        const auto sign = hn::ShiftRightSame(both, static_cast<int>(shift));
        StoreBits(hn::Or(hn::ShiftLeft<31>(sign), base), i);
        hn::StoreU(hn::And(both, low_mask), d, low + i);
      }
    }
    PrefixSum(first, count, low);
    for (uint32_t i = 0; i < count; i += kLanes) {
      const auto index = hn::Iota(d, i);
      const auto high = hn::ShiftLeftSame(hn::Sub(hn::LoadU(d, place + i), index), static_cast<int>(shift));
      hn::StoreU(hn::Add(hn::Add(high, hn::LoadU(d, low + i)), index), d, place + i);
    }
    return place[count - 1] - first < num_places;  // ascending, so the last one tells whether all fit
  }

  HWY_INLINE bool ReadSparsePositions() { return ReadAscending<true>(count_, num_elems_, first_, position_); }

  HWY_INLINE bool ReadBitmapPositions() {
    if (!Has(num_elems_)) return false;
    uint32_t* out = position_;
    for (uint32_t base = 0; base < num_elems_; base += BitView::kWindowBits) {
      const uint32_t width = std::min(BitView::kWindowBits, num_elems_ - base);
      const uint64_t word = body_.Bits(at_ + base, width);
      if (word != 0) out = PutOnes(word, first_ + base, out);
    }
    at_ += num_elems_;
    count_ = static_cast<uint32_t>(out - position_);
    return ReadSigns();
  }

  HWY_INLINE bool ReadSigns() {
    if (!Has(count_)) return false;
    const hn::ScalableTag<uint32_t> d;
    constexpr uint32_t kLanes = static_cast<uint32_t>(hn::MaxLanes(d));
    const auto base = hn::Set(d, base_bits_);
    const auto bit = hn::And(hn::Iota(d, 0), hn::Set(d, 31));
    for (uint32_t i = 0; i < count_; i += kLanes) {
      const auto signs = hn::Set(d, static_cast<uint32_t>(body_.Window(at_ + i)));  // 32 bits serve any vector
      StoreBits(hn::Or(hn::ShiftLeft<31>(hn::Shr(signs, bit)), base), i);
    }
    at_ += count_;
    return true;
  }

  HWY_INLINE bool ReadRuns() {
    if (!ReadSigns()) return false;
    uint32_t position = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      uint32_t gap = 0;
      for (uint32_t shift = 0;; shift += 3) {
        if (shift > 9 || !Has(4)) return false;
        const uint32_t nibble = static_cast<uint32_t>(body_.Bits(at_, 4));
        at_ += 4;
        gap |= (nibble & 7) << shift;
        if (nibble < 8) break;
      }
      if (!Has(4)) return false;
      AddToCode(i, static_cast<uint32_t>(body_.Bits(at_, 4)));
      at_ += 4;
      position += gap;
      if (position >= num_elems_) return false;
      position_[i] = first_ + position++;
    }
    return true;
  }

  HWY_INLINE bool ReadCodes(format::Codes codes) {
    if (codes == format::Codes::kUnary) return ReadCodePlanes();
    if (codes == format::Codes::kZero) return true;
    if (!Has(size_t{count_} * 4)) return false;
    for (uint32_t i = 0; i < count_; ++i, at_ += 4) AddToCode(i, static_cast<uint32_t>(body_.Bits(at_, 4)));
    return true;
  }

  HWY_INLINE bool ReadCodePlanes() {
    uint64_t members[kBlockElems / kWordElems];
    FillOnes(count_, members);
    return ReadCodePlanes(1, members, count_);
  }

  // The survivors with a code above 0, as a list among all; then the planes from the second on.
  HWY_INLINE bool ReadExceptions() {
    const uint32_t count_bits = format::BitWidth(count_ - 1);
    if (!Has(count_bits)) return false;
    const uint32_t count = static_cast<uint32_t>(body_.Bits(at_, count_bits)) + 1;
    at_ += count_bits;
    uint32_t exception[kBlockElems + kSlackElems];
    std::fill_n(exception, kSlackElems, 0u);  // vectors are read whole
    if (count > count_ || !ReadAscending<false>(count, count_, 0, exception)) return false;
    uint64_t members[kBlockElems / kWordElems];
    const uint32_t num_words = (count_ + kWordElems - 1) / kWordElems;
    std::fill_n(members, num_words, 0u);
    for (uint32_t i = 0; i < count; ++i)
      members[exception[i] / kWordElems] |= uint64_t{1} << (exception[i] % kWordElems);
    for (uint32_t w = 0; w < num_words; ++w) AddToCodes(w * static_cast<uint32_t>(kWordElems), members[w]);
    return ReadCodePlanes(2, members, count);
  }

  // members: a bit for each survivor that reached the plane before `first`, num_members in all; used up.
  HWY_INLINE bool ReadCodePlanes(uint32_t first, uint64_t* members, uint32_t num_members) {
    const uint32_t num_words = (count_ + kWordElems - 1) / kWordElems;
    for (uint32_t plane = first; plane <= kMaxCode && num_members > 0; ++plane) {
      if (!Has(num_members)) return false;
      num_members = 0;
      for (uint32_t w = 0; w < num_words; ++w) {
        if (members[w] == 0) continue;
        const uint32_t asked = static_cast<uint32_t>(hwy::PopCount(members[w]));
        uint64_t answers = body_.Bits(at_, std::min(asked, 32u));
        if (asked > 32) answers |= body_.Bits(at_ + 32, asked - 32) << 32;
        at_ += asked;
        members[w] = DepositBits(answers, members[w]);
        num_members += static_cast<uint32_t>(hwy::PopCount(members[w]));
        AddToCodes(w * static_cast<uint32_t>(kWordElems), members[w]);
      }
    }
    return true;
  }

  template <class V>
  HWY_INLINE void StoreBits(V bits, uint32_t i) {
    const hn::ScalableTag<float> d;
    hn::StoreU(hn::BitCast(d, bits), d, value_ + i);
  }

  HWY_INLINE void AddToCode(uint32_t i, uint32_t code) {
    value_[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(value_[i]) + (code << rules::kMantissaBits));
  }

  // Adds 1 to the code of survivor first + i for each bit i of chosen that is 1.
  HWY_INLINE void AddToCodes(uint32_t first, uint64_t chosen) {
    const hn::ScalableTag<uint32_t> d;
    constexpr size_t kLanes = hn::MaxLanes(d);
    if constexpr (kLanes >= 8) {
      for (float* value = value_ + first; chosen != 0; chosen >>= kLanes, value += kLanes) {
        auto* const bits = reinterpret_cast<uint32_t*>(value);
        const auto mask = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&chosen));
        hn::StoreU(hn::Add(hn::LoadU(d, bits), hn::IfThenElseZero(mask, hn::Set(d, 1u << rules::kMantissaBits))), d,
                   bits);
      }
    } else {
      for (; chosen != 0; chosen &= chosen - 1) AddToCode(first + static_cast<uint32_t>(std::countr_zero(chosen)), 1);
    }
  }

  const BitView body_;
  const uint32_t num_elems_;
  const uint32_t base_bits_;
  const uint32_t first_;
  uint32_t* const position_;
  float* const value_;
  uint32_t count_ = 0;
  size_t at_ = 0;  // the next bit to read
};

// Decodes block `index` to survivors[at ...].
HWY_INLINE bool DecodeBlock(const DecodeRange& range, size_t index, size_t at, uint32_t& num_survivors) {
  const BlockEntry& entry = range.entries[index];
  num_survivors = 0;
  if (entry.form == Plan::Form::kEmpty) return true;
  const size_t first = index * kBlockElems;
  const uint32_t num_elems = static_cast<uint32_t>(std::min(kBlockElems, range.dst.size() - first));
  BitView body = {.data = range.src.data() + entry.body_at, .num_bytes = entry.body_bytes};
  uint8_t padded[format::kMaxBodyBytes + kReadAhead];
  if (range.src.size() - entry.body_at < entry.body_bytes + kReadAhead) {
    std::fill_n(std::copy_n(body.data, body.num_bytes, padded), kReadAhead, uint8_t{0});
    body.data = padded;
  }
  BlockReader reader(body, num_elems, range.base_bits, static_cast<uint32_t>(first), range.survivors.position + at,
                     range.survivors.value + at);
  return reader.Read(entry, num_survivors);
}

HWY_INLINE size_t NumBlocks(const DecodeRange& range) { return (range.dst.size() + kBlockElems - 1) / kBlockElems; }

inline DecodeStatus Check(DecodeRange& range) {
  const size_t num_blocks = NumBlocks(range);
  range.kept_blocks = 0;
  range.kept_survivors = 0;
  bool keeping = true;
  for (size_t index = 0; index < num_blocks; ++index) {
    uint32_t num_survivors;
    if (!DecodeBlock(range, index, range.kept_survivors, num_survivors)) return DecodeStatus::kBadCount;
    keeping &= range.kept_survivors + num_survivors <= Survivors::kCapacity;
    if (keeping) {
      range.kept_survivors += num_survivors;
      ++range.kept_blocks;
    }
  }
  return DecodeStatus::kOk;
}

template <bool kAdd>
HWY_INLINE void Write(const DecodeRange& range, size_t at, size_t count) {
  constexpr size_t kAhead = 32;  // out of cache the lines come one by one: many have to be on their way
  const uint32_t* const position = range.survivors.position + at;
  const float* const value = range.survivors.value + at;
  float* const dst = range.dst.data();
  auto write = [dst, position, value](size_t i) {
    if constexpr (kAdd) {
      dst[position[i]] += value[i];
    } else {
      dst[position[i]] = value[i];
    }
  };
  size_t i = 0;
  for (; i + kAhead < count; ++i) {
    __builtin_prefetch(dst + position[i + kAhead], 1);
    write(i);
  }
  for (; i < count; ++i) write(i);
}

template <bool kAdd>
DecodeStatus WriteAll(const DecodeRange& range) {
  if constexpr (!kAdd) std::fill(range.dst.begin(), range.dst.end(), 0.0f);
  Write<kAdd>(range, 0, range.kept_survivors);
  const size_t num_blocks = NumBlocks(range);
  for (size_t index = range.kept_blocks; index < num_blocks; ++index) {
    uint32_t num_survivors;
    if (!DecodeBlock(range, index, 0, num_survivors)) return DecodeStatus::kBadCount;
    Write<kAdd>(range, 0, num_survivors);
  }
  return DecodeStatus::kOk;
}

inline DecodeStatus DecodeAssign(const DecodeRange& range) { return WriteAll<false>(range); }
inline DecodeStatus DecodeAdd(const DecodeRange& range) { return WriteAll<true>(range); }

}  // namespace HWY_NAMESPACE
}  // namespace gradlane::fec
HWY_AFTER_NAMESPACE();

#endif
