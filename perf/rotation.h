// Measures several actions in turn, round after round (a, b, c, a, b, c, ...), so that what the machine does meanwhile
// meets all alike, and a ratio of two can be taken round by round. One thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace gradlane::perf {

// Seconds that one action took, by round.
class Samples {
 public:
  explicit Samples(std::vector<double> seconds) : seconds_(std::move(seconds)) {}

  double Median() const { return Quantile(seconds_, 0.5); }
  double P99() const { return Quantile(seconds_, 0.99); }
  double MedianRatioTo(const Samples& other) const;  // of the same rotation

 private:
  static double Quantile(std::vector<double> values, double share);  // the nearest that was measured

  std::vector<double> seconds_;
};

struct Action {
  std::function<void(size_t round)> run;           // timed
  std::function<void(size_t round)> prepare = {};  // before it, not timed; or empty
};

// One round more than `rounds` is run: the first, round 0, warms up and is not counted. rounds: 1 or more.
std::vector<Samples> MeasureInTurn(std::span<const Action> actions, size_t rounds);

}  // namespace gradlane::perf
