// What a Job says about coding, as the kernels' parameters. Worker and Shard use the same, so both sides agree.
#pragma once

#include "kernels/fec.h"
#include "ps/job.h"

namespace gradlane {

inline fec::Params FecParams(const Job& job, int threshold_exponent) {
  return fec::Params{threshold_exponent, job.fec_runs_layout ? fec::Layout::kRuns : fec::Layout::kSmallest,
                     job.fec_truncate ? fec::Rounding::kTruncate : fec::Rounding::kNearest};
}

}  // namespace gradlane
