#include "transport/base/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace gradlane {
namespace {

using nlohmann::json;

json Parse(const Trace& trace) { return json::parse("[" + trace.ToJsonEvents() + "]"); }

std::vector<json> OfPhase(const json& events, const std::string& phase) {
  std::vector<json> found;
  for (const json& event : events) {
    if (event["ph"] == phase) found.push_back(event);
  }
  return found;
}

TEST(Trace, NamesProcessAndThreads) {
  Trace trace(3, "worker \"1\"\n");
  trace.AddTrack("compute", 4);
  trace.AddTrack("communicate", 4);
  const json events = Parse(trace);
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_EQ(events[0]["args"]["name"], "worker \"1\"\n");
  std::set<std::string> names;
  for (const json& event : OfPhase(events, "M")) {
    EXPECT_EQ(event["pid"], 3);
    if (event["name"] == "thread_name") names.insert(event["args"]["name"]);
  }
  EXPECT_EQ(names, (std::set<std::string>{"compute", "communicate"}));
}

// Given spans out of order, nested ones and one with nothing set / expect microseconds, sorted, the outer span first.
TEST(Trace, SpansAreSortedMicroseconds) {
  Trace trace(1, "p");
  TraceTrack* a = trace.AddTrack("a", 8);
  TraceTrack* b = trace.AddTrack("b", 8);
  a->Add({.name = "late", .begin_ns = 5'000'001, .end_ns = 5'000'004});
  a->Add({.name = "inner", .begin_ns = 1'500, .end_ns = 1'600, .step = 2, .layer = 0, .segment = 4, .peer = 1});
  b->Add({.name = "outer", .begin_ns = 1'500, .end_ns = 9'000});
  const std::vector<json> spans = OfPhase(Parse(trace), "X");
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0]["name"], "outer");
  EXPECT_EQ(spans[1]["name"], "inner");
  EXPECT_EQ(spans[2]["name"], "late");
  EXPECT_DOUBLE_EQ(spans[1]["ts"], 1.5);
  EXPECT_DOUBLE_EQ(spans[1]["dur"], 0.1);
  EXPECT_DOUBLE_EQ(spans[2]["ts"], 5000.001);
  EXPECT_EQ(spans[1]["args"], (json{{"step", 2}, {"layer", 0}, {"segment", 4}, {"peer", 1}}));
  EXPECT_EQ(spans[0]["args"], json::object());
}

// Given overlapping flights / expect pairs of begin and end with ids of their own, and the preemption marked.
TEST(Trace, FlightsArePairs) {
  Trace trace(2, "p");
  TraceTrack* track = trace.AddTrack("a", 8);
  track->Add({.name = "push", .begin_ns = 100, .end_ns = 900, .segment = 1, .flight = true});
  track->Add({.name = "push", .begin_ns = 200, .end_ns = 300, .segment = 2, .flight = true, .preempting = true});
  const json events = Parse(trace);
  const std::vector<json> begins = OfPhase(events, "b"), ends = OfPhase(events, "e");
  ASSERT_EQ(begins.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_NE(begins[0]["id"], begins[1]["id"]);
  EXPECT_EQ(begins[1]["id"], ends[0]["id"]);
  EXPECT_EQ(begins[1]["args"]["preempting"], true);
  EXPECT_FALSE(begins[0]["args"].contains("preempting"));
  EXPECT_DOUBLE_EQ(ends[1]["ts"], 0.9);
}

TEST(Trace, TellsWhatWasDropped) {
  Trace trace(1, "p");
  TraceTrack* track = trace.AddTrack("a", 2);
  for (int i = 0; i < 5; ++i) track->Add({.name = "x", .begin_ns = i, .end_ns = i + 1});
  EXPECT_EQ(track->dropped(), 3u);
  for (const json& event : Parse(trace)) {
    if (event["name"] == "gradlane_dropped_spans") {
      EXPECT_EQ(event["args"]["dropped"], 3);
    }
  }
}

TEST(Trace, FileHoldsAllRanks) {
  Trace first(1, "one"), second(2, "two");
  first.AddTrack("a", 1)->Add({.name = "x", .begin_ns = 1, .end_ns = 2});
  second.AddTrack("a", 1)->Add({.name = "y", .begin_ns = 1, .end_ns = 2});
  const std::string path = testing::TempDir() + "gradlane_trace_test.json";
  const std::string ranks[] = {first.ToJsonEvents(), "", second.ToJsonEvents()};
  Result<void> written = WriteTraceFile(path, ranks);
  ASSERT_TRUE(written) << written.error().message;
  std::ifstream file(path);
  const json root = json::parse(file);
  EXPECT_EQ(OfPhase(root["traceEvents"], "X").size(), 2u);
  std::remove(path.c_str());

  Result<void> failed = WriteTraceFile(testing::TempDir() + "no such directory/trace.json", ranks);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kSystem);
}

}  // namespace
}  // namespace gradlane
