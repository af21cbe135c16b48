// A CodecReport as a table for people and as JSON for programs; both are made from one list of columns. Any thread.
#pragma once

#include <string>

#include "perf/codec_bench.h"

namespace gradlane::perf {

std::string ToText(const CodecReport& report);

// An object; "fec" and "others" hold one object a row, with the names of the members of FecRow and OtherRow.
std::string ToJson(const CodecReport& report);

}  // namespace gradlane::perf
