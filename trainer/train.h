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
  double train_loss = 0;    // mean over the last (at most 100) steps
  int64_t wall_ns = 0;      // of the steps, evaluation not included
  int64_t compute_ns = 0;   // forward and backward, without what they waited for
  int64_t exposed_comm_ns = 0;
  int64_t data_wait_ns = 0;
};

// on_step: after each step, with its number (from 1) and loss.
Result<TrainResult> Train(Model& model, ParameterStore& store, Pipeline& pipeline, int64_t num_steps, TraceTrack* track,
                          const std::function<void(int64_t step, float loss)>& on_step);

struct TestResult {
  double accuracy = 0;
  double loss = 0;
};
TestResult Test(Model& model, const Dataset& test, int batch);

}  // namespace gradlane
