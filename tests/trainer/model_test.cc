// Models as wholes: shapes, counts, errors, determinism, and that they learn.
#include "trainer/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>

#include "model_reference.h"

namespace gradlane {
namespace {

using testing::HasSubstr;

size_t NumParams(const char* name, ImageShape image, int num_classes) {
  auto tensors = ModelTensors(name, image, num_classes);
  CHECK(tensors.has_value());
  size_t num_elems = 0;
  for (const TensorSpec& tensor : *tensors) num_elems += tensor.NumElems();
  return num_elems;
}

TEST(Model, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(NumParams("mlp", {1, 28, 28}, 10), 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10u);
  EXPECT_EQ(NumParams("lenet5", {1, 28, 28}, 10), 431080u);
  EXPECT_EQ(NumParams("lenet5", {3, 32, 32}, 10), 657080u);
  EXPECT_EQ(NumParams("vgg11", {3, 32, 32}, 10), 9228362u);
  EXPECT_EQ(NumParams("resnet20", {3, 32, 32}, 10), 272474u);
  EXPECT_EQ(NumParams("vgg16", {3, 224, 224}, 1000), 138357544u);
  EXPECT_EQ(NumParams("resnet50", {3, 224, 224}, 1000), 25557032u);
}

TEST(Model, SmallModelsTakeBothSizesAndBothChannelCounts) {
  for (const char* name : {"mlp", "lenet5", "vgg11", "resnet20"}) {
    for (ImageShape image :
         {ImageShape{1, 28, 28}, ImageShape{3, 28, 28}, ImageShape{1, 32, 32}, ImageShape{3, 32, 32}}) {
      auto model = BuildCpuModel({.name = name, .image = image, .num_classes = 7, .batch = 2});
      ASSERT_TRUE(model.has_value()) << model.error().message;
      auto tensors = ModelTensors(name, image, 7);
      ASSERT_TRUE(tensors.has_value());
      ASSERT_EQ(tensors->size(), (*model)->tensors().size());
      for (size_t t = 0; t < tensors->size(); t++) {
        EXPECT_EQ((*tensors)[t].dims, (*model)->tensors()[t].dims);
        EXPECT_EQ((*tensors)[t].name, (*model)->tensors()[t].name);
      }
    }
  }
}

void ExpectInvalid(const ModelOptions& options, const char* words) {
  auto model = BuildCpuModel(options);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(model.error().message, HasSubstr(words));
}

TEST(Model, WhatAModelIsNotMadeForIsOneClearSentence) {
  ExpectInvalid({.name = "lenet6"},
                "There is no model 'lenet6'; there are mlp, lenet5, vgg11, resnet20, vgg16, resnet50.");
  ExpectInvalid({.name = "lenet5", .image = {1, 224, 224}}, "28x28 or 32x32 with 1 or 3 channels, not 224x224 with 1.");
  ExpectInvalid({.name = "vgg11", .image = {2, 32, 32}}, "1 or 3 channels");
  ExpectInvalid({.name = "mlp", .image = {1, 28, 32}}, "not 28x32");
  ExpectInvalid({.name = "vgg16", .image = {3, 32, 32}}, "takes images of 224x224 with 3 channels");
  ExpectInvalid({.name = "resnet50", .image = {1, 224, 224}}, "with 3 channels");
  ExpectInvalid({.name = "mlp", .num_classes = 1}, "classes");
  ExpectInvalid({.name = "mlp", .batch = 0}, "at least 1 image");
  ExpectInvalid({.name = "mlp", .num_threads = 0}, "at least 1 thread");
  EXPECT_FALSE(ModelTensors("vgg16", {3, 64, 64}, 1000).has_value());
}

TEST(Model, DescribeNamesWhatRuns) {
  auto model = BuildCpuModel({.name = "lenet5"});
  ASSERT_TRUE(model.has_value());
  EXPECT_THAT((*model)->Describe(),
              testing::MatchesRegex("lenet5, 431,080 parameters in 4 layers, oneDNN [0-9.]+ \\(.+\\), 1 thread"));
}

// Everything that a few steps of training leave behind.
std::vector<float> Train(const char* name, int batch, int num_threads, int steps) {
  BoundModel bound(Zoo(name), batch, num_threads);
  std::vector<float> trace;
  for (int step = 0; step < steps; step++) {
    trace.push_back(bound.Step());
    bound.ApplySgd(0.05f);
  }
  trace.push_back(float(bound.model->Evaluate(bound.images, bound.labels, bound.labels.size()).loss_sum));
  for (const auto& tensors : {bound.memory->grads(), bound.memory->params()}) {
    const std::vector<float> flat = Flat(tensors);
    trace.insert(trace.end(), flat.begin(), flat.end());
  }
  return trace;
}

class SmallModel : public testing::TestWithParam<const char*> {};

TEST_P(SmallModel, TheSameStepsGiveTheSameBits) {
  for (int num_threads : {1, 2}) {
    const std::vector<float> first = Train(GetParam(), 16, num_threads, 2);
    for (int run = 0; run < 2; run++) {
      EXPECT_TRUE(Train(GetParam(), 16, num_threads, 2) == first) << num_threads << " threads, run " << run;
    }
  }
}

TEST_P(SmallModel, TwoModelsOnTwoThreadsComputeWhatOneDoes) {
  const std::vector<float> alone = Train(GetParam(), 8, 1, 2);
  std::vector<float> together[2];
  std::thread other([&] { together[1] = Train(GetParam(), 8, 1, 2); });
  together[0] = Train(GetParam(), 8, 1, 2);
  other.join();
  EXPECT_TRUE(together[0] == alone);
  EXPECT_TRUE(together[1] == alone);
}

TEST_P(SmallModel, LearnsAFixedBatch) {
  BoundModel bound(Zoo(GetParam()), 16, 1, 1, /*jitter=*/false);
  const float before = bound.Step();
  EXPECT_LT(before, 3 * std::log(10.0f));  // a sensible start: near chance
  const bool batch_norm = bound.model->num_layers() > 4;
  for (int step = 0; step < (batch_norm ? 10 : 40); step++) {
    bound.ApplySgd(batch_norm ? 0.05f : 0.1f);
    bound.Step();
  }
  EXPECT_LT(bound.Step(), 0.6f * before);
}

INSTANTIATE_TEST_SUITE_P(Zoo, SmallModel, testing::Values("mlp", "lenet5", "vgg11", "resnet20"),
                         [](const auto& info) { return std::string(info.param); });

// Four workers of batch 4 average to one of batch 16 (no batch normalisation in lenet5).
TEST(Model, MeanGradientOfFourQuartersIsThatOfTheWhole) {
  BoundModel whole(Zoo("lenet5"), 16, 1);
  BoundModel quarter(Zoo("lenet5"), 4, 1);
  whole.Step();
  const std::vector<float> expected = Flat(whole.memory->grads());
  std::vector<float> mean(expected.size());
  const size_t image_elems = 28 * 28;
  NoHooks hooks;
  for (size_t q = 0; q < 4; q++) {
    quarter.model->Forward(std::span(whole.images).subspan(q * 4 * image_elems, 4 * image_elems),
                           std::span(whole.labels).subspan(q * 4, 4), hooks);
    quarter.model->Backward(hooks);
    const std::vector<float> part = Flat(quarter.memory->grads());
    for (size_t i = 0; i < mean.size(); i++) mean[i] += part[i] / 4;
  }
  float largest = 0, worst = 0;
  for (size_t i = 0; i < mean.size(); i++) {
    largest = std::max(largest, std::fabs(expected[i]));
    worst = std::max(worst, std::fabs(expected[i] - mean[i]));
  }
  EXPECT_LT(worst, 1e-5f * largest);
}

TEST(InitTensor, IsAFunctionOfSeedTensorAndElementAlone) {
  const TensorSpec spec{.name = "w", .dims = {101, 99}, .init_stddev = 0.5f};
  std::vector<float> a(spec.NumElems()), b(spec.NumElems());
  InitTensor(spec, 3, 42, a);
  InitTensor(spec, 3, 42, b);
  EXPECT_EQ(a, b);
  InitTensor(spec, 4, 42, b);
  EXPECT_NE(a, b);
  InitTensor(spec, 3, 43, b);
  EXPECT_NE(a, b);
  TensorSpec shorter = spec;
  shorter.dims = {7};
  std::vector<float> prefix(7);
  InitTensor(shorter, 3, 42, prefix);
  EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), a.begin()));
}

TEST(InitTensor, IsNormal) {
  const TensorSpec spec{.name = "w", .dims = {1000000}, .init_stddev = 0.5f};
  std::vector<float> x(spec.NumElems());
  InitTensor(spec, 0, 1, x);
  double moments[5] = {};
  size_t beyond_two = 0;
  for (float v : x) {
    double power = 1;
    for (double& moment : moments) {
      moment += power / double(x.size());
      power *= v / 0.5;
    }
    beyond_two += std::fabs(v) > 1.0f;
  }
  EXPECT_NEAR(moments[1], 0, 0.004);  // four standard errors each
  EXPECT_NEAR(moments[2], 1, 0.006);
  EXPECT_NEAR(moments[3], 0, 0.016);
  EXPECT_NEAR(moments[4], 3, 0.04);
  EXPECT_NEAR(double(beyond_two) / double(x.size()), 0.0455, 0.001);
}

TEST(InitTensor, FillsConstants) {
  const TensorSpec spec{.name = "scale", .dims = {17}, .init_value = 1};
  std::vector<float> x(17);
  InitTensor(spec, 0, 1, x);
  EXPECT_THAT(x, testing::Each(1.0f));
}

}  // namespace
}  // namespace gradlane
