#include "ps/worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/accumulate.h"
#include "kernels/two_bit.h"
#include "ps/codec.h"

namespace gradlane {
namespace {

constexpr size_t kEventsPerTurn = 16;

std::span<float> AsFloats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::vector<Scheduler::Group> GroupsOf(const Layout& layout) {
  std::vector<Scheduler::Group> groups;
  for (uint32_t t = 0; t < layout.num_tensors(); ++t) {
    const uint32_t first = layout.SegmentsOfTensor(t).begin;
    groups.push_back({first, layout.segments()[first].layer});
  }
  return groups;
}

}  // namespace

Worker::Worker(const RankConfig& config, std::unique_ptr<Fabric> fabric)
    : job_(*config.job),
      layout_(*config.layout),
      members_(config.members),
      rank_(config.rank),
      track_(config.track),
      fabric_(std::move(fabric)),
      target_(layout_.num_layers(), 0),
      hand_over_(layout_.num_layers() + 1),
      done_(layout_.num_layers()),
      fec_({job_.segment_bytes / sizeof(float), config.codec.num_threads, config.codec.target}),
      codec_auto_(config.codec_auto),
      segments_(layout_.num_segments()),
      tensors_(layout_.num_tensors(), TensorState(job_)),
      remaining_(layout_.num_layers(), 0),
      loop_(*fabric_) {
  withheld_layers_.reserve(layout_.num_layers());
  if (job_.codec != Codec::kAuto) return;
  if (codec_auto_.plan == nullptr) {
    probe_.resize(job_.segment_bytes / sizeof(float));
  } else {
    for (uint32_t t = 0; t < tensors_.size(); ++t) tensors_[t].decision = codec_auto_.plan->tensors[t].of_worker[rank_];
  }
}

Result<std::unique_ptr<Worker>> Worker::Open(const RankConfig& config, std::unique_ptr<Fabric> fabric) {
  std::unique_ptr<Worker> worker(new Worker(config, std::move(fabric)));
  Fabric& f = *worker->fabric_;
  const Layout& layout = worker->layout_;
  const Job& job = worker->job_;
  const size_t flat_bytes = layout.flat_elems() * sizeof(float);
  ASSIGN_OR_RETURN(const Region params, f.Allocate(flat_bytes));
  ASSIGN_OR_RETURN(const Region reply_slots, f.Allocate(ReplySlotsBytes(job, layout)));
  ASSIGN_OR_RETURN(const Region grads, f.Allocate(flat_bytes));
  ASSIGN_OR_RETURN(const Region staging, f.Allocate(job.codec == Codec::kNone ? 0 : layout.slots_bytes()));
  CHECK(params.id == kParamsRegion && reply_slots.id == kReplySlotsRegion);
  worker->params_ = AsFloats(params.bytes);
  worker->grads_ = AsFloats(grads.bytes);
  worker->staging_ = staging.bytes;
  if (job.codec != Codec::kNone) {
    // The 2-bit scheme works through its residual; without error feedback it is cleared before each use.
    const bool needed = job.error_feedback || job.codec == Codec::kTwoBit;
    ASSIGN_OR_RETURN(worker->residual_memory_, Memory::Map(needed ? flat_bytes : 0));
    worker->residual_ = AsFloats(worker->residual_memory_.bytes());
  }
  worker->queue_.emplace(f, config.members, PolicyOf(job.schedule), GroupsOf(layout), layout.num_segments(),
                         job.window_bytes, config.track);
  return worker;
}

std::span<float> Worker::OfTensor(std::span<float> all, uint32_t tensor) {
  return all.subspan(layout_.TensorFlatElem(tensor), job_.tensors[tensor].num_elems);
}

std::span<float> Worker::OfSegment(std::span<float> all, uint32_t segment) {
  const Segment& s = layout_.segments()[segment];
  return all.subspan(s.flat_elem, s.num_elems);
}

Result<void> Worker::Begin() {
  CHECK(!loaded_ && !std::exchange(begun_, true));
  // Worker 0 pushes every segment; everybody gets every segment back.
  for (uint32_t k = 0; k < layout_.num_layers(); ++k) {
    const auto [begin, end] = layout_.SegmentsOfLayer(k);
    remaining_[k] = (end - begin) * (rank_ == 0 ? 2 : 1);
    target_[k] = 1;
    for (uint32_t s = begin; s < end; ++s) {
      segments_[s].awaiting = true;
      if (rank_ == 0) queue_->Push(s);
    }
  }
  loop_.Start([this] { return Turn(); }, on_error_);
  for (uint32_t k = 0; k < layout_.num_layers(); ++k) TRY(WaitDone(k));
  return {};
}

void Worker::GradReady(uint32_t layer) {
  ++target_[layer];
  CHECK(hand_over_.TryPush(layer));  // a layer is in the ring at most once: WaitParams comes before the next GradReady
  fabric_->Wake();
}

Result<void> Worker::WaitParams(uint32_t layer) {
  if (job_.schedule != Schedule::kSerial) return WaitDone(layer);
  // Serial: forward starts when everything is back.
  for (uint32_t k = 0; k < layout_.num_layers(); ++k) TRY(WaitDone(k));
  return {};
}

Result<void> Worker::WaitDone(uint32_t layer) {
  std::atomic<uint32_t>& done = done_[layer];
  uint32_t now = done.load(std::memory_order_acquire);  // pairs with the release in CountDown and Fail
  if (now < target_[layer]) {
    const int64_t begin_ns = NowNs();
    do {
      done.wait(now, std::memory_order_acquire);
      now = done.load(std::memory_order_acquire);
    } while (now < target_[layer]);
    exposed_ns_ += NowNs() - begin_ns;
  }
  if (now != kFailedMark) return {};
  const std::lock_guard lock(failure_mutex_);
  return tl::unexpected(*failure_);
}

void Worker::Fail(const Error& error) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) return;
    failure_ = error;
  }
  for (auto& done : done_) {
    done.store(kFailedMark, std::memory_order_release);  // pairs with the acquire in WaitDone
    done.notify_all();
  }
}

void Worker::CountDown(uint32_t layer) {
  CHECK(remaining_[layer] > 0);
  if (--remaining_[layer] > 0) return;
  uint32_t now = done_[layer].load(std::memory_order_relaxed);
  // Release: the parameters written by this thread and the fabric are seen by whoever sees the new count. A failure
  // mark, set by any thread, stays.
  if (now != kFailedMark) done_[layer].compare_exchange_strong(now, now + 1, std::memory_order_release);
  done_[layer].notify_all();
}

void Worker::CountBytes(uint64_t& total, uint64_t bytes) {
  total += bytes;
  bytes_so_far_.store(stats_.push_bytes + stats_.reply_bytes, std::memory_order_relaxed);
}

StoreStats Worker::Stats() const {
  StoreStats stats = stats_;
  stats.preemptions = queue_->scheduler().preemptions();
  stats.exposed_ns = exposed_ns_;
  return stats;
}

std::vector<CodecDecision> Worker::CodecDecisions() const {
  std::vector<CodecDecision> decisions;
  for (const TensorState& tensor : tensors_) decisions.push_back(tensor.decision);
  return decisions;
}

void Worker::Stop() { loop_.Stop(); }

// What follows runs on the communication thread.

Result<bool> Worker::Turn() {
  Event events[kEventsPerTurn];
  const size_t num_events = fabric_->Poll(events);
  for (size_t i = 0; i < num_events; ++i) TRY(OnEvent(events[i]));
  TakeHandOvers();  // last before posting: what was handed over before a put was sent goes into the choice of the next
  ASSIGN_OR_RETURN(const bool posted, queue_->PostOne([this](uint32_t segment) { return Prepare(segment); }));
  return posted || num_events > 0;
}

void Worker::TakeHandOvers() {
  uint32_t layer = 0;
  while (hand_over_.TryPop(layer)) {
    if (job_.schedule != Schedule::kSerial) {
      Enqueue(layer);
      continue;
    }
    withheld_layers_.push_back(layer);
    if (withheld_layers_.size() < layout_.num_layers()) continue;
    for (uint32_t k : withheld_layers_) Enqueue(k);
    withheld_layers_.clear();
  }
}

void Worker::Enqueue(uint32_t layer) {
  const auto [begin, end] = layout_.SegmentsOfLayer(layer);
  CHECK(remaining_[layer] == 0);
  remaining_[layer] = (end - begin) * 2;
  for (uint32_t s = begin; s < end; ++s) {
    SegmentState& state = segments_[s];
    CHECK(!state.awaiting);
    ++state.clock;
    state.awaiting = true;
    state.encoded = false;
    state.flagged = false;
    const uint32_t tensor = layout_.segments()[s].tensor;
    if (s == layout_.SegmentsOfTensor(tensor).begin) Decide(tensor, state.clock);
    state.raw = tensors_[tensor].decision.RawAt(state.clock);
    queue_->Push(s);
  }
}

Result<void> Worker::OnEvent(const Event& event) {
  switch (event.kind) {
    case EventKind::kSent: {
      const uint32_t segment = uint32_t(event.cookie);
      queue_->OnSent(segment);
      CountDown(layout_.segments()[segment].layer);
      return {};
    }
    case EventKind::kArrived: {
      Result<void> result = OnReply(event.peer, event.imm, event.payload);
      fabric_->Release(event.release);
      return result;
    }
    case EventKind::kFailed:
      return tl::unexpected(LostPeer(members_, event.peer, fabric_->FailureOf(event.peer)));
  }
  return {};
}

Result<void> Worker::OnReply(PeerId peer, uint32_t imm, std::span<const std::byte> payload) {
  const int64_t begin_ns = NowNs();
  const Message message = Unpack(imm);
  const bool known = message.kind != MessageKind::kRaw && message.segment < layout_.num_segments() &&
                     layout_.segments()[message.segment].server == peer;
  auto malformed = [&](const std::string& what) {
    return gradlane::Fail(ErrorCode::kMalformed, ToString(members_.At(peer)) + " sent " + what + " (notice " +
                                                     std::to_string(imm) + "); worker " + std::to_string(rank_) +
                                                     " cannot use it.");
  };
  if (!known) return malformed("a reply that belongs elsewhere");
  const Segment& segment = layout_.segments()[message.segment];
  SegmentState& state = segments_[message.segment];
  if (message.step != uint8_t(state.clock) || (message.kind == MessageKind::kInit) != state.initializing) {
    return malformed("a reply to step " + std::to_string(message.step) + " where " +
                     std::to_string(uint8_t(state.clock)) + " is due (both modulo 256)");
  }
  if (!state.awaiting) return {};  // a duplicate
  if (!state.initializing && !state.encoded) return malformed("a reply to a push that has not been sent");

  const std::span<float> params = OfSegment(params_, message.segment);
  if (message.kind == MessageKind::kNonFinite) {
    if (const std::string complaint = ComplaintAboutFlag(state, payload); !complaint.empty()) return malformed(complaint);
    uint32_t flagged_by = 0;
    std::memcpy(&flagged_by, payload.data(), sizeof flagged_by);
    if (flagged_by == rank_) ++stats_.nonfinite_segments;
    TakeBack(message.segment);
  } else if (state.flagged && job_.sync.kind == SyncKind::kBsp) {
    return malformed("parameters for a step to which this worker's gradient was not finite");
  } else if (state.initializing || job_.reply == ReplyCodec::kRaw) {
    if (payload.size() != params.size_bytes()) {
      return malformed(std::to_string(payload.size()) + " bytes where " + std::to_string(params.size_bytes()) + " are due");
    }
    // One-sided, it has landed where it belongs already.
    if (static_cast<const void*>(payload.data()) != params.data()) {
      std::memcpy(params.data(), payload.data(), payload.size());
    }
  } else if (const fec::DecodeStatus status = fec_.DecodeAdd(payload, params); status != fec::DecodeStatus::kOk) {
    return malformed(std::string("FEC bytes that do not decode (") + fec::ToString(status) + ")");
  }
  const int64_t end_ns = NowNs();
  if (!state.initializing) {
    stats_.decode_ns += end_ns - begin_ns;
    CountBytes(stats_.reply_bytes, payload.size());
    stats_.reply_raw_bytes += params.size_bytes();
  }
  if (track_ != nullptr) {
    track_->Add({"apply reply", begin_ns, end_ns, int32_t(message.step), int32_t(segment.layer),
                 int32_t(message.segment), int32_t(peer)});
  }
  state.awaiting = false;
  state.initializing = false;
  CountDown(segment.layer);
  return {};
}

// Of a reply that says that the step was left out; empty: it may be true.
std::string Worker::ComplaintAboutFlag(const SegmentState& state, std::span<const std::byte> payload) const {
  if (job_.sync.kind != SyncKind::kBsp) return "a non-finite step with --sync " + ToString(job_.sync) + ", which has none";
  uint32_t worker = 0;
  if (payload.size() != kFlagBytes) {
    return std::to_string(payload.size()) + " bytes where the number of a worker, " + std::to_string(kFlagBytes) + ", is due";
  }
  std::memcpy(&worker, payload.data(), sizeof worker);
  if (worker >= members_.num_workers) return "a non-finite step of worker " + std::to_string(worker) + ", which does not exist";
  if (state.flagged && worker > rank_) return "a non-finite step of worker " + std::to_string(worker) + ", not of this one";
  if (!state.flagged && worker == rank_ && job_.codec != Codec::kNone && !state.raw) return "a non-finite step of this worker, which had none";
  return "";
}

// The step was left out for another worker's sake: what this one sent, the server has thrown away. Under error feedback
// it goes back into the residual, from the bytes that were sent, which stay in the staging slot until the next step.
void Worker::TakeBack(uint32_t index) {
  SegmentState& state = segments_[index];
  if (state.flagged || residual_.empty() || !job_.error_feedback) return;
  if (state.raw) {
    // What was sent is the gradient itself, with the residual if that was due; the server may have found it not finite.
    const std::span<const float> sent = OfSegment(grads_, index);
    if (!accumulate::AllFinite(sent)) return;
    std::ranges::copy(sent, OfSegment(residual_, index).begin());
    state.settled = false;
    return;
  }
  const std::span<const std::byte> sent = staging_.subspan(layout_.segments()[index].slot_offset_bytes, state.encoded_bytes);
  const std::span<float> residual = OfSegment(residual_, index);
  if (job_.codec != Codec::kTwoBit) {
    CHECK(fec_.DecodeAdd(sent, residual) == fec::DecodeStatus::kOk);
  } else {
    CHECK(two_bit::DecodeAdd(sent, job_.two_bit_threshold, residual));
  }
}

Result<Outgoing> Worker::Prepare(uint32_t index) {
  const Segment& segment = layout_.segments()[index];
  SegmentState& state = segments_[index];
  Outgoing out;
  out.peer = segment.server;
  const uint64_t own_part = rank_ * layout_.ServerSlotsBytes(segment.server);
  out.slot = {kPushSlotsRegion, own_part + segment.server_slot_bytes};
  out.message = {index, uint8_t(state.clock), state.initializing ? MessageKind::kInit : MessageKind::kData};
  out.layer = int32_t(segment.layer);
  if (state.initializing) {
    out.source = std::as_bytes(OfSegment(params_, index));
  } else if (job_.codec == Codec::kNone) {
    out.source = std::as_bytes(OfSegment(grads_, index));
    if (!state.encoded) {
      state.encoded = true;  // counted once, however often the window makes it wait
      CountBytes(stats_.push_bytes, segment.RawBytes());
      stats_.push_raw_bytes += segment.RawBytes();
      stats_.push_survivors += segment.num_elems;
      stats_.push_elems += segment.num_elems;
    }
  } else if (state.raw) {
    if (!state.encoded) TakeRaw(index);
    out.message.kind = state.flagged ? MessageKind::kNonFinite : MessageKind::kRaw;
    if (!state.flagged) out.source = std::as_bytes(OfSegment(grads_, index));
  } else {
    if (!state.encoded) Encode(index);
    if (state.flagged) out.message.kind = MessageKind::kNonFinite;
    out.source = staging_.subspan(segment.slot_offset_bytes, state.encoded_bytes);
  }
  return out;
}

void Worker::Encode(uint32_t index) {
  const int64_t begin_ns = NowNs();
  const Segment& segment = layout_.segments()[index];
  SegmentState& state = segments_[index];
  TensorState& tensor = tensors_[segment.tensor];
  const std::span<const float> grad = OfSegment(grads_, index);
  const std::span<float> residual = residual_.empty() ? residual_ : OfSegment(residual_, index);
  const std::span<std::byte> dst = staging_.subspan(segment.slot_offset_bytes, segment.slot_bytes);
  bool finite = true;
  uint64_t survivors = 0;
  const bool fec_coded = job_.codec != Codec::kTwoBit;
  if (fec_coded) {
    const fec::Params params = FecParams(job_, job_.fec_threshold, job_.fec_auto ? &tensor.steering : nullptr,
                                         {state.clock, index, rank_});
    const fec::EncodeStats encoded = fec_.Encode(grad, residual, params, dst);
    finite = encoded.finite;
    survivors = encoded.survivors;
    state.encoded_bytes = uint32_t(encoded.bytes);
  } else {
    if (!job_.error_feedback) std::ranges::fill(residual, 0.0f);
    const two_bit::EncodeStats encoded = two_bit::Encode(grad, residual, job_.two_bit_threshold, dst);
    finite = encoded.finite;
    survivors = encoded.survivors;
    state.encoded_bytes = uint32_t(two_bit::EncodedBytes(segment.num_elems));
  }
  if (!finite) {
    state.flagged = true;
    state.encoded_bytes = 0;
    survivors = 0;
    tensor.flagged = true;
    if (job_.sync.kind != SyncKind::kBsp) ++stats_.nonfinite_segments;
  }
  state.encoded = true;
  state.settled = false;
  const int64_t end_ns = NowNs();
  if (finite && IsMeasured(state.clock)) Measure(index, end_ns - begin_ns);
  tensor.survivors += survivors;
  const auto [begin, end] = layout_.SegmentsOfTensor(segment.tensor);
  if (++tensor.segments_encoded == end - begin) {
    // Once a step, when the whole tensor is encoded: so the order of its segments does not matter. A step with a segment
    // that was not finite says nothing of the density.
    if (fec_coded && job_.fec_auto && !tensor.flagged) {
      tensor.steering.Observe(tensor.survivors, job_.tensors[segment.tensor].num_elems);
    }
    if (IsMeasured(state.clock)) tensor.meter.EndStep(!tensor.flagged);
    tensor.segments_encoded = 0;
    tensor.survivors = 0;
    tensor.flagged = false;
  }
  stats_.encode_ns += end_ns - begin_ns;
  CountBytes(stats_.push_bytes, state.encoded_bytes);
  stats_.push_raw_bytes += segment.RawBytes();
  stats_.push_survivors += survivors;
  stats_.push_elems += segment.num_elems;
  if (track_ != nullptr) {
    track_->Add({"encode", begin_ns, end_ns, int32_t(uint8_t(state.clock)), int32_t(segment.layer), int32_t(index)});
  }
}

// --codec auto: a gradient that is sent as it is. The first takes along what coding has left behind, so that nothing is
// lost; after that there is no pass over it here, and the server finds what is not finite.
void Worker::TakeRaw(uint32_t index) {
  const int64_t begin_ns = NowNs();
  const Segment& segment = layout_.segments()[index];
  SegmentState& state = segments_[index];
  state.encoded = true;
  if (job_.error_feedback && !state.settled) {
    const std::span<float> grad = OfSegment(grads_, index);
    const std::span<float> residual = OfSegment(residual_, index);
    for (size_t i = 0; i < grad.size(); ++i) grad[i] += residual[i];
    if (accumulate::AllFinite(grad)) {
      std::ranges::fill(residual, 0.0f);
      state.settled = true;
    } else {
      state.flagged = true;
      if (job_.sync.kind != SyncKind::kBsp) ++stats_.nonfinite_segments;
    }
  }
  stats_.encode_ns += NowNs() - begin_ns;
  const uint64_t sent_bytes = state.flagged ? 0 : segment.RawBytes();
  CountBytes(stats_.push_bytes, sent_bytes);
  stats_.push_auto_raw_bytes += sent_bytes;
  stats_.push_raw_bytes += segment.RawBytes();
}

// The first half warms up.
bool Worker::IsMeasured(uint64_t step) const {
  return !probe_.empty() && step > codec_auto_.decide_steps / 2 && step <= codec_auto_.decide_steps;
}

// What the server will do with this segment, done here: coded, and as it would be if it came as fp32. Both find their
// input in the cache, where encoding has left it; a server does if its NIC writes there.
void Worker::Measure(uint32_t index, int64_t encode_ns) {
  const Segment& segment = layout_.segments()[index];
  const std::span<float> probe(probe_.data(), segment.num_elems);
  std::ranges::fill(probe, 0.0f);
  const int64_t begin_ns = NowNs();
  const auto decoded = fec_.DecodeAdd(staging_.subspan(segment.slot_offset_bytes, segments_[index].encoded_bytes), probe);
  const int64_t decoded_ns = NowNs();
  const bool finite = accumulate::Add(std::as_bytes(OfSegment(grads_, index)), probe);
  const int64_t added_ns = NowNs();
  CHECK(decoded == fec::DecodeStatus::kOk && finite);
  tensors_[segment.tensor].meter.Add({segment.num_elems, segments_[index].encoded_bytes, encode_ns, decoded_ns - begin_ns,
                                      added_ns - decoded_ns});
}

// When a layer's gradients are handed over for the first step after the measured ones, all of its pushes of these have
// been answered: so the step at which a decision takes effect does not depend on timing.
void Worker::Decide(uint32_t tensor, uint64_t step) {
  CodecDecision& decision = tensors_[tensor].decision;
  if (probe_.empty() || decision.raw_from_step != 0 || step != uint64_t{codec_auto_.decide_steps} + 1) return;
  decision.cost = tensors_[tensor].meter.Cost();
  if (decision.cost.RawIsFaster(job_.tensors[tensor].num_elems, codec_auto_.link_mbps)) decision.raw_from_step = step;
}

}  // namespace gradlane
