// MXNet's 2-bit gradient compression, for comparison with FEC: +threshold, -threshold or nothing for each element, with
// error feedback in a residual. Stateless; the caller owns every buffer. Any thread.
// Source: MXNet, "Gradient Compression" (src/kvstore/gradient_compression-inl.h).
#pragma once

#include <cstddef>
#include <span>

namespace gradlane::two_bit {

inline size_t EncodedBytes(size_t num_elems) { return (num_elems + 15) / 16 * 4; }

struct EncodeStats {
  size_t survivors = 0;
  bool finite = true;  // false: a NaN or infinity was met; residual is untouched
};

// residual += grad; what reaches +-threshold is sent and taken off. dst: EncodedBytes(N) bytes.
EncodeStats Encode(std::span<const float> grad, std::span<float> residual, float threshold, std::span<std::byte> dst);

// dst += decoded. False, with dst unchanged, when src is not EncodedBytes(dst.size()) long or holds the unused code.
[[nodiscard]] bool DecodeAdd(std::span<const std::byte> src, float threshold, std::span<float> dst);

}  // namespace gradlane::two_bit
