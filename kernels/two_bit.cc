#include "kernels/two_bit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/check.h"

namespace gradlane::two_bit {
namespace {

// Element i of a byte's four is in bits 7-2i and 6-2i, as MXNet packs them.
constexpr uint32_t kPositive = 3, kNegative = 2, kUnused = 1;
constexpr size_t kByteElems = 4;
constexpr size_t kChunkElems = 256;

uint32_t Field(uint32_t byte, size_t i) { return byte >> (6 - 2 * i) & 3; }

// Adds grad to residual, takes off what is sent and says what that is. Returns how many were sent.
uint32_t TakeFields(const float* __restrict grad, float* __restrict residual, size_t num_elems, float threshold,
                    uint8_t* __restrict fields) {
  uint32_t sent = 0;
  for (size_t i = 0; i < num_elems; ++i) {
    const float value = residual[i] + grad[i];
    const uint32_t up = value >= threshold, down = value <= -threshold;
    residual[i] = value - (static_cast<float>(static_cast<int32_t>(up) - static_cast<int32_t>(down)) * threshold);
    fields[i] = static_cast<uint8_t>(up * kPositive + down * kNegative);
    sent += up + down;
  }
  return sent;
}

}  // namespace

EncodeStats Encode(std::span<const float> grad, std::span<float> residual, float threshold, std::span<std::byte> dst) {
  GRADLANE_KERNELS_CHECK(threshold > 0 && threshold < INFINITY);
  GRADLANE_KERNELS_CHECK(residual.size() == grad.size());
  GRADLANE_KERNELS_CHECK(dst.size() >= EncodedBytes(grad.size()));
  EncodeStats stats;
  int32_t negative_if_not_finite = 0;
  for (size_t i = 0; i < grad.size(); ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(grad[i] + residual[i]) & 0x7fffffffu;
    negative_if_not_finite |= 0x7f7fffff - static_cast<int32_t>(magnitude);
  }
  stats.finite = negative_if_not_finite >= 0;
  if (!stats.finite) return stats;

  auto* const out = reinterpret_cast<uint8_t*>(dst.data());
  const size_t num_bytes = EncodedBytes(grad.size());
  for (size_t first = 0, byte = 0; byte < num_bytes; first += kChunkElems) {
    uint8_t fields[kChunkElems] = {};
    const size_t num_elems = std::min(kChunkElems, grad.size() - first);
    stats.survivors += TakeFields(grad.data() + first, residual.data() + first, num_elems, threshold, fields);
    for (size_t i = 0; i < kChunkElems && byte < num_bytes; i += kByteElems, ++byte) {
      out[byte] = static_cast<uint8_t>(fields[i] << 6 | fields[i + 1] << 4 | fields[i + 2] << 2 | fields[i + 3]);
    }
  }
  return stats;
}

bool DecodeAdd(std::span<const std::byte> src, float threshold, std::span<float> dst) {
  if (src.size() != EncodedBytes(dst.size())) return false;
  for (size_t at = 0; at < src.size(); at += sizeof(uint32_t)) {
    uint32_t word;
    std::memcpy(&word, src.data() + at, sizeof(word));
    static_assert(kUnused == 1);
    if ((word & ~(word >> 1) & 0x55555555u) != 0) return false;
  }
  const float values[4] = {0.0f, 0.0f, -threshold, threshold};
  for (size_t first = 0; first < dst.size(); first += kByteElems) {
    const uint32_t byte = std::to_integer<uint32_t>(src[first / kByteElems]);
    if (byte == 0) continue;
    const size_t num_elems = std::min(kByteElems, dst.size() - first);
    for (size_t i = 0; i < num_elems; ++i) {
      const uint32_t field = Field(byte, i);
      if (field != 0) dst[first + i] += values[field];
    }
  }
  return true;
}

}  // namespace gradlane::two_bit
