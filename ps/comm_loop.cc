#include "ps/comm_loop.h"

#include <utility>

namespace gradlane {

void CommLoop::Start(std::function<Result<bool>()> turn, std::function<void(const Error&)> on_error) {
  CHECK(!thread_.joinable());
  thread_ = std::thread([this, turn = std::move(turn), on_error = std::move(on_error)] {
    while (!stopping_.load(std::memory_order_relaxed)) {
      const Result<bool> busy = turn();
      if (!busy) {
        on_error(busy.error());
        return;
      }
      if (!*busy) fabric_.Wait(kSleepMs);
    }
  });
}

void CommLoop::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_relaxed);
  fabric_.Wake();
  thread_.join();
}

}  // namespace gradlane
