#include "transport/ucx_address.h"

#include <cstring>

namespace gradlane {
namespace {

constexpr char kMagic[5] = {'G', 'L', 'U', 'C', 'X'};
constexpr uint8_t kVersion = 1;
constexpr uint32_t kMaxRegions = 1 << 16;

uint64_t Checksum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

template <typename T>
void Append(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void AppendBlob(std::string& out, const std::string& blob) {
  Append(out, static_cast<uint32_t>(blob.size()));
  out += blob;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  bool Take(T& value) {
    if (bytes_.size() < sizeof(T)) return false;
    T result = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
      result |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes_[i])) << (8 * i));
    bytes_.remove_prefix(sizeof(T));
    value = result;
    return true;
  }
  bool TakeBlob(std::string& blob) {
    uint32_t length = 0;
    if (!Take(length) || length == 0 || length > bytes_.size()) return false;
    blob.assign(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
    return true;
  }
  bool Empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

}  // namespace

std::string PackUcxAddress(const UcxAddress& address) {
  std::string out(kMagic, sizeof(kMagic));
  Append(out, kVersion);
  Append(out, uint16_t{0});
  Append(out, address.token);
  Append(out, address.ucx_version);
  Append(out, address.max_put_bytes);
  AppendBlob(out, address.host);
  Append(out, address.process);
  Append(out, address.started);
  AppendBlob(out, address.worker);
  Append(out, static_cast<uint32_t>(address.regions.size()));
  for (const UcxRegionAddress& region : address.regions) {
    Append(out, region.base);
    Append(out, region.bytes);
    AppendBlob(out, region.rkey);
  }
  Append(out, Checksum(out));
  return out;
}

Result<UcxAddress> ParseUcxAddress(std::string_view bytes) {
  constexpr size_t kHeadBytes = sizeof(kMagic) + sizeof(uint8_t) + sizeof(uint16_t);
  const auto malformed = [](const char* what) {
    return Fail(ErrorCode::kMalformed, std::string("A UCX address ") + what + ".");
  };
  if (bytes.size() < kHeadBytes + sizeof(uint64_t)) return malformed("is too short");
  if (std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) return malformed("does not begin as one");
  const auto version = static_cast<uint8_t>(bytes[sizeof(kMagic)]);
  if (version != kVersion) {
    return Fail(ErrorCode::kMismatch, "A UCX address has format " + std::to_string(version) + ", this build reads " +
                                          std::to_string(kVersion) + ": run the same version on every rank.");
  }
  uint64_t checksum = 0;
  Reader(bytes.substr(bytes.size() - sizeof(checksum))).Take(checksum);
  if (checksum != Checksum(bytes.substr(0, bytes.size() - sizeof(checksum))))
    return malformed("is damaged (its checksum is wrong)");
  Reader reader(bytes.substr(kHeadBytes, bytes.size() - kHeadBytes - sizeof(checksum)));
  UcxAddress address;
  uint32_t num_regions = 0;
  if (!reader.Take(address.token) || !reader.Take(address.ucx_version) || !reader.Take(address.max_put_bytes) ||
      !reader.TakeBlob(address.host) || !reader.Take(address.process) || !reader.Take(address.started) ||
      !reader.TakeBlob(address.worker) || !reader.Take(num_regions)) {
    return malformed("ends within its fields");
  }
  if (num_regions > kMaxRegions) return malformed("names too many regions");
  for (uint32_t i = 0; i < num_regions; ++i) {
    UcxRegionAddress region;
    if (!reader.Take(region.base) || !reader.Take(region.bytes) || !reader.TakeBlob(region.rkey))
      return malformed("ends within a region");
    if (region.base + region.bytes < region.base) return malformed("has a region that wraps around");
    address.regions.push_back(std::move(region));
  }
  if (!reader.Empty()) return malformed("has bytes after its end");
  return address;
}

}  // namespace gradlane
