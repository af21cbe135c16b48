// What a codec is measured on: gradients step after step, either drawn from a distribution or read from a file that
// `gradlane-train --dump-gradients` wrote.
//
// One step's gradient is a pattern (the file; else kPatternElems draws) repeated over the tensor. The next step's is
// the same, shifted by up to kMaxShiftElems, so that an element meets another value each step, as it does in training,
// while regions of large and small gradients stay where they are; and no step needs more than a pointer. Owned by the
// benchmark; after Make any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "perf/huge_buffer.h"
#include "transport/base/error.h"

namespace gradlane::perf {

inline constexpr size_t kPatternElems = size_t{1} << 20;
inline constexpr size_t kMaxShiftElems = 16384;

// gaussian, laplace or heavy-tail (Student's t with 3 degrees of freedom), each of scale 0.01: the same bits on every
// run. Anything else names a file: raw little-endian fp32, all finite, one element at least. kInvalidArgument: it is no
// such file.
Result<std::vector<float>> MakePattern(const std::string& distribution, size_t num_elems);

class Gradients {
 public:
  Gradients(std::span<const float> pattern, size_t num_elems);

  // (num_elems,) fp32, 64-byte aligned, valid as long as this. step: from 0.
  std::span<const float> At(size_t step) const;

 private:
  size_t num_elems_;
  HugeBuffer<float> values_;  // num_elems + kMaxShiftElems
};

// Fills `whole` with repetitions of `part`.
void Repeat(std::span<const float> part, std::span<float> whole);

// The magnitude that this share of the elements reaches. share: above 0, at most 1; values: 1 or more.
float MagnitudeQuantile(std::span<const float> values, double share);

}  // namespace gradlane::perf
