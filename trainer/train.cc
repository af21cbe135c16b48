#include "trainer/train.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>
#include <vector>

namespace gradlane {
namespace {

// Joins the passes of the model to the store: forward of a layer waits for its parameters, and its gradients leave as
// soon as backward is through with it.
class StepHooks final : public PassHooks {
 public:
  StepHooks(ParameterStore& store, TraceTrack* track) : store_(store), track_(track) {}

  void BeforeForward(uint32_t layer) override {
    const int64_t begin_ns = NowNs();
    if (!failure_) {
      if (const Result<void> ready = store_.WaitParams(layer); !ready) failure_ = ready.error();
    }
    begin_ns_ = NowNs();
    waited_ns_ += begin_ns_ - begin_ns;
    if (track_ != nullptr) track_->Add({"wait for parameters", begin_ns, begin_ns_, step_, int32_t(layer)});
  }
  void AfterForward(uint32_t layer) override { AddSpan("forward", layer); }
  void BeforeBackward(uint32_t) override { begin_ns_ = NowNs(); }
  void AfterBackward(uint32_t layer) override {
    AddSpan("backward", layer);
    if (!failure_) store_.GradReady(layer);
  }

  void BeginStep(int64_t step) { step_ = int32_t(step); }
  int64_t waited_ns() const { return waited_ns_; }
  const std::optional<Error>& failure() const { return failure_; }

 private:
  void AddSpan(const char* name, uint32_t layer) {
    if (track_ != nullptr) track_->Add({name, begin_ns_, NowNs(), step_, int32_t(layer)});
  }

  ParameterStore& store_;
  TraceTrack* const track_;
  int32_t step_ = 0;
  int64_t begin_ns_ = 0;
  int64_t waited_ns_ = 0;
  std::optional<Error> failure_;  // a pass cannot be left in the middle: it ends, and the step reports
};

constexpr size_t kLossWindowSteps = 100;

}  // namespace

Result<TrainResult> Train(Model& model, ParameterStore& store, Pipeline& pipeline, int64_t num_steps,
                          int64_t max_nonfinite_losses, TraceTrack* track,
                          const std::function<void(int64_t step, float loss)>& on_step) {
  TrainResult result;
  StepHooks hooks(store, track);
  std::deque<double> losses;
  int64_t nonfinite_losses = 0;  // the last so many steps
  const int64_t begin_ns = NowNs();
  for (int64_t step = 1; step <= num_steps; ++step) {
    hooks.BeginStep(step);
    const Batch batch = pipeline.Next();
    const int64_t compute_begin_ns = NowNs();
    const int64_t waited_before_ns = hooks.waited_ns();
    const float loss = model.Forward(batch.images, batch.labels, hooks);
    if (hooks.failure()) return tl::unexpected(*hooks.failure());
    nonfinite_losses = std::isfinite(loss) ? 0 : nonfinite_losses + 1;
    // Not sooner than the store: it says more, and says it before the forward pass that follows its limit.
    if (nonfinite_losses > max_nonfinite_losses) {
      return Fail(ErrorCode::kMalformed,
                  "The loss has not been finite for " + std::to_string(nonfinite_losses) + " steps in a row at step " +
                      std::to_string(step) + " (--nonfinite-limit): training has diverged; lower --lr.");
    }
    model.Backward(hooks);
    result.compute_ns += NowNs() - compute_begin_ns - (hooks.waited_ns() - waited_before_ns);
    if (std::isfinite(loss)) losses.push_back(loss);
    if (losses.size() > kLossWindowSteps) losses.pop_front();
    on_step(step, loss);
  }
  // The last replies belong to the last step.
  const int64_t drain_begin_ns = NowNs();
  for (uint32_t k = 0; k < model.num_layers(); ++k) TRY(store.WaitParams(k));
  if (nonfinite_losses > 0) {
    return Fail(ErrorCode::kMalformed,
                "The loss is not finite at the last step, " + std::to_string(num_steps) + ": training has diverged; lower --lr.");
  }
  const int64_t end_ns = NowNs();
  result.exposed_comm_ns = hooks.waited_ns() + end_ns - drain_begin_ns;
  result.wall_ns = end_ns - begin_ns;
  result.data_wait_ns = pipeline.WaitNs();
  if (!losses.empty()) result.train_loss = std::accumulate(losses.begin(), losses.end(), 0.0) / double(losses.size());
  return result;
}

TestResult Test(Model& model, const Dataset& test, int batch) {
  std::vector<float> images(size_t(batch) * test.image.NumElems());
  size_t correct = 0;
  double loss_sum = 0;
  for (size_t first = 0; first < test.Count(); first += size_t(batch)) {
    const size_t count = std::min(size_t(batch), test.Count() - first);
    NormalizeInto(test, first, count, std::span(images).first(count * test.image.NumElems()));
    const EvalResult part = model.Evaluate(images, std::span(test.labels).subspan(first, count), count);
    correct += part.correct;
    loss_sum += part.loss_sum;
  }
  return {double(correct) / double(test.Count()), loss_sum / double(test.Count())};
}

}  // namespace gradlane
