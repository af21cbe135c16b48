// What a run tells people and programs: the start-up report, and the results. Value types, filled by worker 0.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ps/codec_plan.h"
#include "ps/parameter_store.h"
#include "trainer/options.h"
#include "trainer/train.h"

namespace gradlane {

// One thing that was chosen, and why: {"fabric", "ucx 1.13.1: chosen by auto ..."}.
struct StartupLine {
  std::string what;
  std::string text;
};
using StartupReport = std::vector<StartupLine>;

std::string ToText(const StartupReport& report);

// How the loss fell, thinned out: each point is the mean over the steps since the one before.
class LossCurve {
 public:
  explicit LossCurve(int64_t num_steps) : stride_((num_steps + kMaxPoints - 1) / kMaxPoints) {}
  // bytes: that worker 0 has sent and received so far.
  void Add(int64_t step, float loss, uint64_t bytes);
  nlohmann::json ToJson() const { return {{"step", steps_}, {"loss", losses_}, {"bytes", bytes_}}; }

 private:
  static constexpr int64_t kMaxPoints = 500;
  int64_t stride_;
  double sum_ = 0;
  std::vector<int64_t> steps_;
  std::vector<double> losses_;
  std::vector<uint64_t> bytes_;
};

struct RunResults {
  TestResult test;
  TrainResult train;
  nlohmann::json curve;        // of worker 0's loss: LossCurve::ToJson
  int64_t steps = 0;
  int64_t images = 0;          // of all workers
  StoreStats store;            // summed over the workers; nonfinite_segments as the servers counted them
  uint64_t server_preemptions = 0;
  uint64_t reply_survivors = 0;
  uint64_t reply_elems = 0;
  double server_aggregate_s = 0;
  double server_encode_s = 0;
  std::string parameters_sha256;
  std::optional<CodecPlan> codec_plan;  // what --codec auto did
};

// The contents of --json. ratios are null where nothing was sent (training without a server).
nlohmann::json ToJson(const RunResults& results, const Options& options, const StartupReport& startup);
std::string ToText(const RunResults& results);

nlohmann::json ToJson(const StoreStats& stats);
StoreStats SumOf(const std::vector<nlohmann::json>& stats_by_worker);

}  // namespace gradlane
