// Memory owns one anonymous mapping for buffers that live as long as a rank: page-aligned, zero-filled, pre-faulted, in
// huge pages where the host gives them. Move-only; may be moved and freed by any thread.
//
// Why: a first touch of a 4 KiB page costs 13-17 microseconds on the machines that this was measured on, 50 times what
// it costs in 2 MiB pages. Nothing on the data path may pay that.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "transport/base/error.h"

namespace gradlane {

// What pre-faulting an area came to. Counted by the kernel (smaps), not assumed from what was asked for.
struct PageReport {
  size_t total_bytes = 0;
  size_t huge_bytes = 0;  // of these in huge pages
};

class Memory {
 public:
  // bytes may be 0. Areas of 1 MiB and more are aligned and rounded up to 2 MiB.
  static Result<Memory> Map(size_t bytes);

  Memory() = default;
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { Free(); }

  std::span<std::byte> bytes() const { return bytes_; }  // of the length asked for
  PageReport pages() const { return pages_; }

 private:
  void Free();

  void* reserved_ = nullptr;  // the mapping with its inaccessible margins
  size_t reserved_bytes_ = 0;
  std::span<std::byte> bytes_;
  PageReport pages_;
};

// Asks for huge pages under `area` and writes zeros to every page of it, whoever mapped it (also shared memory).
PageReport Prefault(std::span<std::byte> area);

// "64.0 MiB, all in huge pages", "64.0 MiB, 12% in huge pages", "64.0 MiB in 4 KiB pages".
std::string ToString(const PageReport& report);

}  // namespace gradlane
