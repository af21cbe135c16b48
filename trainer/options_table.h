// The one table of gradlane-train's options: for each its name, help, reader and printer. The command line, the TOML
// file, --help and the JSON of the start-up report are all made from it. Constant; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "trainer/options.h"
#include "transport/base/error.h"

namespace gradlane {

struct OptionRow {
  const char* group;     // nullptr: for the launcher, not in --help, in no file
  const char* name;      // without the dashes; also the key in the TOML file
  const char* value;     // what stands for the value in --help
  const char* help;      // with the unit
  const char* fallback;  // the default as --help tells it; nullptr: as `show` gives it
  // The error's sentence does not name the option: the caller does. Options are changed on success only.
  Result<void> (*set)(Options& options, const std::string& text);
  nlohmann::json (*show)(const Options& options);
};

std::span<const OptionRow> OptionTable();

// The text of --help.
std::string OptionHelp();

}  // namespace gradlane
