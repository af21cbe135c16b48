// gradlane-server: one parameter server. It knows nothing of models: what it serves, the workers tell it.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/fec_codec.h"
#include "ps/server_rank.h"
#include "transport/base/secret.h"

namespace gradlane {
namespace {

int Complain(const std::string& sentence, int exit_code) {
  std::fprintf(stderr, "gradlane-server: %s\n", sentence.c_str());
  return exit_code;
}

int Main(int argc, const char* const* argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("gradlane"));
  ServerRankOptions options;
  BootstrapOptions& bootstrap = options.bootstrap;
  bootstrap.self.role = Role::kServer;
  std::string secret_file;
  double join_timeout_s = 30;
  double peer_timeout_s = 10;

  CLI::App app("One parameter server of a Gradlane job. The model and its options come from the workers.");
  app.add_option("--rank", bootstrap.self.rank, "which server this is, from 0; server 0 hosts the rendezvous")->required();
  app.add_option("--workers", bootstrap.members.num_workers, "workers in the job")->required()->check(CLI::Range(1, 4096));
  app.add_option("--servers", bootstrap.members.num_servers, "servers in the job")->required()->check(CLI::Range(1, 4096));
  app.add_option("--rendezvous", bootstrap.rendezvous, "HOST:PORT where server 0 listens")->required();
  app.add_option("--secret-file", secret_file, "file with the job's secret; else the environment variable GRADLANE_SECRET");
  app.add_option("--fabric", options.fabric.name, "auto, ucx or verbs")->check(CLI::IsMember({"auto", "ucx", "verbs"}));
  app.add_option("--join-timeout", join_timeout_s, "seconds to wait for every rank [30]")->check(CLI::Range(1.0, 86400.0));
  app.add_option("--peer-timeout", peer_timeout_s, "seconds of silence after which a rank counts as dead [10]")
      ->check(CLI::Range(0.5, 86400.0));
  app.add_option("--codec-threads", options.codec.num_threads, "threads that code one segment [1]")
      ->check(CLI::Range(1, kMaxCodecThreads));
  app.add_option("--codec-vectors", options.codec.target, "instructions that code; default: the best of this processor")
      ->check(CLI::IsMember(fec::CodecTargets()));
  app.add_option("--trace", options.trace, "FILE: leaves this rank's part of the timeline beside it");
  app.set_config("--config", "", "options from a TOML file");
  app.allow_config_extras(CLI::config_extras_mode::error);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success&) {
    std::printf("%s", app.help().c_str());
    return 0;
  } catch (const CLI::ParseError& error) {
    return Complain(std::string(error.what()) + " (gradlane-server --help lists the options)", 2);
  }
  if (bootstrap.self.rank >= bootstrap.members.num_servers) {
    return Complain("--rank " + std::to_string(bootstrap.self.rank) + " does not exist among --servers " +
                        std::to_string(bootstrap.members.num_servers) + ": ranks count from 0.", 2);
  }
  bootstrap.join_timeout_ms = int(join_timeout_s * 1000);
  bootstrap.peer_timeout_ms = int(peer_timeout_s * 1000);
  if (!secret_file.empty()) {
    const Result<std::string> secret = ReadSecretFile(secret_file);
    if (!secret) return Complain(secret.error().message, ExitCode(secret.error()));
    bootstrap.secret = *secret;
  } else if (const char* secret = std::getenv("GRADLANE_SECRET")) {
    bootstrap.secret = secret;
  } else {
    return Complain("The job's secret is missing: give --secret-file FILE or set GRADLANE_SECRET.", 2);
  }

  const Result<void> served = RunServerRank(options);
  if (!served) return Complain("(" + ToString(bootstrap.self) + ") " + served.error().message, ExitCode(served.error()));
  return 0;
}

}  // namespace
}  // namespace gradlane

int main(int argc, char** argv) { return gradlane::Main(argc, argv); }
