// The options of gradlane-train: one table, read once by main, from the command line and a TOML file, printed at start,
// handed on as const. Value type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ps/codec.h"
#include "ps/job.h"
#include "transport/base/error.h"
#include "transport/base/members.h"

namespace gradlane {

struct Options {
  // Where this process stands.
  std::optional<Role> role;
  bool local = false;  // --local WxS: `members` is set from it
  Membership members;  // --workers, --servers
  uint32_t rank = 0;
  std::string rendezvous;   // HOST:PORT
  std::string secret_file;  // --secret-file; else the environment variable GRADLANE_SECRET, read into `secret`
  std::string secret;
  int join_timeout_ms = 30'000;  // --join-timeout SECONDS
  int peer_timeout_ms = 10'000;  // --peer-timeout SECONDS

  // What is trained.
  std::string model = "lenet5";
  std::string data = "mnist";
  std::string data_dir;  // default: build/data/<data> below the current folder, stated in --help
  int epochs = 2;
  std::optional<int64_t> steps;  // wins over epochs
  int batch = 64;
  uint64_t seed = 1;
  std::optional<bool> augment;  // --augment on|off; default: on for cifar
  int threads = 0;              // compute threads per worker; 0: cores / local workers, at least 1
  std::string device = "auto";  // auto, cpu, cuda

  // How it learns.
  float lr = 0.05f;
  LrSchedule lr_schedule = LrSchedule::kCosine;  // --lr-schedule constant|step|cosine
  double warmup_epochs = 0;                      // --warmup-epochs
  double lr_step_epochs = 30;                    // --lr-step-epochs
  float lr_gamma = 0.1f;                         // --lr-gamma
  float momentum = 0.9f;
  float weight_decay = 0;  // --weight-decay
  OptimizerKind optimizer = OptimizerKind::kSgd;
  uint32_t nonfinite_limit = 10;  // --nonfinite-limit

  // How gradients travel.
  Codec codec = Codec::kFec;
  std::optional<uint32_t> link_mbps;  // --link-mbps; of --codec auto, as the next two
  uint32_t codec_decide_steps = 20;   // --codec-decide-steps
  std::string codec_plan;             // --codec-plan
  std::string codec_plan_out;         // --codec-plan-out
  std::optional<int> fec_threshold = -7;  // nullopt: auto
  double fec_density = 0.02;
  bool fec_runs_layout = false;  // --fec-layout smallest|runs
  fec::Rounding fec_rounding = fec::Rounding::kNearest;  // --fec-rounding
  bool error_feedback = true;
  float two_bit_threshold = 0.5f;  // --two-bit-threshold
  ReplyCodec reply = ReplyCodec::kFec;
  int fec_reply_threshold = -9;  // --fec-reply-threshold
  CodecChoice codec_choice;      // --codec-threads, --codec-vectors
  Schedule schedule = Schedule::kPreemptive;
  Sync sync;
  std::string fabric = "auto";  // auto, ucx, verbs, loopback
  uint64_t segment_bytes = 64 << 10;
  uint64_t window_bytes = 256 << 10;

  // What it writes.
  std::string json;
  std::string trace;
  std::string dump_gradients;  // a folder that is not there yet, or empty
  int64_t dump_step = 1;       // counts from 1

  // Set by the launcher for its children, hidden from --help.
  int listen_fd = -1;
  int parent_fd = -1;
};

// What main should do: run with the options, or print `text` and exit with `exit_code` (--help, --version, an error).
struct ParsedOptions {
  std::optional<Options> options;
  std::string text;
  int exit_code = 0;
};
ParsedOptions ParseOptions(int argc, const char* const* argv);

// One option a line, name and value, for the start-up report and --json.
std::string ToJson(const Options& options);

}  // namespace gradlane
