// LocalStore is training without any server: GradReady updates the layer's parameters at once, by the same optimizer
// code that the servers run, segment by segment, so that one worker and any servers compute the same bits also where a
// segment is left out because its gradient is not finite. Owned by the trainer's main function; training thread only.
#pragma once

#include <memory>
#include <optional>
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
  Result<void> WaitParams(uint32_t) override;
  void Fail(const Error&) override {}  // there is no peer that could
  StoreStats Stats() const override { return stats_; }
  uint64_t BytesSoFar() const override { return 0; }

 private:
  // As one segment of a server: see Shard.
  struct SegmentState {
    int64_t updates = 0;
    uint32_t flagged_in_row = 0;
  };
  explicit LocalStore(const Job& job) : job_(job), steps_(job.tensors.size(), 0), warned_(job.tensors.size(), false) {}
  // array: 0 parameters, 1 gradients, 2 velocity or first moment, 3 second moment.
  std::span<float> Part(size_t array, uint32_t tensor);
  void Update(uint32_t tensor, uint64_t first_elem, SegmentState& state);
  void LeaveOut(uint32_t tensor, SegmentState& state);

  const Job& job_;
  Memory memory_;
  std::vector<uint64_t> first_elem_;  // of each tensor, in an array; one more: the elements of an array
  std::vector<uint64_t> steps_;       // gradients so far, by tensor
  std::vector<std::vector<SegmentState>> segments_;  // [tensor][segment of it]
  std::vector<bool> warned_;                         // by tensor
  StoreStats stats_;
  std::optional<Error> failure_;  // told by the next WaitParams
};

}  // namespace gradlane
