// The data path of the UCX fabric. How a put travels, by the peer's path:
//
//   shared memory   ucp_put_nbx, which stores with this CPU and is complete at its return; ucp_worker_fence; a notice.
//                   ucp.h: the fence orders what was issued before it with what follows. UCX 1.13 makes it a CPU fence
//                   (uct_sm_iface_fence), and the notice's FIFO element is published after a store fence (mm_ep.c).
//   RDMA            ucp_put_nbx, ucp_ep_flush_nbx, and the notice when the flush has completed. A fence would not do:
//                   in 1.13 it only marks each interface (ucp_worker_fence in rma/flush.c, uct_rc_iface_fence), so a
//                   put and a message on different lanes would pass each other. ucp.h promises that a completed flush
//                   means that the target's memory is updated.
//   messages        ucp_am_send_nbx, eager. tcp lends us its receive buffer during the callback: one copy into the
//   slot.
//                   A message of several pieces is UCX's to assemble; its memory is kept until Release, with no copy.
//
// A notice or message that is complete, or the kSent after it, means that the source may be reused.
#include "transport/ucx_fabric.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/base/trace.h"
#include "transport/ucx_state.h"

namespace gradlane {
namespace {

constexpr int kProgressRounds = 16;  // of ucp_worker_progress in one Poll, while each finds something
// Before sleeping. Where two ends share a core a spin is lost time: one-way latency over shared memory was 11 us with 5
// us of spin, 31-35 with 25 and 56-60 with 50; where each has its own core it is 0.7 whatever the spin.
constexpr int64_t kSpinNs = 5'000;
constexpr uint32_t kIdleRounds = 256;  // between looks at the processes of peers, for who polls without waiting
constexpr uint32_t kBusyRounds = 16;   // of UCX refusing to be slept on, before giving the core away
constexpr long kBusyPauseNs = 50'000;
constexpr int64_t kGiveUpNs = 1'000'000'000;  // for UCX to end the puts of a lost peer

}  // namespace

void UcxFabric::OnOpDone(void* request, ucs_status_t status, void* user_data) {
  auto& op = *static_cast<UcxOp*>(user_data);
  UcxFabric& fabric = *op.fabric;
  if (status != UCS_OK) {
    op.failed = true;
    fabric.FailPeer(fabric.peers_[op.peer], fabric.Lost(op.peer, "sending to it", status));
  }
  ucp_request_free(request);
  if (--op.num_pending == 0) fabric.done_ops_.push_back(&op);
}

void UcxFabric::OnPeerLost(void* arg, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  auto& peer = *static_cast<UcxPeer*>(arg);
  peer.fabric->FailPeer(peer, peer.fabric->Lost(peer.id, "waiting for it", status));
}

ucs_status_t UcxFabric::OnMessage(void* arg, const void* header, size_t header_bytes, void* data, size_t bytes,
                                  const ucp_am_recv_param_t* param) {
  auto& fabric = *static_cast<UcxFabric*>(arg);
  UcxHeader parsed;
  if (header_bytes != sizeof(parsed)) {
    ++fabric.num_strays_;
    return UCS_OK;
  }
  std::memcpy(&parsed, header, sizeof(parsed));
  return fabric.Receive(parsed, data, bytes, param->recv_attr);
}

// UCS_INPROGRESS: we keep `data` until Release.
ucs_status_t UcxFabric::Receive(const UcxHeader& header, void* data, size_t bytes, uint64_t attributes) {
  if (header.magic != UcxHeader::kMagic || header.token != token_ || header.from >= peers_.size() ||
      !peers_[header.from].expected) {
    ++num_strays_;  // not of this job: there is nobody to blame
    return UCS_OK;
  }
  UcxPeer& peer = peers_[header.from];
  if (peer.failing) return UCS_OK;
  if (header.kind == UcxKind::kHello && bytes == 0) {
    peer.greeted = true;
    return UCS_OK;
  }
  if (header.kind == UcxKind::kBye && bytes == 0) {
    FailPeer(peer, {ErrorCode::kPeerFailed, "Peer " + std::to_string(peer.id) + " has closed its fabric."});
    return UCS_OK;
  }
  const auto malformed = [&](const std::string& what) {
    FailPeer(peer, {ErrorCode::kMalformed,
                    "Peer " + std::to_string(peer.id) + " sent a message " + what + "; it is cut off."});
    return UCS_OK;
  };
  if (header.kind != UcxKind::kNotice && header.kind != UcxKind::kMessage) return malformed("of an unknown kind");
  if ((attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return malformed("by rendezvous, which no Gradlane does");
  if (header.region >= regions_.size())
    return malformed("for region " + std::to_string(header.region) + ", which does not exist");
  const std::span<std::byte> region = regions_[header.region].bytes;
  if (header.offset_bytes > region.size() || header.payload_bytes > region.size() - header.offset_bytes) {
    return malformed("that reaches beyond the end of region " + std::to_string(header.region));
  }
  if (bytes != (header.kind == UcxKind::kMessage ? header.payload_bytes : 0))
    return malformed("whose length is not what it says");

  Event event{.kind = EventKind::kArrived, .peer = peer.id, .imm = header.imm};
  const std::span<std::byte> slot = region.subspan(header.offset_bytes, header.payload_bytes);
  if (header.kind == UcxKind::kMessage && bytes > 0 && (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0) {
    event.payload = {static_cast<const std::byte*>(data), bytes};
    event.release = reinterpret_cast<uint64_t>(data);
    arrived_.PushOrGrow(event);
    return UCS_INPROGRESS;
  }
  // tcp in UCX 1.13 lends its receive buffer for the length of this callback only. The slot is the place that the
  // sender owns until the receiver is done with it, so the bytes go there, as a put's would.
  if (bytes > 0) std::memcpy(slot.data(), data, bytes);
  event.payload = slot;
  arrived_.PushOrGrow(event);
  return UCS_OK;
}

Result<void> UcxFabric::PutNotify(const PutRequest& put) {
  if (put.peer >= peers_.size() || !peers_[put.peer].expected) {
    return Fail(ErrorCode::kInvalidArgument,
                "Peer " + std::to_string(put.peer) + " is not one that this fabric was connected to.");
  }
  UcxPeer& peer = peers_[put.peer];
  if (peer.failing) return tl::unexpected<Error>(peer.failure);
  if (put.slot.region >= peer.regions.size() || put.slot.offset_bytes > peer.regions[put.slot.region].bytes ||
      put.source.size() > peer.regions[put.slot.region].bytes - put.slot.offset_bytes) {
    return Fail(ErrorCode::kInvalidArgument, "A put of " + std::to_string(put.source.size()) + " bytes at offset " +
                                                 std::to_string(put.slot.offset_bytes) + " lies outside region " +
                                                 std::to_string(put.slot.region) + " of peer " +
                                                 std::to_string(put.peer) + ".");
  }
  if (put.source.size() > options_.max_put_bytes) {
    return Fail(ErrorCode::kInvalidArgument, "A put of " + std::to_string(put.source.size()) +
                                                 " bytes is larger than the " + std::to_string(options_.max_put_bytes) +
                                                 " that this fabric was opened for.");
  }
  CHECK(num_outstanding_ < options_.max_outstanding);
  if (free_ops_.empty()) return Fail(ErrorCode::kPeerFailed, "UCX holds every request for peers that were lost.");
  UcxOp& op = *free_ops_.back();
  free_ops_.pop_back();
  op.header.kind = peer.path.method == UcxMethod::kMessages ? UcxKind::kMessage : UcxKind::kNotice;
  op.header.token = peer.token;
  op.header.from = self_;
  op.header.imm = put.imm;
  op.header.region = put.slot.region;
  op.header.offset_bytes = put.slot.offset_bytes;
  op.header.payload_bytes = put.source.size();
  op.peer = put.peer;
  op.cookie = put.cookie;
  op.num_pending = 0;
  op.announced = false;
  op.failed = false;
  ++num_outstanding_;
  ++peer.num_outstanding;

  const auto give_up = [&](Error error) -> Result<void> {
    FailPeer(peer, std::move(error));
    if (op.num_pending == 0) Finish(op, false);
    return tl::unexpected<Error>(peer.failure);
  };
  const bool messages = peer.path.method == UcxMethod::kMessages;
  if (!messages && !put.source.empty()) {
    const UcxRemoteRegion& region = peer.regions[put.slot.region];
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.send = &OnOpDone;
    param.user_data = &op;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    const ucs_status_ptr_t status = ucp_put_nbx(peer.endpoint, put.source.data(), put.source.size(),
                                                region.base + put.slot.offset_bytes, region.rkey, &param);
    if (UCS_PTR_IS_ERR(status)) return give_up(Lost(put.peer, "putting to it", UCS_PTR_STATUS(status)));
    if (status != nullptr) ++op.num_pending;
    if (peer.path.method == UcxMethod::kPutFlushNotice) {
      const ucs_status_ptr_t flush = ucp_ep_flush_nbx(peer.endpoint, &param);
      if (UCS_PTR_IS_ERR(flush)) return give_up(Lost(put.peer, "flushing to it", UCS_PTR_STATUS(flush)));
      if (flush != nullptr) ++op.num_pending;
    }
    if (op.num_pending > 0) return {};
    if (peer.path.method == UcxMethod::kPut) ucp_worker_fence(worker_);
  }
  Result<bool> done = Announce(op, messages ? put.source : std::span<const std::byte>{});
  if (!done) return give_up(std::move(done).error());
  if (*done) Finish(op, true);
  return {};
}

Result<bool> UcxFabric::Announce(UcxOp& op, std::span<const std::byte> payload) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &OnOpDone;
  param.user_data = &op;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  op.announced = true;
  const ucs_status_ptr_t status = ucp_am_send_nbx(peers_[op.peer].endpoint, kUcxMessageId, &op.header,
                                                  sizeof(op.header), payload.data(), payload.size(), &param);
  if (UCS_PTR_IS_ERR(status)) return tl::unexpected<Error>(Lost(op.peer, "sending to it", UCS_PTR_STATUS(status)));
  if (status == nullptr) return true;
  ++op.num_pending;
  return false;
}

void UcxFabric::Advance(UcxOp& op) {
  UcxPeer& peer = peers_[op.peer];
  if (op.failed || peer.failing) return Finish(op, false);
  if (op.announced) return Finish(op, true);
  if (peer.path.method == UcxMethod::kPut) ucp_worker_fence(worker_);
  Result<bool> done = Announce(op, {});
  if (!done) {
    FailPeer(peer, std::move(done).error());
    Finish(op, false);
  } else if (*done) {
    Finish(op, true);
  }
}

void UcxFabric::Finish(UcxOp& op, bool sent) {
  UcxPeer& peer = peers_[op.peer];
  if (sent) sent_.PushOrGrow({.kind = EventKind::kSent, .peer = op.peer, .cookie = op.cookie});
  if (!peer.reported) {  // with the report, what UCX still held of this peer stopped counting
    --peer.num_outstanding;
    if (!sent) --num_outstanding_;  // else at the report of kSent
  }
  free_ops_.push_back(&op);
}

void UcxFabric::FailPeer(UcxPeer& peer, Error error) {
  if (peer.failing) return;
  peer.failing = true;
  peer.failure = std::move(error);
  peer.give_up_ns = NowNs() + kGiveUpNs;
  ++num_failing_;
}

Error UcxFabric::Lost(PeerId peer, const char* doing, ucs_status_t status) const {
  return {ErrorCode::kPeerFailed,
          "Peer " + std::to_string(peer) + " was lost while " + doing + ": " + ucs_status_string(status) +
              " (UCX status " + std::to_string(static_cast<int>(status)) + ").",
          static_cast<int>(status)};
}

// Closes the endpoints of failing peers, outside UCX's callbacks, and reports each peer once its puts have ended.
void UcxFabric::BuryFailed() {
  for (UcxPeer& peer : peers_) {
    if (!peer.failing || peer.reported) continue;
    if (peer.endpoint != nullptr && peer.notices_loss) {
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      const ucs_status_ptr_t status = ucp_ep_close_nbx(peer.endpoint, &param);
      peer.endpoint = nullptr;
      if (UCS_PTR_IS_PTR(status)) peer.closing = status;
    }
    if (peer.closing != nullptr && ucp_request_check_status(peer.closing) != UCS_INPROGRESS) {
      ucp_request_free(std::exchange(peer.closing, nullptr));
    }
    if ((peer.closing != nullptr || peer.num_outstanding > 0) && NowNs() < peer.give_up_ns) continue;
    num_outstanding_ -= peer.num_outstanding;
    peer.reported = true;
    --num_failing_;
    lost_.PushOrGrow(peer.id);
  }
}

size_t UcxFabric::Progress() {
  size_t found = 0;
  for (int round = 0; round < kProgressRounds && ucp_worker_progress(worker_) > 0; ++round) ++found;
  while (!done_ops_.empty()) {  // Advance may complete more, which adds to done_ops_ only by later progress
    UcxOp& op = *done_ops_.back();
    done_ops_.pop_back();
    Advance(op);
  }
  num_idle_ = found > 0 ? 0 : num_idle_ + 1;
  if (found > 0) num_busy_ = 0;
  if (num_idle_ >= kIdleRounds) {
    num_idle_ = 0;
    TakeSignals(0);
  }
  if (num_failing_ > 0) BuryFailed();
  return found;
}

size_t UcxFabric::Poll(std::span<Event> events) {
  Progress();
  size_t num_events = 0;
  while (num_events < events.size() && sent_.size() > 0) {
    events[num_events++] = sent_.Pop();
    --num_outstanding_;
  }
  while (num_events < events.size() && arrived_.size() > 0) events[num_events++] = arrived_.Pop();
  // Last, so that what a peer sent before it died is seen before its death.
  while (num_events < events.size() && lost_.size() > 0)
    events[num_events++] = {.kind = EventKind::kFailed, .peer = lost_.Pop()};
  return num_events;
}

void UcxFabric::Release(uint64_t release) {
  if (release != 0) ucp_am_data_release(worker_, reinterpret_cast<void*>(release));
}

bool UcxFabric::HasNews() const { return sent_.size() > 0 || arrived_.size() > 0 || lost_.size() > 0; }

void UcxFabric::Wait(int timeout_ms) {
  const int64_t begin_ns = NowNs();
  const int64_t deadline_ns = begin_ns + int64_t{timeout_ms < 0 ? 0 : timeout_ms} * 1'000'000;
  do {
    if (woken_.exchange(false, std::memory_order_acquire) || HasNews()) return;
    if (Progress() > 0 && HasNews()) return;
  } while (NowNs() < begin_ns + kSpinNs);
  for (;;) {
    if (woken_.exchange(false, std::memory_order_acquire) || HasNews()) return;
    const int64_t left_ns = deadline_ns - NowNs();
    if (left_ns <= 0) return;
    int sleep_ms = static_cast<int>((left_ns + 999'999) / 1'000'000);
    if (num_failing_ > 0 && sleep_ms > 10) sleep_ms = 10;  // an endpoint is being closed, with a limit of its own
    Sleep(sleep_ms);
    Progress();
  }
}

// ucp.h, ucp_worker_arm: events may be slept for only when arming succeeds; UCS_ERR_BUSY means that some came since the
// last progress, and that nothing was armed. UCX 1.13 also says so as long as a send waits for room in a shared-memory
// FIFO, of which no event will tell: then the core is given to the peer that has to make the room, in short pauses.
void UcxFabric::Sleep(int timeout_ms) {
  if (ucp_worker_arm(worker_) == UCS_OK) {
    num_busy_ = 0;
    return TakeSignals(timeout_ms);
  }
  if (++num_busy_ <= kBusyRounds) return;
  pollfd waited{epoll_fd_, POLLIN, 0};
  const timespec pause{0, kBusyPauseNs};
  (void)ppoll(&waited, 1, &pause, nullptr);
  TakeSignals(0);
}

void UcxFabric::TakeSignals(int timeout_ms) {
  epoll_event signals[8];
  const int num_signals = epoll_wait(epoll_fd_, signals, 8, timeout_ms);
  for (int i = 0; i < num_signals; ++i) {
    const int fd = signals[i].data.fd;
    if (fd == wake_fd_) {
      uint64_t count = 0;
      (void)!read(wake_fd_, &count, sizeof(count));
      continue;
    }
    for (UcxPeer& peer : peers_) {
      if (peer.process_fd != fd) continue;
      close(std::exchange(peer.process_fd, -1));  // which also ends epoll's interest in it
      FailPeer(peer, {ErrorCode::kPeerFailed,
                      "Peer " + std::to_string(peer.id) + " has died: its process on this host has ended.", ESRCH});
    }
  }
}

void UcxFabric::Wake() {
  woken_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof(one));
}

Error UcxFabric::FailureOf(PeerId peer) const {
  CHECK(peer < peers_.size());
  if (!peers_[peer].failing) return {ErrorCode::kPeerFailed, "Peer " + std::to_string(peer) + " has not failed."};
  return peers_[peer].failure;
}

}  // namespace gradlane
