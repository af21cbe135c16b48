#include "perf/codec_bench.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "kernels/fec_codec.h"
#include "kernels/two_bit.h"
#include "perf/dense_add.h"
#include "perf/entropy.h"
#include "perf/other_codecs.h"
#include "perf/rotation.h"
#include "perf/segmented_codec.h"
#include "perf/steady_state.h"
#include "perf/tensors.h"

namespace gradlane::perf {
namespace {

double GbPerS(size_t num_elems, double seconds) {
  return static_cast<double>(num_elems * sizeof(float)) / seconds / 1e9;
}

Result<std::string> ChooseTarget(const std::string& wanted) {
  const std::vector<std::string> targets = fec::CodecTargets();
  if (wanted.empty()) return targets.front();
  if (std::ranges::find(targets, wanted) != targets.end()) return wanted;
  std::string list;
  for (const std::string& target : targets) list += (list.empty() ? "" : ", ") + target;
  return Fail(ErrorCode::kInvalidArgument, "--target: '" + wanted + "' is none of this processor's: " + list + ".");
}

// The codec and its floor with one number of threads.
struct Contender {
  Contender(const CodecBenchOptions& options, int num_threads)
      : num_threads(num_threads),
        whole(options.num_elems, options.segment_elems, num_threads, options.target),
        in_l2(options.num_elems, L2SegmentElems(options), num_threads, options.target),
        dense(options.target, num_threads) {}

  static size_t L2SegmentElems(const CodecBenchOptions& options) {
    return options.segment_elems == 0 ? kL2Elems : std::min(kL2Elems, options.segment_elems);
  }

  const int num_threads;
  SegmentedCodec whole;
  SegmentedCodec in_l2;
  DenseAdd dense;
  fec::EncodeStats last;
};

class CodecBench {
 public:
  CodecBench(const CodecBenchOptions& options, std::vector<float> pattern)
      : options_(options),
        pattern_(std::move(pattern)),
        gradients_(pattern_, options.num_elems),
        residual_(options.num_elems),
        sum_(options.num_elems),
        l2_sum_(std::min(options.num_elems,
                         kL2Elems / Contender::L2SegmentElems(options) * Contender::L2SegmentElems(options))) {
    for (const int num_threads : options.threads) contenders_.emplace_back(options, num_threads);
  }

  CodecReport Run() {
    for (const double density : options_.densities) {
      const SteadyState state =
          WarmUp(pattern_, density, {.layout = options_.layout, .rounding = options_.rounding}, options_.target);
      params_ = state.params;
      step_ = state.steps;
      Repeat(state.residual, residual_.span());
      MeasureEncode(density);
      MeasureDecode();
      MeasureWithResidual(density);
    }
    MeasureRaw();
    return std::move(report_);
  }

 private:
  // The rows of this density, in the order of options_.threads.
  std::span<FecRow> Rows() { return std::span(report_.fec).last(contenders_.size()); }

  void MeasureEncode(double density) {
    std::vector<Action> actions;
    for (Contender& contender : contenders_) {
      actions.push_back({[&](size_t) { contender.dense.Run(gradients_.At(step_), sum_.span()); }});
      actions.push_back(
          {[&](size_t) { contender.last = contender.whole.Encode(gradients_.At(step_), residual_.span(), params_); },
           [&](size_t) { params_.rounding_seed = static_cast<uint32_t>(++step_); }});
    }
    const std::vector<Samples> samples = MeasureInTurn(actions, options_.repeat);
    for (size_t i = 0; i < contenders_.size(); ++i) {
      const Samples& loop = samples[2 * i];
      const Samples& encode = samples[2 * i + 1];
      const fec::EncodeStats stats = contenders_[i].last;
      const auto bytes = static_cast<double>(stats.bytes), survivors = static_cast<double>(stats.survivors);
      std::ranges::fill(sum_.span(), 0.0f);
      contenders_[i].whole.DecodeAdd(sum_.span());
      report_.fec.push_back({.wanted_density = density,
                             .density = survivors / static_cast<double>(options_.num_elems),
                             .threads = static_cast<double>(contenders_[i].num_threads),
                             .encode_gb_per_s = GbPerS(options_.num_elems, encode.Median()),
                             .encode_p99_gb_per_s = GbPerS(options_.num_elems, encode.P99()),
                             .encode_over_loop = encode.MedianRatioTo(loop),
                             .encode_speedup = samples[1].MedianRatioTo(encode),
                             .bytes = bytes,
                             .ratio = Ratio(bytes, options_.num_elems),
                             .bits_per_survivor = 8 * bytes / std::max(1.0, survivors),
                             .bytes_over_entropy = bytes / std::max(1.0, QuantisedEntropyBytes(sum_.span()))});
    }
  }

  void MeasureDecode() {
    const std::span<const float> grad = gradients_.At(step_);
    std::vector<float> scratch(residual_.span().begin(), residual_.span().end());
    std::vector<Action> actions;
    for (Contender& contender : contenders_) {
      std::ranges::copy(residual_.span(), scratch.begin());
      contender.in_l2.Encode(grad, scratch, params_);
      actions.push_back({[&](size_t) { contender.whole.DecodeAdd(sum_.span()); }});
      actions.push_back({[&](size_t) { contender.dense.Run(grad, sum_.span()); }});
      actions.push_back({[&](size_t) { contender.in_l2.DecodeAdd(l2_sum_.span()); }});
      actions.push_back({[&](size_t) { DenseAddInL2(contender.dense, grad); }});
    }
    const std::vector<Samples> samples = MeasureInTurn(actions, options_.repeat);
    const auto speed = [&](size_t i) { return GbPerS(options_.num_elems, samples[i].Median()); };
    for (size_t i = 0; i < contenders_.size(); ++i) {
      FecRow& row = Rows()[i];
      row.decode_add_gb_per_s = speed(4 * i);
      row.dense_add_gb_per_s = speed(4 * i + 1);
      row.decode_add_l2_gb_per_s = speed(4 * i + 2);
      row.dense_add_l2_gb_per_s = speed(4 * i + 3);
    }
  }

  // The gradient comes from memory, as a received one does.
  void DenseAddInL2(DenseAdd& dense, std::span<const float> grad) {
    const std::span<float> sum = l2_sum_.span();
    for (size_t first = 0; first < grad.size(); first += sum.size()) {
      const size_t count = std::min(sum.size(), grad.size() - first);
      dense.Run(grad.subspan(first, count), sum.first(count));
    }
  }

  void MeasureWithResidual(double density) {
    const std::span<const float> grad = gradients_.At(step_ + 1);
    const std::span<float> residual = sum_.span();  // a copy for each
    const auto restore = [&](size_t) { std::ranges::copy(residual_.span(), residual.begin()); };
    const float limit =
        std::ldexp(1.0f + std::ldexp(static_cast<float>(params_.threshold_mantissa), -23), params_.threshold_exponent);
    std::vector<std::byte> two_bit_bytes(two_bit::EncodedBytes(grad.size()));
    one_bit::Encoded one_bit;
    top_k::Encoded top_k;
    const size_t k = std::max<size_t>(1, contenders_.front().last.survivors);
    const std::vector<Action> actions = {
        {[&](size_t) { CHECK(two_bit::Encode(grad, residual, limit, two_bit_bytes).finite); }, restore},
        {[&](size_t) { one_bit::Encode(grad, residual, one_bit); }, restore},
        {[&](size_t) { top_k::Encode(grad, residual, k, top_k); }, restore}};
    const std::vector<Samples> samples = MeasureInTurn(actions, options_.repeat);
    AddOther("2-bit", density, grad.size(), samples[0], two_bit_bytes.size());
    AddOther("1-bit", density, grad.size(), samples[1], one_bit.Bytes());
    AddOther("top-k", density, grad.size(), samples[2], top_k.Bytes());
  }

  void MeasureRaw() {
    const auto raw = std::as_bytes(std::span<const float>(pattern_));
    std::vector<std::byte> compressed;
    size_t zstd_bytes = 0, lz4_bytes = 0;
    const std::vector<Action> actions = {{[&](size_t) { zstd_bytes = ZstdCompress(raw, compressed); }},
                                         {[&](size_t) { lz4_bytes = Lz4Compress(raw, compressed); }}};
    const std::vector<Samples> samples = MeasureInTurn(actions, options_.repeat);
    AddOther("zstd -1", std::nullopt, pattern_.size(), samples[0], zstd_bytes);
    AddOther("lz4", std::nullopt, pattern_.size(), samples[1], lz4_bytes);
  }

  void AddOther(const char* name, std::optional<double> density, size_t num_elems, const Samples& samples,
                size_t bytes) {
    const auto written = static_cast<double>(bytes);
    report_.others.push_back({name, density, GbPerS(num_elems, samples.Median()), written, Ratio(written, num_elems)});
  }

  static double Ratio(double bytes, size_t num_elems) { return static_cast<double>(num_elems * sizeof(float)) / bytes; }

  const CodecBenchOptions& options_;
  const std::vector<float> pattern_;
  const Gradients gradients_;
  HugeBuffer<float> residual_;
  HugeBuffer<float> sum_;
  HugeBuffer<float> l2_sum_;
  std::deque<Contender> contenders_;
  fec::Params params_;
  size_t step_ = 0;
  CodecReport report_;
};

}  // namespace

Result<CodecReport> RunCodecBench(CodecBenchOptions options) {
  if (options.segment_elems % fec::kBlockElems != 0) {
    return Fail(ErrorCode::kInvalidArgument, "--segment-elems: " + std::to_string(options.segment_elems) +
                                                 " is no multiple of " + std::to_string(fec::kBlockElems) +
                                                 ", the elements of a block.");
  }
  ASSIGN_OR_RETURN(options.target, ChooseTarget(options.target));
  ASSIGN_OR_RETURN(std::vector<float> pattern, MakePattern(options.distribution, options.num_elems));
  pattern.resize(std::min(pattern.size(), options.num_elems));
  CodecReport report = CodecBench(options, std::move(pattern)).Run();
  report.options = std::move(options);
  return report;
}

}  // namespace gradlane::perf
