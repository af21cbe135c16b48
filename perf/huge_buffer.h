// A HugeBuffer<T> is memory for a measurement: aligned to 2 MiB, in huge pages where the kernel grants them, and
// touched before its first use, so that neither page faults nor most TLB misses are timed. Zero at first. Move-only.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

namespace gradlane::perf {

template <typename T>
class HugeBuffer {
  static_assert(std::is_trivial_v<T>);

 public:
  explicit HugeBuffer(size_t count) : count_(count) {
    constexpr size_t kPageBytes = size_t{2} << 20;
    const size_t bytes = (count * sizeof(T) + kPageBytes - 1) / kPageBytes * kPageBytes;
    data_.reset(static_cast<T*>(std::aligned_alloc(kPageBytes, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
    madvise(data_.get(), bytes, MADV_HUGEPAGE);  // advice: without huge pages all is the same, but slower
    std::memset(data_.get(), 0, bytes);
  }

  std::span<T> span() { return {data_.get(), count_}; }
  std::span<const T> span() const { return {data_.get(), count_}; }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  size_t count_;
  std::unique_ptr<T, Free> data_;
};

}  // namespace gradlane::perf
