// Arbitrary bytes into the FEC decoder. An error leaves the destination alone; what is accepted must survive an encode
// and a decode, in no more bytes than it came in. Every target of fec::Codec must do what the reference does, to the
// bit.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/fec.h"
#include "kernels/fec_codec.h"

namespace {

namespace fec = gradlane::fec;

constexpr size_t kSizes[] = {0, 1, 5, 64, 4095, 4096, 4097, 3 * 4096, 5 * 4096 + 63};

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// One of each target that this machine has; made once.
std::span<const std::unique_ptr<fec::Codec>> Codecs() {
  static const std::vector<std::unique_ptr<fec::Codec>> codecs = [] {
    std::vector<std::unique_ptr<fec::Codec>> all;
    for (const std::string& target : fec::CodecTargets()) {
      all.push_back(std::make_unique<fec::Codec>(fec::CodecOptions{.max_elems = 5 * 4096 + 63, .target = target}));
    }
    return all;
  }();
  return codecs;
}

void DecodeAs(size_t num_elems, std::span<const std::byte> src) {
  const std::vector<float> before(num_elems, 0.5f);
  std::vector<float> decoded = before, added = before;
  const fec::DecodeStatus status = fec::Decode(src, decoded);
  Require(fec::DecodeAdd(src, added) == status, "Decode and DecodeAdd agree");
  for (const auto& codec : Codecs()) {
    std::vector<float> values = before;
    Require(codec->Decode(src, values) == status && SameBits(values, decoded), codec->target());
    values = before;
    Require(codec->DecodeAdd(src, values) == status && SameBits(values, added), codec->target());
  }
  if (status != fec::DecodeStatus::kOk) {
    Require(SameBits(decoded, before) && SameBits(added, before), "an error leaves the destination alone");
    return;
  }
  for (size_t i = 0; i < num_elems; ++i) Require(added[i] == 0.5f + decoded[i], "DecodeAdd adds what Decode gives");

  const fec::Params params = {.threshold_exponent = static_cast<int8_t>(src[1])};
  std::vector<std::byte> bytes(fec::Bound(num_elems));
  std::vector<float> residual(num_elems, 0.0f);
  const fec::EncodeStats stats = fec::Encode(decoded, residual, params, bytes);
  Require(stats.finite, "decoded values are finite");
  for (const auto& codec : Codecs()) {
    std::vector<std::byte> same(fec::Bound(num_elems));
    const size_t same_bytes = codec->Encode(decoded, {}, params, same).bytes;
    Require(same_bytes == stats.bytes && std::memcmp(same.data(), bytes.data(), same_bytes) == 0, codec->target());
  }
  Require(stats.bytes <= src.size(), "an encoder's choice is the smallest");
  Require(SameBits(residual, std::vector<float>(num_elems, 0.0f)), "nothing of a decoded value is left over");
  bytes.resize(stats.bytes);
  std::vector<float> again(num_elems, 0.5f);
  Require(fec::Decode(bytes, again) == fec::DecodeStatus::kOk, "our own bytes decode");
  Require(SameBits(again, decoded), "decode, encode, decode gives the same values");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  for (size_t num_elems : kSizes) DecodeAs(num_elems, std::as_bytes(std::span(data, num_bytes)));
  return 0;
}
