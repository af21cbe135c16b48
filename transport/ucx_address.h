// The bytes that one UCX fabric hands to another: how to reach its worker, and the remote key of each region. The bytes
// travel through the authenticated bootstrap; the parser still takes nothing on trust and gives an error value for
// whatever it is fed. A checksum guards the two parts that only UCX understands, because UCX 1.13 reads worker
// addresses and keys without bounds: they reach it only if they are exactly what a Pack() wrote.
//
//   address = "GLUCX" version:u8 reserved:u16 body checksum:u64
//   body    = token:u64 ucx:u32 max_put_bytes:u64 blob(host) process:u32 started:u64 blob(worker)
//             num_regions:u32 { base:u64 bytes:u64 blob(rkey) }
//   blob    = length:u32 length*byte                          all little-endian; checksum = FNV-1a of all before it
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/base/error.h"

namespace gradlane {

struct UcxRegionAddress {
  uint64_t base = 0;  // in the owner's address space
  uint64_t bytes = 0;
  std::string rkey;
};

struct UcxAddress {
  uint64_t token = 0;          // what every message to this worker has to carry
  uint32_t ucx_version = 0;    // major << 16 | minor: the wire format of other releases differs
  uint64_t max_put_bytes = 0;  // sizes the receive buffers: must be equal on both ends
  std::string host;            // this boot of this host and the name space of its process numbers
  uint32_t process = 0;        // within that
  uint64_t started = 0;        // when the process did, in the kernel's ticks: tells a number that is used again
  std::string worker;
  std::vector<UcxRegionAddress> regions;
};

std::string PackUcxAddress(const UcxAddress& address);
Result<UcxAddress> ParseUcxAddress(std::string_view bytes);  // kMalformed, kMismatch (another version of this format)

}  // namespace gradlane
