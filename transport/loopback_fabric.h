// The loopback fabric: ranks that are threads of one process. A put is one memcpy into the peer's slot. Faults can be
// injected: delay, a limited rate, the loss of a peer, reordering between puts.
//
// A put lands when either end polls, the delay has passed and the hub is not in manual mode: the source is read then, not
// when the put is posted. A fabric that is destroyed counts as gone for the others, with its own sentence.
//
// The hub is owned by whoever starts the threads and must outlive the fabrics. Its methods may be called by any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/fabric.h"

namespace gradlane {

class LoopbackHub {
 public:
  virtual ~LoopbackHub() = default;
  static std::unique_ptr<LoopbackHub> Create(uint32_t num_peers);

  virtual std::unique_ptr<Fabric> Open(PeerId self, size_t max_outstanding = 256) = 0;

  // From now on each put between these peers (one way) arrives, and is reported kSent, this much later. Default 0.
  virtual void SetDelay(PeerId from, PeerId to, int64_t delay_ns) = 0;
  // Every put is held until Step: then exactly one pending put (chosen by the seed if reordering, else the oldest) lands.
  virtual void SetManual(bool manual) = 0;
  virtual bool Step() = 0;  // false: nothing pending
  // Puts to one peer are delivered in an order drawn from this seed. 0 turns it off.
  virtual void SetReordering(uint64_t seed) = 0;
  // The peer is gone: nothing more arrives from or is sent to it; every other fabric gets one kFailed for it. Its own
  // fabric gets one for everybody else, so that its thread ends too.
  virtual void Kill(PeerId peer) = 0;
};

}  // namespace gradlane
