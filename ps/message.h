// The 32 bits that go with every put between a worker and a server: which segment, of which step, and what kind.
// See ps/PROTOCOL.md. Value type.
#pragma once

#include <cstdint>

namespace gradlane {

inline constexpr uint32_t kMaxSegments = 1u << 20;  // 22 bits would fit the notice; this bounds what a rank keeps

enum class MessageKind : uint8_t {
  kData = 0,  // a gradient on the way in, parameters or their change on the way back; coded as the job says
  kInit = 1,  // initial parameters, raw, both ways
  kNonFinite = 2,  // in place of a gradient that holds a NaN or an infinity, and of the reply to such a step
  kRaw = 3,        // a gradient that --codec auto did not code: raw fp32; on the way in only
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

// Every notice is a message; whether it makes sense is for the receiver to say, who knows what is there and what is due.
inline Message Unpack(uint32_t imm) { return {imm >> 10, uint8_t(imm >> 2), MessageKind(imm & 3)}; }

}  // namespace gradlane
