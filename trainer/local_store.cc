#include "trainer/local_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "kernels/accumulate.h"
#include "kernels/optim.h"
#include "ps/nonfinite.h"

namespace gradlane {

Result<std::unique_ptr<LocalStore>> LocalStore::Open(const Job& job) {
  std::unique_ptr<LocalStore> store(new LocalStore(job));
  constexpr uint64_t kAlignElems = 64 / sizeof(float);
  uint64_t elems = 0;
  for (const JobTensor& tensor : job.tensors) {
    store->first_elem_.push_back(elems);
    store->segments_.emplace_back((tensor.num_elems + job.segment_bytes / sizeof(float) - 1) /
                                  (job.segment_bytes / sizeof(float)));
    elems += (tensor.num_elems + kAlignElems - 1) / kAlignElems * kAlignElems;
  }
  store->first_elem_.push_back(elems);
  const size_t num_arrays = job.optimizer == OptimizerKind::kAdam ? 4 : 3;
  ASSIGN_OR_RETURN(store->memory_, Memory::Map(num_arrays * elems * sizeof(float)));
  return store;
}

std::span<float> LocalStore::Part(size_t array, uint32_t tensor) {
  float* const base = reinterpret_cast<float*>(memory_.bytes().data());
  return {base + array * first_elem_.back() + first_elem_[tensor], job_.tensors[tensor].num_elems};
}

void LocalStore::GradReady(uint32_t layer) {
  const uint64_t segment_elems = job_.segment_bytes / sizeof(float);
  for (uint32_t t = 0; t < job_.tensors.size(); ++t) {
    if (job_.tensors[t].layer != layer) continue;
    ++steps_[t];
    for (size_t s = 0; s < segments_[t].size(); ++s) Update(t, s * segment_elems, segments_[t][s]);
  }
}

void LocalStore::Update(uint32_t tensor, uint64_t first_elem, SegmentState& state) {
  const uint64_t num_elems = std::min(job_.segment_bytes / sizeof(float), job_.tensors[tensor].num_elems - first_elem);
  auto part = [&](size_t array) { return Part(array, tensor).subspan(first_elem, num_elems); };
  if (!accumulate::AllFinite(part(1))) return LeaveOut(tensor, state);
  state.flagged_in_row = 0;
  ++state.updates;
  const float lr = job_.lr.At(int64_t(steps_[tensor]) - 1);
  const float weight_decay = job_.tensors[tensor].decay ? job_.weight_decay : 0.0f;
  if (job_.optimizer == OptimizerKind::kSgd) {
    optim::SgdStep(part(0), part(1), 1.0f, part(2), {lr, job_.momentum, weight_decay});
  } else {
    optim::AdamParams adam;
    adam.lr = lr;
    adam.weight_decay = weight_decay;
    optim::AdamStep(part(0), part(1), 1.0f, part(2), part(3), state.updates, adam);
  }
}

void LocalStore::LeaveOut(uint32_t tensor, SegmentState& state) {
  const NonFiniteGradient what{0, job_.tensors[tensor].name, steps_[tensor]};
  ++stats_.nonfinite_segments;
  if (!warned_[tensor]) spdlog::warn("worker 0: {}", NonFiniteWarning(what));
  warned_[tensor] = true;
  if (++state.flagged_in_row >= job_.nonfinite_limit && !failure_) failure_ = NonFiniteEnd(what, state.flagged_in_row);
}

Result<void> LocalStore::WaitParams(uint32_t) {
  if (failure_) return tl::unexpected(*failure_);
  return {};
}

}  // namespace gradlane
