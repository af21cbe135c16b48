#include "kernels/optim.h"

#include <cmath>
#include <cstddef>

#include "kernels/check.h"

namespace gradlane::optim {
namespace {

// By squaring, so that the bits do not depend on the maths library.
double Power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

}  // namespace

void SgdStep(std::span<float> param, std::span<const float> grad, float grad_scale, std::span<float> velocity,
             const SgdParams& params) {
  GRADLANE_KERNELS_CHECK(grad.size() == param.size() && velocity.size() == param.size());
  const auto [lr, momentum, weight_decay] = params;
  float* const p = param.data();
  float* const v = velocity.data();
  const float* const g = grad.data();
  const size_t num_elems = param.size();
  for (size_t i = 0; i < num_elems; ++i) {
    const float velocity_now = momentum * v[i] + (g[i] * grad_scale + weight_decay * p[i]);
    v[i] = velocity_now;
    p[i] -= lr * velocity_now;
  }
}

void AdamStep(std::span<float> param, std::span<const float> grad, float grad_scale, std::span<float> first_moment,
              std::span<float> second_moment, int64_t step, const AdamParams& params) {
  GRADLANE_KERNELS_CHECK(grad.size() == param.size() && first_moment.size() == param.size() &&
                         second_moment.size() == param.size());
  GRADLANE_KERNELS_CHECK(step >= 1);
  const float beta1 = params.beta1, beta2 = params.beta2, weight_decay = params.weight_decay;
  const float epsilon = params.epsilon, lr = params.lr;
  const float first_scale = static_cast<float>(1.0 / (1.0 - Power(beta1, step)));  // undoes the bias towards zero
  const float second_scale = static_cast<float>(1.0 / (1.0 - Power(beta2, step)));
  float* const p = param.data();
  float* const m = first_moment.data();
  float* const v = second_moment.data();
  const float* const g = grad.data();
  const size_t num_elems = param.size();
  for (size_t i = 0; i < num_elems; ++i) {
    const float gradient = g[i] * grad_scale + weight_decay * p[i];
    const float first = beta1 * m[i] + (1.0f - beta1) * gradient;
    const float second = beta2 * v[i] + (1.0f - beta2) * gradient * gradient;
    m[i] = first;
    v[i] = second;
    p[i] -= lr * (first * first_scale) / (std::sqrt(second * second_scale) + epsilon);
  }
}

}  // namespace gradlane::optim
