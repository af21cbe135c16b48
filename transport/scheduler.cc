#include "transport/scheduler.h"

#include <utility>

namespace gradlane {

Scheduler::Scheduler(SendPolicy policy, std::vector<Group> groups, uint32_t num_items, uint64_t window_bytes,
                     size_t max_in_flight)
    : policy_(policy),
      groups_(std::move(groups)),
      num_items_(num_items),
      window_bytes_(window_bytes),
      max_in_flight_(max_in_flight),
      group_of_(num_items),
      pending_(num_items == 0 ? 1 : num_items),
      fifo_(policy == SendPolicy::kFifo ? num_items : 0) {
  CHECK(num_items == 0 || (!groups_.empty() && groups_[0].first_item == 0));
  CHECK(max_in_flight > 0);
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    for (uint32_t item = groups_[group].first_item; item < GroupEnd(group); ++item) group_of_[item] = group;
  }
}

uint32_t Scheduler::GroupEnd(uint32_t group) const {
  return group + 1 < groups_.size() ? groups_[group + 1].first_item : num_items_;
}

void Scheduler::Push(uint32_t item) {
  CHECK(item < num_items_ && !pending_.Contains(item));
  pending_.Insert(item);
  if (policy_ == SendPolicy::kFifo) fifo_[fifo_tail_++ % num_items_] = item;
  ++num_queued_;
}

uint32_t Scheduler::FirstOfGroupUnderWay() const {
  if (under_way_ == kNoGroup) return PendingSet::kNone;
  const uint32_t item = pending_.FirstFrom(groups_[under_way_].first_item);
  return item < GroupEnd(under_way_) ? item : PendingSet::kNone;
}

std::optional<uint32_t> Scheduler::Head() const {
  if (num_queued_ == 0) return std::nullopt;
  if (policy_ == SendPolicy::kFifo) return fifo_[fifo_head_ % num_items_];
  if (policy_ == SendPolicy::kPriority) {
    if (const uint32_t item = FirstOfGroupUnderWay(); item != PendingSet::kNone) return item;
  }
  return pending_.FirstFrom(0);
}

std::optional<Scheduler::Taken> Scheduler::Take(uint64_t bytes) {
  CHECK(bytes <= window_bytes_);
  const std::optional<uint32_t> head = Head();
  if (!head || in_flight_items_ == max_in_flight_ || in_flight_bytes_ + bytes > window_bytes_) return std::nullopt;
  Taken taken{*head, false};
  const uint32_t group = group_of_[taken.item];
  if (policy_ == SendPolicy::kPreemptive && under_way_ != kNoGroup && group != under_way_ &&
      groups_[group].urgency < groups_[under_way_].urgency && FirstOfGroupUnderWay() != PendingSet::kNone) {
    taken.preempting = true;
    ++preemptions_;
  }
  under_way_ = group;
  pending_.Erase(taken.item);
  if (policy_ == SendPolicy::kFifo) ++fifo_head_;
  --num_queued_;
  in_flight_bytes_ += bytes;
  ++in_flight_items_;
  return taken;
}

void Scheduler::OnSent(uint64_t bytes) {
  CHECK(in_flight_items_ > 0 && in_flight_bytes_ >= bytes);
  in_flight_bytes_ -= bytes;
  --in_flight_items_;
}

}  // namespace gradlane
