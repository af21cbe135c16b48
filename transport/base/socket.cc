#include "transport/base/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gradlane {
namespace {

constexpr int kBacklog = 128;

bool IsNumeric(const std::string& host) {
  in6_addr scratch;
  return inet_pton(AF_INET, host.c_str(), &scratch) == 1 || inet_pton(AF_INET6, host.c_str(), &scratch) == 1;
}

SocketAddress Wildcard(int family, uint16_t port) {
  SocketAddress address;
  if (family == AF_INET6) {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    in6->sin6_addr = in6addr_any;
    address.num_bytes = sizeof(sockaddr_in6);
  } else {
    auto* in = reinterpret_cast<sockaddr_in*>(&address.storage);
    in->sin_family = AF_INET;
    in->sin_port = htons(port);
    in->sin_addr.s_addr = htonl(INADDR_ANY);
    address.num_bytes = sizeof(sockaddr_in);
  }
  return address;
}

Result<Fd> Listen(const SocketAddress& address, const std::string& name) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  // Only so that a port in TIME_WAIT can be taken again: Linux still refuses a second listener (socket(7)).
  if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (fd && bind(fd.get(), address.get(), address.num_bytes) == 0 && listen(fd.get(), kBacklog) == 0) return fd;
  const int code = errno;
  if (code == EADDRINUSE) {
    return Fail(ErrorCode::kUnavailable,
                "cannot listen on " + name +
                    ", the address is in use: stop the program that listens there, or give "
                    "every rank a --rendezvous with another port",
                code);
  }
  if (code == EADDRNOTAVAIL) {
    return Fail(ErrorCode::kUnavailable,
                "cannot listen on " + name +
                    ", it is not an address of this machine: start this rank there, or give "
                    "every rank a --rendezvous that names this machine",
                code);
  }
  return Fail(code == EACCES ? ErrorCode::kUnavailable : ErrorCode::kSystem,
              "cannot listen on " + name + ": " + std::strerror(code), code);
}

}  // namespace

void Fd::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<HostPort> ParseHostPort(const std::string& text) {
  const auto bad = [&] {
    return Fail(ErrorCode::kInvalidArgument,
                "--rendezvous '" + text + "' is not HOST:PORT (for example 10.0.0.1:7000 or [fe80::1]:7000)");
  };
  HostPort result;
  std::string port;
  if (!text.empty() && text[0] == '[') {
    const size_t end = text.find("]:");
    if (end == std::string::npos) return bad();
    result.host = text.substr(1, end - 1);
    port = text.substr(end + 2);
  } else {
    const size_t colon = text.find(':');
    if (colon == std::string::npos || text.find(':', colon + 1) != std::string::npos) return bad();
    result.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (result.host.empty() || port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos)
    return bad();
  const int number = std::stoi(port);
  if (number < 1 || number > 65535) return bad();
  result.port = static_cast<uint16_t>(number);
  return result;
}

std::string SocketAddress::ToString() const {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(get(), num_bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return storage.ss_family == AF_INET6 ? std::string("[") + host + "]:" + port : std::string(host) + ":" + port;
}

uint16_t SocketAddress::port() const {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

bool SocketAddress::IsLoopback() const {
  if (storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 == 127;
}

Result<std::vector<SocketAddress>> Resolve(const HostPort& host_port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(host_port.host.c_str(), std::to_string(host_port.port).c_str(), &hints, &list);
  if (code != 0) {
    return Fail(
        ErrorCode::kUnavailable,
        "cannot resolve '" + host_port.host + "' of --rendezvous " + host_port.ToString() + ": " + gai_strerror(code),
        code);
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.num_bytes = at->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  if (addresses.empty())
    return Fail(ErrorCode::kUnavailable, "'" + host_port.host + "' of --rendezvous has no IPv4 or IPv6 address");
  return addresses;
}

Result<Fd> ListenTcp(const HostPort& host_port) {
  ASSIGN_OR_RETURN(const auto addresses, Resolve(host_port));
  const SocketAddress& first = addresses.front();
  if (first.IsLoopback() && !IsNumeric(host_port.host) && host_port.host != "localhost")
    return Listen(Wildcard(first.storage.ss_family, host_port.port), host_port.ToString());
  return Listen(first, host_port.ToString());
}

Result<Fd> ListenLoopback() {
  SocketAddress address = Wildcard(AF_INET, 0);
  reinterpret_cast<sockaddr_in*>(&address.storage)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return Listen(address, "127.0.0.1");
}

Result<Fd> StartConnect(const SocketAddress& address) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd && (connect(fd.get(), address.get(), address.num_bytes) == 0 || errno == EINPROGRESS)) return fd;
  return Fail(ErrorCode::kSystem, std::strerror(errno), errno);
}

Result<SocketAddress> LocalAddress(int fd) {
  SocketAddress address;
  address.num_bytes = sizeof address.storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.num_bytes) != 0)
    return Fail(ErrorCode::kSystem, std::string("getsockname: ") + std::strerror(errno), errno);
  return address;
}

Result<SocketAddress> PeerAddress(int fd) {
  SocketAddress address;
  address.num_bytes = sizeof address.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.num_bytes) != 0)
    return Fail(ErrorCode::kSystem, std::string("getpeername: ") + std::strerror(errno), errno);
  return address;
}

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

void SetCloseOnExec(int fd, bool on) {
  const int flags = fcntl(fd, F_GETFD);
  fcntl(fd, F_SETFD, on ? flags | FD_CLOEXEC : flags & ~FD_CLOEXEC);
}

void SetNoDelay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

}  // namespace gradlane
