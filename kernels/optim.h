// Optimizer steps on plain fp32 arrays: SGD with momentum and weight decay, and Adam. Element by element, so a tensor
// gives the same bits however it is cut into segments. Stateless; the caller owns every buffer. Any thread.
// No fused multiply-add contraction (the folder is compiled with -ffp-contract=off), so every target gives the same
// bits.
#pragma once

#include <cstdint>
#include <span>

namespace gradlane::optim {

struct SgdParams {
  float lr = 0.05f;
  float momentum = 0.9f;
  float weight_decay = 0.0f;
};

// velocity = momentum * velocity + (grad * grad_scale + weight_decay * param); param -= lr * velocity. All (N,) fp32.
void SgdStep(std::span<float> param, std::span<const float> grad, float grad_scale, std::span<float> velocity,
             const SgdParams& params);

struct AdamParams {
  float lr = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;  // L2: added to the gradient, as PyTorch's Adam does
};

// step: 1 for the first. Source: Kingma and Ba, "Adam", algorithm 1.
void AdamStep(std::span<float> param, std::span<const float> grad, float grad_scale, std::span<float> first_moment,
              std::span<float> second_moment, int64_t step, const AdamParams& params);

}  // namespace gradlane::optim
