#include "transport/base/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace gradlane {
namespace {

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

TEST(Memory, IsZeroFilledAndAligned) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{100'000}, size_t{1} << 20, (size_t{5} << 20) + 3}) {
    SCOPED_TRACE(bytes);
    Result<Memory> memory = Memory::Map(bytes);
    ASSERT_TRUE(memory);
    ASSERT_EQ(memory->bytes().size(), bytes);
    EXPECT_TRUE(AllZero(memory->bytes()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->bytes().data()) % (bytes >= (1 << 20) ? size_t{2} << 20 : 4096), 0u);
    memory->bytes().front() = memory->bytes().back() = std::byte{1};
    EXPECT_EQ(memory->pages().total_bytes, bytes);
    EXPECT_LE(memory->pages().huge_bytes, bytes);
  }
}

TEST(Memory, EmptyIsFine) {
  Result<Memory> memory = Memory::Map(0);
  ASSERT_TRUE(memory);
  EXPECT_TRUE(memory->bytes().empty());
}

TEST(Memory, MoveHandsOver) {
  Result<Memory> memory = Memory::Map(size_t{2} << 20);
  ASSERT_TRUE(memory);
  memory->bytes()[5] = std::byte{9};
  Memory other = *std::move(memory);
  EXPECT_EQ(other.bytes()[5], std::byte{9});
  EXPECT_TRUE(memory->bytes().empty());
  other = Memory();
  EXPECT_TRUE(other.bytes().empty());
}

TEST(Memory, ImpossibleIsAnError) {
  EXPECT_FALSE(Memory::Map(SIZE_MAX));
  EXPECT_FALSE(Memory::Map(SIZE_MAX / 8));
}

TEST(Memory, ReportsWhatItGot) {
  EXPECT_EQ(ToString(PageReport{64 << 20, 64 << 20}), "64.0 MiB, all in huge pages");
  EXPECT_EQ(ToString(PageReport{64 << 20, 16 << 20}), "64.0 MiB, 25% in huge pages");
  EXPECT_EQ(ToString(PageReport{64 << 20, 0}), "64.0 MiB in 4 KiB pages");
}

}  // namespace
}  // namespace gradlane
