// ParameterStore is where the trainer's parameters live and its gradients go: a Worker that shares them with others
// through parameter servers, or a LocalStore that updates them in place. All methods belong to the training thread, but
// Fail.
//
// A step: WaitParams(k), forward of layer k, for every k from 0; then backward of layer k and GradReady(k), from the last.
#pragma once

#include <cstdint>
#include <span>

#include "transport/base/error.h"

namespace gradlane {

// Totals since Begin, without the initial parameters.
struct StoreStats {
  uint64_t push_bytes = 0;       // as sent
  uint64_t push_raw_bytes = 0;   // the same as fp32
  uint64_t push_auto_raw_bytes = 0;  // of push_bytes: what --codec auto chose not to code
  uint64_t reply_bytes = 0;
  uint64_t reply_raw_bytes = 0;
  uint64_t push_survivors = 0;   // elements that FEC or 2-bit sent
  uint64_t push_elems = 0;
  uint64_t preemptions = 0;
  // Segment steps that were left out for a NaN or infinity of this worker, the lowest of those that had one; with ssp and
  // async, its flagged pushes (raw ones are found by the server, which counts them in ServerStats).
  uint64_t nonfinite_segments = 0;
  int64_t encode_ns = 0;
  int64_t decode_ns = 0;
  int64_t exposed_ns = 0;        // that WaitParams blocked
};

class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  // Tensor i, NumElems fp32, 64-byte aligned, valid as long as the store.
  virtual std::span<float> Params(uint32_t tensor) = 0;
  virtual std::span<float> Grads(uint32_t tensor) = 0;

  // Rank 0 has written the initial parameters; returns when this rank holds them too.
  virtual Result<void> Begin() = 0;

  // The gradients of this layer are complete, and this step will not read its parameters again. The gradients belong to
  // the store until WaitParams of the same layer has returned. Never blocks.
  virtual void GradReady(uint32_t layer) = 0;

  // Returns when the parameters of this layer hold what the last GradReady led to. An error: the job has failed.
  virtual Result<void> WaitParams(uint32_t layer) = 0;

  virtual void Fail(const Error& error) = 0;  // any thread: WaitParams returns this from now on

  virtual StoreStats Stats() const = 0;  // between steps, after WaitParams of every layer
  virtual uint64_t BytesSoFar() const = 0;  // pushed and taken back, as sent, without the initial parameters; any time
};

}  // namespace gradlane
