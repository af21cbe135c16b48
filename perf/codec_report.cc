#include "perf/codec_report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace gradlane::perf {
namespace {

struct Column {
  const char* name;  // in the JSON
  double FecRow::*value;
  const char* heading;  // in the table, as wide as the column; nullptr: not in the table
  int decimals;
  const char* meaning;
};

// clang-format off
constexpr Column kColumns[] = {
  {"wanted_density", &FecRow::wanted_density, "  wanted", 4, "share of the elements that is to be sent"},
  {"density", &FecRow::density, " density", 4, "share that was sent in the last step"},
  {"threads", &FecRow::threads, "thr", 0, "threads of the codec"},
  {"encode_gb_per_s", &FecRow::encode_gb_per_s, "encode", 2, "Encode with error feedback, out of cache, GB/s of fp32"},
  {"encode_p99_gb_per_s", &FecRow::encode_p99_gb_per_s, nullptr, 0, ""},
  {"encode_over_loop", &FecRow::encode_over_loop, "x loop", 2, "its time by that of residual += gradient, measured in turn"},
  {"encode_speedup", &FecRow::encode_speedup, "speed-up", 2, "over the first number of threads"},
  {"decode_add_gb_per_s", &FecRow::decode_add_gb_per_s, "decode-add", 2, "DecodeAdd, out of cache, GB/s of fp32 represented"},
  {"dense_add_gb_per_s", &FecRow::dense_add_gb_per_s, "dense", 2, "sum += gradient of as many elements, measured in turn"},
  {"decode_add_l2_gb_per_s", &FecRow::decode_add_l2_gb_per_s, "decode-add L2", 2, "DecodeAdd into an accumulator in the second-level cache"},
  {"dense_add_l2_gb_per_s", &FecRow::dense_add_l2_gb_per_s, "dense L2", 2, "accumulator += gradient, which comes from memory"},
  {"bytes", &FecRow::bytes, "     bytes", 0, "encoded, in the last step"},
  {"ratio", &FecRow::ratio, "  ratio", 1, "fp32 bytes by these"},
  {"bits_per_survivor", &FecRow::bits_per_survivor, "bits/surv", 2, "encoded bits by elements sent"},
  {"bytes_over_entropy", &FecRow::bytes_over_entropy, "x entropy", 3, "bytes by the order-0 entropy of positions, signs and codes"},
};
// clang-format on

template <typename... Values>
std::string Format(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

const char* LayoutName(fec::Layout layout) { return layout == fec::Layout::kRuns ? "runs" : "smallest"; }

const char* RoundingName(fec::Rounding rounding) {
  if (rounding == fec::Rounding::kTruncate) return "truncate";
  return rounding == fec::Rounding::kStochastic ? "stochastic" : "nearest";
}

std::string SegmentText(size_t segment_elems) {
  return segment_elems == 0 ? "in one call" : "in segments of " + std::to_string(segment_elems);
}

}  // namespace

std::string ToText(const CodecReport& report) {
  const CodecBenchOptions& options = report.options;
  std::string text = "gradlane-perf codec: target " + options.target + ", " + std::to_string(options.num_elems) +
                     " elements of " + options.distribution + " " + SegmentText(options.segment_elems) + ", layout " +
                     LayoutName(options.layout) + ", rounding " + RoundingName(options.rounding) + ", medians of " +
                     std::to_string(options.repeat) + "\n\n";
  std::string headings;
  for (const Column& column : kColumns) {
    if (column.heading == nullptr) continue;
    const char* const name = column.heading + std::string_view(column.heading).find_first_not_of(' ');
    text += Format("  %-14s %s\n", name, column.meaning);
    headings += std::string("  ") + column.heading;
  }
  text += "\n" + headings + "\n";
  for (const FecRow& row : report.fec) {
    for (const Column& column : kColumns) {
      if (column.heading == nullptr) continue;
      const int width = static_cast<int>(std::string_view(column.heading).size());
      text += Format("  %*.*f", width, column.decimals, row.*column.value);
    }
    text += "\n";
  }
  text += "\nOther codecs: encoding gradient and residual of the same step; zstd and lz4, the raw gradient\n\n";
  text += "  codec      wanted  encode       bytes    ratio\n";
  for (const OtherRow& row : report.others) {
    const std::string density = row.wanted_density ? Format("%.4f", *row.wanted_density) : "-";
    text += Format("  %-8s %8s  %6.2f  %10.0f  %7.1f\n", row.codec.c_str(), density.c_str(), row.encode_gb_per_s,
                   row.bytes, row.ratio);
  }
  return text;
}

std::string ToJson(const CodecReport& report) {
  using Json = nlohmann::ordered_json;
  const CodecBenchOptions& options = report.options;
  Json json = {{"version", GRADLANE_VERSION},
               {"target", options.target},
               {"distribution", options.distribution},
               {"elems", options.num_elems},
               {"segment_elems", options.segment_elems},
               {"layout", LayoutName(options.layout)},
               {"rounding", RoundingName(options.rounding)},
               {"repeat", options.repeat},
               {"fec", Json::array()},
               {"others", Json::array()}};
  for (const FecRow& row : report.fec) {
    Json& object = json["fec"].emplace_back();
    for (const Column& column : kColumns) object[column.name] = row.*column.value;
  }
  for (const OtherRow& row : report.others) {
    json["others"].push_back({{"codec", row.codec},
                              {"wanted_density", row.wanted_density ? Json(*row.wanted_density) : Json()},
                              {"encode_gb_per_s", row.encode_gb_per_s},
                              {"bytes", row.bytes},
                              {"ratio", row.ratio}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gradlane::perf
