// The few TCP calls that the bootstrap and the launcher need, with errors as sentences: host names and both families,
// every descriptor close-on-exec and non-blocking. No state; any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "transport/base/error.h"

namespace gradlane {

// Owns a descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct HostPort {
  std::string host;  // a name, an IPv4 address, or an IPv6 address without its brackets
  uint16_t port = 0;
  std::string ToString() const;  // HOST:PORT, [IPV6]:PORT
};

// HOST:PORT or [IPV6]:PORT, port 1 to 65535. kInvalidArgument otherwise.
Result<HostPort> ParseHostPort(const std::string& text);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t num_bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string ToString() const;  // numeric
  uint16_t port() const;
  bool IsLoopback() const;
};

// Every stream address of a host; blocks in the resolver. kUnavailable where the name means nothing.
Result<std::vector<SocketAddress>> Resolve(const HostPort& host_port);

// Binds and listens. A host name that this machine maps to its own loopback (Debian's 127.0.1.1) listens on every
// interface instead, since the others resolve it to another address. kUnavailable: in use, or not an address of this
// machine.
Result<Fd> ListenTcp(const HostPort& host_port);

// A socket on 127.0.0.1 and a port that the kernel picks.
Result<Fd> ListenLoopback();

// Begins a non-blocking connect; writable, then SO_ERROR, tells the outcome. The error is for this attempt only.
Result<Fd> StartConnect(const SocketAddress& address);

Result<SocketAddress> LocalAddress(int fd);
Result<SocketAddress> PeerAddress(int fd);
void SetNonBlocking(int fd);
void SetCloseOnExec(int fd, bool on);
void SetNoDelay(int fd);

}  // namespace gradlane
