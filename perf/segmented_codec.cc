#include "perf/segmented_codec.h"

#include <algorithm>

#include "transport/base/error.h"

namespace gradlane::perf {
namespace {

size_t SegmentElems(size_t num_elems, size_t segment_elems) {
  return segment_elems == 0 ? num_elems : std::min(num_elems, segment_elems);
}

}  // namespace

SegmentedCodec::SegmentedCodec(size_t num_elems, size_t segment_elems, int num_threads, std::string_view target)
    : codec_({SegmentElems(num_elems, segment_elems), num_threads, target}),
      encoded_(fec::Bound(SegmentElems(num_elems, segment_elems)) *
               ((num_elems - 1) / SegmentElems(num_elems, segment_elems) + 1)) {
  segment_elems = SegmentElems(num_elems, segment_elems);
  const size_t room_bytes = fec::Bound(segment_elems);
  for (size_t first = 0; first < num_elems; first += segment_elems) {
    const auto room = encoded_.span().subspan(segments_.size() * room_bytes, room_bytes);
    segments_.push_back({first, std::min(segment_elems, num_elems - first), room});
  }
}

fec::EncodeStats SegmentedCodec::Encode(std::span<const float> grad, std::span<float> residual,
                                        const fec::Params& params) {
  fec::EncodeStats sums;
  for (Segment& segment : segments_) {
    const fec::EncodeStats stats =
        codec_.Encode(grad.subspan(segment.first_elem, segment.num_elems),
                      residual.subspan(segment.first_elem, segment.num_elems), params, segment.room);
    CHECK(stats.finite);
    segment.bytes = stats.bytes;
    sums.bytes += stats.bytes;
    sums.survivors += stats.survivors;
  }
  return sums;
}

void SegmentedCodec::DecodeAdd(std::span<float> sum) {
  for (const Segment& segment : segments_) {
    const auto part = sum.subspan(segment.first_elem % sum.size(), segment.num_elems);
    CHECK(codec_.DecodeAdd(segment.room.first(segment.bytes), part) == fec::DecodeStatus::kOk);
  }
}

}  // namespace gradlane::perf
