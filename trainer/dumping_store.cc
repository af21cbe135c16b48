#include "trainer/dumping_store.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace gradlane {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "files hold fp32 in little-endian order");

Result<void> CheckDumpDir(const std::string& dir) {
  std::error_code error;
  const fs::file_status status = fs::status(dir, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (error) return Fail(ErrorCode::kInvalidArgument, "--dump-gradients: " + dir + ": " + error.message() + ".");
  if (!fs::is_directory(status)) {
    return Fail(ErrorCode::kInvalidArgument, "--dump-gradients: " + dir + " is no folder; name a new one.");
  }
  if (!fs::is_empty(dir, error) || error) {
    return Fail(ErrorCode::kInvalidArgument,
                "--dump-gradients: " + dir + " is not empty, and nothing is overwritten; name a new folder.");
  }
  return {};
}

Result<std::unique_ptr<DumpingStore>> DumpingStore::Open(const GradientDump& dump, const Job& job,
                                                         ParameterStore& store) {
  if (dump.step > job.lr.total_steps) {
    return gradlane::Fail(ErrorCode::kInvalidArgument, "--dump-step " + std::to_string(dump.step) +
                                                           " never comes: the job has " +
                                                           std::to_string(job.lr.total_steps) + " steps.");
  }
  TRY(CheckDumpDir(dump.dir));
  std::error_code error;
  fs::create_directories(dump.dir, error);
  if (error) {
    return gradlane::Fail(ErrorCode::kInvalidArgument,
                          "--dump-gradients: " + dump.dir + " cannot be made: " + error.message() + ".", error.value());
  }
  return std::unique_ptr<DumpingStore>(new DumpingStore(dump, job, store));
}

void DumpingStore::GradReady(uint32_t layer) {
  for (uint32_t t = 0; step_ == dump_.step && t < job_.tensors.size() && !failure_; ++t) {
    if (job_.tensors[t].layer != layer) continue;
    if (const Result<void> written = Write(t); !written) failure_ = written.error();
  }
  if (layer == 0) ++step_;  // the last of a step's backward pass
  store_.GradReady(layer);
}

Result<void> DumpingStore::WaitParams(uint32_t layer) {
  if (failure_) return tl::unexpected(*failure_);
  return store_.WaitParams(layer);
}

Result<void> DumpingStore::Write(uint32_t tensor) {
  const std::string path = (fs::path(dump_.dir) / (job_.tensors[tensor].name + ".f32")).string();
  const std::span<const float> grad = store_.Grads(tensor);
  std::FILE* const file = std::fopen(path.c_str(), "wbx");
  const bool written = file != nullptr && std::fwrite(grad.data(), sizeof(float), grad.size(), file) == grad.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed) return {};
  const int error = errno;
  return gradlane::Fail(ErrorCode::kSystem,
                        "The gradients could not be written to " + path + ": " + std::strerror(error) + ".", error);
}

}  // namespace gradlane
