// Job is what a worker tells the servers: the tensors of the model and how their gradients are to be treated. A server
// is model-agnostic: everything it knows comes from here. Value type; immutable once the job runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/fec.h"
#include "transport/base/error.h"

namespace gradlane {

// kAuto: each push is FEC or, where a worker found that coding it does not pay, fp32: see ps/codec_plan.h.
enum class Codec : uint8_t { kNone, kFec, kTwoBit, kAuto };
enum class ReplyCodec : uint8_t { kRaw, kFec };
enum class OptimizerKind : uint8_t { kSgd, kAdam };

// kSerial: all of backward, all pushes, all replies, then forward; the published baseline.
// kFifo: in the order handed over. kPriority: most urgent tensor first, but the tensor under way finishes first.
// kPreemptive: most urgent segment first.
enum class Schedule : uint8_t { kSerial, kFifo, kPriority, kPreemptive };

enum class SyncKind : uint8_t { kBsp, kSsp, kAsync };
struct Sync {
  SyncKind kind = SyncKind::kBsp;
  uint32_t staleness = 0;  // kSsp: how many steps the fastest worker may be ahead of the slowest
  bool operator==(const Sync&) const = default;
};

enum class LrSchedule : uint8_t { kConstant, kStep, kCosine };
struct LearningRate {
  float base = 0.05f;
  LrSchedule schedule = LrSchedule::kCosine;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;  // linear from base / warmup_steps
  int64_t step_every = 0;    // kStep: multiplied by `gamma` every so many steps
  float gamma = 0.1f;
  // step: 0 for the first. Computed in double with +, * and / alone (no libm): the same bits on every machine.
  float At(int64_t step) const;
};

// The bounds of what follows, shared by Job::Parse and the command line.
inline constexpr uint64_t kMinSegmentBytes = 16 << 10;  // one FEC block of 4096 fp32; segments are multiples of it
inline constexpr uint64_t kMaxSegmentBytes = 16 << 20;
inline constexpr uint64_t kMaxWindowBytes = uint64_t{1} << 30;
inline constexpr int kMinFecThreshold = -126 + 15;  // all 16 exponents of a code, and 15 below, are normal floats
inline constexpr int kMaxFecThreshold = 127 - 16;   // room for a fraction of an exponent: Params in kernels/fec.h
inline constexpr double kMinFecDensity = 1e-6;
inline constexpr double kMinTwoBitThreshold = 1e-12;
inline constexpr double kMaxTwoBitThreshold = 1e12;
inline constexpr double kMaxLearningRate = 1e6;
inline constexpr uint32_t kMaxStaleness = 1024;
inline constexpr uint32_t kMaxNonFiniteLimit = 1'000'000'000;

struct JobTensor {
  std::string name;  // 1 to 255 letters, digits, '.', '_', '-' or '/'
  uint64_t num_elems = 0;
  uint32_t layer = 0;  // its priority: 0 is the most urgent
  bool decay = true;   // weight decay applies
};

struct Job {
  std::vector<JobTensor> tensors;     // layers start at 0, never decrease and leave out no number
  uint64_t segment_bytes = 64 << 10;  // of fp32; a multiple of one FEC block
  uint64_t window_bytes = 256 << 10;  // most encoded bytes in flight per rank

  Codec codec = Codec::kFec;
  bool fec_auto = false;  // steer to fec_density
  int fec_threshold = -7;
  double fec_density = 0.02;
  bool fec_runs_layout = false;  // the published layout
  fec::Rounding fec_rounding = fec::Rounding::kNearest;  // kTruncate is the published one
  uint64_t seed = 1;                                     // of stochastic rounding
  bool error_feedback = true;
  float two_bit_threshold = 0.5f;
  ReplyCodec reply = ReplyCodec::kFec;
  int fec_reply_threshold = -9;

  Schedule schedule = Schedule::kPreemptive;
  Sync sync;
  OptimizerKind optimizer = OptimizerKind::kSgd;
  LearningRate lr;
  float momentum = 0.9f;
  float weight_decay = 0.0f;
  uint32_t nonfinite_limit = 10;  // the job ends after so many steps in a row with a NaN or infinity in one segment

  // JSON text, the same on every rank; floats survive bit for bit. Parse checks every bound, wants every field and
  // refuses any other: hostile input. Its errors are kMalformed and name the field.
  std::string ToJson() const;
  static Result<Job> Parse(const std::string& json);
};

// The names of the options, both ways; kInvalidArgument with the list of what there is.
Result<Codec> ParseCodec(const std::string& text);
Result<fec::Rounding> ParseFecRounding(const std::string& text);
Result<ReplyCodec> ParseReplyCodec(const std::string& text);
Result<OptimizerKind> ParseOptimizer(const std::string& text);
Result<Schedule> ParseSchedule(const std::string& text);
Result<LrSchedule> ParseLrSchedule(const std::string& text);
Result<Sync> ParseSync(const std::string& text);  // bsp, async, ssp:K
const char* ToString(Codec codec);
const char* ToString(fec::Rounding rounding);
const char* ToString(ReplyCodec reply);
const char* ToString(OptimizerKind optimizer);
const char* ToString(Schedule schedule);
const char* ToString(LrSchedule schedule);
std::string ToString(Sync sync);

}  // namespace gradlane
