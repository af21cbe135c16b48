#include "trainer/codec_plan_file.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "transport/base/socket.h"

namespace gradlane {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

Result<std::string> ReadFile(const std::string& path) {
  const std::string what = "--codec-plan: the file " + path;
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO is no plan, and must not hang us
  struct stat status = {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    return Fail(ErrorCode::kUnavailable, what + " cannot be read: " + std::strerror(errno) + ".", errno);
  }
  if (!S_ISREG(status.st_mode)) return Fail(ErrorCode::kInvalidArgument, what + " is no regular file.");
  if (size_t(status.st_size) > kMaxFileBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                what + " has more than " + std::to_string(kMaxFileBytes) + " bytes: no codec plan does.");
  }
  std::string text(size_t(status.st_size), '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t now = read(file.get(), text.data() + got, text.size() - got);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return Fail(ErrorCode::kUnavailable, what + " cannot be read: " + std::strerror(errno) + ".", errno);
    if (now == 0) break;
    got += size_t(now);
  }
  text.resize(got);
  return text;
}

tl::unexpected<Error> Exists(const std::string& option, const std::string& path) {
  return Fail(ErrorCode::kInvalidArgument,
              option + ": " + path + " exists already, and is not written over: name another file.");
}

}  // namespace

Result<CodecPlan> ReadCodecPlan(const std::string& path, std::span<const JobTensor> tensors, uint32_t num_workers) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Result<CodecPlan> plan = CodecPlan::Parse(text, tensors, num_workers);
  if (!plan) plan.error().message = "--codec-plan: " + path + ": " + plan.error().message;
  return plan;
}

Result<std::string> CodecPlanDigest(const std::string& path) {
  if (path.empty()) return "none";
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  unsigned char hash[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(hash, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  char hex[sizeof hash * 2 + 1];
  sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
  return std::string(hex);
}

Result<void> CheckNewFile(const std::string& option, const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) == 0) return Exists(option, path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (stat(folder.empty() ? "." : folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return Fail(ErrorCode::kInvalidArgument, option + ": the folder of " + path + " does not exist.");
  }
  return {};
}

Result<void> WriteNewFile(const std::string& option, const std::string& path, const std::string& text) {
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0 && errno == EEXIST) return Exists(option, path);
  size_t put = 0;
  while (file.get() >= 0 && put < text.size()) {
    const ssize_t now = write(file.get(), text.data() + put, text.size() - put);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) break;
    put += size_t(now);
  }
  if (file.get() >= 0 && put == text.size()) return {};
  const int code = errno;
  if (file.get() >= 0) unlink(path.c_str());
  return Fail(ErrorCode::kInvalidArgument, option + ": cannot write " + path + ": " + std::strerror(code) + ".", code);
}

}  // namespace gradlane
