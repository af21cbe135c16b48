// gradlane-train: trains a model on one or many workers through priority parameter servers.
//
// One process is one rank (--role), or starts all of them: as processes over UCX, or as threads over the loopback fabric
// (--local WxS), or a single worker that needs no server (--local 1x0).
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ps/server_rank.h"
#include "trainer/codec_plan_file.h"
#include "trainer/dumping_store.h"
#include "trainer/launch.h"
#include "trainer/options.h"
#include "trainer/worker_rank.h"
#include "transport/base/secret.h"
#include "transport/base/socket.h"

namespace gradlane {
namespace {

int Complain(const Error& error, const std::string& who) {
  std::fprintf(stderr, "gradlane-train%s: %s\n", who.empty() ? "" : (" (" + who + ")").c_str(), error.message.c_str());
  return ExitCode(error);
}

// What was asked for by name and cannot be had is found before anything is started.
Result<void> CheckBackends(const Options& options) {
  if (options.device == "cuda") {
    return Fail(ErrorCode::kUnavailable, "--device cuda: this version computes on the CPU only; use --device cpu or auto.");
  }
  if (options.fabric == "verbs") return tl::unexpected(OpenFabric({"verbs", nullptr}, 0, 0).error());
#ifndef GRADLANE_HAVE_UCX
  if (options.fabric == "ucx") return tl::unexpected(OpenFabric({"ucx", nullptr}, 0, 0).error());
#endif
  if (!options.dump_gradients.empty()) TRY(CheckDumpDir(options.dump_gradients));
  return {};
}

// The files of --codec auto: a bad one is found before anything is started, too.
Result<void> CheckCodecPlan(const Options& options, const DataSplits& data) {
  if (!options.codec_plan_out.empty() && (options.local || options.rank == 0)) {
    TRY(CheckNewFile("--codec-plan-out", options.codec_plan_out));
  }
  if (options.codec_plan.empty()) return {};
  ASSIGN_OR_RETURN(const auto specs, ModelTensors(options.model, data.train.image, data.train.num_classes));
  std::vector<JobTensor> tensors;
  for (const TensorSpec& spec : specs) tensors.push_back({spec.name, spec.NumElems(), spec.layer, spec.decay});
  TRY(ReadCodecPlan(options.codec_plan, tensors, options.members.num_workers));
  return {};
}

bool RanksAreThreads([[maybe_unused]] const Options& options) {
#ifdef GRADLANE_HAVE_UCX
  return options.fabric == "loopback";
#else
  return true;
#endif
}

Result<void> RunServer(const Options& options, LoopbackHub* hub) {
  ServerRankOptions server;
  server.bootstrap = BootstrapOptionsOf(options, {Role::kServer, options.rank});
  server.fabric = {options.fabric, hub};
  server.codec = options.codec_choice;
  server.trace = options.trace;
  return RunServerRank(server);
}

// Every rank a thread of this process, over the loopback fabric. The bootstrap is the same as between processes.
Result<void> RunLocalThreads(const Options& options, const DataSplits& data) {
  const Membership members = options.members;
  ASSIGN_OR_RETURN(Fd listener, ListenLoopback());
  ASSIGN_OR_RETURN(const auto address, LocalAddress(listener.get()));
  const int listen_fd = listener.Release();  // the host rank takes it over
  const std::unique_ptr<LoopbackHub> hub = LoopbackHub::Create(members.Count());
  const std::string secret = MakeSecret();
  std::mutex mutex;
  std::optional<Error> first_error;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < members.Count(); ++i) {
    threads.emplace_back([&, i] {
      Options own = options;
      const Member self = members.At(i);
      own.role = self.role;
      own.rank = self.rank;
      own.secret = secret;
      own.rendezvous = address.ToString();
      own.listen_fd = i == 0 ? listen_fd : -1;
      const Result<void> done = self.role == Role::kServer ? RunServer(own, hub.get()) : RunWorkerRank(own, data, hub.get());
      const std::lock_guard lock(mutex);
      if (!done && !first_error) first_error = done.error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first_error) return tl::unexpected(*first_error);
  return {};
}

int Main(int argc, const char* const* argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("gradlane"));
  ParsedOptions parsed = ParseOptions(argc, argv);
  if (!parsed.options) {
    std::fprintf(parsed.exit_code == 0 ? stdout : stderr, "%s", parsed.text.c_str());
    return parsed.exit_code;
  }
  Options options = *std::move(parsed.options);
  if (const auto ok = CheckBackends(options); !ok) return Complain(ok.error(), "");
  if (options.role == Role::kServer) {
    const Result<void> done = RunServer(options, nullptr);
    return done ? 0 : Complain(done.error(), ToString(Member{Role::kServer, options.rank}));
  }

  const bool threads_by_default = options.threads == 0;
  if (threads_by_default) {
    const uint32_t sharing = options.local ? options.members.num_workers : 1;
    options.threads = int(std::max(1u, std::thread::hardware_concurrency() / sharing));
  }
  // Read here also when the ranks are to be processes: a bad file is one sentence then, not one of each rank.
  Result<DataSplits> data = LoadData(options.data, options.data_dir, SyntheticShape(options.model), options.seed);
  if (!data) return Complain(data.error(), "");
  if (const auto tensors = ModelTensors(options.model, data->train.image, data->train.num_classes); !tensors) {
    return Complain(tensors.error(), "");
  }

  if (const auto ok = CheckCodecPlan(options, *data); !ok) return Complain(ok.error(), "");

  if (options.local && options.members.num_servers > 0 && !RanksAreThreads(options)) {
    *data = {};  // each worker reads its own
    std::vector<std::string> arguments(argv + 1, argv + argc);
    if (threads_by_default) arguments.insert(arguments.end(), {"--threads", std::to_string(options.threads)});
    return RunLocalProcesses(options, arguments);
  }
  const bool threads = options.local && options.members.num_servers > 0;
  const Result<void> done = threads ? RunLocalThreads(options, *data) : RunWorkerRank(options, *data, nullptr);
  const std::string who = options.local ? "" : ToString(Member{Role::kWorker, options.rank});
  return done ? 0 : Complain(done.error(), who);
}

}  // namespace
}  // namespace gradlane

int main(int argc, char** argv) { return gradlane::Main(argc, argv); }
