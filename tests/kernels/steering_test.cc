// DensitySteering under error feedback, on gradients of several kinds: within 20% of the asked density over any 100
// steps after the first 50.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kernels/fec.h"
#include "tests/kernels/random_tensor.h"

namespace gradlane {
namespace {

constexpr size_t kElems = 6000;
constexpr size_t kSettleSteps = 50, kWindowSteps = 100;

// Turns unit Gaussians into the gradient of a step.
using MakeGrad = std::function<void(size_t step, std::vector<float>& grad)>;

std::vector<double> RunSteps(double density, size_t num_steps, int first_exponent, const MakeGrad& make) {
  fec::DensitySteering steering(density, first_exponent);
  std::vector<float> residual(kElems);
  std::vector<double> achieved;
  for (size_t step = 0; step < num_steps; ++step) {
    std::vector<float> grad = Gaussian(kElems, 0.01f, static_cast<uint32_t>(1000 + step));
    make(step, grad);
    fec::Params params;
    steering.ApplyTo(params);
    const size_t survivors = EncodeAll(grad, residual, params).stats.survivors;
    steering.Observe(survivors, kElems);
    achieved.push_back(static_cast<double>(survivors) / kElems);
  }
  return achieved;
}

void ExpectWithin20Percent(double density, const std::vector<double>& achieved) {
  for (size_t first = kSettleSteps; first + kWindowSteps <= achieved.size(); ++first) {
    double mean = 0;
    for (size_t i = 0; i < kWindowSteps; ++i) mean += achieved[first + i] / kWindowSteps;
    ASSERT_NEAR(mean, density, 0.2 * density) << "from step " << first;
  }
}

void ExpectSteered(const MakeGrad& make) {
  for (double density : {0.003, 0.01, 0.03, 0.1}) {
    SCOPED_TRACE(density);
    ExpectWithin20Percent(density, RunSteps(density, 300, -7, make));
  }
}

TEST(DensitySteering, GivenGaussianGradientsExpectTheDensityAsked) {
  ExpectSteered([](size_t, auto&) {});
}

TEST(DensitySteering, GivenShrinkingGradientsExpectTheDensityAsked) {
  ExpectSteered([](size_t step, std::vector<float>& grad) {
    for (float& value : grad) value *= std::exp(-static_cast<float>(step) / 150);
  });
}

TEST(DensitySteering, GivenGradientsWithAMeanExpectTheDensityAsked) {
  const std::vector<float> mean = Gaussian(kElems, 0.003f, 5);
  ExpectSteered([&mean](size_t, std::vector<float>& grad) {
    for (size_t i = 0; i < kElems; ++i) grad[i] = 0.5f * grad[i] + mean[i];
  });
}

TEST(DensitySteering, GivenAScalePerElementExpectTheDensityAsked) {
  const std::vector<float> scale = Gaussian(kElems, 1.5f, 6);
  ExpectSteered([&scale](size_t, std::vector<float>& grad) {
    for (size_t i = 0; i < kElems; ++i) grad[i] *= std::exp(scale[i]);
  });
}

TEST(DensitySteering, GivenMostlyZeroGradientsExpectTheDensityAsked) {
  ExpectSteered([](size_t step, std::vector<float>& grad) {
    std::mt19937 random(static_cast<uint32_t>(step));
    for (float& value : grad) value = random() % 20 == 0 ? 3 * value : 0.0f;
  });
}

TEST(DensitySteering, GivenAFirstExponentFarOffExpectTheDensityAskedAfterTheFirstSteps) {
  for (int first_exponent : {-14, 0}) {
    SCOPED_TRACE(first_exponent);
    ExpectWithin20Percent(0.02, RunSteps(0.02, 200, first_exponent, [](size_t, auto&) {}));
  }
}

TEST(DensitySteering, GivenTheSameCountsExpectTheSameThresholds) {
  fec::DensitySteering one(0.01), two(0.01);
  std::mt19937 random(3);
  for (int step = 0; step < 1000; ++step) {
    const size_t survivors = random() % 300;
    one.Observe(survivors, 10000);
    two.Observe(survivors, 10000);
    ASSERT_EQ(one.threshold_exponent(), two.threshold_exponent());
    ASSERT_EQ(one.threshold_mantissa(), two.threshold_mantissa());
  }
}

TEST(DensitySteering, GivenAllOrNothingForeverExpectAThresholdThatEncodeAccepts) {
  for (size_t survivors : {0, 10}) {
    fec::DensitySteering steering(0.01);
    for (int step = 0; step < 5000; ++step) steering.Observe(survivors, 10);
    for (fec::Rounding rounding : {fec::Rounding::kNearest, fec::Rounding::kTruncate}) {
      fec::Params params = {.rounding = rounding};
      steering.ApplyTo(params);
      EXPECT_TRUE(EncodeAll(std::vector<float>(10, 1.0f), {}, params).stats.finite);
    }
  }
}

}  // namespace
}  // namespace gradlane
