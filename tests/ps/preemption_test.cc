// What a Worker posts, and when, seen on the loopback fabric, stepped by hand. The server is played by the test.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ps/worker.h"
#include "transport/loopback_fabric.h"

namespace gradlane {
namespace {

// Passes everything on, and keeps a record of what was posted and how much was in flight.
class RecordingFabric final : public Fabric {
 public:
  explicit RecordingFabric(std::unique_ptr<Fabric> inner) : inner_(std::move(inner)) {}

  Result<Region> Allocate(size_t bytes) override { return inner_->Allocate(bytes); }
  Result<std::string> LocalAddress() override { return inner_->LocalAddress(); }
  Result<void> Connect(PeerId self, std::span<const std::string> addresses, int timeout_ms) override {
    return inner_->Connect(self, addresses, timeout_ms);
  }
  Result<void> PutNotify(const PutRequest& put) override {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(Unpack(put.imm));
      bytes_[put.cookie] = put.source.size();
      in_flight_ += put.source.size();
      max_in_flight_ = std::max(max_in_flight_, in_flight_);
    }
    return inner_->PutNotify(put);
  }
  size_t MaxOutstanding() const override { return inner_->MaxOutstanding(); }
  size_t Poll(std::span<Event> events) override {
    const size_t count = inner_->Poll(events);
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      if (events[i].kind == EventKind::kSent) in_flight_ -= bytes_[events[i].cookie];
    }
    return count;
  }
  void Release(uint64_t release) override { inner_->Release(release); }
  void Wait(int timeout_ms) override { inner_->Wait(timeout_ms); }
  void Wake() override { inner_->Wake(); }
  Error FailureOf(PeerId peer) const override { return inner_->FailureOf(peer); }
  std::string Describe() const override { return inner_->Describe(); }
  std::string DescribePath(PeerId peer) const override { return inner_->DescribePath(peer); }

  std::vector<Message> Posted() {
    const std::lock_guard lock(mutex_);
    return posted_;
  }
  uint64_t MaxInFlight() {
    const std::lock_guard lock(mutex_);
    return max_in_flight_;
  }

 private:
  std::unique_ptr<Fabric> inner_;
  std::mutex mutex_;
  std::vector<Message> posted_;
  std::map<uint64_t, uint64_t> bytes_;
  uint64_t in_flight_ = 0;
  uint64_t max_in_flight_ = 0;
};

// Ten layers; layer 0 is one segment, layer 8 two and layer 9 eight segments.
Job TenLayers(Schedule schedule) {
  Job job;
  job.segment_bytes = 16 << 10;
  job.window_bytes = 16 << 10;  // one segment in flight
  job.codec = Codec::kNone;
  job.reply = ReplyCodec::kRaw;
  job.schedule = schedule;
  for (uint32_t k = 0; k < 10; ++k) {
    job.tensors.push_back({"layer" + std::to_string(k), k == 9 ? 8 * 4096u : k == 8 ? 2 * 4096u : 4096u, k, true});
  }
  return job;
}

struct Seen {
  std::vector<uint32_t> layers;  // of what was posted, in order
  uint64_t max_in_flight = 0;
  uint64_t preemptions = 0;
};

// Given a window full of layer 9, layer 8 and then layer 0 are handed over.
Seen PushWhileALargeTensorIsUnderWay(Schedule schedule, uint64_t window_bytes = 16 << 10) {
  Job job = TenLayers(schedule);
  job.window_bytes = window_bytes;
  const Membership members{1, 1};
  const auto layout = Layout::Make(job, members);
  EXPECT_TRUE(layout);
  const auto hub = LoopbackHub::Create(2);
  const std::unique_ptr<Fabric> server = hub->Open(0);
  EXPECT_TRUE(server->Allocate(layout->ServerSlotsBytes(0)));
  auto recording = std::make_unique<RecordingFabric>(hub->Open(1));
  RecordingFabric& record = *recording;
  auto opened = Worker::Open({&job, &*layout, members, 0, nullptr}, std::move(recording));
  EXPECT_TRUE(opened);
  Worker& worker = **opened;
  const std::vector<std::string> addresses = {*server->LocalAddress(), *worker.fabric().LocalAddress()};
  EXPECT_TRUE(server->Connect(0, addresses, 1000));
  EXPECT_TRUE(worker.fabric().Connect(1, addresses, 1000));

  // The server's part of Begin: every segment goes back as it came.
  std::thread begin([&] { EXPECT_TRUE(worker.Begin()); });
  for (uint32_t echoed = 0; echoed < layout->num_segments();) {
    Event event;
    if (server->Poll({&event, 1}) == 0) {
      std::this_thread::yield();
      continue;
    }
    if (event.kind != EventKind::kArrived) continue;
    const uint32_t segment = Unpack(event.imm).segment;
    EXPECT_TRUE(server->PutNotify({1, event.payload, {kParamsRegion, layout->segments()[segment].flat_elem * 4}, event.imm, 0}));
    ++echoed;
  }
  begin.join();

  hub->SetManual(true);
  const size_t before = record.Posted().size();
  worker.GradReady(9);
  const size_t window_segments = window_bytes / job.segment_bytes;
  while (record.Posted().size() < before + window_segments) std::this_thread::yield();
  worker.GradReady(8);
  worker.GradReady(0);
  const size_t total = before + 8 + 2 + 1;
  while (record.Posted().size() < total || hub->Step()) {
    hub->Step();
    std::this_thread::yield();
  }
  Seen seen;
  const std::vector<Message> posted = record.Posted();
  for (size_t i = before; i < posted.size(); ++i) seen.layers.push_back(layout->segments()[posted[i].segment].layer);
  worker.Stop();
  seen.max_in_flight = record.MaxInFlight();
  seen.preemptions = worker.Stats().preemptions;
  return seen;
}

TEST(Preemption, GivenPreemptiveTheUrgentSegmentIsPostedNext) {
  const Seen seen = PushWhileALargeTensorIsUnderWay(Schedule::kPreemptive);
  EXPECT_EQ(seen.layers, (std::vector<uint32_t>{9, 0, 8, 8, 9, 9, 9, 9, 9, 9, 9}));
  EXPECT_EQ(seen.preemptions, 1u);
}

TEST(Preemption, GivenPriorityItIsPostedAfterTheTensorUnderWay) {
  const Seen seen = PushWhileALargeTensorIsUnderWay(Schedule::kPriority);
  EXPECT_EQ(seen.layers, (std::vector<uint32_t>{9, 9, 9, 9, 9, 9, 9, 9, 0, 8, 8}));
  EXPECT_EQ(seen.preemptions, 0u);
}

TEST(Preemption, GivenFifoItIsPostedLast) {
  const Seen seen = PushWhileALargeTensorIsUnderWay(Schedule::kFifo);
  EXPECT_EQ(seen.layers, (std::vector<uint32_t>{9, 9, 9, 9, 9, 9, 9, 9, 8, 8, 0}));
}

TEST(Preemption, GivenAnyScheduleNoMoreThanTheWindowIsInFlight) {
  for (const Schedule schedule : {Schedule::kFifo, Schedule::kPriority, Schedule::kPreemptive}) {
    for (const uint64_t window_bytes : {16u << 10, 40u << 10, 64u << 10}) {
      const Seen seen = PushWhileALargeTensorIsUnderWay(schedule, window_bytes);
      EXPECT_LE(seen.max_in_flight, window_bytes);
      EXPECT_GT(seen.max_in_flight + (16 << 10), window_bytes);  // and no less than fits is used
    }
  }
}

}  // namespace
}  // namespace gradlane
