// The whole life of one server rank, for gradlane-server and for the servers of gradlane-train --local.
#pragma once

#include <string>

#include "ps/codec.h"
#include "ps/fabric_choice.h"
#include "transport/base/error.h"
#include "transport/bootstrap.h"

namespace gradlane {

struct ServerRankOptions {
  BootstrapOptions bootstrap;
  FabricChoice fabric;
  CodecChoice codec;
  std::string trace;  // a file to write this rank's part of the timeline to; empty: none
};

// Blocks until the job has ended. An error has been told to every other rank.
Result<void> RunServerRank(const ServerRankOptions& options);

// Collectives that every rank calls, in this order, after Bootstrap::Join. ps/PROTOCOL.md, "Life of a job".
inline constexpr char kJobCollective[] = "job";          // workers: Job::ToJson(); servers: empty
inline constexpr char kTrainedCollective[] = "trained";  // no worker has anything under way
inline constexpr char kResultsCollective[] = "results";  // JSON, by role
inline constexpr char kStoppedCollective[] = "stopped";  // no communication thread runs any more

// Where a rank other than worker 0 leaves its part of the timeline of `trace`.
std::string TracePartPath(const std::string& trace, Member member);
Result<void> WriteTextFile(const std::string& path, const std::string& text);

}  // namespace gradlane
