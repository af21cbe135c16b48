#include "kernels/fec_codec.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/fec_blocks.h"
#include "kernels/fec_directory.h"
#include "kernels/thread_team.h"

namespace gradlane::fec {
namespace {

const BlockTarget& FindTarget(std::string_view name) {
  const std::vector<BlockTarget>& targets = BlockTargets();
  if (name.empty()) return targets.front();
  const auto found = std::ranges::find_if(targets, [name](const BlockTarget& target) { return name == target.name; });
  GRADLANE_KERNELS_CHECK(found != targets.end());
  return *found;
}

size_t NumBlocks(size_t num_elems) { return (num_elems + kBlockElems - 1) / kBlockElems; }

}  // namespace

struct Codec::State {
  // The part of a call that one thread does.
  struct Part {
    size_t first_block = 0;
    size_t first_elem = 0;
    size_t num_elems = 0;
    EncodeRange encode;
    RangeStats stats;
    DecodeRange decode;
    DecodeStatus status = DecodeStatus::kOk;
    std::unique_ptr<uint32_t[]> position;
    std::unique_ptr<float[]> value;
  };

  explicit State(const CodecOptions& options)
      : target(FindTarget(options.target)),
        max_elems(options.max_elems),
        undo(std::make_unique<float[]>(options.max_elems + kSlackElems)),
        entries(NumBlocks(options.max_elems)),
        parts(static_cast<size_t>(options.num_threads)),
        team(options.num_threads) {
    for (Part& part : parts) {
      part.position = std::make_unique<uint32_t[]>(Survivors::kElems);
      part.value = std::make_unique<float[]>(Survivors::kElems);
    }
  }

  void Divide(size_t num_elems) {
    const size_t num_blocks = NumBlocks(num_elems);
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t end_block = num_blocks * (i + 1) / parts.size();
      parts[i].first_block = num_blocks * i / parts.size();
      parts[i].first_elem = parts[i].first_block * kBlockElems;
      parts[i].num_elems = std::min(end_block * kBlockElems, num_elems) - std::min(parts[i].first_elem, num_elems);
    }
  }

  // work(part) on all parts at once.
  template <typename Work>
  void ForEachPart(Work&& work) {
    team.Run([&](int i) { work(parts[static_cast<size_t>(i)]); });
  }

  DecodeStatus FindBodies(std::span<const uint8_t> src, size_t num_elems, uint32_t& base_bits);
  template <typename Write>
  DecodeStatus Decode(std::span<const std::byte> src, std::span<float> dst, Write write);

  const BlockTarget target;
  const size_t max_elems;
  std::unique_ptr<float[]> undo;
  std::vector<BlockEntry> entries;
  std::vector<Part> parts;
  ThreadTeam team;
};

std::vector<std::string> CodecTargets() {
  std::vector<std::string> names;
  for (const BlockTarget& target : BlockTargets()) names.emplace_back(target.name);
  return names;
}

Codec::Codec(const CodecOptions& options) : state_(std::make_unique<State>(options)) {}
Codec::~Codec() = default;
Codec::Codec(Codec&&) noexcept = default;

const char* Codec::target() const { return state_->target.name; }
int Codec::num_threads() const { return state_->team.num_threads(); }

EncodeStats Codec::Encode(std::span<const float> grad, std::span<float> residual, const Params& params,
                          std::span<std::byte> dst) {
  State& state = *state_;
  GRADLANE_KERNELS_CHECK(grad.size() <= state.max_elems);
  GRADLANE_KERNELS_CHECK(residual.empty() || residual.size() == grad.size());
  GRADLANE_KERNELS_CHECK(dst.size() >= Bound(grad.size()));
  const Rule rule = MakeRule(params);
  auto* const begin = reinterpret_cast<uint8_t*>(dst.data());

  // Each thread writes its bodies where they lie if all others are as long as can be; then they are moved together.
  const size_t num_blocks = NumBlocks(grad.size());
  uint8_t* const bodies = begin + format::kSegmentHeaderBytes + num_blocks * format::kMaxEntryBytes;
  const size_t largest_body_bytes = format::LargestBodyBytes(kBlockElems);
  state.Divide(grad.size());
  state.ForEachPart([&](State::Part& part) {
    EncodeRange& range = part.encode;
    range.grad = grad.data() + part.first_elem;
    range.residual = residual.empty() ? nullptr : residual.data() + part.first_elem;
    range.undo = residual.empty() ? nullptr : state.undo.get() + part.first_elem;
    range.num_elems = part.num_elems;
    range.first_elem = static_cast<uint32_t>(part.first_elem);
    range.rule = rule;
    range.layout = params.layout;
    range.entries = state.entries.data() + part.first_block;
    const size_t bodies_at = part.first_block * largest_body_bytes;
    const size_t last_elems = part.num_elems % kBlockElems;
    range.bodies = {bodies + bodies_at, part.num_elems / kBlockElems * largest_body_bytes +
                                            format::LargestBodyBytes(static_cast<uint32_t>(last_elems))};
    part.stats = state.target.kernels->encode(range);
  });

  EncodeStats stats;
  for (const State::Part& part : state.parts) stats.finite &= part.stats.finite;
  if (!stats.finite) {
    if (!residual.empty()) {
      state.ForEachPart([](const State::Part& part) {
        std::copy_n(part.encode.undo, part.stats.elems_changed, part.encode.residual);
      });
    }
    return stats;
  }
  DirectoryWriter directory(PutHeader(rule.base_bits, begin));
  for (size_t i = 0; i < num_blocks; ++i) {
    const BlockEntry& entry = state.entries[i];
    directory.Add({.form = entry.form, .kind = entry.kind, .body_bytes = entry.body_bytes}, entry.num_survivors);
  }
  uint8_t* out = directory.Finish();
  for (const State::Part& part : state.parts) {
    if (part.stats.body_bytes > 0) std::memmove(out, part.encode.bodies.data(), part.stats.body_bytes);
    out += part.stats.body_bytes;
    stats.survivors += part.stats.survivors;
  }
  stats.bytes = static_cast<size_t>(out - begin);
  return stats;
}

// Reads the directory once, into entries: what a peer changes there afterwards changes nothing.
DecodeStatus Codec::State::FindBodies(std::span<const uint8_t> src, size_t num_elems, uint32_t& base_bits) {
  if (auto status = ReadHeader(src, base_bits); status != DecodeStatus::kOk) return status;
  size_t at = format::kSegmentHeaderBytes;
  size_t body_bytes = 0;
  for (size_t block = 0; block * kBlockElems < num_elems;) {
    Entry entry;
    if (auto status = ReadEntry(src, at, num_elems - block * kBlockElems, entry); status != DecodeStatus::kOk)
      return status;
    if (entry.empty_run > 0) {
      std::fill_n(entries.begin() + static_cast<ptrdiff_t>(block), entry.empty_run, BlockEntry{});
      block += entry.empty_run;
      continue;
    }
    BlockEntry& to = entries[block++];
    to.body_at = static_cast<uint32_t>(body_bytes);
    to.body_bytes = static_cast<uint16_t>(entry.body_bytes);
    if (entry.first < format::kBodyTag) {
      to.form = Plan::Form::kTiny;
      to.num_survivors = static_cast<uint16_t>(entry.first - format::kTinyTag + 1);
    } else {
      to.form = Plan::Form::kBody;
      to.kind = entry.first >> 4 & 7;
    }
    body_bytes += entry.body_bytes;
  }
  if (src.size() - at < body_bytes) return DecodeStatus::kTruncated;
  if (src.size() - at > body_bytes) return DecodeStatus::kTrailing;
  for (size_t block = 0; block < NumBlocks(num_elems); ++block) entries[block].body_at += static_cast<uint32_t>(at);
  return DecodeStatus::kOk;
}

template <typename Write>
DecodeStatus Codec::State::Decode(std::span<const std::byte> src, std::span<float> dst, Write write) {
  GRADLANE_KERNELS_CHECK(dst.size() <= max_elems);
  const std::span bytes(reinterpret_cast<const uint8_t*>(src.data()), src.size());
  uint32_t base_bits;
  if (auto status = FindBodies(bytes, dst.size(), base_bits); status != DecodeStatus::kOk) return status;
  Divide(dst.size());
  auto first_failure = [this] {
    for (const Part& part : parts) {
      if (part.status != DecodeStatus::kOk) return part.status;
    }
    return DecodeStatus::kOk;
  };
  ForEachPart([&](Part& part) {
    part.decode = {.src = bytes,
                   .entries = entries.data() + part.first_block,
                   .base_bits = base_bits,
                   .dst = dst.subspan(std::min(part.first_elem, dst.size()), part.num_elems),
                   .survivors = {part.position.get(), part.value.get()}};
    part.status = target.kernels->check(part.decode);
  });
  if (auto status = first_failure(); status != DecodeStatus::kOk) return status;
  ForEachPart([&](Part& part) { part.status = write(part.decode); });
  return first_failure();
}

DecodeStatus Codec::Decode(std::span<const std::byte> src, std::span<float> dst) {
  return state_->Decode(src, dst, state_->target.kernels->assign);
}

DecodeStatus Codec::DecodeAdd(std::span<const std::byte> src, std::span<float> dst) {
  return state_->Decode(src, dst, state_->target.kernels->add);
}

}  // namespace gradlane::fec
