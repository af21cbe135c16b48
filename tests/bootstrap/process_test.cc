// Ranks that are processes: killed, stopped, continued.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bootstrap/ranks.h"

namespace gradlane {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class ProcessTest : public testing::Test {
 protected:
  ProcessTest() { setenv("GRADLANE_SECRET", kSecret, 1); }

  // A job of one server and two workers; all processes.
  void StartAll(int peer_timeout_ms, const char* what = "rank") {
    const Fd listener = std::move(ListenLoopback().value());
    const std::string rendezvous = LocalAddress(listener.get())->ToString();
    for (uint32_t i = 0; i < 3; ++i) {
      const Member member = Membership{2, 1}.At(i);
      processes_.push_back(std::make_unique<HelperProcess>(
          std::vector<std::string>{what, member.role == Role::kServer ? "server" : "worker",
                                   std::to_string(member.rank), "2", "1", rendezvous, std::to_string(peer_timeout_ms),
                                   "60000", i == 0 ? std::to_string(listener.get()) : "-1", "-1"},
          i == 0 ? std::vector<int>{listener.get()} : std::vector<int>{}));
    }
    for (auto& process : processes_) ASSERT_EQ(process->ReadLine(), "joined");
  }
  std::vector<std::unique_ptr<HelperProcess>> processes_;
};

TEST_F(ProcessTest, AKilledWorkerIsNamed) {
  StartAll(30'000);
  processes_[2]->Kill(SIGKILL);
  for (int i : {0, 1}) {
    EXPECT_THAT(processes_[i]->ReadLine(), StartsWith("worker 1 died: its connection to server 0 ended"));
    EXPECT_EQ(processes_[i]->Wait(), 1);
  }
}

TEST_F(ProcessTest, AKilledHostIsNamed) {
  StartAll(30'000);
  processes_[0]->Kill(SIGKILL);
  for (int i : {1, 2}) {
    EXPECT_THAT(processes_[i]->ReadLine(), StartsWith("server 0 died: its connection to worker"));
    EXPECT_EQ(processes_[i]->Wait(), 1);
  }
}

TEST_F(ProcessTest, AStoppedWorkerIsNamed) {
  StartAll(1'000);
  processes_[2]->Kill(SIGSTOP);
  for (int i : {0, 1}) {
    EXPECT_EQ(processes_[i]->ReadLine(),
              "worker 1 has been silent for 1 s: it hangs, is stopped, or cannot be reached any more");
    EXPECT_EQ(processes_[i]->Wait(), 1);
  }
  // Continued, it hears what the others think of it.
  processes_[2]->Kill(SIGCONT);
  EXPECT_EQ(processes_[2]->ReadLine(),
            "worker 1 has been silent for 1 s: it hangs, is stopped, or cannot be reached any more");
}

TEST_F(ProcessTest, AStoppedHostIsNamed) {
  StartAll(1'000);
  processes_[0]->Kill(SIGSTOP);
  for (int i : {1, 2}) {
    EXPECT_EQ(processes_[i]->ReadLine(),
              "server 0 has been silent for 1 s: it hangs, is stopped, or cannot be reached any more");
    EXPECT_EQ(processes_[i]->Wait(), 1);
  }
}

// Given a whole job that is stopped for longer than the peer timeout and then continued, expect nobody to be blamed.
TEST_F(ProcessTest, AJobThatSleptGoesOn) {
  StartAll(1'000);
  for (auto& process : processes_) process->Kill(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(3'000));
  for (auto& process : processes_) process->Kill(SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  processes_[2]->Kill(SIGKILL);
  for (int i : {0, 1}) EXPECT_THAT(processes_[i]->ReadLine(), StartsWith("worker 1 died"));
}

TEST_F(ProcessTest, LeavingThenExitingIsNoFailure) {
  StartAll(30'000, "leave");
  for (auto& process : processes_) {
    EXPECT_EQ(process->ReadLine(), "left");
    EXPECT_EQ(process->Wait(), 0);
  }
}

}  // namespace
}  // namespace gradlane
