#include "transport/base/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace gradlane {
namespace {

// The format: "Trace Event Format", Google, 2016. One event:
//   {"name":"encode","ph":"X","pid":3,"tid":1,"ts":12.500,"dur":3.250,"args":{"step":4,"layer":0}}
struct Line {
  int64_t at_ns;
  int64_t longest_first_ns;  // at the same time the enclosing span comes first, and a flight ends before another begins
  std::string text;
};

void AppendQuoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

// Nanoseconds as microseconds with three decimals, without going through a double.
void AppendMicroseconds(std::string& out, int64_t ns) {
  char text[32];
  const uint64_t magnitude = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  std::snprintf(text, sizeof(text), "%s%llu.%03llu", ns < 0 ? "-" : "",
                static_cast<unsigned long long>(magnitude / 1000), static_cast<unsigned long long>(magnitude % 1000));
  out += text;
}

std::string Head(std::string_view name, const char* phase, uint32_t pid, size_t tid) {
  std::string out = "{\"name\":";
  AppendQuoted(out, name);
  out += ",\"ph\":\"";
  out += phase;
  out += "\",\"pid\":" + std::to_string(pid) + ",\"tid\":" + std::to_string(tid);
  return out;
}

std::string Args(const TraceSpan& span) {
  std::string out = ",\"args\":{";
  const std::pair<const char*, int32_t> numbers[] = {
      {"step", span.step}, {"layer", span.layer}, {"segment", span.segment}, {"peer", span.peer}};
  bool first = true;
  for (const auto& [name, value] : numbers) {
    if (value < 0) continue;
    if (!first) out += ',';
    first = false;
    out += '"';
    out += name;
    out += "\":" + std::to_string(value);
  }
  if (span.preempting) out += first ? "\"preempting\":true" : ",\"preempting\":true";
  return out + "}}";
}

std::string Metadata(const char* what, uint32_t pid, size_t tid, const std::string& args) {
  return Head(what, "M", pid, tid) + ",\"args\":{" + args + "}}";
}

std::string NameArg(const std::string& name) {
  std::string out = "\"name\":";
  AppendQuoted(out, name);
  return out;
}

}  // namespace

TraceTrack::TraceTrack(std::string name, size_t capacity_spans) : name_(std::move(name)) {
  spans_.resize(capacity_spans);  // touches the pages now, not while recording
  spans_.clear();
}

TraceTrack* Trace::AddTrack(std::string name, size_t capacity_spans) {
  return &tracks_.emplace_back(std::move(name), capacity_spans);
}

std::string Trace::ToJsonEvents() const {
  std::string out = Metadata("process_name", process_id_, 0, NameArg(process_name_));
  std::vector<Line> lines;
  uint64_t next_flight = 0;
  for (size_t tid = 0; tid < tracks_.size(); ++tid) {
    const TraceTrack& track = tracks_[tid];
    out += ",\n" + Metadata("thread_name", process_id_, tid, NameArg(track.name()));
    out += ",\n" + Metadata("thread_sort_index", process_id_, tid, "\"sort_index\":" + std::to_string(tid));
    out +=
        ",\n" + Metadata("gradlane_dropped_spans", process_id_, tid, "\"dropped\":" + std::to_string(track.dropped()));
    for (const TraceSpan& span : track.spans()) {
      const int64_t end_ns = std::max(span.begin_ns, span.end_ns);
      if (!span.flight) {
        std::string text = Head(span.name, "X", process_id_, tid) + ",\"ts\":";
        AppendMicroseconds(text, span.begin_ns);
        text += ",\"dur\":";
        AppendMicroseconds(text, end_ns - span.begin_ns);
        lines.push_back({span.begin_ns, span.begin_ns - end_ns, text + Args(span)});
        continue;
      }
      // Unique over all ranks of a file: the viewer matches "b" with "e" by category and id alone.
      const std::string id =
          ",\"cat\":\"flight\",\"id\":\"" + std::to_string(process_id_) + "." + std::to_string(next_flight++) + "\"";
      std::string begin = Head(span.name, "b", process_id_, tid) + id + ",\"ts\":";
      AppendMicroseconds(begin, span.begin_ns);
      lines.push_back({span.begin_ns, 0, begin + Args(span)});
      std::string end = Head(span.name, "e", process_id_, tid) + id + ",\"ts\":";
      AppendMicroseconds(end, end_ns);
      lines.push_back({end_ns, 1, end + ",\"args\":{}}"});
    }
  }
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.longest_first_ns < b.longest_first_ns;
  });
  for (const Line& line : lines) {
    out += ",\n";
    out += line.text;
  }
  return out;
}

Result<void> WriteTraceFile(const std::string& path, std::span<const std::string> events_by_rank) {
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  const auto fail = [&](const char* what) {
    const int error = errno;
    (void)unlink(temporary.c_str());
    return Fail(ErrorCode::kSystem,
                std::string("Cannot ") + what + " the trace file " + path + ": " + std::strerror(error) + ".", error);
  };
  std::FILE* file = std::fopen(temporary.c_str(), "we");
  if (file == nullptr) return fail("create");
  bool written = std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file) >= 0;
  bool first = true;
  for (const std::string& events : events_by_rank) {
    if (events.empty()) continue;
    if (!first) written &= std::fputs(",\n", file) >= 0;
    first = false;
    written &= std::fwrite(events.data(), 1, events.size(), file) == events.size();
  }
  written &= std::fputs("\n]}\n", file) >= 0;
  if (!written) {
    const int error = errno;
    std::fclose(file);
    errno = error;
    return fail("write");
  }
  if (std::fclose(file) != 0) return fail("write");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return fail("rename into place");
  return {};
}

}  // namespace gradlane
