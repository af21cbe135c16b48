// The header of every active message between two UCX fabrics, and the choice of how bytes go to a peer. Both ends have
// the same byte order and layout: UCX itself connects nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradlane {

inline constexpr unsigned kUcxMessageId = 7;  // of the one active message that exists

enum class UcxKind : uint8_t {
  kHello = 1,    // no payload: the sender can reach this worker
  kNotice = 2,   // the bytes named lie in the slot already
  kMessage = 3,  // the bytes named follow as the message's data
  kBye = 4,      // no payload: the sender closes its fabric
};

// 48 bytes: with UCX's own 8 it fits the 128-byte element of the shared-memory FIFO, so a notice is one short send.
struct UcxHeader {
  static constexpr uint32_t kMagic = 0x314c4755;  // "UGL1"; another layout gets another one

  uint32_t magic = kMagic;
  UcxKind kind = UcxKind::kHello;
  uint8_t reserved[3] = {};
  uint64_t token = 0;  // the receiver's, from its address: strays and other jobs do not know it
  uint32_t from = 0;   // the sender's PeerId
  uint32_t imm = 0;
  uint32_t region = 0;  // the receiver's RegionId
  uint32_t reserved2 = 0;
  uint64_t offset_bytes = 0;
  uint64_t payload_bytes = 0;
};
static_assert(sizeof(UcxHeader) == 48);

enum class UcxMethod : uint8_t {
  kMessages,       // one eager active message
  kPut,            // put, then the notice: a completed put has landed (the CPU stored it)
  kPutFlushNotice  // put, flush of the endpoint, then the notice
};

struct UcxPath {
  UcxMethod method = UcxMethod::kMessages;
  std::string description;  // "shared memory, one-sided put (sysv/memory)"
};

// Chooses from what UCX tells of a wired-up endpoint (ucp_ep_print_info: its lanes, and a "put[lane]" line for each
// lane that puts without emulation) and whether all of the peer's regions are mapped here (ucp_rkey_ptr).
UcxPath ChooseUcxPath(std::string_view endpoint_info, bool regions_mapped);

}  // namespace gradlane
