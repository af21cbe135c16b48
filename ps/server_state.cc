// Server, saved and resumed: see ps/STATE.md.
#include <chrono>
#include <string>
#include <utility>

#include "ps/server.h"
#include "ps/state_file.h"

namespace gradlane {

bool Server::Idle() const {
  for (const LaneState& lane : lanes_) {
    if (lane.outstanding > 0 || lane.deferred) return false;
  }
  for (uint32_t outstanding : initial_outstanding_) {
    if (outstanding > 0) return false;
  }
  return withheld_.empty() && shard_->BetweenSteps();
}

Result<std::vector<std::byte>> Server::MakeState() const {
  StateWriter out({job_, members_, {Role::kServer, rank_}});
  TRY(shard_->SaveTo(out));
  return std::move(out).Finish();
}

// The one thing that the communication thread allocates for; no step is under way that it could hold up.
void Server::AnswerSave() {
  if (!Idle()) return;
  {
    const std::lock_guard lock(save_mutex_);
    if (!save_wanted_.exchange(false, std::memory_order_relaxed)) return;  // it has given up
    saved_ = MakeState();
  }
  save_answered_.notify_all();
}

Result<std::vector<std::byte>> Server::SaveState(int timeout_ms) {
  const auto under_way = [&] {
    return Fail(ErrorCode::kTimeout, "The state of server " + std::to_string(rank_) +
                                         " cannot be saved: a step is under way; save between two steps.");
  };
  std::unique_lock lock(save_mutex_);
  if (!running_) return Idle() ? MakeState() : Result<std::vector<std::byte>>(under_way());
  saved_.reset();
  save_wanted_.store(true, std::memory_order_release);  // pairs with the acquire in Turn
  fabric_->Wake();
  const bool answered =
      save_answered_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return saved_ || failure_; });
  save_wanted_.store(false, std::memory_order_relaxed);
  if (saved_) return *std::exchange(saved_, std::nullopt);
  if (answered) return tl::unexpected(*failure_);
  return under_way();
}

Result<void> Server::LoadState(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(StateReader in, StateReader::Open(bytes, {job_, members_, {Role::kServer, rank_}}));
  return shard_->LoadFrom(in);
}

}  // namespace gradlane
