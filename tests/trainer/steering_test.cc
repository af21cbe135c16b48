// A steered threshold on real training: LeNet-5 learns MNIST from what FEC sends of its gradients, under error feedback.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/fec_codec.h"
#include "tests/trainer/model_reference.h"
#include "trainer/data.h"

namespace gradlane {
namespace {

constexpr int kBatch = 32;
constexpr size_t kSteps = 200, kSettleSteps = 50, kWindowSteps = 100;

struct TensorTrack {
  explicit TensorTrack(size_t num_elems, double density) : steering(density), residual(num_elems), velocity(num_elems) {}
  fec::DensitySteering steering;
  std::vector<float> residual, velocity;
  std::vector<size_t> survivors;  // by step
};

// Trains; returns each tensor's survivors, step by step.
std::vector<TensorTrack> Train(const char* name, const Dataset& data, double density) {
  BoundModel bound(Zoo(name), kBatch, 1, 1, /*jitter=*/false);
  std::vector<TensorTrack> tracks;
  size_t largest = 0;
  for (const TensorSpec& tensor : bound.model->tensors()) {
    tracks.emplace_back(tensor.NumElems(), density);
    largest = std::max(largest, tensor.NumElems());
  }
  fec::Codec codec({largest, 1, {}});
  std::vector<std::byte> bytes(fec::Bound(largest));
  std::vector<float> decoded(largest);
  for (size_t step = 0; step < kSteps; step++) {
    const size_t first = step * kBatch % (data.Count() - kBatch + 1);
    NormalizeInto(data, first, kBatch, bound.images);
    std::copy_n(data.labels.begin() + ptrdiff_t(first), kBatch, bound.labels.begin());
    bound.Step();
    for (size_t t = 0; t < tracks.size(); t++) {
      TensorTrack& track = tracks[t];
      fec::Params params;
      track.steering.ApplyTo(params);
      const std::span<float> grad = bound.memory->grads()[t], param = bound.memory->params()[t];
      const fec::EncodeStats stats = codec.Encode(grad, track.residual, params, bytes);
      track.steering.Observe(stats.survivors, grad.size());
      track.survivors.push_back(stats.survivors);
      const std::span<float> sent = std::span(decoded).first(grad.size());
      EXPECT_EQ(codec.Decode(std::span(bytes).first(stats.bytes), sent), fec::DecodeStatus::kOk);
      for (size_t i = 0; i < sent.size(); i++) {
        track.velocity[i] = 0.9f * track.velocity[i] + sent[i];
        param[i] -= 0.01f * track.velocity[i];
      }
    }
  }
  return tracks;
}

// Within a fifth, or, of tensors so small that few survivors are asked for, within a dozen of them.
TEST(SteeringOnTraining, GivenADensityExpectItOver100StepsAfterTheFirst50OfEachTensor) {
  const Result<DataSplits> data = LoadData("mnist", GRADLANE_SOURCE_DIR "/tests/data/mnist", ImageShape{1, 28, 28}, 1);
  ASSERT_TRUE(data.has_value()) << data.error().message;
  for (const double density : {0.02, 0.001}) {
    const std::vector<TensorTrack> tracks = Train("lenet5", data->train, density);
    for (size_t t = 0; t < tracks.size(); t++) {
      const double asked = density * double(tracks[t].residual.size()) * kWindowSteps;
      for (size_t first = kSettleSteps; first + kWindowSteps <= kSteps; first++) {
        const auto begin = tracks[t].survivors.begin() + ptrdiff_t(first);
        const auto sent = double(std::accumulate(begin, begin + kWindowSteps, size_t{0}));
        ASSERT_NEAR(sent, asked, std::max(0.2 * asked, 12.0)) << "density " << density << ", tensor " << t << ", from step "
                                                               << first;
      }
    }
  }
}

}  // namespace
}  // namespace gradlane
