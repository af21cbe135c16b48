// The file of --codec-plan, read, and that of --codec-plan-out, which is never an old one written over. Stateless; any
// thread.
#pragma once

#include <span>
#include <string>

#include "ps/codec_plan.h"
#include "trainer/options.h"
#include "transport/base/error.h"

namespace gradlane {

// The plan of --codec-plan, checked against the model. kUnavailable: the file cannot be read; kInvalidArgument: it is
// too big, no plan, or of another job. The sentence names the file.
Result<CodecPlan> ReadCodecPlan(const std::string& path, std::span<const JobTensor> tensors, uint32_t num_workers);

// Over the file's bytes, in hex: what all workers have to agree on. "none" without a path.
Result<std::string> CodecPlanDigest(const std::string& path);

// kInvalidArgument: something of this name is there already, or its folder is not. Before training, so that it is not
// found out after.
Result<void> CheckNewFile(const std::string& option, const std::string& path);

// kInvalidArgument: something of this name has come to be meanwhile. A file that could not be written whole is removed.
Result<void> WriteNewFile(const std::string& option, const std::string& path, const std::string& text);

}  // namespace gradlane
