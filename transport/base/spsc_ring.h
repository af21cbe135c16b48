// SpscRing hands values from one producer thread to one consumer thread without a lock: bounded, and nothing is
// allocated after construction. TryPush belongs to the producer, TryPop to the consumer; a popped value was fully
// written before, as was everything that its producer did before the push.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace gradlane {

template <typename T>
class SpscRing {
 public:
  // Holds at least `capacity` values.
  explicit SpscRing(size_t capacity)
      : slots_(std::bit_ceil(capacity < 2 ? size_t{2} : capacity)), mask_(slots_.size() - 1) {}
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  size_t capacity() const { return slots_.size(); }

  // false: full, and `value` is untouched.
  template <typename U>
  bool TryPush(U&& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_seen_ == slots_.size()) {
      head_seen_ = head_.load(std::memory_order_acquire);  // pairs with the release in TryPop: the slot is free
      if (tail - head_seen_ == slots_.size()) return false;
    }
    slots_[tail & mask_] = std::forward<U>(value);
    tail_.store(tail + 1, std::memory_order_release);  // pairs with the acquire in TryPop: the value is there
    return true;
  }

  // false: empty, and `value` is untouched.
  bool TryPop(T& value) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_seen_) {
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head == tail_seen_) return false;
    }
    value = std::move(slots_[head & mask_]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Exact for the consumer when it says false; otherwise a hint.
  bool Empty() const { return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire); }

 private:
  static constexpr size_t kCacheLine = 64;

  std::vector<T> slots_;
  const size_t mask_;
  alignas(kCacheLine) std::atomic<size_t> head_{0};  // written by the consumer
  size_t tail_seen_ = 0;                             // the consumer's copy
  alignas(kCacheLine) std::atomic<size_t> tail_{0};  // written by the producer
  size_t head_seen_ = 0;                             // the producer's copy
};

}  // namespace gradlane
