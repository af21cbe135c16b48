// Batch normalisation. Formulas and conventions: layers.h.
#include <algorithm>

#include "trainer/layers_cpu.h"

namespace gradlane {

using dnnl::memory;
using dnnl::normalization_flags;

namespace {

class BatchNormOp : public Op {
 public:
  BatchNormOp(const OpSpec& op, CpuBuild& build) : stream_(build.stream()) {
    const memory x = build.Value(op.input), y = build.Value(op.output), dy = build.ValueGrad(op.output);
    const memory scale = build.Tensor(op.weight), shift = build.Tensor(op.bias);
    const memory::desc desc = x.get_desc();
    const ValueShape shape = build.spec().values[op.input];
    num_samples_ = double(build.batch()) * shape.height * shape.width;

    auto flags = normalization_flags::use_scale | normalization_flags::use_shift;
    if (op.relu) flags = flags | normalization_flags::fuse_norm_relu;

    build.BeginCall();
    dnnl::batch_normalization_forward::primitive_desc training(
        {dnnl::prop_kind::forward_training, desc, kBatchNormEpsilon, flags}, build.attr(), build.engine());
    mean_ = build.Keep(training.mean_desc());
    variance_ = build.Keep(training.variance_desc());
    const memory workspace = op.relu ? build.Keep(training.workspace_desc()) : memory();
    std::vector<std::pair<int, memory>> args = {{DNNL_ARG_SRC, x},       {DNNL_ARG_DST, y},
                                                {DNNL_ARG_SCALE, scale}, {DNNL_ARG_SHIFT, shift},
                                                {DNNL_ARG_MEAN, mean_},  {DNNL_ARG_VARIANCE, variance_}};
    if (workspace) args.emplace_back(DNNL_ARG_WORKSPACE, workspace);
    training_ = build.Make(training, dnnl::batch_normalization_forward(training), std::move(args));

    running_mean_.resize(shape.channels, 0.0f);
    running_variance_.resize(shape.channels, 1.0f);
    build.BeginCall();
    dnnl::batch_normalization_forward::primitive_desc inference(
        {dnnl::prop_kind::forward_inference, desc, kBatchNormEpsilon, flags | normalization_flags::use_global_stats},
        build.attr(), build.engine());
    inference_ =
        build.Make(inference, dnnl::batch_normalization_forward(inference),
                   {{DNNL_ARG_SRC, x},
                    {DNNL_ARG_DST, y},
                    {DNNL_ARG_SCALE, scale},
                    {DNNL_ARG_SHIFT, shift},
                    {DNNL_ARG_MEAN, memory(inference.mean_desc(), build.engine(), running_mean_.data())},
                    {DNNL_ARG_VARIANCE, memory(inference.variance_desc(), build.engine(), running_variance_.data())}});

    build.KeepForBackward(op.input);
    CHECK(build.NeedsGrad(op.input));  // its statistics' gradients go with it; no model normalises the image
    build.BeginCall();
    const memory dx = build.GradTarget(op.input, &accumulate_);
    dnnl::batch_normalization_backward::primitive_desc backward(
        {dnnl::prop_kind::backward, desc, desc, kBatchNormEpsilon, flags}, build.attr(), build.engine(), training);
    args = {{DNNL_ARG_SRC, x},
            {DNNL_ARG_DIFF_DST, dy},
            {DNNL_ARG_SCALE, scale},
            {DNNL_ARG_SHIFT, shift},
            {DNNL_ARG_MEAN, mean_},
            {DNNL_ARG_VARIANCE, variance_},
            {DNNL_ARG_DIFF_SRC, dx},
            {DNNL_ARG_DIFF_SCALE, build.TensorGrad(op.weight)},
            {DNNL_ARG_DIFF_SHIFT, build.TensorGrad(op.bias)}};
    if (workspace) args.emplace_back(DNNL_ARG_WORKSPACE, workspace);
    backward_ = build.Make(backward, dnnl::batch_normalization_backward(backward), std::move(args));
  }

  void Forward(PassKind kind) override {
    if (kind == PassKind::kInference) {
      inference_.Run(stream_);
      return;
    }
    training_.Run(stream_);
    const float* mean = static_cast<const float*>(mean_.get_data_handle());
    const float* variance = static_cast<const float*>(variance_.get_data_handle());
    const float unbiased = float(num_samples_ / std::max(1.0, num_samples_ - 1));
    for (size_t c = 0; c < running_mean_.size(); c++) {
      running_mean_[c] += kBatchNormMomentum * (mean[c] - running_mean_[c]);
      running_variance_[c] += kBatchNormMomentum * (unbiased * variance[c] - running_variance_[c]);
    }
  }

  void Backward() override {
    backward_.Run(stream_);
    if (accumulate_) accumulate_.Run(stream_);
  }

 private:
  dnnl::stream stream_;
  double num_samples_ = 0;  // behind one channel's statistics
  memory mean_, variance_;  // of the last training pass: (C), biased
  std::vector<float> running_mean_, running_variance_;
  Call training_, inference_, backward_, accumulate_;
};

}  // namespace

std::unique_ptr<Op> MakeCpuBatchNorm(const OpSpec& op, CpuBuild& build) {
  return std::make_unique<BatchNormOp>(op, build);
}

}  // namespace gradlane
