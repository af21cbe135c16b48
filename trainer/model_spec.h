// ModelSpec is a network as plain data: tensors, values and operations in the order that forward runs them. It knows
// shapes and nothing of a device, so a model is written once for every backend, and Layout can be computed (also for
// vgg16's 553 MB of parameters) without building anything.
//
// Immutable once built; any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/model.h"

namespace gradlane {

enum class OpKind {
  kFlatten,         // x: (N, C, H, W) -> y: (N, C*H*W, 1, 1)
  kConv,            // x: (N, C, H, W), weight: (O, C, K, K), bias: (O) or none -> y: (N, O, H', W')
  kFullyConnected,  // x: (N, I, 1, 1), weight: (O, I), bias: (O) or none -> y: (N, O, 1, 1)
  kBatchNorm,       // x: (N, C, H, W), scale: (C), shift: (C) -> y of the shape of x
  kMaxPool,         // x: (N, C, H, W) -> y: (N, C, H', W'); windows that stick out see -infinity there
  kGlobalAvgPool,   // x: (N, C, H, W) -> y: (N, C, 1, 1)
  kAdd,             // x, x2 -> y, all of one shape
  kSoftmaxLoss,     // logits x: (N, classes, 1, 1), labels: (N) -> mean cross-entropy; ends the list
};

struct ValueShape {
  int channels = 0;
  int height = 1;
  int width = 1;
  size_t NumElems() const { return size_t(channels) * height * width; }
  bool operator==(const ValueShape&) const = default;
};

// Indices are into ModelSpec::values and ModelSpec::tensors; -1: none.
struct OpSpec {
  OpKind kind = OpKind::kFlatten;
  uint32_t layer = 0;  // operations without tensors belong to the layer before them, those before layer 0 to layer 0
  int input = -1;
  int input2 = -1;  // kAdd
  int output = -1;  // none for kSoftmaxLoss
  int weight = -1;  // kBatchNorm: scale
  int bias = -1;    // kBatchNorm: shift
  int kernel = 1;
  int stride = 1;
  int pad_begin = 0;  // above and left
  int pad_end = 0;    // below and right
  bool relu = false;  // y = max(0, y); kConv, kFullyConnected, kBatchNorm, kAdd
};

struct ModelSpec {
  std::string name;
  ImageShape image;
  int num_classes = 0;
  uint32_t num_layers = 0;
  std::vector<ValueShape> values;  // per image; value 0 is the image
  std::vector<OpSpec> ops;         // layers never decrease; every value is written by one operation, before it is read
  std::vector<TensorSpec> tensors;

  size_t NumParams() const;
};

// The models of the zoo. kInvalidArgument: unknown name, or an image or a class count that it is not made for.
Result<ModelSpec> FindModel(const std::string& name, ImageShape image, int num_classes);

// Puts a ModelSpec together. Each method appends operations and returns the index of the value they produce; each call
// of Conv and FullyConnected opens a new layer. A window that does not fit its input is a bug of the caller.
class SpecBuilder {
 public:
  struct ConvOptions {
    int channels = 0;
    int kernel = 3;
    int stride = 1;
    int pad = 0;
    bool batch_norm = false;  // then the convolution has no bias: the shift does its work
    bool relu = false;
  };

  SpecBuilder(std::string name, ImageShape image, int num_classes);

  // Weights of all layers that follow with a variance of 1 / (3 fan-in), as PyTorch's layers start. For shallow nets
  // without batch normalisation: by He's rule LeNet-5 starts at a loss of 6 and dies at a learning rate of 0.05.
  void UseSmallInit() { small_init_ = true; }

  int image() const { return 0; }
  const ValueShape& shape(int value) const { return spec_.values[value]; }

  int Conv(int x, const std::string& name, const ConvOptions& options);
  int FullyConnected(int x, const std::string& name, int outputs, bool relu);  // flattens x before
  int MaxPool(int x, int kernel, int stride, int pad = 0, bool round_up = false);
  int GlobalAvgPool(int x);
  int AddRelu(int x, int x2);
  ModelSpec SoftmaxLoss(int logits) &&;

 private:
  int AddTensor(const std::string& name, std::vector<int64_t> dims, bool decay, float stddev, float value);
  int AddOp(OpSpec op, ValueShape output);
  float InitStddev(size_t fan_in, bool relu) const;
  uint32_t CurrentLayer() const { return spec_.num_layers == 0 ? 0 : spec_.num_layers - 1; }

  ModelSpec spec_;
  bool small_init_ = false;
};

}  // namespace gradlane
