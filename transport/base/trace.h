// Trace records spans of time, for a timeline in the Chrome trace format (opens in Perfetto). One Trace per rank; one
// Track per thread, written by that thread only. Recording is a store into memory made at start: no lock, no allocation;
// a full track drops what comes later and counts it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "transport/base/error.h"

namespace gradlane {

// CLOCK_MONOTONIC, so that the ranks of one host share a time line.
inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct TraceSpan {
  const char* name = "";  // a literal
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int32_t step = -1;     // -1: does not apply; likewise below
  int32_t layer = -1;
  int32_t segment = -1;
  int32_t peer = -1;
  bool flight = false;      // spans of this kind overlap one another: drawn as asynchronous slices
  bool preempting = false;  // this segment overtook a tensor under way
};

class TraceTrack {
 public:
  TraceTrack(std::string name, size_t capacity_spans);
  void Add(const TraceSpan& span) {
    if (spans_.size() < spans_.capacity()) spans_.push_back(span);
    else ++dropped_;
  }
  const std::string& name() const { return name_; }
  std::span<const TraceSpan> spans() const { return spans_; }
  uint64_t dropped() const { return dropped_; }

 private:
  std::string name_;
  std::vector<TraceSpan> spans_;
  uint64_t dropped_ = 0;
};

class Trace {
 public:
  Trace(uint32_t process_id, std::string process_name) : process_id_(process_id), process_name_(std::move(process_name)) {}
  TraceTrack* AddTrack(std::string name, size_t capacity_spans = size_t{1} << 17);  // before the threads run; stays valid
  // All events of this rank as a JSON array's elements, comma-separated, without the brackets.
  std::string ToJsonEvents() const;

 private:
  uint32_t process_id_;
  std::string process_name_;
  std::deque<TraceTrack> tracks_;
};

// Writes a complete Chrome trace file out of what ToJsonEvents gave, one entry per rank.
Result<void> WriteTraceFile(const std::string& path, std::span<const std::string> events_by_rank);

}  // namespace gradlane
