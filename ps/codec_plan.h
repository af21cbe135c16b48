// What --codec auto decides: which tensors a worker sends as fp32, because coding them takes longer than it saves, and
// from which step on. A decision rests on times, which no two runs share; so a run writes its decisions down, and a run
// that is given them repeats it bit for bit. Pure value types; any thread. The file is specified in ps/PROTOCOL.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ps/job.h"
#include "transport/base/error.h"

namespace gradlane {

class StateReader;
class StateWriter;

inline constexpr uint32_t kDefaultLinkMbps = 10'000;
inline constexpr uint32_t kMaxLinkMbps = 10'000'000;
inline constexpr uint32_t kMaxDecideSteps = 1'000'000;

// Of one tensor at one worker. All 0: not measured.
struct CodecCost {
  double encode_ns_per_elem = 0;
  double decode_ns_per_elem = 0;  // decode and add
  double add_ns_per_elem = 0;     // of fp32: what the server does with a gradient that is not coded
  double ratio = 0;               // bytes as fp32 over bytes as coded
  bool operator==(const CodecCost&) const = default;

  bool measured() const { return ratio > 0; }
  // From the gradient to the server's sum, each part after the other: what overlaps in a job (the next segment is coded
  // while this one travels) is left out on both sides.
  double CodedNs(uint64_t num_elems, uint32_t link_mbps) const;
  double RawNs(uint64_t num_elems, uint32_t link_mbps) const;
  // False where nothing was measured: FEC is what was asked for first.
  bool RawIsFaster(uint64_t num_elems, uint32_t link_mbps) const {
    return measured() && RawNs(num_elems, link_mbps) < CodedNs(num_elems, link_mbps);
  }

  void SaveTo(StateWriter& out) const;
  void LoadFrom(StateReader& in);  // what is wrong, the reader keeps
};

// Collects one tensor's times, segment by segment, and keeps the best step of each: what else ran on the machine can
// only add to them. The ratio is that of all steps.
class CodecMeter {
 public:
  struct Sample {
    uint64_t elems = 0;
    uint64_t coded_bytes = 0;
    int64_t encode_ns = 0;
    int64_t decode_ns = 0;
    int64_t add_ns = 0;
  };
  void Add(const Sample& segment);
  // The tensor's step is complete. complete: false drops it (a segment was not finite).
  void EndStep(bool complete);
  CodecCost Cost() const;  // not measured(), if no step was complete

  void SaveTo(StateWriter& out) const;  // between steps
  void LoadFrom(StateReader& in);       // what is wrong, the reader keeps

 private:
  Sample step_;
  Sample total_;
  CodecCost best_;
  bool any_ = false;
};

struct CodecDecision {
  uint64_t raw_from_step = 0;  // steps count from 1; 0: coded all along
  CodecCost cost;
  bool operator==(const CodecDecision&) const = default;

  bool RawAt(uint64_t step) const { return raw_from_step != 0 && step >= raw_from_step; }
};

struct CodecPlan {
  struct Tensor {
    std::string name;
    uint64_t num_elems = 0;
    std::vector<CodecDecision> of_worker;
    bool operator==(const Tensor&) const = default;
  };
  uint32_t link_mbps = kDefaultLinkMbps;
  uint32_t decide_steps = 0;
  uint32_t num_workers = 0;
  std::vector<Tensor> tensors;
  bool operator==(const CodecPlan&) const = default;

  std::vector<CodecDecision> OfWorker(uint32_t worker) const;  // by tensor

  std::string ToJson() const;
  // Hostile input. kInvalidArgument, with a sentence that begins with "The codec plan": not of this version, malformed,
  // or of other tensors (name or size) or another number of workers than these.
  static Result<CodecPlan> Parse(const std::string& text, std::span<const JobTensor> tensors, uint32_t num_workers);
};

// One worker's decisions on their way to worker 0: numbers alone, by tensor. FromText: hostile input; kMalformed.
std::string ToText(std::span<const CodecDecision> decisions);
Result<std::vector<CodecDecision>> DecisionsFromText(const std::string& text, size_t num_tensors);

}  // namespace gradlane
