// A set of small integers that finds its smallest member from a position on in three word operations per level: bitmaps
// of 64-way fan-out, one above the other. All memory is made at construction. One thread.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "transport/base/error.h"

namespace gradlane {

class PendingSet {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit PendingSet(uint32_t capacity) {
    uint32_t words = capacity;
    do {
      words = (words + 63) / 64;
      levels_.emplace_back(words, 0);
    } while (words > 1);
  }

  bool Contains(uint32_t item) const { return levels_[0][item / 64] >> (item % 64) & 1; }

  void Insert(uint32_t item) {
    for (auto& level : levels_) {
      level[item / 64] |= uint64_t{1} << (item % 64);
      item /= 64;
    }
  }

  void Erase(uint32_t item) {
    for (auto& level : levels_) {
      if ((level[item / 64] &= ~(uint64_t{1} << (item % 64))) != 0) return;
      item /= 64;
    }
  }

  // The smallest member that is not below `from`, or kNone.
  uint32_t FirstFrom(uint32_t from) const {
    uint32_t position = from;
    for (size_t level = 0; level < levels_.size(); ++level) {
      const uint32_t word = position / 64;
      if (word >= levels_[level].size()) return kNone;
      const uint64_t rest = levels_[level][word] >> (position % 64);
      if (rest != 0) return Descend(level, position + uint32_t(std::countr_zero(rest)));
      position = word + 1;  // nothing left in this word: look for the next word that has something
    }
    return kNone;
  }

 private:
  uint32_t Descend(size_t level, uint32_t position) const {
    while (level-- > 0) position = position * 64 + uint32_t(std::countr_zero(levels_[level][position]));
    return position;
  }

  std::vector<std::vector<uint64_t>> levels_;  // [0]: a bit per item; [i + 1]: a bit per word of [i] that is not zero
};

}  // namespace gradlane
