#include "trainer/launch_processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "transport/base/socket.h"

extern char** environ;

namespace gradlane {
namespace {

constexpr int kCannotExecute = 127;  // as a shell says it

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> MergedEnvironment(const ProcessSpec& process) {
  std::vector<std::string> merged;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    const bool replaced = std::any_of(process.environment.begin(), process.environment.end(), [&](const auto& added) {
      return entry.compare(0, added.first.size() + 1, added.first + "=") == 0;
    });
    if (!replaced) merged.push_back(entry);
  }
  for (const auto& [name, value] : process.environment) merged.push_back(name + "=" + value);
  return merged;
}

// SIGINT, SIGTERM and SIGHUP as a descriptor, but for those that this process was started to ignore (nohup). Blocks
// them until destroyed; `original` is what the children are to run with.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction action;
      if (sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&set_, number);
    }
    pthread_sigmask(SIG_BLOCK, &set_, &original_);
    fd_.Reset(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~StopSignals() { pthread_sigmask(SIG_SETMASK, &original_, nullptr); }

  const sigset_t& original() const { return original_; }
  int fd() const { return fd_.get(); }
  bool Next(signalfd_siginfo* info) { return read(fd_.get(), info, sizeof *info) == sizeof *info; }

 private:
  sigset_t set_, original_;
  Fd fd_;
};

// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void Execute(const ProcessSpec& process, char* const* argv, char* const* environment, pid_t parent,
                          const sigset_t& mask) {
  // The second belt, beside the pipe of parent_fd: SIGKILL when the forking thread ends (prctl(2)). If it ended before
  // this call, we have another parent by now.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotExecute);
  for (const int fd : process.inherited_fds) SetCloseOnExec(fd, false);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  execve(process.executable.c_str(), argv, environment);
  const char* const reason = strerrordesc_np(errno);
  for (const char* part : {"gradlane: cannot run ", process.executable.c_str(), ": ", reason, "\n"}) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, part, std::strlen(part));
  }
  _exit(kCannotExecute);
}

class Children {
 public:
  explicit Children(const std::vector<ProcessSpec>& processes) : processes_(processes) {}
  ~Children() {
    Signal(SIGKILL);
    for (Child& child : children_)
      if (child.running) waitpid(child.pid, nullptr, 0);
  }

  bool Start(const sigset_t& mask) {
    const pid_t parent = getpid();
    for (const ProcessSpec& process : processes_) {
      std::vector<std::string> arguments = process.argv;
      std::vector<std::string> merged = MergedEnvironment(process);
      const std::vector<char*> argv = Pointers(arguments), environment = Pointers(merged);
      const pid_t pid = fork();
      if (pid == 0) Execute(process, argv.data(), environment.data(), parent, mask);
      if (pid < 0) {
        std::fprintf(stderr, "gradlane: cannot start %s: %s\n", process.name.c_str(), std::strerror(errno));
        return false;
      }
      children_.push_back({pid, true, Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))});
    }
    return true;
  }

  size_t NumRunning() const {
    return std::count_if(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
  }

  void Signal(int number) {
    for (const Child& child : children_)
      if (child.running) kill(child.pid, number);  // not yet waited for, so the number is still its own
  }

  void AddTo(std::vector<pollfd>* polled) const {
    for (const Child& child : children_)
      if (child.running) polled->push_back({child.pidfd.get(), POLLIN, 0});
  }
  // Without a descriptor of its own (kernels before 5.3) a child's end is found by looking.
  bool AllPollable() const {
    return std::all_of(children_.begin(), children_.end(), [](const Child& child) { return bool(child.pidfd); });
  }

  struct Ended {
    const ProcessSpec* process;
    int status;
  };
  std::vector<Ended> Reap() {
    std::vector<Ended> ended;
    for (size_t i = 0; i < children_.size(); ++i) {
      int status = 0;
      if (!children_[i].running || waitpid(children_[i].pid, &status, WNOHANG) != children_[i].pid) continue;
      children_[i].running = false;
      children_[i].pidfd.Reset();
      ended.push_back({&processes_[i], status});
    }
    return ended;
  }

 private:
  struct Child {
    pid_t pid;
    bool running;
    Fd pidfd;
  };
  const std::vector<ProcessSpec>& processes_;
  std::vector<Child> children_;
};

int ExitCodeOf(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string HowItEnded(int status) {
  if (!WIFSIGNALED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  const char* description = sigdescr_np(WTERMSIG(status));
  return "ended by signal " + std::to_string(WTERMSIG(status)) + " (" + (description ? description : "unknown") + ")";
}

}  // namespace

int RunProcesses(const std::vector<ProcessSpec>& processes, const RunProcessesOptions& options) {
  StopSignals signals;
  Children children(processes);
  const bool all_started = children.Start(signals.original());
  for (const int fd : options.close_once_started) close(fd);
  if (!all_started) return 1;

  int exit_code = 0;
  int stop_signal = 0;
  int64_t terminate_ms = INT64_MAX, kill_ms = INT64_MAX;
  const auto begin_to_end = [&] {
    if (terminate_ms == INT64_MAX && kill_ms == INT64_MAX) terminate_ms = NowMs() + options.grace_ms;
  };
  while (true) {
    // Of several that ended at the same time, one that died of a signal is more likely the cause than one that said so.
    auto ended = children.Reap();
    std::stable_partition(ended.begin(), ended.end(), [](const auto& child) { return WIFSIGNALED(child.status); });
    for (const auto& [process, status] : ended) {
      if (status == 0 || exit_code != 0) continue;
      exit_code = ExitCodeOf(status);
      if (stop_signal != 0) continue;  // it was asked to
      std::fprintf(stderr, "gradlane: %s %s%s\n", process->name.c_str(), HowItEnded(status).c_str(),
                   children.NumRunning() > 0 ? "; stopping the others" : "");
      begin_to_end();
    }
    if (children.NumRunning() == 0) break;

    const int64_t now = NowMs();
    if (now >= terminate_ms) {
      children.Signal(SIGTERM);
      terminate_ms = INT64_MAX;
      kill_ms = now + options.kill_ms;
    }
    if (now >= kill_ms) {
      children.Signal(SIGKILL);
      kill_ms = now + options.kill_ms;
    }
    const int64_t deadline = std::min(terminate_ms, kill_ms);
    int64_t timeout = deadline == INT64_MAX ? -1 : std::max<int64_t>(deadline - now, 0);
    if (!children.AllPollable()) timeout = 50;
    std::vector<pollfd> polled{{signals.fd(), POLLIN, 0}};
    children.AddTo(&polled);
    poll(polled.data(), polled.size(), static_cast<int>(timeout));

    signalfd_siginfo info;
    while (signals.Next(&info)) {
      const int number = static_cast<int>(info.ssi_signo);
      if (stop_signal != 0) {
        children.Signal(SIGKILL);
        continue;
      }
      stop_signal = number;
      std::fprintf(stderr, "gradlane: %s; stopping every rank\n", sigdescr_np(number));
      // A signal from the terminal went to the whole foreground process group, the children included.
      if (info.ssi_code != SI_KERNEL) children.Signal(number);
      begin_to_end();
    }
  }
  return stop_signal != 0 ? 128 + stop_signal : exit_code;
}

std::vector<ProcessSpec> LocalProcesses(const Membership& members, const std::string& executable,
                                        const std::vector<std::string>& arguments, const std::string& rendezvous,
                                        int listen_fd, int parent_fd, const std::string& secret) {
  constexpr std::array<std::string_view, 6> kDecided = {"--local",   "--role",    "--rank",
                                                        "--workers", "--servers", "--rendezvous"};
  std::vector<std::string> kept;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = std::string_view(arguments[i]).substr(0, arguments[i].find('='));
    if (std::find(kDecided.begin(), kDecided.end(), name) == kDecided.end())
      kept.push_back(arguments[i]);
    else if (name.size() == arguments[i].size())
      ++i;  // its value is the next argument
  }
  std::vector<ProcessSpec> processes;
  for (uint32_t i = 0; i < members.Count(); ++i) {
    const Member member = members.At(i);
    ProcessSpec process{.name = ToString(member),
                        .executable = executable,
                        .argv = {executable},
                        .environment = {},
                        .inherited_fds = {}};
    process.argv.insert(process.argv.end(), kept.begin(), kept.end());
    const auto add = [&](const char* name, const std::string& value) {
      process.argv.push_back(name);
      process.argv.push_back(value);
    };
    add("--role", member.role == Role::kServer ? "server" : "worker");
    add("--rank", std::to_string(member.rank));
    add("--workers", std::to_string(members.num_workers));
    add("--servers", std::to_string(members.num_servers));
    add("--rendezvous", rendezvous);
    add("--parent-fd", std::to_string(parent_fd));
    process.inherited_fds.push_back(parent_fd);
    if (i == 0) {
      add("--listen-fd", std::to_string(listen_fd));
      process.inherited_fds.push_back(listen_fd);
    }
    process.environment.emplace_back("GRADLANE_SECRET", secret);
    processes.push_back(std::move(process));
  }
  return processes;
}

}  // namespace gradlane
