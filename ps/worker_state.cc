// Worker, saved and resumed: see ps/STATE.md.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/accumulate.h"
#include "ps/state_file.h"
#include "ps/worker.h"

namespace gradlane {

bool Worker::KeepsResidual() const { return !residual_.empty() && job_.error_feedback; }
bool Worker::KeepsSteering() const {
  return job_.fec_auto && (job_.codec == Codec::kFec || job_.codec == Codec::kAuto);
}

Result<std::vector<std::byte>> Worker::SaveState() const {
  const std::string who = "The state of worker " + std::to_string(rank_) + " cannot be saved: ";
  const uint64_t steps = segments_.front().clock;
  for (const SegmentState& state : segments_) {
    if (state.initializing || state.awaiting || state.clock != steps) {
      return gradlane::Fail(ErrorCode::kInvalidArgument, who + "a step is under way; save between two steps.");
    }
  }
  StateWriter out({job_, members_, {Role::kWorker, rank_}});
  out.U64(steps);
  for (uint32_t t = 0; t < layout_.num_tensors(); ++t) {
    const std::span<const float> params = params_.subspan(layout_.TensorFlatElem(t), job_.tensors[t].num_elems);
    if (!accumulate::AllFinite(params)) {
      return gradlane::Fail(ErrorCode::kMalformed,
                            who + "the parameters of " + job_.tensors[t].name + " are not finite.");
    }
    out.Floats(params);
  }
  if (KeepsResidual()) {
    for (uint32_t t = 0; t < layout_.num_tensors(); ++t) {
      out.Floats(residual_.subspan(layout_.TensorFlatElem(t), job_.tensors[t].num_elems));
    }
  }
  if (KeepsSteering()) {
    for (const TensorState& tensor : tensors_) out.Steering(tensor.steering);
  }
  if (job_.codec == Codec::kAuto) {
    for (const SegmentState& state : segments_) out.U8(state.settled ? 1 : 0);
    for (const TensorState& tensor : tensors_) {
      out.U64(tensor.decision.raw_from_step);
      tensor.decision.cost.SaveTo(out);
      tensor.meter.SaveTo(out);
    }
  }
  return std::move(out).Finish();
}

Result<void> Worker::LoadState(std::span<const std::byte> bytes) {
  CHECK(!begun_);
  ASSIGN_OR_RETURN(StateReader in, StateReader::Open(bytes, {job_, members_, {Role::kWorker, rank_}}));
  const uint64_t steps = in.Count("steps", kMaxStateSteps);
  std::vector<std::span<const std::byte>> params, residual;
  for (const JobTensor& tensor : job_.tensors) params.push_back(in.Floats("parameters", tensor.num_elems));
  if (KeepsResidual()) {
    for (const JobTensor& tensor : job_.tensors) residual.push_back(in.Floats("residuals", tensor.num_elems));
  }
  std::vector<TensorState> tensors(layout_.num_tensors(), TensorState(job_));
  if (KeepsSteering()) {
    for (TensorState& tensor : tensors) in.Steering(tensor.steering);
  }
  std::vector<uint8_t> settled(segments_.size(), 0);
  if (job_.codec == Codec::kAuto) {
    for (uint8_t& flag : settled) {
      flag = in.U8();
      if (flag > 1) in.Complain("has a flag that is neither 0 nor 1");
    }
    for (TensorState& tensor : tensors) {
      tensor.decision.raw_from_step = in.Count("steps before a decision", kMaxStateSteps);
      tensor.decision.cost.LoadFrom(in);
      tensor.meter.LoadFrom(in);
    }
  }
  TRY(in.Done());

  // Nothing fails from here on.
  for (uint32_t t = 0; t < layout_.num_tensors(); ++t) {
    std::memcpy(OfTensor(params_, t).data(), params[t].data(), params[t].size());
    if (!residual.empty()) std::memcpy(OfTensor(residual_, t).data(), residual[t].data(), residual[t].size());
  }
  tensors_ = std::move(tensors);
  for (size_t s = 0; s < segments_.size(); ++s) {
    segments_[s] = SegmentState{};
    segments_[s].clock = steps;
    segments_[s].initializing = false;
    segments_[s].settled = settled[s] != 0;
  }
  loaded_ = true;
  return {};
}

Result<void> Worker::Resume() {
  CHECK(loaded_ && !std::exchange(begun_, true));
  loop_.Start([this] { return Turn(); }, on_error_);
  return {};
}

}  // namespace gradlane
