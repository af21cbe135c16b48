// RingQueue is first in, first out, in memory made beforehand. One thread, or the owner's lock.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "transport/base/error.h"

namespace gradlane {

template <typename T>
class RingQueue {
 public:
  explicit RingQueue(size_t capacity = 0) : slots_(capacity) {}
  void Reserve(size_t capacity) { slots_.resize(capacity); }  // while nothing is queued

  size_t size() const { return size_; }
  bool Full() const { return size_ == slots_.size(); }
  void Push(const T& value) {
    CHECK(!Full());
    slots_[(head_ + size_++) % slots_.size()] = value;
  }
  T Pop() {
    CHECK(size_ > 0);
    T value = slots_[head_];
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return value;
  }

  // Push that doubles the capacity where it must. Allocates: for the unforeseen, never for the usual load.
  void PushOrGrow(const T& value) {
    if (Full()) {
      std::vector<T> larger(slots_.empty() ? 1 : 2 * slots_.size());
      for (size_t i = 0; i < size_; ++i) larger[i] = slots_[(head_ + i) % slots_.size()];
      slots_ = std::move(larger);
      head_ = 0;
    }
    Push(value);
  }

 private:
  std::vector<T> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace gradlane
