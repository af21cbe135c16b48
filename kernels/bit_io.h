// Bit streams in little-endian order: bit i of a stream is bit i % 8, counted from the lowest, of byte i / 8.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradlane::fec {

static_assert(std::endian::native == std::endian::little, "words are loaded and stored as they are");

// Appends bits; writes no byte beyond the last bit's.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out) : out_(out) {}

  // width: 0 .. 32; value < 2^width.
  void Put(uint32_t value, uint32_t width) {
    pending_ |= static_cast<uint64_t>(value) << num_pending_;
    num_pending_ += width;
    if (num_pending_ >= 32) {
      const uint32_t word = static_cast<uint32_t>(pending_);
      std::memcpy(out_, &word, sizeof(word));
      out_ += sizeof(word);
      pending_ >>= 32;
      num_pending_ -= 32;
    }
  }

  // `zeros` bits 0, then one bit 1.
  void PutUnary(uint32_t zeros) {
    for (; zeros >= 32; zeros -= 32) Put(0, 32);
    Put(1u << zeros, zeros + 1);
  }

  // Pads with zero bits to a whole byte; returns the end. Nothing may be put afterwards.
  uint8_t* Finish() {
    for (; num_pending_ > 0; num_pending_ -= num_pending_ < 8 ? num_pending_ : 8) {
      *out_++ = static_cast<uint8_t>(pending_);
      pending_ >>= 8;
    }
    return out_;
  }

 private:
  uint8_t* out_;
  uint64_t pending_ = 0;
  uint32_t num_pending_ = 0;  // below 32 between calls
};

// Bits that are read in place. data: num_bytes and 8 more bytes are readable; what those 8 hold does not matter.
struct BitView {
  const uint8_t* data;
  size_t num_bytes;

  static constexpr uint32_t kWindowBits = 56;

  size_t num_bits() const { return num_bytes * 8; }

  // The bits from `at` on, at least 57 of them, those beyond the end arbitrary. at <= num_bits().
  uint64_t Window(size_t at) const {
    uint64_t word;
    std::memcpy(&word, data + at / 8, sizeof(word));
    return word >> (at % 8);
  }

  // width: 0 .. 56.
  uint64_t Bits(size_t at, uint32_t width) const { return Window(at) & ((uint64_t{1} << width) - 1); }

  // Whether all bits from `at` to the end are zero.
  bool ZeroFrom(size_t at) const {
    for (; at + kWindowBits < num_bits(); at += kWindowBits) {
      if (Bits(at, kWindowBits) != 0) return false;
    }
    return at >= num_bits() || Bits(at, static_cast<uint32_t>(num_bits() - at)) == 0;
  }
};

}  // namespace gradlane::fec
