#include "trainer/report.h"

#include <algorithm>
#include <cstdio>

namespace gradlane {
namespace {

constexpr double kSeconds = 1e-9;

nlohmann::json Ratio(double over, double under) {
  return under > 0 ? nlohmann::json(over / under) : nlohmann::json();
}

// "136.2x smaller", "as they are", "nothing sent".
std::string RatioText(uint64_t raw_bytes, uint64_t bytes) {
  if (bytes == 0) return "nothing sent";
  char text[64];
  std::snprintf(text, sizeof text, "%.1fx smaller (%.2f MB for %.2f MB)", double(raw_bytes) / double(bytes),
                double(bytes) * 1e-6, double(raw_bytes) * 1e-6);
  return text;
}

struct RawSummary {
  size_t num_tensors = 0;
  uint64_t num_elems = 0;
};

RawSummary RawTensors(const CodecPlan& plan, uint32_t worker) {
  RawSummary summary;
  for (const CodecPlan::Tensor& tensor : plan.tensors) {
    if (tensor.of_worker[worker].raw_from_step == 0) continue;
    ++summary.num_tensors;
    summary.num_elems += tensor.num_elems;
  }
  return summary;
}

std::string CodecAutoText(const CodecPlan& plan, const StoreStats& store) {
  uint64_t from_step = 0;
  bool measured = false;
  for (const CodecPlan::Tensor& tensor : plan.tensors) {
    from_step = std::max(from_step, tensor.of_worker[0].raw_from_step);
    measured |= tensor.of_worker[0].cost.measured();
  }
  const RawSummary raw = RawTensors(plan, 0);
  char text[320];
  std::snprintf(text, sizeof text, "worker 0 sends %zu of %zu tensors (%llu elements) as fp32%s; all workers: %.2f MB as fp32, %.2f MB coded",
                raw.num_tensors, plan.tensors.size(), static_cast<unsigned long long>(raw.num_elems),
                raw.num_tensors > 0 ? (" from step " + std::to_string(from_step) + ", where coding took longer than it saved").c_str()
                : measured          ? ": coding paid for all"
                                    : ": the run was too short to decide",
                double(store.push_auto_raw_bytes) * 1e-6, double(store.push_bytes - store.push_auto_raw_bytes) * 1e-6);
  return text;
}

}  // namespace

std::string ToText(const StartupReport& report) {
  size_t width = 0;
  for (const StartupLine& line : report) width = std::max(width, line.what.size());
  std::string text;
  for (const StartupLine& line : report) {
    text += "  " + line.what + std::string(width - line.what.size() + 2, ' ') + line.text + "\n";
  }
  return text;
}

void LossCurve::Add(int64_t step, float loss, uint64_t bytes) {
  sum_ += loss;
  if (step % stride_ != 0) return;
  steps_.push_back(step);
  losses_.push_back(sum_ / double(stride_));
  bytes_.push_back(bytes);
  sum_ = 0;
}

nlohmann::json ToJson(const StoreStats& s) {
  return {{"push_bytes", s.push_bytes},         {"push_raw_bytes", s.push_raw_bytes},
          {"push_auto_raw_bytes", s.push_auto_raw_bytes},
          {"reply_bytes", s.reply_bytes},       {"reply_raw_bytes", s.reply_raw_bytes},
          {"push_survivors", s.push_survivors}, {"push_elems", s.push_elems},
          {"preemptions", s.preemptions},       {"nonfinite_segments", s.nonfinite_segments},
          {"encode_ns", s.encode_ns},           {"decode_ns", s.decode_ns},
          {"exposed_ns", s.exposed_ns}};
}

StoreStats SumOf(const std::vector<nlohmann::json>& stats_by_worker) {
  StoreStats sum;
  for (const nlohmann::json& s : stats_by_worker) {
    sum.push_bytes += s.value("push_bytes", uint64_t{0});
    sum.push_raw_bytes += s.value("push_raw_bytes", uint64_t{0});
    sum.push_auto_raw_bytes += s.value("push_auto_raw_bytes", uint64_t{0});
    sum.reply_bytes += s.value("reply_bytes", uint64_t{0});
    sum.reply_raw_bytes += s.value("reply_raw_bytes", uint64_t{0});
    sum.push_survivors += s.value("push_survivors", uint64_t{0});
    sum.push_elems += s.value("push_elems", uint64_t{0});
    sum.preemptions += s.value("preemptions", uint64_t{0});
    sum.nonfinite_segments += s.value("nonfinite_segments", uint64_t{0});
    sum.encode_ns += s.value("encode_ns", int64_t{0});
    sum.decode_ns += s.value("decode_ns", int64_t{0});
    sum.exposed_ns += s.value("exposed_ns", int64_t{0});
  }
  return sum;
}

nlohmann::json ToJson(const RunResults& r, const Options& options, const StartupReport& startup) {
  nlohmann::json lines = nlohmann::json::object();
  for (const StartupLine& line : startup) lines[line.what] = line.text;
  const double wall_s = double(r.train.wall_ns) * kSeconds;
  nlohmann::json json = {{"test_accuracy", r.test.accuracy},
          {"test_loss", r.test.loss},
          {"train_loss", r.train.train_loss},
          {"steps", r.steps},
          {"images_per_s", wall_s > 0 ? double(r.images) / wall_s : 0.0},
          {"wall_s", wall_s},
          {"compute_s", double(r.train.compute_ns) * kSeconds},
          {"exposed_comm_s", double(r.train.exposed_comm_ns) * kSeconds},
          {"data_wait_s", double(r.train.data_wait_ns) * kSeconds},
          {"encode_s", double(r.store.encode_ns) * kSeconds},
          {"decode_s", double(r.store.decode_ns) * kSeconds},
          {"server_aggregate_s", r.server_aggregate_s},
          {"server_encode_s", r.server_encode_s},
          {"push_bytes", r.store.push_bytes},
          {"push_raw_bytes", r.store.push_raw_bytes},
          {"push_ratio", Ratio(double(r.store.push_raw_bytes), double(r.store.push_bytes))},
          {"reply_bytes", r.store.reply_bytes},
          {"reply_raw_bytes", r.store.reply_raw_bytes},
          {"reply_ratio", Ratio(double(r.store.reply_raw_bytes), double(r.store.reply_bytes))},
          {"fec_density", Ratio(double(r.store.push_survivors), double(r.store.push_elems))},
          {"reply_density", Ratio(double(r.reply_survivors), double(r.reply_elems))},
          {"preemptions", r.store.preemptions + r.server_preemptions},
          {"nonfinite_segments", r.store.nonfinite_segments},
          {"parameters_sha256", r.parameters_sha256},
          {"curve", r.curve},
          {"options", nlohmann::json::parse(ToJson(options), nullptr, false)},
          {"startup", lines}};
  if (r.codec_plan) {
    nlohmann::json raw_tensors = nlohmann::json::array();
    for (uint32_t w = 0; w < r.codec_plan->num_workers; ++w) raw_tensors.push_back(RawTensors(*r.codec_plan, w).num_tensors);
    json["codec_auto"] = {{"tensors", r.codec_plan->tensors.size()},
                          {"raw_tensors_by_worker", raw_tensors},
                          {"raw_push_bytes", r.store.push_auto_raw_bytes},
                          {"coded_push_bytes", r.store.push_bytes - r.store.push_auto_raw_bytes}};
  }
  return json;
}

std::string ToText(const RunResults& r) {
  const double wall_s = double(r.train.wall_ns) * kSeconds;
  char text[1024];
  std::snprintf(text, sizeof text,
                "results\n"
                "  test accuracy   %.2f%%   (train loss %.4f, test loss %.4f)\n"
                "  steps           %lld in %.1f s, %.0f images/s over all workers\n"
                "  gradients       %s\n"
                "  parameters      %s\n"
                "  worker 0's time %.1f s computing, %.1f s waiting for the network, %.1f s waiting for data\n"
                "  preemptions     %llu\n"
                "  not finite      %llu gradient segments, which were left out\n"
                "  parameters      sha256 %s\n",
                r.test.accuracy * 100, r.train.train_loss, r.test.loss, static_cast<long long>(r.steps), wall_s,
                wall_s > 0 ? double(r.images) / wall_s : 0.0, RatioText(r.store.push_raw_bytes, r.store.push_bytes).c_str(),
                RatioText(r.store.reply_raw_bytes, r.store.reply_bytes).c_str(), double(r.train.compute_ns) * kSeconds,
                double(r.train.exposed_comm_ns) * kSeconds, double(r.train.data_wait_ns) * kSeconds,
                static_cast<unsigned long long>(r.store.preemptions + r.server_preemptions),
                static_cast<unsigned long long>(r.store.nonfinite_segments), r.parameters_sha256.c_str());
  std::string all = text;
  if (r.codec_plan) all += "  codec auto      " + CodecAutoText(*r.codec_plan, r.store) + "\n";
  return all;
}

}  // namespace gradlane
