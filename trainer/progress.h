// Progress tells a person how training goes: on a terminal one line, rewritten in place; otherwise a plain line every
// tenth of the way or every 10 seconds, and one at the end. Owned and called by the training thread of one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace gradlane {

// Where the lines go and what the time is; replaced by tests.
struct ProgressOutput {
  std::function<void(const std::string&)> write;
  std::function<int64_t()> now_ns;
  bool terminal = false;

  static ProgressOutput Standard();  // stdout
};

class Progress {
 public:
  // images_per_step: of all workers together. active: false keeps silent (all workers but the first). The clock starts.
  Progress(int64_t total_steps, int64_t images_per_step, bool active,
           ProgressOutput output = ProgressOutput::Standard());
  ~Progress();  // without Finish, a line under way on the terminal is ended
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After each step; step counts from 1. loss: of this step; a line shows the mean since the one before it.
  void OnStep(int64_t step, float loss);
  // Training is done: the last line, if it has not been written.
  void Finish();

 private:
  bool Due(int64_t now_ns) const;
  void Show(int64_t now_ns);

  const int64_t total_steps_;
  const int64_t images_per_step_;
  const bool active_;
  const ProgressOutput output_;
  const int64_t begin_ns_;
  int64_t shown_ns_;
  int64_t shown_step_ = 0;
  int64_t step_ = 0;
  double loss_sum_ = 0;  // since the line before
  int64_t num_losses_ = 0;
  bool line_open_ = false;  // the terminal's cursor stands behind our line
};

}  // namespace gradlane
