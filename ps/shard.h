// Shard is what one server knows about its segments: parameters, optimizer state, who has contributed to which step, and
// what the workers hold. It is pure: no I/O, no thread, no clock. Owned by one Server; its communication thread.
//
// bsp: contributions of a segment are added in rank order, 0, 1, 2, ..., as far as the prefix has arrived, so the result
// does not depend on timing. The first is assigned, not added to zero. When the last has come, the optimizer runs once.
// ssp and async: each contribution is applied alone, weighted 1/W; a reply is due at once (async), or when no worker is
// more than `staleness` steps behind (ssp).
//
// A reply lane is one stream of replies for a segment: bsp has one, shared by all workers, since all get the same bytes;
// ssp and async have one per worker.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/fec.h"
#include "ps/job.h"
#include "ps/layout.h"
#include "ps/message.h"
#include "transport/base/error.h"

namespace gradlane {

// fp32, ServerElems() each, zero-filled at first, owned by the Server. held: one per lane, empty with raw replies.
struct ShardMemory {
  std::span<float> params;
  std::span<float> sum;
  std::span<float> first_moment;   // velocity with SGD
  std::span<float> second_moment;  // empty with SGD
  std::vector<std::span<float>> held;
  std::span<float> scratch;        // one segment
};

struct Push {
  uint32_t worker = 0;
  Message message;
  std::span<const std::byte> payload;  // valid until `token` comes back in `released`
  uint64_t token = 0;
};

class Shard {
 public:
  Shard(const Job& job, const Layout& layout, uint32_t server, uint32_t num_workers, ShardMemory memory);

  static uint32_t NumLanes(const Job& job, uint32_t num_workers) {
    return job.sync.kind == SyncKind::kBsp ? 1 : num_workers;
  }
  uint32_t LaneOf(uint32_t worker) const { return num_lanes_ == 1 ? 0 : worker; }

  enum class Outcome {
    kWaiting,      // for more contributors
    kDuplicate,    // seen before; harmless
    kInitialized,  // parameters are there: send them raw to every worker
    kComplete,     // Update() is due, once the lane of this worker is free
  };
  // Takes one push. Errors name the worker: kMalformed (segment of another server, step out of order, wrong length, bad
  // code, non-finite value). Tokens of payloads that are no longer needed are appended to released.
  Result<Outcome> OnPush(const Push& push, std::vector<uint64_t>& released);

  struct Reply {
    uint32_t segment = 0;
    uint32_t worker = 0;
  };
  // Runs the optimizer on a complete segment (for this worker's contribution, with ssp and async) and appends the
  // replies that are due. Until the replies of a lane are sent nothing may call this for the same segment and lane:
  // raw bsp replies are sent from the parameters themselves.
  Result<void> Update(uint32_t segment, uint32_t worker, std::vector<uint64_t>& released, std::vector<Reply>& due);

  // Makes the reply bytes of a lane. Raw: copies the parameters. FEC: codes the change of what the workers hold, keeps
  // the difference for the next reply. dst: slot_bytes. Returns the bytes written. Called once per Update and lane.
  Result<size_t> EncodeReply(uint32_t segment, uint32_t lane, std::span<std::byte> dst);

  std::span<const float> Params(uint32_t segment) const { return Of(memory_.params, segment); }
  uint8_t ReplyStep(uint32_t segment, uint32_t worker) const;  // modulo 256, for the Message of a reply
  uint64_t reply_survivors() const { return reply_survivors_; }
  uint64_t reply_elems() const { return reply_elems_; }
  uint64_t updates() const { return updates_; }

 private:
  struct Contribution {
    uint64_t clock = 0;  // pushes accepted from this worker: its step
    bool stored = false;
    std::span<const std::byte> payload;
    uint64_t token = 0;
  };
  struct State {
    bool initialized = false;
    uint32_t next_rank = 0;   // bsp: the prefix that has been added
    uint64_t updates = 0;     // optimizer steps so far
  };

  std::span<float> Of(std::span<float> all, uint32_t segment) const {
    const Segment& s = layout_.segments()[segment];
    return all.subspan(s.server_elem, s.num_elems);
  }
  Contribution& At(uint32_t segment, uint32_t worker) { return contributions_[local_[segment] * num_workers_ + worker]; }
  Error Complaint(const Push& push, const std::string& what) const;
  Result<Outcome> Initialize(const Push& push, std::vector<uint64_t>& released);
  Result<void> Accumulate(uint32_t segment, uint32_t worker, bool first);
  void ReleaseContribution(Contribution& contribution, std::vector<uint64_t>& released);
  void Optimize(uint32_t segment, int64_t step);
  void AppendDue(uint32_t segment, uint32_t worker, std::vector<Reply>& due);

  const Job& job_;
  const Layout& layout_;
  const uint32_t server_;
  const uint32_t num_workers_;
  const uint32_t num_lanes_;
  ShardMemory memory_;
  std::vector<uint32_t> local_;  // segment -> index among this server's, or kForeign
  std::vector<State> states_;
  std::vector<Contribution> contributions_;  // [local][worker]
  std::vector<uint64_t> replied_;            // [local][worker]: the step whose reply is due or was sent (ssp)
  std::vector<fec::DensitySteering> steering_;  // [local][lane], if the threshold is steered
  uint64_t reply_survivors_ = 0;
  uint64_t reply_elems_ = 0;
  uint64_t updates_ = 0;
};

}  // namespace gradlane
