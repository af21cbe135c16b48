#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/fec.h"
#include "kernels/fec_rules.h"

namespace gradlane::fec {
namespace {

// Found by simulation (tests/kernels/steering_test.cc) and on training (tests/trainer/steering_test.cc). The threshold
// integrates the relative error, so over W steps density is off by what the threshold moved, less the drift, over
// kIntegralGain * W: one exponent in 100 steps is 7%. Gradients of a model that learns a few images by heart lose three
// exponents in 100 steps, which the drift has to follow; twice these gains ring where gradients have a mean.
constexpr double kIntegralGain = 0.15;  // exponents a step for a density that is twice what was asked
constexpr double kDriftGain = 0.006;    // follows gradients that shrink or grow steadily
constexpr double kMaxDrift = 0.1;       // exponents a step
constexpr double kMaxError = 16;        // what one step's burst counts at most; see Observe

// In the first steps the right exponent may be far away.
constexpr int kSeekSteps = 24;
constexpr double kSmoothing = 0.1;
constexpr double kFar = 8;       // times too dense or too sparse
constexpr double kSeekUp = 0.5;  // exponents a step
constexpr double kSeekDown = -0.25;

}  // namespace

DensitySteering::DensitySteering(double target_density, int first_exponent)
    : target_(target_density), log_threshold_(first_exponent) {
  GRADLANE_KERNELS_CHECK(target_density > 0 && target_density <= 1);
  GRADLANE_KERNELS_CHECK(first_exponent >= kMinBase && first_exponent < kMaxBase);
}

int DensitySteering::threshold_exponent() const { return static_cast<int>(std::floor(log_threshold_)); }

uint32_t DensitySteering::threshold_mantissa() const {
  return static_cast<uint32_t>((log_threshold_ - std::floor(log_threshold_)) * (rules::kMantissaMask + 1.0));
}

void DensitySteering::ApplyTo(Params& params) const {
  params.threshold_exponent = threshold_exponent();
  params.threshold_mantissa = threshold_mantissa();
}

void DensitySteering::Observe(size_t survivors, size_t num_elems) {
  if (num_elems == 0) return;
  const double achieved = static_cast<double>(survivors) / static_cast<double>(num_elems) / target_;
  smoothed_ = smoothed_ < 0 ? achieved : smoothed_ + kSmoothing * (achieved - smoothed_);
  if (steps_ < kSeekSteps) ++steps_;
  if (steps_ < kSeekSteps && (smoothed_ > kFar || smoothed_ < 1 / kFar)) {
    log_threshold_ += achieved > 1 ? kSeekUp : kSeekDown;
  } else {
    // A burst is forgiven beyond kMaxError, or else nothing would be sent for as many steps; but where less than one
    // survivor a step is asked for, each is a burst, and has to count.
    const double asked = std::min(target_ * static_cast<double>(num_elems), 1.0);
    owed_ = std::min(owed_ + achieved - 1, kMaxError / asked);
    const double error = std::min(owed_, kMaxError);
    owed_ -= error;
    log_threshold_ += kIntegralGain * error + drift_;
    drift_ = std::clamp(drift_ + kDriftGain * asked * error, -kMaxDrift, kMaxDrift);
  }
  log_threshold_ = std::clamp<double>(log_threshold_, kMinBase, kMaxBase - 1);
}

bool DensitySteering::Restore(const State& state) {
  constexpr double kRounding = 1.001;  // of the average
  // Written so that a NaN fails.
  if (!(state.log_threshold >= kMinBase && state.log_threshold <= kMaxBase - 1)) return false;
  if (!(std::abs(state.drift) <= kMaxDrift)) return false;
  if (!(state.owed >= 0 && state.owed <= kMaxError / target_)) return false;
  if (state.steps < 0 || state.steps > kSeekSteps) return false;
  const bool fresh = state.steps == 0 && state.smoothed == -1;
  if (!fresh && !(state.steps > 0 && state.smoothed >= 0 && state.smoothed <= kRounding / target_)) return false;
  log_threshold_ = state.log_threshold;
  drift_ = state.drift;
  owed_ = state.owed;
  smoothed_ = state.smoothed;
  steps_ = state.steps;
  return true;
}

}  // namespace gradlane::fec
