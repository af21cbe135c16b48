// CommLoop is the communication thread of a Worker or Server: it owns the Fabric from Start to Stop, takes turns at
// progress and posting, and sleeps when there is nothing to do. An error ends it and is told once.
//
// Start and Stop belong to the owner's thread; Stop comes before anything that Turn uses is destroyed.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "transport/base/error.h"
#include "transport/fabric.h"

namespace gradlane {

class CommLoop {
 public:
  explicit CommLoop(Fabric& fabric) : fabric_(fabric) {}
  ~CommLoop() { Stop(); }
  CommLoop(const CommLoop&) = delete;
  CommLoop& operator=(const CommLoop&) = delete;

  // turn: one round of progress; true if it did something. on_error: called on the communication thread, at most once.
  void Start(std::function<Result<bool>()> turn, std::function<void(const Error&)> on_error);
  void Stop();  // idempotent

 private:
  static constexpr int kSleepMs = 1000;  // an upper bound only: whoever has news wakes the fabric

  Fabric& fabric_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
};

}  // namespace gradlane
