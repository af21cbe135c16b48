// Server is one rank's half of the parameter server: it takes pushes, lets its Shard aggregate them, and sends replies
// by priority, on a communication thread of its own.
//
// Life: Open -> [LocalAddress, exchange] -> Connect -> [LoadState] -> Start -> Stop. Owned by the process's main function. It owns its
// Fabric; the Job, Layout and Trace track are borrowed and outlive it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ps/comm_loop.h"
#include "ps/layout.h"
#include "ps/rank_config.h"
#include "ps/send_queue.h"
#include "ps/shard.h"
#include "transport/base/memory.h"

namespace gradlane {

// Totals without the initial parameters.
struct ServerStats {
  uint64_t updates = 0;
  uint64_t reply_survivors = 0;
  uint64_t reply_elems = 0;
  uint64_t preemptions = 0;
  uint64_t nonfinite_segments = 0;  // see Shard
  int64_t aggregate_ns = 0;  // decode-add and optimizer
  int64_t encode_ns = 0;
};

class Server {
 public:
  static Result<std::unique_ptr<Server>> Open(const RankConfig& config, std::unique_ptr<Fabric> fabric);
  ~Server() { Stop(); }

  Fabric& fabric() { return *fabric_; }  // until Start
  void Start(std::function<void(const Error&)> on_error);  // on_error: at most once, on the communication thread
  void Stop();  // ends the communication thread; idempotent
  ServerStats Stats() const;  // after Stop

  // What training has made of this rank (ps/STATE.md). The owner's thread; while the communication thread runs that does
  // it, as soon as nothing is under way: every worker has to be between two steps, see Worker::SaveState, and to stay
  // there until this returns. kTimeout: something is under way still; kMalformed: values that are not finite; or what the
  // communication thread has failed of.
  Result<std::vector<std::byte>> SaveState(int timeout_ms);
  // Before Start: then no initial parameters are waited for, and every worker has to resume too. On an error (kMalformed,
  // kMismatch: another job, rank or number of ranks) nothing has changed.
  Result<void> LoadState(std::span<const std::byte> bytes);

 private:
  // A reply lane of one segment: see Shard.
  struct LaneState {
    uint32_t outstanding = 0;      // replies queued or in flight that read this lane's bytes
    std::optional<uint32_t> deferred;  // complete, for this worker, and waiting for that
    bool encoded = false;
    size_t encoded_bytes = 0;
  };

  Server(const RankConfig& config, std::unique_ptr<Fabric> fabric);
  Result<void> MakeMemory();
  LaneState& LaneAt(uint32_t local, uint32_t lane) { return lanes_[size_t{local} * num_lanes_ + lane]; }
  bool RepliesFromParams() const { return job_.reply == ReplyCodec::kRaw && num_lanes_ == 1; }

  // Communication thread.
  Result<bool> Turn();
  Result<void> OnEvent(const Event& event);
  Result<void> OnPush(const Event& event);
  Result<void> OnSent(uint32_t item);
  Result<void> Complete(uint32_t segment, uint32_t worker);
  // The unit that is queued is one worker's reply of one segment: items are numbered [own segment][worker].
  uint32_t NumItems() const { return uint32_t(own_.size()) * members_.num_workers; }
  void Enqueue(uint32_t segment, uint32_t worker);
  // No gradient's reply is queued before the initial parameters of its segment are sent: see Complete's callers.
  bool SendsInitial(uint32_t local) const { return initial_outstanding_[local] > 0; }
  std::span<std::byte> FlagOf(uint32_t local) const { return flags_.subspan(local * kFlagBytes, kFlagBytes); }
  Result<Outgoing> Prepare(uint32_t item);
  Result<std::span<const std::byte>> LaneBytes(uint32_t segment, uint32_t lane);
  void ReleaseAll();
  bool Idle() const;
  Result<std::vector<std::byte>> MakeState() const;
  void AnswerSave();

  const Job& job_;
  const Layout& layout_;
  const Membership members_;
  const uint32_t rank_;
  const CodecChoice codec_;
  const uint32_t num_lanes_;
  const std::span<const uint32_t> own_;  // segments of this server
  TraceTrack* const track_;
  std::unique_ptr<Fabric> fabric_;
  std::optional<SendQueue> queue_;
  std::optional<Shard> shard_;

  std::span<float> params_;        // registered
  std::span<std::byte> staging_;   // registered: one slot per segment and lane; empty if replies come from params_
  std::span<std::byte> flags_;     // registered: a worker's number for each own segment; bsp
  Memory state_memory_;            // everything that no peer reads

  std::vector<uint32_t> local_;    // segment -> index in own_
  std::vector<LaneState> lanes_;
  std::vector<uint32_t> initial_outstanding_;  // by own segment: initial replies under way, which read params_
  std::vector<Shard::Reply> due_;
  std::vector<Shard::Reply> withheld_;         // serial: until every own segment of the step is complete
  std::vector<uint64_t> released_;
  int64_t aggregate_ns_ = 0;
  int64_t encode_ns_ = 0;

  // Shared: a state that SaveState waits for.
  std::atomic<bool> save_wanted_{false};
  std::mutex save_mutex_;
  std::condition_variable save_answered_;
  bool running_ = false;                               // by save_mutex_
  std::optional<Error> failure_;                       // by save_mutex_
  std::optional<Result<std::vector<std::byte>>> saved_;  // by save_mutex_

  CommLoop loop_;  // last: its thread ends before anything above goes away
};

}  // namespace gradlane
