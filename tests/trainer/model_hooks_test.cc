// The promise that overlapping computation and communication rests on: parameters of layer k are first read after
// BeforeForward(k) and never again after AfterBackward(k), when its gradients are complete.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model_reference.h"

namespace gradlane {
namespace {

class RecordingHooks : public PassHooks {
 public:
  void BeforeForward(uint32_t layer) override { Record("+f", layer); }
  void AfterForward(uint32_t layer) override { Record("-f", layer); }
  void BeforeBackward(uint32_t layer) override { Record("+b", layer); }
  void AfterBackward(uint32_t layer) override { Record("-b", layer); }
  std::string events;

 private:
  void Record(const char* what, uint32_t layer) { events += what + std::to_string(layer) + " "; }
};

// Parameters are NaN except between BeforeForward(k) and AfterBackward(k); gradients are taken at AfterBackward(k) and
// then overwritten with NaN too.
class PoisoningHooks : public PassHooks {
 public:
  explicit PoisoningHooks(BoundModel& bound) : bound_(bound), truth_(Copy(bound.memory->params())) {
    for (uint32_t layer = 0; layer < bound.model->num_layers(); layer++) Poison(layer, bound.memory->params());
    grads_.resize(truth_.size());
  }

  void BeforeForward(uint32_t layer) override {
    ForEachTensor(layer,
                  [&](size_t t) { std::copy(truth_[t].begin(), truth_[t].end(), bound_.memory->params()[t].begin()); });
  }
  void AfterForward(uint32_t) override {}
  void BeforeBackward(uint32_t) override {}
  void AfterBackward(uint32_t layer) override {
    ForEachTensor(
        layer, [&](size_t t) { grads_[t].assign(bound_.memory->grads()[t].begin(), bound_.memory->grads()[t].end()); });
    Poison(layer, bound_.memory->params());
    Poison(layer, bound_.memory->grads());
  }

  const std::vector<std::vector<float>>& grads() const { return grads_; }

  static std::vector<std::vector<float>> Copy(std::span<const std::span<float>> tensors) {
    std::vector<std::vector<float>> copy;
    for (std::span<float> tensor : tensors) copy.emplace_back(tensor.begin(), tensor.end());
    return copy;
  }

 private:
  template <typename F>
  void ForEachTensor(uint32_t layer, F f) {
    const auto tensors = bound_.model->tensors();
    for (size_t t = 0; t < tensors.size(); t++) {
      if (tensors[t].layer == layer) f(t);
    }
  }
  void Poison(uint32_t layer, std::span<const std::span<float>> tensors) {
    ForEachTensor(layer, [&](size_t t) { std::fill(tensors[t].begin(), tensors[t].end(), NAN); });
  }

  BoundModel& bound_;
  std::vector<std::vector<float>> truth_, grads_;
};

class ModelHooks : public testing::TestWithParam<const char*> {};

TEST_P(ModelHooks, ForwardInOrderThenBackwardInReverseEachLayerOnce) {
  BoundModel bound(Zoo(GetParam()), 2, 1);
  std::string expected;
  const uint32_t num_layers = bound.model->num_layers();
  for (uint32_t l = 0; l < num_layers; l++) expected += "+f" + std::to_string(l) + " -f" + std::to_string(l) + " ";
  for (uint32_t l = num_layers; l-- > 0;) expected += "+b" + std::to_string(l) + " -b" + std::to_string(l) + " ";
  RecordingHooks hooks;
  bound.model->Forward(bound.images, bound.labels, hooks);
  bound.model->Backward(hooks);
  EXPECT_EQ(hooks.events, expected);
}

TEST_P(ModelHooks, ParametersAreNeededOnlyBetweenBeforeForwardAndAfterBackward) {
  BoundModel bound(Zoo(GetParam()), 4, 1);
  const float loss = bound.Step();
  const auto grads = PoisoningHooks::Copy(bound.memory->grads());

  PoisoningHooks hooks(bound);
  EXPECT_EQ(bound.model->Forward(bound.images, bound.labels, hooks), loss);
  bound.model->Backward(hooks);
  for (size_t t = 0; t < grads.size(); t++) EXPECT_EQ(hooks.grads()[t], grads[t]) << bound.model->tensors()[t].name;
}

TEST_P(ModelHooks, LayersNeverDecreaseAndEveryLayerHasATensor) {
  const ModelSpec spec = Zoo(GetParam());
  uint32_t layer = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    EXPECT_TRUE(tensor.layer == layer || tensor.layer == layer + 1) << tensor.name;
    layer = tensor.layer;
  }
  EXPECT_EQ(layer + 1, spec.num_layers);
}

INSTANTIATE_TEST_SUITE_P(Zoo, ModelHooks, testing::Values("mlp", "lenet5", "vgg11", "resnet20"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gradlane
