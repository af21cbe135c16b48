// Every kind of op against plain loops over doubles: the loss, and gradients by central differences.
//
// Tolerances. A float32 sum of n terms of like size is off by about sqrt(n) 2^-24 of its terms' norm: 1e-6 for the
// sums of up to 10^4 terms here. Winograd's F(4x4, 3x3) transforms lose a factor of up to 100 of that (Lavin and Gray
// 2016, section 5.3). So 3e-4 of the tensor's largest gradient is passed by correct code with room, and missed by a
// wrong divisor, index or mask. The doubles' own error, 1e-16 / kStep and kStep^2, is far below.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "model_reference.h"

namespace gradlane {
namespace {

constexpr double kStep = 1e-5;
constexpr double kTolerance = 3e-4;

void CheckAgainstReference(const ModelSpec& spec, int batch, int num_threads, int samples_per_tensor = 8) {
  BoundModel bound(spec, batch, num_threads);
  ReferenceModel reference(spec, batch);
  for (size_t t = 0; t < spec.tensors.size(); t++) {
    std::copy(bound.memory->params()[t].begin(), bound.memory->params()[t].end(), reference.params()[t].begin());
  }
  for (std::span<float> grad : bound.memory->grads())
    std::fill(grad.begin(), grad.end(), NAN);  // overwritten, not added to

  const float loss = bound.Step();
  const double expected_loss = reference.Loss(bound.images, bound.labels);
  EXPECT_NEAR(loss, expected_loss, 1e-5 * std::max(1.0, expected_loss));

  for (size_t t = 0; t < spec.tensors.size(); t++) {
    SCOPED_TRACE(spec.tensors[t].name);
    std::span<const float> grad = bound.memory->grads()[t];
    double largest = 0;
    for (float g : grad) {
      ASSERT_TRUE(std::isfinite(g));
      largest = std::max(largest, double(std::fabs(g)));
    }
    EXPECT_GT(largest, 0);
    // The largest gradient, the ends, and a stride through the rest.
    std::vector<size_t> at = {0, grad.size() - 1};
    at.push_back(size_t(std::max_element(grad.begin(), grad.end()) - grad.begin()));
    for (int i = 1; i < samples_per_tensor; i++) at.push_back(size_t(i) * 7919 % grad.size());
    for (size_t k : at) {
      double& param = reference.params()[t][k];
      const double value = param;
      param = value + kStep;
      const double above = reference.Loss(bound.images, bound.labels);
      param = value - kStep;
      const double below = reference.Loss(bound.images, bound.labels);
      param = value;
      EXPECT_NEAR(grad[k], (above - below) / (2 * kStep), kTolerance * largest + 1e-7) << "element " << k;
    }
  }
}

SpecBuilder Small(int channels, int size) { return SpecBuilder("test", {channels, size, size}, 5); }

ModelSpec Finish(SpecBuilder b, int x) {
  x = b.FullyConnected(x, "fc", 5, false);
  return std::move(b).SoftmaxLoss(x);
}

TEST(LayersGradient, FullyConnected) {
  SpecBuilder b = Small(3, 4);
  int x = b.FullyConnected(b.image(), "a", 37, true);
  x = b.FullyConnected(x, "b", 16, false);
  CheckAgainstReference(Finish(std::move(b), x), 6, 1);
}

TEST(LayersGradient, ConvolutionOfOneChannelWithOddWidths) {
  SpecBuilder b = Small(1, 12);
  int x = b.Conv(b.image(), "a", {.channels = 20, .kernel = 5, .relu = true});
  x = b.Conv(x, "b", {.channels = 50, .kernel = 5});
  CheckAgainstReference(Finish(std::move(b), x), 3, 1);
}

TEST(LayersGradient, ConvolutionWithStrideAndPadding) {
  SpecBuilder b = Small(3, 11);
  int x = b.Conv(b.image(), "a", {.channels = 16, .kernel = 7, .stride = 2, .pad = 3, .relu = true});
  x = b.Conv(x, "b", {.channels = 32, .kernel = 3, .stride = 2, .pad = 1, .relu = true});
  x = b.Conv(x, "c", {.channels = 24, .kernel = 1, .stride = 2});
  CheckAgainstReference(Finish(std::move(b), x), 3, 2);
}

// Enough images and channels that oneDNN takes Winograd where the machine has it (AVX-512: ONEDNN_VERBOSE=1 shows
// jit_wino_4x3).
TEST(LayersGradient, WideConvolution) {
  SpecBuilder b = Small(1, 8);
  int x = b.Conv(b.image(), "a", {.channels = 32, .kernel = 3, .pad = 1, .relu = true});
  x = b.Conv(x, "b", {.channels = 32, .kernel = 3, .pad = 1, .relu = true});
  x = b.Conv(x, "c", {.channels = 32, .kernel = 3, .pad = 1});
  x = b.GlobalAvgPool(x);
  CheckAgainstReference(Finish(std::move(b), x), 16, 1, 2);
}

TEST(LayersGradient, BatchNormWithAndWithoutRelu) {
  SpecBuilder b = Small(3, 8);
  int x = b.Conv(b.image(), "a", {.channels = 16, .kernel = 3, .pad = 1, .batch_norm = true, .relu = true});
  x = b.Conv(x, "b", {.channels = 32, .kernel = 3, .pad = 1, .batch_norm = true});
  CheckAgainstReference(Finish(std::move(b), x), 4, 1);
}

TEST(LayersGradient, BatchNormOfOddWidths) {
  SpecBuilder b = Small(1, 7);
  int x = b.Conv(b.image(), "a", {.channels = 5, .kernel = 3, .batch_norm = true, .relu = true});
  x = b.Conv(x, "b", {.channels = 21, .kernel = 3, .batch_norm = true});
  CheckAgainstReference(Finish(std::move(b), x), 4, 1);
}

TEST(LayersGradient, Pooling) {
  SpecBuilder b = Small(3, 13);
  int x = b.Conv(b.image(), "a", {.channels = 16, .kernel = 3, .pad = 1});
  x = b.MaxPool(x, 3, 2, 1);  // overlapping windows and a padded border: 7x7
  x = b.Conv(x, "b", {.channels = 20, .kernel = 1});
  x = b.MaxPool(x, 2, 2, 0, /*round_up=*/true);  // the last window sticks out: 4x4
  x = b.Conv(x, "c", {.channels = 16, .kernel = 1});
  x = b.GlobalAvgPool(x);
  CheckAgainstReference(Finish(std::move(b), x), 3, 1);
}

TEST(LayersGradient, ResidualBlocks) {
  SpecBuilder b = Small(3, 8);
  const SpecBuilder::ConvOptions wide = {.channels = 16, .kernel = 3, .pad = 1, .batch_norm = true, .relu = true};
  int x = b.Conv(b.image(), "stem", wide);
  for (int block = 0; block < 2; block++) {  // the input itself as shortcut, twice: two readers of one value
    const std::string name = "same" + std::to_string(block);
    int y = b.Conv(x, name + ".a", wide);
    y = b.Conv(y, name + ".b", {.channels = 16, .kernel = 3, .pad = 1, .batch_norm = true});
    x = b.AddRelu(y, x);
  }
  int y = b.Conv(x, "down.a", {.channels = 32, .kernel = 3, .stride = 2, .pad = 1, .batch_norm = true, .relu = true});
  y = b.Conv(y, "down.b", {.channels = 32, .kernel = 3, .pad = 1, .batch_norm = true});
  int shortcut = b.Conv(x, "down.shortcut", {.channels = 32, .kernel = 1, .stride = 2, .batch_norm = true});
  x = b.GlobalAvgPool(b.AddRelu(y, shortcut));
  CheckAgainstReference(Finish(std::move(b), x), 4, 2, 3);
}

TEST(LayersGradient, WholeMlp) { CheckAgainstReference(Zoo("mlp"), 5, 1); }
TEST(LayersGradient, WholeLenet5) { CheckAgainstReference(Zoo("lenet5"), 4, 2, 4); }

// Given three training steps with parameters at rest, inference must use the moved running statistics, and a count
// below the batch must give the loss and the hits of those images alone.
TEST(LayersInference, RunningStatisticsAndPartialBatch) {
  SpecBuilder b = Small(3, 8);
  int x = b.Conv(b.image(), "a", {.channels = 16, .kernel = 3, .pad = 1, .batch_norm = true, .relu = true});
  x = b.Conv(x, "b", {.channels = 16, .kernel = 3, .pad = 1, .batch_norm = true});
  const ModelSpec spec = Finish(std::move(b), x);
  constexpr int kBatch = 6;
  BoundModel bound(spec, kBatch, 1);
  ReferenceModel reference(spec, kBatch);
  for (size_t t = 0; t < spec.tensors.size(); t++) {
    std::copy(bound.memory->params()[t].begin(), bound.memory->params()[t].end(), reference.params()[t].begin());
  }
  for (int step = 0; step < 4; step++) {
    for (size_t count : {size_t(kBatch), size_t(4), size_t(1)}) {
      const auto images = std::span<const float>(bound.images).first(count * spec.image.NumElems());
      const auto labels = std::span<const int32_t>(bound.labels).first(count);
      size_t correct = 0;
      const double loss_sum = reference.Evaluate(images, labels, &correct);
      const EvalResult result = bound.model->Evaluate(images, labels, count);
      EXPECT_NEAR(result.loss_sum, loss_sum, 1e-4 * std::max(1.0, loss_sum))
          << "after " << step << " steps, of " << count;
      EXPECT_EQ(result.correct, correct);
    }
    bound.Step();
    reference.Loss(bound.images, bound.labels);
    reference.MoveRunningStatistics();
  }
}

}  // namespace
}  // namespace gradlane
