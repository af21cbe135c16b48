#include "perf/rotation.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace gradlane::perf {

double Samples::MedianRatioTo(const Samples& other) const {
  std::vector<double> ratios(seconds_.size());
  std::ranges::transform(seconds_, other.seconds_, ratios.begin(), std::divides{});
  return Quantile(std::move(ratios), 0.5);
}

double Samples::Quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

std::vector<Samples> MeasureInTurn(std::span<const Action> actions, size_t rounds) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> seconds(actions.size());
  for (size_t round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].prepare) actions[i].prepare(round);
      const Clock::time_point begin = Clock::now();
      actions[i].run(round);
      const std::chrono::duration<double> taken = Clock::now() - begin;
      if (round > 0) seconds[i].push_back(taken.count());
    }
  }
  return {std::make_move_iterator(seconds.begin()), std::make_move_iterator(seconds.end())};
}

}  // namespace gradlane::perf
