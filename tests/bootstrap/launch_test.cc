// The launcher of --local: shell scripts in the place of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <fstream>

#include "tests/bootstrap/ranks.h"
#include "trainer/launch_processes.h"

namespace gradlane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ProcessSpec Script(const std::string& name, const std::string& text) {
  return {.name = name, .executable = "/bin/sh", .argv = {"sh", "-c", text}, .environment = {}, .inherited_fds = {}};
}

struct Outcome {
  int exit_code;
  std::string said;
};
Outcome RunThem(const std::vector<ProcessSpec>& processes, RunProcessesOptions options = {}) {
  testing::internal::CaptureStderr();
  const int exit_code = RunProcesses(processes, options);
  return {exit_code, testing::internal::GetCapturedStderr()};
}

TEST(LaunchTest, AllWellIsSilentAndZero) {
  const auto outcome =
      RunThem({Script("server 0", "exit 0"), Script("worker 0", "sleep 0.1"), Script("worker 1", ":")});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.said, "");
}

TEST(LaunchTest, ADeathBySignalIsToldAndTheOthersAreStopped) {
  const auto outcome = RunThem(
      {Script("server 0", "exec sleep 60"), Script("worker 0", "exec sleep 60"), Script("worker 1", "kill -9 $$")},
      {.grace_ms = 100, .kill_ms = 30'000, .close_once_started = {}});
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_EQ(outcome.said, "gradlane: worker 1 ended by signal 9 (Killed); stopping the others\n");
}

TEST(LaunchTest, AnExitCodeIsPassedOn) {
  const auto outcome = RunThem({Script("server 0", "exec sleep 60"), Script("worker 0", "exit 2")},
                               {.grace_ms = 100, .close_once_started = {}});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.said, "gradlane: worker 0 ended with exit code 2; stopping the others\n");
}

// Given others that end by themselves within the grace, expect no signal to be needed and the first exit code to count.
TEST(LaunchTest, TheOthersGetTimeToEndByThemselves) {
  const auto outcome =
      RunThem({Script("server 0", "sleep 0.5; echo ended by itself >&2; exit 1"), Script("worker 0", "exit 3")},
              {.grace_ms = 60'000, .close_once_started = {}});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.said, "gradlane: worker 0 ended with exit code 3; stopping the others\nended by itself\n");
}

TEST(LaunchTest, WhoIgnoresSigtermIsKilled) {
  const auto outcome = RunThem(
      {Script("server 0", "trap '' TERM; while :; do sleep 0.05; done"), Script("worker 0", "sleep 0.2; exit 1")},
      {.grace_ms = 50, .kill_ms = 100, .close_once_started = {}});
  EXPECT_EQ(outcome.exit_code, 1);
}

TEST(LaunchTest, AStoppedChildIsKilledToo) {
  const auto outcome = RunThem({Script("server 0", "kill -STOP $$"), Script("worker 0", "sleep 0.2; exit 1")},
                               {.grace_ms = 50, .kill_ms = 100, .close_once_started = {}});
  EXPECT_EQ(outcome.exit_code, 1);
}

TEST(LaunchTest, TheLastToFailHasNobodyToStop) {
  const auto outcome = RunThem({Script("worker 0", "sleep 0.1; exit 5")});
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(outcome.said, "gradlane: worker 0 ended with exit code 5\n");
}

TEST(LaunchTest, AMissingProgramIsNamed) {
  ProcessSpec process = Script("worker 0", "");
  process.executable = "/no/such/program";
  const auto outcome = RunThem({process});
  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_THAT(outcome.said, HasSubstr("cannot run /no/such/program: No such file or directory"));
}

TEST(LaunchTest, TheEnvironmentIsReplacedForTheChildrenOnly) {
  setenv("GRADLANE_SECRET", "of the launcher", 1);
  ProcessSpec process = Script("worker 0", "echo \"$GRADLANE_SECRET\" \"${HOME:+home}\" >&2");
  process.environment = {{"GRADLANE_SECRET", "of the job"}};
  setenv("HOME", "/", 1);
  EXPECT_EQ(RunThem({process}).said, "of the job home\n");
  EXPECT_STREQ(getenv("GRADLANE_SECRET"), "of the launcher");
}

// Given a pipe of which the children get the read end, expect them to have neither its write end nor the other's
// socket.
TEST(LaunchTest, OnlyTheNamedDescriptorsAreInherited) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]), write_end(ends[1]);
  Fd listener = std::move(ListenLoopback().value());
  const auto there = [](int fd) { return "test -e /proc/$$/fd/" + std::to_string(fd); };
  const std::string script = there(read_end.get()) + " && ! " + there(write_end.get()) + " && ";
  ProcessSpec host = Script("server 0", script + there(listener.get()));
  host.inherited_fds = {read_end.get(), listener.get()};
  ProcessSpec other = Script("worker 0", script + "! " + there(listener.get()));
  other.inherited_fds = {read_end.get()};
  const int listen_fd = listener.Release();
  const auto outcome = RunThem({host, other}, {.close_once_started = {listen_fd}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.said;
  EXPECT_EQ(fcntl(listen_fd, F_GETFD), -1);  // closed here
}

TEST(LaunchTest, SignalsArePassedOn) {
  for (const int number : {SIGINT, SIGTERM}) {
    const std::string name = number == SIGINT ? "INT" : "TERM";
    HelperProcess launcher({"launch", "60000", "60000",
                            "trap 'echo got it; exit 0' " + name + "; echo ready; while :; do sleep 0.05; done"});
    ASSERT_EQ(launcher.ReadLine(), "ready");
    launcher.Kill(number);
    EXPECT_EQ(launcher.ReadLine(), number == SIGINT ? "gradlane: Interrupt; stopping every rank"
                                                    : "gradlane: Terminated; stopping every rank");
    EXPECT_EQ(launcher.ReadLine(), "got it");
    EXPECT_EQ(launcher.Wait(), 128 + number);
  }
}

TEST(LaunchTest, ASecondSignalKills) {
  HelperProcess launcher({"launch", "60000", "60000", "trap '' INT; echo ready; while :; do sleep 0.05; done"});
  ASSERT_EQ(launcher.ReadLine(), "ready");
  launcher.Kill(SIGINT);
  EXPECT_EQ(launcher.ReadLine(), "gradlane: Interrupt; stopping every rank");
  launcher.Kill(SIGINT);
  EXPECT_EQ(launcher.Wait(), 128 + SIGINT);
}

// Given kill -9 of the launcher, expect its children to end with it: the pipe is closed for good.
TEST(LaunchTest, NothingOutlivesAKilledLauncher) {
  HelperProcess launcher({"launch", "60000", "60000", "echo ready; exec sleep 600", "exec sleep 600"});
  ASSERT_EQ(launcher.ReadLine(), "ready");
  launcher.Kill(SIGKILL);
  EXPECT_EQ(launcher.ReadLine(), "");  // the end of file comes when the last holder of the pipe is gone
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
}

TEST(LaunchTest, TheRanksOfALocalJob) {
  const auto processes =
      LocalProcesses({2, 1}, "/bin/gradlane-train", {"--local", "2x1", "--model", "mlp", "--json=out", "--epochs", "1"},
                     "127.0.0.1:7000", 8, 9, "s");
  ASSERT_EQ(processes.size(), 3u);
  EXPECT_EQ(processes[0].name, "server 0");
  EXPECT_EQ(processes[0].executable, "/bin/gradlane-train");
  EXPECT_THAT(processes[0].argv, ElementsAre("/bin/gradlane-train", "--model", "mlp", "--json=out", "--epochs", "1",
                                             "--role", "server", "--rank", "0", "--workers", "2", "--servers", "1",
                                             "--rendezvous", "127.0.0.1:7000", "--parent-fd", "9", "--listen-fd", "8"));
  EXPECT_THAT(processes[0].inherited_fds, ElementsAre(9, 8));
  EXPECT_EQ(processes[2].name, "worker 1");
  EXPECT_THAT(processes[2].argv, ElementsAre("/bin/gradlane-train", "--model", "mlp", "--json=out", "--epochs", "1",
                                             "--role", "worker", "--rank", "1", "--workers", "2", "--servers", "1",
                                             "--rendezvous", "127.0.0.1:7000", "--parent-fd", "9"));
  EXPECT_THAT(processes[2].inherited_fds, ElementsAre(9));
  EXPECT_THAT(processes[2].environment, ElementsAre(std::pair<std::string, std::string>{"GRADLANE_SECRET", "s"}));
}

TEST(LaunchTest, WithoutServersTheFirstWorkerListens) {
  const auto processes = LocalProcesses({2, 0}, "x", {"--local=2x0"}, "127.0.0.1:7000", 8, 9, "s");
  ASSERT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes[0].name, "worker 0");
  EXPECT_THAT(processes[0].inherited_fds, ElementsAre(9, 8));
  EXPECT_THAT(processes[1].argv, ElementsAre("x", "--role", "worker", "--rank", "1", "--workers", "2", "--servers", "0",
                                             "--rendezvous", "127.0.0.1:7000", "--parent-fd", "9"));
}

TEST(LaunchTest, WhatLocalDecidesIsTakenOut) {
  const auto processes = LocalProcesses({1, 1}, "x", {"--local=1x1", "--workers", "1", "--servers=1", "--localhost"},
                                        "127.0.0.1:7000", 8, 9, "s");
  EXPECT_EQ(processes[0].argv[1], "--localhost");
  EXPECT_EQ(processes[0].argv[2], "--role");
}

}  // namespace
}  // namespace gradlane
