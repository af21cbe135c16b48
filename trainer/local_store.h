// LocalStore is training without any server: GradReady updates the layer's parameters at once, by the same optimizer
// code that the servers run. Owned by the trainer's main function; training thread only.
#pragma once

#include <memory>
#include <vector>

#include "ps/job.h"
#include "ps/parameter_store.h"
#include "transport/base/memory.h"

namespace gradlane {

class LocalStore final : public ParameterStore {
 public:
  static Result<std::unique_ptr<LocalStore>> Open(const Job& job);  // job is borrowed and outlives the store

  std::span<float> Params(uint32_t tensor) override { return Part(0, tensor); }
  std::span<float> Grads(uint32_t tensor) override { return Part(1, tensor); }
  Result<void> Begin() override { return {}; }
  void GradReady(uint32_t layer) override;
  Result<void> WaitParams(uint32_t) override { return {}; }
  void Fail(const Error&) override {}  // nothing can fail: there is no peer
  StoreStats Stats() const override { return {}; }

 private:
  explicit LocalStore(const Job& job) : job_(job), steps_(job.tensors.size(), 0) {}
  // array: 0 parameters, 1 gradients, 2 velocity or first moment, 3 second moment.
  std::span<float> Part(size_t array, uint32_t tensor);

  const Job& job_;
  Memory memory_;
  std::vector<uint64_t> first_elem_;  // of each tensor, in an array; one more: the elements of an array
  std::vector<int64_t> steps_;        // updates so far, by tensor
};

}  // namespace gradlane
