// Runs a set of processes until all have ended, and ends all of them when one fails: what is below --local, without
// knowing what the processes are. One thread, which must outlive the children (see PR_SET_PDEATHSIG below).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "transport/base/error.h"
#include "transport/base/members.h"

namespace gradlane {

struct ProcessSpec {
  std::string name;        // for people: "worker 1"
  std::string executable;  // a path; not searched for
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;  // added to, or in place of, this process's own
  std::vector<int>
      inherited_fds;  // the only ones that the child keeps, beside 0, 1 and 2 (if the rest is close-on-exec)
};

struct RunProcessesOptions {
  int grace_ms = 10'000;                // after the first failure or signal: for the others to end by themselves
  int kill_ms = 2'000;                  // from SIGTERM to SIGKILL
  std::vector<int> close_once_started;  // descriptors that only the children are to hold on
};

// Returns the exit code for main: 0 if every process ended with 0; else that of the first that failed (128 + its signal
// if it died of one); 128 + the signal if this process was told to stop by SIGINT, SIGTERM or SIGHUP. These are passed
// on to the children (a terminal's Ctrl-C reaches them without us); a second one kills. No child outlives the call,
// nor, by PR_SET_PDEATHSIG, the calling thread. Says on stderr who failed.
int RunProcesses(const std::vector<ProcessSpec>& processes, const RunProcessesOptions& options);

// The ranks of --local: the servers, then the workers. `arguments`: the user's, without the program's name; --local and
// what it decides are taken out. The first process gets `listen_fd`, every one gets `parent_fd`.
std::vector<ProcessSpec> LocalProcesses(const Membership& members, const std::string& executable,
                                        const std::vector<std::string>& arguments, const std::string& rendezvous,
                                        int listen_fd, int parent_fd, const std::string& secret);

}  // namespace gradlane
