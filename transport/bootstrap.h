// Bootstrap is the control plane: over TCP the members of a job find each other, prove that they know the job's secret,
// agree on what must be equal, exchange blobs (fabric addresses, job, results), and learn within bounded time when one
// of them dies, hangs or gives up. What goes over the wire, and every timeout: transport/BOOTSTRAP.md.
//
// The first server (the first worker in a job without servers) hosts; everybody else connects to it. One Bootstrap per
// rank, owned by the rank's main function. It runs one thread of its own for heartbeats and for what peers say.
// AllGather, Barrier and Leave belong to the owning thread; Abort, Failure and OnFailure may be called from any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/base/error.h"
#include "transport/base/members.h"

namespace gradlane {

inline constexpr uint32_t kBootstrapVersion = 1;
inline constexpr size_t kMaxBlobBytes = size_t{4} << 20;

struct BootstrapOptions {
  Member self;
  Membership members;
  std::string rendezvous;  // HOST:PORT of the host rank
  int listen_fd = -1;      // host only: an already listening socket (inherited from --local), which Join takes over and
                           // closes in the end; -1 binds `rendezvous`
  std::string secret;      // the job's secret, 16 to 4096 bytes, never sent
  // What has to be equal on every rank that states it (model, codec, ...): name -> value. A rank may leave names out.
  std::map<std::string, std::string> agreed;
  int join_timeout_ms = 30'000;  // until every member is there; afterwards late is not dead, see AllGather
  int peer_timeout_ms = 10'000;  // silence after which a peer counts as hung; the shortest one of the job sets the
                                 // heartbeat, so that ranks may differ
  int parent_fd = -1;  // read end of a pipe that the launcher holds: end of file means that it died. Taken over
};

class Bootstrap {
 public:
  // Connects, authenticates both ways, and checks version, counts, ranks and `agreed`. Errors (each names the rank, the
  // value on both sides and what to do): kUnauthenticated, kMismatch, kTimeout (names who is missing), kUnavailable
  // (address in use, cannot be resolved), kPeerFailed (a rank or the launcher died meanwhile), kInvalidArgument.
  // Returns at the latest 2 s after the join timeout; where a rank does not fit, the host stays up to 5 s (or the peer
  // timeout, if that is shorter) to tell those that have yet to come.
  static Result<std::unique_ptr<Bootstrap>> Join(BootstrapOptions options);
  // Without Leave: peers see this rank die. Takes at most a second, for what was said last to get through. Not from
  // OnFailure's callback.
  virtual ~Bootstrap() = default;

  // Everybody's blob, by member index. Collective: every rank calls it, in the same order, with the same name (at most
  // 128 bytes; a different one ends the job with kMismatch). Waits as long as all peers are alive, however late one is.
  // At most kMaxBlobBytes each. Errors: the job's first failure; kPeerFailed if a rank has left without taking part.
  virtual Result<std::vector<std::string>> AllGather(const std::string& name, const std::string& blob) = 0;
  virtual Result<void> Barrier(const std::string& name) = 0;

  // Collective end: returns when everybody has left; kTimeout, with their names, if some have not after the peer
  // timeout. After it, a vanishing peer is no failure. The job's first failure if there was one before.
  virtual Result<void> Leave() = 0;

  // Tells everybody that this rank gives up, and why, as "worker 1: <sentence>"; does nothing if a failure is known
  // already. Blocks until the host's machine (for the host: every rank's) has it, at most half a second.
  virtual void Abort(const Error& error) = 0;

  // The first failure known here: a peer that died, hung or aborted, or a launcher that died. Names the rank.
  virtual std::optional<Error> Failure() const = 0;

  // Called once, from the bootstrap's thread, at the first failure (at once if it has already happened). Must be quick:
  // heartbeats wait for it.
  virtual void OnFailure(std::function<void(const Error&)> callback) = 0;
};

}  // namespace gradlane
