// Worker is one rank's ParameterStore over parameter servers: it encodes and pushes gradients by priority, and takes
// parameters back, on a communication thread of its own.
//
// Life: Open -> [LocalAddress, exchange] -> Connect -> Begin -> steps -> Stop; or LoadState and Resume in place of Begin. Owned by the trainer's main function. It
// owns its Fabric; the Job, Layout and Trace track are borrowed and outlive it.
//
// Who owns a layer's buffers: the training thread from WaitParams to GradReady, the communication thread in between.
// The hand-over is the ring (release/acquire) on the way in, and done_[layer] (release/acquire) on the way back.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/fec_codec.h"
#include "ps/comm_loop.h"
#include "ps/layout.h"
#include "ps/parameter_store.h"
#include "ps/rank_config.h"
#include "ps/send_queue.h"
#include "transport/base/spsc_ring.h"
#include "transport/base/memory.h"

namespace gradlane {

class Worker final : public ParameterStore {
 public:
  // Makes every buffer. The communication thread does not run yet.
  static Result<std::unique_ptr<Worker>> Open(const RankConfig& config, std::unique_ptr<Fabric> fabric);
  ~Worker() override { Stop(); }

  Fabric& fabric() { return *fabric_; }  // until Begin
  // Called at most once, on the communication thread, when it can go no further; it is to call Fail. Default: Fail.
  void OnError(std::function<void(const Error&)> callback) { on_error_ = std::move(callback); }

  std::span<float> Params(uint32_t tensor) override { return OfTensor(params_, tensor); }
  std::span<float> Grads(uint32_t tensor) override { return OfTensor(grads_, tensor); }
  Result<void> Begin() override;
  void GradReady(uint32_t layer) override;
  Result<void> WaitParams(uint32_t layer) override;
  void Fail(const Error& error) override;
  StoreStats Stats() const override;
  uint64_t BytesSoFar() const override { return bytes_so_far_.load(std::memory_order_relaxed); }
  // By tensor: what --codec auto decided, or was told to repeat. Between steps, as Stats.
  std::vector<CodecDecision> CodecDecisions() const;

  void Stop();  // ends the communication thread; idempotent

  // What training has made of this rank (ps/STATE.md), of all segments or of none. Training thread, between two steps:
  // WaitParams of every layer has returned since the last GradReady, and Begin or Resume has; also after Stop.
  // kInvalidArgument: a step is under way; kMalformed: parameters are not finite.
  Result<std::vector<std::byte>> SaveState() const;
  // Before Begin. On an error (kMalformed, kMismatch: another job, rank or number of ranks) nothing has changed.
  Result<void> LoadState(std::span<const std::byte> bytes);
  // After LoadState, in place of Begin: no initial parameters are sent, and none are waited for. Every rank of the job has
  // to resume, from states that were saved between the same two steps.
  Result<void> Resume();

 private:
  struct SegmentState {
    uint64_t clock = 0;          // pushes so far: the step
    bool awaiting = false;       // a reply is due
    bool initializing = true;
    bool encoded = false;        // the staging slot holds this step's bytes
    bool raw = false;            // --codec auto: this step's gradient is sent as fp32
    bool settled = false;        // --codec auto: the residual went out with a raw gradient and is zero
    bool flagged = false;        // encoded: the gradient is not finite, and a flag goes in its place
    uint32_t encoded_bytes = 0;
  };
  struct TensorState {
    explicit TensorState(const Job& job) : steering(job.fec_density, job.fec_threshold) {}
    fec::DensitySteering steering;
    uint32_t segments_encoded = 0;  // of this step
    uint64_t survivors = 0;
    bool flagged = false;           // a segment of this step is not finite
    CodecMeter meter;               // --codec auto
    CodecDecision decision;         // --codec auto
  };
  static constexpr uint32_t kFailedMark = UINT32_MAX;

  Worker(const RankConfig& config, std::unique_ptr<Fabric> fabric);
  std::span<float> OfTensor(std::span<float> all, uint32_t tensor);
  std::span<float> OfSegment(std::span<float> all, uint32_t segment);
  Result<void> WaitDone(uint32_t layer);

  // Communication thread.
  Result<bool> Turn();
  void TakeHandOvers();
  void Enqueue(uint32_t layer);
  Result<void> OnEvent(const Event& event);
  Result<void> OnReply(PeerId peer, uint32_t imm, std::span<const std::byte> payload);
  std::string ComplaintAboutFlag(const SegmentState& state, std::span<const std::byte> payload) const;
  void TakeBack(uint32_t segment);
  Result<Outgoing> Prepare(uint32_t segment);
  void Encode(uint32_t segment);
  void CountBytes(uint64_t& total, uint64_t bytes);
  bool KeepsResidual() const;
  bool KeepsSteering() const;
  void TakeRaw(uint32_t segment);
  bool IsMeasured(uint64_t step) const;
  void Measure(uint32_t segment, int64_t encode_ns);
  void Decide(uint32_t tensor, uint64_t step);
  void CountDown(uint32_t layer);

  const Job& job_;
  const Layout& layout_;
  const Membership members_;
  const uint32_t rank_;
  TraceTrack* const track_;
  std::unique_ptr<Fabric> fabric_;
  std::optional<SendQueue> queue_;

  std::span<float> params_;
  std::span<float> grads_;
  std::span<std::byte> staging_;  // one slot a segment; empty if raw gradients are pushed
  Memory residual_memory_;
  std::span<float> residual_;     // as grads_; empty without error feedback

  // Training thread.
  std::vector<uint32_t> target_;  // rounds handed over, by layer
  int64_t exposed_ns_ = 0;
  bool loaded_ = false;
  bool begun_ = false;

  // Shared.
  SpscRing<uint32_t> hand_over_;                   // layers, from the training thread
  std::vector<std::atomic<uint32_t>> done_;        // rounds completed, by layer; kFailedMark: see failure_
  std::atomic<uint64_t> bytes_so_far_{0};          // written by the communication thread; nothing follows from it
  std::mutex failure_mutex_;
  std::optional<Error> failure_;                   // by failure_mutex_

  // Communication thread.
  fec::Codec fec_;
  const CodecAuto codec_auto_;
  std::vector<float> probe_;  // one segment, to measure what the server does; empty where nothing is measured
  std::vector<SegmentState> segments_;
  std::vector<TensorState> tensors_;
  std::vector<uint32_t> remaining_;        // events until the layer's round is complete: reply and sent, each segment
  std::vector<uint32_t> withheld_layers_;  // serial: handed over, waiting for the rest of backward
  StoreStats stats_;
  std::function<void(const Error&)> on_error_ = [this](const Error& error) { Fail(error); };
  CommLoop loop_;  // last: its thread ends before anything above goes away
};

}  // namespace gradlane
