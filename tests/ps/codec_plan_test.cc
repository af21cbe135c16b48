// --codec auto: what it decides, that a plan repeats it bit for bit, and what no plan may say.
#include "ps/codec_plan.h"

#include <gmock/gmock.h>

#include "cluster.h"

namespace gradlane {
namespace {

using namespace testing_support;
using testing::HasSubstr;

TEST(CodecCost, GivenATinyTensorOnAFastLinkRawIsFasterAndALargeOneOnASlowLinkIsCoded) {
  // A call costs some 200 ns whatever its length: 10 ns an element of 20.
  const CodecCost tiny{10, 5, 1, 3};
  EXPECT_TRUE(tiny.RawIsFaster(20, 100'000));
  const CodecCost large{1, 0.2, 0.3, 100};
  EXPECT_FALSE(large.RawIsFaster(10'000'000, 1'000));
  EXPECT_FALSE(large.RawIsFaster(10'000'000, 10'000));
  EXPECT_TRUE(large.RawIsFaster(10'000'000, 100'000)) << "0.32 ns an element on the link, and 1.2 to code it";
}

TEST(CodecCost, GivenNumbersTheSumsAreThoseOfTheHeader) {
  const CodecCost cost{2, 1, 0.5, 4};
  EXPECT_DOUBLE_EQ(cost.CodedNs(1000, 8), 1000 * 3 + 1000 * 1000.0);  // 1000 bytes at one a microsecond
  EXPECT_DOUBLE_EQ(cost.RawNs(1000, 8), 1000 * 0.5 + 4000 * 1000.0);
  EXPECT_FALSE(CodecCost{}.RawIsFaster(1, kMaxLinkMbps)) << "nothing was measured";
}

TEST(CodecMeter, GivenSeveralStepsTheBestCountsAndAnIncompleteOneDoesNot) {
  CodecMeter meter;
  EXPECT_FALSE(meter.Cost().measured());
  meter.Add({100, 40, 300, 100, 50});
  meter.Add({100, 60, 500, 100, 50});
  meter.EndStep(true);
  meter.Add({200, 300, 400, 600, 200});
  meter.EndStep(true);
  meter.Add({200, 1, 1, 1, 1});
  meter.EndStep(false);
  EXPECT_EQ(meter.Cost(), (CodecCost{2, 1, 0.5, 4}));
}

std::vector<JobTensor> Tensors() { return {{"a.weight", 700, 0, true}, {"a.bias", 20, 0, false}}; }

CodecPlan SmallPlan() {
  CodecPlan plan;
  plan.link_mbps = 25'000;
  plan.decide_steps = 20;
  plan.num_workers = 2;
  plan.tensors = {{"a.weight", 700, {{0, {0.1, 0.25, 1.0 / 3, 117.5}}, {21, {}}}}, {"a.bias", 20, {{21, {}}, {0, {}}}}};
  return plan;
}

TEST(CodecPlan, GivenAPlanItSurvivesItsText) {
  const auto plan = CodecPlan::Parse(SmallPlan().ToJson(), Tensors(), 2);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(*plan, SmallPlan());
  const auto decisions = DecisionsFromText(ToText(SmallPlan().OfWorker(1)), 2);
  ASSERT_TRUE(decisions);
  EXPECT_EQ(*decisions, SmallPlan().OfWorker(1));
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CodecPlan, GivenAnythingElseItIsRefusedWithASentence) {
  const std::string good = SmallPlan().ToJson();
  const auto expect = [](const std::string& text, const std::string& part, std::vector<JobTensor> tensors = Tensors(),
                         uint32_t workers = 2) {
    const auto plan = CodecPlan::Parse(text, tensors, workers);
    ASSERT_FALSE(plan) << text;
    EXPECT_EQ(ExitCode(plan.error()), 2);
    EXPECT_THAT(plan.error().message, HasSubstr(part));
    EXPECT_THAT(plan.error().message, testing::StartsWith("The codec plan "));
    EXPECT_THAT(plan.error().message, testing::EndsWith("."));
  };
  expect("", "is not JSON");
  expect("[]", "is not a JSON object");
  expect("{}", "lacks the field 'format'");
  expect(std::string(100'000, '['), "nested too deeply");
  expect(Replaced(good, "gradlane codec plan", "shopping list"), "is something else");
  expect(Replaced(good, "\"version\": 1", "\"version\": 2"), "is of version 2, and this program reads version 1");
  expect(Replaced(good, "\"link_mbps\": 25000", "\"link_mbps\": 0"), "'link_mbps'");
  expect(Replaced(good, "\"decide_steps\"", "\"decide_step\""), "lacks the field 'decide_steps'");
  expect(Replaced(good, "\"decide_steps\"", "\"more\": 1, \"decide_steps\""), "does not know");
  expect(Replaced(good, "\"a.bias\"", "\"b.bias\""), "of another model: its tensor 1 is 'b.bias' of 20 elements");
  expect(Replaced(good, "\"elems\": 700", "\"elems\": 701"), "of another model: its tensor 0");
  expect(Replaced(good, "\"raw\"", "\"zip\""), "sends neither raw");
  expect(Replaced(good, "\"from_step\": 21", "\"from_step\": 0"), "'from_step'");
  expect(Replaced(good, "\"from_step\": 1,", "\"from_step\": 2,"), "sends neither raw");
  expect(Replaced(good, "\"ratio\": 117.5", "\"ratio\": 1e300"), "'ratio'");
  expect(Replaced(good, "\"ratio\": 117.5", "\"ratio\": \"117\""), "'ratio'");
  expect(good, "it has 2 tensors where this model has 1", {{"a.weight", 700, 0, true}});
  expect(good, "of a job of 2 workers, and this job has 3", Tensors(), 3);
  for (size_t length = 0; length + 2 < good.size(); ++length) {
    EXPECT_FALSE(CodecPlan::Parse(good.substr(0, length), Tensors(), 2)) << length;
  }
  for (const char* text : {"", "{}", "[]", "[[1,2,3,4]]", "[[0,0,0,0,0],[-1,0,0,0,0]]", "[[0,0,0,0,0],[1,0,0,0,\"x\"]]",
                           "[[0,0,0,0,0],[1e99,0,0,0,0]]", "[[[[]]]]"}) {
    EXPECT_FALSE(DecisionsFromText(text, 2)) << text;
  }
}

Job AutoJob() {
  Job job = SmallJob();
  job.codec = Codec::kAuto;
  job.reply = ReplyCodec::kFec;
  return job;
}

// raw_from[worker][tensor]
CodecPlan PlanOf(const Job& job, const std::vector<std::vector<uint64_t>>& raw_from) {
  CodecPlan plan;
  plan.decide_steps = 20;
  plan.num_workers = uint32_t(raw_from.size());
  for (size_t t = 0; t < job.tensors.size(); ++t) {
    plan.tensors.push_back({job.tensors[t].name, job.tensors[t].num_elems, {}});
    for (const auto& of_worker : raw_from) plan.tensors.back().of_worker.push_back({of_worker[t], {}});
  }
  return plan;
}

TEST(CodecAuto, GivenARunsOwnDecisionsAsAPlanTheParametersAreTheSameBits) {
  Job job = AutoJob();
  job.fec_auto = true;
  CodecAuto decide;
  decide.decide_steps = 4;
  for (const uint32_t mbps : {1u, 10'000u, kMaxLinkMbps}) {
    decide.link_mbps = mbps;
    const ClusterResult first = RunCluster(job, {3, 2}, 12, {.codec_auto = decide});
    ASSERT_TRUE(first.errors.empty()) << first.errors[0].message;
    CodecPlan plan = PlanOf(job, {3, std::vector<uint64_t>(job.tensors.size())});
    size_t num_raw = 0;
    for (uint32_t w = 0; w < 3; ++w) {
      for (uint32_t t = 0; t < job.tensors.size(); ++t) {
        const CodecDecision& decision = first.decisions[w][t];
        EXPECT_TRUE(decision.cost.measured());
        EXPECT_TRUE(decision.raw_from_step == 0 || decision.raw_from_step == 5);
        num_raw += decision.raw_from_step != 0;
        if (mbps == 1 && job.tensors[t].num_elems >= 9000) {
          EXPECT_EQ(decision.raw_from_step, 0u);
        }
        plan.tensors[t].of_worker[w] = decision;
      }
    }
    if (mbps == kMaxLinkMbps) {
      EXPECT_GT(num_raw, 0u) << "bytes cost nothing: whatever takes time does not pay";
    }
    const auto parsed = CodecPlan::Parse(plan.ToJson(), job.tensors, 3);
    ASSERT_TRUE(parsed) << parsed.error().message;
    for (const Schedule schedule : {Schedule::kSerial, Schedule::kPreemptive}) {
      job.schedule = schedule;
      const ClusterResult again = RunCluster(job, {3, 1}, 12, {.codec_auto = {.plan = &*parsed}});
      ASSERT_TRUE(again.errors.empty()) << again.errors[0].message;
      EXPECT_EQ(again.params[0], first.params[0]) << mbps << " Mbit/s, " << ToString(schedule);
    }
  }
}

TEST(CodecAuto, GivenAPlanThatSendsAllRawFromTheFirstStepItIsCodecNone) {
  Job none = AutoJob();
  none.codec = Codec::kNone;
  const Job job = AutoJob();
  const CodecPlan plan = PlanOf(job, {2, std::vector<uint64_t>(job.tensors.size(), 1)});
  const ClusterResult expected = RunCluster(none, {2, 2}, 8);
  const ClusterResult run = RunCluster(job, {2, 2}, 8, {.codec_auto = {.plan = &plan}});
  ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
  EXPECT_EQ(run.params[1], expected.params[1]);
  EXPECT_EQ(run.stats[0].push_auto_raw_bytes, run.stats[0].push_raw_bytes);
}

TEST(CodecAuto, GivenAPlanThatSendsNothingRawItIsCodecFec) {
  Job fec = AutoJob();
  fec.codec = Codec::kFec;
  const Job job = AutoJob();
  const CodecPlan plan = PlanOf(job, {2, std::vector<uint64_t>(job.tensors.size(), 0)});
  const ClusterResult run = RunCluster(job, {2, 2}, 8, {.codec_auto = {.plan = &plan}});
  ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
  EXPECT_EQ(run.params[1], RunCluster(fec, {2, 2}, 8).params[1]);
  EXPECT_EQ(run.stats[0].push_auto_raw_bytes, 0u);
}

// Plain SGD with gradients that do not depend on the parameters, raw from step 4 at worker 1 and from step 6 at worker
// 0 / expect the parameters to have moved by all gradients: what coding had left behind was sent with the first raw
// ones.
TEST(CodecAuto, GivenErrorFeedbackATensorThatTurnsRawLosesNothing) {
  Job job = AutoJob();
  job.tensors = {{"w", 9000, 0, false}};
  job.reply = ReplyCodec::kRaw;
  job.momentum = 0;
  job.weight_decay = 0;
  job.lr = {0.5f, LrSchedule::kConstant, 100};
  const CodecPlan plan = PlanOf(job, {{6}, {4}});
  const auto gradient = [](uint32_t worker, int step, size_t i) {
    return float(int(i * 7 + worker * 3 + size_t(step)) % 61 - 30) / 1000;
  };
  const GradHook hook = [&](uint32_t worker, int step, uint32_t, std::span<float> grad) {
    for (size_t i = 0; i < grad.size(); ++i) grad[i] = gradient(worker, step, i);
  };
  const ClusterResult run = RunCluster(job, {2, 1}, 8, {.hook = hook, .codec_auto = {.plan = &plan}});
  ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
  for (size_t i = 0; i < 9000; ++i) {
    double expected = std::sin(float(i) * 0.1f);
    for (int step = 0; step < 8; ++step)
      expected -= 0.25 * (double(gradient(0, step, i)) + double(gradient(1, step, i)));
    ASSERT_NEAR(run.params[0][i], expected, 1e-5) << i;
  }
}

// A NaN at worker 1 in the very step in which its tensor turns raw, and one in a later raw step / expect nothing but
// these two gradients of worker 1 to be lost.
TEST(CodecAuto, GivenANaNAroundTheTurnNothingElseIsLost) {
  Job job = AutoJob();
  job.tensors = {{"w", 3000, 0, false}};
  job.reply = ReplyCodec::kRaw;
  job.momentum = 0;
  job.weight_decay = 0;
  job.lr = {0.5f, LrSchedule::kConstant, 100};
  for (const std::vector<std::vector<uint64_t>>& raw_from :
       {std::vector<std::vector<uint64_t>>{{4}, {4}}, {{4}, {0}}, {{0}, {4}}}) {
    const CodecPlan plan = PlanOf(job, raw_from);
    const auto gradient = [](uint32_t worker, int step, size_t i) {
      return float(int(i * 7 + worker * 3 + size_t(step)) % 61 - 30) / 1000;
    };
    const auto bad = [](uint32_t worker, int step) { return worker == 1 && (step == 3 || step == 6); };
    const GradHook hook = [&](uint32_t worker, int step, uint32_t, std::span<float> grad) {
      for (size_t i = 0; i < grad.size(); ++i) grad[i] = gradient(worker, step, i);
      if (bad(worker, step)) grad[7] = NAN;
    };
    const ClusterResult run = RunCluster(job, {2, 1}, 12, {.hook = hook, .codec_auto = {.plan = &plan}});
    ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
    EXPECT_EQ(run.server_stats[0].nonfinite_segments, 2u);
    for (size_t i = 0; i < 3000; ++i) {
      double expected = std::sin(float(i) * 0.1f);
      for (uint32_t w = 0; w < 2; ++w) {
        for (int step = 0; step < 12; ++step) {
          if (!bad(w, step)) expected -= 0.25 * double(gradient(w, step, i));
        }
      }
      // Of a worker that still codes, what is below the threshold of 2^-6 is yet to come.
      const double left = (raw_from[0][0] == 0 || raw_from[1][0] == 0) ? 0.25 * 0.04 : 1e-5;
      ASSERT_NEAR(run.params[0][i], expected, left) << i;
    }
  }
}

}  // namespace
}  // namespace gradlane
