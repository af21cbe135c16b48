// The ops of layers.h on the CPU, by oneDNN 2. Activations of four dimensions share one memory format, the blocked one
// that the machine's convolutions prefer, so that nothing but weights is converted on the way.
//
// CpuBuild is what ops are made from, in forward order: it names the memory of values, tensors and scratch before any
// of it has an address. PlaceMemory gives the addresses, once; BindTensor those of the caller's tensors.
//
// Building throws dnnl::error; BuildCpuModel turns that into an Error. Running does not throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trainer/layers.h"
#include "trainer/model_spec.h"

namespace gradlane {

// One primitive with its arguments, ready to run again and again without an allocation.
class Call {
 public:
  Call() = default;
  Call(dnnl::primitive primitive, std::vector<std::pair<int, dnnl::memory>> args);

  void Run(const dnnl::stream& stream) const;
  explicit operator bool() const { return !args_.empty(); }

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;  // kept alive for args_
  std::vector<dnnl_exec_arg_t> args_;
};

// Where a training step keeps what. Time runs over 2 L points: point i is the forward call of op i, point 2 L - 1 - i
// its backward call. Two areas share addresses when their lives do not meet.
class MemoryPlan {
 public:
  // Lives from point `first` to `last`; Extend stretches that.
  size_t Add(size_t bytes, int first, int last);
  void Extend(size_t area, int point);
  void Merge(size_t area, size_t into);  // one place for both, for as long as either lives
  // Chooses all offsets, multiples of 64, and returns the bytes needed in all.
  size_t Place();
  size_t offset(size_t area) const { return areas_[Root(area)].offset; }

 private:
  struct Area {
    size_t bytes, offset;
    int first, last;
    size_t merged_into;  // itself: not merged
  };
  size_t Root(size_t area) const;
  std::vector<Area> areas_;
};

class CpuBuild {
 public:
  CpuBuild(const ModelSpec& spec, int batch);

  const ModelSpec& spec() const { return spec_; }
  int batch() const { return batch_; }
  const dnnl::engine& engine() const { return engine_; }
  const dnnl::stream& stream() const { return stream_; }
  const dnnl::primitive_attr& attr() const { return attr_; }            // scratchpad by the caller
  const dnnl::primitive_attr& relu_attr() const { return relu_attr_; }  // the same, and a ReLU behind the primitive

  dnnl::memory Tensor(int tensor) const { return tensors_[tensor].data; }
  dnnl::memory TensorGrad(int tensor) const { return tensors_[tensor].grad; }
  dnnl::memory Value(int value) const { return values_[value].data; }
  dnnl::memory ValueGrad(int value) const { return values_[value].grad; }
  // The same bytes read in another format.
  dnnl::memory ValueAs(int value, const dnnl::memory::desc& desc);
  dnnl::memory ValueGradAs(int value, const dnnl::memory::desc& desc);

  // Op `op` is being made; everything below refers to it.
  void BeginOp(int op);
  // Backward reads the value again: it lives until then.
  void KeepForBackward(int value);
  // Memory that op carries from its forward to its backward call. `desc` may be empty.
  dnnl::memory Keep(const dnnl::memory::desc& desc);
  // Memory with a meaning within one call only. BeginCall starts over: what was taken before is dead by then.
  void BeginCall() { scratch_used_ = 0; }
  dnnl::memory Scratch(const dnnl::memory::desc& desc);
  // Makes a call; its scratchpad is taken from the current call's scratch.
  template <typename PrimitiveDesc>
  Call Make(const PrimitiveDesc& pd, dnnl::primitive primitive, std::vector<std::pair<int, dnnl::memory>> args) {
    if (pd.scratchpad_desc().get_size() > 0) args.emplace_back(DNNL_ARG_SCRATCHPAD, Scratch(pd.scratchpad_desc()));
    return Call(std::move(primitive), std::move(args));
  }
  Call MakeReorder(const dnnl::memory& from, const dnnl::memory& to);

  // `memory` itself where it has this format; else scratch of it, and *reorder fills it from `memory`.
  dnnl::memory InFormat(const dnnl::memory& memory, const dnnl::memory::desc& wanted, Call* reorder);

  // Where the op writes the gradient of its input, and what it runs afterwards (may be empty) to add that to what ops
  // behind it have written already. The same call's scratch must still stand when it runs.
  dnnl::memory GradTarget(int value, Call* accumulate);
  bool NeedsGrad(int value) const { return value != 0; }
  // The gradients of the op's inputs are that of its output: one buffer for all. The op must be the inputs' last
  // reader.
  void ShareGradWithInputs(const OpSpec& op);

  // Addresses for all of the above: `area`, of PlanBytes() and 64-byte aligned, stays with the caller.
  size_t PlanBytes();
  void PlaceMemory(std::span<std::byte> area);
  void BindTensor(int tensor, float* data, float* grad);

 private:
  struct Slot {
    dnnl::memory data, grad;
    size_t data_area = 0, grad_area = 0;
    int writer = -1, last_reader = -1;  // ops
  };
  struct Placed {
    dnnl::memory memory;
    size_t area;
  };
  int BackwardPoint(int op) const { return 2 * int(spec_.ops.size()) - 1 - op; }

  const ModelSpec& spec_;
  int batch_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive_attr attr_, relu_attr_;
  std::vector<Slot> values_, tensors_;
  MemoryPlan plan_;
  std::vector<Placed> placed_;
  std::vector<std::pair<dnnl::memory, size_t>> scratch_;  // offset within the scratch area
  size_t scratch_used_ = 0, scratch_bytes_ = 0, plan_bytes_ = 0;
  int op_ = 0;
};

// The loss op also takes what the training loop gives and asks.
class LossOp : public Op {
 public:
  virtual void SetLabels(std::span<const int32_t> labels) = 0;  // the first labels.size() rows count; copied
  virtual double loss_sum() const = 0;                          // of the last Forward, over those rows
  virtual size_t num_correct() const = 0;                       // rows whose first largest logit is the label
};

std::unique_ptr<Op> MakeCpuConv(const OpSpec& op, CpuBuild& build);
std::unique_ptr<Op> MakeCpuFullyConnected(const OpSpec& op, CpuBuild& build);
std::unique_ptr<Op> MakeCpuBatchNorm(const OpSpec& op, CpuBuild& build);
std::unique_ptr<Op> MakeCpuMaxPool(const OpSpec& op, CpuBuild& build);
std::unique_ptr<Op> MakeCpuGlobalAvgPool(const OpSpec& op, CpuBuild& build);
std::unique_ptr<Op> MakeCpuFlatten(const OpSpec& op, CpuBuild& build);
std::unique_ptr<Op> MakeCpuAdd(const OpSpec& op, CpuBuild& build);
std::unique_ptr<LossOp> MakeCpuSoftmaxLoss(const OpSpec& op, CpuBuild& build);

// Masks dy, in place, where y is not positive. Both of the format of `y`.
Call MakeReluBackward(CpuBuild& build, const dnnl::memory& y, const dnnl::memory& dy);

}  // namespace gradlane
