// A process for the tests to kill, stop and watch.
//   bootstrap_helper rank ROLE RANK WORKERS SERVERS RENDEZVOUS PEER_MS JOIN_MS LISTEN_FD PARENT_FD
//     joins, says "joined", waits for a failure and says it; exit code as ExitCode says
//   bootstrap_helper leave ... (the same)
//     joins, leaves, says "left"
//   bootstrap_helper launch GRACE_MS KILL_MS SCRIPT...
//     runs /bin/sh -c SCRIPT for each, as worker 0, worker 1, ...
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "trainer/launch_processes.h"
#include "transport/bootstrap.h"

namespace gradlane {
namespace {

int Say(const Error& error) {
  std::printf("%s\n", error.message.c_str());
  return ExitCode(error);
}

int RunRank(const std::vector<std::string>& arguments) {
  BootstrapOptions options;
  options.self = {arguments[1] == "server" ? Role::kServer : Role::kWorker,
                  static_cast<uint32_t>(std::stoul(arguments[2]))};
  options.members = {static_cast<uint32_t>(std::stoul(arguments[3])), static_cast<uint32_t>(std::stoul(arguments[4]))};
  options.rendezvous = arguments[5];
  options.peer_timeout_ms = std::stoi(arguments[6]);
  options.join_timeout_ms = std::stoi(arguments[7]);
  options.listen_fd = std::stoi(arguments[8]);
  options.parent_fd = std::stoi(arguments[9]);
  options.secret = std::getenv("GRADLANE_SECRET");
  auto rank = Bootstrap::Join(std::move(options));
  if (!rank) return Say(rank.error());
  std::printf("joined\n");
  if (arguments[0] == "leave") {
    if (auto left = (*rank)->Leave(); !left) return Say(left.error());
    std::printf("left\n");
    return 0;
  }
  while (true) {
    if (auto failure = (*rank)->Failure()) return Say(*failure);
    usleep(5'000);
  }
}

int Launch(const std::vector<std::string>& arguments) {
  RunProcessesOptions options;
  options.grace_ms = std::stoi(arguments[1]);
  options.kill_ms = std::stoi(arguments[2]);
  std::vector<ProcessSpec> processes;
  for (size_t i = 3; i < arguments.size(); ++i) {
    ProcessSpec process;
    process.name = "worker " + std::to_string(i - 3);
    process.executable = "/bin/sh";
    process.argv = {"sh", "-c", arguments[i]};
    processes.push_back(process);
  }
  return RunProcesses(processes, options);
}

}  // namespace
}  // namespace gradlane

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() >= 3 && arguments[0] == "launch") return gradlane::Launch(arguments);
  if (arguments.size() == 10) return gradlane::RunRank(arguments);
  return 2;
}
