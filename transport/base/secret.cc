#include "transport/base/secret.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "transport/base/socket.h"

namespace gradlane {
namespace {

constexpr size_t kMinSecretBytes = 16;
constexpr size_t kMaxSecretBytes = 4096;

}  // namespace

Result<void> CheckSecret(const std::string& secret, const std::string& where) {
  if (secret.size() >= kMinSecretBytes && secret.size() <= kMaxSecretBytes) return {};
  return Fail(ErrorCode::kInvalidArgument,
              where + " has " + std::to_string(secret.size()) + " characters; between " +
                  std::to_string(kMinSecretBytes) + " and " + std::to_string(kMaxSecretBytes) +
                  " are needed (for example the output of: head -c 24 /dev/urandom | base64)");
}

Result<std::string> ReadSecretFile(const std::string& path) {
  const auto unreadable = [&](ErrorCode code) {
    return Fail(code, "cannot read the secret file '" + path + "': " + std::strerror(errno), errno);
  };
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return unreadable(ErrorCode::kUnavailable);
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return unreadable(ErrorCode::kSystem);
  if (!S_ISREG(status.st_mode))
    return Fail(ErrorCode::kInvalidArgument, "the secret file '" + path + "' is not a regular file");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "the secret file '" + path + "' is open to other users: chmod 600 '" + path + "'");
  }
  std::string text(kMaxSecretBytes + 2, '\0');
  size_t num_bytes = 0;
  while (num_bytes < text.size()) {
    const ssize_t bytes = read(fd.get(), text.data() + num_bytes, text.size() - num_bytes);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return unreadable(ErrorCode::kSystem);
    if (bytes == 0) break;
    num_bytes += static_cast<size_t>(bytes);
  }
  std::string line = text.substr(0, std::min(num_bytes, text.find('\n')));
  if (!line.empty() && line.back() == '\r') line.pop_back();
  sodium_memzero(text.data(), text.size());
  TRY(CheckSecret(line, "the first line of the secret file '" + path + "'"));
  return line;
}

std::string MakeSecret() {
  CHECK(sodium_init() >= 0);
  std::array<uint8_t, 32> bytes;
  randombytes_buf(bytes.data(), bytes.size());
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

}  // namespace gradlane
