// FEC, Fixed-Exponential Compression: a span of float gradients becomes a short string of bytes, and back.
// Stateless; the caller owns every buffer. Any thread. The bytes are specified in kernels/FORMAT.md, what happens to
// one element in kernels/fec_rules.h.
//
// Kernels return a plain status: this folder depends on nothing of ours, and whoever knows the peer makes the sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradlane::fec {

// Blocks are independent; a segment is a whole number of them, but the last.
inline constexpr size_t kBlockElems = 4096;

enum class Layout : uint8_t { kSmallest, kRuns };                    // kRuns forces the published layout
enum class Rounding : uint8_t { kNearest, kTruncate, kStochastic };  // kTruncate is the published one

struct Params {
  // |x| < 2^threshold_exponent * (1 + threshold_mantissa / 2^23) is dropped; a mantissa of 0 is the published rule.
  // Codes are exponents, from the smallest that rounding can leave, 16 of them.
  int threshold_exponent = -7;  // -126 .. 112; 111 at most for a mantissa above 0
  uint32_t threshold_mantissa = 0;
  Layout layout = Layout::kSmallest;
  Rounding rounding = Rounding::kNearest;
  uint32_t rounding_seed = 0;  // of kStochastic: one for each call, made of the run's seed, the step and the segment
};

struct EncodeStats {
  size_t bytes = 0;      // written
  size_t survivors = 0;  // elements that were sent
  bool finite = true;    // false: a NaN or infinity was met; nothing useful was written, residual is untouched
};

// The most bytes that Encode can write for this many elements.
size_t Bound(size_t num_elems);

// Codes value = grad + residual, and leaves what was not sent in residual: residual = value - decoded(value).
// grad: (N,) fp32. residual: (N,) fp32, updated in place, or empty for no error feedback. dst: Bound(N) bytes.
// grad, residual and dst do not overlap.
EncodeStats Encode(std::span<const float> grad, std::span<float> residual, const Params& params,
                   std::span<std::byte> dst);

enum class [[nodiscard]] DecodeStatus : uint8_t{
    kOk,
    kTruncated,  // src ends too early
    kTrailing,   // bytes after the last block
    kBadVersion,
    kBadCount,  // counts or positions that do not fit the block
};
const char* ToString(DecodeStatus status);

// src holds exactly one Encode of dst.size() elements. Hostile input: nothing is read or written out of bounds, and on
// an error dst is unchanged (the input is validated before the first write).
DecodeStatus Decode(std::span<const std::byte> src, std::span<float> dst);
DecodeStatus DecodeAdd(std::span<const std::byte> src, std::span<float> dst);  // dst += decoded

// Steers a tensor's threshold towards a density, judged by the density achieved (under error feedback values pile up
// just below the threshold, so this step's histogram misleads, and a whole exponent less releases the pile: a quarter
// of all elements at once where they walk at random. So the threshold moves in fractions of an exponent). One object
// per tensor (worker) or segment (server); deterministic: depends on the survivors counted only.
class DensitySteering {
 public:
  explicit DensitySteering(double target_density, int first_exponent = -7);
  int threshold_exponent() const;
  uint32_t threshold_mantissa() const;
  void ApplyTo(Params& params) const;                // sets both
  void Observe(size_t survivors, size_t num_elems);  // once a step, after all of the tensor was encoded

  // All that Observe has changed: an object of the same target goes on from it as this one would.
  struct State {
    double log_threshold = 0;
    double drift = 0;
    double owed = 0;
    double smoothed = -1;
    int steps = 0;
    bool operator==(const State&) const = default;
  };
  State state() const { return {log_threshold_, drift_, owed_, smoothed_, steps_}; }
  // Hostile input: false, and nothing changed, for what no Observe can have led to.
  [[nodiscard]] bool Restore(const State& state);

 private:
  double target_;
  double log_threshold_;  // exponent + mantissa / 2^23
  double drift_ = 0;      // what log_threshold_ moves a step when the density is as asked
  double owed_ = 0;       // of a burst: density over target, less 1, as far as the threshold has not answered it
  double smoothed_ = -1;  // density achieved over target, exponential average; below 0 before the first step
  int steps_ = 0;         // counts the first few
};

}  // namespace gradlane::fec
