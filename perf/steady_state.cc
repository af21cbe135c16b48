#include "perf/steady_state.h"

#include <algorithm>
#include <cmath>

#include "kernels/fec_rules.h"
#include "perf/segmented_codec.h"
#include "perf/tensors.h"

namespace gradlane::perf {

SteadyState WarmUp(std::span<const float> pattern, double density, fec::Params params, std::string_view target) {
  const Gradients gradients(pattern, pattern.size());
  SegmentedCodec codec(pattern.size(), 0, 1, target);
  SteadyState state{params, std::vector<float>(pattern.size()),
                    static_cast<size_t>(std::clamp<double>(3 / density, kMinWarmUpSteps, kMaxWarmUpSteps))};
  const float first_limit = std::max(MagnitudeQuantile(pattern, density), std::ldexp(1.0f, fec::kMinBase));
  fec::DensitySteering steering(density, std::min(std::ilogb(first_limit), fec::kMaxBase - 1));
  for (size_t step = 0; step < state.steps; ++step) {
    steering.ApplyTo(state.params);
    state.params.rounding_seed = static_cast<uint32_t>(step);
    const fec::EncodeStats stats = codec.Encode(gradients.At(step), state.residual, state.params);
    steering.Observe(stats.survivors, pattern.size());
  }
  return state;
}

}  // namespace gradlane::perf
