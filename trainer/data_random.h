// Random numbers for data, by counter: the n-th number of a stream is a function of (seed, stream, n), the same on
// every platform and for every number of ranks. Value type, no state but the counter. The mix is SplitMix64's finaliser
// (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
#pragma once

#include <cstdint>

namespace gradlane {

inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What a stream is for. Part of the stream's number, so that no two purposes share numbers.
enum class RandomUse : uint64_t { kShuffle = 1, kAugment = 2, kPattern = 3, kSample = 4 };

class CounterRandom {
 public:
  CounterRandom(uint64_t seed, RandomUse use, uint64_t a, uint64_t b = 0)
      : key_(MixBits(MixBits(MixBits(seed + kGolden) + uint64_t(use) * kGolden + a) + kGolden + b)) {}

  uint64_t Next() { return MixBits(key_ + ++counter_ * kGolden); }

  // Uniform in [0, bound), without bias (Lemire: Fast Random Integer Generation in an Interval, 2019). bound: 1 or
  // more.
  uint32_t Below(uint32_t bound) {
    uint64_t product = (Next() >> 32) * bound;
    if (uint32_t(product) < bound) {
      const uint32_t rejected = (0 - bound) % bound;
      while (uint32_t(product) < rejected) product = (Next() >> 32) * bound;
    }
    return uint32_t(product >> 32);
  }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace gradlane
