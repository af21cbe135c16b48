// What the owner of a Bootstrap and its thread share: the first failure, the blobs of the collectives, who has left,
// and the commands from the one to the other. Every method takes the lock itself; the comments say which thread calls
// what.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/base/error.h"
#include "transport/base/members.h"
#include "transport/base/socket.h"
#include "transport/bootstrap_wire.h"

namespace gradlane {

struct BootstrapCommand {
  enum class Kind { kGather, kLeave, kAbort, kFlush, kStop };
  Kind kind = Kind::kFlush;
  std::shared_ptr<const std::string> body;  // kGather: the message; shared, as it may go to many connections
  Error error;                              // kAbort: what to tell the others
  uint64_t ticket = 0;                      // kFlush: what SetFlushed is to answer with
};

class BootstrapState {
 public:
  BootstrapState(Member self, Membership members, Fd wake);

  // The owner's thread.
  Result<void> WaitJoined();
  Result<std::vector<std::string>> AllGather(const std::string& name, const std::string& blob);
  Result<void> Leave(int timeout_ms);
  void Stop();

  // Any thread.
  void Abort(const Error& error);
  std::optional<Error> Failure() const;
  void SetCallback(std::function<void(const Error&)> callback);
  // Waits until the bytes of all earlier commands have reached the peers' machines, at most so long. Not from the
  // bootstrap's thread.
  void Flush(int timeout_ms);

  // The bootstrap's thread.
  int wake_fd() const { return wake_.get(); }
  std::vector<BootstrapCommand> TakeCommands();
  void SetJoined();
  Result<void> AddBlob(GatherMessage&& message);  // kMalformed, kMismatch: a peer that breaks the rules
  void SetLeft(uint32_t member);
  bool HasLeft(uint32_t member) const;
  bool SetFailure(const Error& error);  // true: it is the first
  void SetFlushed(uint64_t ticket);
  void RunCallback();  // if there is one and a failure, once, outside the lock

 private:
  struct Gather {
    std::string name;
    uint32_t first = 0;  // who named it
    std::vector<std::optional<std::string>> blobs;
    uint32_t num_blobs = 0;
  };

  // All with mutex_ held.
  Result<void> AddBlobLocked(GatherMessage&& message);
  bool SetFailureLocked(const Error& error);
  void PostLocked(BootstrapCommand command);
  std::string NotLeftLocked() const;

  const Member self_;
  const Membership members_;
  const Fd wake_;  // eventfd

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  bool joined_ = false;
  bool over_ = false;  // Leave has returned: nothing is a failure any more
  std::optional<Error> failure_;
  std::function<void(const Error&)> callback_;
  uint64_t sequence_ = 0;               // of the owner's current or next collective
  std::map<uint64_t, Gather> gathers_;  // sequence_ and sequence_ + 1 only
  std::vector<bool> left_;
  uint32_t num_left_ = 0;
  uint64_t last_ticket_ = 0;
  uint64_t flushed_ticket_ = 0;
  std::vector<BootstrapCommand> commands_;
};

}  // namespace gradlane
