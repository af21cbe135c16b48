#include "trainer/model_spec.h"

#include <algorithm>
#include <cmath>

namespace gradlane {

size_t TensorSpec::NumElems() const {
  size_t num_elems = 1;
  for (int64_t dim : dims) num_elems *= size_t(dim);
  return num_elems;
}

size_t ModelSpec::NumParams() const {
  size_t num_elems = 0;
  for (const TensorSpec& tensor : tensors) num_elems += tensor.NumElems();
  return num_elems;
}

// He et al. 2015, "Delving Deep into Rectifiers", section 2.2: gain 2 keeps the variance through a ReLU. The last
// layer, with none after it, gets 1/3, so that the loss starts near that of chance.
float SpecBuilder::InitStddev(size_t fan_in, bool relu) const {
  const double gain = small_init_ ? 1.0 / 3 : relu ? 2.0 : 1.0 / 3;
  return float(std::sqrt(gain / double(fan_in)));
}

SpecBuilder::SpecBuilder(std::string name, ImageShape image, int num_classes) {
  spec_.name = std::move(name);
  spec_.image = image;
  spec_.num_classes = num_classes;
  spec_.values.push_back({image.channels, image.height, image.width});
}

int SpecBuilder::AddTensor(const std::string& name, std::vector<int64_t> dims, bool decay, float stddev, float value) {
  spec_.tensors.push_back({name, std::move(dims), CurrentLayer(), decay, stddev, value});
  return int(spec_.tensors.size()) - 1;
}

int SpecBuilder::AddOp(OpSpec op, ValueShape output) {
  CHECK(output.channels > 0 && output.height > 0 && output.width > 0);
  op.layer = CurrentLayer();
  op.output = int(spec_.values.size());
  spec_.values.push_back(output);
  spec_.ops.push_back(op);
  return op.output;
}

int SpecBuilder::Conv(int x, const std::string& name, const ConvOptions& options) {
  const ValueShape in = shape(x);
  const size_t fan_in = size_t(in.channels) * options.kernel * options.kernel;
  spec_.num_layers++;
  OpSpec conv{.kind = OpKind::kConv,
              .input = x,
              .kernel = options.kernel,
              .stride = options.stride,
              .pad_begin = options.pad,
              .pad_end = options.pad,
              .relu = options.relu && !options.batch_norm};
  // With batch normalisation behind it the scale of a convolution is immaterial to forward; gain 2 is customary.
  conv.weight = AddTensor(name + ".weight", {options.channels, in.channels, options.kernel, options.kernel}, true,
                          InitStddev(fan_in, options.relu || options.batch_norm), 0);
  if (!options.batch_norm) conv.bias = AddTensor(name + ".bias", {options.channels}, false, 0, 0);
  CHECK(in.height + 2 * options.pad >= options.kernel && in.width + 2 * options.pad >= options.kernel);
  const ValueShape out{options.channels, (in.height + 2 * options.pad - options.kernel) / options.stride + 1,
                       (in.width + 2 * options.pad - options.kernel) / options.stride + 1};
  int y = AddOp(conv, out);
  if (!options.batch_norm) return y;
  OpSpec norm{.kind = OpKind::kBatchNorm, .input = y, .relu = options.relu};
  norm.weight = AddTensor(name + ".bn.scale", {options.channels}, false, 0, 1);
  norm.bias = AddTensor(name + ".bn.shift", {options.channels}, false, 0, 0);
  return AddOp(norm, out);
}

int SpecBuilder::FullyConnected(int x, const std::string& name, int outputs, bool relu) {
  const int inputs = int(shape(x).NumElems());
  // Only the first of a run of fully connected layers sees channels, and a backend's order of them.
  if (spec_.ops.empty() || spec_.ops.back().output != x || spec_.ops.back().kind != OpKind::kFullyConnected) {
    x = AddOp({.kind = OpKind::kFlatten, .input = x}, {inputs, 1, 1});
  }
  spec_.num_layers++;
  OpSpec fc{.kind = OpKind::kFullyConnected, .input = x, .relu = relu};
  fc.weight = AddTensor(name + ".weight", {outputs, inputs}, true, InitStddev(size_t(inputs), relu), 0);
  fc.bias = AddTensor(name + ".bias", {outputs}, false, 0, 0);
  return AddOp(fc, {outputs, 1, 1});
}

int SpecBuilder::MaxPool(int x, int kernel, int stride, int pad, bool round_up) {
  const ValueShape in = shape(x);
  CHECK(in.height == in.width && in.height + 2 * pad >= (round_up ? 1 : kernel));
  int steps = (in.height + 2 * pad - kernel + (round_up ? stride - 1 : 0)) / stride;
  if (in.height + 2 * pad < kernel) steps = 0;
  // The last window reaches to steps * stride + kernel - pad; what lies beyond the input is padding.
  const int pad_end = std::max(0, steps * stride + kernel - pad - in.height);
  return AddOp(
      {.kind = OpKind::kMaxPool, .input = x, .kernel = kernel, .stride = stride, .pad_begin = pad, .pad_end = pad_end},
      {in.channels, steps + 1, steps + 1});
}

int SpecBuilder::GlobalAvgPool(int x) {
  return AddOp({.kind = OpKind::kGlobalAvgPool, .input = x}, {shape(x).channels, 1, 1});
}

int SpecBuilder::AddRelu(int x, int x2) {
  CHECK(shape(x) == shape(x2));
  return AddOp({.kind = OpKind::kAdd, .input = x, .input2 = x2, .relu = true}, shape(x));
}

ModelSpec SpecBuilder::SoftmaxLoss(int logits) && {
  CHECK(shape(logits) == (ValueShape{spec_.num_classes, 1, 1}));
  spec_.ops.push_back({.kind = OpKind::kSoftmaxLoss, .layer = CurrentLayer(), .input = logits});
  return std::move(spec_);
}

}  // namespace gradlane
