// Model is a network as the trainer sees it: named tensors grouped by layer, a forward and a backward pass that say
// when a layer's parameters are first read and when its gradients are ready. Device-neutral; CpuModel (oneDNN) is the
// one implementation now, a cuDNN one will keep this contract.
//
// Owned and called by the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/base/error.h"

namespace gradlane {

struct ImageShape {
  int channels = 1;
  int height = 28;
  int width = 28;
  size_t NumElems() const { return size_t(channels) * height * width; }
  bool operator==(const ImageShape&) const = default;
};

// One trainable tensor. A layer is a unit of scheduling: a convolution or fully connected layer with its bias, and the
// batch normalisation that follows it. Layers are numbered in the order that forward first reads them.
struct TensorSpec {
  std::string name;  // "conv1.weight"
  std::vector<int64_t> dims;
  uint32_t layer = 0;
  bool decay = true;      // false for biases and batch normalisation
  float init_stddev = 0;  // 0: constant init_value, else normal
  float init_value = 0;
  size_t NumElems() const;
};

// Called on the training thread, in the middle of a pass.
class PassHooks {
 public:
  virtual ~PassHooks() = default;
  // Forward is about to read this layer's parameters for the first time in this step.
  virtual void BeforeForward(uint32_t layer) = 0;
  virtual void AfterForward(uint32_t layer) = 0;
  // Backward is about to start on this layer / has written all of its gradients and will not read its parameters again.
  virtual void BeforeBackward(uint32_t layer) = 0;
  virtual void AfterBackward(uint32_t layer) = 0;
};

struct EvalResult {
  size_t correct = 0;
  double loss_sum = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual std::span<const TensorSpec> tensors() const = 0;  // layers never decrease
  virtual uint32_t num_layers() const = 0;

  // params[i], grads[i]: where tensor i lives, NumElems fp32 each, 64-byte aligned, host memory, owned by the caller,
  // valid while the model is used. Gradients are overwritten, never accumulated. Before the first pass.
  virtual void Bind(std::span<const std::span<float>> params, std::span<const std::span<float>> grads) = 0;

  // images: (batch, C, H, W) fp32. labels: (batch,). Mean softmax cross-entropy over the batch.
  virtual float Forward(std::span<const float> images, std::span<const int32_t> labels, PassHooks& hooks) = 0;
  virtual void Backward(PassHooks& hooks) = 0;  // of the last Forward

  // Inference (running statistics in batch normalisation) over count <= batch images, through the same memory.
  virtual EvalResult Evaluate(std::span<const float> images, std::span<const int32_t> labels, size_t count) = 0;

  virtual std::string Describe() const = 0;  // "lenet5, 431,080 parameters in 4 layers, oneDNN 2.6.3 (avx512_core), 1 thread"
};

struct ModelOptions {
  std::string name;  // mlp, lenet5, vgg11, resnet20, vgg16, resnet50
  ImageShape image;
  int num_classes = 10;
  int batch = 64;
  int num_threads = 1;
};

// kInvalidArgument: unknown name (lists what there is), or an image shape the model is not made for.
Result<std::unique_ptr<Model>> BuildCpuModel(const ModelOptions& options);

// The tensors alone, without building anything: what Layout is tested with, for vgg16 and resnet50 too.
Result<std::vector<TensorSpec>> ModelTensors(const std::string& name, ImageShape image, int num_classes);

// Fills one tensor; the same bits for the same seed and tensor index, whatever the number of ranks.
void InitTensor(const TensorSpec& spec, size_t tensor_index, uint64_t seed, std::span<float> out);

}  // namespace gradlane
