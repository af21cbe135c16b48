// The scalar decoder. The input is hostile: one walk over all blocks checks everything and writes nothing, a second one
// writes. Both are the same code with the same checks, so even bytes that change between the two walks (a slot that a
// peer can write to) never lead out of bounds.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/bit_io.h"
#include "kernels/fec.h"
#include "kernels/fec_directory.h"
#include "kernels/fec_format.h"
#include "kernels/fec_rules.h"

namespace gradlane::fec {
namespace {

using format::Codes;
using format::Positions;

constexpr size_t kReadAhead = sizeof(uint64_t);  // BitView reads up to this many bytes beyond its end

// The survivors of one block, their positions checked: ascending and inside the block.
struct Survivors {
  uint32_t count = 0;
  uint16_t position[kBlockElems];
  uint32_t bits[kBlockElems];  // of the decoded float
};

// The bytes of one block and what is being read from it. Methods return false when the block does not hold together.
class BlockReader {
 public:
  BlockReader(BitView body, uint32_t num_elems, uint32_t base_bits, Survivors& out)
      : body_(body), num_elems_(num_elems), base_bits_(base_bits), out_(out) {}

  bool ReadTiny(uint32_t num_survivors) {
    out_.count = num_survivors;
    return ReadSparsePositions() && body_.ZeroFrom(at_);
  }

  bool ReadBody(uint8_t kind) {
    if (kind == format::kRunsKind) return ReadCount() && ReadRuns() && AtEnd();
    if (kind == format::kExceptionsKind) return ReadCount() && ReadSparsePositions() && ReadExceptions() && AtEnd();
    const bool bitmap = kind & static_cast<uint8_t>(Positions::kBitmap);
    const bool positions_fit = bitmap ? ReadBitmapPositions() : ReadCount() && ReadSparsePositions();
    return positions_fit && ReadCodes(static_cast<Codes>(kind & 3)) && AtEnd();
  }

 private:
  bool Has(size_t num_bits) const { return body_.num_bits() - at_ >= num_bits; }

  bool AtEnd() const { return (at_ + 7) / 8 == body_.num_bytes && body_.ZeroFrom(at_); }

  bool ReadCount() {
    if (!Has(8)) return false;
    uint32_t value = static_cast<uint32_t>(body_.Bits(at_, 8));
    at_ += 8;
    if (value >= 128) {
      if (!Has(8)) return false;
      value = (value & 127) | static_cast<uint32_t>(body_.Bits(at_, 8)) << 7;
      at_ += 8;
    }
    out_.count = value + 1;
    return out_.count <= num_elems_;
  }

  bool ReadSparsePositions() {
    const uint32_t count = out_.count;
    const uint32_t shift = format::GapShift(num_elems_, count);
    const uint32_t low_mask = (1u << shift) - 1;
    size_t field_at = at_;
    if (!Has(size_t{count} * (shift + 1))) return false;
    const size_t gaps_at = at_ + size_t{count} * (shift + 1);
    uint32_t i = 0;
    uint32_t low_sum = 0;
    for (size_t base = gaps_at; base < body_.num_bits(); base += BitView::kWindowBits) {
      for (uint64_t ones = body_.Bits(base, BitView::kWindowBits); ones != 0; ones &= ones - 1) {
        const size_t one_at = base + static_cast<size_t>(std::countr_zero(ones));
        const uint32_t field = static_cast<uint32_t>(body_.Bits(field_at, shift + 1));
        field_at += shift + 1;
        low_sum += field & low_mask;
        const size_t position = ((one_at - gaps_at - i) << shift) + low_sum + i;
        if (position >= num_elems_) return false;
        out_.position[i] = static_cast<uint16_t>(position);
        out_.bits[i] = rules::DecodedBits(field >> shift, 0, base_bits_);
        if (++i == count) {
          at_ = one_at + 1;
          return at_ <= body_.num_bits();
        }
      }
    }
    return false;
  }

  bool ReadBitmapPositions() {
    if (!Has(num_elems_)) return false;
    uint32_t count = 0;
    for (uint32_t base = 0; base < num_elems_; base += BitView::kWindowBits) {
      const uint32_t width = std::min(BitView::kWindowBits, num_elems_ - base);
      for (uint64_t ones = body_.Bits(at_ + base, width); ones != 0; ones &= ones - 1) {
        out_.position[count++] = static_cast<uint16_t>(base + static_cast<uint32_t>(std::countr_zero(ones)));
      }
    }
    at_ += num_elems_;
    out_.count = count;
    return ReadSigns();
  }

  bool ReadSigns() {
    const uint32_t count = out_.count;
    if (!Has(count)) return false;
    for (uint32_t base = 0; base < count; base += BitView::kWindowBits) {
      uint64_t signs = body_.Window(at_ + base);
      const uint32_t end = std::min(count, base + BitView::kWindowBits);
      for (uint32_t i = base; i < end; ++i, signs >>= 1) {
        out_.bits[i] = rules::DecodedBits(static_cast<uint32_t>(signs & 1), 0, base_bits_);
      }
    }
    at_ += count;
    return true;
  }

  bool ReadRuns() {
    if (!ReadSigns()) return false;
    uint32_t position = 0;
    for (uint32_t i = 0; i < out_.count; ++i) {
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
      out_.position[i] = static_cast<uint16_t>(position++);
    }
    return true;
  }

  bool ReadCodes(Codes codes) {
    if (codes == Codes::kUnary) return ReadCodePlanes();
    if (codes == Codes::kZero) return true;
    if (!Has(size_t{out_.count} * 4)) return false;
    for (uint32_t i = 0; i < out_.count; ++i, at_ += 4) AddToCode(i, static_cast<uint32_t>(body_.Bits(at_, 4)));
    return true;
  }

  bool ReadCodePlanes() {
    uint16_t members[kBlockElems];
    for (uint32_t i = 0; i < out_.count; ++i) members[i] = static_cast<uint16_t>(i);
    return ReadCodePlanes(1, members, out_.count);
  }

  // The survivors with a code above 0, as a sparse list among all; then the planes from the second on.
  bool ReadExceptions() {
    const uint32_t num_survivors = out_.count;
    const uint32_t count_bits = format::BitWidth(num_survivors - 1);
    if (!Has(count_bits)) return false;
    const uint32_t count = static_cast<uint32_t>(body_.Bits(at_, count_bits)) + 1;
    at_ += count_bits;
    if (count > num_survivors) return false;
    const uint32_t shift = format::GapShift(num_survivors, count);
    if (!Has(size_t{count} * shift)) return false;
    size_t low_at = at_;
    at_ += size_t{count} * shift;
    uint16_t members[kBlockElems];
    uint32_t position = 0;
    for (uint32_t i = 0; i < count; ++i, low_at += shift) {
      uint32_t high = 0;
      while (true) {
        if (!Has(1)) return false;
        if (body_.Bits(at_++, 1) != 0) break;
        ++high;
      }
      position += (high << shift) + static_cast<uint32_t>(body_.Bits(low_at, shift));
      if (position >= num_survivors) return false;
      members[i] = static_cast<uint16_t>(position++);
      AddToCode(members[i], 1);
    }
    return ReadCodePlanes(2, members, count);
  }

  // members: survivors that reached the plane before `first`; used up.
  bool ReadCodePlanes(uint32_t first, uint16_t* members, uint32_t num_members) {
    for (uint32_t plane = first; plane <= kMaxCode && num_members > 0; ++plane) {
      if (!Has(num_members)) return false;
      uint32_t num_kept = 0;
      for (uint32_t base = 0; base < num_members; base += BitView::kWindowBits) {
        const uint32_t width = std::min(BitView::kWindowBits, num_members - base);
        for (uint64_t ones = body_.Bits(at_ + base, width); ones != 0; ones &= ones - 1) {
          const uint32_t i = base + static_cast<uint32_t>(std::countr_zero(ones));
          const uint16_t member = members[i];
          AddToCode(member, 1);
          members[num_kept++] = member;
        }
      }
      at_ += num_members;
      num_members = num_kept;
    }
    return true;
  }

  void AddToCode(uint32_t i, uint32_t code) { out_.bits[i] += code << rules::kMantissaBits; }

  const BitView body_;
  const uint32_t num_elems_;
  const uint32_t base_bits_;
  Survivors& out_;
  size_t at_ = 0;  // the next bit to read
};

// Where the bodies start, when directory and bodies together are exactly src.
DecodeStatus FindBodies(std::span<const uint8_t> src, size_t num_elems, size_t& bodies_at) {
  size_t at = format::kSegmentHeaderBytes;
  size_t body_bytes = 0;
  for (size_t first = 0; first < num_elems;) {
    Entry entry;
    if (auto status = ReadEntry(src, at, num_elems - first, entry); status != DecodeStatus::kOk) return status;
    first += std::max<size_t>(entry.empty_run, 1) * kBlockElems;
    body_bytes += entry.body_bytes;
  }
  bodies_at = at;
  if (src.size() - at < body_bytes) return DecodeStatus::kTruncated;
  if (src.size() - at > body_bytes) return DecodeStatus::kTrailing;
  return DecodeStatus::kOk;
}

struct CheckOnly {
  static void Empty(float*, size_t) {}
  static void Block(float*, size_t, const Survivors&) {}
};

struct Assign {
  static void Empty(float* dst, size_t num_elems) { std::fill_n(dst, num_elems, 0.0f); }
  static void Block(float* dst, size_t num_elems, const Survivors& survivors) {
    Empty(dst, num_elems);
    for (uint32_t i = 0; i < survivors.count; ++i) {
      dst[survivors.position[i]] = std::bit_cast<float>(survivors.bits[i]);
    }
  }
};

struct Add {
  static void Empty(float*, size_t) {}
  static void Block(float* dst, size_t, const Survivors& survivors) {
    for (uint32_t i = 0; i < survivors.count; ++i) {
      dst[survivors.position[i]] += std::bit_cast<float>(survivors.bits[i]);
    }
  }
};

template <typename Sink>
DecodeStatus Walk(std::span<const uint8_t> src, std::span<float> dst) {
  uint32_t base_bits;
  if (auto status = ReadHeader(src, base_bits); status != DecodeStatus::kOk) return status;
  size_t body_at;
  if (auto status = FindBodies(src, dst.size(), body_at); status != DecodeStatus::kOk) return status;
  size_t entry_at = format::kSegmentHeaderBytes;
  Survivors survivors;
  uint8_t padded[format::kMaxBodyBytes + kReadAhead];
  for (size_t first = 0; first < dst.size();) {
    Entry entry;
    if (auto status = ReadEntry(src, entry_at, dst.size() - first, entry); status != DecodeStatus::kOk) return status;
    if (entry.empty_run > 0) {
      const size_t num_elems = std::min(entry.empty_run * kBlockElems, dst.size() - first);
      Sink::Empty(dst.data() + first, num_elems);
      first += num_elems;
      continue;
    }
    if (entry.body_bytes > src.size() - body_at) return DecodeStatus::kTruncated;
    BitView body = {.data = src.data() + body_at, .num_bytes = entry.body_bytes};
    if (src.size() - body_at < entry.body_bytes + kReadAhead) {
      std::fill_n(std::copy_n(body.data, body.num_bytes, padded), kReadAhead, uint8_t{0});
      body.data = padded;
    }
    const uint32_t num_elems = static_cast<uint32_t>(std::min(kBlockElems, dst.size() - first));
    BlockReader reader(body, num_elems, base_bits, survivors);
    const bool fits = entry.first < format::kBodyTag ? reader.ReadTiny(entry.first - format::kTinyTag + 1u)
                                                     : reader.ReadBody(entry.first >> 4 & 7);
    if (!fits) return DecodeStatus::kBadCount;
    Sink::Block(dst.data() + first, num_elems, survivors);
    body_at += entry.body_bytes;
    first += num_elems;
  }
  return DecodeStatus::kOk;
}

template <typename Sink>
DecodeStatus CheckThenWalk(std::span<const std::byte> src, std::span<float> dst) {
  const std::span bytes(reinterpret_cast<const uint8_t*>(src.data()), src.size());
  if (auto status = Walk<CheckOnly>(bytes, dst); status != DecodeStatus::kOk) return status;
  return Walk<Sink>(bytes, dst);
}

}  // namespace

DecodeStatus Decode(std::span<const std::byte> src, std::span<float> dst) { return CheckThenWalk<Assign>(src, dst); }

DecodeStatus DecodeAdd(std::span<const std::byte> src, std::span<float> dst) { return CheckThenWalk<Add>(src, dst); }

}  // namespace gradlane::fec
