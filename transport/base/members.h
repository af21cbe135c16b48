// Who takes part in a job: S servers and W workers. A member's index is its PeerId on every fabric and in every message
// of the bootstrap: servers first (server s is s), then workers (worker w is S + w).
#pragma once

#include <cstdint>
#include <string>

namespace gradlane {

enum class Role : uint8_t { kServer, kWorker };

struct Member {
  Role role = Role::kWorker;
  uint32_t rank = 0;  // among the members of its role
  bool operator==(const Member&) const = default;
};

struct Membership {
  uint32_t num_workers = 1;
  uint32_t num_servers = 1;

  uint32_t Count() const { return num_workers + num_servers; }
  uint32_t IndexOf(Member member) const {
    return member.role == Role::kServer ? member.rank : num_servers + member.rank;
  }
  Member At(uint32_t index) const {
    return index < num_servers ? Member{Role::kServer, index} : Member{Role::kWorker, index - num_servers};
  }
  bool operator==(const Membership&) const = default;
};

inline std::string ToString(Member member) {
  return (member.role == Role::kServer ? "server " : "worker ") + std::to_string(member.rank);
}

}  // namespace gradlane
