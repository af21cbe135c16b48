// A second implementation of a ModelSpec's forward pass, as plain as can be: loops over doubles, one order, no library.
// Gradients come from it by central differences. Also what the model tests share: a model with memory bound to it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/model_cpu.h"
#include "trainer/model_spec.h"

namespace gradlane {

class ReferenceModel {
 public:
  ReferenceModel(ModelSpec spec, int batch);

  std::vector<std::vector<double>>& params() { return params_; }

  // Mean loss of a training pass; does not move the running statistics.
  double Loss(std::span<const float> images, std::span<const int32_t> labels);
  // Moves the running statistics by what the last Loss saw, as trainer/layers.h says.
  void MoveRunningStatistics();
  // Sum of the losses of an inference pass over labels.size() images; *correct counts.
  double Evaluate(std::span<const float> images, std::span<const int32_t> labels, size_t* correct);

 private:
  void Run(std::span<const float> images, bool training);
  void BatchNorm(const OpSpec& op, size_t op_index, bool training);
  double SoftmaxLoss(const OpSpec& op, std::span<const int32_t> labels, size_t* correct) const;

  struct Statistics {
    std::vector<double> mean, variance, running_mean, running_variance;
  };

  ModelSpec spec_;
  size_t batch_;
  std::vector<std::vector<double>> params_, values_;
  std::vector<Statistics> statistics_;  // by op
};

class NoHooks : public PassHooks {
 public:
  void BeforeForward(uint32_t) override {}
  void AfterForward(uint32_t) override {}
  void BeforeBackward(uint32_t) override {}
  void AfterBackward(uint32_t) override {}
};

// Parameters and gradients of a model, aligned as Bind asks.
class TensorMemory {
 public:
  explicit TensorMemory(std::span<const TensorSpec> tensors);
  std::span<const std::span<float>> params() const { return params_; }
  std::span<const std::span<float>> grads() const { return grads_; }
  // InitTensor; with `jitter`, constants (biases, scales) move off their values, so that no gradient is special.
  void Init(std::span<const TensorSpec> tensors, uint64_t seed, bool jitter);

 private:
  std::vector<float> storage_;
  std::vector<std::span<float>> params_, grads_;
};

// A built and bound model with one random batch.
struct BoundModel {
  BoundModel(ModelSpec spec, int batch, int num_threads, uint64_t seed = 1, bool jitter = true);
  float Step();  // Forward and Backward; the loss
  void ApplySgd(float learning_rate);

  std::unique_ptr<Model> model;
  std::unique_ptr<TensorMemory> memory;
  std::vector<float> images;
  std::vector<int32_t> labels;
};

ModelSpec Zoo(const char* name, ImageShape image = {1, 28, 28}, int num_classes = 10);
std::vector<float> Flat(std::span<const std::span<float>> tensors);

}  // namespace gradlane
