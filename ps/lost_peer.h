// The sentence for a rank that a fabric has lost, by whatever call that was noticed. Pure.
#pragma once

#include <string>

#include "transport/base/error.h"
#include "transport/base/members.h"
#include "transport/fabric.h"

namespace gradlane {

inline Error LostPeer(const Membership& members, PeerId peer, const Error& why) {
  return {ErrorCode::kPeerFailed, "lost " + ToString(members.At(peer)) + ": " + why.message, why.native_code};
}

}  // namespace gradlane
