// SendQueue joins a Scheduler to a Fabric: what is queued is prepared (encoded) as late as possible, posted when the
// window lets it, and accounted until it is sent. Owned by one Worker or Server; its communication thread.
#pragma once

#include <utility>
#include <vector>

#include "ps/job.h"
#include "ps/lost_peer.h"
#include "ps/message.h"
#include "transport/base/trace.h"
#include "transport/fabric.h"
#include "transport/scheduler.h"

namespace gradlane {

// One item made ready: what is put where.
struct Outgoing {
  PeerId peer = 0;
  std::span<const std::byte> source;
  RemoteSlot slot;
  Message message;
  int32_t layer = -1;  // for the trace
};

class SendQueue {
 public:
  SendQueue(Fabric& fabric, const Membership& members, SendPolicy policy, std::vector<Scheduler::Group> groups,
            uint32_t num_items, uint64_t window_bytes, TraceTrack* track)
      : fabric_(fabric),
        members_(members),
        scheduler_(policy, std::move(groups), num_items, window_bytes, fabric.MaxOutstanding()),
        in_flight_(num_items),
        track_(track) {}

  void Push(uint32_t item) { scheduler_.Push(item); }

  // Prepares the head and posts it if it fits the window. prepare(item) gives a Result<Outgoing>; it is called again
  // for the same item while that waits for the window, so it keeps what it encoded. true: something was posted.
  template <typename Prepare>
  Result<bool> PostOne(Prepare&& prepare) {
    const std::optional<uint32_t> head = scheduler_.Head();
    if (!head) return false;
    ASSIGN_OR_RETURN(const Outgoing outgoing, prepare(*head));
    const std::optional<Scheduler::Taken> taken = scheduler_.Take(outgoing.source.size());
    if (!taken) return false;
    in_flight_[*head] = {outgoing.source.size(), NowNs(), outgoing.peer, outgoing.message, outgoing.layer, taken->preempting};
    if (const auto put = fabric_.PutNotify({outgoing.peer, outgoing.source, outgoing.slot, Pack(outgoing.message), *head});
        !put) {
      if (put.error().code != ErrorCode::kPeerFailed) return tl::unexpected(put.error());
      return tl::unexpected(LostPeer(members_, outgoing.peer, put.error()));
    }
    posted_bytes_ += outgoing.source.size();
    return true;
  }

  // The item whose put was reported kSent (its cookie).
  void OnSent(uint32_t item) {
    const InFlight& flight = in_flight_[item];
    scheduler_.OnSent(flight.bytes);
    if (track_ != nullptr) {
      track_->Add({"flight", flight.posted_ns, NowNs(), int32_t(flight.message.step), flight.layer,
                   int32_t(flight.message.segment), int32_t(flight.peer), true, flight.preempting});
    }
  }

  const Scheduler& scheduler() const { return scheduler_; }
  uint64_t posted_bytes() const { return posted_bytes_; }

 private:
  struct InFlight {
    uint64_t bytes = 0;
    int64_t posted_ns = 0;
    PeerId peer = 0;
    Message message;
    int32_t layer = -1;
    bool preempting = false;
  };

  Fabric& fabric_;
  const Membership members_;
  Scheduler scheduler_;
  std::vector<InFlight> in_flight_;
  TraceTrack* const track_;
  uint64_t posted_bytes_ = 0;
};

inline SendPolicy PolicyOf(Schedule schedule) {
  switch (schedule) {
    case Schedule::kPriority: return SendPolicy::kPriority;
    case Schedule::kPreemptive: return SendPolicy::kPreemptive;
    case Schedule::kSerial:
    case Schedule::kFifo: break;
  }
  return SendPolicy::kFifo;
}

}  // namespace gradlane
