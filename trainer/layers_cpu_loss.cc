// Softmax cross-entropy in plain code: a few thousand numbers, summed in one order on one thread.
#include <algorithm>
#include <cmath>

#include "trainer/layers_cpu.h"

namespace gradlane {
namespace {

class SoftmaxLossOp : public LossOp {
 public:
  SoftmaxLossOp(const OpSpec& op, CpuBuild& build)
      : logits_(build.Value(op.input)),
        dlogits_(build.ValueGrad(op.input)),
        num_classes_(size_t(build.spec().num_classes)),
        labels_(size_t(build.batch())),
        probabilities_(size_t(build.batch()) * num_classes_) {}

  void SetLabels(std::span<const int32_t> labels) override {
    CHECK(labels.size() <= labels_.size());
    for (int32_t label : labels) CHECK(label >= 0 && size_t(label) < num_classes_);
    std::copy(labels.begin(), labels.end(), labels_.begin());
    num_rows_ = labels.size();
  }

  void Forward(PassKind) override {
    const float* logits = static_cast<const float*>(logits_.get_data_handle());
    loss_sum_ = 0;
    num_correct_ = 0;
    for (size_t row = 0; row < num_rows_; row++) {
      const float* x = logits + row * num_classes_;
      float* p = probabilities_.data() + row * num_classes_;
      const size_t label = size_t(labels_[row]);
      const size_t best = size_t(std::max_element(x, x + num_classes_) - x);
      double sum = 0;
      for (size_t k = 0; k < num_classes_; k++) {
        p[k] = std::exp(x[k] - x[best]);  // at most 1
        sum += p[k];
      }
      for (size_t k = 0; k < num_classes_; k++) p[k] = float(p[k] / sum);
      loss_sum_ += std::log(sum) - (double(x[label]) - x[best]);
      num_correct_ += best == label;
    }
  }

  void Backward() override {
    CHECK(num_rows_ == labels_.size());
    float* dlogits = static_cast<float*>(dlogits_.get_data_handle());
    const float scale = 1.0f / float(num_rows_);
    for (size_t row = 0; row < num_rows_; row++) {
      for (size_t k = 0; k < num_classes_; k++) {
        const size_t i = row * num_classes_ + k;
        dlogits[i] = (probabilities_[i] - (k == size_t(labels_[row]) ? 1.0f : 0.0f)) * scale;
      }
    }
  }

  double loss_sum() const override { return loss_sum_; }
  size_t num_correct() const override { return num_correct_; }

 private:
  dnnl::memory logits_, dlogits_;
  size_t num_classes_, num_rows_ = 0;
  std::vector<int32_t> labels_;
  std::vector<float> probabilities_;
  double loss_sum_ = 0;
  size_t num_correct_ = 0;
};

}  // namespace

std::unique_ptr<LossOp> MakeCpuSoftmaxLoss(const OpSpec& op, CpuBuild& build) {
  return std::make_unique<SoftmaxLossOp>(op, build);
}

}  // namespace gradlane
