// Starts the ranks of --local WxS as processes of this host, relays nothing but their exit: all are stopped when one
// fails, and none outlives the launcher. Owned by main; one thread, the one that started the program (the children are
// killed when the thread that made them ends). What does not depend on the options is in launch_processes.h.
#pragma once

#include <string>
#include <vector>

#include "trainer/options.h"

namespace gradlane {

// Re-executes this program (/proc/self/exe) once per rank with `arguments` (the user's, without the program's name;
// --local and its value are taken out, --json's and --trace's meaning is unchanged) plus --role, --rank, --workers,
// --servers, --rendezvous and the inherited descriptors --parent-fd and, for the first rank, --listen-fd; a fresh
// secret goes to the children through GRADLANE_SECRET in their environment. Returns the exit code for main: 0 when
// every rank ended with 0, else that of the rank that failed first (128 + its signal), 128 + the signal if this process
// was told to stop. On the first failure the others get the peer timeout to end by themselves, then SIGTERM, after 2 s
// more SIGKILL.
int RunLocalProcesses(const Options& options, const std::vector<std::string>& arguments);

}  // namespace gradlane
