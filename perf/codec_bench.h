// gradlane-perf codec: how quick FEC is and how small it makes a gradient, next to other codecs on the same data.
//
//   encode          fec::Codec::Encode with error feedback, on a tensor larger than the caches
//   dense loop      residual += gradient, with the same memory traffic (perf/dense_add.h), in turn with encode
//   decode-add      fec::Codec::DecodeAdd into a tensor larger than the caches, in turn with the dense loop
//   in L2           both once more with accumulators of kL2Elems, which stay in the second-level cache
//   2-bit, 1-bit,   encoding the gradient and residual of the last step. 2-bit has FEC's threshold, top-k as many
//   top-k           survivors
//   zstd, lz4       compressing the raw gradient of one pattern (perf/tensors.h)
//
// All speeds count the tensor as fp32. They are medians over the rounds of one rotation (perf/rotation.h), ratios
// medians of the rounds' ratios. Encoders start from a steady state (perf/steady_state.h). One thread, beside the
// codec's own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/fec.h"
#include "transport/base/error.h"

namespace gradlane::perf {

inline constexpr size_t kMaxElems = size_t{16} << 20;
inline constexpr size_t kL2Elems = size_t{64} << 10;

struct CodecBenchOptions {
  std::vector<double> densities = {0.001, 0.01, 0.03, 0.1, 0.3};  // wanted, of survivors: above 0, at most 1
  std::string distribution = "gaussian";                          // see MakePattern
  size_t num_elems = kMaxElems;                                   // 1 to kMaxElems
  size_t segment_elems = 0;        // in a call, a multiple of fec::kBlockElems; 0: all of them
  std::vector<int> threads = {1};  // of the codec
  std::string target;              // one of fec::CodecTargets(); empty: the best
  fec::Layout layout = fec::Layout::kSmallest;
  fec::Rounding rounding = fec::Rounding::kNearest;
  size_t repeat = 21;  // rounds
};

// One density with one number of threads. GB are 10^9 bytes of fp32.
struct FecRow {
  double wanted_density, density, threads;
  double encode_gb_per_s, encode_p99_gb_per_s;  // p99: of the time
  double encode_over_loop;                      // time of encode by that of the dense loop of as many threads
  double encode_speedup;                        // over the first number of threads
  double decode_add_gb_per_s, dense_add_gb_per_s;
  double decode_add_l2_gb_per_s, dense_add_l2_gb_per_s;
  double bytes, ratio;  // ratio: fp32 bytes by bytes
  double bits_per_survivor;
  double bytes_over_entropy;  // see perf/entropy.h
};

struct OtherRow {
  std::string codec;
  std::optional<double> wanted_density;  // none where the codec sees the raw gradient
  double encode_gb_per_s, bytes, ratio;
};

struct CodecReport {
  CodecBenchOptions options;  // with the target that was taken
  std::vector<FecRow> fec;
  std::vector<OtherRow> others;
};

// kInvalidArgument: an unknown target, a segment that is no whole number of blocks, or a distribution that is no file
// of gradients.
Result<CodecReport> RunCodecBench(CodecBenchOptions options);

}  // namespace gradlane::perf
