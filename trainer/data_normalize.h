// PixelTables holds the normalised value of each of the 256 pixel values, for each channel: training and evaluation
// normalise alike, by a look-up. Immutable once made; may be read by any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/data.h"

namespace gradlane {

class PixelTables {
 public:
  explicit PixelTables(const Dataset& dataset) : values_(size_t(dataset.image.channels) * 256) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = (float(i % 256) / 255.0f - dataset.mean[i / 256]) / dataset.stddev[i / 256];
    }
  }
  const float* Of(size_t channel) const { return values_.data() + channel * 256; }  // (256,)

 private:
  std::vector<float> values_;
};

}  // namespace gradlane
