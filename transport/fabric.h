// A Fabric moves bytes between ranks: it owns registered memory, puts bytes into a peer's slot and notifies the peer,
// and reports what happened as events. It knows nothing of gradients.
//
// One Fabric per rank, owned by that rank's Worker or Server. All methods but Wake() belong to one thread (the
// communication thread once it runs; the opening thread before that).
//
// Life: Open (of the implementation) -> Allocate every region -> LocalAddress -> [bootstrap exchanges addresses] ->
// Connect -> PutNotify / Poll / Wait -> destructor. Nothing is allocated on the data path after Connect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/base/error.h"

namespace gradlane {

using PeerId = uint32_t;    // index into the addresses given to Connect; the local rank has an index too
using RegionId = uint32_t;  // 0, 1, 2, ... in the order of Allocate; the same number names the region to peers

// Registered memory. `bytes` stays valid, zero-filled at first, until the Fabric is destroyed.
struct Region {
  RegionId id = 0;
  std::span<std::byte> bytes;
};

struct RemoteSlot {
  RegionId region = 0;     // as the receiver numbered it
  size_t offset_bytes = 0;
};

enum class EventKind : uint8_t {
  kSent,     // the source of the oldest-or-any put with this cookie may be reused
  kArrived,  // a peer's put has landed completely
  kFailed,   // this peer is gone: nothing more will be sent to or arrive from it. Once per peer. Puts to it that were
             // not reported kSent never will be: they no longer count, and their sources may be reused
};

// kSent: peer, cookie. kFailed: peer; FailureOf(peer) has the sentence. kArrived: peer, imm, payload, and release.
struct Event {
  EventKind kind = EventKind::kSent;
  PeerId peer = 0;
  uint32_t imm = 0;
  uint64_t cookie = 0;
  // Where the bytes lie: in the slot (one-sided fabrics) or where an active message landed. Valid until
  // Release(release), which must be called exactly once for every kArrived event, from the owning thread; the
  // receiver may hold it for as long as it wants.
  std::span<const std::byte> payload;
  uint64_t release = 0;
};

struct PutRequest {
  PeerId peer = 0;
  std::span<const std::byte> source;  // inside one Region of this Fabric; unchanged until kSent; may be empty
  RemoteSlot slot;                    // where it lands in the peer, if the path to it is one-sided
  uint32_t imm = 0;                   // delivered with the notice
  uint64_t cookie = 0;                // comes back with kSent
};

class Fabric {
 public:
  virtual ~Fabric() = default;  // peers that still poll see kFailed for this rank: leave together, after a barrier

  // Pre-faulted, huge-page where the host gives them, registered with the device. Before LocalAddress only.
  virtual Result<Region> Allocate(size_t bytes) = 0;

  // Opaque bytes that let peers reach every region allocated so far. Handed out only after authentication.
  virtual Result<std::string> LocalAddress() = 0;

  // addresses[i] is peer i's LocalAddress(); entry `self` is ignored; an empty entry is a peer never talked to.
  // Malformed addresses are an error, nothing else. Returns when every peer can be put to, or fails within timeout_ms.
  virtual Result<void> Connect(PeerId self, std::span<const std::string> addresses, int timeout_ms) = 0;

  // Posts a put; never blocks. Puts to one peer may arrive in any order. At most MaxOutstanding() puts that have not
  // been reported kSent may exist at a time over all peers: more is a bug of the caller. Errors: the peer has failed
  // (kPeerFailed), the slot lies outside the peer's region (kInvalidArgument).
  virtual Result<void> PutNotify(const PutRequest& put) = 0;
  virtual size_t MaxOutstanding() const = 0;

  // Makes progress and fills events; returns how many. 0 means nothing is pending just now.
  virtual size_t Poll(std::span<Event> events) = 0;
  virtual void Release(uint64_t release) = 0;

  // Sleeps until Poll may have something, Wake() was called (also before), or timeout_ms has passed. Spins shortly
  // before it sleeps.
  virtual void Wait(int timeout_ms) = 0;
  virtual void Wake() = 0;  // any thread

  // The sentence behind kFailed.
  virtual Error FailureOf(PeerId peer) const = 0;

  // For the start-up report: "ucx 1.13.1" and, for a peer, the path that won and why ("shared memory, one-sided put").
  virtual std::string Describe() const = 0;
  virtual std::string DescribePath(PeerId peer) const = 0;
};

}  // namespace gradlane
