// What is said about a gradient that holds a NaN or an infinity. Shard and LocalStore follow the same policy
// (ps/PROTOCOL.md) and use the same words. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "transport/base/error.h"

namespace gradlane {

struct NonFiniteGradient {
  uint32_t worker = 0;  // the lowest of those that had one
  std::string tensor;
  uint64_t step = 0;    // from 1
};

inline std::string ToString(const NonFiniteGradient& what) {
  return "the gradient of " + what.tensor + " at worker " + std::to_string(what.worker) +
         " has a value that is not finite at step " + std::to_string(what.step);
}

// Said once for each tensor.
inline std::string NonFiniteWarning(const NonFiniteGradient& what) {
  return ToString(what) + ": it is left out, and the parameters it belongs to stay as they are";
}

inline Error NonFiniteEnd(const NonFiniteGradient& what, uint64_t steps_in_a_row) {
  return {ErrorCode::kMalformed,
          ToString(what) + ", the last of " + std::to_string(steps_in_a_row) +
              " such steps in a row (--nonfinite-limit): training has diverged; lower --lr.",
          0};
}

}  // namespace gradlane
