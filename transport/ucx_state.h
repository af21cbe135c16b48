// What the UCX fabric keeps: its context and worker with everything that hangs on them, a record per peer, a record per
// put under way. Used by ucx_fabric.cc and ucx_connect.cc only.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transport/base/memory.h"
#include "transport/base/ring_queue.h"
#include "transport/fabric.h"
#include "transport/ucx_address.h"
#include "transport/ucx_fabric.h"
#include "transport/ucx_wire.h"

namespace gradlane {

class UcxFabric;

struct UcxRegion {
  ucp_mem_h handle = nullptr;
  std::span<std::byte> bytes;
  PageReport pages;
};

struct UcxRemoteRegion {
  uint64_t base = 0;
  uint64_t bytes = 0;
  ucp_rkey_h rkey = nullptr;
};

struct UcxPeer {
  UcxFabric* fabric = nullptr;
  PeerId id = 0;
  bool expected = false;  // has an address: may be put to and may send
  bool greeted = false;   // its hello has arrived
  ucp_ep_h endpoint = nullptr;
  bool notices_loss = false;  // UCX tells when this peer dies
  int process_fd = -1;        // of its process, if it runs on this host: readable once that has ended
  uint64_t token = 0;
  std::vector<UcxRemoteRegion> regions;
  UcxPath path;
  size_t num_outstanding = 0;
  // Loss: failing (nothing is posted or taken any more) -> endpoint closed, every put of it ended -> reported.
  bool failing = false;
  bool reported = false;
  int64_t give_up_ns = 0;  // report then, even if UCX still holds a put of it
  void* closing = nullptr;
  Error failure;
};

// One put under way; its own until reported kSent. The header is read by UCX until then.
struct UcxOp {
  UcxFabric* fabric = nullptr;
  UcxHeader header;
  PeerId peer = 0;
  uint64_t cookie = 0;
  uint8_t num_pending = 0;  // callbacks still to come
  bool announced = false;   // the notice or message has been posted: what remains is kSent
  bool failed = false;
};

class UcxFabric final : public Fabric {
 public:
  explicit UcxFabric(const UcxOptions& options);
  ~UcxFabric() override;
  Result<void> Start();

  Result<Region> Allocate(size_t bytes) override;
  Result<std::string> LocalAddress() override;
  Result<void> Connect(PeerId self, std::span<const std::string> addresses, int timeout_ms) override;
  Result<void> PutNotify(const PutRequest& put) override;
  size_t MaxOutstanding() const override { return options_.max_outstanding; }
  size_t Poll(std::span<Event> events) override;
  void Release(uint64_t release) override;
  void Wait(int timeout_ms) override;
  void Wake() override;
  Error FailureOf(PeerId peer) const override;
  std::string Describe() const override;
  std::string DescribePath(PeerId peer) const override;

 private:
  static void OnOpDone(void* request, ucs_status_t status, void* user_data);
  static void OnPeerLost(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t OnMessage(void* arg, const void* header, size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param);
  ucs_status_t Receive(const UcxHeader& header, void* data, size_t bytes, uint64_t attributes);

  Result<void> OpenWorker();
  Result<void> CreateEndpoint(UcxPeer& peer, const UcxAddress& address);
  void WatchProcess(UcxPeer& peer, const UcxAddress& address);
  Result<void> Say(UcxKind kind, UcxPeer& peer);  // hello and bye
  Result<void> ResolvePath(UcxPeer& peer, const UcxAddress& address);
  Error Lost(PeerId peer, const char* doing, ucs_status_t status) const;
  Error Overdue(int timeout_ms) const;

  // Posts the notice or the message; true if it is done already.
  Result<bool> Announce(UcxOp& op, std::span<const std::byte> payload);
  void Advance(UcxOp& op);  // after the last callback of a step
  void Finish(UcxOp& op, bool sent);
  void FailPeer(UcxPeer& peer, Error error);
  void BuryFailed();
  size_t Progress();
  bool HasNews() const;
  void Sleep(int timeout_ms);  // until UCX, Wake() or the end of a peer's process says something
  void TakeSignals(int timeout_ms);
  void CloseEndpoints();

  const UcxOptions options_;
  std::string transports_shown_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  std::atomic<bool> woken_{false};  // release in Wake, acquire in Wait: what was done before Wake is seen after Wait
  uint64_t token_ = 0;
  std::string local_address_;
  PeerId self_ = 0;
  std::vector<UcxRegion> regions_;
  std::vector<UcxPeer> peers_;  // fixed from Connect on
  std::vector<UcxOp> ops_;      // likewise
  std::vector<UcxOp*> free_ops_;
  std::vector<UcxOp*> done_ops_;  // their callbacks have run; advanced outside of them
  size_t num_outstanding_ = 0;
  size_t num_failing_ = 0;  // and not yet reported
  uint64_t num_strays_ = 0;
  uint32_t num_idle_ = 0;  // calls of Progress in a row that found nothing
  uint32_t num_busy_ = 0;  // refusals of UCX to be slept on, in a row
  RingQueue<Event> sent_;
  RingQueue<Event> arrived_;  // grows only where the owner does not poll while more arrives than ever before
  RingQueue<PeerId> lost_;
};

}  // namespace gradlane
