// DumpingStore stands in front of a ParameterStore and writes the gradients of one step to files, as the layers hand
// them over and before any codec sees them: DIR/<tensor>.f32, raw little-endian fp32. It never overwrites a file.
//
// Owned by the trainer's main function, which keeps the store behind it alive; training thread only, but Fail.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ps/job.h"
#include "ps/parameter_store.h"

namespace gradlane {

struct GradientDump {
  std::string dir;
  int64_t step = 1;  // counts from 1
};

// kInvalidArgument: the folder is there and holds something, or is no folder.
Result<void> CheckDumpDir(const std::string& dir);

class DumpingStore final : public ParameterStore {
 public:
  // Makes the folder. job and store are borrowed and outlive this.
  static Result<std::unique_ptr<DumpingStore>> Open(const GradientDump& dump, const Job& job, ParameterStore& store);

  std::span<float> Params(uint32_t tensor) override { return store_.Params(tensor); }
  std::span<float> Grads(uint32_t tensor) override { return store_.Grads(tensor); }
  Result<void> Begin() override { return store_.Begin(); }
  void GradReady(uint32_t layer) override;
  Result<void> WaitParams(uint32_t layer) override;  // tells of a write that failed
  void Fail(const Error& error) override { store_.Fail(error); }
  StoreStats Stats() const override { return store_.Stats(); }
  uint64_t BytesSoFar() const override { return store_.BytesSoFar(); }

 private:
  DumpingStore(const GradientDump& dump, const Job& job, ParameterStore& store)
      : dump_(dump), job_(job), store_(store) {}
  Result<void> Write(uint32_t tensor);

  const GradientDump dump_;
  const Job& job_;
  ParameterStore& store_;
  int64_t step_ = 1;
  std::optional<Error> failure_;
};

}  // namespace gradlane
