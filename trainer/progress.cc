#include "trainer/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "transport/base/trace.h"

namespace gradlane {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kTerminalIntervalNs = kSecondNs / 10;
constexpr int64_t kPlainIntervalNs = 10 * kSecondNs;
constexpr int64_t kPlainLines = 10;

// "1:05", "2:03:09".
std::string Clock(double seconds) {
  const auto total = int64_t(std::clamp(seconds + 0.5, 0.0, 1e9));
  char text[48];
  if (total < 3600)
    std::snprintf(text, sizeof text, "%d:%02d", int(total / 60), int(total % 60));
  else
    std::snprintf(text, sizeof text, "%lld:%02d:%02d", static_cast<long long>(total / 3600), int(total / 60 % 60),
                  int(total % 60));
  return text;
}

}  // namespace

ProgressOutput ProgressOutput::Standard() {
  return {[](const std::string& text) {
            std::fwrite(text.data(), 1, text.size(), stdout);
            std::fflush(stdout);
          },
          NowNs, isatty(STDOUT_FILENO) == 1};
}

Progress::Progress(int64_t total_steps, int64_t images_per_step, bool active, ProgressOutput output)
    : total_steps_(std::max<int64_t>(total_steps, 1)),
      images_per_step_(images_per_step),
      active_(active),
      output_(std::move(output)),
      begin_ns_(output_.now_ns()),
      shown_ns_(begin_ns_) {}

Progress::~Progress() {
  if (line_open_) output_.write("\n");
}

void Progress::OnStep(int64_t step, float loss) {
  if (!active_) return;
  step_ = step;
  loss_sum_ += loss;
  ++num_losses_;
  const int64_t now_ns = output_.now_ns();
  if (Due(now_ns)) Show(now_ns);
}

void Progress::Finish() {
  if (!active_) return;
  if (step_ > shown_step_) Show(output_.now_ns());
  if (std::exchange(line_open_, false)) output_.write("\n");
}

bool Progress::Due(int64_t now_ns) const {
  if (step_ >= total_steps_) return true;
  if (output_.terminal) return shown_step_ == 0 || now_ns - shown_ns_ >= kTerminalIntervalNs;
  const auto tenth = [this](int64_t step) { return step * kPlainLines / total_steps_; };
  return tenth(step_) > tenth(shown_step_) || now_ns - shown_ns_ >= kPlainIntervalNs;
}

void Progress::Show(int64_t now_ns) {
  const double elapsed_s = std::max(double(now_ns - begin_ns_) / kSecondNs, 1e-9);
  const double images_per_s = double(step_) * double(images_per_step_) / elapsed_s;
  const bool done = step_ >= total_steps_;
  const double shown_s = done ? elapsed_s : elapsed_s / double(step_) * double(total_steps_ - step_);
  char line[192];
  std::snprintf(line, sizeof line, "worker 0: step %lld/%lld (%d%%), loss %.4f, %.0f images/s, %s %s",
                static_cast<long long>(step_), static_cast<long long>(total_steps_),
                int(double(step_) / double(total_steps_) * 100), loss_sum_ / double(std::max<int64_t>(num_losses_, 1)),
                images_per_s, Clock(shown_s).c_str(), done ? "in all" : "left");
  // ESC [ K erases what a longer line before left behind.
  output_.write(output_.terminal ? "\r" + std::string(line) + "\x1b[K" : std::string(line) + "\n");
  line_open_ = output_.terminal;
  shown_ns_ = now_ns;
  shown_step_ = step_;
  loss_sum_ = 0;
  num_losses_ = 0;
}

}  // namespace gradlane
