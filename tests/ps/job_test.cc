#include "ps/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

namespace gradlane {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

Job SmallJob() {
  Job job;
  job.tensors = {{"conv1.weight", 500, 0, true}, {"conv1.bias", 20, 0, false}, {"fc/2.weight", 4096 * 3 + 1, 1, true}};
  return job;
}

// The job's JSON with a change, as a hostile peer would send it.
Result<Job> ParseChanged(const std::function<void(Json&)>& change) {
  Json json = Json::parse(SmallJob().ToJson());
  change(json);
  return Job::Parse(json.dump());
}

void ExpectRefused(const std::function<void(Json&)>& change, const char* sentence) {
  const Result<Job> job = ParseChanged(change);
  ASSERT_FALSE(job.has_value()) << sentence;
  EXPECT_EQ(job.error().code, ErrorCode::kMalformed);
  EXPECT_THAT(job.error().message, HasSubstr(sentence));
}

TEST(Job, GivenEveryFieldSet_ExpectParseGivesItBack) {
  Job job = SmallJob();
  job.segment_bytes = 48 << 10;
  job.window_bytes = 1 << 20;
  job.codec = Codec::kTwoBit;
  job.fec_auto = true;
  job.fec_threshold = -20;
  job.fec_density = 0.013;
  job.fec_runs_layout = true;
  job.fec_rounding = fec::Rounding::kStochastic;
  job.seed = UINT64_MAX;
  job.error_feedback = false;
  job.two_bit_threshold = 0.3f;
  job.reply = ReplyCodec::kRaw;
  job.fec_reply_threshold = 4;
  job.schedule = Schedule::kPriority;
  job.sync = {SyncKind::kSsp, 3};
  job.optimizer = OptimizerKind::kAdam;
  job.lr = {0.1f, LrSchedule::kStep, 1000, 10, 300, 0.2f};
  job.momentum = 0.7f;
  job.weight_decay = 5e-4f;
  job.nonfinite_limit = 7;

  const Result<Job> parsed = Job::Parse(job.ToJson());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->ToJson(), job.ToJson());
  ASSERT_EQ(parsed->tensors.size(), 3u);
  EXPECT_EQ(parsed->tensors[2].name, "fc/2.weight");
  EXPECT_EQ(parsed->tensors[2].num_elems, 12289u);
  EXPECT_EQ(parsed->tensors[2].layer, 1u);
  EXPECT_FALSE(parsed->tensors[1].decay);
  EXPECT_EQ(parsed->sync, job.sync);
  EXPECT_EQ(parsed->lr.schedule, LrSchedule::kStep);
  EXPECT_EQ(parsed->lr.step_every, 300);
  EXPECT_EQ(parsed->optimizer, OptimizerKind::kAdam);
  EXPECT_EQ(parsed->fec_reply_threshold, 4);
  EXPECT_FALSE(parsed->error_feedback);
}

TEST(Job, GivenAwkwardFloats_ExpectTheSameBitsBack) {
  for (float value : {0.1f, 1.0f / 3, 0x1.fffffep-1f, 1e-7f, std::numeric_limits<float>::denorm_min(),
                      std::nextafter(0.9f, 1.0f), 0.0f, 1.0f}) {
    Job job = SmallJob();
    job.momentum = value;
    job.weight_decay = value;
    job.lr.base = value;
    job.fec_density = 0.1 + double(value) / 3;
    const Result<Job> parsed = Job::Parse(job.ToJson());
    ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
    EXPECT_EQ(std::bit_cast<uint32_t>(parsed->momentum), std::bit_cast<uint32_t>(value));
    EXPECT_EQ(std::bit_cast<uint32_t>(parsed->weight_decay), std::bit_cast<uint32_t>(value));
    EXPECT_EQ(std::bit_cast<uint32_t>(parsed->lr.base), std::bit_cast<uint32_t>(value));
    EXPECT_EQ(std::bit_cast<uint64_t>(parsed->fec_density), std::bit_cast<uint64_t>(job.fec_density));
  }
}

TEST(Job, GivenTextThatIsNotAJob_ExpectASentence) {
  for (const std::string& text :
       std::vector<std::string>{"", "{", "null", "[]", "3", "\"job\"", "{}", "{\"tensors\":", "\xff\xfe",
                                std::string("\0", 1), "{} {}", "NaN", std::string(100'000, '['),
                                "{\"tensors\":" + std::string(50'000, '[') + std::string(50'000, ']') + "}"}) {
    const Result<Job> job = Job::Parse(text);
    ASSERT_FALSE(job.has_value()) << text.substr(0, 40);
    EXPECT_EQ(job.error().code, ErrorCode::kMalformed);
    EXPECT_LT(job.error().message.size(), 300u);
  }
  EXPECT_FALSE(Job::Parse(std::string((4 << 20) + 1, ' ')).has_value());
}

TEST(Job, GivenDeepNesting_ExpectItRefusedBeforeItIsParsed) {
  ExpectRefused([](Json& j) { j["extra"] = Json::parse("[[[1]]]"); }, "nested too deeply");
  ExpectRefused([](Json& j) { j["extra"] = Json::parse("[[1]]"); }, "does not know");
  ExpectRefused([](Json& j) { j["codec"] = "[[[[\"[[[["; }, "'[[[[\"[[[['");  // in a string brackets are letters
}

TEST(Job, GivenTheMostTensors_ExpectTheyAreRead) {
  Job job;
  for (uint32_t i = 0; i < 50'000; ++i) job.tensors.push_back({"t" + std::to_string(i), 10, i, true});
  const Result<Job> parsed = Job::Parse(job.ToJson());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->tensors.size(), 50'000u);
}

TEST(Job, GivenEveryPrefixOfAJob_ExpectAnError) {
  const std::string text = SmallJob().ToJson();
  for (size_t length = 0; length < text.size(); ++length) EXPECT_FALSE(Job::Parse(text.substr(0, length)).has_value());
}

TEST(Job, GivenAnyFieldOfTheWrongTypeOrMissing_ExpectItsName) {
  const Json whole = Json::parse(SmallJob().ToJson());
  const std::vector<Json> wrong = {nullptr, Json::array(), Json::object(), "text", -1e300};
  for (const auto& [key, value] : whole.items()) {
    ExpectRefused([&key = key](Json& json) { json.erase(key); }, key.c_str());
    for (const Json& replacement : wrong) {
      if (key == "tensors" && replacement.is_array()) continue;  // tested as having no tensors
      ExpectRefused([&, &key = key](Json& json) { json[key] = replacement; }, key.c_str());
    }
  }
}

TEST(Job, GivenAValueOutOfBounds_ExpectTheBounds) {
  ExpectRefused([](Json& j) { j["extra"] = 1; }, "does not know");
  ExpectRefused([](Json& j) { j["segment_bytes"] = 16383; }, "16384 to 16777216");
  ExpectRefused([](Json& j) { j["segment_bytes"] = 20000; }, "multiple of 16384");
  ExpectRefused([](Json& j) { j["segment_bytes"] = 32 << 20; }, "16384 to 16777216");
  ExpectRefused([](Json& j) { j["segment_bytes"] = -16384; }, "16384 to 16777216");
  ExpectRefused([](Json& j) { j["segment_bytes"] = 65536.0; }, "not an integer");
  ExpectRefused([](Json& j) { j["window_bytes"] = 32 << 10; }, "smaller than one segment");
  ExpectRefused([](Json& j) { j["window_bytes"] = UINT64_MAX; }, "window_bytes");
  ExpectRefused([](Json& j) { j["codec"] = "zip"; }, "'zip'");
  ExpectRefused([](Json& j) { j["codec"] = "a\nb" + std::string(1000, 'c'); }, "'a?bccc");
  ExpectRefused([](Json& j) { j["fec_threshold"] = -127; }, "fec_threshold");
  ExpectRefused([](Json& j) { j["fec_threshold"] = 4294967289u; }, "fec_threshold");
  ExpectRefused([](Json& j) { j["fec_threshold"] = UINT64_MAX - 6; }, "fec_threshold");
  ExpectRefused([](Json& j) { j["fec_reply_threshold"] = 127; }, "fec_reply_threshold");
  ExpectRefused([](Json& j) { j["fec_density"] = 0; }, "fec_density");
  ExpectRefused([](Json& j) { j["fec_density"] = 1.5; }, "fec_density");
  ExpectRefused([](Json& j) { j["two_bit_threshold"] = 0; }, "two_bit_threshold");
  ExpectRefused([](Json& j) { j["two_bit_threshold"] = -1; }, "two_bit_threshold");
  ExpectRefused([](Json& j) { j["sync"] = "ssp:1025"; }, "sync");
  ExpectRefused([](Json& j) { j["sync"] = "async", j["schedule"] = "serial"; }, "needs sync bsp");
  ExpectRefused([](Json& j) { j["lr"] = -0.1; }, "'lr'");
  ExpectRefused([](Json& j) { j["lr"] = 1e39; }, "'lr'");
  ExpectRefused([](Json& j) { j["lr_total_steps"] = 0; }, "lr_total_steps");
  ExpectRefused([](Json& j) { j["lr_warmup_steps"] = INT64_MIN; }, "lr_warmup_steps");
  ExpectRefused([](Json& j) { j["momentum"] = 1.1; }, "momentum");
  ExpectRefused([](Json& j) { j["weight_decay"] = -1; }, "weight_decay");
  ExpectRefused([](Json& j) { j["nonfinite_limit"] = 0; }, "nonfinite_limit");
  ExpectRefused([](Json& j) { j["nonfinite_limit"] = 1'000'000'001; }, "nonfinite_limit");
  ExpectRefused([](Json& j) { j.erase("nonfinite_limit"); }, "lacks the field 'nonfinite_limit'");
}

TEST(Job, GivenBadTensors_ExpectASentence) {
  const Json tensor = {{"name", "w"}, {"elems", 5}, {"layer", 0}, {"decay", true}};
  ExpectRefused([](Json& j) { j["tensors"] = Json::array(); }, "0 tensors");
  ExpectRefused([&](Json& j) { j["tensors"] = Json(65537, tensor); }, "65537 tensors");
  ExpectRefused([](Json& j) { j["tensors"][1] = 5; }, "tensor 1 is not a JSON object");
  ExpectRefused([](Json& j) { j["tensors"][0]["layer"] = 1; }, "tensor 0 has a field 'layer'");
  ExpectRefused([](Json& j) { j["tensors"][2]["layer"] = 2; }, "tensor 2 has a field 'layer'");
  ExpectRefused([](Json& j) { j["tensors"][1]["layer"] = 1, j["tensors"][2]["layer"] = 0; },
                "tensor 2 has a field 'layer'");
  ExpectRefused([](Json& j) { j["tensors"][0]["elems"] = 0; }, "'elems'");
  ExpectRefused([](Json& j) { j["tensors"][0]["elems"] = (uint64_t{1} << 33) + 1; }, "'elems'");
  ExpectRefused([](Json& j) { j["tensors"][0]["elems"] = 1e3; }, "'elems'");
  ExpectRefused([](Json& j) { j["tensors"][0]["name"] = ""; }, "name of tensor 0");
  ExpectRefused([](Json& j) { j["tensors"][0]["name"] = std::string(256, 'a'); }, "name of tensor 0");
  ExpectRefused([](Json& j) { j["tensors"][0]["name"] = "a\x1b[2J"; }, "name of tensor 0");
  ExpectRefused([](Json& j) { j["tensors"][0]["decay"] = 1; }, "'decay'");
  ExpectRefused([](Json& j) { j["tensors"][0]["more"] = 1; }, "does not know");
  ExpectRefused([](Json& j) { j["tensors"][0].erase("elems"); }, "lacks the field 'elems'");
  ExpectRefused(
      [&](Json& j) {
        for (int i = 0; i < 3; ++i) j["tensors"][i]["elems"] = uint64_t{1} << 33;
      },
      "parameters");
  ExpectRefused([&](Json& j) { j["tensors"][0]["elems"] = uint64_t{1} << 33, j["segment_bytes"] = 16384; }, "segments");
}

LearningRate Rate(LrSchedule schedule) { return {0.5f, schedule, 100, 0, 0, 0.1f}; }

TEST(LearningRate, GivenConstant_ExpectItEverywhere) {
  for (int64_t step : {0, 1, 50, 1'000'000}) EXPECT_EQ(Rate(LrSchedule::kConstant).At(step), 0.5f);
}

TEST(LearningRate, GivenCosine_ExpectTheTextbookCurve) {
  const LearningRate rate = Rate(LrSchedule::kCosine);
  EXPECT_EQ(rate.At(0), 0.5f);
  for (int64_t step = 0; step <= 100; ++step) {
    const double expected = 0.25 * (1 + std::cos(3.14159265358979323846 * double(step) / 100));
    EXPECT_NEAR(rate.At(step), expected, 4e-8) << step;
  }
  EXPECT_FLOAT_EQ(rate.At(50), 0.25f);
  EXPECT_NEAR(rate.At(100), 0, 1e-20);
  EXPECT_EQ(rate.At(1000), rate.At(100)) << "beyond the end it stays";
}

TEST(LearningRate, GivenSteps_ExpectGammaAtEach) {
  LearningRate rate = Rate(LrSchedule::kStep);
  EXPECT_EQ(rate.At(99), 0.5f) << "step_every 0: never";
  rate.step_every = 30;
  EXPECT_EQ(rate.At(29), 0.5f);
  EXPECT_FLOAT_EQ(rate.At(30), 0.05f);
  EXPECT_FLOAT_EQ(rate.At(90), 0.0005f);
  EXPECT_EQ(rate.At(int64_t{1} << 40), 0.0f) << "ends, and soon";
}

TEST(LearningRate, GivenWarmUp_ExpectALinearRiseThenTheSchedule) {
  LearningRate rate = Rate(LrSchedule::kCosine);
  rate.warmup_steps = 10;
  EXPECT_FLOAT_EQ(rate.At(0), 0.05f);
  EXPECT_FLOAT_EQ(rate.At(4), 0.25f);
  EXPECT_EQ(rate.At(9), 0.5f);
  EXPECT_EQ(rate.At(10), 0.5f);
  EXPECT_FLOAT_EQ(rate.At(55), 0.25f) << "half way through what is left";
  rate.warmup_steps = 1000;
  EXPECT_GT(rate.At(999), rate.At(998)) << "a warm-up longer than the job";
}

TEST(Names, GivenEveryName_ExpectItBothWays) {
  for (const char* name : {"none", "fec", "2bit"}) EXPECT_STREQ(ToString(ParseCodec(name).value()), name);
  for (const char* name : {"raw", "fec"}) EXPECT_STREQ(ToString(ParseReplyCodec(name).value()), name);
  for (const char* name : {"sgd", "adam"}) EXPECT_STREQ(ToString(ParseOptimizer(name).value()), name);
  for (const char* name : {"serial", "fifo", "priority", "preemptive"})
    EXPECT_STREQ(ToString(ParseSchedule(name).value()), name);
  for (const char* name : {"constant", "step", "cosine"}) EXPECT_STREQ(ToString(ParseLrSchedule(name).value()), name);
  for (const char* name : {"bsp", "async", "ssp:0", "ssp:7", "ssp:1024"})
    EXPECT_EQ(ToString(ParseSync(name).value()), name);
}

TEST(Names, GivenAnUnknownName_ExpectTheListOfWhatThereIs) {
  const auto codec = ParseCodec("FEC");
  ASSERT_FALSE(codec.has_value());
  EXPECT_EQ(codec.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(codec.error().message, "'FEC' is not a codec: say none, fec, 2bit or auto.");
  EXPECT_EQ(ParseSchedule("").error().message, "'' is not a schedule: say serial, fifo, priority or preemptive.");
  for (const char* name : {"ssp", "ssp:", "ssp:-1", "ssp:1x", "ssp: 1", "ssp:1025", "ssp:99999999999", "BSP", ""}) {
    const auto sync = ParseSync(name);
    ASSERT_FALSE(sync.has_value()) << name;
    EXPECT_THAT(sync.error().message, HasSubstr("say bsp, async or ssp:K"));
  }
}

}  // namespace
}  // namespace gradlane
