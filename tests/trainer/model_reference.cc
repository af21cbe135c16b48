#include "model_reference.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "trainer/layers.h"

namespace gradlane {

ReferenceModel::ReferenceModel(ModelSpec spec, int batch) : spec_(std::move(spec)), batch_(size_t(batch)) {
  for (const TensorSpec& tensor : spec_.tensors) params_.emplace_back(tensor.NumElems());
  for (const ValueShape& shape : spec_.values) values_.emplace_back(batch_ * shape.NumElems());
  statistics_.resize(spec_.ops.size());
  for (size_t i = 0; i < spec_.ops.size(); i++) {
    if (spec_.ops[i].kind != OpKind::kBatchNorm) continue;
    const size_t channels = size_t(spec_.values[spec_.ops[i].input].channels);
    statistics_[i].mean = statistics_[i].variance = std::vector<double>(channels);
    statistics_[i].running_mean.assign(channels, 0);
    statistics_[i].running_variance.assign(channels, 1);
  }
}

void ReferenceModel::BatchNorm(const OpSpec& op, size_t op_index, bool training) {
  const std::vector<double>& x = values_[op.input];
  std::vector<double>& y = values_[op.output];
  const ValueShape& shape = spec_.values[op.input];
  const size_t channels = size_t(shape.channels), area = size_t(shape.height) * shape.width;
  Statistics& s = statistics_[op_index];
  for (size_t c = 0; c < channels; c++) {
    auto at = [&](size_t n, size_t i) { return (n * channels + c) * area + i; };
    double mean = s.running_mean[c], variance = s.running_variance[c];
    if (training) {
      mean = variance = 0;
      for (size_t n = 0; n < batch_; n++)
        for (size_t i = 0; i < area; i++) mean += x[at(n, i)];
      mean /= double(batch_ * area);
      for (size_t n = 0; n < batch_; n++)
        for (size_t i = 0; i < area; i++) variance += (x[at(n, i)] - mean) * (x[at(n, i)] - mean);
      variance /= double(batch_ * area);
      s.mean[c] = mean;
      s.variance[c] = variance;
    }
    const double scale = params_[op.weight][c] / std::sqrt(variance + double(kBatchNormEpsilon));
    for (size_t n = 0; n < batch_; n++)
      for (size_t i = 0; i < area; i++) y[at(n, i)] = scale * (x[at(n, i)] - mean) + params_[op.bias][c];
  }
}

void ReferenceModel::Run(std::span<const float> images, bool training) {
  std::fill(values_[0].begin(), values_[0].end(), 0.0);
  std::copy(images.begin(), images.end(), values_[0].begin());
  for (size_t op_index = 0; op_index < spec_.ops.size(); op_index++) {
    const OpSpec& op = spec_.ops[op_index];
    if (op.kind == OpKind::kSoftmaxLoss) return;
    const std::vector<double>& x = values_[op.input];
    std::vector<double>& y = values_[op.output];
    const ValueShape in = spec_.values[op.input], out = spec_.values[op.output];
    // Rows and columns of the window at (h, w) that lie inside the input.
    auto for_window = [&](int h, int w, auto&& f) {
      for (int kh = 0; kh < op.kernel; kh++) {
        for (int kw = 0; kw < op.kernel; kw++) {
          const int ih = h * op.stride - op.pad_begin + kh, iw = w * op.stride - op.pad_begin + kw;
          if (ih >= 0 && ih < in.height && iw >= 0 && iw < in.width) f(ih, iw, kh, kw);
        }
      }
    };
    auto for_output = [&](auto&& f) {
      for (size_t n = 0, i = 0; n < batch_; n++)
        for (int c = 0; c < out.channels; c++)
          for (int h = 0; h < out.height; h++)
            for (int w = 0; w < out.width; w++, i++) y[i] = f(n, c, h, w);
    };
    auto input = [&](size_t n, int c, int h, int w) {
      return x[((n * size_t(in.channels) + size_t(c)) * in.height + h) * in.width + w];
    };
    switch (op.kind) {
      case OpKind::kFlatten:
        y = x;
        break;
      case OpKind::kConv:
        for_output([&](size_t n, int o, int h, int w) {
          double sum = op.bias >= 0 ? params_[op.bias][o] : 0;
          for (int c = 0; c < in.channels; c++)
            for_window(h, w, [&](int ih, int iw, int kh, int kw) {
              const size_t k = ((size_t(o) * in.channels + c) * op.kernel + kh) * op.kernel + kw;
              sum += input(n, c, ih, iw) * params_[op.weight][k];
            });
          return sum;
        });
        break;
      case OpKind::kFullyConnected:
        for_output([&](size_t n, int o, int, int) {
          double sum = params_[op.bias][o];
          for (int c = 0; c < in.channels; c++)
            sum += input(n, c, 0, 0) * params_[op.weight][size_t(o) * in.channels + c];
          return sum;
        });
        break;
      case OpKind::kBatchNorm:
        BatchNorm(op, op_index, training);
        break;
      case OpKind::kMaxPool:
        for_output([&](size_t n, int c, int h, int w) {
          double max = -INFINITY;
          for_window(h, w, [&](int ih, int iw, int, int) { max = std::max(max, input(n, c, ih, iw)); });
          return max;
        });
        break;
      case OpKind::kGlobalAvgPool:
        for_output([&](size_t n, int c, int, int) {
          double sum = 0;
          for (int h = 0; h < in.height; h++)
            for (int w = 0; w < in.width; w++) sum += input(n, c, h, w);
          return sum / (in.height * in.width);
        });
        break;
      case OpKind::kAdd:
        for (size_t i = 0; i < y.size(); i++) y[i] = x[i] + values_[op.input2][i];
        break;
      case OpKind::kSoftmaxLoss:
        break;
    }
    if (op.relu) {
      for (double& v : y) v = std::max(v, 0.0);
    }
  }
}

double ReferenceModel::SoftmaxLoss(const OpSpec& op, std::span<const int32_t> labels, size_t* correct) const {
  const size_t classes = size_t(spec_.num_classes);
  double loss = 0;
  *correct = 0;
  for (size_t n = 0; n < labels.size(); n++) {
    const double* x = values_[op.input].data() + n * classes;
    const double* best = std::max_element(x, x + classes);
    double sum = 0;
    for (size_t k = 0; k < classes; k++) sum += std::exp(x[k] - *best);
    loss += std::log(sum) + *best - x[labels[n]];
    *correct += best - x == labels[n];
  }
  return loss;
}

double ReferenceModel::Loss(std::span<const float> images, std::span<const int32_t> labels) {
  Run(images, true);
  size_t correct;
  return SoftmaxLoss(spec_.ops.back(), labels, &correct) / double(labels.size());
}

void ReferenceModel::MoveRunningStatistics() {
  for (size_t i = 0; i < statistics_.size(); i++) {
    Statistics& s = statistics_[i];
    if (s.mean.empty()) continue;
    const ValueShape& shape = spec_.values[spec_.ops[i].input];
    const double samples = double(batch_) * shape.height * shape.width;
    for (size_t c = 0; c < s.mean.size(); c++) {
      s.running_mean[c] = 0.9 * s.running_mean[c] + 0.1 * s.mean[c];
      s.running_variance[c] = 0.9 * s.running_variance[c] + 0.1 * s.variance[c] * samples / (samples - 1);
    }
  }
}

double ReferenceModel::Evaluate(std::span<const float> images, std::span<const int32_t> labels, size_t* correct) {
  Run(images, false);
  return SoftmaxLoss(spec_.ops.back(), labels, correct);
}

TensorMemory::TensorMemory(std::span<const TensorSpec> tensors) {
  constexpr size_t kLine = 16;  // floats in 64 bytes
  auto padded = [](const TensorSpec& tensor) { return (tensor.NumElems() + kLine - 1) / kLine * kLine; };
  size_t num_elems = kLine;
  for (const TensorSpec& tensor : tensors) num_elems += 2 * padded(tensor);
  storage_.resize(num_elems);
  float* next = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(storage_.data()) + 63) / 64 * 64);
  for (auto* list : {&params_, &grads_}) {
    for (const TensorSpec& tensor : tensors) {
      list->emplace_back(next, tensor.NumElems());
      next += padded(tensor);
    }
  }
}

void TensorMemory::Init(std::span<const TensorSpec> tensors, uint64_t seed, bool jitter) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::uniform_real_distribution<float> small(-0.2f, 0.2f);
  for (size_t i = 0; i < tensors.size(); i++) {
    InitTensor(tensors[i], i, seed, params_[i]);
    if (!jitter || tensors[i].init_stddev != 0) continue;
    for (float& x : params_[i]) x += small(random);
  }
}

BoundModel::BoundModel(ModelSpec spec, int batch, int num_threads, uint64_t seed, bool jitter) {
  const ImageShape image = spec.image;
  const int num_classes = spec.num_classes;
  auto built = BuildCpuModelFromSpec(std::move(spec), batch, num_threads);
  CHECK(built.has_value());
  model = std::move(*built);
  memory = std::make_unique<TensorMemory>(model->tensors());
  memory->Init(model->tensors(), seed, jitter);
  model->Bind(memory->params(), memory->grads());
  std::mt19937 random(static_cast<uint32_t>(seed + 100));
  std::normal_distribution<float> normal;
  images.resize(size_t(batch) * image.NumElems());
  for (float& x : images) x = normal(random);
  for (int i = 0; i < batch; i++) labels.push_back(int32_t(random() % uint32_t(num_classes)));
}

float BoundModel::Step() {
  NoHooks hooks;
  const float loss = model->Forward(images, labels, hooks);
  model->Backward(hooks);
  return loss;
}

void BoundModel::ApplySgd(float learning_rate) {
  for (size_t i = 0; i < memory->params().size(); i++) {
    for (size_t k = 0; k < memory->params()[i].size(); k++) {
      memory->params()[i][k] -= learning_rate * memory->grads()[i][k];
    }
  }
}

ModelSpec Zoo(const char* name, ImageShape image, int num_classes) {
  auto spec = FindModel(name, image, num_classes);
  CHECK(spec.has_value());
  return std::move(*spec);
}

std::vector<float> Flat(std::span<const std::span<float>> tensors) {
  std::vector<float> all;
  for (std::span<float> tensor : tensors) all.insert(all.end(), tensor.begin(), tensor.end());
  return all;
}

}  // namespace gradlane
