#include "transport/bootstrap_state.h"

#include <unistd.h>

#include <chrono>

#include "transport/bootstrap_rules.h"

namespace gradlane {

BootstrapState::BootstrapState(Member self, Membership members, Fd wake)
    : self_(self), members_(members), wake_(std::move(wake)), left_(members.Count()) {}

Result<void> BootstrapState::WaitJoined() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return joined_ || failure_; });
  if (failure_) return tl::unexpected<Error>(*failure_);
  return {};
}

Result<std::vector<std::string>> BootstrapState::AllGather(const std::string& name, const std::string& blob) {
  if (name.size() > kMaxNameBytes)
    return Fail(ErrorCode::kInvalidArgument, "the name of a collective has more than 128 bytes");
  if (blob.size() > kMaxBlobBytes) {
    return Fail(ErrorCode::kInvalidArgument, "the blob of " + ToString(self_) + " for '" + name + "' has " +
                                                 std::to_string(blob.size()) + " bytes; at most " +
                                                 std::to_string(kMaxBlobBytes) + " are carried");
  }
  const uint32_t self = members_.IndexOf(self_);
  std::unique_lock lock(mutex_);
  if (failure_) return tl::unexpected<Error>(*failure_);
  if (left_[self]) return Fail(ErrorCode::kInvalidArgument, ToString(self_) + " has left the job already");
  const uint64_t sequence = sequence_;
  PostLocked({.kind = BootstrapCommand::Kind::kGather,
              .body = std::make_shared<const std::string>(EncodeGather(sequence, self, name, blob))});
  if (auto added = AddBlobLocked({sequence, self, name, blob}); !added) {
    if (SetFailureLocked(added.error())) PostLocked({.kind = BootstrapCommand::Kind::kAbort, .error = added.error()});
    return tl::unexpected<Error>(*failure_);
  }
  while (true) {
    Gather& gather = gathers_[sequence];
    if (gather.num_blobs == members_.Count()) break;
    if (failure_) return tl::unexpected<Error>(*failure_);
    for (uint32_t i = 0; i < members_.Count(); ++i) {
      if (left_[i] && !gather.blobs[i]) {
        return Fail(ErrorCode::kPeerFailed, ToString(members_.At(i)) + " left the job while " + ToString(self_) +
                                                " waited for it in '" + name + "'");
      }
    }
    changed_.wait(lock);
  }
  std::vector<std::string> blobs;
  blobs.reserve(members_.Count());
  for (auto& slot : gathers_[sequence].blobs) blobs.push_back(std::move(*slot));
  gathers_.erase(sequence);
  ++sequence_;
  return blobs;
}

Result<void> BootstrapState::Leave(int timeout_ms) {
  {
    std::unique_lock lock(mutex_);
    if (failure_) return tl::unexpected<Error>(*failure_);
    const uint32_t self = members_.IndexOf(self_);
    if (!left_[self]) {
      left_[self] = true;
      ++num_left_;
      PostLocked({.kind = BootstrapCommand::Kind::kLeave});
    }
    const auto done = [&] { return num_left_ == members_.Count() || failure_; };
    const bool in_time = changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), done);
    if (failure_) return tl::unexpected<Error>(*failure_);
    over_ = true;
    if (!in_time) {
      return Fail(ErrorCode::kTimeout,
                  NotLeftLocked() + " did not leave the job within " + Seconds(timeout_ms) + " of " + ToString(self_));
    }
  }
  Flush(1000);
  return {};
}

void BootstrapState::Stop() {
  const std::lock_guard lock(mutex_);
  PostLocked({.kind = BootstrapCommand::Kind::kStop});
}

void BootstrapState::Abort(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (SetFailureLocked(error)) PostLocked({.kind = BootstrapCommand::Kind::kAbort, .error = error});
}

std::optional<Error> BootstrapState::Failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void BootstrapState::SetCallback(std::function<void(const Error&)> callback) {
  const std::lock_guard lock(mutex_);
  callback_ = std::move(callback);
  PostLocked({});  // wakes the thread, which runs it if the failure is already there
}

void BootstrapState::Flush(int timeout_ms) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = ++last_ticket_;
  PostLocked({.kind = BootstrapCommand::Kind::kFlush, .ticket = ticket});
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return flushed_ticket_ >= ticket; });
}

std::vector<BootstrapCommand> BootstrapState::TakeCommands() {
  uint64_t count;
  while (read(wake_.get(), &count, sizeof count) > 0) {
  }
  const std::lock_guard lock(mutex_);
  return std::exchange(commands_, {});
}

void BootstrapState::SetJoined() {
  const std::lock_guard lock(mutex_);
  joined_ = true;
  changed_.notify_all();
}

Result<void> BootstrapState::AddBlob(GatherMessage&& message) {
  const std::lock_guard lock(mutex_);
  return AddBlobLocked(std::move(message));
}

Result<void> BootstrapState::AddBlobLocked(GatherMessage&& message) {
  // Nobody is more than one collective ahead: it would have needed this rank's blob to get there.
  if (message.member >= members_.Count() || message.sequence < sequence_ || message.sequence > sequence_ + 1)
    return Fail(ErrorCode::kMalformed, "a blob for a collective that is not under way");
  Gather& gather = gathers_[message.sequence];
  if (gather.num_blobs == 0) {
    gather.name = message.name;
    gather.first = message.member;
    gather.blobs.resize(members_.Count());
  }
  if (gather.name != message.name) {
    uint32_t first = message.member, second = gather.first;
    std::string first_name = message.name, second_name = gather.name;
    if (first < second) {
      std::swap(first, second);
      std::swap(first_name, second_name);
    }
    return Fail(ErrorCode::kMismatch, ToString(members_.At(first)) + " is in '" + Printable(first_name) + "' but " +
                                          ToString(members_.At(second)) + " is in '" + Printable(second_name) +
                                          "': start every rank with the same build and options");
  }
  if (gather.blobs[message.member]) return Fail(ErrorCode::kMalformed, "a second blob for the same collective");
  gather.blobs[message.member] = std::move(message.blob);
  if (++gather.num_blobs == members_.Count()) changed_.notify_all();
  return {};
}

void BootstrapState::SetLeft(uint32_t member) {
  const std::lock_guard lock(mutex_);
  if (left_[member]) return;
  left_[member] = true;
  ++num_left_;
  changed_.notify_all();
}

bool BootstrapState::HasLeft(uint32_t member) const {
  const std::lock_guard lock(mutex_);
  return left_[member];
}

bool BootstrapState::SetFailure(const Error& error) {
  const std::lock_guard lock(mutex_);
  return SetFailureLocked(error);
}

bool BootstrapState::SetFailureLocked(const Error& error) {
  if (failure_ || over_) return false;
  failure_ = error;
  changed_.notify_all();
  return true;
}

void BootstrapState::SetFlushed(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  flushed_ticket_ = ticket;
  changed_.notify_all();
}

void BootstrapState::RunCallback() {
  std::function<void(const Error&)> callback;
  Error failure;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_ || !callback_) return;
    callback = std::exchange(callback_, nullptr);
    failure = *failure_;
  }
  callback(failure);
}

void BootstrapState::PostLocked(BootstrapCommand command) {
  commands_.push_back(std::move(command));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

std::string BootstrapState::NotLeftLocked() const {
  std::string text;
  for (uint32_t i = 0; i < members_.Count(); ++i)
    if (!left_[i]) text += (text.empty() ? "" : ", ") + ToString(members_.At(i));
  return text;
}

}  // namespace gradlane
