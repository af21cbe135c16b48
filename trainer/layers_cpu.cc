#include "trainer/layers_cpu.h"

#include <algorithm>
#include <numeric>

namespace gradlane {

using dnnl::memory;

namespace {

constexpr size_t kAlignment = 64;

size_t AlignUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The format that this machine's convolutions write when they may choose: blocks of 16 channels with AVX-512, of 8
// before.
memory::format_tag PreferredFormat(const dnnl::engine& engine) {
  const memory::dims dims = {1, 32, 8, 8};
  auto any = [](const memory::dims& d) { return memory::desc(d, memory::data_type::f32, memory::format_tag::any); };
  dnnl::convolution_forward::desc desc(dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct,
                                       any(dims), any({32, 32, 3, 3}), any(dims), {1, 1}, {1, 1}, {1, 1});
  const memory::desc chosen = dnnl::convolution_forward::primitive_desc(desc, engine).dst_desc();
  for (memory::format_tag tag : {memory::format_tag::nChw16c, memory::format_tag::nChw8c, memory::format_tag::nhwc}) {
    if (chosen == memory::desc(dims, memory::data_type::f32, tag)) return tag;
  }
  return memory::format_tag::nchw;
}

memory::desc TensorDesc(const TensorSpec& tensor) {
  const memory::format_tag tag = tensor.dims.size() == 4   ? memory::format_tag::oihw
                                 : tensor.dims.size() == 2 ? memory::format_tag::ab
                                                           : memory::format_tag::x;
  return memory::desc(memory::dims(tensor.dims.begin(), tensor.dims.end()), memory::data_type::f32, tag);
}

bool MasksInPlace(const OpSpec& op) { return op.relu && op.kind != OpKind::kBatchNorm; }

}  // namespace

Call::Call(dnnl::primitive primitive, std::vector<std::pair<int, dnnl::memory>> args)
    : primitive_(std::move(primitive)) {
  for (auto& [index, memory] : args) {
    memories_.push_back(memory);
    args_.push_back({index, memory.get()});
  }
}

void Call::Run(const dnnl::stream& stream) const {
  CHECK(dnnl_primitive_execute(primitive_.get(), stream.get(), int(args_.size()), args_.data()) == dnnl_success);
}

size_t MemoryPlan::Add(size_t bytes, int first, int last) {
  areas_.push_back({AlignUp(bytes), 0, first, last, areas_.size()});
  return areas_.size() - 1;
}

size_t MemoryPlan::Root(size_t area) const {
  while (areas_[area].merged_into != area) area = areas_[area].merged_into;
  return area;
}

void MemoryPlan::Extend(size_t area, int point) {
  Area& a = areas_[Root(area)];
  a.first = std::min(a.first, point);
  a.last = std::max(a.last, point);
}

void MemoryPlan::Merge(size_t area, size_t into) {
  area = Root(area), into = Root(into);
  if (area == into) return;
  areas_[into].bytes = std::max(areas_[into].bytes, areas_[area].bytes);
  Extend(into, areas_[area].first);
  Extend(into, areas_[area].last);
  areas_[area].merged_into = into;
}

// Greedy by size (Pisarchyk and Lee 2020, section 5): the largest first, each at the lowest offset where it is in no
// living neighbour's way.
size_t MemoryPlan::Place() {
  std::vector<size_t> order;
  for (size_t i = 0; i < areas_.size(); i++) {
    if (Root(i) == i) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return areas_[a].bytes > areas_[b].bytes; });
  size_t total_bytes = 0;
  std::vector<const Area*> placed;  // by offset
  for (size_t index : order) {
    Area& area = areas_[index];
    area.offset = 0;
    for (const Area* other : placed) {
      const bool meet = area.first <= other->last && other->first <= area.last;
      if (!meet || other->offset + other->bytes <= area.offset) continue;
      if (area.offset + area.bytes <= other->offset) break;
      area.offset = other->offset + other->bytes;
    }
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &area,
                                   [](const Area* a, const Area* b) { return a->offset < b->offset; }),
                  &area);
    total_bytes = std::max(total_bytes, area.offset + area.bytes);
  }
  return total_bytes;
}

CpuBuild::CpuBuild(const ModelSpec& spec, int batch)
    : spec_(spec), batch_(batch), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
  attr_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  relu_attr_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops relu;
  relu.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  relu_attr_.set_post_ops(relu);

  for (const TensorSpec& tensor : spec.tensors) {
    const memory::desc desc = TensorDesc(tensor);
    tensors_.push_back({memory(desc, engine_, DNNL_MEMORY_NONE), memory(desc, engine_, DNNL_MEMORY_NONE)});
  }

  const memory::format_tag preferred = PreferredFormat(engine_);
  values_.resize(spec.values.size());
  for (size_t op = 0; op < spec.ops.size(); op++) {
    for (int input : {spec.ops[op].input, spec.ops[op].input2}) {
      if (input >= 0) values_[input].last_reader = int(op);
    }
    if (spec.ops[op].output >= 0) values_[spec.ops[op].output].writer = int(op);
  }
  for (size_t v = 0; v < values_.size(); v++) {
    const ValueShape& shape = spec.values[v];
    Slot& slot = values_[v];
    CHECK(slot.last_reader > slot.writer);
    const OpKind kind = v == 0 ? OpKind::kFlatten : spec.ops[slot.writer].kind;
    memory::desc desc({batch, shape.channels, shape.height, shape.width}, memory::data_type::f32,
                      v == 0 ? memory::format_tag::nchw : preferred);
    if (v > 0 && (kind == OpKind::kFlatten || kind == OpKind::kFullyConnected)) {
      desc = memory::desc({batch, int64_t(shape.NumElems())}, memory::data_type::f32, memory::format_tag::nc);
    }
    slot.data = memory(desc, engine_, DNNL_MEMORY_NONE);
    slot.data_area = plan_.Add(desc.get_size(), std::max(slot.writer, 0), slot.last_reader);
    placed_.push_back({slot.data, slot.data_area});
    if (v == 0) continue;
    slot.grad = memory(desc, engine_, DNNL_MEMORY_NONE);
    slot.grad_area = plan_.Add(desc.get_size(), BackwardPoint(slot.last_reader), BackwardPoint(slot.writer));
    placed_.push_back({slot.grad, slot.grad_area});
  }
}

memory CpuBuild::ValueAs(int value, const memory::desc& desc) {
  CHECK(desc.get_size() <= values_[value].data.get_desc().get_size());
  placed_.push_back({memory(desc, engine_, DNNL_MEMORY_NONE), values_[value].data_area});
  return placed_.back().memory;
}

memory CpuBuild::ValueGradAs(int value, const memory::desc& desc) {
  CHECK(desc.get_size() <= values_[value].grad.get_desc().get_size());
  placed_.push_back({memory(desc, engine_, DNNL_MEMORY_NONE), values_[value].grad_area});
  return placed_.back().memory;
}

void CpuBuild::BeginOp(int op) {
  op_ = op;
  scratch_used_ = 0;
}

void CpuBuild::KeepForBackward(int value) { plan_.Extend(values_[value].data_area, BackwardPoint(op_)); }

memory CpuBuild::Keep(const memory::desc& desc) {
  if (desc.get_size() == 0) return memory();
  placed_.push_back({memory(desc, engine_, DNNL_MEMORY_NONE), plan_.Add(desc.get_size(), op_, BackwardPoint(op_))});
  return placed_.back().memory;
}

memory CpuBuild::Scratch(const memory::desc& desc) {
  scratch_.emplace_back(memory(desc, engine_, DNNL_MEMORY_NONE), scratch_used_);
  scratch_used_ += AlignUp(desc.get_size());
  scratch_bytes_ = std::max(scratch_bytes_, scratch_used_);
  return scratch_.back().first;
}

Call CpuBuild::MakeReorder(const memory& from, const memory& to) {
  dnnl::reorder::primitive_desc pd(engine_, from.get_desc(), engine_, to.get_desc(), attr_);
  return Make(pd, dnnl::reorder(pd), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

memory CpuBuild::InFormat(const memory& source, const memory::desc& wanted, Call* reorder) {
  if (source.get_desc() == wanted) return source;
  memory converted = Scratch(wanted);
  *reorder = MakeReorder(source, converted);
  return converted;
}

memory CpuBuild::GradTarget(int value, Call* accumulate) {
  Slot& slot = values_[value];
  if (slot.last_reader == op_) return slot.grad;
  memory part = Scratch(slot.grad.get_desc());
  const memory::desc desc = slot.grad.get_desc();
  dnnl::binary::primitive_desc pd({dnnl::algorithm::binary_add, desc, desc, desc}, attr_, engine_);
  *accumulate =
      Make(pd, dnnl::binary(pd), {{DNNL_ARG_SRC_0, slot.grad}, {DNNL_ARG_SRC_1, part}, {DNNL_ARG_DST, slot.grad}});
  return part;
}

void CpuBuild::ShareGradWithInputs(const OpSpec& op) {
  // The input whose writer runs backward first must leave the buffer as it is: the other still needs it.
  const int first = std::max(values_[op.input].writer, values_[op.input2].writer);
  CHECK(op.input != op.input2 && first >= 0 && !MasksInPlace(spec_.ops[first]));
  for (int input : {op.input, op.input2}) {
    if (!NeedsGrad(input)) continue;
    CHECK(values_[input].last_reader == op_);
    CHECK(values_[input].grad.get_desc() == values_[op.output].grad.get_desc());
    plan_.Merge(values_[input].grad_area, values_[op.output].grad_area);
  }
}

size_t CpuBuild::PlanBytes() {
  plan_bytes_ = plan_.Place();
  return plan_bytes_ + scratch_bytes_;
}

void CpuBuild::PlaceMemory(std::span<std::byte> area) {
  CHECK(area.size() >= plan_bytes_ + scratch_bytes_ && reinterpret_cast<uintptr_t>(area.data()) % kAlignment == 0);
  for (Placed& placed : placed_) placed.memory.set_data_handle(area.data() + plan_.offset(placed.area));
  for (auto& [memory, offset] : scratch_) memory.set_data_handle(area.data() + plan_bytes_ + offset);
}

void CpuBuild::BindTensor(int tensor, float* data, float* grad) {
  tensors_[tensor].data.set_data_handle(data);
  tensors_[tensor].grad.set_data_handle(grad);
}

Call MakeReluBackward(CpuBuild& build, const memory& y, const memory& dy) {
  constexpr auto kRelu = dnnl::algorithm::eltwise_relu_use_dst_for_bwd;
  const memory::desc desc = y.get_desc();
  dnnl::eltwise_forward::primitive_desc hint({dnnl::prop_kind::forward_training, kRelu, desc, 0.0f, 0.0f},
                                             build.engine());
  dnnl::eltwise_backward::primitive_desc pd({kRelu, desc, desc, 0.0f, 0.0f}, build.attr(), build.engine(), hint);
  return build.Make(pd, dnnl::eltwise_backward(pd),
                    {{DNNL_ARG_DST, y}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dy}});
}

}  // namespace gradlane
