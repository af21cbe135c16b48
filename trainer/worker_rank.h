// The whole life of one worker rank of gradlane-train, from joining the job to the report.
#pragma once

#include "ps/fabric_choice.h"
#include "trainer/data.h"
#include "trainer/options.h"

namespace gradlane {

// Blocks until the job has ended. An error has been told to every other rank. Worker 0 prints the start-up report, the
// progress and the results, and writes --json and --trace. hub: set where the ranks are threads of this process.
Result<void> RunWorkerRank(const Options& options, const DataSplits& data, LoopbackHub* hub);

// What a rank says at the bootstrap. agreed: what has to be equal on every worker; servers leave it empty.
BootstrapOptions BootstrapOptionsOf(const Options& options, Member self);

// 1 x 28 x 28 for the small models, 3 x 224 x 224 for those made for it: what --data synthetic makes.
ImageShape SyntheticShape(const std::string& model);

}  // namespace gradlane
