// CpuModel runs the ops of a ModelSpec in order and tells the hooks where a layer's ops begin and end.
#include "trainer/model_cpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "trainer/layers_cpu.h"
#include "transport/base/memory.h"

namespace gradlane {
namespace {

// The thread count of the OpenMP runtime that oneDNN was linked with. Setting it concerns the calling thread's parallel
// regions only, so models on several threads of a process each keep their own. Looked up in the running process: ours
// has no OpenMP code, and a second runtime beside oneDNN's would have a count of its own.
struct OpenMp {
  void (*set_num_threads)(int) = nullptr;
  int (*get_max_threads)() = nullptr;
  void (*set_dynamic)(int) = nullptr;
  int (*get_dynamic)() = nullptr;

  static Result<OpenMp> Find() {
    OpenMp omp;
    auto find = [](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
      return *function != nullptr;
    };
    if (!find("omp_set_num_threads", &omp.set_num_threads) || !find("omp_get_max_threads", &omp.get_max_threads) ||
        !find("omp_set_dynamic", &omp.set_dynamic) || !find("omp_get_dynamic", &omp.get_dynamic)) {
      return Fail(ErrorCode::kUnavailable,
                  "This oneDNN runs without OpenMP; the CPU layers need a oneDNN with it, such as "
                  "Debian's libdnnl2.");
    }
    return omp;
  }
};

// Exactly num_threads for what this thread runs, until the end of the scope.
class ThreadScope {
 public:
  ThreadScope(const OpenMp& omp, int num_threads)
      : omp_(omp), before_(omp.get_max_threads()), dynamic_before_(omp.get_dynamic()) {
    omp_.set_dynamic(0);
    omp_.set_num_threads(num_threads);
  }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;
  ~ThreadScope() {
    omp_.set_num_threads(before_);
    omp_.set_dynamic(dynamic_before_);
  }

 private:
  const OpenMp& omp_;
  int before_, dynamic_before_;
};

std::string WithThousands(size_t number) {
  std::string digits = std::to_string(number);
  for (int at = int(digits.size()) - 3; at > 0; at -= 3) digits.insert(size_t(at), 1, ',');
  return digits;
}

const char* IsaName() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
      return "sse4.1";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx512_mic:
      return "avx512_mic";
    case dnnl::cpu_isa::avx512_mic_4ops:
      return "avx512_mic_4ops";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    default:
      return "generic code";
  }
}

class CpuModel : public Model {
 public:
  CpuModel(ModelSpec spec, int batch, int num_threads, const OpenMp& omp)
      : spec_(std::move(spec)), num_threads_(num_threads), omp_(omp), build_(spec_, batch) {
    CHECK(!spec_.ops.empty() && spec_.ops.back().kind == OpKind::kSoftmaxLoss);
    for (size_t i = 0; i < spec_.ops.size(); i++) {
      const OpSpec& op = spec_.ops[i];
      build_.BeginOp(int(i));
      ops_.push_back(MakeOp(op));
      if (op.layer == layer_begin_.size()) layer_begin_.push_back(i);
      CHECK(op.layer == layer_begin_.size() - 1);
    }
    CHECK(layer_begin_.size() == spec_.num_layers);
    layer_begin_.push_back(ops_.size());
  }

  Result<void> AllocateMemory() {
    ASSIGN_OR_RETURN(memory_, Memory::Map(build_.PlanBytes()));
    build_.PlaceMemory(memory_.bytes());
    return {};
  }

  std::span<const TensorSpec> tensors() const override { return spec_.tensors; }
  uint32_t num_layers() const override { return spec_.num_layers; }

  void Bind(std::span<const std::span<float>> params, std::span<const std::span<float>> grads) override {
    CHECK(params.size() == spec_.tensors.size() && grads.size() == spec_.tensors.size());
    for (size_t i = 0; i < spec_.tensors.size(); i++) {
      const size_t num_elems = spec_.tensors[i].NumElems();
      CHECK(params[i].size() == num_elems && grads[i].size() == num_elems);
      build_.BindTensor(int(i), params[i].data(), grads[i].data());
    }
    state_ = State::kBound;
  }

  float Forward(std::span<const float> images, std::span<const int32_t> labels, PassHooks& hooks) override {
    CHECK(state_ != State::kUnbound);
    CHECK(labels.size() == size_t(build_.batch()));
    LoadBatch(images, labels);
    ThreadScope threads(omp_, num_threads_);
    for (uint32_t layer = 0; layer < spec_.num_layers; layer++) {
      hooks.BeforeForward(layer);
      for (size_t i = layer_begin_[layer]; i < layer_begin_[layer + 1]; i++) ops_[i]->Forward(PassKind::kTraining);
      hooks.AfterForward(layer);
    }
    state_ = State::kForwardDone;
    return float(loss_->loss_sum() / double(build_.batch()));
  }

  void Backward(PassHooks& hooks) override {
    CHECK(state_ == State::kForwardDone);
    state_ = State::kBound;
    ThreadScope threads(omp_, num_threads_);
    for (uint32_t layer = spec_.num_layers; layer-- > 0;) {
      hooks.BeforeBackward(layer);
      for (size_t i = layer_begin_[layer + 1]; i-- > layer_begin_[layer];) ops_[i]->Backward();
      hooks.AfterBackward(layer);
    }
  }

  EvalResult Evaluate(std::span<const float> images, std::span<const int32_t> labels, size_t count) override {
    CHECK(state_ != State::kUnbound);
    CHECK(count <= size_t(build_.batch()) && labels.size() >= count);
    state_ = State::kBound;  // the activations of an earlier Forward are gone
    LoadBatch(images.first(count * spec_.image.NumElems()), labels.first(count));
    ThreadScope threads(omp_, num_threads_);
    for (const auto& op : ops_) op->Forward(PassKind::kInference);
    return {loss_->num_correct(), loss_->loss_sum()};
  }

  std::string Describe() const override {
    const dnnl_version_t* version = dnnl::version();
    return spec_.name + ", " + WithThousands(spec_.NumParams()) + " parameters in " + std::to_string(spec_.num_layers) +
           " layers, oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + " (" + IsaName() + "), " + std::to_string(num_threads_) +
           (num_threads_ == 1 ? " thread" : " threads");
  }

 private:
  enum class State { kUnbound, kBound, kForwardDone };

  std::unique_ptr<Op> MakeOp(const OpSpec& op) {
    switch (op.kind) {
      case OpKind::kFlatten:
        return MakeCpuFlatten(op, build_);
      case OpKind::kConv:
        return MakeCpuConv(op, build_);
      case OpKind::kFullyConnected:
        return MakeCpuFullyConnected(op, build_);
      case OpKind::kBatchNorm:
        return MakeCpuBatchNorm(op, build_);
      case OpKind::kMaxPool:
        return MakeCpuMaxPool(op, build_);
      case OpKind::kGlobalAvgPool:
        return MakeCpuGlobalAvgPool(op, build_);
      case OpKind::kAdd:
        return MakeCpuAdd(op, build_);
      case OpKind::kSoftmaxLoss:
        break;
    }
    std::unique_ptr<LossOp> loss = MakeCpuSoftmaxLoss(op, build_);
    loss_ = loss.get();
    return loss;
  }

  // Copies, so that the caller's buffer is free at once; rows that are not given are zeros.
  void LoadBatch(std::span<const float> images, std::span<const int32_t> labels) {
    const size_t batch_elems = size_t(build_.batch()) * spec_.image.NumElems();
    CHECK(images.size() == labels.size() * spec_.image.NumElems() && images.size() <= batch_elems);
    float* x = static_cast<float*>(build_.Value(0).get_data_handle());
    std::copy(images.begin(), images.end(), x);
    std::fill(x + images.size(), x + batch_elems, 0.0f);
    loss_->SetLabels(labels);
  }

  const ModelSpec spec_;
  const int num_threads_;
  const OpenMp omp_;
  CpuBuild build_;
  Memory memory_;  // activations, their gradients, scratch
  std::vector<std::unique_ptr<Op>> ops_;
  LossOp* loss_ = nullptr;           // the last of ops_
  std::vector<size_t> layer_begin_;  // layer l is ops [layer_begin_[l], layer_begin_[l + 1])
  State state_ = State::kUnbound;
};

}  // namespace

Result<std::unique_ptr<Model>> BuildCpuModelFromSpec(ModelSpec spec, int batch, int num_threads) {
  if (batch < 1)
    return Fail(ErrorCode::kInvalidArgument, "A batch has at least 1 image, not " + std::to_string(batch) + ".");
  if (num_threads < 1) {
    return Fail(ErrorCode::kInvalidArgument,
                "A model runs on at least 1 thread, not " + std::to_string(num_threads) + ".");
  }
  ASSIGN_OR_RETURN(const OpenMp omp, OpenMp::Find());
  const std::string name = spec.name;
  try {
    ThreadScope threads(omp, num_threads);  // oneDNN divides the work when a primitive is made
    auto model = std::make_unique<CpuModel>(std::move(spec), batch, num_threads, omp);
    TRY(model->AllocateMemory());
    return model;
  } catch (const dnnl::error& error) {
    return Fail(ErrorCode::kSystem,
                "oneDNN cannot build " + name + " at batch " + std::to_string(batch) + ": " + error.what() + ".",
                int(error.status));
  }
}

Result<std::unique_ptr<Model>> BuildCpuModel(const ModelOptions& options) {
  ASSIGN_OR_RETURN(ModelSpec spec, FindModel(options.name, options.image, options.num_classes));
  return BuildCpuModelFromSpec(std::move(spec), options.batch, options.num_threads);
}

}  // namespace gradlane
