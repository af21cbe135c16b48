#include "ps/server.h"

#include <spdlog/spdlog.h>

#include <cstring>
#include <string>
#include <utility>

namespace gradlane {
namespace {

constexpr size_t kEventsPerTurn = 16;

}  // namespace

Server::Server(const RankConfig& config, std::unique_ptr<Fabric> fabric)
    : job_(*config.job),
      layout_(*config.layout),
      members_(config.members),
      rank_(config.rank),
      codec_(config.codec),
      num_lanes_(Shard::NumLanes(job_, members_.num_workers)),
      own_(layout_.SegmentsOfServer(rank_)),
      track_(config.track),
      fabric_(std::move(fabric)),
      local_(layout_.num_segments(), UINT32_MAX),
      lanes_(own_.size() * num_lanes_),
      initial_outstanding_(own_.size(), 0),
      loop_(*fabric_) {
  for (uint32_t i = 0; i < own_.size(); ++i) local_[own_[i]] = i;
  due_.reserve(members_.num_workers);
  withheld_.reserve(NumItems());
  released_.reserve(members_.num_workers + 1);
}

Result<std::unique_ptr<Server>> Server::Open(const RankConfig& config, std::unique_ptr<Fabric> fabric) {
  std::unique_ptr<Server> server(new Server(config, std::move(fabric)));
  TRY(server->MakeMemory());
  std::vector<Scheduler::Group> groups;
  uint32_t last_tensor = UINT32_MAX;
  for (uint32_t i = 0; i < server->own_.size(); ++i) {
    const Segment& segment = config.layout->segments()[server->own_[i]];
    if (segment.tensor != last_tensor) groups.push_back({i * config.members.num_workers, segment.layer});
    last_tensor = segment.tensor;
  }
  server->queue_.emplace(*server->fabric_, config.members, PolicyOf(config.job->schedule), std::move(groups), server->NumItems(),
                         config.job->window_bytes, config.track);
  return server;
}

Result<void> Server::MakeMemory() {
  const uint64_t elems = layout_.ServerElems(rank_);
  const uint64_t slots_bytes = layout_.ServerSlotsBytes(rank_);
  ASSIGN_OR_RETURN(const Region push_slots, fabric_->Allocate(slots_bytes * members_.num_workers));
  ASSIGN_OR_RETURN(const Region params, fabric_->Allocate(elems * sizeof(float)));
  ASSIGN_OR_RETURN(const Region staging, fabric_->Allocate(RepliesFromParams() ? 0 : slots_bytes * num_lanes_));
  ASSIGN_OR_RETURN(const Region flags, fabric_->Allocate(own_.size() * kFlagBytes));
  CHECK(push_slots.id == kPushSlotsRegion);
  params_ = {reinterpret_cast<float*>(params.bytes.data()), elems};
  staging_ = staging.bytes;
  flags_ = flags.bytes;

  const bool adam = job_.optimizer == OptimizerKind::kAdam;
  const size_t held_lanes = job_.reply == ReplyCodec::kFec ? num_lanes_ : 0;
  const size_t segment_elems = job_.segment_bytes / sizeof(float);
  const size_t total_elems = elems * (2 + (adam ? 1 : 0) + held_lanes) + segment_elems;
  ASSIGN_OR_RETURN(state_memory_, Memory::Map(total_elems * sizeof(float)));
  std::span<float> rest(reinterpret_cast<float*>(state_memory_.bytes().data()), total_elems);
  auto take = [&rest](size_t count) {
    const std::span<float> part = rest.first(count);
    rest = rest.subspan(count);
    return part;
  };
  ShardMemory memory;
  memory.params = params_;
  memory.sum = take(elems);
  memory.first_moment = take(elems);
  if (adam) memory.second_moment = take(elems);
  for (size_t lane = 0; lane < held_lanes; ++lane) memory.held.push_back(take(elems));
  memory.scratch = take(segment_elems);
  shard_.emplace(job_, layout_, rank_, members_.num_workers, std::move(memory), codec_);
  return {};
}

void Server::Start(std::function<void(const Error&)> on_error) {
  {
    const std::lock_guard lock(save_mutex_);
    running_ = true;
  }
  loop_.Start([this] { return Turn(); },
              [this, on_error = std::move(on_error)](const Error& error) {
                {
                  const std::lock_guard lock(save_mutex_);
                  failure_ = error;
                }
                save_answered_.notify_all();
                on_error(error);
              });
}

void Server::Stop() {
  loop_.Stop();
  const std::lock_guard lock(save_mutex_);
  running_ = false;
}

ServerStats Server::Stats() const {
  return {shard_->updates(), shard_->reply_survivors(), shard_->reply_elems(), queue_->scheduler().preemptions(),
          shard_->nonfinite_segments(), aggregate_ns_, encode_ns_};
}

Result<bool> Server::Turn() {
  Event events[kEventsPerTurn];
  const size_t num_events = fabric_->Poll(events);
  for (size_t i = 0; i < num_events; ++i) TRY(OnEvent(events[i]));
  ASSIGN_OR_RETURN(const bool posted, queue_->PostOne([this](uint32_t item) { return Prepare(item); }));
  if (save_wanted_.load(std::memory_order_acquire)) AnswerSave();  // pairs with the release in SaveState
  return posted || num_events > 0;
}

Result<void> Server::OnEvent(const Event& event) {
  switch (event.kind) {
    case EventKind::kSent: return OnSent(uint32_t(event.cookie));
    case EventKind::kArrived: return OnPush(event);
    case EventKind::kFailed: return tl::unexpected(LostPeer(members_, event.peer, fabric_->FailureOf(event.peer)));
  }
  return {};
}

void Server::ReleaseAll() {
  for (uint64_t token : released_) fabric_->Release(token);
  released_.clear();
}

Result<void> Server::OnPush(const Event& event) {
  const Member from = members_.At(event.peer);
  const Message message = Unpack(event.imm);
  if (from.role != Role::kWorker) {
    fabric_->Release(event.release);
    return Fail(ErrorCode::kMalformed, ToString(from) + " sent a notice that is no push (" + std::to_string(event.imm) +
                                           "); server " + std::to_string(rank_) + " cannot use it.");
  }
  const int64_t begin_ns = NowNs();
  const Result<Shard::Outcome> outcome = shard_->OnPush({from.rank, message, event.payload, event.release}, released_);
  ReleaseAll();
  if (!outcome) return tl::unexpected(outcome.error());
  switch (*outcome) {
    case Shard::Outcome::kWaiting:
    case Shard::Outcome::kDuplicate: break;
    case Shard::Outcome::kInitialized:
      initial_outstanding_[local_[message.segment]] = members_.num_workers;
      for (uint32_t w = 0; w < members_.num_workers; ++w) {
        queue_->Push(local_[message.segment] * members_.num_workers + w);
      }
      break;
    case Shard::Outcome::kComplete: {
      const uint32_t local = local_[message.segment];
      LaneState& lane = LaneAt(local, shard_->LaneOf(from.rank));
      if (lane.outstanding > 0 || SendsInitial(local)) {
        lane.deferred = from.rank;
      } else {
        TRY(Complete(message.segment, from.rank));
      }
      break;
    }
  }
  const int64_t end_ns = NowNs();
  aggregate_ns_ += end_ns - begin_ns;
  if (track_ != nullptr) {
    track_->Add({"aggregate", begin_ns, end_ns, int32_t(message.step), int32_t(layout_.segments()[message.segment].layer),
                 int32_t(message.segment), int32_t(event.peer)});
  }
  return {};
}

Result<void> Server::Complete(uint32_t segment, uint32_t worker) {
  const Result<void> updated = shard_->Update(segment, worker, released_, due_);
  ReleaseAll();
  if (const auto warning = shard_->TakeWarning()) spdlog::warn("server {}: {}", rank_, NonFiniteWarning(*warning));
  TRY(updated);
  // No reply of this lane is under way, so nobody reads the flag of the step before.
  if (const auto worker = shard_->FlaggedBy(segment)) std::memcpy(FlagOf(local_[segment]).data(), &*worker, kFlagBytes);
  if (job_.schedule == Schedule::kSerial) {
    withheld_.insert(withheld_.end(), due_.begin(), due_.end());
    due_.clear();
    if (withheld_.size() < NumItems()) return {};
    due_.swap(withheld_);
  }
  for (const Shard::Reply& reply : due_) Enqueue(reply.segment, reply.worker);
  due_.clear();
  return {};
}

void Server::Enqueue(uint32_t segment, uint32_t worker) {
  const uint32_t local = local_[segment];
  LaneState& lane = LaneAt(local, shard_->LaneOf(worker));
  if (lane.outstanding++ == 0) lane.encoded = false;
  queue_->Push(local * members_.num_workers + worker);
}

Result<void> Server::OnSent(uint32_t item) {
  queue_->OnSent(item);
  const uint32_t local = item / members_.num_workers;
  const uint32_t worker = item % members_.num_workers;
  if (SendsInitial(local)) {
    --initial_outstanding_[local];
  } else {
    --LaneAt(local, shard_->LaneOf(worker)).outstanding;
  }
  if (SendsInitial(local)) return {};
  for (uint32_t lane = 0; lane < num_lanes_; ++lane) {
    LaneState& state = LaneAt(local, lane);
    if (!state.deferred || state.outstanding > 0) continue;
    const uint32_t for_worker = *std::exchange(state.deferred, std::nullopt);
    TRY(Complete(own_[local], for_worker));
  }
  return {};
}

Result<Outgoing> Server::Prepare(uint32_t item) {
  const uint32_t local = item / members_.num_workers;
  const uint32_t worker = item % members_.num_workers;
  const uint32_t index = own_[local];
  const Segment& segment = layout_.segments()[index];
  const bool initial = SendsInitial(local);
  const bool flagged = !initial && shard_->FlaggedBy(index);
  Outgoing out;
  out.peer = members_.IndexOf({Role::kWorker, worker});
  out.message = {index, initial ? uint8_t{0} : shard_->ReplyStep(index, worker),
                 initial   ? MessageKind::kInit
                 : flagged ? MessageKind::kNonFinite
                           : MessageKind::kData};
  out.layer = int32_t(segment.layer);
  if (flagged) {
    out.slot = {kReplySlotsRegion, ReplyFlagOffset(job_, layout_, index)};
    out.source = FlagOf(local);
    return out;
  }
  if (initial || job_.reply == ReplyCodec::kRaw) {
    out.slot = {kParamsRegion, segment.flat_elem * sizeof(float)};
  } else {
    out.slot = {kReplySlotsRegion, segment.slot_offset_bytes};
  }
  if (initial || RepliesFromParams()) {
    out.source = std::as_bytes(shard_->Params(index));
  } else {
    ASSIGN_OR_RETURN(out.source, LaneBytes(index, shard_->LaneOf(worker)));
  }
  return out;
}

Result<std::span<const std::byte>> Server::LaneBytes(uint32_t index, uint32_t lane) {
  const Segment& segment = layout_.segments()[index];
  LaneState& state = LaneAt(local_[index], lane);
  const std::span<std::byte> slot =
      staging_.subspan(lane * layout_.ServerSlotsBytes(rank_) + segment.server_slot_bytes, segment.slot_bytes);
  if (!state.encoded) {
    const int64_t begin_ns = NowNs();
    ASSIGN_OR_RETURN(state.encoded_bytes, shard_->EncodeReply(index, lane, slot));
    state.encoded = true;
    const int64_t end_ns = NowNs();
    encode_ns_ += end_ns - begin_ns;
    if (track_ != nullptr) track_->Add({"encode reply", begin_ns, end_ns, -1, int32_t(segment.layer), int32_t(index)});
  }
  return std::span<const std::byte>(slot.first(state.encoded_bytes));
}

}  // namespace gradlane
