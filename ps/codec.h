// What a Job says about coding, as the kernels' parameters. Worker and Shard use the same, so both sides agree.
#pragma once

#include "kernels/fec.h"
#include "ps/job.h"

namespace gradlane {

// How one rank codes: its own affair, since the bytes are the same.
inline constexpr int kMaxCodecThreads = 64;
struct CodecChoice {
  int num_threads = 1;
  std::string target;  // one of fec::CodecTargets(); empty: the best of this processor
};

// Which of a run's codings this is: what makes the draws of stochastic rounding differ, and repeat with the run.
struct CodingPlace {
  uint64_t step = 0;
  uint32_t segment = 0;
  uint32_t stream = 0;  // a worker's rank; of replies, kReplyStream + lane
};
inline constexpr uint32_t kReplyStream = 1u << 31;

// By the finaliser of SplitMix64 (Steele, Lea, Flood 2014), over each part in turn.
inline uint32_t RoundingSeed(uint64_t seed, const CodingPlace& place) {
  for (const uint64_t part : {place.step, uint64_t{place.segment}, uint64_t{place.stream}}) {
    seed += part + 0x9e3779b97f4a7c15u;
    seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ seed >> 27) * 0x94d049bb133111ebu;
    seed ^= seed >> 31;
  }
  return uint32_t(seed >> 32);
}

// steering: null where the threshold is fixed.
inline fec::Params FecParams(const Job& job, int threshold_exponent, const fec::DensitySteering* steering,
                             const CodingPlace& place) {
  fec::Params params;
  params.threshold_exponent = threshold_exponent;
  params.layout = job.fec_runs_layout ? fec::Layout::kRuns : fec::Layout::kSmallest;
  params.rounding = job.fec_rounding;
  params.rounding_seed = RoundingSeed(job.seed, place);
  if (steering != nullptr) steering->ApplyTo(params);
  return params;
}

}  // namespace gradlane
