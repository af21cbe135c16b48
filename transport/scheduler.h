// Scheduler decides what is posted next: the send queue of one rank. It is pure: no I/O, no clock, no thread. Owned by
// the communication thread of a Worker or Server. Nothing is allocated after construction.
//
// Items are numbered in order of urgency: a smaller number is more urgent. A group (a tensor) is a range of items of one
// urgency. Posted work cannot be recalled, so an urgent item waits for what is in flight: at most the window.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "transport/pending_set.h"

namespace gradlane {

enum class SendPolicy : uint8_t {
  kFifo,        // in the order of Push
  kPriority,    // the group under way finishes first, as far as it is queued; then the most urgent
  kPreemptive,  // the most urgent item, always
};

class Scheduler {
 public:
  struct Group {
    uint32_t first_item = 0;
    uint32_t urgency = 0;  // groups of equal urgency do not preempt one another
  };

  // groups: first_item ascending from 0. window_bytes: the most bytes in flight. max_in_flight: the most items in flight.
  Scheduler(SendPolicy policy, std::vector<Group> groups, uint32_t num_items, uint64_t window_bytes, size_t max_in_flight);

  void Push(uint32_t item);  // an item is queued at most once at a time

  // What goes next, or nothing. It stays the head until Take, or until a Push or Take changes what goes next: so
  // whoever encodes late encodes the head, and nothing else.
  std::optional<uint32_t> Head() const;

  // Takes the head, of this many bytes, if it fits the window. If not it waits, and so does everything behind it:
  // nothing less urgent slips past. bytes must not exceed the window.
  struct Taken {
    uint32_t item = 0;
    bool preempting = false;  // it overtook a less urgent group under way
  };
  std::optional<Taken> Take(uint64_t bytes);

  void OnSent(uint64_t bytes);  // an item taken before no longer is in flight

  bool empty() const { return num_queued_ == 0; }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  size_t in_flight_items() const { return in_flight_items_; }
  uint64_t preemptions() const { return preemptions_; }
  uint64_t window_bytes() const { return window_bytes_; }

 private:
  static constexpr uint32_t kNoGroup = UINT32_MAX;
  uint32_t GroupEnd(uint32_t group) const;
  uint32_t FirstOfGroupUnderWay() const;  // PendingSet::kNone: the group under way has nothing queued

  const SendPolicy policy_;
  const std::vector<Group> groups_;
  const uint32_t num_items_;
  const uint64_t window_bytes_;
  const size_t max_in_flight_;

  std::vector<uint32_t> group_of_;
  PendingSet pending_;
  std::vector<uint32_t> fifo_;  // ring of items, for kFifo
  uint64_t fifo_head_ = 0;
  uint64_t fifo_tail_ = 0;
  size_t num_queued_ = 0;
  uint32_t under_way_ = kNoGroup;  // the group of the item taken last
  uint64_t in_flight_bytes_ = 0;
  size_t in_flight_items_ = 0;
  uint64_t preemptions_ = 0;
};

}  // namespace gradlane
