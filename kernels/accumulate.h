// Raw fp32 gradients, as they landed, into an accumulator, with the check for NaN and infinity in the same pass.
// Stateless; the caller owns every buffer. Any thread.
#pragma once

#include <cstddef>
#include <span>

namespace gradlane::accumulate {

// src: (N,) fp32 as bytes, of any alignment. sum: (N,) fp32; sum = src, or sum += src. False: src holds a non-finite
// value; sum then holds rubbish.
[[nodiscard]] bool Assign(std::span<const std::byte> src, std::span<float> sum);
[[nodiscard]] bool Add(std::span<const std::byte> src, std::span<float> sum);

}  // namespace gradlane::accumulate
