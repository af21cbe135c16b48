// Optimizers against their formulas in double precision, and cut into segments.
#include "kernels/optim.h"

#include <gtest/gtest.h>

#include "tests/kernels/random_tensor.h"

namespace gradlane {
namespace {

constexpr size_t kElems = 1003;
constexpr float kGradScale = 0.25f;
const optim::SgdParams kSgd = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-3f};
const optim::AdamParams kAdam = {.lr = 0.01f, .weight_decay = 1e-3f};

struct State {
  std::vector<float> param = Gaussian(kElems, 1.0f, 1);
  std::vector<float> first = std::vector<float>(kElems), second = std::vector<float>(kElems);

  bool operator==(const State& other) const {
    return Bits(param) == Bits(other.param) && Bits(first) == Bits(other.first) && Bits(second) == Bits(other.second);
  }
};

std::vector<float> Grad(int64_t step) { return Gaussian(kElems, 1.0f, static_cast<uint32_t>(10 + step)); }

// Steps in segments of these sizes, over and over.
State RunSgd(std::vector<size_t> sizes) {
  State state;
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<float> grad = Grad(step);
    for (size_t first = 0, turn = 0; first < kElems; ++turn) {
      const size_t count = std::min(sizes[turn % sizes.size()], kElems - first);
      optim::SgdStep(std::span(state.param).subspan(first, count), std::span(grad).subspan(first, count), kGradScale,
                     std::span(state.first).subspan(first, count), kSgd);
      first += count;
    }
  }
  return state;
}

State RunAdam(std::vector<size_t> sizes) {
  State state;
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<float> grad = Grad(step);
    for (size_t first = 0, turn = 0; first < kElems; ++turn) {
      const size_t count = std::min(sizes[turn % sizes.size()], kElems - first);
      optim::AdamStep(std::span(state.param).subspan(first, count), std::span(grad).subspan(first, count), kGradScale,
                      std::span(state.first).subspan(first, count), std::span(state.second).subspan(first, count), step,
                      kAdam);
      first += count;
    }
  }
  return state;
}

TEST(Optim, GivenSgdExpectItsFormulaWithinRounding) {
  std::vector<double> param(kElems), velocity(kElems);
  const State start, end = RunSgd({kElems});
  for (size_t i = 0; i < kElems; ++i) param[i] = start.param[i];
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<float> grad = Grad(step);
    for (size_t i = 0; i < kElems; ++i) {
      velocity[i] = kSgd.momentum * velocity[i] + (double{grad[i]} * kGradScale + kSgd.weight_decay * param[i]);
      param[i] -= kSgd.lr * velocity[i];
    }
  }
  for (size_t i = 0; i < kElems; ++i) {
    EXPECT_NEAR(end.param[i], param[i], 2e-6);
    EXPECT_NEAR(end.first[i], velocity[i], 2e-6);
  }
}

TEST(Optim, GivenSgdExpectTheBitsOfItsFormulaInFloatWithoutContraction) {
  State state;
  const std::vector<float> grad = Grad(1);
  const std::vector<float> before = state.param, velocity_before = Gaussian(kElems, 1.0f, 99);
  state.first = velocity_before;
  optim::SgdStep(state.param, grad, kGradScale, state.first, kSgd);
  for (size_t i = 0; i < kElems; ++i) {
    const float scaled = grad[i] * kGradScale, decay = kSgd.weight_decay * before[i];
    const float sum = scaled + decay, kept = kSgd.momentum * velocity_before[i];
    const float velocity = kept + sum, change = kSgd.lr * velocity;
    ASSERT_EQ(state.first[i], velocity);
    ASSERT_EQ(state.param[i], before[i] - change);
  }
}

TEST(Optim, GivenAdamExpectItsFormulaWithinRounding) {
  std::vector<double> param(kElems), first(kElems), second(kElems);
  const State start, end = RunAdam({kElems});
  for (size_t i = 0; i < kElems; ++i) param[i] = start.param[i];
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<float> grad = Grad(step);
    const double beta1 = kAdam.beta1, beta2 = kAdam.beta2;
    for (size_t i = 0; i < kElems; ++i) {
      const double gradient = double{grad[i]} * kGradScale + kAdam.weight_decay * param[i];
      first[i] = beta1 * first[i] + (1 - beta1) * gradient;
      second[i] = beta2 * second[i] + (1 - beta2) * gradient * gradient;
      const double first_hat = first[i] / (1 - std::pow(beta1, static_cast<double>(step)));
      const double second_hat = second[i] / (1 - std::pow(beta2, static_cast<double>(step)));
      param[i] -= kAdam.lr * first_hat / (std::sqrt(second_hat) + kAdam.epsilon);
    }
  }
  for (size_t i = 0; i < kElems; ++i) {
    EXPECT_NEAR(end.param[i], param[i], 2e-5);
    EXPECT_NEAR(end.first[i], first[i], 1e-6);
    EXPECT_NEAR(end.second[i], second[i], 1e-6);
  }
}

TEST(Optim, GivenAdamsFirstStepExpectAMoveOfLrAgainstTheGradient) {
  std::vector<float> param(8, 1.0f), first(8), second(8);
  const std::vector<float> grad(8, -3.0f);
  optim::AdamStep(param, grad, 1.0f, first, second, 1, {.lr = 0.01f});
  for (float value : param) EXPECT_NEAR(value, 1.01f, 1e-6);
}

TEST(Optim, GivenALateStepExpectAdamToStayFinite) {
  std::vector<float> param(8, 1.0f), first(8), second(8);
  optim::AdamStep(param, std::vector<float>(8, 1.0f), 1.0f, first, second, int64_t{1} << 40, kAdam);
  for (float value : param) EXPECT_TRUE(std::isfinite(value));
}

TEST(Optim, GivenATensorCutIntoSegmentsExpectTheSameBits) {
  EXPECT_EQ(RunSgd({kElems}), RunSgd({1}));
  EXPECT_EQ(RunSgd({kElems}), RunSgd({7, 64, 129}));
  EXPECT_EQ(RunAdam({kElems}), RunAdam({1}));
  EXPECT_EQ(RunAdam({kElems}), RunAdam({7, 64, 129}));
}

}  // namespace
}  // namespace gradlane
