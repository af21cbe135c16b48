#include "ps/shard.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/accumulate.h"
#include "kernels/optim.h"
#include "kernels/two_bit.h"

namespace gradlane {
namespace {

constexpr uint32_t kForeign = UINT32_MAX;

}  // namespace

Shard::Shard(const Job& job, const Layout& layout, uint32_t server, uint32_t num_workers, ShardMemory memory,
             const CodecChoice& codec)
    : job_(job),
      layout_(layout),
      server_(server),
      num_workers_(num_workers),
      num_lanes_(NumLanes(job, num_workers)),
      memory_(std::move(memory)),
      fec_({job.segment_bytes / sizeof(float), codec.num_threads, codec.target}),
      local_(layout.num_segments(), kForeign),
      warned_(layout.num_tensors(), false) {
  const auto own = layout.SegmentsOfServer(server);
  for (uint32_t i = 0; i < own.size(); ++i) local_[own[i]] = i;
  states_.resize(own.size());
  contributions_.resize(own.size() * num_workers);
  replied_.resize(own.size() * num_workers, 0);
  if (job.reply == ReplyCodec::kFec && job.fec_auto) {
    steering_.assign(own.size() * num_lanes_, fec::DensitySteering(job.fec_density, job.fec_reply_threshold));
  }
}

Error Shard::Complaint(const Push& push, const std::string& what) const {
  std::string where = "segment " + std::to_string(push.message.segment);
  if (push.message.segment < layout_.num_segments()) {
    where += " of " + job_.tensors[layout_.segments()[push.message.segment].tensor].name;
  }
  return Error{ErrorCode::kMalformed,
               "worker " + std::to_string(push.worker) + " sent " + what + " for " + where + "; server " +
                   std::to_string(server_) + " cannot use it.",
               0};
}

void Shard::ReleaseContribution(Contribution& contribution, std::vector<uint64_t>& released) {
  released.push_back(contribution.token);
  contribution.stored = false;
  contribution.payload = {};
}

Result<Shard::Outcome> Shard::Initialize(const Push& push, std::vector<uint64_t>& released) {
  State& state = states_[local_[push.message.segment]];
  released.push_back(push.token);
  if (resumed_) return tl::unexpected(Complaint(push, "initial parameters, though this job was resumed,"));
  if (state.initialized) return Outcome::kDuplicate;
  if (push.worker != 0) return tl::unexpected(Complaint(push, "initial parameters, which only worker 0 does,"));
  const std::span<float> params = Of(memory_.params, push.message.segment);
  if (push.payload.size() != params.size_bytes()) {
    return tl::unexpected(Complaint(push, std::to_string(push.payload.size()) + " bytes where " +
                                              std::to_string(params.size_bytes()) + " are due"));
  }
  if (!accumulate::Assign(push.payload, params)) {
    return tl::unexpected(Complaint(push, "initial parameters that are not finite"));
  }
  for (std::span<float> held : memory_.held) std::ranges::copy(params, Of(held, push.message.segment).begin());
  state.initialized = true;
  return Outcome::kInitialized;
}

Result<Shard::Outcome> Shard::OnPush(const Push& push, std::vector<uint64_t>& released) {
  const uint32_t segment = push.message.segment;
  if (segment >= layout_.num_segments() || local_[segment] == kForeign || push.worker >= num_workers_) {
    return tl::unexpected(Complaint(push, "a push that belongs elsewhere"));
  }
  if (push.message.kind == MessageKind::kInit) return Initialize(push, released);

  State& state = states_[local_[segment]];
  Contribution& mine = At(segment, push.worker);
  if (!state.initialized) return tl::unexpected(Complaint(push, "a gradient before the initial parameters"));
  if (push.message.step == uint8_t(mine.clock) && mine.clock > 0) {
    released.push_back(push.token);
    return Outcome::kDuplicate;
  }
  if (mine.stored || push.message.step != uint8_t(mine.clock + 1)) {
    return tl::unexpected(Complaint(push, "step " + std::to_string(push.message.step) + " where " +
                                              std::to_string(uint8_t(mine.clock + 1)) + " is due (both modulo 256)"));
  }
  const bool flagged = push.message.kind == MessageKind::kNonFinite;
  if (flagged && !push.payload.empty()) {
    return tl::unexpected(Complaint(push, std::to_string(push.payload.size()) + " bytes with a flag that has none"));
  }
  const bool raw = push.message.kind == MessageKind::kRaw;
  if (raw && job_.codec != Codec::kAuto) {
    return tl::unexpected(Complaint(push, std::string("a gradient that is not coded, with --codec ") + ToString(job_.codec) + ","));
  }
  ++mine.clock;
  mine.stored = true;
  mine.raw = raw;
  mine.flagged = flagged;
  mine.payload = push.payload;
  mine.token = push.token;
  if (job_.sync.kind != SyncKind::kBsp) return Outcome::kComplete;

  while (state.next_rank < num_workers_ && At(segment, state.next_rank).stored) {
    // Those after a flag are added as well, though the step is left out: what does not decode ends the job in any case.
    ASSIGN_OR_RETURN(const bool finite, Accumulate(segment, state.next_rank, !state.assigned));
    if (finite) state.assigned = true;
    else if (!state.flagging) state.flagging = state.next_rank;
    ReleaseContribution(At(segment, state.next_rank), released);
    ++state.next_rank;
  }
  return state.next_rank == num_workers_ ? Outcome::kComplete : Outcome::kWaiting;
}

Result<bool> Shard::Accumulate(uint32_t segment, uint32_t worker, bool first) {
  const Contribution& contribution = At(segment, worker);
  if (contribution.flagged) return false;
  const std::span<const std::byte> payload = contribution.payload;
  const std::span<float> sum = Of(memory_.sum, segment);
  const Push push{worker, Message{segment, uint8_t(contribution.clock), MessageKind::kData}, payload, 0};
  switch (contribution.raw ? Codec::kNone : job_.codec) {
    case Codec::kNone: {
      if (payload.size() != sum.size_bytes()) {
        return tl::unexpected(Complaint(push, std::to_string(payload.size()) + " bytes where " +
                                                  std::to_string(sum.size_bytes()) + " are due"));
      }
      return first ? accumulate::Assign(payload, sum) : accumulate::Add(payload, sum);
    }
    case Codec::kFec:
    case Codec::kAuto: {
      const fec::DecodeStatus status = first ? fec_.Decode(payload, sum) : fec_.DecodeAdd(payload, sum);
      if (status == fec::DecodeStatus::kOk) return true;
      return tl::unexpected(Complaint(push, std::string("FEC bytes that do not decode (") + fec::ToString(status) + ")"));
    }
    case Codec::kTwoBit: {
      if (first) std::ranges::fill(sum, 0.0f);
      if (two_bit::DecodeAdd(payload, job_.two_bit_threshold, sum)) return true;
      return tl::unexpected(Complaint(push, "2-bit codes that do not decode"));
    }
  }
  return true;
}

Result<void> Shard::LeaveOut(uint32_t segment, uint32_t worker, uint32_t& in_row) {
  const uint32_t tensor = layout_.segments()[segment].tensor;
  ++nonfinite_segments_;
  ++in_row;
  const NonFiniteGradient what{worker, job_.tensors[tensor].name, At(segment, worker).clock};
  if (!warned_[tensor]) warning_ = what;
  warned_[tensor] = true;
  if (in_row >= job_.nonfinite_limit) return tl::unexpected(NonFiniteEnd(what, in_row));
  return {};
}

void Shard::Optimize(uint32_t segment, int64_t step) {
  State& state = states_[local_[segment]];
  const float grad_scale = 1.0f / float(num_workers_);
  const float weight_decay = job_.tensors[layout_.segments()[segment].tensor].decay ? job_.weight_decay : 0.0f;
  const float lr = job_.lr.At(step);
  const std::span<float> params = Of(memory_.params, segment);
  const std::span<float> sum = Of(memory_.sum, segment);
  const std::span<float> first_moment = Of(memory_.first_moment, segment);
  ++state.updates;
  ++updates_;
  if (job_.optimizer == OptimizerKind::kSgd) {
    optim::SgdStep(params, sum, grad_scale, first_moment, {lr, job_.momentum, weight_decay});
  } else {
    optim::AdamParams adam;
    adam.lr = lr;
    adam.weight_decay = weight_decay;
    optim::AdamStep(params, sum, grad_scale, first_moment, Of(memory_.second_moment, segment), int64_t(state.updates), adam);
  }
}

Result<void> Shard::Update(uint32_t segment, uint32_t worker, std::vector<uint64_t>& released, std::vector<Reply>& due) {
  State& state = states_[local_[segment]];
  Contribution& mine = At(segment, worker);
  if (job_.sync.kind == SyncKind::kBsp) {
    CHECK(state.next_rank == num_workers_);
    state.next_rank = 0;
    state.assigned = false;
    state.flagged_by = std::exchange(state.flagging, std::nullopt);
    if (state.flagged_by) {
      TRY(LeaveOut(segment, *state.flagged_by, state.flagged_in_row));
    } else {
      state.flagged_in_row = 0;
      Optimize(segment, int64_t(mine.clock) - 1);
    }
  } else {
    CHECK(mine.stored);
    ASSIGN_OR_RETURN(const bool finite, Accumulate(segment, worker, true));
    ReleaseContribution(mine, released);
    if (finite) {
      mine.flagged_in_row = 0;
      Optimize(segment, int64_t(mine.clock) - 1);
    } else {
      TRY(LeaveOut(segment, worker, mine.flagged_in_row));
    }
  }
  AppendDue(segment, worker, due);
  return {};
}

void Shard::AppendDue(uint32_t segment, uint32_t worker, std::vector<Reply>& due) {
  if (job_.sync.kind == SyncKind::kAsync) {
    due.push_back({segment, worker});
    return;
  }
  uint64_t slowest = UINT64_MAX;
  for (uint32_t w = 0; w < num_workers_; ++w) {
    // A stored contribution is not applied yet.
    slowest = std::min(slowest, At(segment, w).clock - (At(segment, w).stored ? 1 : 0));
  }
  for (uint32_t w = 0; w < num_workers_; ++w) {
    const Contribution& theirs = At(segment, w);
    uint64_t& replied = replied_[local_[segment] * num_workers_ + w];
    if (theirs.stored || replied == theirs.clock || theirs.clock > slowest + job_.sync.staleness) continue;
    replied = theirs.clock;
    due.push_back({segment, w});
  }
}

uint8_t Shard::ReplyStep(uint32_t segment, uint32_t worker) const {
  return uint8_t(contributions_[local_[segment] * num_workers_ + worker].clock);
}

Result<size_t> Shard::EncodeReply(uint32_t segment, uint32_t lane, std::span<std::byte> dst) {
  const std::span<float> params = Of(memory_.params, segment);
  if (job_.reply == ReplyCodec::kRaw) {
    std::memcpy(dst.data(), params.data(), params.size_bytes());
    return params.size_bytes();
  }
  const std::span<float> held = Of(memory_.held[lane], segment);
  const std::span<float> change = memory_.scratch.first(params.size());
  for (size_t i = 0; i < change.size(); ++i) change[i] = params[i] - held[i];
  fec::DensitySteering* const steering = steering_.empty() ? nullptr : &steering_[size_t{local_[segment]} * num_lanes_ + lane];
  const uint64_t update = states_[local_[segment]].updates;
  const fec::Params params_of_reply = FecParams(job_, job_.fec_reply_threshold, steering, {update, segment, kReplyStream + lane});
  const fec::EncodeStats stats = fec_.Encode(change, {}, params_of_reply, dst);
  if (!stats.finite) {
    return Fail(ErrorCode::kMalformed, "the parameters of " + job_.tensors[layout_.segments()[segment].tensor].name +
                                           " are no longer finite after " +
                                           std::to_string(update) +
                                           " updates: training has diverged; lower --lr.");
  }
  if (steering != nullptr) steering->Observe(stats.survivors, change.size());
  // What the workers will hold, by the very operation that they apply: the difference stays for the next reply.
  CHECK(fec_.DecodeAdd(dst.first(stats.bytes), held) == fec::DecodeStatus::kOk);
  reply_survivors_ += stats.survivors;
  reply_elems_ += change.size();
  return stats.bytes;
}

}  // namespace gradlane
