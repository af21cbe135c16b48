#include "transport/ucx_wire.h"

#include <map>
#include <optional>
#include <sstream>

namespace gradlane {
namespace {

// The number in "<word>[12]" of a line; nothing where the line has no such thing.
std::optional<int> NumberAfter(std::string_view line, std::string_view word) {
  const size_t at = line.find(word);
  if (at == std::string_view::npos) return std::nullopt;
  int number = 0;
  size_t i = at + word.size();
  const size_t first = i;
  for (; i < line.size() && line[i] >= '0' && line[i] <= '9' && i < first + 4; ++i)
    number = 10 * number + (line[i] - '0');
  return i > first && i < line.size() && line[i] == ']' ? std::optional(number) : std::nullopt;
}

// "posix/memory" out of "lane[0]:  8:posix/memory.0 md[3] -> ...".
std::string TransportOf(std::string_view line) {
  const size_t slash = line.find('/');
  if (slash == std::string_view::npos) return {};
  const size_t colon = line.rfind(':', slash);
  const size_t end = line.find_first_of(". ", slash);
  if (colon == std::string_view::npos || end == std::string_view::npos) return {};
  return std::string(line.substr(colon + 1, end - colon - 1));
}

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

}  // namespace

UcxPath ChooseUcxPath(std::string_view endpoint_info, bool regions_mapped) {
  std::map<int, std::string> transports;  // by lane
  std::string put_transport;              // of the first lane that puts
  std::string message_transport;
  std::istringstream lines{std::string(endpoint_info)};
  for (std::string line; std::getline(lines, line);) {
    if (const std::optional<int> lane = NumberAfter(line, " lane[")) {
      transports[*lane] = TransportOf(line);
      // Roles follow the target: "md[3]/posix/sysdev[255] rma_bw#0 am am_bw#0".
      if ((line + " ").find(" am ") != std::string::npos) message_transport = transports[*lane];
    } else if (const std::optional<int> put_lane = NumberAfter(line, " put[")) {
      const auto found = transports.find(*put_lane);
      if (put_transport.empty() && found != transports.end()) put_transport = found->second;
    }
  }
  if (message_transport.empty())
    message_transport = transports.empty() ? "unknown transport" : transports.begin()->second;
  if (regions_mapped &&
      (StartsWith(put_transport, "posix") || StartsWith(put_transport, "sysv") || StartsWith(put_transport, "xpmem"))) {
    return {UcxMethod::kPut, "shared memory, one-sided put (" + put_transport + ")"};
  }
  if (StartsWith(put_transport, "cma") || StartsWith(put_transport, "knem")) {
    return {UcxMethod::kPut, "same host, one-sided put by the kernel (" + put_transport + ")"};
  }
  if (StartsWith(put_transport, "rc") || StartsWith(put_transport, "dc")) {
    return {UcxMethod::kPutFlushNotice, "RDMA, one-sided put, flushed before its notice (" + put_transport + ")"};
  }
  return {UcxMethod::kMessages, message_transport + ", eager messages (UCX emulates put here)"};
}

}  // namespace gradlane
