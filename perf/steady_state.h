// The state in which a codec is in the middle of a training: under error feedback what FEC meets is not the gradient
// but the sum of what was not sent for many steps, piled up below a threshold that DensitySteering has found. Any
// thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/fec.h"

namespace gradlane::perf {

struct SteadyState {
  fec::Params params;           // with the threshold that gives the density
  std::vector<float> residual;  // of the pattern
  size_t steps = 0;             // that it took
};

// An element is sent once in 1 / density steps, on average; the state is reached after three times as many, and at most
// kMaxWarmUpSteps. Starts from the threshold that the pattern itself would need.
inline constexpr size_t kMinWarmUpSteps = 300;
inline constexpr size_t kMaxWarmUpSteps = 3000;
SteadyState WarmUp(std::span<const float> pattern, double density, fec::Params params, std::string_view target);

}  // namespace gradlane::perf
