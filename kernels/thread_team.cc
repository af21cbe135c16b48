#include "kernels/thread_team.h"

#include "kernels/check.h"

namespace gradlane {
namespace {

// How often to look before sleeping: some ten microseconds, longer than a piece of work is late.
constexpr int kSpins = 2000;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when value is no longer `old`.
template <typename T>
T AwaitChange(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    Relax();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) {
  GRADLANE_KERNELS_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) helpers_.emplace_back([this, i] { Help(i); });
}

ThreadTeam::~ThreadTeam() {
  ending_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::Start(Function function, void* context) {
  if (helpers_.empty()) return;
  function_ = function;
  context_ = context;
  running_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);  // pairs with the acquire in Help
  round_.notify_all();
}

void ThreadTeam::Join() {
  int running = running_.load(std::memory_order_acquire);  // pairs with the release in Help
  while (running != 0) running = AwaitChange(running_, running);
}

void ThreadTeam::Help(int index) {
  unsigned seen = 0;
  while (true) {
    seen = AwaitChange(round_, seen);
    if (ending_.load(std::memory_order_relaxed)) return;
    function_(context_, index);
    if (running_.fetch_sub(1, std::memory_order_release) == 1) running_.notify_all();
  }
}

}  // namespace gradlane
