// Pooling, flattening and residual addition: the ops without parameters.
#include "trainer/layers_cpu.h"

namespace gradlane {

using dnnl::memory;

namespace {

// One call forward and one backward, perhaps an accumulation.
class SimpleOp : public Op {
 public:
  explicit SimpleOp(CpuBuild& build) : stream_(build.stream()) {}
  void Forward(PassKind) override { forward_.Run(stream_); }
  void Backward() override {
    if (backward_) backward_.Run(stream_);
    if (accumulate_) accumulate_.Run(stream_);
  }

 protected:
  dnnl::stream stream_;
  Call forward_, backward_, accumulate_;
};

class PoolOp : public SimpleOp {
 public:
  PoolOp(const OpSpec& op, dnnl::algorithm algorithm, memory::dims kernel, CpuBuild& build) : SimpleOp(build) {
    const memory x = build.Value(op.input), y = build.Value(op.output), dy = build.ValueGrad(op.output);
    const memory::dims strides = {op.stride, op.stride}, pad_begin = {op.pad_begin, op.pad_begin},
                       pad_end = {op.pad_end, op.pad_end};
    build.BeginCall();
    dnnl::pooling_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, algorithm, x.get_desc(), y.get_desc(), strides, kernel, pad_begin, pad_end},
        build.attr(), build.engine());
    // Max pooling remembers where each maximum was.
    const memory workspace =
        algorithm == dnnl::algorithm::pooling_max ? build.Keep(forward.workspace_desc()) : memory();
    std::vector<std::pair<int, memory>> args = {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}};
    if (workspace) args.emplace_back(DNNL_ARG_WORKSPACE, workspace);
    forward_ = build.Make(forward, dnnl::pooling_forward(forward), std::move(args));

    if (!build.NeedsGrad(op.input)) return;
    build.BeginCall();
    const memory dx = build.GradTarget(op.input, &accumulate_);
    dnnl::pooling_backward::primitive_desc backward(
        {algorithm, dx.get_desc(), dy.get_desc(), strides, kernel, pad_begin, pad_end}, build.attr(), build.engine(),
        forward);
    args = {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dx}};
    if (workspace) args.emplace_back(DNNL_ARG_WORKSPACE, workspace);
    backward_ = build.Make(backward, dnnl::pooling_backward(backward), std::move(args));
  }
};

// From the activations' common format to plain channels, rows, columns.
class FlattenOp : public SimpleOp {
 public:
  FlattenOp(const OpSpec& op, CpuBuild& build) : SimpleOp(build) {
    const memory x = build.Value(op.input);
    const memory::desc plain(x.get_desc().dims(), memory::data_type::f32, memory::format_tag::nchw);
    build.BeginCall();
    forward_ = build.MakeReorder(x, build.ValueAs(op.output, plain));
    if (!build.NeedsGrad(op.input)) return;
    build.BeginCall();
    const memory dx = build.GradTarget(op.input, &accumulate_);
    backward_ = build.MakeReorder(build.ValueGradAs(op.output, plain), dx);
  }
};

// Backward copies nothing: masked in place, the gradient of the sum is the gradient of each summand.
class AddOp : public SimpleOp {
 public:
  AddOp(const OpSpec& op, CpuBuild& build) : SimpleOp(build) {
    const memory a = build.Value(op.input), b = build.Value(op.input2), y = build.Value(op.output);
    build.BeginCall();
    dnnl::binary::primitive_desc pd({dnnl::algorithm::binary_add, a.get_desc(), b.get_desc(), y.get_desc()},
                                    op.relu ? build.relu_attr() : build.attr(), build.engine());
    forward_ = build.Make(pd, dnnl::binary(pd), {{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}, {DNNL_ARG_DST, y}});
    build.ShareGradWithInputs(op);
    if (!op.relu) return;
    build.KeepForBackward(op.output);
    build.BeginCall();
    backward_ = MakeReluBackward(build, y, build.ValueGrad(op.output));
  }
};

}  // namespace

std::unique_ptr<Op> MakeCpuMaxPool(const OpSpec& op, CpuBuild& build) {
  return std::make_unique<PoolOp>(op, dnnl::algorithm::pooling_max, memory::dims{op.kernel, op.kernel}, build);
}

std::unique_ptr<Op> MakeCpuGlobalAvgPool(const OpSpec& op, CpuBuild& build) {
  const ValueShape& shape = build.spec().values[op.input];
  return std::make_unique<PoolOp>(op, dnnl::algorithm::pooling_avg_exclude_padding,
                                  memory::dims{shape.height, shape.width}, build);
}

std::unique_ptr<Op> MakeCpuFlatten(const OpSpec& op, CpuBuild& build) { return std::make_unique<FlattenOp>(op, build); }

std::unique_ptr<Op> MakeCpuAdd(const OpSpec& op, CpuBuild& build) { return std::make_unique<AddOp>(op, build); }

}  // namespace gradlane
