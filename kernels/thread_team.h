// A ThreadTeam runs one function on several threads at once and waits for all: fork and join, for pieces of work of
// tens of microseconds. Owned by one fec::Codec; Run from one thread at a time.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace gradlane {

class ThreadTeam {
 public:
  // num_threads: 1 or more, the caller of Run being one.
  explicit ThreadTeam(int num_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // work(0) on this thread, work(1), ... on the others. Returns when all have returned. work does not throw.
  template <typename Work>
  void Run(Work&& work) {
    Start([](void* context, int index) { (*static_cast<Work*>(context))(index); }, &work);
    work(0);
    Join();
  }

 private:
  using Function = void (*)(void* context, int index);

  void Start(Function function, void* context);
  void Join();
  void Help(int index);

  Function function_ = nullptr;
  void* context_ = nullptr;
  // A round is handed over by raising it (release), and over when running_ is 0 (each helper's release).
  std::atomic<unsigned> round_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> ending_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace gradlane
