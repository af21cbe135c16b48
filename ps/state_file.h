// The bytes in which a Worker or a Server keeps what training has made of it, so that another process can go on: the
// frame and the primitives. What stands in between is in worker_state.cc and shard_state.cc, and in ps/STATE.md.
//
// A state is hostile input: it is read as a whole and checked before anything is changed. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/fec.h"
#include "ps/job.h"
#include "transport/base/error.h"
#include "transport/base/members.h"

namespace gradlane {

inline constexpr uint32_t kStateVersion = 1;
inline constexpr size_t kStateHashBytes = 32;  // BLAKE2b
// magic 8, version 4, role 4, rank 4, workers 4, servers 4, nothing 4, hash of the job 32, length of the body 8.
inline constexpr size_t kStateHeadBytes = 72;
inline constexpr uint64_t kMaxStateSteps = uint64_t{1} << 40;

// Whose state: a state fits nobody else. The job is borrowed.
struct StateOwner {
  const Job& job;
  Membership members;
  Member self;
};

class StateWriter {
 public:
  explicit StateWriter(const StateOwner& owner);

  void U8(uint8_t value) { Put(&value, sizeof value); }
  void U32(uint32_t value) { Put(&value, sizeof value); }
  void U64(uint64_t value) { Put(&value, sizeof value); }
  void F64(double value) { Put(&value, sizeof value); }
  void Floats(std::span<const float> values) { Put(values.data(), values.size_bytes()); }
  void Steering(const fec::DensitySteering& steering);

  std::vector<std::byte> Finish() &&;  // with the body's length and the hash

 private:
  void Put(const void* data, size_t num_bytes);

  std::vector<std::byte> bytes_;
};

// Keeps the first complaint; from then on everything reads as 0.
class StateReader {
 public:
  // bytes outlive the reader. kMalformed: truncated, no state, damaged, of another version; kMismatch: another's.
  static Result<StateReader> Open(std::span<const std::byte> bytes, const StateOwner& owner);

  uint8_t U8() { return Take<uint8_t>(); }
  uint32_t U32() { return Take<uint32_t>(); }
  uint64_t U64() { return Take<uint64_t>(); }
  // Finite, in [low, high]: else a complaint that names `what`.
  double F64(const char* what, double low, double high);
  uint64_t Count(const char* what, uint64_t high);
  // (N,) fp32, as they lie in the file, of any alignment; all finite and at least low: else a complaint.
  std::span<const std::byte> Floats(const char* what, size_t num_elems, float low);
  std::span<const std::byte> Floats(const char* what, size_t num_elems);
  void Steering(fec::DensitySteering& steering);  // changed on success only

  void Complain(const std::string& what);
  // kMalformed: something was complained about, or there is more.
  Result<void> Done();

 private:
  StateReader(std::span<const std::byte> body, std::string who) : rest_(body), who_(std::move(who)) {}
  std::span<const std::byte> Bytes(size_t num_bytes);
  template <typename T>
  T Take();

  std::span<const std::byte> rest_;
  std::string who_;
  std::string error_;
};

}  // namespace gradlane
