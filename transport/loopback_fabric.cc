#include "transport/loopback_fabric.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "transport/base/ring_queue.h"
#include "transport/base/trace.h"
#include "transport/base/memory.h"

namespace gradlane {
namespace {

constexpr size_t kArrivedCapacity = 4096;  // arrivals not yet polled; beyond it puts to that peer stay pending
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr char kAddressMagic[8] = {'G', 'L', 'L', 'O', 'O', 'P', '0', '1'};

struct Pending {
  uint64_t sequence = 0;
  int64_t due_ns = 0;
  std::span<const std::byte> source;
  RemoteSlot slot;
  uint32_t imm = 0;
  uint64_t cookie = 0;
};

// What LocalAddress gives: a fixed header, then one uint64_t of length per region.
struct AddressHeader {
  char magic[8];
  uint64_t hub;
  uint32_t peer;
  uint32_t num_regions;
};

class LoopbackFabric;

class Hub final : public LoopbackHub {
 public:
  explicit Hub(uint32_t num_peers);

  std::unique_ptr<Fabric> Open(PeerId self, size_t max_outstanding) override;
  void SetDelay(PeerId from, PeerId to, int64_t delay_ns) override;
  void SetManual(bool manual) override;
  bool Step() override;
  void SetReordering(uint64_t seed) override;
  void Kill(PeerId peer) override;

 private:
  friend class LoopbackFabric;

  // A direction between two peers.
  struct Lane {
    std::vector<Pending> pending;  // in the order of posting, capacity = the sender's max_outstanding
    int64_t delay_ns = 0;
  };
  struct Peer {
    bool opened = false;
    bool gone = false;
    std::string why_gone;
    std::vector<std::span<std::byte>> regions;
    RingQueue<Event> sent;
    RingQueue<Event> arrived;
    std::vector<uint8_t> failed_to_report;  // by peer
    std::vector<uint8_t> failed;            // by peer: reported or about to be
    size_t num_outstanding = 0;
    uint32_t num_copying = 0;   // copies from or to this peer's memory that run outside the lock
    uint32_t num_arriving = 0;  // of these, copies to it: each has a place in `arrived`
    bool woken = false;
    std::condition_variable changed;
  };

  Lane& LaneOf(PeerId from, PeerId to) { return lanes_[size_t{from} * peers_.size() + to]; }
  void Bury(std::unique_lock<std::mutex>& lock, PeerId peer, std::string why);
  // Which pending put of this direction may land now; its index in pending.
  std::optional<size_t> Choose(PeerId from, PeerId to, int64_t now_ns);
  bool RoomFor(PeerId to) const { return peers_[to].arrived.size() + peers_[to].num_arriving < kArrivedCapacity; }
  // Lands one put. Gives the lock up while it copies.
  void Deliver(std::unique_lock<std::mutex>& lock, PeerId from, PeerId to, size_t index);
  void DeliverDue(std::unique_lock<std::mutex>& lock, PeerId from, PeerId to, int64_t now_ns);

  std::mutex mutex_;  // everything below; never held while bytes are copied
  std::vector<Peer> peers_;
  std::vector<Lane> lanes_;
  bool manual_ = false;
  std::optional<std::mt19937_64> order_;
  uint64_t next_sequence_ = 0;
  uint64_t id_;
  std::condition_variable copy_done_;
};

class LoopbackFabric final : public Fabric {
 public:
  LoopbackFabric(Hub* hub, PeerId self, size_t max_outstanding)
      : hub_(hub), self_(self), max_outstanding_(max_outstanding) {
    GrowTokens(kArrivedCapacity);
  }
  ~LoopbackFabric() override;

  Result<Region> Allocate(size_t bytes) override;
  Result<std::string> LocalAddress() override;
  Result<void> Connect(PeerId self, std::span<const std::string> addresses, int timeout_ms) override;
  Result<void> PutNotify(const PutRequest& put) override;
  size_t MaxOutstanding() const override { return max_outstanding_; }
  size_t Poll(std::span<Event> events) override;
  void Release(uint64_t release) override;
  void Wait(int timeout_ms) override;
  void Wake() override;
  Error FailureOf(PeerId peer) const override;
  std::string Describe() const override;
  std::string DescribePath(PeerId peer) const override;

 private:
  void GrowTokens(size_t capacity);
  uint64_t TakeToken();
  bool Reachable(PeerId peer) const { return peer < peer_region_bytes_.size() && !peer_region_bytes_[peer].empty(); }

  Hub* const hub_;
  const PeerId self_;
  const size_t max_outstanding_;
  std::vector<Memory> memory_;
  std::vector<std::vector<uint64_t>> peer_region_bytes_;  // by peer; empty: never talked to
  // Tokens of arrivals that are held: a generation each, odd while held, so that a second Release is caught.
  std::vector<uint32_t> token_generation_;
  std::vector<uint32_t> free_tokens_;
};

uint64_t NextHubId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Hub::Hub(uint32_t num_peers) : peers_(num_peers), lanes_(size_t{num_peers} * num_peers), id_(NextHubId()) {
  for (Peer& peer : peers_) {
    peer.failed.resize(num_peers);
    peer.failed_to_report.resize(num_peers);
  }
}

std::unique_ptr<Fabric> Hub::Open(PeerId self, size_t max_outstanding) {
  std::unique_lock lock(mutex_);
  CHECK(self < peers_.size() && max_outstanding > 0);
  Peer& peer = peers_[self];
  CHECK(!peer.opened);
  auto fabric = std::make_unique<LoopbackFabric>(this, self, max_outstanding);
  peer.opened = true;
  peer.sent.Reserve(max_outstanding);
  peer.arrived.Reserve(kArrivedCapacity);
  for (PeerId to = 0; to < peers_.size(); ++to) LaneOf(self, to).pending.reserve(max_outstanding);
  return fabric;
}

void Hub::SetDelay(PeerId from, PeerId to, int64_t delay_ns) {
  std::unique_lock lock(mutex_);
  CHECK(from < peers_.size() && to < peers_.size() && delay_ns >= 0);
  LaneOf(from, to).delay_ns = delay_ns;
}

void Hub::SetManual(bool manual) {
  std::unique_lock lock(mutex_);
  manual_ = manual;
  for (Peer& peer : peers_) peer.changed.notify_all();
}

void Hub::SetReordering(uint64_t seed) {
  std::unique_lock lock(mutex_);
  if (seed == 0)
    order_.reset();
  else
    order_.emplace(seed);
}

bool Hub::Step() {
  std::unique_lock lock(mutex_);
  // All pending puts in the order of posting, whatever their delay.
  std::vector<std::pair<uint64_t, std::pair<size_t, size_t>>> by_sequence;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (peers_[lane / peers_.size()].gone || peers_[lane % peers_.size()].gone) continue;
    for (size_t i = 0; i < lanes_[lane].pending.size(); ++i)
      by_sequence.push_back({lanes_[lane].pending[i].sequence, {lane, i}});
  }
  if (by_sequence.empty()) return false;
  const size_t rank = order_ ? (*order_)() % by_sequence.size() : 0;
  std::nth_element(by_sequence.begin(), by_sequence.begin() + static_cast<ptrdiff_t>(rank), by_sequence.end());
  const auto [lane, index] = by_sequence[rank].second;
  const auto to = static_cast<PeerId>(lane % peers_.size());
  CHECK(RoomFor(to));
  Deliver(lock, static_cast<PeerId>(lane / peers_.size()), to, index);
  return true;
}

void Hub::Kill(PeerId peer) {
  std::unique_lock lock(mutex_);
  CHECK(peer < peers_.size());
  Bury(lock, peer, "Peer " + std::to_string(peer) + " was killed on the loopback hub.");
}

void Hub::Bury(std::unique_lock<std::mutex>& lock, PeerId peer, std::string why) {
  if (peers_[peer].gone) return;
  peers_[peer].gone = true;
  peers_[peer].why_gone = std::move(why);
  // A failed peer's puts are over, which frees their sources: not before the last copy out of them has ended.
  copy_done_.wait(lock, [&] { return peers_[peer].num_copying == 0; });
  for (PeerId other = 0; other < peers_.size(); ++other) {
    if (other == peer) continue;
    peers_[other].num_outstanding -= LaneOf(other, peer).pending.size();
    peers_[peer].num_outstanding -= LaneOf(peer, other).pending.size();
    LaneOf(other, peer).pending.clear();
    LaneOf(peer, other).pending.clear();
    // The dead one sees everybody else gone, so that its thread ends too.
    for (const auto& [at, of] : {std::pair{other, peer}, std::pair{peer, other}}) {
      if (peers_[at].failed[of]) continue;
      peers_[at].failed[of] = 1;
      peers_[at].failed_to_report[of] = 1;
    }
    peers_[other].changed.notify_all();
  }
  peers_[peer].changed.notify_all();
}

std::optional<size_t> Hub::Choose(PeerId from, PeerId to, int64_t now_ns) {
  const std::vector<Pending>& pending = LaneOf(from, to).pending;
  if (manual_ || pending.empty() || peers_[from].gone || peers_[to].gone || !RoomFor(to)) return std::nullopt;
  if (!order_) {
    for (size_t i = 0; i < pending.size(); ++i) {
      if (pending[i].due_ns <= now_ns) return i;
    }
    return std::nullopt;
  }
  size_t num_due = 0;
  for (const Pending& put : pending) num_due += put.due_ns <= now_ns;
  if (num_due == 0) return std::nullopt;
  size_t rank = (*order_)() % num_due;
  for (size_t i = 0;; ++i) {
    if (pending[i].due_ns <= now_ns && rank-- == 0) return i;
  }
}

void Hub::Deliver(std::unique_lock<std::mutex>& lock, PeerId from, PeerId to, size_t index) {
  std::vector<Pending>& pending = LaneOf(from, to).pending;
  const Pending put = pending[index];
  pending.erase(pending.begin() + static_cast<ptrdiff_t>(index));
  Peer& sender = peers_[from];
  Peer& receiver = peers_[to];
  const std::span<std::byte> slot = receiver.regions[put.slot.region].subspan(put.slot.offset_bytes, put.source.size());
  ++sender.num_copying;
  ++receiver.num_copying;
  ++receiver.num_arriving;
  lock.unlock();
  if (!slot.empty()) std::memcpy(slot.data(), put.source.data(), slot.size());
  lock.lock();
  --sender.num_copying;
  --receiver.num_copying;
  --receiver.num_arriving;
  copy_done_.notify_all();
  --sender.num_outstanding;
  if (sender.failed[to]) return;
  sender.sent.Push({.kind = EventKind::kSent, .peer = to, .cookie = put.cookie});
  receiver.arrived.Push({.kind = EventKind::kArrived, .peer = from, .imm = put.imm, .payload = slot});
  sender.changed.notify_all();
  receiver.changed.notify_all();
}

void Hub::DeliverDue(std::unique_lock<std::mutex>& lock, PeerId from, PeerId to, int64_t now_ns) {
  while (const std::optional<size_t> index = Choose(from, to, now_ns)) Deliver(lock, from, to, *index);
}

LoopbackFabric::~LoopbackFabric() {
  std::unique_lock lock(hub_->mutex_);
  hub_->Bury(lock, self_, "Peer " + std::to_string(self_) + " has closed its fabric.");
  hub_->copy_done_.wait(lock, [&] { return hub_->peers_[self_].num_copying == 0; });
  hub_->peers_[self_].regions.clear();
}

Result<Region> LoopbackFabric::Allocate(size_t bytes) {
  ASSIGN_OR_RETURN(Memory memory, Memory::Map(bytes));
  std::unique_lock lock(hub_->mutex_);
  std::vector<std::span<std::byte>>& regions = hub_->peers_[self_].regions;
  regions.push_back(memory.bytes());
  memory_.push_back(std::move(memory));
  return Region{static_cast<RegionId>(regions.size() - 1), regions.back()};
}

Result<std::string> LoopbackFabric::LocalAddress() {
  AddressHeader header{};
  std::memcpy(header.magic, kAddressMagic, sizeof(kAddressMagic));
  header.hub = hub_->id_;
  header.peer = self_;
  header.num_regions = static_cast<uint32_t>(memory_.size());
  std::string address(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const Memory& memory : memory_) {
    const uint64_t bytes = memory.bytes().size();
    address.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  }
  return address;
}

Result<void> LoopbackFabric::Connect(PeerId self, std::span<const std::string> addresses, int /*timeout_ms*/) {
  std::unique_lock lock(hub_->mutex_);
  if (self != self_ || addresses.size() != hub_->peers_.size()) {
    return Fail(ErrorCode::kInvalidArgument, "Connect of loopback peer " + std::to_string(self_) + " of " +
                                                 std::to_string(hub_->peers_.size()) + " was given " +
                                                 std::to_string(addresses.size()) + " addresses for peer " +
                                                 std::to_string(self) + ".");
  }
  std::vector<std::vector<uint64_t>> peer_region_bytes(addresses.size());
  for (PeerId peer = 0; peer < addresses.size(); ++peer) {
    const std::string& address = addresses[peer];
    if (peer == self || address.empty()) continue;
    const auto malformed = [&](const std::string& what) {
      return Fail(ErrorCode::kMalformed, "The loopback address of peer " + std::to_string(peer) + " " + what + ".");
    };
    AddressHeader header;
    if (address.size() < sizeof(header)) return malformed("is too short");
    std::memcpy(&header, address.data(), sizeof(header));
    if (std::memcmp(header.magic, kAddressMagic, sizeof(kAddressMagic)) != 0)
      return malformed("is not a loopback address of this version");
    if (header.hub != hub_->id_ || header.peer != peer) return malformed("belongs to another hub or peer");
    const std::vector<std::span<std::byte>>& regions = hub_->peers_[peer].regions;
    if (!hub_->peers_[peer].opened || header.num_regions > regions.size() ||
        address.size() != sizeof(header) + header.num_regions * sizeof(uint64_t)) {
      return malformed("names regions that it does not have");
    }
    for (size_t region = 0; region < header.num_regions; ++region) {
      uint64_t bytes;
      std::memcpy(&bytes, address.data() + sizeof(header) + region * sizeof(bytes), sizeof(bytes));
      if (bytes != regions[region].size()) return malformed("gives a region a length that it does not have");
      peer_region_bytes[peer].push_back(bytes);
    }
    if (peer_region_bytes[peer].empty()) peer_region_bytes[peer].push_back(0);  // reachable, for empty puts only
  }
  peer_region_bytes_ = std::move(peer_region_bytes);
  return {};
}

Result<void> LoopbackFabric::PutNotify(const PutRequest& put) {
  if (put.peer == self_ || !Reachable(put.peer)) {
    return Fail(ErrorCode::kInvalidArgument,
                "Peer " + std::to_string(put.peer) + " is not one that this fabric was connected to.");
  }
  const std::vector<uint64_t>& regions = peer_region_bytes_[put.peer];
  if (put.slot.region >= regions.size() || put.slot.offset_bytes > regions[put.slot.region] ||
      put.source.size() > regions[put.slot.region] - put.slot.offset_bytes) {
    return Fail(ErrorCode::kInvalidArgument, "A put of " + std::to_string(put.source.size()) + " bytes at offset " +
                                                 std::to_string(put.slot.offset_bytes) + " lies outside region " +
                                                 std::to_string(put.slot.region) + " of peer " +
                                                 std::to_string(put.peer) + ".");
  }
  std::unique_lock lock(hub_->mutex_);
  Hub::Peer& self = hub_->peers_[self_];
  if (self.failed[put.peer])
    return tl::unexpected<Error>(Error{ErrorCode::kPeerFailed, hub_->peers_[self.gone ? self_ : put.peer].why_gone});
  CHECK(self.num_outstanding + self.sent.size() < max_outstanding_);
  ++self.num_outstanding;
  Hub::Lane& lane = hub_->LaneOf(self_, put.peer);
  const int64_t due_ns = lane.delay_ns == 0 ? 0 : NowNs() + lane.delay_ns;
  lane.pending.push_back({hub_->next_sequence_++, due_ns, put.source, put.slot, put.imm, put.cookie});
  hub_->peers_[put.peer].changed.notify_all();
  return {};
}

size_t LoopbackFabric::Poll(std::span<Event> events) {
  std::unique_lock lock(hub_->mutex_);
  Hub::Peer& self = hub_->peers_[self_];
  if (!hub_->manual_) {
    const int64_t now_ns = NowNs();
    for (PeerId peer = 0; peer < hub_->peers_.size(); ++peer) {
      if (peer == self_) continue;
      hub_->DeliverDue(lock, peer, self_, now_ns);
      hub_->DeliverDue(lock, self_, peer, now_ns);
    }
  }
  size_t num_events = 0;
  while (num_events < events.size() && self.sent.size() > 0) events[num_events++] = self.sent.Pop();
  while (num_events < events.size() && self.arrived.size() > 0) {
    Event event = self.arrived.Pop();
    event.release = TakeToken();
    events[num_events++] = event;
  }
  // Last, so that what a peer sent before it died is seen before its death.
  if (self.arrived.size() == 0) {
    for (PeerId peer = 0; peer < hub_->peers_.size() && num_events < events.size(); ++peer) {
      if (!std::exchange(self.failed_to_report[peer], uint8_t{0})) continue;
      events[num_events++] = {.kind = EventKind::kFailed, .peer = peer};
    }
  }
  return num_events;
}

void LoopbackFabric::GrowTokens(size_t capacity) {
  for (size_t token = token_generation_.size(); token < capacity; ++token)
    free_tokens_.push_back(static_cast<uint32_t>(token));
  token_generation_.resize(capacity);
}

uint64_t LoopbackFabric::TakeToken() {
  if (free_tokens_.empty()) GrowTokens(2 * token_generation_.size());  // the receiver holds more than ever before
  const uint32_t index = free_tokens_.back();
  free_tokens_.pop_back();
  return uint64_t{++token_generation_[index]} << 32 | index;
}

void LoopbackFabric::Release(uint64_t release) {
  const auto index = static_cast<uint32_t>(release);
  CHECK(index < token_generation_.size());
  CHECK(token_generation_[index] == release >> 32);  // released twice otherwise
  ++token_generation_[index];
  free_tokens_.push_back(index);
}

void LoopbackFabric::Wait(int timeout_ms) {
  std::unique_lock lock(hub_->mutex_);
  Hub::Peer& self = hub_->peers_[self_];
  const int64_t deadline_ns = NowNs() + int64_t{timeout_ms} * 1'000'000;
  for (;;) {
    if (std::exchange(self.woken, false) || self.sent.size() > 0 || self.arrived.size() > 0) return;
    if (std::find(self.failed_to_report.begin(), self.failed_to_report.end(), 1) != self.failed_to_report.end()) return;
    const int64_t now_ns = NowNs();
    if (now_ns >= deadline_ns) return;
    int64_t next_ns = kNever;
    if (!hub_->manual_) {
      for (PeerId peer = 0; peer < hub_->peers_.size(); ++peer) {
        for (const auto& [from, to] : {std::pair{peer, self_}, std::pair{self_, peer}}) {
          if (hub_->peers_[from].gone || hub_->peers_[to].gone || !hub_->RoomFor(to)) continue;
          for (const Pending& put : hub_->LaneOf(from, to).pending) next_ns = std::min(next_ns, put.due_ns);
        }
      }
    }
    if (next_ns <= now_ns) return;
    const std::chrono::nanoseconds until(std::min(next_ns, deadline_ns));
    self.changed.wait_until(lock, std::chrono::steady_clock::time_point(until));
  }
}

void LoopbackFabric::Wake() {
  std::unique_lock lock(hub_->mutex_);
  hub_->peers_[self_].woken = true;
  hub_->peers_[self_].changed.notify_all();
}

Error LoopbackFabric::FailureOf(PeerId peer) const {
  std::unique_lock lock(hub_->mutex_);
  const Hub::Peer& self = hub_->peers_[self_];
  CHECK(peer < hub_->peers_.size());
  if (!self.failed[peer]) return {ErrorCode::kPeerFailed, "Peer " + std::to_string(peer) + " has not failed."};
  return {ErrorCode::kPeerFailed, hub_->peers_[self.gone ? self_ : peer].why_gone};
}

std::string LoopbackFabric::Describe() const {
  PageReport pages;
  for (const Memory& memory : memory_) {
    pages.total_bytes += memory.pages().total_bytes;
    pages.huge_bytes += memory.pages().huge_bytes;
  }
  return "loopback, threads of one process; buffers " + ToString(pages);
}

std::string LoopbackFabric::DescribePath(PeerId peer) const {
  return peer != self_ && Reachable(peer) ? "in process, one memory copy" : "not connected";
}

}  // namespace

std::unique_ptr<LoopbackHub> LoopbackHub::Create(uint32_t num_peers) { return std::make_unique<Hub>(num_peers); }

}  // namespace gradlane
