#include "perf/entropy.h"

#include <array>
#include <bit>
#include <cmath>

namespace gradlane::perf {

double Order0Entropy(std::span<const uint64_t> counts) {
  double total = 0;
  for (const uint64_t count : counts) total += static_cast<double>(count);
  double bits = 0;
  for (const uint64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / total;
    bits -= share * std::log2(share);
  }
  return bits;
}

double QuantisedEntropyBytes(std::span<const float> decoded) {
  std::array<uint64_t, 2> present = {}, signs = {};
  std::array<uint64_t, 256> exponents = {};  // codes, but for a constant
  for (const float value : decoded) {
    const auto bits = std::bit_cast<uint32_t>(value);
    ++present[value != 0];
    if (value == 0) continue;
    ++signs[bits >> 31];
    ++exponents[bits >> 23 & 0xff];
  }
  const auto survivors = static_cast<double>(present[1]);
  const double bits = static_cast<double>(decoded.size()) * Order0Entropy(present) +
                      survivors * (Order0Entropy(signs) + Order0Entropy(exponents));
  return bits / 8;
}

}  // namespace gradlane::perf
