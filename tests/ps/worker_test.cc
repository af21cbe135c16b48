// A Worker against a server played by the test: what it takes as a reply, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cluster.h"
#include "ps/worker.h"
#include "transport/loopback_fabric.h"

namespace gradlane {
namespace {

using testing::HasSubstr;

// Worker `rank` of two, one server, one tensor of one segment. The test is the server.
class WorkerTest : public testing::Test {
 protected:
  static constexpr size_t kElems = 100;

  void Open(Codec codec, ReplyCodec reply, uint32_t rank = 1, Sync sync = {}) {
    job_ = testing_support::SmallJob();
    job_.tensors = {{"w", kElems, 0, false}};
    job_.codec = codec;
    job_.reply = reply;
    job_.sync = sync;
    const Membership members{2, 1};
    layout_ = *Layout::Make(job_, members);
    worker_.reset();  // before the hub that they hang on
    server_.reset();
    hub_ = LoopbackHub::Create(members.Count());
    server_ = hub_->Open(0);
    ASSERT_TRUE(server_->Allocate(layout_.ServerSlotsBytes(0) * 2));
    source_ = server_->Allocate(1 << 16)->bytes;
    self_ = 1 + rank;
    worker_ = *Worker::Open({&job_, &layout_, members, rank, nullptr}, hub_->Open(self_));
    std::vector<std::string> addresses(3);
    addresses[0] = *server_->LocalAddress();
    addresses[self_] = *worker_->fabric().LocalAddress();
    ASSERT_TRUE(server_->Connect(0, addresses, 5000));
    ASSERT_TRUE(worker_->fabric().Connect(self_, addresses, 5000));
    const std::vector<float> init(kElems, 1.0f);
    std::thread begin([this] { EXPECT_TRUE(worker_->Begin()); });
    if (rank == 0) {
      EXPECT_EQ(TakePush().message.kind, MessageKind::kInit);
    }
    Reply(MessageKind::kInit, 0, std::as_bytes(std::span(init)), {kParamsRegion, 0});
    begin.join();
  }

  void Reply(MessageKind kind, uint8_t step, std::span<const std::byte> payload, RemoteSlot slot) {
    std::ranges::copy(payload, source_.begin());
    ASSERT_TRUE(server_->PutNotify({self_, source_.first(payload.size()), slot, Pack({0, step, kind}), 0}));
  }

  // The next push, once it has arrived.
  struct Pushed {
    Message message;
    size_t num_bytes = 0;
  };
  Pushed TakePush() {
    for (;;) {
      Event events[1];
      if (server_->Poll(events) == 0) {
        server_->Wait(10);
        continue;
      }
      if (events[0].kind != EventKind::kArrived) continue;
      const Pushed pushed{Unpack(events[0].imm), events[0].payload.size()};
      server_->Release(events[0].release);
      return pushed;
    }
  }

  // Pushes a gradient, replies with a flag of this payload, and returns what becomes of it: "" or the sentence.
  std::string FlagReply(std::span<const std::byte> payload, float value) {
    std::ranges::fill(worker_->Grads(0), value);
    worker_->GradReady(0);
    pushed_ = TakePush();
    Reply(MessageKind::kNonFinite, pushed_.message.step, payload, {kReplySlotsRegion, ReplyFlagOffset(job_, layout_, 0)});
    const Result<void> done = worker_->WaitParams(0);
    return done ? "" : done.error().message;
  }
  std::string FlagReply(uint32_t worker, float value = 1.0f) {
    return FlagReply(std::as_bytes(std::span(&worker, 1)), value);
  }

  Job job_;
  Layout layout_;
  std::unique_ptr<LoopbackHub> hub_;
  std::unique_ptr<Fabric> server_;
  std::unique_ptr<Worker> worker_;
  std::span<std::byte> source_;
  PeerId self_ = 0;
  Pushed pushed_;
};

TEST_F(WorkerTest, GivenAFlagOfTheOtherWorkerTheParametersStay) {
  for (const ReplyCodec reply : {ReplyCodec::kRaw, ReplyCodec::kFec}) {
    for (const Codec codec : {Codec::kNone, Codec::kFec, Codec::kTwoBit}) {
      Open(codec, reply);
      EXPECT_EQ(FlagReply(0), "");
      EXPECT_EQ(FlagReply(0), "") << "and again, in the next step";
      EXPECT_EQ(pushed_.message.kind, MessageKind::kData);
      EXPECT_EQ(pushed_.message.step, 2);
      for (float value : worker_->Params(0)) ASSERT_EQ(value, 1.0f);
      EXPECT_EQ(worker_->Stats().nonfinite_segments, 0u);
      worker_->Stop();
    }
  }
}

TEST_F(WorkerTest, GivenAGradientThatIsNotFiniteAFlagWithoutBytesIsSent) {
  for (const Codec codec : {Codec::kFec, Codec::kTwoBit}) {
    Open(codec, ReplyCodec::kRaw);
    EXPECT_EQ(FlagReply(1, NAN), "");
    EXPECT_EQ(pushed_.message.kind, MessageKind::kNonFinite);
    EXPECT_EQ(pushed_.num_bytes, 0u);
    EXPECT_EQ(worker_->Stats().nonfinite_segments, 1u);
    worker_->Stop();
  }
}

TEST_F(WorkerTest, GivenFlagsThatCannotBeTheyAreRefused) {
  struct Case {
    Codec codec;
    std::vector<uint8_t> payload;
    float grad;
    const char* part;
  };
  for (const Case& c : {Case{Codec::kFec, {}, 1, "0 bytes where the number of a worker"},
                        Case{Codec::kFec, {1, 0, 0}, 1, "3 bytes where the number of a worker"},
                        Case{Codec::kNone, {0, 0, 0, 0, 0}, 1, "5 bytes where the number of a worker"},
                        Case{Codec::kNone, {2, 0, 0, 0}, 1, "worker 2, which does not exist"},
                        Case{Codec::kFec, {255, 255, 255, 255}, 1, "worker 4294967295, which does not exist"},
                        Case{Codec::kFec, {1, 0, 0, 0}, 1, "of this worker, which had none"}}) {
    Open(c.codec, ReplyCodec::kFec);
    EXPECT_THAT(FlagReply(std::as_bytes(std::span(c.payload)), c.grad), HasSubstr(c.part));
    worker_->Stop();
  }
  Open(Codec::kFec, ReplyCodec::kRaw, 0);
  EXPECT_THAT(FlagReply(1, NAN), HasSubstr("worker 1, not of this one"));
  worker_->Stop();
  Open(Codec::kFec, ReplyCodec::kRaw, 1, {SyncKind::kAsync, 0});
  EXPECT_THAT(FlagReply(0), HasSubstr("--sync async"));
}

TEST_F(WorkerTest, GivenParametersForAStepThatItFlaggedTheyAreRefused) {
  Open(Codec::kFec, ReplyCodec::kRaw);
  std::ranges::fill(worker_->Grads(0), NAN);
  worker_->GradReady(0);
  TakePush();
  const std::vector<float> params(kElems, 2.0f);
  Reply(MessageKind::kData, 1, std::as_bytes(std::span(params)), {kParamsRegion, 0});
  const Result<void> done = worker_->WaitParams(0);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("was not finite"));
}

TEST_F(WorkerTest, GivenAReplyOfTheKindOfRawPushesItIsRefused) {
  Open(Codec::kAuto, ReplyCodec::kRaw);
  std::ranges::fill(worker_->Grads(0), 1.0f);
  worker_->GradReady(0);
  EXPECT_EQ(TakePush().message.kind, MessageKind::kData);
  const std::vector<float> params(kElems, 2.0f);
  Reply(MessageKind::kRaw, 1, std::as_bytes(std::span(params)), {kParamsRegion, 0});
  const Result<void> done = worker_->WaitParams(0);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("a reply that belongs elsewhere"));
}

TEST_F(WorkerTest, GivenAFlagAheadOfItsPushItIsRefused) {
  Open(Codec::kFec, ReplyCodec::kRaw);
  const uint32_t other = 0;
  Reply(MessageKind::kNonFinite, 1, std::as_bytes(std::span(&other, 1)), {kReplySlotsRegion, 0});
  std::string sentence;
  for (int i = 0; i < 1000 && sentence.empty(); ++i) {  // until the communication thread has seen it
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (const Result<void> done = worker_->WaitParams(0); !done) sentence = done.error().message;
  }
  EXPECT_THAT(sentence, HasSubstr("step 1 where 0 is due"));
}

}  // namespace
}  // namespace gradlane
