// Shard, saved and resumed: see ps/STATE.md.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/accumulate.h"
#include "ps/shard.h"
#include "ps/state_file.h"

namespace gradlane {

bool Shard::BetweenSteps() const {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].initialized || states_[i].next_rank != 0) return false;
    for (uint32_t w = 0; w < num_workers_; ++w) {
      const Contribution& theirs = contributions_[i * num_workers_ + w];
      // A worker between steps has pushed every segment equally often.
      if (theirs.stored || theirs.clock != contributions_[w].clock) return false;
      if (job_.sync.kind == SyncKind::kBsp && theirs.clock != contributions_[0].clock) return false;
      if (job_.sync.kind != SyncKind::kAsync && replied_[i * num_workers_ + w] != theirs.clock) return false;
    }
  }
  return true;
}

Result<void> Shard::SaveTo(StateWriter& out) const {
  CHECK(BetweenSteps());
  if (states_.empty()) return {};  // more servers than segments
  for (uint32_t w = 0; w < num_workers_; ++w) out.U64(contributions_[w].clock);
  for (size_t i = 0; i < states_.size(); ++i) {
    out.U64(states_[i].updates);
    out.U32(states_[i].flagged_in_row);
    for (uint32_t w = 0; w < num_workers_; ++w) out.U32(contributions_[i * num_workers_ + w].flagged_in_row);
  }
  for (const fec::DensitySteering& steering : steering_) out.Steering(steering);
  for (uint32_t segment : layout_.SegmentsOfServer(server_)) {
    std::vector<std::span<float>> arrays = {Of(memory_.params, segment), Of(memory_.first_moment, segment)};
    if (job_.optimizer == OptimizerKind::kAdam) arrays.push_back(Of(memory_.second_moment, segment));
    for (const std::span<float> held : memory_.held) arrays.push_back(Of(held, segment));
    for (const std::span<float> array : arrays) {
      if (!accumulate::AllFinite(array)) {
        return Fail(ErrorCode::kMalformed, "The state of server " + std::to_string(server_) + " cannot be saved: " +
                                               job_.tensors[layout_.segments()[segment].tensor].name +
                                               " has parameters or moments that are not finite.");
      }
      out.Floats(array);
    }
  }
  return {};
}

Result<void> Shard::LoadFrom(StateReader& in) {
  const std::span<const uint32_t> own = layout_.SegmentsOfServer(server_);
  const bool bsp = job_.sync.kind == SyncKind::kBsp;
  std::vector<uint64_t> clocks(own.empty() ? 0 : num_workers_);
  uint64_t all_steps = 0;  // contributions to one segment
  for (uint64_t& clock : clocks) {
    clock = in.Count("steps", kMaxStateSteps);
    all_steps += clock;
    if (bsp && clock != clocks[0]) in.Complain("has workers at different steps, with --sync bsp");
  }
  const uint64_t max_updates = bsp && !clocks.empty() ? clocks[0] : all_steps;
  std::vector<State> states(own.size());
  std::vector<Contribution> contributions(own.size() * num_workers_);
  std::vector<uint64_t> replied(contributions.size(), 0);
  const auto flagged_in_row = [&](uint64_t steps) {
    const uint32_t count = in.U32();
    if (count >= job_.nonfinite_limit || count > steps)
      in.Complain("has more steps in a row that are not finite than can be");
    return count;
  };
  for (size_t i = 0; i < own.size(); ++i) {
    states[i].initialized = true;
    states[i].updates = in.Count("updates", max_updates);
    states[i].flagged_in_row = flagged_in_row(bsp ? max_updates - states[i].updates : 0);
    for (uint32_t w = 0; w < num_workers_; ++w) {
      contributions[i * num_workers_ + w].clock = clocks[w];
      contributions[i * num_workers_ + w].flagged_in_row = flagged_in_row(bsp ? 0 : clocks[w]);
      if (job_.sync.kind != SyncKind::kAsync) replied[i * num_workers_ + w] = clocks[w];
    }
  }
  std::vector<fec::DensitySteering> steering = steering_;
  for (fec::DensitySteering& one : steering) in.Steering(one);
  std::vector<std::pair<std::span<float>, std::span<const std::byte>>> copies;
  for (uint32_t segment : own) {
    const size_t num_elems = layout_.segments()[segment].num_elems;
    const auto take = [&](std::span<float> to, const char* what) {
      copies.emplace_back(Of(to, segment), in.Floats(what, num_elems));
    };
    take(memory_.params, "parameters");
    take(memory_.first_moment, "moments");
    if (job_.optimizer == OptimizerKind::kAdam) {
      copies.emplace_back(Of(memory_.second_moment, segment), in.Floats("second moments", num_elems, 0.0f));
    }
    for (const std::span<float> held : memory_.held) take(held, "parameters that workers hold");
  }
  TRY(in.Done());

  // Nothing fails from here on.
  for (const auto& [to, from] : copies) std::memcpy(to.data(), from.data(), from.size());
  states_ = std::move(states);
  contributions_ = std::move(contributions);
  replied_ = std::move(replied);
  steering_ = std::move(steering);
  resumed_ = true;
  return {};
}

}  // namespace gradlane
