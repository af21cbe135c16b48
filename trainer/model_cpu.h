// Builds a CPU model from any ModelSpec, also one that is not in the zoo; BuildCpuModel is this behind FindModel.
#pragma once

#include <memory>

#include "trainer/model_spec.h"

namespace gradlane {

// kInvalidArgument: batch or num_threads below 1. kUnavailable: oneDNN runs without an OpenMP runtime whose threads can
// be set. kSystem: oneDNN or the operating system refused.
Result<std::unique_ptr<Model>> BuildCpuModelFromSpec(ModelSpec spec, int batch, int num_threads);

}  // namespace gradlane
