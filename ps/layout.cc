#include "ps/layout.h"

#include <algorithm>
#include <string>

#include "kernels/fec.h"
#include "ps/message.h"

namespace gradlane {
namespace {

constexpr uint64_t kAlignBytes = 64;  // a cache line, and an AVX-512 register
constexpr uint64_t kAlignElems = kAlignBytes / sizeof(float);

uint64_t AlignUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

Result<Layout> Layout::Make(const Job& job, Membership members) {
  if (members.num_servers == 0) {
    return Fail(ErrorCode::kInvalidArgument, "A layout needs at least one server to own the parameters.");
  }
  Layout layout;
  const uint64_t segment_elems = job.segment_bytes / sizeof(float);
  layout.of_server_.resize(members.num_servers);
  layout.server_elems_.resize(members.num_servers, 0);
  layout.server_slots_bytes_.resize(members.num_servers, 0);
  std::vector<uint64_t> load_bytes(members.num_servers, 0);

  for (uint32_t t = 0; t < job.tensors.size(); ++t) {
    const JobTensor& tensor = job.tensors[t];
    layout.tensor_first_.push_back(layout.num_segments());
    if (layout.layer_first_.size() == tensor.layer) layout.layer_first_.push_back(layout.num_segments());
    CHECK(layout.layer_first_.size() == tensor.layer + 1);  // Job::Parse: layers have no gaps
    for (uint64_t first = 0; first < tensor.num_elems; first += segment_elems) {
      if (layout.segments_.size() == kMaxSegments) {
        return Fail(ErrorCode::kInvalidArgument,
                    "The model needs more than " + std::to_string(kMaxSegments) + " segments of " +
                        std::to_string(job.segment_bytes) + " bytes: raise --segment-bytes.");
      }
      Segment segment;
      segment.tensor = t;
      segment.layer = tensor.layer;
      segment.num_elems = uint32_t(std::min(segment_elems, tensor.num_elems - first));
      segment.flat_elem = layout.flat_elems_ + first;
      segment.slot_bytes = AlignUp(std::max(segment.RawBytes(), fec::Bound(segment.num_elems)), kAlignBytes);
      segment.slot_offset_bytes = layout.slots_bytes_;
      // To the server with the fewest bytes so far; the first among equals. Big tensors are thereby spread over all.
      segment.server = uint32_t(std::min_element(load_bytes.begin(), load_bytes.end()) - load_bytes.begin());
      segment.server_elem = layout.server_elems_[segment.server];
      segment.server_slot_bytes = layout.server_slots_bytes_[segment.server];

      layout.slots_bytes_ += segment.slot_bytes;
      layout.raw_bytes_ += segment.RawBytes();
      load_bytes[segment.server] += segment.RawBytes();
      layout.server_elems_[segment.server] += AlignUp(segment.num_elems, kAlignElems);
      layout.server_slots_bytes_[segment.server] += segment.slot_bytes;
      layout.of_server_[segment.server].push_back(layout.num_segments());
      layout.segments_.push_back(segment);
    }
    layout.flat_elems_ += AlignUp(tensor.num_elems, kAlignElems);
  }
  layout.tensor_first_.push_back(layout.num_segments());
  layout.layer_first_.push_back(layout.num_segments());
  return layout;
}

}  // namespace gradlane
