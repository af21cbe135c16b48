// Who may join a job: the host's table of the ranks that are there, and the sentences for what does not fit. Pure: no
// I/O, no clock, no thread. Owned by the host's engine.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/base/error.h"
#include "transport/base/members.h"
#include "transport/bootstrap_wire.h"

namespace gradlane {

class JoinTable {
 public:
  // The host itself is there from the start. `address`: where it listens, for sentences.
  JoinTable(Member host, const JoinMessage& join, std::string address);

  // A rank that has proved that it knows the secret. kMismatch: its counts, its rank or one of its options does not
  // fit.
  Result<void> Add(Member member, const JoinMessage& join, const std::string& address);

  // A process that did not know the secret. Remembered for the sentence of Timeout.
  void AddRejected(Member claimed, const std::string& address);

  bool Complete() const { return num_present_ == present_.size(); }
  std::string Missing() const;  // "server 1, worker 0"
  uint32_t MinPeerTimeoutMs() const { return min_peer_timeout_ms_; }

  // Not Complete within the time: names who is missing and what was rejected. kUnauthenticated if one of the missing
  // ranks was rejected, else kTimeout.
  Error Timeout(int join_timeout_ms) const;

 private:
  struct Present {
    std::string address;
    std::map<std::string, std::string> agreed;
  };
  struct Rejected {
    Member claimed;
    std::string address;
  };

  Result<void> CheckAgreed(Member member, const JoinMessage& join) const;

  const Member host_;
  const Membership members_;
  std::vector<std::optional<Present>> present_;  // by member index
  size_t num_present_ = 0;
  uint32_t min_peer_timeout_ms_;
  std::vector<Rejected> rejected_;  // the last one of each claimed rank, at most kMaxRejected
};

// kMismatch, the same sentence on both sides.
Error VersionMismatch(Member a, uint32_t version_a, Member b, uint32_t version_b);

// "10 s", "0.25 s".
std::string Seconds(int64_t ms);

// The sentence for a rank out of range, as the rank itself (kInvalidArgument) and the host (kMismatch) find it.
std::optional<std::string> RankOutOfRange(Member member, const Membership& members);

}  // namespace gradlane
