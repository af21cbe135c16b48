// Helpers of the bootstrap's tests: a job whose ranks are threads of the test, raw sockets that speak to its host, and
// helper processes that can be killed or stopped.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "transport/base/socket.h"
#include "transport/bootstrap.h"

namespace gradlane {

inline constexpr char kSecret[] = "the secret of the tests";

inline constexpr Member kServer0{Role::kServer, 0};
inline constexpr Member kWorker0{Role::kWorker, 0};
inline constexpr Member kWorker1{Role::kWorker, 1};

// A listening socket of its own; hands out options that fit together and that a test then spoils.
class TestJob {
 public:
  explicit TestJob(Membership members) : members_(members), listener_(ListenLoopback().value()) {
    rendezvous_ = LocalAddress(listener_.get()).value().ToString();
  }
  const std::string& rendezvous() const { return rendezvous_; }
  const Membership& members() const { return members_; }

  BootstrapOptions Options(Member self) {
    BootstrapOptions options;
    options.self = self;
    options.members = members_;
    options.rendezvous = rendezvous_;
    options.secret = kSecret;
    options.join_timeout_ms = 60'000;
    options.peer_timeout_ms = 30'000;
    if (members_.IndexOf(self) == 0) options.listen_fd = listener_.Release();
    return options;
  }
  std::vector<BootstrapOptions> AllOptions() {
    std::vector<BootstrapOptions> all;
    for (uint32_t i = 0; i < members_.Count(); ++i) all.push_back(Options(members_.At(i)));
    return all;
  }

 private:
  const Membership members_;
  Fd listener_;
  std::string rendezvous_;
};

// Every rank joins on a thread of its own.
inline std::vector<Result<std::unique_ptr<Bootstrap>>> JoinAll(std::vector<BootstrapOptions> all) {
  std::vector<Result<std::unique_ptr<Bootstrap>>> results(all.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Bootstrap::Join(std::move(all[i])); });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

// A job that must come together.
inline std::vector<std::unique_ptr<Bootstrap>> JoinAllOrDie(std::vector<BootstrapOptions> all) {
  std::vector<std::unique_ptr<Bootstrap>> ranks;
  for (auto& result : JoinAll(std::move(all))) {
    if (!result) ADD_FAILURE() << result.error().message;
    ranks.push_back(result ? std::move(*result) : nullptr);
  }
  return ranks;
}

inline void OnEveryRank(size_t count, const std::function<void(size_t)>& body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (auto& thread : threads) thread.join();
}

// The first failure that this rank hears of; ctest's timeout is the only limit.
inline Error WaitForFailure(const Bootstrap& rank) {
  while (true) {
    if (auto failure = rank.Failure()) return *failure;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// A blocking socket to the job's host.
class RawClient {
 public:
  explicit RawClient(const std::string& rendezvous) {
    const auto addresses = Resolve(ParseHostPort(rendezvous).value()).value();
    fd_.Reset(socket(addresses[0].storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd_.get(), addresses[0].get(), addresses[0].num_bytes), 0) << std::strerror(errno);
  }
  explicit RawClient(Fd fd) : fd_(std::move(fd)) {}

  void Send(std::string_view bytes) { (void)!send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // What came; empty at the end of the connection.
  std::string Receive() {
    char buffer[4096];
    const ssize_t bytes = recv(fd_.get(), buffer, sizeof buffer, 0);
    return bytes > 0 ? std::string(buffer, static_cast<size_t>(bytes)) : std::string();
  }
  void WaitForEnd() {
    while (!Receive().empty()) {
    }
  }
  void Close() { fd_.Reset(); }

 private:
  Fd fd_;
};

// tests/bootstrap/helper.cc, its standard output and error read together, a line at a time.
class HelperProcess {
 public:
  explicit HelperProcess(std::vector<std::string> arguments, const std::vector<int>& inherited = {}) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    output_.Reset(ends[0]);
    Fd write_end(ends[1]);
    arguments.insert(arguments.begin(), GRADLANE_BIN_DIR "/bootstrap_helper");
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDERR_FILENO);
    for (const int fd : inherited) posix_spawn_file_actions_adddup2(&actions, fd, fd);  // clears close-on-exec
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0) << argv[0];
    posix_spawn_file_actions_destroy(&actions);
  }
  ~HelperProcess() {
    if (pid_ > 0 && !waited_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  void Kill(int number) { kill(pid_, number); }
  // The next line without its end; empty at the end of the output.
  std::string ReadLine() {
    std::string line;
    char c;
    while (read(output_.get(), &c, 1) == 1) {
      if (c == '\n') return line;
      line += c;
    }
    return line;
  }
  std::string ReadAll() {
    std::string all;
    for (std::string line = ReadLine(); !line.empty(); line = ReadLine()) all += line + "\n";
    return all;
  }
  // Its exit code, or 128 + its signal.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    waited_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_ = -1;
  bool waited_ = false;
  Fd output_;
};

}  // namespace gradlane
