// The 32 bits that go with every put between a worker and a server: which segment, of which step, and what kind.
// See ps/PROTOCOL.md. Value type.
#pragma once

#include <cstdint>
#include <optional>

namespace gradlane {

inline constexpr uint32_t kMaxSegments = 1u << 20;  // 22 bits would fit the notice; this bounds what a rank keeps

enum class MessageKind : uint8_t {
  kData = 0,  // a gradient on the way in, parameters or their change on the way back; coded as the job says
  kInit = 1,  // initial parameters, raw, both ways
  kNonFinite = 2,  // in place of a gradient that holds a NaN or an infinity, and of the reply to such a step
};

struct Message {
  uint32_t segment = 0;
  uint8_t step = 0;  // modulo 256: at most one push per worker and segment is under way, so that is enough
  MessageKind kind = MessageKind::kData;
  bool operator==(const Message&) const = default;
};

// imm = segment[31:10] step[9:2] kind[1:0]
inline uint32_t Pack(Message message) {
  return message.segment << 10 | uint32_t{message.step} << 2 | uint32_t(message.kind);
}

// Nothing: a kind that does not exist. The segment is not checked here: the receiver knows how many there are.
inline std::optional<Message> Unpack(uint32_t imm) {
  if ((imm & 3) > uint32_t(MessageKind::kNonFinite)) return std::nullopt;
  return Message{imm >> 10, uint8_t(imm >> 2), MessageKind(imm & 3)};
}

}  // namespace gradlane
