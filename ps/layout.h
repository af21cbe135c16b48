// Layout says where every segment of the job lives: which tensor and elements it is, which server owns it, and at which
// byte of which region it lies on either side. Every rank computes the same one from the Job and the Membership, so
// nothing is negotiated later. Immutable; any thread.
//
// Segments are numbered in order of urgency (layer, tensor, element). Their boundaries do not depend on the number of
// servers, so neither does what is computed from them.
//
//   worker, region 0  parameters   | tensor 0 | pad | tensor 1 | pad | ...        kParamsRegion (raw replies land here)
//           region 1  reply slots  | segment 0 | segment 1 | ...                  kReplySlotsRegion (coded replies, flags;
//                                  4 bytes each with raw replies, for flags alone)
//           region 2  gradients    as region 0                                    (source of raw pushes)
//           region 3  push staging as region 1                                    (source of coded pushes)
//   server, region 0  push slots   | worker 0: own segments | worker 1: ... |     kPushSlotsRegion
//           region 1  parameters   own segments, packed                           (source of raw replies)
//           region 2  reply staging own segments, one copy (bsp) or one a worker  (source of coded or per-worker replies)
//           region 3  flags        own segments, 4 bytes each                     (source of replies to a non-finite step)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ps/job.h"
#include "transport/base/error.h"
#include "transport/base/members.h"
#include "transport/fabric.h"

namespace gradlane {

inline constexpr RegionId kParamsRegion = 0;
inline constexpr RegionId kReplySlotsRegion = 1;
inline constexpr RegionId kPushSlotsRegion = 0;

inline constexpr size_t kFlagBytes = 4;  // the payload of a reply to a non-finite step: a worker's number, little-endian

struct Segment {
  uint32_t tensor = 0;
  uint32_t layer = 0;
  uint32_t server = 0;
  uint32_t num_elems = 0;
  uint64_t flat_elem = 0;           // first element, in a worker's flat arrays (regions 0 and 2)
  uint64_t server_elem = 0;         // first element, in its server's packed arrays
  uint64_t slot_offset_bytes = 0;   // in a worker's regions 1 and 3
  uint64_t server_slot_bytes = 0;   // offset in its server's slots, within one worker's part
  size_t slot_bytes = 0;            // what fits: raw, or the codec's bound where that is more

  size_t RawBytes() const { return size_t{num_elems} * sizeof(float); }
};

class Layout {
 public:
  // kInvalidArgument: more than kMaxSegments segments, or no server to own them.
  static Result<Layout> Make(const Job& job, Membership members);

  std::span<const Segment> segments() const { return segments_; }
  uint32_t num_segments() const { return uint32_t(segments_.size()); }
  uint32_t num_layers() const { return uint32_t(layer_first_.size()) - 1; }
  uint32_t num_tensors() const { return uint32_t(tensor_first_.size()) - 1; }

  // Half-open ranges of segment numbers.
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  Range SegmentsOfTensor(uint32_t tensor) const { return {tensor_first_[tensor], tensor_first_[tensor + 1]}; }
  Range SegmentsOfLayer(uint32_t layer) const { return {layer_first_[layer], layer_first_[layer + 1]}; }
  std::span<const uint32_t> SegmentsOfServer(uint32_t server) const { return of_server_[server]; }

  uint64_t TensorFlatElem(uint32_t tensor) const { return segments_[tensor_first_[tensor]].flat_elem; }
  uint64_t flat_elems() const { return flat_elems_; }       // of a worker's flat arrays, padding included
  uint64_t slots_bytes() const { return slots_bytes_; }     // of a worker's regions 1 and 3
  uint64_t ServerElems(uint32_t server) const { return server_elems_[server]; }
  uint64_t ServerSlotsBytes(uint32_t server) const { return server_slots_bytes_[server]; }  // one worker's part
  uint64_t raw_bytes() const { return raw_bytes_; }         // of all parameters, without padding

 private:
  std::vector<Segment> segments_;
  std::vector<uint32_t> tensor_first_;  // one more than there are tensors
  std::vector<uint32_t> layer_first_;   // one more than there are layers
  std::vector<std::vector<uint32_t>> of_server_;
  std::vector<uint64_t> server_elems_;
  std::vector<uint64_t> server_slots_bytes_;
  uint64_t flat_elems_ = 0;
  uint64_t slots_bytes_ = 0;
  uint64_t raw_bytes_ = 0;
};

// A worker's reply slots: how many bytes there are, and where in them a flag lands. No flag may land among parameters,
// where raw replies do.
inline uint64_t ReplySlotsBytes(const Job& job, const Layout& layout) {
  return job.reply == ReplyCodec::kFec ? layout.slots_bytes() : layout.num_segments() * kFlagBytes;
}
inline uint64_t ReplyFlagOffset(const Job& job, const Layout& layout, uint32_t segment) {
  return job.reply == ReplyCodec::kFec ? layout.segments()[segment].slot_offset_bytes : segment * kFlagBytes;
}

}  // namespace gradlane
