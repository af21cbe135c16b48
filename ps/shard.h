// Shard is what one server knows about its segments: parameters, optimizer state, who has contributed to which step, and
// what the workers hold. It is pure: no I/O, no thread, no clock. Owned by one Server; its communication thread.
//
// bsp: contributions of a segment are added in rank order, 0, 1, 2, ..., as far as the prefix has arrived, so the result
// does not depend on timing. The first is assigned, not added to zero. When the last has come, the optimizer runs once.
// ssp and async: each contribution is applied alone, weighted 1/W; a reply is due at once (async), or when no worker is
// more than `staleness` steps behind (ssp).
//
// A contribution with a NaN or infinity (flagged by its worker, or found while it is added) is never applied: with bsp the
// segment's step is left out whole, and the reply says so; with ssp and async this contribution is. See ps/PROTOCOL.md.
//
// A reply lane is one stream of replies for a segment: bsp has one, shared by all workers, since all get the same bytes;
// ssp and async have one per worker.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/fec_codec.h"
#include "ps/codec.h"
#include "ps/job.h"
#include "ps/layout.h"
#include "ps/message.h"
#include "ps/nonfinite.h"
#include "transport/base/error.h"

namespace gradlane {

class StateReader;
class StateWriter;

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
  Shard(const Job& job, const Layout& layout, uint32_t server, uint32_t num_workers, ShardMemory memory,
        const CodecChoice& codec = {});

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
  // code, initial parameters that are not finite). Tokens of payloads that are no longer needed are appended to released.
  Result<Outcome> OnPush(const Push& push, std::vector<uint64_t>& released);

  struct Reply {
    uint32_t segment = 0;
    uint32_t worker = 0;
  };
  // Runs the optimizer on a complete segment (for this worker's contribution, with ssp and async), unless a contribution
  // was not finite, and appends the replies that are due. Until the replies of a lane are sent nothing may call this for
  // the same segment and lane: raw bsp replies are sent from the parameters themselves. kMalformed: more steps in a row
  // than the job allows had a contribution that was not finite.
  Result<void> Update(uint32_t segment, uint32_t worker, std::vector<uint64_t>& released, std::vector<Reply>& due);

  // Makes the reply bytes of a lane. Raw: copies the parameters. FEC: codes the change of what the workers hold, keeps
  // the difference for the next reply. dst: slot_bytes. Returns the bytes written. Called once per Update and lane.
  Result<size_t> EncodeReply(uint32_t segment, uint32_t lane, std::span<std::byte> dst);

  // bsp, from Update until the next: the lowest worker whose contribution was not finite. The reply is a flag with that
  // number then, and EncodeReply is not called.
  std::optional<uint32_t> FlaggedBy(uint32_t segment) const { return states_[local_[segment]].flagged_by; }
  // The first contribution of a tensor that was not finite, if Update has just met it: told once.
  std::optional<NonFiniteGradient> TakeWarning() { return std::exchange(warning_, std::nullopt); }

  // Every worker has pushed every segment equally often, all of it is applied, and the replies are due or sent. Then the
  // state (ps/STATE.md) is complete. Errors: see Server. On one, LoadFrom has changed nothing.
  bool BetweenSteps() const;
  Result<void> SaveTo(StateWriter& out) const;
  Result<void> LoadFrom(StateReader& in);

  std::span<const float> Params(uint32_t segment) const { return Of(memory_.params, segment); }
  uint8_t ReplyStep(uint32_t segment, uint32_t worker) const;  // modulo 256, for the Message of a reply
  uint64_t reply_survivors() const { return reply_survivors_; }
  uint64_t reply_elems() const { return reply_elems_; }
  uint64_t updates() const { return updates_; }
  uint64_t nonfinite_segments() const { return nonfinite_segments_; }  // steps (bsp), contributions (ssp, async) left out

 private:
  struct Contribution {
    uint64_t clock = 0;  // pushes accepted from this worker: its step
    bool stored = false;
    bool raw = false;             // --codec auto: fp32
    bool flagged = false;         // the worker sent a flag in place of a gradient
    uint32_t flagged_in_row = 0;  // ssp, async: the last so many contributions were not finite
    std::span<const std::byte> payload;
    uint64_t token = 0;
  };
  struct State {
    bool initialized = false;
    uint32_t next_rank = 0;   // bsp: the prefix that has been added
    bool assigned = false;    // bsp: the sum holds what of this step's prefix is finite
    uint64_t updates = 0;     // optimizer steps so far
    std::optional<uint32_t> flagging;    // bsp: the lowest worker of this step whose contribution was not finite
    std::optional<uint32_t> flagged_by;  // bsp: the same, of the last complete step
    uint32_t flagged_in_row = 0;         // bsp: the last so many steps were left out
  };

  std::span<float> Of(std::span<float> all, uint32_t segment) const {
    const Segment& s = layout_.segments()[segment];
    return all.subspan(s.server_elem, s.num_elems);
  }
  Contribution& At(uint32_t segment, uint32_t worker) { return contributions_[local_[segment] * num_workers_ + worker]; }
  Error Complaint(const Push& push, const std::string& what) const;
  Result<Outcome> Initialize(const Push& push, std::vector<uint64_t>& released);
  // False: the contribution is not finite.
  Result<bool> Accumulate(uint32_t segment, uint32_t worker, bool first);
  Result<void> LeaveOut(uint32_t segment, uint32_t worker, uint32_t& in_row);
  void ReleaseContribution(Contribution& contribution, std::vector<uint64_t>& released);
  void Optimize(uint32_t segment, int64_t step);
  void AppendDue(uint32_t segment, uint32_t worker, std::vector<Reply>& due);

  const Job& job_;
  const Layout& layout_;
  const uint32_t server_;
  const uint32_t num_workers_;
  const uint32_t num_lanes_;
  ShardMemory memory_;
  fec::Codec fec_;
  std::vector<uint32_t> local_;  // segment -> index among this server's, or kForeign
  std::vector<State> states_;
  std::vector<Contribution> contributions_;  // [local][worker]
  std::vector<uint64_t> replied_;            // [local][worker]: the step whose reply is due or was sent (ssp)
  std::vector<fec::DensitySteering> steering_;  // [local][lane], if the threshold is steered
  bool resumed_ = false;  // from LoadFrom: there are parameters already
  uint64_t reply_survivors_ = 0;
  uint64_t reply_elems_ = 0;
  uint64_t updates_ = 0;
  uint64_t nonfinite_segments_ = 0;
  std::vector<bool> warned_;  // by tensor
  std::optional<NonFiniteGradient> warning_;
};

}  // namespace gradlane
