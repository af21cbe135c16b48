// Raw fp32 gradients, as they landed, into an accumulator, with the check for NaN and infinity in the same pass.
// Stateless; the caller owns every buffer. Any thread.
#pragma once

#include <cstddef>
#include <span>

namespace gradlane::accumulate {

// A chunk is looked at before it is written, so that no NaN or infinity ever enters an accumulator; it is small enough to
// be in the first-level cache still when it is added.
inline constexpr size_t kChunkElems = 1024;

// src: (N,) fp32 as bytes, of any alignment. sum: (N,) fp32; sum = src, or sum += src. False: src holds a non-finite
// value; then the chunks before it are done, and its own and all after it are untouched.
[[nodiscard]] bool Assign(std::span<const std::byte> src, std::span<float> sum);
[[nodiscard]] bool Add(std::span<const std::byte> src, std::span<float> sum);

// src: (N,) fp32. No NaN and no infinity among them.
[[nodiscard]] bool AllFinite(std::span<const float> src);

}  // namespace gradlane::accumulate
