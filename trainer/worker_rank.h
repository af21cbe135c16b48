// The whole life of one worker rank of gradlane-train, from data to report.
#pragma once

#include "ps/fabric_choice.h"
#include "trainer/options.h"

namespace gradlane {

// Blocks until the job has ended. An error has been told to every other rank. Worker 0 prints the start-up report, the
// progress and the results, and writes --json and --trace. hub: set where the ranks are threads of this process.
Result<void> RunWorkerRank(const Options& options, LoopbackHub* hub);

// What BootstrapOptions take from the options, for a worker or a server.
BootstrapOptions BootstrapOptionsOf(const Options& options);

}  // namespace gradlane
