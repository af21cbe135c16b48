#include "trainer/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/options_table.h"
#include "trainer/options_values.h"
#include "transport/base/secret.h"

namespace gradlane {
namespace {

using option_values::Quoted;

constexpr const char* kVersionText = "gradlane-train " GRADLANE_VERSION "\n";

// Where a value comes from. The later one wins.
enum class Source { kDefault, kFile, kCommandLine };

struct GivenValue {
  std::string text;
  Source source = Source::kDefault;
};

// What was given, by option name.
using Given = std::map<std::string, GivenValue, std::less<>>;

Source SourceOf(const Given& given, std::string_view name) {
  const auto found = given.find(name);
  return found == given.end() ? Source::kDefault : found->second.source;
}

tl::unexpected<Error> Wrong(std::string sentence) { return Fail(ErrorCode::kInvalidArgument, std::move(sentence)); }

const OptionRow* FindRow(std::string_view name) {
  const auto table = OptionTable();
  const auto found =
      std::find_if(table.begin(), table.end(), [name](const OptionRow& row) { return name == row.name; });
  return found == table.end() ? nullptr : &*found;
}

// What the command line is, before any value is looked at.
struct CommandLine {
  bool help = false;
  bool version = false;
  std::optional<std::string> config;
  Given given;
};

Result<CommandLine> ReadCommandLine(int argc, const char* const* argv) {
  CLI::App app;
  app.set_help_flag("");
  CommandLine line;
  app.add_flag("--help,-h", line.help);
  app.add_flag("--version", line.version);
  app.allow_extras();
  std::map<std::string, CLI::Option*, std::less<>> by_name;
  const auto add = [&](const char* name) {
    by_name[name] = app.add_option("--" + std::string(name), [](const CLI::results_t&) { return true; })
                        ->expected(1)
                        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  for (const OptionRow& row : OptionTable()) add(row.name);
  add("config");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // The parser's sentence begins with the option: "--batch: 1 required TEXT missing".
    const std::string what = error.what();
    const std::string name = what.substr(0, what.find(':'));
    if (name.starts_with("--") && what.find("required") != std::string::npos) return Wrong(name + " lacks its value.");
    return Wrong(what + ".");
  }
  if (line.help || line.version) return line;
  if (const std::vector<std::string> extras = app.remaining(); !extras.empty()) {
    const std::string name = extras.front().substr(0, extras.front().find('='));
    return Wrong(Quoted(name) + " is not an option of gradlane-train; gradlane-train --help lists them.");
  }
  for (const auto& [name, option] : by_name) {
    const std::vector<std::string>& results = option->results();
    if (results.size() > 1) return Wrong("--" + name + " is given more than once.");
    if (!results.empty()) line.given[name] = {results.front(), Source::kCommandLine};
  }
  if (const auto config = line.given.extract("config"); !config.empty()) line.config = config.mapped().text;
  return line;
}

// Adds what the file says and the command line does not.
Result<void> ReadConfig(const std::string& path, Given* given) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return Wrong("--config: " + Quoted(path) + " is a folder.");
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_file(path);
  } catch (const CLI::FileError&) {
    return Fail(ErrorCode::kUnavailable, "--config: the file " + Quoted(path) + " cannot be read.");
  } catch (const std::exception& error) {
    return Wrong("--config: the file " + Quoted(path) + " is not understood: " + error.what() + ".");
  }
  std::map<std::string, bool> seen;
  for (const CLI::ConfigItem& item : items) {
    const OptionRow* row = FindRow(item.name);
    const std::string where = "--config: " + path + ": ";
    if (!item.parents.empty()) {
      return Wrong(where + "options stand in no section, and there is one named " + Quoted(item.parents.front()) + ".");
    }
    if (row == nullptr || row->group == nullptr) {
      return Wrong(where + Quoted(item.name) +
                   " is not an option of gradlane-train; gradlane-train --help lists them.");
    }
    if (item.inputs.size() != 1 || std::exchange(seen[item.name], true)) {
      return Wrong(where + Quoted(item.name) + " has more than one value.");
    }
    if (SourceOf(*given, item.name) == Source::kDefault) (*given)[item.name] = {item.inputs.front(), Source::kFile};
  }
  return {};
}

// --local or --role, and what goes with it. What the command line says of one stands against the file's other.
Result<void> SettlePlace(Given* given) {
  const Source local = SourceOf(*given, "local");
  const Source role = SourceOf(*given, "role");
  if (local == Source::kDefault && role == Source::kDefault) {
    return Wrong(
        "Say what to start: --local 2x1 starts two workers and a server on this host (1x0: one worker alone); --role "
        "worker "
        "or --role server, with --rank, --workers, --servers and --rendezvous, is one rank of a job over several "
        "hosts.");
  }
  if (local == role) return Wrong("--local starts every rank and --role is one of them: give one of the two.");
  if (local < role) {
    given->erase("local");
    return {};
  }
  given->erase("role");
  for (const char* name : {"rank", "workers", "servers", "rendezvous"}) {
    const Source source = SourceOf(*given, name);
    if (source >= local)
      return Wrong("--" + std::string(name) + " goes with --role: --local starts and numbers the ranks itself.");
    if (source != Source::kDefault) given->erase(name);
  }
  return {};
}

Result<void> SetValues(const Given& given, Options* options) {
  for (const auto& [name, value] : given) {
    if (const Result<void> set = FindRow(name)->set(*options, value.text); !set) {
      std::string sentence = "--" + name + ": " + set.error().message;
      if (!sentence.ends_with('.')) sentence += '.';
      return Wrong(std::move(sentence));
    }
  }
  if (options->data_dir.empty()) options->data_dir = "build/data/" + options->data;
  if (given.contains("dump-step") && !given.contains("dump-gradients")) {
    return Wrong("--dump-step goes with --dump-gradients DIR, which says where to write.");
  }
  if (!given.contains("reply")) {
    const bool fec = options->codec == Codec::kFec || options->codec == Codec::kAuto;
    options->reply = fec ? ReplyCodec::kFec : ReplyCodec::kRaw;
  }
  if (options->codec != Codec::kAuto) {
    for (const char* name : {"link-mbps", "codec-decide-steps", "codec-plan", "codec-plan-out"}) {
      if (given.contains(name)) return Wrong("--" + std::string(name) + " goes with --codec auto.");
    }
  }
  return {};
}

Result<void> CheckTogether(const Options& options) {
  const Membership members = options.members;
  if (members.num_workers > 1 && members.num_servers == 0) {
    return Wrong(
        std::to_string(members.num_workers) + " workers need a server: " +
        (options.local ? "give --local " + std::to_string(members.num_workers) + "x1." : "give --servers 1 or more."));
  }
  if (options.role) {
    const bool server = *options.role == Role::kServer;
    const uint32_t count = server ? members.num_servers : members.num_workers;
    const char* option = server ? "--servers " : "--workers ";
    if (count == 0) return Wrong("--role server: there are none with --servers 0.");
    if (options.rank >= count) {
      return Wrong("--rank " + std::to_string(options.rank) + " does not exist among " + option +
                   std::to_string(count) + ": ranks count from 0.");
    }
    if (members.Count() > 1 && options.rendezvous.empty()) {
      return Wrong("--role needs --rendezvous HOST:PORT, where server 0 listens and all others find it.");
    }
    if (options.fabric == "loopback") {
      return Wrong("--fabric loopback joins the threads of one process: it goes with --local, not with --role.");
    }
  }
  if (options.members.num_servers == 0 && !(options.codec_plan.empty() && options.codec_plan_out.empty())) {
    return Wrong("--codec-plan and --codec-plan-out need a server: without one, nothing is sent.");
  }
  if (!options.codec_plan.empty() && !options.codec_plan_out.empty()) {
    return Wrong("--codec-plan repeats the decisions of a file, and --codec-plan-out writes new ones: give one of the two.");
  }
  if (options.window_bytes < options.segment_bytes) {
    return Wrong("--window-bytes " + std::to_string(options.window_bytes) +
                 " is smaller than one segment: --segment-bytes is " + std::to_string(options.segment_bytes) + ".");
  }
  if (options.schedule == Schedule::kSerial && options.sync.kind != SyncKind::kBsp) {
    return Wrong("--schedule serial waits for all replies of a step before the next: that is --sync bsp, not --sync " +
                 ToString(options.sync) + ".");
  }
  return {};
}

// Only a rank that meets others needs one; --local makes its own.
Result<void> ReadSecret(Options* options) {
  if (!options->role || options->members.Count() < 2) return {};
  if (!options->secret_file.empty()) {
    ASSIGN_OR_RETURN(options->secret, ReadSecretFile(options->secret_file));
    return {};
  }
  const char* secret = std::getenv("GRADLANE_SECRET");
  if (secret == nullptr || *secret == '\0') {
    return Wrong(
        "The job's secret is missing: give --secret-file FILE or set the environment variable GRADLANE_SECRET, to "
        "the same 16 characters or more for every rank.");
  }
  options->secret = secret;
  return {};
}

Result<Options> MakeOptions(CommandLine line) {
  if (line.config) TRY(ReadConfig(*line.config, &line.given));
  TRY(SettlePlace(&line.given));
  Options options;
  TRY(SetValues(line.given, &options));
  TRY(CheckTogether(options));
  TRY(ReadSecret(&options));
  return options;
}

// Nothing to run: only something to say.
ParsedOptions Said(std::string text, int exit_code) {
  ParsedOptions parsed;
  parsed.text = std::move(text);
  parsed.exit_code = exit_code;
  return parsed;
}

ParsedOptions Refused(const Error& error) { return Said("gradlane-train: " + error.message + "\n", ExitCode(error)); }

}  // namespace

ParsedOptions ParseOptions(int argc, const char* const* argv) {
  Result<CommandLine> line = ReadCommandLine(argc, argv);
  if (!line) return Refused(line.error());
  if (line->help) return Said(OptionHelp(), 0);
  if (line->version) return Said(kVersionText, 0);
  Result<Options> options = MakeOptions(*std::move(line));
  if (!options) return Refused(options.error());
  return {*std::move(options), "", 0};
}

}  // namespace gradlane
