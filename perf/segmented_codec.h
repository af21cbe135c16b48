// A fec::Codec over a tensor that is coded in one call or segment by segment, as the product does, with room for what
// was encoded. Owned by the benchmark; calls come from one thread at a time.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/fec_codec.h"
#include "perf/huge_buffer.h"

namespace gradlane::perf {

class SegmentedCodec {
 public:
  // segment_elems: a multiple of fec::kBlockElems, or 0 for one call. target: one of fec::CodecTargets().
  SegmentedCodec(size_t num_elems, size_t segment_elems, int num_threads, std::string_view target);

  // Keeps the bytes for DecodeAdd. grad and residual: (num_elems,) fp32. Returns the sums over the segments.
  fec::EncodeStats Encode(std::span<const float> grad, std::span<float> residual, const fec::Params& params);

  // Segment i is added from sum[i * segment_elems % sum.size()] on: each at its place where sum has num_elems, all over
  // the same memory where it has only a few segments. sum: (num_elems,) or a multiple of segment_elems.
  void DecodeAdd(std::span<float> sum);

 private:
  struct Segment {
    size_t first_elem = 0;
    size_t num_elems = 0;
    std::span<std::byte> room;
    size_t bytes = 0;  // of room, once encoded
  };

  fec::Codec codec_;
  HugeBuffer<std::byte> encoded_;
  std::vector<Segment> segments_;
};

}  // namespace gradlane::perf
