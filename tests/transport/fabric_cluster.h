// A few fabrics of one kind in one process, connected, for tests. The test's thread owns them all unless it hands one
// to another thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/base/trace.h"
#include "transport/fabric.h"
#include "transport/loopback_fabric.h"
#ifdef GRADLANE_HAVE_UCX
#include "transport/ucx_fabric.h"
#endif

namespace gradlane {

struct FabricKind {
  std::string name;
  bool ucx = false;
  std::string transports;
};

inline void PrintTo(const FabricKind& kind, std::ostream* out) { *out << kind.name; }  // for gtest

inline std::vector<FabricKind> AllFabricKinds() {
  std::vector<FabricKind> kinds = {{"loopback"}};
#ifdef GRADLANE_HAVE_UCX
  kinds.push_back({"ucx_tcp", true, "tcp"});
  kinds.push_back({"ucx_shm", true, "shm"});
  kinds.push_back({"ucx_default", true, ""});
#endif
  return kinds;
}

inline constexpr size_t kTestMaxOutstanding = 32;
inline constexpr int kTestLimitMs = 60'000;  // a test that hangs fails in words; nothing is measured against it

struct FabricCluster {
  std::unique_ptr<LoopbackHub> hub;
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::vector<std::vector<Region>> regions;  // by fabric
  std::vector<std::vector<Event>> events;    // by fabric: polled, in order
  std::vector<std::string> addresses;

  static std::unique_ptr<Fabric> Open(LoopbackHub* hub, const FabricKind& kind, PeerId self) {
    if (!kind.ucx) return hub->Open(self, kTestMaxOutstanding);
#ifdef GRADLANE_HAVE_UCX
    UcxOptions options;
    options.transports = kind.transports;
    options.max_outstanding = kTestMaxOutstanding;
    Result<std::unique_ptr<Fabric>> fabric = OpenUcxFabric(options);
    EXPECT_TRUE(fabric.has_value()) << fabric.error().message;
    return fabric ? *std::move(fabric) : nullptr;
#else
    return nullptr;
#endif
  }

  // Every fabric gets `region_bytes.size()` regions of these lengths.
  FabricCluster(const FabricKind& kind, uint32_t num_peers, const std::vector<size_t>& region_bytes,
                bool connect = true) {
    hub = LoopbackHub::Create(num_peers);
    regions.resize(num_peers);
    events.resize(num_peers);
    for (PeerId self = 0; self < num_peers; ++self) {
      fabrics.push_back(Open(hub.get(), kind, self));
      for (const size_t bytes : region_bytes) {
        Result<Region> region = fabrics[self]->Allocate(bytes);
        EXPECT_TRUE(region.has_value());
        regions[self].push_back(*region);
      }
      Result<std::string> address = fabrics[self]->LocalAddress();
      EXPECT_TRUE(address.has_value());
      addresses.push_back(*address);
    }
    if (connect) Connect();
  }

  void Connect() {
    std::vector<std::thread> threads;
    for (PeerId self = 0; self < fabrics.size(); ++self) {
      threads.emplace_back([this, self] {
        Result<void> connected = fabrics[self]->Connect(self, addresses, kTestLimitMs);
        EXPECT_TRUE(connected.has_value()) << connected.error().message;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // One Poll of every fabric that still exists; how many events came.
  size_t PollAll() {
    size_t found = 0;
    for (PeerId self = 0; self < fabrics.size(); ++self) {
      if (fabrics[self] == nullptr) continue;
      Event polled[16];
      const size_t num_events = fabrics[self]->Poll(polled);
      events[self].insert(events[self].end(), polled, polled + num_events);
      found += num_events;
    }
    return found;
  }

  testing::AssertionResult PollUntil(const std::function<bool()>& done) {
    const int64_t limit_ns = NowNs() + int64_t{kTestLimitMs} * 1'000'000;
    while (!done()) {
      if (NowNs() > limit_ns) return testing::AssertionFailure() << "what the test waits for did not happen";
      if (PollAll() == 0) std::this_thread::yield();
    }
    return testing::AssertionSuccess();
  }

  size_t Count(PeerId self, EventKind kind) const {
    size_t count = 0;
    for (const Event& event : events[self]) count += event.kind == kind;
    return count;
  }

  void ReleaseAll() {
    for (PeerId self = 0; self < fabrics.size(); ++self) {
      for (const Event& event : events[self]) {
        if (event.kind == EventKind::kArrived && fabrics[self] != nullptr) fabrics[self]->Release(event.release);
      }
      events[self].clear();
    }
  }
};

// Bytes that differ by position and seed.
inline void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

inline bool HasPattern(std::span<const std::byte> bytes, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (const std::byte byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (byte != static_cast<std::byte>(state >> 56)) return false;
  }
  return true;
}

}  // namespace gradlane
