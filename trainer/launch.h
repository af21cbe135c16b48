// Starts the ranks of --local WxS as processes of this host, relays nothing but their exit: all are stopped when one
// fails, and none outlives the launcher. Owned by main; one thread.
#pragma once

#include <string>
#include <vector>

#include "trainer/options.h"

namespace gradlane {

// Re-executes this program (/proc/self/exe) once per rank with `argv` (the user's arguments, without --local, --json's
// and --trace's meaning unchanged) plus --role, --rank, --workers, --servers, --rendezvous and the inherited
// descriptors; a fresh secret goes to the children through their environment. Returns the exit code for main: 0 when every rank
// ended with 0, else that of the rank that failed first. On the first failure the others get the peer timeout to end by
// themselves, then SIGTERM, then SIGKILL.
int RunLocalProcesses(const Options& options, const std::vector<std::string>& arguments);

}  // namespace gradlane
