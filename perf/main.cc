// gradlane-perf: measures the parts of Gradlane, each by a subcommand.
//
//   codec    speed and size of FEC, next to other codecs (perf/codec_bench.h)
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "perf/codec_bench.h"
#include "perf/codec_report.h"
#include "ps/server_rank.h"

namespace gradlane::perf {
namespace {

const std::map<std::string, fec::Layout> kLayouts = {{"smallest", fec::Layout::kSmallest},
                                                     {"runs", fec::Layout::kRuns}};
const std::map<std::string, fec::Rounding> kRoundings = {{"nearest", fec::Rounding::kNearest},
                                                         {"truncate", fec::Rounding::kTruncate},
                                                         {"stochastic", fec::Rounding::kStochastic}};

struct CodecCommand {
  CodecBenchOptions bench;
  std::string layout = "smallest";
  std::string rounding = "nearest";
  std::string json;
};

void AddCodecOptions(CLI::App& app, CodecCommand& command) {
  CodecBenchOptions& bench = command.bench;
  app.add_option("--density", bench.densities, "shares of the elements that FEC is to send")
      ->delimiter(',')
      ->check(CLI::Range(1e-5, 1.0));
  app.add_option(
      "--distribution", bench.distribution,
      "gaussian, laplace, heavy-tail, or a file of raw little-endian fp32 (gradlane-train --dump-gradients)");
  app.add_option("--elems", bench.num_elems, "elements of the tensor")->check(CLI::Range(size_t{1}, kMaxElems));
  app.add_option("--segment-elems", bench.segment_elems, "elements coded in one call, a multiple of 4096; 0: all");
  app.add_option("--threads", bench.threads, "threads of the codec")->delimiter(',')->check(CLI::Range(1, 256));
  app.add_option("--target", bench.target, "instruction set, by Highway's name [the best]");
  app.add_option("--layout", command.layout, "of a block")->check(CLI::IsMember(kLayouts));
  app.add_option("--rounding", command.rounding, "to a power of two")->check(CLI::IsMember(kRoundings));
  app.add_option("--repeat", bench.repeat, "rounds that each median is of")->check(CLI::Range(1, 10'000));
  app.add_option("--json", command.json, "write all rows to this file, for programs");
}

Result<void> RunCodec(CodecCommand command) {
  command.bench.layout = kLayouts.at(command.layout);
  command.bench.rounding = kRoundings.at(command.rounding);
  ASSIGN_OR_RETURN(const CodecReport report, RunCodecBench(command.bench));
  std::fputs(ToText(report).c_str(), stdout);
  if (!command.json.empty()) TRY(WriteTextFile(command.json, ToJson(report)));
  return {};
}

int Complain(const std::string& sentence, int exit_code) {
  std::fprintf(stderr, "gradlane-perf: %s\n", sentence.c_str());
  return exit_code;
}

int Main(int argc, const char* const* argv) {
  CLI::App app("gradlane-perf measures the parts of Gradlane.");
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", "gradlane-perf " GRADLANE_VERSION);
  app.require_subcommand(1);
  CodecCommand codec;
  AddCodecOptions(*app.add_subcommand("codec", "Speed and size of FEC, next to other codecs on the same data."), codec);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return Complain(std::string(error.what()) + "; see gradlane-perf codec --help.", 2);
  }
  const Result<void> done = RunCodec(codec);
  return done ? 0 : Complain(done.error().message, ExitCode(done.error()));
}

}  // namespace
}  // namespace gradlane::perf

int main(int argc, char** argv) { return gradlane::perf::Main(argc, argv); }
