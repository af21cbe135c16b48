// The control path of the UCX fabric: opening, memory, addresses, connecting, closing. Nothing here runs between the
// end of Connect and the destructor.
#include <sodium.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <ucs/config/global_opts.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "transport/base/trace.h"
#include "transport/ucx_fabric.h"
#include "transport/ucx_state.h"

namespace gradlane {
namespace {

constexpr size_t kArrivedCapacity = 8192;
constexpr int64_t kCloseNs = 500'000'000;  // the most that the destructor waits for peers that may be dead
// tcp messages up to this long travel in one piece, which UCX lends us whole and we copy into the slot. In the default
// 64 KiB pieces UCX assembles them in memory fresh from malloc: on two loaded cores that took 0.40 GB/s at 64 KiB and
// 0.42 at 1 MiB, one piece 0.54 and 0.63.
constexpr size_t kMaxPieceBytes = size_t{1} << 20;
constexpr size_t kPieceHeadroomBytes = 4096;  // UCX's headers and ours
constexpr const char* kKeepalive = "2s";      // how often UCX looks after idle peers

// UCX's configuration and module loading are global to the process.
std::mutex& UcxGlobalMutex() {
  static std::mutex mutex;
  return mutex;
}

Error UcxError(ErrorCode code, const std::string& what, ucs_status_t status) {
  return {code,
          what + ": " + ucs_status_string(status) + " (UCX status " + std::to_string(static_cast<int>(status)) + ").",
          static_cast<int>(status)};
}

std::string UcxVersion() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

// Equal only for processes that see each other's numbers: the kernel's boot and the pid name space.
std::string HostName() {
  char boot[64] = "";
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re"); file != nullptr) {
    if (std::fgets(boot, sizeof(boot), file) == nullptr) boot[0] = '\0';
    std::fclose(file);
  }
  boot[std::strcspn(boot, "\n")] = '\0';
  char space[64] = "";
  const ssize_t bytes = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
  return std::string(boot) + " " + std::string(space, bytes > 0 ? static_cast<size_t>(bytes) : 0);
}

// Field 22 of /proc/PID/stat (proc(5)); 0 where there is no such process.
uint64_t ProcessStart(uint32_t process) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "re");
  if (file == nullptr) return 0;
  char text[1024] = "";
  const size_t bytes = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[bytes] = '\0';
  const char* after_name = std::strrchr(text, ')');
  unsigned long long started = 0;
  if (after_name == nullptr ||
      std::sscanf(after_name, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &started) != 1) {
    return 0;
  }
  return started;
}

uint32_t UcxWireVersion() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return major << 16 | minor;
}

}  // namespace

UcxFabric::UcxFabric(const UcxOptions& options)
    : options_(options), sent_(options.max_outstanding), arrived_(kArrivedCapacity), lost_(64) {}

Result<void> UcxFabric::Start() {
  if (sodium_init() < 0) return Fail(ErrorCode::kSystem, "libsodium cannot start: the system gives no random numbers.");
  randombytes_buf(&token_, sizeof(token_));
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (wake_fd_ < 0 || epoll_fd_ < 0) {
    const int error = errno;
    return Fail(ErrorCode::kSystem, std::string("Cannot make an event descriptor: ") + std::strerror(error) + ".",
                error);
  }
  TRY(OpenWorker());
  int worker_fd = -1;
  if (const ucs_status_t status = ucp_worker_get_efd(worker_, &worker_fd); status != UCS_OK) {
    return tl::unexpected<Error>(
        UcxError(ErrorCode::kUnavailable, "UCX cannot wake a sleeping thread over these transports", status));
  }
  for (const int fd : {wake_fd_, worker_fd}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      const int error = errno;
      return Fail(ErrorCode::kSystem, std::string("Cannot wait for UCX's events: ") + std::strerror(error) + ".",
                  error);
    }
  }
  return {};
}

Result<void> UcxFabric::OpenWorker() {
  const std::lock_guard lock(UcxGlobalMutex());
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return tl::unexpected<Error>(UcxError(ErrorCode::kSystem, "UCX cannot read its configuration", status));
  }
  const std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)> config_owner(config, &ucp_config_release);
  std::vector<std::pair<const char*, std::string>> settings = {
      {"RNDV_THRESH", "inf"},
      {"KEEPALIVE_INTERVAL", kKeepalive},
      // Lets endpoints with error handling use shared memory: UCX then looks whether the peer's process lives.
      // UCX's names for a transport's own settings name the family here, not the transport: this is posix and sysv.
      {"MM_ERROR_HANDLING", "y"},
      {"RX_SEG_SIZE",
       std::to_string(std::clamp(options_.max_put_bytes, size_t{64} << 10, kMaxPieceBytes) + kPieceHeadroomBytes)},
  };
  if (!options_.transports.empty()) settings.push_back({"TLS", options_.transports});
  if (!options_.net_devices.empty()) settings.push_back({"NET_DEVICES", options_.net_devices});
  char log_level[32] = "";
  if (ucs_global_opts_get_value("LOG_LEVEL", log_level, sizeof(log_level)) == UCS_OK &&
      std::strcmp(log_level, "WARN") == 0) {
    settings.push_back(
        {"LOG_LEVEL", "error"});  // its default warns of what we report ourselves; a wish by UCX_LOG_LEVEL stands
  }
  for (const auto& [name, value] : settings) {
    if (const ucs_status_t status = ucp_config_modify(config, name, value.c_str()); status != UCS_OK) {
      return tl::unexpected<Error>(
          UcxError(ErrorCode::kInvalidArgument, "UCX does not take " + std::string(name) + "=" + value, status));
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 0;
  if (const ucs_status_t status = ucp_init(&params, config, &context_); status != UCS_OK) {
    context_ = nullptr;
    return tl::unexpected<Error>(
        UcxError(ErrorCode::kUnavailable,
                 "UCX finds no usable transport" +
                     (options_.transports.empty() ? std::string() : " among '" + options_.transports + "'") +
                     (options_.net_devices.empty() ? std::string() : " on '" + options_.net_devices + "'"),
                 status));
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // opened by one thread, then owned by another
  if (const ucs_status_t status = ucp_worker_create(context_, &worker_params, &worker_); status != UCS_OK) {
    worker_ = nullptr;
    return tl::unexpected<Error>(UcxError(ErrorCode::kUnavailable, "UCX cannot open a worker", status));
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kUcxMessageId;
  handler.cb = &OnMessage;
  handler.arg = this;
  if (const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &handler); status != UCS_OK) {
    return tl::unexpected<Error>(UcxError(ErrorCode::kUnavailable, "UCX cannot receive messages", status));
  }
  return {};
}

Result<Region> UcxFabric::Allocate(size_t bytes) {
  CHECK(local_address_.empty());
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes == 0 ? 1 : bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;  // in shared memory where there is some: peers put to nothing else with the CPU
  UcxRegion region;
  const auto error = [&](ucs_status_t status) {
    return tl::unexpected<Error>(
        UcxError(ErrorCode::kSystem, "UCX cannot allocate and register " + std::to_string(bytes) + " bytes", status));
  };
  if (const ucs_status_t status = ucp_mem_map(context_, &params, &region.handle); status != UCS_OK)
    return error(status);
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  if (const ucs_status_t status = ucp_mem_query(region.handle, &attributes); status != UCS_OK) {
    ucp_mem_unmap(context_, region.handle);
    return error(status);
  }
  region.bytes = {static_cast<std::byte*>(attributes.address), bytes};
  region.pages = Prefault(region.bytes);
  regions_.push_back(region);
  return Region{static_cast<RegionId>(regions_.size() - 1), region.bytes};
}

Result<std::string> UcxFabric::LocalAddress() {
  if (!local_address_.empty()) return local_address_;
  UcxAddress address;
  address.token = token_;
  address.ucx_version = UcxWireVersion();
  address.max_put_bytes = options_.max_put_bytes;
  address.host = HostName();
  address.process = static_cast<uint32_t>(getpid());
  address.started = ProcessStart(address.process);
  ucp_address_t* worker_address = nullptr;
  size_t worker_address_bytes = 0;
  if (const ucs_status_t status = ucp_worker_get_address(worker_, &worker_address, &worker_address_bytes);
      status != UCS_OK) {
    return tl::unexpected<Error>(UcxError(ErrorCode::kSystem, "UCX does not tell its address", status));
  }
  address.worker.assign(reinterpret_cast<const char*>(worker_address), worker_address_bytes);
  ucp_worker_release_address(worker_, worker_address);
  for (const UcxRegion& region : regions_) {
    void* rkey = nullptr;
    size_t rkey_bytes = 0;
    if (const ucs_status_t status = ucp_rkey_pack(context_, region.handle, &rkey, &rkey_bytes); status != UCS_OK) {
      return tl::unexpected<Error>(UcxError(ErrorCode::kSystem, "UCX does not give a key for a region", status));
    }
    address.regions.push_back({reinterpret_cast<uint64_t>(region.bytes.data()), region.bytes.size(),
                               std::string(static_cast<const char*>(rkey), rkey_bytes)});
    ucp_rkey_buffer_release(rkey);
  }
  local_address_ = PackUcxAddress(address);
  return local_address_;
}

Result<void> UcxFabric::Connect(PeerId self, std::span<const std::string> addresses, int timeout_ms) {
  if (self >= addresses.size() || !peers_.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "A UCX fabric connects once, as one of the peers whose addresses it is given.");
  }
  const int64_t deadline_ns = NowNs() + int64_t{timeout_ms} * 1'000'000;
  std::vector<UcxAddress> parsed(addresses.size());
  for (PeerId id = 0; id < addresses.size(); ++id) {
    if (id == self || addresses[id].empty()) continue;
    Result<UcxAddress> address = ParseUcxAddress(addresses[id]);
    if (!address) {
      Error error = std::move(address).error();
      error.message = "Peer " + std::to_string(id) + ": " + error.message;
      return tl::unexpected<Error>(std::move(error));
    }
    if (address->ucx_version != UcxWireVersion() || address->max_put_bytes != options_.max_put_bytes) {
      return Fail(ErrorCode::kMismatch,
                  "Peer " + std::to_string(id) + " runs UCX " + std::to_string(address->ucx_version >> 16) + "." +
                      std::to_string(address->ucx_version & 0xffff) + " with puts of up to " +
                      std::to_string(address->max_put_bytes) + " bytes, this rank UCX " + UcxVersion() + " with " +
                      std::to_string(options_.max_put_bytes) + ": they must be equal.");
    }
    parsed[id] = *std::move(address);
  }
  // Twice the puts that may exist, since UCX may hold on to those of lost peers; and a hello to everybody.
  ops_ = std::vector<UcxOp>(2 * options_.max_outstanding + addresses.size());
  done_ops_.reserve(ops_.size());
  for (UcxOp& op : ops_) {
    op.fabric = this;
    free_ops_.push_back(&op);
  }
  self_ = self;
  peers_ = std::vector<UcxPeer>(addresses.size());
  for (PeerId id = 0; id < peers_.size(); ++id) {
    peers_[id].fabric = this;
    peers_[id].id = id;
    peers_[id].expected = id != self && !addresses[id].empty();
  }
  for (UcxPeer& peer : peers_) {
    if (!peer.expected) continue;
    WatchProcess(peer, parsed[peer.id]);
    TRY(CreateEndpoint(peer, parsed[peer.id]));
    TRY(Say(UcxKind::kHello, peer));
  }
  const auto connected = [&] {
    return num_outstanding_ == 0 && std::all_of(peers_.begin(), peers_.end(),
                                                [](const UcxPeer& peer) { return !peer.expected || peer.greeted; });
  };
  while (!connected()) {
    // A peer may be gone again already; Poll reports it. Only one that never greeted keeps this from succeeding.
    for (const UcxPeer& peer : peers_) {
      if (peer.failing && !peer.greeted) return tl::unexpected<Error>(peer.failure);
    }
    const int64_t left_ns = deadline_ns - NowNs();
    if (left_ns <= 0) return tl::unexpected<Error>(Overdue(timeout_ms));
    if (Progress() == 0) Sleep(static_cast<int>(std::min<int64_t>(left_ns / 1'000'000 + 1, 100)));
    while (sent_.size() > 0) {
      sent_.Pop();  // of a hello
      --num_outstanding_;
    }
  }
  for (UcxPeer& peer : peers_) {
    if (peer.expected && !peer.failing) TRY(ResolvePath(peer, parsed[peer.id]));
  }
  return {};
}

// UCX's own look at shared-memory peers comes seconds late and takes a zombie for alive.
void UcxFabric::WatchProcess(UcxPeer& peer, const UcxAddress& address) {
  if (address.host != HostName() || address.process == static_cast<uint32_t>(getpid())) return;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, address.process, 0));
  if (fd < 0) return;  // before Linux 5.3, or the peer is gone, which its silence will tell
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (ProcessStart(address.process) != address.started || epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    close(fd);
    return;
  }
  peer.process_fd = fd;
}

Result<void> UcxFabric::CreateEndpoint(UcxPeer& peer, const UcxAddress& address) {
  peer.token = address.token;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnPeerLost;
  params.err_handler.arg = &peer;
  ucs_status_t status = ucp_ep_create(worker_, &params, &peer.endpoint);
  peer.notices_loss = status == UCS_OK;
  if (status != UCS_OK) {
    // No transport to this peer can tell of its death. The bootstrap still does.
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    status = ucp_ep_create(worker_, &params, &peer.endpoint);
  }
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    return tl::unexpected<Error>(
        UcxError(ErrorCode::kUnavailable, "UCX has no transport from here to peer " + std::to_string(peer.id), status));
  }
  return {};
}

Result<void> UcxFabric::Say(UcxKind kind, UcxPeer& peer) {
  if (free_ops_.empty()) return {};  // only where UCX holds on to what lost peers were sent
  UcxOp& op = *free_ops_.back();
  free_ops_.pop_back();
  op.header = {};
  op.header.kind = kind;
  op.header.token = peer.token;
  op.header.from = self_;
  op.peer = peer.id;
  op.num_pending = 0;
  op.failed = false;
  ++num_outstanding_;
  ++peer.num_outstanding;
  Result<bool> done = Announce(op, {});
  if (!done) {
    Finish(op, false);
    return tl::unexpected<Error>(std::move(done).error());
  }
  if (*done) Finish(op, true);
  return {};
}

Error UcxFabric::Overdue(int timeout_ms) const {
  std::string missing;
  for (const UcxPeer& peer : peers_) {
    if (!peer.expected || peer.greeted) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(peer.id);
  }
  return {ErrorCode::kTimeout,
          "No answer over UCX from peer " +
              (missing.empty() ? std::string("(all greeted, but a greeting of ours is stuck)") : missing) + " within " +
              std::to_string(timeout_ms) + " ms."};
}

Result<void> UcxFabric::ResolvePath(UcxPeer& peer, const UcxAddress& address) {
  bool mapped = !address.regions.empty();
  for (const UcxRegionAddress& region : address.regions) {
    UcxRemoteRegion remote{region.base, region.bytes, nullptr};
    if (const ucs_status_t status = ucp_ep_rkey_unpack(peer.endpoint, region.rkey.data(), &remote.rkey);
        status != UCS_OK) {
      return tl::unexpected<Error>(
          UcxError(ErrorCode::kMalformed, "UCX cannot use a region's key of peer " + std::to_string(peer.id), status));
    }
    void* local = nullptr;
    mapped &= ucp_rkey_ptr(remote.rkey, remote.base, &local) == UCS_OK;
    peer.regions.push_back(remote);
  }
  char* text = nullptr;
  size_t text_bytes = 0;
  std::FILE* stream = open_memstream(&text, &text_bytes);
  if (stream == nullptr) return Fail(ErrorCode::kSystem, "Out of memory while connecting.", ENOMEM);
  ucp_ep_print_info(peer.endpoint, stream);
  std::fclose(stream);
  peer.path = ChooseUcxPath({text, text_bytes}, mapped);
  std::free(text);
  if (address.regions.empty()) peer.path.method = UcxMethod::kMessages;  // there is nothing to put into
  return {};
}

void UcxFabric::CloseEndpoints() {
  const int64_t deadline_ns = NowNs() + kCloseNs;
  for (UcxPeer& peer : peers_) {
    if (peer.greeted && !peer.failing && peer.endpoint != nullptr) (void)Say(UcxKind::kBye, peer).has_value();
  }
  // Bytes that were promised go out first, if the peers still take them.
  const auto busy = [&] {
    return std::any_of(peers_.begin(), peers_.end(),
                       [](const UcxPeer& peer) { return !peer.failing && peer.num_outstanding > 0; });
  };
  while (busy() && NowNs() < deadline_ns) {
    if (Progress() == 0) Sleep(1);
  }
  std::vector<void*> closing;
  for (UcxPeer& peer : peers_) {
    if (peer.closing != nullptr) closing.push_back(peer.closing);
    if (peer.endpoint == nullptr) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = peer.failing && peer.notices_loss ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    const ucs_status_ptr_t status = ucp_ep_close_nbx(peer.endpoint, &param);
    peer.endpoint = nullptr;
    if (UCS_PTR_IS_PTR(status)) closing.push_back(status);
  }
  for (void* request : closing) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS && NowNs() < deadline_ns) {
      if (ucp_worker_progress(worker_) == 0) Sleep(1);
    }
    ucp_request_free(request);  // one that never ended is given up with its worker
  }
}

UcxFabric::~UcxFabric() {
  if (worker_ != nullptr) {
    while (arrived_.size() > 0) Release(arrived_.Pop().release);
    CloseEndpoints();
    while (arrived_.size() > 0) Release(arrived_.Pop().release);
    for (const UcxPeer& peer : peers_) {
      for (const UcxRemoteRegion& region : peer.regions) ucp_rkey_destroy(region.rkey);
    }
  }
  const std::lock_guard lock(UcxGlobalMutex());
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  for (const UcxRegion& region : regions_) ucp_mem_unmap(context_, region.handle);
  if (context_ != nullptr) ucp_cleanup(context_);
  for (const UcxPeer& peer : peers_) {
    if (peer.process_fd >= 0) close(peer.process_fd);
  }
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

std::string UcxFabric::Describe() const {
  PageReport pages;
  for (const UcxRegion& region : regions_) {
    pages.total_bytes += region.pages.total_bytes;
    pages.huge_bytes += region.pages.huge_bytes;
  }
  std::string text = "ucx " + UcxVersion() + ", transports " +
                     (options_.transports.empty() ? "as UCX finds best" : options_.transports) + "; buffers " +
                     ToString(pages);
  std::string unseen;
  for (const UcxPeer& peer : peers_) {
    if (peer.expected && !peer.notices_loss && peer.process_fd < 0)
      unseen += (unseen.empty() ? "" : ", ") + std::to_string(peer.id);
  }
  if (!unseen.empty()) text += "; the death of peer " + unseen + " is noticed by the bootstrap only";
  if (num_strays_ > 0) text += "; " + std::to_string(num_strays_) + " stray messages dropped";
  return text;
}

std::string UcxFabric::DescribePath(PeerId peer) const {
  return peer < peers_.size() && peers_[peer].expected ? peers_[peer].path.description : "not connected";
}

Result<std::unique_ptr<Fabric>> OpenUcxFabric(const UcxOptions& options) {
  if (options.max_outstanding == 0 || options.max_put_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument, "A UCX fabric needs room for at least one put of one byte.");
  }
  auto fabric = std::make_unique<UcxFabric>(options);
  TRY(fabric->Start());
  return fabric;
}

}  // namespace gradlane
