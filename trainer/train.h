// The training loop: what one worker does from the first batch to the last. Training thread.
#pragma once

#include <cstdint>
#include <functional>

#include "ps/parameter_store.h"
#include "trainer/data.h"
#include "trainer/model.h"
#include "transport/base/trace.h"

namespace gradlane {

struct TrainResult {
  double train_loss = 0;    // mean over the last (at most 100) steps whose loss is finite
  int64_t wall_ns = 0;      // of the steps, evaluation not included
  int64_t compute_ns = 0;   // forward and backward, without what they waited for
  int64_t exposed_comm_ns = 0;
  int64_t data_wait_ns = 0;
};

// on_step: after each step, with its number (from 1) and loss, which may be NaN or infinite: what that means for the
// parameters, and when it has been too much, the store decides. Nobody else does where it leaves the gradients finite:
// then the job ends after max_nonfinite_losses of them in a row; and it ends if the last is one.
Result<TrainResult> Train(Model& model, ParameterStore& store, Pipeline& pipeline, int64_t num_steps,
                          int64_t max_nonfinite_losses, TraceTrack* track,
                          const std::function<void(int64_t step, float loss)>& on_step);

struct TestResult {
  double accuracy = 0;
  double loss = 0;
};
TestResult Test(Model& model, const Dataset& test, int batch);

}  // namespace gradlane
