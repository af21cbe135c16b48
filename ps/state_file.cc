#include "ps/state_file.h"

#include <sodium.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace gradlane {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the state's numbers are little-endian, and written as they lie");
static_assert(kStateHashBytes == crypto_generichash_BYTES);

constexpr char kMagic[8] = {'G', 'L', 'S', 'T', 'A', 'T', 'E', '\n'};
constexpr size_t kJobHashAt = 32;
constexpr size_t kBodyBytesAt = kJobHashAt + kStateHashBytes;
static_assert(kStateHeadBytes == kBodyBytesAt + sizeof(uint64_t));

using Hash = std::array<std::byte, kStateHashBytes>;

Hash HashOf(std::span<const std::byte> bytes) {
  Hash hash;
  crypto_generichash(reinterpret_cast<unsigned char*>(hash.data()), hash.size(),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), nullptr, 0);
  return hash;
}

// The layout follows from the job and the counts, so they stand for it.
Hash JobHash(const Job& job) {
  const std::string text = job.ToJson();
  return HashOf(std::as_bytes(std::span<const char>(text)));
}

uint32_t RoleNumber(Role role) { return role == Role::kWorker ? 1 : 2; }

template <typename T>
T At(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

StateWriter::StateWriter(const StateOwner& owner) {
  Put(kMagic, sizeof kMagic);
  U32(kStateVersion);
  U32(RoleNumber(owner.self.role));
  U32(owner.self.rank);
  U32(owner.members.num_workers);
  U32(owner.members.num_servers);
  U32(0);
  const Hash job = JobHash(owner.job);
  Put(job.data(), job.size());
  U64(0);  // the body's length: see Finish
  CHECK(bytes_.size() == kStateHeadBytes);
}

void StateWriter::Put(const void* data, size_t num_bytes) {
  const size_t at = bytes_.size();
  bytes_.resize(at + num_bytes);
  if (num_bytes > 0) std::memcpy(bytes_.data() + at, data, num_bytes);
}

void StateWriter::Steering(const fec::DensitySteering& steering) {
  const fec::DensitySteering::State state = steering.state();
  F64(state.log_threshold);
  F64(state.drift);
  F64(state.owed);
  F64(state.smoothed);
  U32(uint32_t(state.steps));
}

std::vector<std::byte> StateWriter::Finish() && {
  const uint64_t body_bytes = bytes_.size() - kStateHeadBytes;
  std::memcpy(bytes_.data() + kBodyBytesAt, &body_bytes, sizeof body_bytes);
  const Hash hash = HashOf(bytes_);
  Put(hash.data(), hash.size());
  return std::move(bytes_);
}

Result<StateReader> StateReader::Open(std::span<const std::byte> bytes, const StateOwner& owner) {
  const std::string who = "The state of " + ToString(owner.self);
  const auto malformed = [&](const std::string& what) { return Fail(ErrorCode::kMalformed, who + " " + what + "."); };
  const auto mismatch = [&](const std::string& what) { return Fail(ErrorCode::kMismatch, who + " " + what + "."); };
  if (bytes.size() < kStateHeadBytes + kStateHashBytes) {
    return malformed("is truncated: " + std::to_string(bytes.size()) + " bytes are less than its head and its hash");
  }
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
    return malformed("is something else: it does not begin as one");
  if (const auto version = At<uint32_t>(bytes, 8); version != kStateVersion) {
    return malformed("is of version " + std::to_string(version) + ", and this program reads version " +
                     std::to_string(kStateVersion));
  }
  const size_t body_bytes = bytes.size() - kStateHeadBytes - kStateHashBytes;
  if (const auto stated = At<uint64_t>(bytes, kBodyBytesAt); stated != body_bytes) {
    return malformed("is truncated or has grown: it has " + std::to_string(body_bytes) + " bytes where it says " +
                     std::to_string(stated));
  }
  const Hash hash = HashOf(bytes.first(bytes.size() - kStateHashBytes));
  if (std::memcmp(hash.data(), bytes.data() + bytes.size() - kStateHashBytes, hash.size()) != 0) {
    return malformed("is damaged: its hash does not fit its bytes");
  }
  const Membership members = owner.members;
  const auto role = At<uint32_t>(bytes, 12), rank = At<uint32_t>(bytes, 16);
  const auto workers = At<uint32_t>(bytes, 20), servers = At<uint32_t>(bytes, 24);
  if (role != RoleNumber(owner.self.role) || rank != owner.self.rank) {
    return mismatch("is that of " + std::string(role == 1 ? "worker " : "server ") + std::to_string(rank));
  }
  if (workers != members.num_workers || servers != members.num_servers) {
    return mismatch("is of a job of " + std::to_string(workers) + " workers and " + std::to_string(servers) +
                    " servers, and this job has " + std::to_string(members.num_workers) + " and " +
                    std::to_string(members.num_servers));
  }
  const Hash job = JobHash(owner.job);
  if (At<uint32_t>(bytes, 28) != 0 || std::memcmp(job.data(), bytes.data() + kJobHashAt, job.size()) != 0) {
    return mismatch("is of another job: resume with the model and the options that it was saved with");
  }
  return StateReader(bytes.subspan(kStateHeadBytes, body_bytes), who);
}

std::span<const std::byte> StateReader::Bytes(size_t num_bytes) {
  if (!error_.empty()) return {};
  if (num_bytes > rest_.size()) {
    Complain("ends too early");
    return {};
  }
  const auto bytes = rest_.first(num_bytes);
  rest_ = rest_.subspan(num_bytes);
  return bytes;
}

template <typename T>
T StateReader::Take() {
  const auto bytes = Bytes(sizeof(T));
  return bytes.empty() ? T{} : At<T>(bytes, 0);
}
template uint8_t StateReader::Take<uint8_t>();
template uint32_t StateReader::Take<uint32_t>();
template uint64_t StateReader::Take<uint64_t>();

double StateReader::F64(const char* what, double low, double high) {
  const double value = Take<double>();
  if (value >= low && value <= high) return value;
  Complain(std::string("has a ") + what + " that is out of range");
  return 0;
}

uint64_t StateReader::Count(const char* what, uint64_t high) {
  const uint64_t value = U64();
  if (value <= high) return value;
  Complain(std::string("has ") + std::to_string(value) + " " + what + " where at most " + std::to_string(high) +
           " are possible");
  return 0;
}

std::span<const std::byte> StateReader::Floats(const char* what, size_t num_elems, float low) {
  const auto bytes = Bytes(num_elems * sizeof(float));
  for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    const float value = At<float>(bytes, i);
    if (std::isfinite(value) && value >= low) continue;
    Complain(std::string("has ") + what + " with a value that is out of range");
    return {};
  }
  return bytes;
}

std::span<const std::byte> StateReader::Floats(const char* what, size_t num_elems) {
  return Floats(what, num_elems, std::numeric_limits<float>::lowest());
}

void StateReader::Steering(fec::DensitySteering& steering) {
  fec::DensitySteering::State state;
  state.log_threshold = Take<double>();
  state.drift = Take<double>();
  state.owed = Take<double>();
  state.smoothed = Take<double>();
  const uint32_t steps = U32();
  state.steps = steps > 1000 ? -1 : int(steps);
  if (error_.empty() && !steering.Restore(state)) Complain("has a steered threshold that cannot be");
}

void StateReader::Complain(const std::string& what) {
  if (error_.empty()) error_ = who_ + " " + what + ".";
}

Result<void> StateReader::Done() {
  if (error_.empty() && !rest_.empty()) Complain("has " + std::to_string(rest_.size()) + " bytes too many");
  if (error_.empty()) return {};
  return Fail(ErrorCode::kMalformed, error_);
}

}  // namespace gradlane
