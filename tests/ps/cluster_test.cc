#include "cluster.h"

#include "trainer/local_store.h"

namespace gradlane {
namespace {

using namespace testing_support;

constexpr int kSteps = 6;

struct Coding {
  const char* name;
  Codec codec;
  ReplyCodec reply;
};

class Reproducible : public testing::TestWithParam<Coding> {
 protected:
  Job MakeJob() const {
    Job job = SmallJob();
    job.codec = GetParam().codec;
    job.reply = GetParam().reply;
    return job;
  }
};

TEST_P(Reproducible, GivenAnyScheduleServersTimingAndOrderTheBitsAreTheSame) {
  const Job reference_job = MakeJob();
  const ClusterResult reference = RunCluster(reference_job, {3, 1}, kSteps);
  ASSERT_TRUE(reference.errors.empty()) << reference.errors[0].message;
  EXPECT_EQ(reference.params[0], reference.params[1]);
  EXPECT_EQ(reference.params[0], reference.params[2]);
  for (const Schedule schedule : {Schedule::kSerial, Schedule::kFifo, Schedule::kPriority, Schedule::kPreemptive}) {
    for (const uint32_t servers : {1u, 2u, 3u}) {
      Job job = MakeJob();
      job.schedule = schedule;
      const ClusterResult run = RunCluster(job, {3, servers}, kSteps, [&](LoopbackHub& hub) {
        hub.SetReordering(servers * 10 + uint64_t(schedule));
        hub.SetDelay(servers + 1, 0, 200'000);  // worker 1 to server 0: late
      });
      ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
      EXPECT_EQ(run.params[0], reference.params[0]) << ToString(schedule) << ", " << servers << " servers";
    }
  }
}

TEST_P(Reproducible, GivenARunTheBytesAddUp) {
  const Job job = MakeJob();
  const ClusterResult run = RunCluster(job, {2, 2}, kSteps);
  ASSERT_TRUE(run.errors.empty());
  uint64_t elems = 0;
  for (const JobTensor& tensor : job.tensors) elems += tensor.num_elems;
  for (const StoreStats& stats : run.stats) {
    EXPECT_EQ(stats.push_raw_bytes, elems * 4 * kSteps);
    EXPECT_EQ(stats.reply_raw_bytes, elems * 4 * kSteps);
    if (job.codec == Codec::kNone) EXPECT_EQ(stats.push_bytes, stats.push_raw_bytes);
    else EXPECT_LT(stats.push_bytes, stats.push_raw_bytes / 2);
    if (job.reply == ReplyCodec::kRaw) EXPECT_EQ(stats.reply_bytes, stats.reply_raw_bytes);
    else EXPECT_LT(stats.reply_bytes, stats.reply_raw_bytes / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(, Reproducible,
                         testing::Values(Coding{"raw", Codec::kNone, ReplyCodec::kRaw},
                                         Coding{"raw_fec", Codec::kNone, ReplyCodec::kFec},
                                         Coding{"fec_raw", Codec::kFec, ReplyCodec::kRaw},
                                         Coding{"fec_fec", Codec::kFec, ReplyCodec::kFec},
                                         Coding{"two_bit", Codec::kTwoBit, ReplyCodec::kRaw}),
                         [](const auto& info) { return info.param.name; });

class OneWorker : public testing::TestWithParam<OptimizerKind> {};

TEST_P(OneWorker, GivenRawCodingItEqualsTrainingWithoutAServerBitForBit) {
  Job job = SmallJob();
  job.optimizer = GetParam();
  auto local = LocalStore::Open(job);
  ASSERT_TRUE(local);
  InitParams(**local, job);
  ASSERT_TRUE((*local)->Begin());
  ASSERT_TRUE(RunSteps(**local, job, 0, kSteps));
  const ClusterResult run = RunCluster(job, {1, 2}, kSteps);
  ASSERT_TRUE(run.errors.empty());
  EXPECT_EQ(run.params[0], AllParams(**local, job));
}
INSTANTIATE_TEST_SUITE_P(, OneWorker, testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdam));

TEST(Cluster, GivenASteeredThresholdTheBitsStillDoNotDependOnTheServers) {
  Job job = SmallJob();
  job.codec = Codec::kFec;
  job.reply = ReplyCodec::kFec;
  job.fec_auto = true;
  job.fec_density = 0.05;
  const ClusterResult one = RunCluster(job, {2, 1}, 40);
  job.schedule = Schedule::kFifo;
  const ClusterResult three = RunCluster(job, {2, 3}, 40);
  ASSERT_TRUE(one.errors.empty() && three.errors.empty());
  EXPECT_EQ(one.params[0], three.params[0]);
  EXPECT_EQ(one.params[0], one.params[1]);
}

class Unsynchronised : public testing::TestWithParam<std::pair<Sync, ReplyCodec>> {};

TEST_P(Unsynchronised, GivenWorkersOfDifferentSpeedEveryStepIsApplied) {
  Job job = SmallJob();
  job.sync = GetParam().first;
  job.reply = GetParam().second;
  const ClusterResult run = RunCluster(job, {3, 2}, kSteps, [](LoopbackHub& hub) { hub.SetDelay(3, 0, 300'000); });
  ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
  for (const std::vector<float>& params : run.params) {
    for (float value : params) ASSERT_TRUE(std::isfinite(value));
  }
  for (const StoreStats& stats : run.stats) EXPECT_EQ(stats.push_raw_bytes, stats.reply_raw_bytes);
}
INSTANTIATE_TEST_SUITE_P(, Unsynchronised,
                         testing::Values(std::pair(Sync{SyncKind::kAsync, 0}, ReplyCodec::kRaw),
                                         std::pair(Sync{SyncKind::kAsync, 0}, ReplyCodec::kFec),
                                         std::pair(Sync{SyncKind::kSsp, 2}, ReplyCodec::kRaw),
                                         std::pair(Sync{SyncKind::kSsp, 0}, ReplyCodec::kFec)));

TEST(Cluster, GivenAServerThatIsLostTheWorkersFailNamingIt) {
  const Job job = SmallJob();
  std::thread killer;
  const auto kill_server_1 = [&](LoopbackHub& hub) {
    killer = std::thread([&hub] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      hub.Kill(1);
    });
  };
  const ClusterResult run = RunCluster(job, {2, 2}, 1'000'000, kill_server_1, {.victim = 1});
  killer.join();
  ASSERT_FALSE(run.errors.empty());
  EXPECT_NE(run.errors[0].message.find("lost server 1"), std::string::npos) << run.errors[0].message;
}

}  // namespace
}  // namespace gradlane
