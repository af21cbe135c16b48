#include "trainer/options_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/fec_codec.h"
#include "ps/codec_plan.h"
#include "trainer/options_values.h"
#include "transport/base/socket.h"

namespace gradlane {
namespace {

using namespace option_values;
using Json = nlohmann::json;
using Text = const std::string&;

constexpr std::array kModels = {"mlp", "lenet5", "vgg11", "resnet20", "vgg16", "resnet50"};
constexpr std::array kDataSets = {"mnist", "fashion-mnist", "cifar10", "cifar100", "synthetic"};
constexpr std::array kDevices = {"auto", "cpu", "cuda"};
constexpr std::array kFabrics = {"auto", "ucx", "verbs", "loopback"};
constexpr uint32_t kMaxLocalRanks = 256;  // of a role, on one host
constexpr uint32_t kMaxRanks = 4096;      // of a role
constexpr double kMaxSeconds = 86'400;

constexpr const char* kPlace = "Where this process stands";
constexpr const char* kTraining = "What is trained";
constexpr const char* kLearning = "How it learns";
constexpr const char* kCarrying = "How gradients travel";
constexpr const char* kOutput = "What it writes";

// Sets a member from a Result, passing its error on.
template <typename T, typename U>
Result<void> Assign(T& target, Result<U> value) {
  if (!value) return tl::unexpected(std::move(value.error()));
  target = static_cast<T>(*std::move(value));
  return {};
}

Result<void> SetLocal(Options& options, Text text) {
  const size_t x = text.find('x');
  uint32_t workers = 0, servers = 0;
  if (x == std::string::npos || !ReadWhole(std::string_view(text).substr(0, x), &workers) ||
      !ReadWhole(std::string_view(text).substr(x + 1), &servers) || workers == 0 || workers > kMaxLocalRanks ||
      servers > kMaxLocalRanks) {
    return Refuse(text, "WxS, workers by servers, such as 2x1, or 1x0 for one worker without a server, with at most " +
                            std::to_string(kMaxLocalRanks) + " of each");
  }
  options.local = true;
  options.members = {workers, servers};
  return {};
}

Result<void> SetRole(Options& options, Text text) {
  ASSIGN_OR_RETURN(const std::string name, OneOf(text, "a role", std::array{"worker", "server"}));
  options.role = name == "server" ? Role::kServer : Role::kWorker;
  return {};
}

Result<void> SetRendezvous(Options& options, Text text) {
  TRY(ParseHostPort(text));
  options.rendezvous = text;
  return {};
}

Result<void> SetSeconds(int& target_ms, Text text) {
  ASSIGN_OR_RETURN(const double seconds, Real(text, 0.1, kMaxSeconds));
  target_ms = int(seconds * 1000);
  return {};
}

Result<void> SetSteps(Options& options, Text text) {
  return Assign(options.steps, Whole<int64_t>(text, 1, 1'000'000'000));
}

Result<void> SetFecThreshold(Options& options, Text text) {
  if (text == "auto") {
    options.fec_threshold = std::nullopt;
    return {};
  }
  int exponent = 0;
  if (!ReadWhole(text, &exponent) || exponent < kMinFecThreshold || exponent > kMaxFecThreshold) {
    return Refuse(text, "auto or an exponent from " + std::to_string(kMinFecThreshold) + " to " +
                            std::to_string(kMaxFecThreshold));
  }
  options.fec_threshold = exponent;
  return {};
}

Result<void> SetCodecVectors(Options& options, Text text) {
  options.codec_choice.target = text == "auto" ? "" : text;
  const std::vector<std::string> targets = fec::CodecTargets();
  if (text == "auto" || std::ranges::find(targets, text) != targets.end()) return {};
  std::string names;
  for (const std::string& target : targets) names += (names.empty() ? "" : ", ") + target;
  return Refuse(text, "auto or among the instructions that this processor has: " + names);
}

Result<void> SetSegmentBytes(Options& options, Text text) {
  ASSIGN_OR_RETURN(const uint64_t bytes, Bytes(text, kMinSegmentBytes, kMaxSegmentBytes));
  if (bytes % kMinSegmentBytes != 0)
    return Refuse(text, "a multiple of " + std::to_string(kMinSegmentBytes) + ", the bytes of one FEC block");
  options.segment_bytes = bytes;
  return {};
}

Result<void> SetMomentum(Options& options, Text text) {
  const Result<double> value = Real(text, 0, 1);
  if (!value || *value == 1) return Refuse(text, "a number from 0 to below 1");
  options.momentum = float(*value);
  return {};
}

template <size_t N>
Result<void> SetName(std::string& target, Text text, const char* what, const std::array<const char*, N>& names) {
  return Assign(target, OneOf(text, what, names));
}

Result<void> SetFile(std::string& target, Text text) { return Assign(target, NotEmpty(text, "the name of a file")); }

std::string LocalText(const Options& o) {
  return std::to_string(o.members.num_workers) + "x" + std::to_string(o.members.num_servers);
}

// clang-format off
const OptionRow kRows[] = {
  {kPlace, "local", "WxS", "start W workers and S servers on this host and stop them all when one fails; 1x0 is one worker without a server", "",
   SetLocal, [](const Options& o) { return o.local ? Json(LocalText(o)) : Json(); }},
  {kPlace, "role", "worker|server", "be one rank of a job; the others are started elsewhere", "",
   SetRole, [](const Options& o) { return o.role ? Json(*o.role == Role::kServer ? "server" : "worker") : Json(); }},
  {kPlace, "rank", "N", "which worker or server this is, from 0 (with --role)", nullptr,
   [](Options& o, Text t) { return Assign(o.rank, Whole<uint32_t>(t, 0, kMaxRanks - 1)); }, [](const Options& o) { return Json(o.rank); }},
  {kPlace, "workers", "N", "workers in the job (with --role)", nullptr,
   [](Options& o, Text t) { return Assign(o.members.num_workers, Whole<uint32_t>(t, 1, kMaxRanks)); }, [](const Options& o) { return Json(o.members.num_workers); }},
  {kPlace, "servers", "N", "servers in the job (with --role)", nullptr,
   [](Options& o, Text t) { return Assign(o.members.num_servers, Whole<uint32_t>(t, 0, kMaxRanks)); }, [](const Options& o) { return Json(o.members.num_servers); }},
  {kPlace, "rendezvous", "HOST:PORT", "where server 0 listens and all others find it (with --role)", "",
   SetRendezvous, [](const Options& o) { return o.rendezvous.empty() ? Json() : Json(o.rendezvous); }},
  {kPlace, "secret-file", "FILE", "first line: the job's secret, 16 characters or more, the same for every rank, not readable by others (with --role); without it, the environment variable GRADLANE_SECRET; --local makes its own", "",
   [](Options& o, Text t) { return SetFile(o.secret_file, t); }, [](const Options& o) { return o.secret_file.empty() ? Json() : Json(o.secret_file); }},
  {kPlace, "join-timeout", "SECONDS", "how long to wait for all ranks to arrive", nullptr,
   [](Options& o, Text t) { return SetSeconds(o.join_timeout_ms, t); }, [](const Options& o) { return Json(o.join_timeout_ms / 1000.0); }},
  {kPlace, "peer-timeout", "SECONDS", "silence after which a rank counts as dead", nullptr,
   [](Options& o, Text t) { return SetSeconds(o.peer_timeout_ms, t); }, [](const Options& o) { return Json(o.peer_timeout_ms / 1000.0); }},

  {kTraining, "model", "NAME", "mlp, lenet5, vgg11 or resnet20 (28x28 and 32x32 images), vgg16 or resnet50 (224x224)", nullptr,
   [](Options& o, Text t) { return SetName(o.model, t, "a model", kModels); }, [](const Options& o) { return Json(o.model); }},
  {kTraining, "data", "NAME", "mnist, fashion-mnist, cifar10, cifar100, or synthetic, which needs no files", nullptr,
   [](Options& o, Text t) { return SetName(o.data, t, "a data set", kDataSets); }, [](const Options& o) { return Json(o.data); }},
  {kTraining, "data-dir", "DIR", "where the files of the data set are; tools/get-data fetches them", "build/data/ and the name of the data set",
   [](Options& o, Text t) { return Assign(o.data_dir, NotEmpty(t, "the name of a folder")); }, [](const Options& o) { return Json(o.data_dir); }},
  {kTraining, "epochs", "N", "passes over the training data", nullptr,
   [](Options& o, Text t) { return Assign(o.epochs, Whole<int>(t, 1, 1'000'000)); }, [](const Options& o) { return Json(o.epochs); }},
  {kTraining, "steps", "N", "steps instead of epochs", "",
   SetSteps, [](const Options& o) { return o.steps ? Json(*o.steps) : Json(); }},
  {kTraining, "batch", "N", "images per worker and step", nullptr,
   [](Options& o, Text t) { return Assign(o.batch, Whole<int>(t, 1, 65'536)); }, [](const Options& o) { return Json(o.batch); }},
  {kTraining, "seed", "N", "of the first parameters, the shuffling and the augmentation", nullptr,
   [](Options& o, Text t) { return Assign(o.seed, Whole<uint64_t>(t, 0, UINT64_MAX)); }, [](const Options& o) { return Json(o.seed); }},
  {kTraining, "augment", "on|off", "crop and flip the training images at random", "on for cifar10 and cifar100",
   [](Options& o, Text t) { return Assign(o.augment, OnOff(t)); }, [](const Options& o) { return Json(o.augment.value_or(o.data.starts_with("cifar"))); }},
  {kTraining, "threads", "N", "compute threads per worker; 0: the cores of this host, shared by its workers", nullptr,
   [](Options& o, Text t) { return Assign(o.threads, Whole<int>(t, 0, 1024)); }, [](const Options& o) { return Json(o.threads); }},
  {kTraining, "device", "auto|cpu|cuda", "where layers are computed", nullptr,
   [](Options& o, Text t) { return SetName(o.device, t, "a device", kDevices); }, [](const Options& o) { return Json(o.device); }},

  {kLearning, "lr", "X", "learning rate, at its highest", nullptr,
   [](Options& o, Text t) { return Assign(o.lr, Real(t, 0, kMaxLearningRate)); }, [](const Options& o) { return Json(AsWritten(o.lr)); }},
  {kLearning, "lr-schedule", "constant|step|cosine", "how the learning rate falls", nullptr,
   [](Options& o, Text t) { return Assign(o.lr_schedule, ParseLrSchedule(t)); }, [](const Options& o) { return Json(ToString(o.lr_schedule)); }},
  {kLearning, "warmup-epochs", "X", "epochs over which the learning rate rises linearly", nullptr,
   [](Options& o, Text t) { return Assign(o.warmup_epochs, Real(t, 0, 1e6)); }, [](const Options& o) { return Json(o.warmup_epochs); }},
  {kLearning, "lr-step-epochs", "X", "epochs between two steps of --lr-schedule step", nullptr,
   [](Options& o, Text t) { return Assign(o.lr_step_epochs, Real(t, 0.001, 1e6)); }, [](const Options& o) { return Json(o.lr_step_epochs); }},
  {kLearning, "lr-gamma", "X", "what each step multiplies the learning rate by", nullptr,
   [](Options& o, Text t) { return Assign(o.lr_gamma, Real(t, 0, 1)); }, [](const Options& o) { return Json(AsWritten(o.lr_gamma)); }},
  {kLearning, "momentum", "X", "of sgd", nullptr,
   SetMomentum, [](const Options& o) { return Json(AsWritten(o.momentum)); }},
  {kLearning, "weight-decay", "X", "L2 penalty; not on biases and batch normalisation", nullptr,
   [](Options& o, Text t) { return Assign(o.weight_decay, Real(t, 0, 1)); }, [](const Options& o) { return Json(AsWritten(o.weight_decay)); }},
  {kLearning, "optimizer", "sgd|adam", "what the servers update parameters with", nullptr,
   [](Options& o, Text t) { return Assign(o.optimizer, ParseOptimizer(t)); }, [](const Options& o) { return Json(ToString(o.optimizer)); }},
  {kLearning, "nonfinite-limit", "N", "a gradient with a NaN or infinity is left out; after so many steps in a row with one in the same segment the job ends", nullptr,
   [](Options& o, Text t) { return Assign(o.nonfinite_limit, Whole<uint32_t>(t, 1, kMaxNonFiniteLimit)); }, [](const Options& o) { return Json(o.nonfinite_limit); }},
  {kLearning, "sync", "bsp|ssp:K|async", "bsp: every step waits for all workers; ssp:K: a worker may be K steps ahead of the slowest; async: no limit", nullptr,
   [](Options& o, Text t) { return Assign(o.sync, ParseSync(t)); }, [](const Options& o) { return Json(ToString(o.sync)); }},

  {kCarrying, "codec", "none|fec|2bit|auto", "how gradients are coded on the way to the servers; auto: by fec, and after --codec-decide-steps as fp32 where coding a tensor takes longer than it saves", nullptr,
   [](Options& o, Text t) { return Assign(o.codec, ParseCodec(t)); }, [](const Options& o) { return Json(ToString(o.codec)); }},
  {kCarrying, "link-mbps", "N", "what --codec auto takes a rank's link to carry, in 10^6 bits a second; nothing measures it", "10000",
   [](Options& o, Text t) { return Assign(o.link_mbps, Whole<uint32_t>(t, 1, kMaxLinkMbps)); }, [](const Options& o) { return Json(o.link_mbps.value_or(kDefaultLinkMbps)); }},
  {kCarrying, "codec-decide-steps", "N", "--codec auto measures the later half of so many steps under fec, then decides", nullptr,
   [](Options& o, Text t) { return Assign(o.codec_decide_steps, Whole<uint32_t>(t, 1, kMaxDecideSteps)); }, [](const Options& o) { return Json(o.codec_decide_steps); }},
  {kCarrying, "codec-plan", "FILE", "decisions of an earlier run of --codec auto, to repeat it bit for bit (of every worker)", "",
   [](Options& o, Text t) { return SetFile(o.codec_plan, t); }, [](const Options& o) { return o.codec_plan.empty() ? Json() : Json(o.codec_plan); }},
  {kCarrying, "reply", "raw|fec", "how the way back is coded: the parameters as they are, or their changes by FEC", "fec with --codec fec and auto, else raw",
   [](Options& o, Text t) { return Assign(o.reply, ParseReplyCodec(t)); }, [](const Options& o) { return Json(ToString(o.reply)); }},
  {kCarrying, "fec-threshold", "auto|EXP", "FEC drops gradients below 2^EXP; auto steers towards --fec-density", nullptr,
   SetFecThreshold, [](const Options& o) { return o.fec_threshold ? Json(*o.fec_threshold) : Json("auto"); }},
  {kCarrying, "fec-density", "X", "share of the gradients that --fec-threshold auto sends, above 0 to 1", nullptr,
   [](Options& o, Text t) { return Assign(o.fec_density, Real(t, kMinFecDensity, 1)); }, [](const Options& o) { return Json(o.fec_density); }},
  {kCarrying, "fec-reply-threshold", "EXP", "FEC drops parameter changes below 2^EXP on the way back", nullptr,
   [](Options& o, Text t) { return Assign(o.fec_reply_threshold, Whole<int>(t, kMinFecThreshold, kMaxFecThreshold)); }, [](const Options& o) { return Json(o.fec_reply_threshold); }},
  {kCarrying, "fec-layout", "smallest|runs", "of a block: the smallest of all, or the published one", nullptr,
   [](Options& o, Text t) { const auto name = OneOf(t, "a layout", std::array{"smallest", "runs"}); return Assign(o.fec_runs_layout, name.map([](Text n) { return n == "runs"; })); },
   [](const Options& o) { return Json(o.fec_runs_layout ? "runs" : "smallest"); }},
  {kCarrying, "fec-rounding", "nearest|truncate|stochastic", "of a gradient to a power of two; truncate is the published way, stochastic has no bias and repeats with the seed", nullptr,
   [](Options& o, Text t) { return Assign(o.fec_rounding, ParseFecRounding(t)); }, [](const Options& o) { return Json(ToString(o.fec_rounding)); }},
  {kCarrying, "error-feedback", "on|off", "what FEC did not send is added to the next step's gradient", nullptr,
   [](Options& o, Text t) { return Assign(o.error_feedback, OnOff(t)); }, [](const Options& o) { return Json(o.error_feedback); }},
  {kCarrying, "two-bit-threshold", "X", "what --codec 2bit sends, up or down", nullptr,
   [](Options& o, Text t) { return Assign(o.two_bit_threshold, Real(t, kMinTwoBitThreshold, kMaxTwoBitThreshold)); }, [](const Options& o) { return Json(AsWritten(o.two_bit_threshold)); }},
  {kCarrying, "codec-threads", "N", "threads of each rank that code one segment; the bytes are the same; more than one pays from segments of 256 KiB on", nullptr,
   [](Options& o, Text t) { return Assign(o.codec_choice.num_threads, Whole<int>(t, 1, kMaxCodecThreads)); }, [](const Options& o) { return Json(o.codec_choice.num_threads); }},
  {kCarrying, "codec-vectors", "auto|NAME", "instructions that FEC uses, as Highway names them: AVX3_DL, AVX3, AVX2, SSE4, SSSE3 or SCALAR; the bytes are the same", nullptr,
   SetCodecVectors, [](const Options& o) { return Json(o.codec_choice.target.empty() ? "auto" : o.codec_choice.target); }},
  {kCarrying, "schedule", "serial|fifo|priority|preemptive", "serial: no overlap, the published baseline; fifo: as gradients get ready; priority: the most urgent layer next; preemptive: its segments overtake a tensor under way", nullptr,
   [](Options& o, Text t) { return Assign(o.schedule, ParseSchedule(t)); }, [](const Options& o) { return Json(ToString(o.schedule)); }},
  {kCarrying, "fabric", "auto|ucx|verbs|loopback", "what carries the bytes; loopback: the ranks of --local are threads of one process", nullptr,
   [](Options& o, Text t) { return SetName(o.fabric, t, "a fabric", kFabrics); }, [](const Options& o) { return Json(o.fabric); }},
  {kCarrying, "segment-bytes", "BYTES", "gradient bytes, before coding, that travel as one piece; a multiple of 16384", nullptr,
   SetSegmentBytes, [](const Options& o) { return Json(o.segment_bytes); }},
  {kCarrying, "window-bytes", "BYTES", "most bytes in flight per rank: an urgent segment waits for these at most", nullptr,
   [](Options& o, Text t) { return Assign(o.window_bytes, Bytes(t, kMinSegmentBytes, kMaxWindowBytes)); }, [](const Options& o) { return Json(o.window_bytes); }},

  {kOutput, "json", "FILE", "write the results for programs", "",
   [](Options& o, Text t) { return SetFile(o.json, t); }, [](const Options& o) { return o.json.empty() ? Json() : Json(o.json); }},
  {kOutput, "codec-plan-out", "FILE", "write what --codec auto decided, for --codec-plan; the file must not exist yet (of worker 0)", "",
   [](Options& o, Text t) { return SetFile(o.codec_plan_out, t); }, [](const Options& o) { return o.codec_plan_out.empty() ? Json() : Json(o.codec_plan_out); }},
  {kOutput, "trace", "FILE", "write a timeline in the Chrome trace format (opens in Perfetto)", "",
   [](Options& o, Text t) { return SetFile(o.trace, t); }, [](const Options& o) { return o.trace.empty() ? Json() : Json(o.trace); }},
  {kOutput, "dump-gradients", "DIR", "write worker 0's gradients of one step, before any coding, to DIR/<tensor>.f32 (raw little-endian fp32); DIR is new or empty", "",
   [](Options& o, Text t) { return Assign(o.dump_gradients, NotEmpty(t, "the name of a folder")); }, [](const Options& o) { return o.dump_gradients.empty() ? Json() : Json(o.dump_gradients); }},
  {kOutput, "dump-step", "N", "the step that --dump-gradients writes, from 1", nullptr,
   [](Options& o, Text t) { return Assign(o.dump_step, Whole<int64_t>(t, 1, 1'000'000'000)); }, [](const Options& o) { return Json(o.dump_step); }},

  {nullptr, "listen-fd", "FD", "", "", [](Options& o, Text t) { return Assign(o.listen_fd, Whole<int>(t, 0, 1 << 20)); }, nullptr},
  {nullptr, "parent-fd", "FD", "", "", [](Options& o, Text t) { return Assign(o.parent_fd, Whole<int>(t, 0, 1 << 20)); }, nullptr},
};
// clang-format on

constexpr size_t kHelpColumn = 32;
constexpr size_t kHelpWidth = 110;

// Words of `text` from `column` on, broken at kHelpWidth.
std::string Wrapped(const std::string& text, size_t column) {
  std::string out;
  size_t at = column;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (at > kHelpColumn && at + 1 + (end - begin) > kHelpWidth) {
      out += "\n" + std::string(kHelpColumn, ' ');
      at = kHelpColumn;
    } else if (begin > 0) {
      out += ' ';
      ++at;
    }
    out += text.substr(begin, end - begin);
    at += end - begin;
    begin = end + 1;
  }
  return out + "\n";
}

std::string DefaultText(const OptionRow& row) {
  if (row.fallback != nullptr) return row.fallback;
  const Json value = row.show(Options{});
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string HelpLine(const std::string& left, const std::string& help) {
  const bool fits = left.size() + 4 <= kHelpColumn;
  return "  " + left + (fits ? std::string(kHelpColumn - 2 - left.size(), ' ') : "\n" + std::string(kHelpColumn, ' ')) +
         Wrapped(help, kHelpColumn);
}

}  // namespace

std::span<const OptionRow> OptionTable() { return kRows; }

std::string OptionHelp() {
  std::string text =
      "gradlane-train trains a model on one or many workers through priority parameter servers.\n\n"
      "  gradlane-train --local 2x1 --model lenet5 --data mnist\n"
      "  gradlane-train --role worker --rank 0 --workers 2 --servers 1 --rendezvous HOST:PORT --secret-file FILE\n";
  const char* group = "";
  for (const OptionRow& row : kRows) {
    if (row.group == nullptr) continue;
    if (row.group != group) text += "\n" + std::string(group = row.group) + "\n";
    const std::string fallback = DefaultText(row);
    text += HelpLine("--" + std::string(row.name) + " " + row.value,
                     row.help + (fallback.empty() ? "" : " [" + fallback + "]"));
  }
  text += "\nGeneral\n";
  text += HelpLine("--config FILE",
                   "read options from a TOML file, for example: batch = 128; the command line has precedence");
  text += HelpLine("--help", "print this and end; defaults are in brackets");
  text += HelpLine("--version", "print the version and end");
  return text;
}

std::string ToJson(const Options& options) {
  nlohmann::ordered_json json;
  for (const OptionRow& row : kRows) {
    if (row.show != nullptr) json[row.name] = row.show(options);
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace gradlane
