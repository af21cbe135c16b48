// What fabric.h promises, for every fabric.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/transport/fabric_cluster.h"

namespace gradlane {
namespace {

class FabricContract : public testing::TestWithParam<FabricKind> {};

INSTANTIATE_TEST_SUITE_P(All, FabricContract, testing::ValuesIn(AllFabricKinds()),
                         [](const auto& info) { return info.param.name; });

constexpr size_t kMiB = size_t{1} << 20;

// Given regions of several lengths / expect them zero-filled, numbered in order, and of exactly these lengths.
TEST_P(FabricContract, RegionsAreZeroFilledAndNumbered) {
  FabricCluster cluster(GetParam(), 2, {4096, 3 * kMiB + 5, 1, 0});
  const size_t expected[] = {4096, 3 * kMiB + 5, 1, 0};
  for (RegionId id = 0; id < 4; ++id) {
    const Region& region = cluster.regions[0][id];
    EXPECT_EQ(region.id, id);
    ASSERT_EQ(region.bytes.size(), expected[id]);
    EXPECT_TRUE(std::all_of(region.bytes.begin(), region.bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
  EXPECT_FALSE(cluster.fabrics[0]->Describe().empty());
  EXPECT_FALSE(cluster.fabrics[0]->DescribePath(1).empty());
  RecordProperty("path", cluster.fabrics[0]->DescribePath(1));
}

// Given puts of many sizes / expect bytes, imm, peer and cookie to come through, and only the slot to be written.
TEST_P(FabricContract, PutLandsBytesAndImm) {
  FabricCluster cluster(GetParam(), 2, {kMiB, 2 * kMiB});
  uint32_t imm = 7;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{64}, size_t{4096}, size_t{65536}, kMiB}) {
    SCOPED_TRACE(bytes);
    const std::span<std::byte> source = cluster.regions[0][0].bytes.subspan(0, bytes);
    FillPattern(source, bytes);
    const size_t offset = 64;
    ASSERT_TRUE(cluster.fabrics[0]->PutNotify({1, source, {1, offset}, ++imm, bytes + 1000}));
    ASSERT_TRUE(cluster.PollUntil([&] { return cluster.events[0].size() == 1 && cluster.events[1].size() == 1; }));
    const Event& sent = cluster.events[0][0];
    EXPECT_EQ(sent.kind, EventKind::kSent);
    EXPECT_EQ(sent.peer, 1u);
    EXPECT_EQ(sent.cookie, bytes + 1000);
    const Event& arrived = cluster.events[1][0];
    EXPECT_EQ(arrived.kind, EventKind::kArrived);
    EXPECT_EQ(arrived.peer, 0u);
    EXPECT_EQ(arrived.imm, imm);
    ASSERT_EQ(arrived.payload.size(), bytes);
    EXPECT_TRUE(HasPattern(arrived.payload, bytes));
    EXPECT_EQ(cluster.regions[1][1].bytes[offset - 1], std::byte{0});
    cluster.ReleaseAll();
  }
}

// Given four peers that put to one / expect every put to arrive once, from the right peer.
TEST_P(FabricContract, ManyToOne) {
  constexpr uint32_t kSenders = 4;
  constexpr size_t kSlotBytes = 8192;
  constexpr uint32_t kPuts = 8;
  FabricCluster cluster(GetParam(), kSenders + 1, {kSenders * kPuts * kSlotBytes});
  for (uint32_t i = 0; i < kPuts; ++i) {
    for (PeerId from = 1; from <= kSenders; ++from) {
      const size_t offset = ((from - 1) * kPuts + i) * kSlotBytes;
      const std::span<std::byte> source = cluster.regions[from][0].bytes.subspan(offset, kSlotBytes);
      FillPattern(source, from * 100 + i);
      ASSERT_TRUE(cluster.fabrics[from]->PutNotify({0, source, {0, offset}, from * 100 + i, i}));
    }
  }
  ASSERT_TRUE(cluster.PollUntil([&] {
    for (PeerId from = 1; from <= kSenders; ++from) {
      if (cluster.Count(from, EventKind::kSent) < kPuts) return false;
    }
    return cluster.Count(0, EventKind::kArrived) == kSenders * kPuts;
  }));
  std::set<uint32_t> seen;
  for (const Event& event : cluster.events[0]) {
    EXPECT_EQ(event.imm / 100, event.peer);
    EXPECT_TRUE(HasPattern(event.payload, event.imm));
    EXPECT_TRUE(seen.insert(event.imm).second);
  }
  cluster.ReleaseAll();
}

// Given a source that is overwritten at once after kSent / expect the receiver to see the bytes of before.
TEST_P(FabricContract, SourceIsFreeAfterSent) {
  FabricCluster cluster(GetParam(), 2, {kMiB, 16 * kMiB});
  const std::span<std::byte> source = cluster.regions[0][0].bytes;
  constexpr uint32_t kPuts = 16;
  for (uint32_t i = 0; i < kPuts; ++i) {
    FillPattern(source, i);
    ASSERT_TRUE(cluster.fabrics[0]->PutNotify({1, source, {1, i * kMiB}, i, i}));
    ASSERT_TRUE(cluster.PollUntil([&] { return cluster.Count(0, EventKind::kSent) == i + 1; }));
  }
  ASSERT_TRUE(cluster.PollUntil([&] { return cluster.Count(1, EventKind::kArrived) == kPuts; }));
  for (const Event& event : cluster.events[1]) EXPECT_TRUE(HasPattern(event.payload, event.imm)) << event.imm;
  cluster.ReleaseAll();
}

// Given arrivals that the receiver holds / expect more to arrive, and the held ones to keep their bytes.
TEST_P(FabricContract, HeldArrivalsStayValid) {
  constexpr size_t kBytes = 100'000;
  constexpr uint32_t kPuts = 60;
  FabricCluster cluster(GetParam(), 2, {kPuts * kBytes});
  for (uint32_t i = 0; i < kPuts; ++i) {
    const std::span<std::byte> source = cluster.regions[0][0].bytes.subspan(i * kBytes, kBytes);
    FillPattern(source, i);
    ASSERT_TRUE(cluster.PollUntil([&] { return i - cluster.Count(0, EventKind::kSent) < kTestMaxOutstanding; }));
    ASSERT_TRUE(cluster.fabrics[0]->PutNotify({1, source, {0, i * kBytes}, i, i}));
  }
  ASSERT_TRUE(cluster.PollUntil([&] { return cluster.Count(1, EventKind::kArrived) == kPuts; }));
  std::vector<Event> held = cluster.events[1];
  std::shuffle(held.begin(), held.end(), std::mt19937(1));
  for (const Event& event : held) {
    EXPECT_TRUE(HasPattern(event.payload, event.imm));
    cluster.fabrics[1]->Release(event.release);
  }
}

// Given puts past the end, to unknown regions and to unknown peers / expect kInvalidArgument and no arrival.
TEST_P(FabricContract, RefusesWhatLiesOutside) {
  FabricCluster cluster(GetParam(), 2, {4096});
  const std::span<std::byte> source = cluster.regions[0][0].bytes;
  const auto code = [&](const PutRequest& put) {
    Result<void> result = cluster.fabrics[0]->PutNotify(put);
    return result                                               ? std::string("ok")
           : result.error().code == ErrorCode::kInvalidArgument ? "invalid"
                                                                : result.error().message;
  };
  EXPECT_EQ(code({1, source, {0, 1}, 0, 0}), "invalid");
  EXPECT_EQ(code({1, source.subspan(0, 1), {0, 4096}, 0, 0}), "invalid");
  EXPECT_EQ(code({1, source.subspan(0, 1), {0, SIZE_MAX}, 0, 0}), "invalid");
  EXPECT_EQ(code({1, source, {1, 0}, 0, 0}), "invalid");
  EXPECT_EQ(code({2, source, {0, 0}, 0, 0}), "invalid");
  EXPECT_EQ(code({0, source, {0, 0}, 0, 0}), "invalid") << "a peer does not put to itself";
  EXPECT_EQ(code({1, source.subspan(0, 0), {0, 4096}, 5, 0}), "ok") << "an empty put at the very end";
  ASSERT_TRUE(cluster.PollUntil([&] { return cluster.Count(1, EventKind::kArrived) == 1; }));
  EXPECT_EQ(cluster.events[1][0].imm, 5u);
  cluster.ReleaseAll();
}

// Given Wake before Wait, and Wake while it sleeps / expect Wait to return both times (a limit of an hour otherwise).
TEST_P(FabricContract, WakeEndsWait) {
  FabricCluster cluster(GetParam(), 2, {4096});
  cluster.fabrics[0]->Wake();
  cluster.fabrics[0]->Wait(3'600'000);
  for (int i = 0; i < 20; ++i) {
    std::thread waker([&] { cluster.fabrics[0]->Wake(); });
    cluster.fabrics[0]->Wait(3'600'000);
    waker.join();
  }
  cluster.fabrics[0]->Wait(0);
}

// One side of a concurrent exchange: puts `num_puts`, receives as many, sleeping in Wait. `slots` receive in turn.
void Exchange(Fabric& fabric, const Region& region, PeerId peer, uint32_t num_puts, uint64_t seed) {
  constexpr size_t kSlotBytes = 20'000;
  constexpr uint32_t kWindow = 8;
  uint32_t posted = 0, sent = 0, arrived = 0, acknowledged = 0;
  bool slot_busy[kWindow] = {}, source_busy[kWindow] = {};
  const int64_t limit_ns = NowNs() + int64_t{kTestLimitMs} * 1'000'000;
  // Data goes to slots 0..7, imm = number, cookie = slot. An empty put with the top bit of imm set acknowledges one, so
  // that a slot is not written again before its bytes were checked.
  std::vector<uint32_t> owed;
  while (sent < num_puts || arrived < num_puts || acknowledged < num_puts || !owed.empty()) {
    ASSERT_LT(NowNs(), limit_ns) << sent << " " << posted << " " << arrived << " " << acknowledged;
    for (; posted < num_puts && !slot_busy[posted % kWindow] && !source_busy[posted % kWindow]; ++posted) {
      const uint32_t slot = posted % kWindow;
      const std::span<std::byte> source =
          region.bytes.subspan((kWindow + slot) * kSlotBytes, 1 + posted * 37 % kSlotBytes);
      FillPattern(source, seed + posted);
      ASSERT_TRUE(fabric.PutNotify({peer, source, {0, slot * kSlotBytes}, posted, slot}));
      slot_busy[slot] = source_busy[slot] = true;
    }
    for (; !owed.empty(); owed.pop_back()) {
      ASSERT_TRUE(fabric.PutNotify({peer, {}, {0, 0}, owed.back() | 0x80000000u, kWindow}));
    }
    Event events[8];
    const size_t num_events = fabric.Poll(events);
    if (num_events == 0) fabric.Wait(100);
    for (const Event& event : std::span(events, num_events)) {
      ASSERT_NE(event.kind, EventKind::kFailed) << fabric.FailureOf(event.peer).message;
      if (event.kind == EventKind::kSent) {
        if (event.cookie == kWindow) continue;
        source_busy[event.cookie] = false;
        ++sent;
        continue;
      }
      if ((event.imm & 0x80000000u) != 0) {
        slot_busy[(event.imm & 0x7fffffffu) % kWindow] = false;
        ++acknowledged;
      } else {
        EXPECT_TRUE(HasPattern(event.payload, (seed ^ 0xffff0000u) + event.imm)) << event.imm;
        ++arrived;
        owed.push_back(event.imm);
      }
      fabric.Release(event.release);
    }
  }
}

// Given two threads that put to each other and sleep in between / expect all of it, intact.
TEST_P(FabricContract, BothDirectionsAtOnce) {
  FabricCluster cluster(GetParam(), 2, {16 * 20'000});
  constexpr uint64_t kSeed = 0x1234abcd;
  std::thread other([&] { Exchange(*cluster.fabrics[1], cluster.regions[1][0], 0, 400, kSeed ^ 0xffff0000u); });
  Exchange(*cluster.fabrics[0], cluster.regions[0][0], 1, 400, kSeed);
  other.join();
}

// Given a peer that goes away / expect one kFailed with a sentence, kPeerFailed from puts to it, and life with the
// rest.
TEST_P(FabricContract, LossOfAPeerIsReportedOnce) {
  FabricCluster cluster(GetParam(), 3, {4096});
  const std::span<std::byte> source = cluster.regions[0][0].bytes;
  ASSERT_TRUE(cluster.fabrics[0]->PutNotify({1, source, {0, 0}, 1, 1}));
  ASSERT_TRUE(cluster.PollUntil(
      [&] { return cluster.Count(1, EventKind::kArrived) == 1 && cluster.Count(0, EventKind::kSent) == 1; }));
  cluster.ReleaseAll();
  cluster.fabrics[1].reset();
  ASSERT_TRUE(cluster.PollUntil(
      [&] { return cluster.Count(0, EventKind::kFailed) == 1 && cluster.Count(2, EventKind::kFailed) == 1; }));
  EXPECT_EQ(cluster.events[0].back().peer, 1u);
  const Error failure = cluster.fabrics[0]->FailureOf(1);
  EXPECT_EQ(failure.code, ErrorCode::kPeerFailed);
  EXPECT_NE(failure.message.find("1"), std::string::npos) << failure.message;
  Result<void> put = cluster.fabrics[0]->PutNotify({1, source, {0, 0}, 2, 2});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kPeerFailed);
  ASSERT_TRUE(cluster.fabrics[0]->PutNotify({2, source, {0, 0}, 3, 3}));
  ASSERT_TRUE(cluster.PollUntil([&] { return cluster.Count(2, EventKind::kArrived) == 1; }));
  for (int i = 0; i < 100; ++i) cluster.PollAll();
  EXPECT_EQ(cluster.Count(0, EventKind::kFailed), 1u);
  cluster.ReleaseAll();
}

// Given addresses cut at every length, with any byte changed, or of another kind / expect an error value each time.
TEST_P(FabricContract, MalformedAddressesAreErrors) {
  FabricCluster cluster(GetParam(), 2, {4096, 8192}, false);
  std::vector<std::string> addresses = cluster.addresses;
  const std::string good = addresses[1];
  for (size_t length = 1; length < good.size(); ++length) {
    addresses[1] = good.substr(0, length);
    ASSERT_FALSE(cluster.fabrics[0]->Connect(0, addresses, 100)) << "cut at " << length;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    addresses[1] = good;
    addresses[1][at] ^= static_cast<char>(1 << at % 8);
    ASSERT_FALSE(cluster.fabrics[0]->Connect(0, addresses, 100)) << "byte " << at;
  }
  for (const std::string& wrong : {good + "x", std::string(300, '\0'), std::string("GLUCX")}) {
    addresses[1] = wrong;
    ASSERT_FALSE(cluster.fabrics[0]->Connect(0, addresses, 100));
  }
  cluster.Connect();  // and it is still usable
}

// Given 10,000 puts of random sizes to random slots between three peers / expect each once, intact, in whatever order.
TEST_P(FabricContract, RandomTraffic) {
  constexpr uint32_t kPeers = 3;
  constexpr uint32_t kSlots = 16;  // for each pair of peers
  constexpr size_t kSlotBytes = 9000;
  constexpr uint32_t kPuts = 10'000;
  if (!GetParam().ucx) GTEST_LOG_(INFO) << "with reordering";
  FabricCluster cluster(GetParam(), kPeers, {kPeers * kSlots * kSlotBytes, kPeers * kSlots * kSlotBytes});
  cluster.hub->SetReordering(99);
  std::mt19937 random(5);
  const auto offset_of = [&](PeerId other, uint32_t slot) { return (other * kSlots + slot) * kSlotBytes; };
  struct Flight {
    uint64_t seed = 0;
    size_t bytes = 0;
    bool sent = false, arrived = false;
  };
  std::map<uint32_t, Flight> flights;  // by imm
  std::map<std::pair<PeerId, PeerId>, std::vector<uint32_t>> free_slots;
  std::map<uint32_t, std::pair<std::pair<PeerId, PeerId>, uint32_t>> slot_of;
  std::vector<size_t> outstanding(kPeers);
  for (PeerId from = 0; from < kPeers; ++from) {
    for (PeerId to = 0; to < kPeers; ++to) {
      for (uint32_t slot = 0; slot < kSlots && from != to; ++slot) free_slots[{from, to}].push_back(slot);
    }
  }
  uint32_t posted = 0, done = 0;
  const int64_t limit_ns = NowNs() + 4 * int64_t{kTestLimitMs} * 1'000'000;
  while (done < kPuts) {
    ASSERT_LT(NowNs(), limit_ns) << posted << " posted, " << done << " done";
    for (uint32_t tries = random() % 16; tries > 0 && posted < kPuts; --tries) {
      const PeerId from = random() % kPeers;
      const PeerId to = (from + 1 + random() % (kPeers - 1)) % kPeers;
      std::vector<uint32_t>& slots = free_slots[{from, to}];
      if (slots.empty() || outstanding[from] == kTestMaxOutstanding) continue;
      const uint32_t slot = slots.back();
      slots.pop_back();
      const size_t bytes = random() % 4 == 0 ? random() % 8 : random() % (kSlotBytes + 1);
      const std::span<std::byte> source = cluster.regions[from][0].bytes.subspan(offset_of(to, slot), bytes);
      FillPattern(source, posted);
      flights[posted] = {posted, bytes};
      slot_of[posted] = {{from, to}, slot};
      ASSERT_TRUE(cluster.fabrics[from]->PutNotify({to, source, {1, offset_of(from, slot)}, posted, posted}));
      ++outstanding[from];
      ++posted;
    }
    cluster.PollAll();
    for (PeerId self = 0; self < kPeers; ++self) {
      for (const Event& event : cluster.events[self]) {
        ASSERT_NE(event.kind, EventKind::kFailed);
        const uint32_t id = event.kind == EventKind::kSent ? static_cast<uint32_t>(event.cookie) : event.imm;
        Flight& flight = flights.at(id);
        if (event.kind == EventKind::kSent) {
          ASSERT_FALSE(std::exchange(flight.sent, true));
          --outstanding[self];
        } else {
          ASSERT_FALSE(std::exchange(flight.arrived, true));
          ASSERT_EQ(event.payload.size(), flight.bytes);
          ASSERT_TRUE(HasPattern(event.payload, flight.seed)) << id;
          cluster.fabrics[self]->Release(event.release);
        }
        if (flight.sent && flight.arrived) {
          free_slots[slot_of.at(id).first].push_back(slot_of.at(id).second);
          ++done;
        }
      }
      cluster.events[self].clear();
    }
  }
}

// Given a fabric opened for puts up to MaxOutstanding / expect that many to be taken, and a peer left out to be
// refused.
TEST_P(FabricContract, MaxOutstandingIsReal) {
  FabricCluster cluster(GetParam(), 2, {kTestMaxOutstanding * 4096});
  ASSERT_EQ(cluster.fabrics[0]->MaxOutstanding(), kTestMaxOutstanding);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < kTestMaxOutstanding; ++i) {
      ASSERT_TRUE(
          cluster.fabrics[0]->PutNotify({1, cluster.regions[0][0].bytes.subspan(i * 4096, 4096), {0, i * 4096}, i, i}));
    }
    ASSERT_TRUE(cluster.PollUntil([&] {
      return cluster.Count(0, EventKind::kSent) == kTestMaxOutstanding &&
             cluster.Count(1, EventKind::kArrived) == kTestMaxOutstanding;
    }));
    cluster.ReleaseAll();
  }
}

}  // namespace
}  // namespace gradlane
