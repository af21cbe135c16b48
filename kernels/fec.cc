#include "kernels/fec.h"

#include "kernels/fec_format.h"

namespace gradlane::fec {

size_t Bound(size_t num_elems) {
  constexpr size_t kBlockBytes = format::kMaxEntryBytes + format::LargestBodyBytes(kBlockElems);
  const size_t last_elems = num_elems % kBlockElems;
  size_t bytes = format::kSegmentHeaderBytes + num_elems / kBlockElems * kBlockBytes;
  if (last_elems > 0) {
    bytes += format::kMaxEntryBytes + format::LargestBodyBytes(static_cast<uint32_t>(last_elems));
  }
  return bytes;
}

const char* ToString(DecodeStatus status) {
  switch (status) {
    case DecodeStatus::kOk:
      return "ok";
    case DecodeStatus::kTruncated:
      return "the bytes end too early";
    case DecodeStatus::kTrailing:
      return "bytes are left after the last block";
    case DecodeStatus::kBadVersion:
      return "the header is not version 1's, or its threshold is out of range";
    case DecodeStatus::kBadCount:
      return "a count, position or length does not fit its block";
  }
  return "unknown status";
}

}  // namespace gradlane::fec
