#include "ps/job.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "ps/json_reader.h"
#include "ps/message.h"

namespace gradlane {
namespace {

using Json = nlohmann::json;

// What a job may ask of a server at most.
constexpr size_t kMaxJobTextBytes = size_t{4} << 20;  // one blob of the bootstrap
constexpr int kMaxNesting = 3;                        // {"tensors": [{...}]}
constexpr size_t kMaxTensors = 65'536;
constexpr size_t kMaxNameBytes = 255;
constexpr uint64_t kMaxTensorElems = uint64_t{1} << 33;
constexpr uint64_t kMaxTotalElems = uint64_t{1} << 34;  // 64 GiB of fp32
constexpr int64_t kMaxSteps = int64_t{1} << 40;

template <typename Enum>
struct Named {
  Enum value;
  const char* name;
};
template <typename Enum>
Named(Enum, const char*) -> Named<Enum>;  // clang 14 deduces no aggregate

constexpr std::array kCodecs = {Named{Codec::kNone, "none"}, Named{Codec::kFec, "fec"}, Named{Codec::kTwoBit, "2bit"},
                               Named{Codec::kAuto, "auto"}};
constexpr std::array kFecRoundings = {Named{fec::Rounding::kNearest, "nearest"}, Named{fec::Rounding::kTruncate, "truncate"},
                                      Named{fec::Rounding::kStochastic, "stochastic"}};
constexpr std::array kReplyCodecs = {Named{ReplyCodec::kRaw, "raw"}, Named{ReplyCodec::kFec, "fec"}};
constexpr std::array kOptimizers = {Named{OptimizerKind::kSgd, "sgd"}, Named{OptimizerKind::kAdam, "adam"}};
constexpr std::array kSchedules = {Named{Schedule::kSerial, "serial"}, Named{Schedule::kFifo, "fifo"},
                                   Named{Schedule::kPriority, "priority"}, Named{Schedule::kPreemptive, "preemptive"}};
constexpr std::array kLrSchedules = {Named{LrSchedule::kConstant, "constant"}, Named{LrSchedule::kStep, "step"},
                                     Named{LrSchedule::kCosine, "cosine"}};

template <typename Enum, size_t N>
Result<Enum> FromName(const char* what, const std::array<Named<Enum>, N>& table, std::string_view text) {
  std::string names;
  for (size_t i = 0; i < N; ++i) {
    if (text == table[i].name) return table[i].value;
    names += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(table[i].name);
  }
  return Fail(ErrorCode::kInvalidArgument, QuotedForMessage(text) + " is not " + what + ": say " + names + ".");
}

template <typename Enum, size_t N>
const char* NameOf(const std::array<Named<Enum>, N>& table, Enum value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

// cos^2(y) for y in [0, pi/2] by its power series: +, *, and / alone, which IEEE 754 fixes to the bit, so that the
// result does not depend on the machine's libm (glibc picks a variant of cos by the CPU).
double CosSquared(double y) {
  double term = 1;
  double sum = 1;
  for (int k = 1; k <= 13; ++k) {
    term *= -y * y / double((2 * k - 1) * (2 * k));
    sum += term;
  }
  return sum * sum;
}

double PowerOf(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-' || c == '/';
}

// Appends to job.tensors; returns the complaint, or nothing.
std::string ReadTensors(const Json& array, Job* job) {
  if (array.empty() || array.size() > kMaxTensors) {
    return "has " + std::to_string(array.size()) + " tensors: 1 to " + std::to_string(kMaxTensors) + " are possible";
  }
  const uint64_t segment_elems = job->segment_bytes / sizeof(float);
  uint64_t total_elems = 0;
  uint64_t num_segments = 0;
  job->tensors.reserve(array.size());
  for (const Json& json : array) {
    const std::string where = "tensor " + std::to_string(job->tensors.size());
    const uint32_t next_layer = job->tensors.empty() ? 0 : job->tensors.back().layer + 1;
    const uint32_t first_layer = job->tensors.empty() ? 0 : job->tensors.back().layer;
    JobTensor tensor;
    JsonReader reader(json, where);
    reader.String("name", &tensor.name)
        .Int<uint64_t>("elems", &tensor.num_elems, 1, kMaxTensorElems)
        .Int<uint32_t>("layer", &tensor.layer, first_layer, next_layer)
        .Bool("decay", &tensor.decay)
        .NoMore();
    if (!reader.error().empty()) return "is wrong: " + reader.error();
    if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes ||
        !std::all_of(tensor.name.begin(), tensor.name.end(), IsNameChar)) {
      return "is wrong: the name of " + where + " is not 1 to 255 letters, digits, '.', '_', '-' or '/'";
    }
    total_elems += tensor.num_elems;  // cannot overflow: 2^16 tensors of 2^33
    num_segments += (tensor.num_elems + segment_elems - 1) / segment_elems;
    job->tensors.push_back(std::move(tensor));
  }
  if (total_elems > kMaxTotalElems) {
    return "has " + std::to_string(total_elems) + " parameters: at most " + std::to_string(kMaxTotalElems) +
           " are possible";
  }
  if (num_segments > kMaxSegments) {
    return "has " + std::to_string(num_segments) + " segments: at most " + std::to_string(kMaxSegments) +
           " are possible; make segment_bytes larger";
  }
  return "";
}

tl::unexpected<Error> BadJob(const std::string& complaint) {
  return Fail(ErrorCode::kMalformed, "The job description " + complaint + ".");
}

}  // namespace

float LearningRate::At(int64_t step) const {
  step = std::max<int64_t>(step, 0);
  if (step < warmup_steps) return float(double(base) * double(step + 1) / double(warmup_steps));
  switch (schedule) {
    case LrSchedule::kConstant:
      return base;
    case LrSchedule::kStep:
      return step_every <= 0 ? base : float(double(base) * PowerOf(gamma, step / step_every));
    case LrSchedule::kCosine: {
      // base / 2 * (1 + cos(pi * progress)), as cos^2 of half the angle.
      const int64_t length = std::max<int64_t>(total_steps - warmup_steps, 1);
      const double progress = double(std::min(step - warmup_steps, length)) / double(length);
      constexpr double kHalfPi = 1.57079632679489661923;
      return float(double(base) * CosSquared(kHalfPi * progress));
    }
  }
  return base;
}

std::string Job::ToJson() const {
  Json json_tensors = Json::array();
  for (const JobTensor& tensor : tensors) {
    json_tensors.push_back(
        {{"name", tensor.name}, {"elems", tensor.num_elems}, {"layer", tensor.layer}, {"decay", tensor.decay}});
  }
  // A float becomes a double, whose shortest decimal reads back as the same double: bits survive. Keys are sorted.
  const Json json = {
      {"tensors", std::move(json_tensors)},
      {"segment_bytes", segment_bytes},
      {"window_bytes", window_bytes},
      {"codec", ToString(codec)},
      {"fec_auto", fec_auto},
      {"fec_threshold", fec_threshold},
      {"fec_density", fec_density},
      {"fec_runs_layout", fec_runs_layout},
      {"fec_rounding", ToString(fec_rounding)},
      {"seed", seed},
      {"error_feedback", error_feedback},
      {"two_bit_threshold", two_bit_threshold},
      {"reply", ToString(reply)},
      {"fec_reply_threshold", fec_reply_threshold},
      {"schedule", ToString(schedule)},
      {"sync", ToString(sync)},
      {"optimizer", ToString(optimizer)},
      {"lr", lr.base},
      {"lr_schedule", NameOf(kLrSchedules, lr.schedule)},
      {"lr_total_steps", lr.total_steps},
      {"lr_warmup_steps", lr.warmup_steps},
      {"lr_step_every", lr.step_every},
      {"lr_gamma", lr.gamma},
      {"momentum", momentum},
      {"weight_decay", weight_decay},
      {"nonfinite_limit", nonfinite_limit},
  };
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

Result<Job> Job::Parse(const std::string& text) {
  if (text.size() > kMaxJobTextBytes) {
    return BadJob("has " + std::to_string(text.size()) + " bytes: at most " + std::to_string(kMaxJobTextBytes) +
                  " are possible");
  }
  if (JsonNesting(text) > kMaxNesting) return BadJob("is nested too deeply");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return BadJob("is not JSON");

  Job job;
  JsonReader reader(json, "object");
  reader.Int<uint64_t>("segment_bytes", &job.segment_bytes, kMinSegmentBytes, kMaxSegmentBytes)
      .Int<uint64_t>("window_bytes", &job.window_bytes, kMinSegmentBytes, kMaxWindowBytes)
      .Name("codec", &job.codec, ParseCodec)
      .Bool("fec_auto", &job.fec_auto)
      .Int("fec_threshold", &job.fec_threshold, kMinFecThreshold, kMaxFecThreshold)
      .Real("fec_density", &job.fec_density, kMinFecDensity, 1)
      .Bool("fec_runs_layout", &job.fec_runs_layout)
      .Name("fec_rounding", &job.fec_rounding, ParseFecRounding)
      .Int<uint64_t>("seed", &job.seed, 0, UINT64_MAX)
      .Bool("error_feedback", &job.error_feedback)
      .Real("two_bit_threshold", &job.two_bit_threshold, kMinTwoBitThreshold, kMaxTwoBitThreshold)
      .Name("reply", &job.reply, ParseReplyCodec)
      .Int("fec_reply_threshold", &job.fec_reply_threshold, kMinFecThreshold, kMaxFecThreshold)
      .Name("schedule", &job.schedule, ParseSchedule)
      .Name("sync", &job.sync, ParseSync)
      .Name("optimizer", &job.optimizer, ParseOptimizer)
      .Real("lr", &job.lr.base, 0, kMaxLearningRate)
      .Name("lr_schedule", &job.lr.schedule, ParseLrSchedule)
      .Int<int64_t>("lr_total_steps", &job.lr.total_steps, 1, kMaxSteps)
      .Int<int64_t>("lr_warmup_steps", &job.lr.warmup_steps, 0, kMaxSteps)
      .Int<int64_t>("lr_step_every", &job.lr.step_every, 0, kMaxSteps)
      .Real("lr_gamma", &job.lr.gamma, 0, 1)
      .Real("momentum", &job.momentum, 0, 1)
      .Real("weight_decay", &job.weight_decay, 0, 1)
      .Int<uint32_t>("nonfinite_limit", &job.nonfinite_limit, 1, kMaxNonFiniteLimit);
  const Json* tensors = reader.Array("tensors");
  reader.NoMore();
  if (!reader.error().empty()) return BadJob("is wrong: its " + reader.error());

  if (job.segment_bytes % kMinSegmentBytes != 0) {
    return BadJob("has segment_bytes that are not a multiple of " + std::to_string(kMinSegmentBytes));
  }
  if (job.window_bytes < job.segment_bytes) return BadJob("has a window that is smaller than one segment");
  if (job.schedule == Schedule::kSerial && job.sync.kind != SyncKind::kBsp) {
    return BadJob("has the schedule serial, which needs sync bsp, and sync " + ToString(job.sync));
  }
  if (std::string complaint = ReadTensors(*tensors, &job); !complaint.empty()) return BadJob(complaint);
  return job;
}

Result<Codec> ParseCodec(const std::string& text) { return FromName("a codec", kCodecs, text); }
Result<fec::Rounding> ParseFecRounding(const std::string& text) { return FromName("a way to round", kFecRoundings, text); }
Result<ReplyCodec> ParseReplyCodec(const std::string& text) { return FromName("a reply codec", kReplyCodecs, text); }
Result<OptimizerKind> ParseOptimizer(const std::string& text) { return FromName("an optimizer", kOptimizers, text); }
Result<Schedule> ParseSchedule(const std::string& text) { return FromName("a schedule", kSchedules, text); }
Result<LrSchedule> ParseLrSchedule(const std::string& text) {
  return FromName("a learning rate schedule", kLrSchedules, text);
}

Result<Sync> ParseSync(const std::string& text) {
  if (text == "bsp") return Sync{SyncKind::kBsp, 0};
  if (text == "async") return Sync{SyncKind::kAsync, 0};
  if (text.starts_with("ssp:")) {
    uint32_t staleness = 0;
    const char* end = text.data() + text.size();
    const auto [stopped, status] = std::from_chars(text.data() + 4, end, staleness);
    if (status == std::errc{} && stopped == end && staleness <= kMaxStaleness) return Sync{SyncKind::kSsp, staleness};
  }
  return Fail(ErrorCode::kInvalidArgument,
              QuotedForMessage(text) + " is not a way to synchronise: say bsp, async or ssp:K with K from 0 to " +
                  std::to_string(kMaxStaleness) + ".");
}

const char* ToString(Codec codec) { return NameOf(kCodecs, codec); }
const char* ToString(fec::Rounding rounding) { return NameOf(kFecRoundings, rounding); }
const char* ToString(ReplyCodec reply) { return NameOf(kReplyCodecs, reply); }
const char* ToString(OptimizerKind optimizer) { return NameOf(kOptimizers, optimizer); }
const char* ToString(Schedule schedule) { return NameOf(kSchedules, schedule); }
const char* ToString(LrSchedule schedule) { return NameOf(kLrSchedules, schedule); }

std::string ToString(Sync sync) {
  switch (sync.kind) {
    case SyncKind::kBsp:
      return "bsp";
    case SyncKind::kSsp:
      return "ssp:" + std::to_string(sync.staleness);
    case SyncKind::kAsync:
      return "async";
  }
  return "?";
}

}  // namespace gradlane
