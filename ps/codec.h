// What a Job says about coding, as the kernels' parameters. Worker and Shard use the same, so both sides agree.
#pragma once

#include "kernels/fec.h"
#include "ps/job.h"

namespace gradlane {

// steering: null where the threshold is fixed.
inline fec::Params FecParams(const Job& job, int threshold_exponent, const fec::DensitySteering* steering) {
  fec::Params params;
  params.threshold_exponent = threshold_exponent;
  params.layout = job.fec_runs_layout ? fec::Layout::kRuns : fec::Layout::kSmallest;
  params.rounding = job.fec_truncate ? fec::Rounding::kTruncate : fec::Rounding::kNearest;
  if (steering != nullptr) steering->ApplyTo(params);
  return params;
}

}  // namespace gradlane
