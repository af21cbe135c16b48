// Synthetic images that a network can learn: each class has a smooth random pattern, and each image is its class's
// pattern, moved by a few pixels, under noise. Integers only: the same pixels on every machine.
#include <algorithm>

#include "trainer/data_formats.h"
#include "trainer/data_random.h"

namespace gradlane {
namespace {

constexpr int kNumClasses = 10;
constexpr int kGrid = 6;       // a pattern is interpolated between kGrid * kGrid random values
constexpr int kContrast = 56;  // of a pattern: 128 +- this
constexpr int kNoise = 64;     // +- this, uniform
constexpr size_t kSmallImage = 3 * 32 * 32;

// (class, C, H, W) of 128 +- kContrast
std::vector<uint8_t> MakePatterns(ImageShape image, uint64_t seed) {
  std::vector<uint8_t> patterns(kNumClasses * image.NumElems());
  uint8_t* next = patterns.data();
  for (int plane = 0; plane < kNumClasses * image.channels; ++plane) {
    CounterRandom random(seed, RandomUse::kPattern, uint64_t(plane));
    int grid[kGrid + 1][kGrid + 1];
    for (auto& row : grid) {
      for (int& value : row) value = 128 - kContrast + int(random.Below(2 * kContrast + 1));
    }
    for (int y = 0; y < image.height; ++y) {
      const int gy = y * kGrid / image.height, fy = y * kGrid % image.height;
      for (int x = 0; x < image.width; ++x) {
        const int gx = x * kGrid / image.width, fx = x * kGrid % image.width;
        const int64_t top = int64_t(grid[gy][gx]) * (image.width - fx) + int64_t(grid[gy][gx + 1]) * fx;
        const int64_t bottom = int64_t(grid[gy + 1][gx]) * (image.width - fx) + int64_t(grid[gy + 1][gx + 1]) * fx;
        *next++ = uint8_t((top * (image.height - fy) + bottom * fy) / (int64_t(image.width) * image.height));
      }
    }
  }
  return patterns;
}

Dataset MakeSplit(ImageShape image, const std::vector<uint8_t>& patterns, size_t count, uint64_t seed, uint64_t split) {
  Dataset data;
  data.image = image;
  data.num_classes = kNumClasses;
  data.labels.resize(count);
  data.pixels.resize(count * image.NumElems());
  uint8_t* next = data.pixels.data();
  const int max_move = std::max(1, image.width / 14);
  for (size_t i = 0; i < count; ++i) {
    CounterRandom random(seed, RandomUse::kSample, split, i);
    const int label = int(random.Below(kNumClasses));
    const int dy = int(random.Below(uint32_t(2 * max_move + 1))) - max_move;
    const int dx = int(random.Below(uint32_t(2 * max_move + 1))) - max_move;
    data.labels[i] = label;
    uint64_t bits = 0;
    int bytes_left = 0;
    for (int c = 0; c < image.channels; ++c) {
      const uint8_t* pattern = patterns.data() + (size_t(label) * image.channels + c) * image.height * image.width;
      for (int y = 0; y < image.height; ++y) {
        const uint8_t* row = pattern + size_t(std::clamp(y + dy, 0, image.height - 1)) * image.width;
        for (int x = 0; x < image.width; ++x) {
          if (bytes_left == 0) bits = random.Next(), bytes_left = 8;
          const int noise = (int(bits & 255) - 128) * kNoise / 128;
          bits >>= 8, --bytes_left;
          *next++ = uint8_t(std::clamp(row[std::clamp(x + dx, 0, image.width - 1)] + noise, 0, 255));
        }
      }
    }
  }
  return data;
}

}  // namespace

DataSplits MakeSynthetic(ImageShape image, uint64_t seed) {
  const bool small = image.NumElems() <= kSmallImage;
  const std::vector<uint8_t> patterns = MakePatterns(image, seed);
  return {MakeSplit(image, patterns, small ? 4096 : 512, seed, 0),
          MakeSplit(image, patterns, small ? 1024 : 128, seed, 1)};
}

}  // namespace gradlane
