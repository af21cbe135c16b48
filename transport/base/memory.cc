#include "transport/base/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

namespace gradlane {
namespace {

constexpr size_t kHugeBytes = size_t{2} << 20;
constexpr size_t kHugeFromBytes = size_t{1} << 20;  // below, rounding up to a huge page would waste more than it saves
constexpr size_t kPageBytes = 4096;
#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14; older kernels answer EINVAL
#endif

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Huge pages in the mappings that overlap [begin, end), from /proc/self/smaps. 0 where there is none to read.
size_t HugeBytesOf(uintptr_t begin, uintptr_t end) {
  std::FILE* file = std::fopen("/proc/self/smaps", "re");
  if (file == nullptr) return 0;
  char line[512];
  bool inside = false;
  size_t huge_bytes = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    unsigned long from = 0, to = 0, kib = 0;
    char permissions[8];
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, permissions) == 3) {
      inside = from < end && to > begin;
    } else if (inside && (std::sscanf(line, "AnonHugePages: %lu kB", &kib) == 1 ||
                          std::sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1 ||
                          std::sscanf(line, "Shared_Hugetlb: %lu kB", &kib) == 1 ||
                          std::sscanf(line, "Private_Hugetlb: %lu kB", &kib) == 1)) {
      huge_bytes += size_t{kib} * 1024;
    }
  }
  std::fclose(file);
  return std::min<size_t>(huge_bytes, end - begin);
}

}  // namespace

PageReport Prefault(std::span<std::byte> area) {
  PageReport report;
  report.total_bytes = area.size();
  if (area.empty()) return report;
  const auto begin = reinterpret_cast<uintptr_t>(area.data()) / kPageBytes * kPageBytes;
  const auto end = RoundUp(reinterpret_cast<uintptr_t>(area.data()) + area.size(), kPageBytes);
  void* address = reinterpret_cast<void*>(begin);
  // Both are wishes: a kernel without them costs time, not correctness.
  if (area.size() >= kHugeFromBytes) (void)madvise(address, end - begin, MADV_HUGEPAGE);
  (void)madvise(address, end - begin, kPopulateWrite);
  std::memset(area.data(), 0, area.size());
  report.huge_bytes = std::min(report.total_bytes, HugeBytesOf(begin, end));
  return report;
}

Result<Memory> Memory::Map(size_t bytes) {
  Memory memory;
  if (bytes == 0) return memory;
  if (bytes > SIZE_MAX / 4)
    return Fail(ErrorCode::kInvalidArgument, "A buffer of " + std::to_string(bytes) + " bytes cannot be mapped.");
  const size_t unit = bytes >= kHugeFromBytes ? kHugeBytes : kPageBytes;
  const size_t usable_bytes = RoundUp(bytes, unit);
  // Inaccessible margins keep the kernel from merging this mapping with a neighbour: overruns fault, and the count of
  // huge pages is this mapping's own.
  const size_t reserved_bytes = usable_bytes + unit + 2 * kPageBytes;
  void* reserved = mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    const int error = errno;
    return Fail(ErrorCode::kSystem,
                "Cannot reserve " + std::to_string(bytes) + " bytes of memory: " + std::strerror(error) + ".", error);
  }
  memory.reserved_ = reserved;
  memory.reserved_bytes_ = reserved_bytes;
  auto* usable = reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(reserved) + kPageBytes, unit));
  if (mprotect(usable, usable_bytes, PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    return Fail(ErrorCode::kSystem,
                "Cannot map " + std::to_string(bytes) + " bytes of memory: " + std::strerror(error) + ".", error);
  }
  memory.pages_ = Prefault({usable, usable_bytes});
  memory.pages_.total_bytes = bytes;
  memory.pages_.huge_bytes = std::min(bytes, memory.pages_.huge_bytes);
  memory.bytes_ = {usable, bytes};
  return memory;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  Free();
  reserved_ = std::exchange(other.reserved_, nullptr);
  reserved_bytes_ = std::exchange(other.reserved_bytes_, 0);
  bytes_ = std::exchange(other.bytes_, {});
  pages_ = std::exchange(other.pages_, {});
  return *this;
}

void Memory::Free() {
  if (reserved_ != nullptr) munmap(reserved_, reserved_bytes_);
  reserved_ = nullptr;
}

std::string ToString(const PageReport& report) {
  char text[96];
  const double mib = static_cast<double>(report.total_bytes) / (1 << 20);
  if (report.total_bytes == 0) return "0 MiB";
  if (report.huge_bytes == 0) {
    std::snprintf(text, sizeof(text), "%.1f MiB in 4 KiB pages", mib);
  } else if (report.huge_bytes >= report.total_bytes) {
    std::snprintf(text, sizeof(text), "%.1f MiB, all in huge pages", mib);
  } else {
    std::snprintf(text, sizeof(text), "%.1f MiB, %.0f%% in huge pages", mib,
                  100.0 * static_cast<double>(report.huge_bytes) / static_cast<double>(report.total_bytes));
  }
  return text;
}

}  // namespace gradlane
