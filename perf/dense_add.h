// sum += grad, the loop that has the memory traffic of an encoder with error feedback (it reads the gradient, reads and
// writes the residual) and does as little as can be with it: the floor that the codec is compared with. Vectors are as
// wide as those of the codec's target. Owned by the benchmark; calls come from one thread at a time.
#pragma once

#include <span>
#include <string_view>

#include "kernels/thread_team.h"

namespace gradlane::perf {

class DenseAdd {
 public:
  DenseAdd(std::string_view target, int num_threads);  // one of fec::CodecTargets()

  // grad, sum: (N,) fp32, not overlapping.
  void Run(std::span<const float> grad, std::span<float> sum);

 private:
  using Loop = void (*)(const float* grad, float* sum, size_t num_elems);

  Loop loop_;
  ThreadTeam team_;
};

}  // namespace gradlane::perf
