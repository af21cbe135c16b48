// fec::Codec is FEC at the speed of the machine: the widest vectors that the processor has, and, if asked, several
// threads. It writes and accepts the very bytes of the reference in kernels/fec.h, whatever the vectors and the
// threads.
//
// Owned by one Worker or Server (or a test); calls come from one thread at a time. All memory is made by the
// constructor.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/fec.h"

namespace gradlane::fec {

struct CodecOptions {
  size_t max_elems = 0;          // the most that one call encodes or decodes
  int num_threads = 1;           // 1: the caller alone
  std::string_view target = {};  // one of CodecTargets(); empty: the best
};

// What this processor runs, the best first, as Highway names them; "SCALAR" is always there.
std::vector<std::string> CodecTargets();

class Codec {
 public:
  explicit Codec(const CodecOptions& options);
  ~Codec();
  Codec(Codec&&) noexcept;

  // As fec::Encode, Decode and DecodeAdd; N <= max_elems. One pass over grad and residual: whether all is finite is
  // found on the way, and what was changed until then is put back.
  EncodeStats Encode(std::span<const float> grad, std::span<float> residual, const Params& params,
                     std::span<std::byte> dst);
  // On an error dst is unchanged, unless another process changes src meanwhile (then dst may be partly written).
  DecodeStatus Decode(std::span<const std::byte> src, std::span<float> dst);
  DecodeStatus DecodeAdd(std::span<const std::byte> src, std::span<float> dst);  // cost follows the survivors

  const char* target() const;  // for the start-up report
  int num_threads() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradlane::fec
