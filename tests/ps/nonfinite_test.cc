// What becomes of a NaN or infinity in one worker's gradient, over whole jobs: see "A gradient that is not finite" in
// ps/PROTOCOL.md.
#include "cluster.h"
#include "kernels/two_bit.h"
#include "trainer/local_store.h"

namespace gradlane {
namespace {

using namespace testing_support;

constexpr int kSteps = 6;
constexpr uint32_t kTensor = 2;  // b.weight: 30000 elements, so 8 segments of 4096
constexpr size_t kBadElem = 5000;  // in its second segment

// Worker 1, step 2 (from 0).
void SpoilOnce(uint32_t worker, int step, uint32_t tensor, std::span<float> grad) {
  if (worker == 1 && step == 2 && tensor == kTensor) grad[kBadElem] = NAN;
}

struct Coding {
  const char* name;
  Codec codec;
  ReplyCodec reply;
  bool steered = false;
};

class NonFinite : public testing::TestWithParam<Coding> {
 protected:
  Job MakeJob() const {
    Job job = SmallJob();
    job.codec = GetParam().codec;
    job.reply = GetParam().reply;
    job.fec_auto = GetParam().steered;
    job.fec_density = 0.05;
    job.two_bit_threshold = 0.05f;
    return job;
  }
};

TEST_P(NonFinite, GivenOneInOneStepItsSegmentIsLeftOutAtAllWorkersAlikeAndOthersAreNot) {
  const Job job = MakeJob();
  const ClusterResult before = RunCluster(job, {3, 2}, 2, {.hook = SpoilOnce});
  const ClusterResult after = RunCluster(job, {3, 2}, 3, {.hook = SpoilOnce});
  ASSERT_TRUE(before.errors.empty() && after.errors.empty());
  EXPECT_EQ(after.params[0], after.params[1]);
  EXPECT_EQ(after.params[0], after.params[2]);
  const auto layout = Layout::Make(job, {3, 2});
  for (const Segment& segment : layout->segments()) {
    const size_t first = size_t(segment.flat_elem);
    bool changed = false;
    size_t packed = 0;  // AllParams has no padding
    for (uint32_t t = 0; t < segment.tensor; ++t) packed += job.tensors[t].num_elems;
    packed += first - layout->TensorFlatElem(segment.tensor);
    for (size_t i = packed; i < packed + segment.num_elems; ++i) changed |= before.params[0][i] != after.params[0][i];
    const uint32_t second = layout->SegmentsOfTensor(kTensor).begin + 1;
    if (&segment == &layout->segments()[second]) {
      EXPECT_FALSE(changed);
    } else if (segment.num_elems == 4096) {
      EXPECT_TRUE(changed) << packed;
    }
  }
  EXPECT_EQ(after.stats[0].nonfinite_segments, 0u);
  EXPECT_EQ(after.stats[1].nonfinite_segments, 1u);
  EXPECT_EQ(after.server_stats[0].nonfinite_segments + after.server_stats[1].nonfinite_segments, 1u);
}

TEST_P(NonFinite, GivenAnyScheduleServersTimingAndOrderTheBitsAreTheSame) {
  const ClusterResult reference = RunCluster(MakeJob(), {3, 1}, kSteps, {.hook = SpoilOnce});
  ASSERT_TRUE(reference.errors.empty()) << reference.errors[0].message;
  for (const Schedule schedule : {Schedule::kSerial, Schedule::kFifo, Schedule::kPriority, Schedule::kPreemptive}) {
    for (const uint32_t servers : {1u, 3u}) {
      Job job = MakeJob();
      job.schedule = schedule;
      const ClusterResult run = RunCluster(
          job, {3, servers}, kSteps,
          [&](LoopbackHub& hub) {
            hub.SetReordering(servers * 10 + uint64_t(schedule));
            hub.SetDelay(servers + 1, 0, 200'000);
          },
          {.hook = SpoilOnce});
      ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
      EXPECT_EQ(run.params[0], reference.params[0]) << ToString(schedule) << ", " << servers << " servers";
    }
  }
}

TEST_P(NonFinite, GivenItInEveryStepTheJobEndsAtItsLimitNamingWorkerTensorAndStep) {
  Job job = MakeJob();
  job.nonfinite_limit = 3;
  const auto spoil_from_2 = [](uint32_t worker, int step, uint32_t tensor, std::span<float> grad) {
    if (worker == 1 && step >= 2 && tensor == kTensor) grad[kBadElem] = INFINITY;
  };
  const ClusterResult run = RunCluster(job, {2, 2}, 50, {.hook = spoil_from_2});
  ASSERT_FALSE(run.errors.empty());
  for (const char* part : {"worker 1", "b.weight", "step 5", "--lr"}) {
    EXPECT_NE(run.errors[0].message.find(part), std::string::npos) << part << ": " << run.errors[0].message;
  }
}

INSTANTIATE_TEST_SUITE_P(, NonFinite,
                         testing::Values(Coding{"raw", Codec::kNone, ReplyCodec::kRaw},
                                         Coding{"raw_fec", Codec::kNone, ReplyCodec::kFec},
                                         Coding{"fec_raw", Codec::kFec, ReplyCodec::kRaw},
                                         Coding{"fec_fec", Codec::kFec, ReplyCodec::kFec},
                                         Coding{"steered", Codec::kFec, ReplyCodec::kFec, true},
                                         Coding{"two_bit", Codec::kTwoBit, ReplyCodec::kRaw}),
                         [](const auto& info) { return info.param.name; });

TEST(NonFiniteCluster, GivenAsyncTheOthersGoOnAndTheCountIsTheServers) {
  Job job = SmallJob();
  job.sync = {SyncKind::kAsync, 0};
  const ClusterResult run = RunCluster(job, {3, 2}, kSteps, {.hook = SpoilOnce});
  ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
  for (float value : run.params[1]) ASSERT_TRUE(std::isfinite(value));
  EXPECT_EQ(run.server_stats[0].nonfinite_segments + run.server_stats[1].nonfinite_segments, 1u);
}

TEST(NonFiniteCluster, GivenDivergenceTheJobEndsWithTheSentence) {
  Job job = SmallJob();
  job.lr.base = INFINITY;  // the first update makes every parameter infinite, the next gradient with it
  job.nonfinite_limit = 2;
  const ClusterResult run = RunCluster(job, {2, 1}, kSteps);
  ASSERT_FALSE(run.errors.empty());
  EXPECT_NE(run.errors[0].message.find("not finite"), std::string::npos) << run.errors[0].message;
  EXPECT_NE(run.errors[0].message.find("worker 0"), std::string::npos) << run.errors[0].message;
}

// Two workers and one tensor of one segment, and beside them the same by hand / expect the flagged worker's residual
// untouched and the other's to have taken back what it sent.
TEST(NonFiniteCluster, GivenErrorFeedbackNothingIsLostOfAHealthyWorkersGradientsNorOfAnyResidual) {
  for (const Codec codec : {Codec::kFec, Codec::kTwoBit}) {
    Job job = SmallJob();
    job.tensors = {{"w", 3000, 0, false}};
    job.codec = codec;
    job.two_bit_threshold = 0.1f;
    job.momentum = 0;
    job.lr = {0.5f, LrSchedule::kConstant, 100};
    const size_t num_elems = job.tensors[0].num_elems;
    auto spoil = [](uint32_t worker, int step, uint32_t, std::span<float> grad) {
      if (worker == 1 && step == 2) grad[7] = NAN;
    };
    const ClusterResult run = RunCluster(job, {2, 1}, kSteps, {.hook = spoil});
    ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;

    std::vector<float> params(num_elems), grad(num_elems);
    std::vector<std::vector<float>> residual(2, std::vector<float>(num_elems, 0.0f));
    for (size_t i = 0; i < num_elems; ++i) params[i] = std::sin(float(i) * 0.1f);
    const auto layout = Layout::Make(job, {2, 1});
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> sum(num_elems, 0.0f);
      for (uint32_t w = 0; w < 2; ++w) {
        MakeGrad(w, step, params, grad);
        if (step == 2 && w == 1) continue;
        std::vector<std::byte> bytes(layout->segments()[0].slot_bytes);
        std::vector<float> sent(num_elems, 0.0f);
        if (codec == Codec::kFec) {
          fec::Params fec_params;
          fec_params.threshold_exponent = job.fec_threshold;
          bytes.resize(fec::Encode(grad, residual[w], fec_params, bytes).bytes);
          ASSERT_EQ(fec::Decode(bytes, sent), fec::DecodeStatus::kOk);
        } else {
          two_bit::Encode(grad, residual[w], job.two_bit_threshold, bytes);
          bytes.resize(two_bit::EncodedBytes(num_elems));
          ASSERT_TRUE(two_bit::DecodeAdd(bytes, job.two_bit_threshold, sent));
        }
        for (size_t i = 0; i < num_elems; ++i) (step == 2 ? residual[w] : sum)[i] += sent[i];
      }
      if (step == 2) continue;
      for (size_t i = 0; i < num_elems; ++i) params[i] -= 0.5f * (sum[i] * 0.5f);
    }
    EXPECT_EQ(run.params[0], params) << ToString(codec);
  }
}

TEST(NonFiniteLocal, GivenOneWorkerItEqualsTrainingWithoutAServerBitForBit) {
  for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kAdam}) {
    Job job = SmallJob();
    job.optimizer = optimizer;
    auto spoil = [](uint32_t, int step, uint32_t tensor, std::span<float> grad) {
      if ((step == 1 || step == 3) && tensor == kTensor) grad[kBadElem] = INFINITY;
    };
    auto local = LocalStore::Open(job);
    ASSERT_TRUE(local);
    InitParams(**local, job);
    ASSERT_TRUE((*local)->Begin());
    ASSERT_TRUE(RunSteps(**local, job, 0, kSteps, spoil));
    const ClusterResult run = RunCluster(job, {1, 2}, kSteps, {.hook = spoil});
    ASSERT_TRUE(run.errors.empty());
    EXPECT_EQ(run.params[0], AllParams(**local, job));
    EXPECT_EQ((*local)->Stats().nonfinite_segments, 2u);
    EXPECT_EQ(run.stats[0].nonfinite_segments, 2u);
  }
}

TEST(NonFiniteLocal, GivenItsLimitTheSentenceIsTheServers) {
  Job job = SmallJob();
  job.nonfinite_limit = 1;
  auto spoil = [](uint32_t, int step, uint32_t tensor, std::span<float> grad) {
    if (step == 3 && tensor == kTensor) grad[kBadElem] = NAN;
  };
  auto local = LocalStore::Open(job);
  ASSERT_TRUE(local);
  InitParams(**local, job);
  const Result<void> done = RunSteps(**local, job, 0, kSteps, spoil);
  ASSERT_FALSE(done);
  const ClusterResult run = RunCluster(job, {1, 2}, kSteps, {.hook = spoil});
  ASSERT_FALSE(run.errors.empty());
  EXPECT_EQ(run.errors[0].message, done.error().message);
}

}  // namespace
}  // namespace gradlane
