// What training has made of workers and servers, saved and resumed: see ps/STATE.md.
#include <gmock/gmock.h>
#include <sodium.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cluster.h"
#include "ps/state_file.h"

namespace gradlane {
namespace {

using namespace testing_support;
using testing::HasSubstr;

struct Case {
  const char* name;
  void (*set)(Job& job);
  Membership members = {3, 2};
};

class Resumed : public testing::TestWithParam<Case> {};

// Fresh objects that go on from the states / expect the bits of a cluster that was never interrupted. Steps are sent
// modulo 256, so that a cut after more than 256 differs.
TEST_P(Resumed, GivenACutAnywhereTheParametersAreThoseOfARunWithoutOne) {
  Job job = SmallJob();
  job.tensors = {{"a.weight", 700, 0, true}, {"b.weight", 9000, 1, true}, {"b.bias", 20, 1, false}};
  job.lr.total_steps = 300;
  GetParam().set(job);
  CodecPlan plan;
  CodecAuto codec_auto;
  if (job.codec == Codec::kAuto) {
    plan.num_workers = 3;
    for (const JobTensor& tensor : job.tensors) {
      plan.tensors.push_back({tensor.name, tensor.num_elems, {{5, {}}, {3, {}}, {0, {}}}});
    }
    codec_auto.plan = &plan;
  }
  const Membership members = GetParam().members;
  const int num_steps = 280;
  const ClusterResult whole = RunCluster(job, members, num_steps, {.codec_auto = codec_auto});
  ASSERT_TRUE(whole.errors.empty()) << whole.errors[0].message;
  for (const int cut : {1, 4, 270}) {
    ClusterState state;
    const ClusterResult before = RunCluster(job, members, cut, {.codec_auto = codec_auto, .save_to = &state});
    ASSERT_TRUE(before.errors.empty()) << before.errors[0].message;
    const ClusterResult after =
        RunCluster(job, members, num_steps - cut, {.codec_auto = codec_auto, .first_step = cut, .resume_from = &state});
    ASSERT_TRUE(after.errors.empty()) << after.errors[0].message;
    for (uint32_t w = 0; w < members.num_workers; ++w)
      EXPECT_EQ(after.params[w], whole.params[w]) << cut << ", worker " << w;
  }
}

INSTANTIATE_TEST_SUITE_P(, Resumed,
                         testing::Values(Case{"raw", [](Job&) {}},
                                         Case{"steered_with_feedback_both_ways",
                                              [](Job& job) {
                                                job.codec = Codec::kFec;
                                                job.reply = ReplyCodec::kFec;
                                                job.fec_auto = true;
                                                job.fec_density = 0.05;
                                              }},
                                         Case{"steered_without_feedback",
                                              [](Job& job) {
                                                job.codec = Codec::kFec;
                                                job.fec_auto = true;
                                                job.error_feedback = false;
                                              }},
                                         Case{"two_bit",
                                              [](Job& job) {
                                                job.codec = Codec::kTwoBit;
                                                job.two_bit_threshold = 0.05f;
                                              }},
                                         Case{"adam_stochastic",
                                              [](Job& job) {
                                                job.optimizer = OptimizerKind::kAdam;
                                                job.lr.base = 0.003f;
                                                job.codec = Codec::kFec;
                                                job.reply = ReplyCodec::kFec;
                                                job.fec_rounding = fec::Rounding::kStochastic;
                                              }},
                                         Case{"serial",
                                              [](Job& job) {
                                                job.codec = Codec::kFec;
                                                job.schedule = Schedule::kSerial;
                                              }},
                                         Case{"codec_auto",
                                              [](Job& job) {
                                                job.codec = Codec::kAuto;
                                                job.reply = ReplyCodec::kFec;
                                              }},
                                         Case{"more_servers_than_segments", [](Job&) {}, {2, 7}},
                                         // With more workers the result depends on timing.
                                         Case{"ssp",
                                              [](Job& job) {
                                                job.sync = {SyncKind::kSsp, 1};
                                                job.codec = Codec::kFec;
                                                job.reply = ReplyCodec::kFec;
                                                job.fec_auto = true;
                                              },
                                              {1, 2}},
                                         Case{"async",
                                              [](Job& job) {
                                                job.sync = {SyncKind::kAsync, 0};
                                                job.codec = Codec::kFec;
                                              },
                                              {1, 1}}),
                         [](const auto& info) { return info.param.name; });

TEST(State, GivenStepsInARowThatAreNotFiniteTheyAreCountedAcrossTheCut) {
  Job job = SmallJob();
  job.nonfinite_limit = 4;
  const GradHook spoil = [](uint32_t worker, int step, uint32_t tensor, std::span<float> grad) {
    if (worker == 1 && step >= 2 && tensor == 2) grad[5000] = NAN;
  };
  for (const SyncKind sync : {SyncKind::kBsp, SyncKind::kAsync}) {
    job.sync = {sync, 0};
    ClusterState state;
    const ClusterResult before = RunCluster(job, {2, 2}, 4, {.hook = spoil, .save_to = &state});
    ASSERT_TRUE(before.errors.empty()) << before.errors[0].message;
    const ClusterResult after = RunCluster(job, {2, 2}, 10, {.hook = spoil, .first_step = 4, .resume_from = &state});
    ASSERT_FALSE(after.errors.empty());
    EXPECT_THAT(after.errors[0].message, HasSubstr("worker 1 has a value that is not finite at step 6, the last of 4"));
  }
}

TEST(State, GivenARunningClusterSavingDoesNotDisturbIt) {
  const Job job = SmallJob();
  ClusterState state, later;
  const ClusterResult run = RunCluster(job, {2, 2}, 5, {.save_to = &state});
  ASSERT_TRUE(run.errors.empty()) << run.errors[0].message;
  const ClusterResult none = RunCluster(job, {2, 2}, 0, {.first_step = 5, .resume_from = &state, .save_to = &later});
  ASSERT_TRUE(none.errors.empty()) << none.errors[0].message;
  EXPECT_EQ(later.workers, state.workers) << "a state that was loaded is saved as the same bytes";
  EXPECT_EQ(later.servers, state.servers);
}

// One worker and one server that are not connected, of a small job in which there is something of everything.
struct Ranks {
  explicit Ranks(const Job& job, Membership members = {1, 1}, uint32_t rank = 0)
      : layout(*Layout::Make(job, members)), hub(LoopbackHub::Create(members.Count())) {
    server = *Server::Open({&job, &layout, members, rank, nullptr}, hub->Open(rank));
    worker = *Worker::Open({&job, &layout, members, rank, nullptr}, hub->Open(members.num_servers + rank));
  }
  Layout layout;
  std::unique_ptr<LoopbackHub> hub;
  std::unique_ptr<Server> server;
  std::unique_ptr<Worker> worker;
};

Job TinyJob() {
  Job job = SmallJob();
  job.tensors = {{"w", 5, 0, true}, {"b", 3, 0, false}};
  job.codec = Codec::kAuto;
  job.reply = ReplyCodec::kFec;
  job.fec_auto = true;
  job.fec_density = 0.5;
  job.optimizer = OptimizerKind::kAdam;
  job.lr.base = 0.003f;
  return job;
}

ClusterState TinyState(const Job& job, Membership members = {1, 1}) {
  ClusterState state;
  const ClusterResult run = RunCluster(job, members, 30, {.save_to = &state});
  EXPECT_TRUE(run.errors.empty());
  return state;
}

// Expects a refusal that changes nothing.
template <typename Rank, typename Save>
void ExpectRefused(Rank& rank, Save&& save, std::span<const std::byte> bytes, const std::string& part, ErrorCode code) {
  const std::vector<std::byte> before = *save();
  const Result<void> loaded = rank.LoadState(bytes);
  ASSERT_FALSE(loaded) << part;
  EXPECT_EQ(loaded.error().code, code) << loaded.error().message;
  EXPECT_THAT(loaded.error().message, HasSubstr(part));
  EXPECT_THAT(loaded.error().message, testing::StartsWith("The state of "));
  EXPECT_THAT(loaded.error().message, testing::EndsWith("."));
  EXPECT_EQ(*save(), before) << loaded.error().message;
}

using Expect = std::function<void(std::span<const std::byte> bytes, const std::string& part, ErrorCode code)>;

// test(good state, what it is to expect of bad ones), of a worker and of a server.
void ForBoth(const Job& job, const std::function<void(std::vector<std::byte> good, const Expect& expect)>& test) {
  const ClusterState state = TinyState(job);
  Ranks ranks(job);
  ASSERT_TRUE(ranks.worker->LoadState(state.workers[0]));
  ASSERT_TRUE(ranks.server->LoadState(state.servers[0]));
  test(state.workers[0], [&](auto bytes, auto part, auto code) {
    ExpectRefused(
        *ranks.worker, [&] { return ranks.worker->SaveState(); }, bytes, part, code);
  });
  test(state.servers[0], [&](auto bytes, auto part, auto code) {
    ExpectRefused(
        *ranks.server, [&] { return ranks.server->SaveState(0); }, bytes, part, code);
  });
}

TEST(State, GivenAnyTruncatedLengthItIsRefusedAndNothingChanges) {
  ForBoth(TinyJob(), [](std::vector<std::byte> good, const auto& expect) {
    for (size_t length = 0; length < good.size(); ++length) {
      expect(std::span<const std::byte>(good).first(length), "is truncated", ErrorCode::kMalformed);
    }
    good.push_back(std::byte{0});
    expect(good, "has grown", ErrorCode::kMalformed);
  });
}

TEST(State, GivenAnyByteThatIsNotAsItWasItIsRefusedAndNothingChanges) {
  ForBoth(TinyJob(), [](std::vector<std::byte> good, const auto& expect) {
    for (size_t i = 0; i < good.size(); ++i) {
      std::vector<std::byte> bad = good;
      bad[i] ^= std::byte{0x10};
      expect(bad,
             i < 8               ? "something else"
             : i < 12            ? "version"
             : i >= 64 && i < 72 ? "grown"
                                 : "damaged",
             ErrorCode::kMalformed);
    }
  });
}

// With a hash that fits: what a program with a mistake could have written.
std::vector<std::byte> Sealed(std::vector<std::byte> bytes) {
  const size_t body = bytes.size() - kStateHashBytes;
  const uint64_t body_bytes = body - kStateHeadBytes;
  std::memcpy(bytes.data() + 64, &body_bytes, 8);
  crypto_generichash(reinterpret_cast<unsigned char*>(bytes.data() + body), kStateHashBytes,
                     reinterpret_cast<const unsigned char*>(bytes.data()), body, nullptr, 0);
  return bytes;
}

template <typename T>
std::vector<std::byte> With(std::vector<std::byte> bytes, size_t body_offset, T value) {
  std::memcpy(bytes.data() + kStateHeadBytes + body_offset, &value, sizeof value);
  return Sealed(std::move(bytes));
}

TEST(State, GivenABodyOfAnyOtherLengthUnderAHashThatFitsItIsRefused) {
  ForBoth(TinyJob(), [](const std::vector<std::byte>& good, const auto& expect) {
    const size_t body = good.size() - kStateHashBytes;
    for (size_t length = kStateHeadBytes; length < body; ++length) {
      std::vector<std::byte> bad(good.begin(), good.begin() + long(length));
      bad.resize(length + kStateHashBytes);
      expect(Sealed(bad), "", ErrorCode::kMalformed);
    }
    std::vector<std::byte> longer = good;
    longer.resize(good.size() + 4);
    expect(Sealed(longer), "bytes too many", ErrorCode::kMalformed);
  });
}

TEST(State, GivenValuesThatCannotBeUnderAHashThatFitsTheyAreRefused) {
  const Job job = TinyJob();
  const ClusterState state = TinyState(job);
  const auto& worker = state.workers[0];
  const auto& server = state.servers[0];
  Ranks ranks(job);
  ASSERT_TRUE(ranks.worker->LoadState(worker));
  ASSERT_TRUE(ranks.server->LoadState(server));
  const auto of_worker = [&](const std::vector<std::byte>& bytes, const std::string& part) {
    ExpectRefused(
        *ranks.worker, [&] { return ranks.worker->SaveState(); }, bytes, part, ErrorCode::kMalformed);
  };
  const auto of_server = [&](const std::vector<std::byte>& bytes, const std::string& part) {
    ExpectRefused(
        *ranks.server, [&] { return ranks.server->SaveState(0); }, bytes, part, ErrorCode::kMalformed);
  };
  // As in STATE.md: steps, 8 parameters, 8 residuals, 2 steered thresholds, 2 flags, 2 decisions.
  constexpr size_t kParams = 8, kResidual = kParams + 32, kSteering = kResidual + 32, kFlags = kSteering + 72;
  of_worker(With(worker, 0, uint64_t{1} << 41), "steps where at most");
  of_worker(With(worker, kParams, NAN), "parameters with a value");
  of_worker(With(worker, kResidual + 28, INFINITY), "residuals with a value");
  of_worker(With(worker, kSteering, double(NAN)), "steered threshold that cannot be");
  of_worker(With(worker, kSteering, 1e9), "steered threshold that cannot be");
  of_worker(With(worker, kSteering + 8, 0.2), "steered threshold that cannot be");
  of_worker(With(worker, kSteering + 16, -0.5), "steered threshold that cannot be");
  of_worker(With(worker, kSteering + 24, 3.0), "steered threshold that cannot be");
  of_worker(With(worker, kSteering + 32, uint32_t{25}), "steered threshold that cannot be");
  of_worker(With(worker, kSteering + 32, UINT32_MAX), "steered threshold that cannot be");
  of_worker(With(worker, kFlags, uint8_t{2}), "a flag that is neither 0 nor 1");
  of_worker(With(worker, kFlags + 2, UINT64_MAX), "steps before a decision");
  of_worker(With(worker, kFlags + 10, -1.0), "a time that is out of range");
  of_worker(With(worker, kFlags + 10, double(NAN)), "a time that is out of range");
  // One worker's steps; for each of 2 segments updates and 2 counts; 2 steered thresholds; arrays of 5, then of 3.
  constexpr size_t kServerSteering = 8 + 2 * 16, kArrays = kServerSteering + 72;
  of_server(With(server, 0, UINT64_MAX), "steps where at most");
  of_server(With(server, 8, uint64_t{31}), "31 updates where at most 30");
  of_server(With(server, 16, uint32_t{1}), "more steps in a row");
  of_server(With(server, 20, uint32_t{1}), "more steps in a row");
  of_server(With(server, kServerSteering, double(NAN)), "steered threshold that cannot be");
  of_server(With(server, kArrays, NAN), "parameters with a value");
  of_server(With(server, kArrays + 20, INFINITY), "moments with a value");
  of_server(With(server, kArrays + 40, -1e-9f), "second moments with a value");
  of_server(With(server, kArrays + 60, NAN), "parameters that workers hold with a value");
}

TEST(State, GivenWorkersAtDifferentStepsWithBspItIsRefused) {
  Job job = TinyJob();
  const ClusterState state = TinyState(job, {2, 1});
  Ranks ranks(job, {2, 1});
  ASSERT_TRUE(ranks.server->LoadState(state.servers[0]));
  const Result<void> loaded = ranks.server->LoadState(With(state.servers[0], 8, uint64_t{29}));
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, HasSubstr("workers at different steps"));
}

TEST(State, GivenTheStateOfAnotherJobOrRankItIsRefusedByName) {
  const Job job = TinyJob();
  const ClusterState state = TinyState(job, {2, 2});
  Ranks second(job, {2, 2}, 1);
  const auto expect = [](const Result<void>& loaded, const std::string& sentence) {
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(loaded.error().message, sentence);
  };
  expect(second.worker->LoadState(state.workers[0]), "The state of worker 1 is that of worker 0.");
  expect(second.worker->LoadState(state.servers[1]), "The state of worker 1 is that of server 1.");
  expect(second.server->LoadState(state.workers[1]), "The state of server 1 is that of worker 1.");
  EXPECT_TRUE(second.worker->LoadState(state.workers[1]));
  Ranks wider(job, {3, 2}, 1);
  expect(wider.server->LoadState(state.servers[1]),
         "The state of server 1 is of a job of 2 workers and 2 servers, and this job has 3 and 2.");
  Job other = job;
  other.momentum = 0.8f;
  Ranks others(other, {2, 2}, 1);
  expect(others.server->LoadState(state.servers[1]),
         "The state of server 1 is of another job: resume with the model and the options that it was saved with.");
}

TEST(State, GivenNothingTrainedThereIsNoStateToSave) {
  const Job job = TinyJob();
  Ranks ranks(job);
  const auto of_worker = ranks.worker->SaveState();
  ASSERT_FALSE(of_worker);
  EXPECT_THAT(of_worker.error().message, HasSubstr("a step is under way"));
  const auto stopped = ranks.server->SaveState(0);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kTimeout);
  const std::vector<std::string> addresses = {*ranks.server->fabric().LocalAddress(),
                                              *ranks.worker->fabric().LocalAddress()};
  ASSERT_TRUE(ranks.server->fabric().Connect(0, addresses, 5000));
  ranks.server->Start([](const Error&) {});
  const auto running = ranks.server->SaveState(20);
  ASSERT_FALSE(running);
  EXPECT_EQ(running.error().code, ErrorCode::kTimeout);
  ranks.server->Stop();
}

// Written by tests/golden/state_golden.py, which shares no code with ours.
TEST(State, GivenTheGoldenBytesTheyAreTakenAndSavedAsTheSame) {
  const auto cases = nlohmann::json::parse(std::ifstream(GRADLANE_SOURCE_DIR "/tests/golden/state_golden.json"));
  ASSERT_EQ(cases.size(), 3u);
  const auto bytes_of = [](const std::string& hex) {
    std::vector<std::byte> bytes(hex.size() / 2);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    return bytes;
  };
  for (const auto& one : cases) {
    const std::string text = one.at("job");
    const auto job = Job::Parse(text);
    ASSERT_TRUE(job) << job.error().message;
    ASSERT_EQ(job->ToJson(), text);
    Ranks ranks(*job, {2, 1});
    const auto worker = bytes_of(one.at("worker")), server = bytes_of(one.at("server"));
    const auto of_worker = ranks.worker->LoadState(worker);
    ASSERT_TRUE(of_worker) << of_worker.error().message;
    const auto of_server = ranks.server->LoadState(server);
    ASSERT_TRUE(of_server) << of_server.error().message;
    EXPECT_EQ(*ranks.worker->SaveState(), worker);
    EXPECT_EQ(*ranks.server->SaveState(0), server);
    EXPECT_EQ(ranks.worker->Params(0)[1], -2.0f);
  }
}

TEST(State, GivenASteeringStateRestoreTakesWhatObserveMadeAndRefusesTheRest) {
  fec::DensitySteering steering(0.01);
  for (size_t i = 0; i < 100; ++i) {
    fec::DensitySteering copy(0.01);
    ASSERT_TRUE(copy.Restore(steering.state())) << i;
    EXPECT_EQ(copy.state(), steering.state());
    steering.Observe(i % 3 == 0 ? 1000 : i, 1000);
  }
  const auto state = steering.state();
  for (const auto& bad : {fec::DensitySteering::State{NAN, 0, 0, 1, 5},
                          {-7, NAN, 0, 1, 5},
                          {-7, 0, NAN, 1, 5},
                          {-7, 0, -0.5, 1, 5},
                          {-7, 0, 1601, 1, 5},
                          {-7, 0, 0, NAN, 5},
                          {-7, 0, 0, 1, -1},
                          {-7, 0, 0, 1, 0},
                          {-7, 0, 0, -1, 5},
                          {-7, 0, 0, 200, 5},
                          {500, 0, 0, 1, 5},
                          {-7, -1, 0, 1, 5}}) {
    EXPECT_FALSE(steering.Restore(bad));
    EXPECT_EQ(steering.state(), state);
  }
}

}  // namespace
}  // namespace gradlane
