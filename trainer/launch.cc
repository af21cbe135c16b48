#include "trainer/launch.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "trainer/launch_processes.h"
#include "transport/base/socket.h"
#include "transport/base/secret.h"

namespace gradlane {
namespace {

int Refuse(const Error& error) {
  std::fprintf(stderr, "gradlane: %s\n", error.message.c_str());
  return ExitCode(error);
}

}  // namespace

int RunLocalProcesses(const Options& options, const std::vector<std::string>& arguments) {
  // The port is taken here and the open socket handed down, so that nobody else can take it in between, and a rank that
  // is faster than the host waits in its backlog instead of being refused.
  auto listener = ListenLoopback();
  if (!listener) return Refuse(listener.error());
  const auto address = LocalAddress(listener->get());
  if (!address) return Refuse(address.error());

  // Nothing is ever written. The children hold the read end only: end of file is the death of this process, however it
  // came about.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Refuse({ErrorCode::kSystem, std::string("cannot make a pipe: ") + std::strerror(errno), errno});
  const Fd read_end(ends[0]), write_end(ends[1]);

  // Resolved here: in a child the link would name whatever runs there by then.
  char executable[PATH_MAX] = {};
  if (readlink("/proc/self/exe", executable, sizeof executable - 1) <= 0)
    return Refuse({ErrorCode::kSystem, std::string("cannot read /proc/self/exe: ") + std::strerror(errno), errno});

  const auto processes = LocalProcesses(options.members, executable, arguments, address->ToString(), listener->get(),
                                        read_end.get(), MakeSecret());
  return RunProcesses(processes, {.grace_ms = options.peer_timeout_ms, .close_once_started = {listener->Release()}});
}

}  // namespace gradlane
