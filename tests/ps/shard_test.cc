#include "ps/shard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/two_bit.h"

namespace gradlane {
namespace {

// One server, one tensor of one segment, and the memory for it.
class ShardTest : public testing::Test {
 protected:
  static constexpr size_t kElems = 100;

  ShardTest() {
    job_.tensors = {{"fc.weight", kElems, 0, true}};
    job_.codec = Codec::kNone;
    job_.reply = ReplyCodec::kRaw;
    job_.momentum = 0;
    job_.lr = {1.0f, LrSchedule::kConstant, 100};
  }

  Shard Make(uint32_t num_workers) {
    layout_ = *Layout::Make(job_, {num_workers, 1});
    const size_t elems = layout_.ServerElems(0);
    const uint32_t lanes = Shard::NumLanes(job_, num_workers);
    memory_.assign(elems * (4 + lanes) + 4096 * 4, 0.0f);
    std::span<float> rest = memory_;
    auto take = [&](size_t count) {
      auto part = rest.first(count);
      rest = rest.subspan(count);
      return part;
    };
    ShardMemory memory;
    memory.params = take(elems);
    memory.sum = take(elems);
    memory.first_moment = take(elems);
    memory.second_moment = take(elems);
    if (job_.reply == ReplyCodec::kFec) {
      for (uint32_t lane = 0; lane < lanes; ++lane) memory.held.push_back(take(elems));
    }
    memory.scratch = take(4096 * 4);
    Shard shard(job_, layout_, 0, num_workers, std::move(memory));
    const std::vector<float> zeros(kElems, 0.0f);
    EXPECT_EQ(*Put(shard, 0, 0, zeros, MessageKind::kInit), Shard::Outcome::kInitialized);
    released_.clear();
    return shard;
  }

  Result<Shard::Outcome> Put(Shard& shard, uint32_t worker, uint8_t step, std::span<const float> values,
                             MessageKind kind = MessageKind::kData) {
    return shard.OnPush({worker, {0, step, kind}, std::as_bytes(values), 100 + worker}, released_);
  }

  Job job_;
  Layout layout_;
  std::vector<float> memory_;
  std::vector<uint64_t> released_;
  std::vector<Shard::Reply> due_;
};

const std::vector<float> kBig(100, 1e8f), kSmall(100, 1.0f), kMinusBig(100, -1e8f);

TEST_F(ShardTest, GivenAnyOrderOfArrivalContributionsAreAddedInRankOrder) {
  // In fp32 (1e8 + 1) - 1e8 is 0 while (1e8 - 1e8) + 1 is 1: the order shows.
  for (const std::vector<uint32_t>& order : {std::vector<uint32_t>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}}) {
    Shard shard = Make(3);
    const std::vector<const std::vector<float>*> grads = {&kBig, &kSmall, &kMinusBig};
    for (size_t i = 0; i < 3; ++i) {
      const auto outcome = Put(shard, order[i], 1, *grads[order[i]]);
      ASSERT_TRUE(outcome);
      EXPECT_EQ(*outcome, i == 2 ? Shard::Outcome::kComplete : Shard::Outcome::kWaiting);
    }
    ASSERT_TRUE(shard.Update(0, order[2], released_, due_));
    EXPECT_EQ(shard.Params(0)[0], 0.0f);
    EXPECT_EQ(due_.size(), 3u);
    due_.clear();
  }
}

TEST_F(ShardTest, GivenAPrefixThatHasArrivedItsPayloadsAreReleasedAndNoOthers) {
  Shard shard = Make(3);
  ASSERT_TRUE(Put(shard, 1, 1, kSmall));
  EXPECT_TRUE(released_.empty());
  ASSERT_TRUE(Put(shard, 0, 1, kSmall));
  EXPECT_EQ(released_, (std::vector<uint64_t>{100, 101}));
}

TEST_F(ShardTest, GivenADuplicateNothingChanges) {
  Shard shard = Make(2);
  ASSERT_TRUE(Put(shard, 0, 1, kSmall));
  EXPECT_EQ(*Put(shard, 0, 1, kSmall), Shard::Outcome::kDuplicate);
  ASSERT_TRUE(Put(shard, 1, 1, kSmall));
  EXPECT_EQ(*Put(shard, 1, 1, kSmall), Shard::Outcome::kDuplicate);
  ASSERT_TRUE(shard.Update(0, 1, released_, due_));
  EXPECT_EQ(shard.Params(0)[0], -1.0f);  // lr 1, mean gradient 1
  EXPECT_EQ(*Put(shard, 0, 0, kSmall, MessageKind::kInit), Shard::Outcome::kDuplicate);
  EXPECT_EQ(shard.Params(0)[0], -1.0f);
}

TEST_F(ShardTest, GivenAStepBeyond256ItGoesOnCounting) {
  Shard shard = Make(1);
  for (int step = 1; step <= 600; ++step) {
    ASSERT_EQ(*Put(shard, 0, uint8_t(step), kSmall), Shard::Outcome::kComplete) << step;
    ASSERT_TRUE(shard.Update(0, 0, released_, due_));
    EXPECT_EQ(shard.ReplyStep(0, 0), uint8_t(step));
  }
  EXPECT_EQ(shard.updates(), 600u);
}

void ExpectComplaint(const Result<Shard::Outcome>& outcome, const std::string& part) {
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kMalformed);
  EXPECT_NE(outcome.error().message.find(part), std::string::npos) << outcome.error().message;
}

TEST_F(ShardTest, GivenBadPushesEachIsRefusedByNameOfWorkerAndTensor) {
  Shard shard = Make(2);
  ExpectComplaint(Put(shard, 1, 2, kSmall), "worker 1 sent step 2");
  ExpectComplaint(Put(shard, 0, 1, std::vector<float>(99, 0.0f)), "fc.weight");
  Shard second = Make(2);
  ExpectComplaint(Put(second, 7, 1, kSmall), "worker 7");
  ExpectComplaint(second.OnPush({0, {5, 1, MessageKind::kData}, {}, 0}, released_), "segment 5");
  ExpectComplaint(Put(second, 0, 1, std::vector<float>(1, 0.0f), MessageKind::kNonFinite), "4 bytes with a flag");
}

// Given a contribution that is not finite, as a flag or as values / expect the whole step left out, and everything else
// as before it, whichever worker it was.
TEST_F(ShardTest, GivenAContributionThatIsNotFiniteTheStepIsLeftOutBitForBit) {
  std::vector<float> nan = kSmall;
  nan[99] = -INFINITY;
  for (const bool as_flag : {false, true}) {
    for (const uint32_t bad : {0u, 1u, 2u}) {
      Shard shard = Make(3);
      ASSERT_TRUE(Put(shard, 0, 1, kSmall));
      ASSERT_TRUE(Put(shard, 1, 1, kSmall));
      ASSERT_TRUE(Put(shard, 2, 1, kSmall));
      ASSERT_TRUE(shard.Update(0, 2, released_, due_));
      EXPECT_EQ(shard.FlaggedBy(0), std::nullopt);
      const std::vector<float> before(shard.Params(0).begin(), shard.Params(0).end());
      for (uint32_t w : {2u, 0u, 1u}) {
        const bool flag = w == bad && as_flag;
        const std::span<const float> values = flag ? std::span<const float>() : w == bad ? nan : kSmall;
        const auto outcome = Put(shard, w, 2, values,
                                 flag ? MessageKind::kNonFinite : MessageKind::kData);
        ASSERT_TRUE(outcome) << outcome.error().message;
        EXPECT_EQ(*outcome, w == 1 ? Shard::Outcome::kComplete : Shard::Outcome::kWaiting);
      }
      due_.clear();
      ASSERT_TRUE(shard.Update(0, 1, released_, due_));
      EXPECT_EQ(due_.size(), 3u) << "every worker gets its reply";
      EXPECT_EQ(shard.FlaggedBy(0), bad);
      EXPECT_EQ(before, std::vector<float>(shard.Params(0).begin(), shard.Params(0).end()));
      EXPECT_EQ(shard.updates(), 1u);
      EXPECT_EQ(shard.nonfinite_segments(), 1u);
      const auto warning = shard.TakeWarning();
      ASSERT_TRUE(warning);
      EXPECT_EQ(ToString(*warning), "the gradient of fc.weight at worker " + std::to_string(bad) +
                                        " has a value that is not finite at step 2");
      // And the next step is as any other.
      for (uint32_t w : {0u, 1u, 2u}) ASSERT_TRUE(Put(shard, w, 3, kSmall));
      ASSERT_TRUE(shard.Update(0, 2, released_, due_));
      EXPECT_EQ(shard.FlaggedBy(0), std::nullopt);
      EXPECT_EQ(shard.TakeWarning(), std::nullopt);
      EXPECT_EQ(shard.Params(0)[0], before[0] - 1.0f);
    }
  }
}

TEST_F(ShardTest, GivenSeveralThatAreNotFiniteTheLowestIsNamed) {
  Shard shard = Make(3);
  ASSERT_TRUE(Put(shard, 2, 1, {}, MessageKind::kNonFinite));
  const std::vector<float> nan(kElems, NAN);
  ASSERT_TRUE(Put(shard, 1, 1, nan));
  ASSERT_TRUE(Put(shard, 0, 1, kSmall));
  ASSERT_TRUE(shard.Update(0, 0, released_, due_));
  EXPECT_EQ(shard.FlaggedBy(0), 1u);
  EXPECT_EQ(shard.nonfinite_segments(), 1u);
}

TEST_F(ShardTest, GivenAPushBehindAFlagItIsCheckedAllTheSame) {
  Shard shard = Make(2);
  ASSERT_TRUE(Put(shard, 0, 1, {}, MessageKind::kNonFinite));
  ExpectComplaint(Put(shard, 1, 1, std::vector<float>(99, 0.0f)), "worker 1");
}

TEST_F(ShardTest, GivenTheLimitOfStepsInARowTheJobEndsNamingWorkerTensorAndStep) {
  job_.nonfinite_limit = 3;
  Shard shard = Make(2);
  uint8_t step = 0;
  auto run = [&](bool finite) {
    ++step;
    EXPECT_TRUE(Put(shard, 0, step, kSmall));
    const std::span<const float> values = finite ? std::span(kSmall) : std::span<const float>();
    EXPECT_TRUE(Put(shard, 1, step, values, finite ? MessageKind::kData : MessageKind::kNonFinite));
    return shard.Update(0, 1, released_, due_);
  };
  for (const bool finite : {false, false, true, false, false}) ASSERT_TRUE(run(finite)) << "never 3 in a row";
  const Result<void> ended = run(false);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kMalformed);
  for (const char* part : {"worker 1", "fc.weight", "step 6", "3 such steps", "--lr"}) {
    EXPECT_NE(ended.error().message.find(part), std::string::npos) << part << ": " << ended.error().message;
  }
}

TEST_F(ShardTest, GivenAsyncAContributionThatIsNotFiniteIsLeftOutAndAnswered) {
  job_.sync = {SyncKind::kAsync, 0};
  job_.nonfinite_limit = 2;
  Shard shard = Make(2);
  ASSERT_TRUE(Put(shard, 0, 1, kSmall));
  ASSERT_TRUE(shard.Update(0, 0, released_, due_));
  const float before = shard.Params(0)[0];
  due_.clear();
  const std::vector<float> nan(kElems, NAN);
  ASSERT_TRUE(Put(shard, 0, 2, nan));
  ASSERT_TRUE(shard.Update(0, 0, released_, due_));
  ASSERT_EQ(due_.size(), 1u);
  EXPECT_EQ(shard.FlaggedBy(0), std::nullopt) << "its reply is as usual";
  EXPECT_EQ(shard.Params(0)[0], before);
  ASSERT_TRUE(Put(shard, 1, 1, {}, MessageKind::kNonFinite));
  ASSERT_TRUE(shard.Update(0, 1, released_, due_)) << "each worker's steps in a row count alone";
  EXPECT_EQ(shard.nonfinite_segments(), 2u);
  ASSERT_TRUE(Put(shard, 0, 3, {}, MessageKind::kNonFinite));
  EXPECT_FALSE(shard.Update(0, 0, released_, due_));
}

TEST_F(ShardTest, GivenCodedPushesThatDoNotDecodeTheyAreRefused) {
  job_.codec = Codec::kFec;
  Shard shard = Make(1);
  ExpectComplaint(shard.OnPush({0, {0, 1, MessageKind::kData}, {}, 0}, released_), "do not decode");
  job_.codec = Codec::kTwoBit;
  Shard other = Make(1);
  ExpectComplaint(Put(other, 0, 1, kSmall), "do not decode");
}

TEST_F(ShardTest, GivenCodecAutoRawAndCodedPushesAreAddedInRankOrder) {
  job_.codec = Codec::kAuto;
  Shard shard = Make(2);
  std::vector<std::byte> coded(fec::Bound(kElems));
  coded.resize(fec::Encode(kSmall, {}, {}, coded).bytes);
  ASSERT_TRUE(Put(shard, 1, 1, kSmall, MessageKind::kRaw));
  ASSERT_EQ(*shard.OnPush({0, {0, 1, MessageKind::kData}, coded, 0}, released_), Shard::Outcome::kComplete);
  ASSERT_TRUE(shard.Update(0, 0, released_, due_));
  EXPECT_EQ(shard.Params(0)[0], -1.0f) << "the mean of twice 1, at a learning rate of 1";
  ExpectComplaint(Put(shard, 0, 2, std::vector<float>(kElems - 1), MessageKind::kRaw), "396 bytes where 400 are due");
}

TEST_F(ShardTest, GivenARawPushWithAnotherCodecItIsRefused) {
  for (const Codec codec : {Codec::kNone, Codec::kFec, Codec::kTwoBit}) {
    job_.codec = codec;
    Shard shard = Make(1);
    ExpectComplaint(Put(shard, 0, 1, kSmall, MessageKind::kRaw), "a gradient that is not coded");
  }
}

TEST_F(ShardTest, GivenSspAReplyWaitsForTheSlowestWithinItsStaleness) {
  job_.sync = {SyncKind::kSsp, 1};
  Shard shard = Make(2);
  auto push = [&](uint32_t worker, uint8_t step) {
    due_.clear();
    EXPECT_EQ(*Put(shard, worker, step, kSmall), Shard::Outcome::kComplete);
    EXPECT_TRUE(shard.Update(0, worker, released_, due_));
    std::vector<uint32_t> workers;
    for (const auto& reply : due_) workers.push_back(reply.worker);
    return workers;
  };
  EXPECT_EQ(push(0, 1), (std::vector<uint32_t>{0}));     // 1 ahead of worker 1: allowed
  EXPECT_EQ(push(0, 2), (std::vector<uint32_t>{}));      // 2 ahead: waits
  EXPECT_EQ(push(1, 1), (std::vector<uint32_t>{0, 1}));  // both may go on
  EXPECT_EQ(push(1, 2), (std::vector<uint32_t>{1}));
}

TEST_F(ShardTest, GivenFecRepliesWhatTheWorkersHoldFollowsTheParameters) {
  job_.reply = ReplyCodec::kFec;
  job_.fec_reply_threshold = -3;
  Shard shard = Make(1);
  std::vector<float> held(kElems, 0.0f);
  std::vector<std::byte> bytes(layout_.segments()[0].slot_bytes);
  const std::vector<float> grad(kElems, 0.05f);  // below the threshold for two steps, then the sum is sent
  for (int step = 1; step <= 50; ++step) {
    ASSERT_TRUE(Put(shard, 0, uint8_t(step), grad));
    ASSERT_TRUE(shard.Update(0, 0, released_, due_));
    const auto encoded = shard.EncodeReply(0, 0, bytes);
    ASSERT_TRUE(encoded);
    ASSERT_EQ(fec::DecodeAdd(std::span(bytes).first(*encoded), held), fec::DecodeStatus::kOk);
    EXPECT_LE(std::fabs(held[0] - shard.Params(0)[0]), 0.125f) << step;
  }
  EXPECT_NEAR(held[0], -2.5f, 0.125f);
  EXPECT_LT(shard.reply_survivors(), shard.reply_elems() / 2);
}

}  // namespace
}  // namespace gradlane
