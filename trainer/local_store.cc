#include "trainer/local_store.h"

#include "kernels/optim.h"

namespace gradlane {

Result<std::unique_ptr<LocalStore>> LocalStore::Open(const Job& job) {
  std::unique_ptr<LocalStore> store(new LocalStore(job));
  constexpr uint64_t kAlignElems = 64 / sizeof(float);
  uint64_t elems = 0;
  for (const JobTensor& tensor : job.tensors) {
    store->first_elem_.push_back(elems);
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
  for (uint32_t t = 0; t < job_.tensors.size(); ++t) {
    if (job_.tensors[t].layer != layer) continue;
    const int64_t step = steps_[t]++;
    const float lr = job_.lr.At(step);
    const float weight_decay = job_.tensors[t].decay ? job_.weight_decay : 0.0f;
    if (job_.optimizer == OptimizerKind::kSgd) {
      optim::SgdStep(Part(0, t), Part(1, t), 1.0f, Part(2, t), {lr, job_.momentum, weight_decay});
    } else {
      optim::AdamParams adam;
      adam.lr = lr;
      adam.weight_decay = weight_decay;
      optim::AdamStep(Part(0, t), Part(1, t), 1.0f, Part(2, t), Part(3, t), step + 1, adam);
    }
  }
}

}  // namespace gradlane
