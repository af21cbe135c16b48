#include "ps/server_rank.h"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ps/server.h"

namespace gradlane {
namespace {

// The job that every worker stated, checked to be the same.
Result<Job> AgreeOnJob(Bootstrap& bootstrap, Membership members) {
  ASSIGN_OR_RETURN(const std::vector<std::string> blobs, bootstrap.AllGather(kJobCollective, ""));
  const std::string& first = blobs[members.IndexOf({Role::kWorker, 0})];
  for (uint32_t w = 1; w < members.num_workers; ++w) {
    if (blobs[members.IndexOf({Role::kWorker, w})] != first) {
      return Fail(ErrorCode::kMismatch, "worker " + std::to_string(w) +
                                            " describes another job than worker 0: start every rank with the same options.");
    }
  }
  return Job::Parse(first);
}

Result<void> Serve(Bootstrap& bootstrap, const ServerRankOptions& options) {
  const Member self = options.bootstrap.self;
  const Membership members = options.bootstrap.members;
  ASSIGN_OR_RETURN(const Job job, AgreeOnJob(bootstrap, members));
  ASSIGN_OR_RETURN(const Layout layout, Layout::Make(job, members));

  Trace trace(members.IndexOf(self), ToString(self));
  TraceTrack* const track = options.trace.empty() ? nullptr : trace.AddTrack("communication");
  ASSIGN_OR_RETURN(OpenedFabric opened, OpenFabric(options.fabric, members.IndexOf(self), job.segment_bytes));
  const std::string describe = opened.fabric->Describe();
  ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
                   Server::Open({&job, &layout, members, self.rank, track, options.codec}, std::move(opened.fabric)));
  TRY(ConnectFabric(server->fabric(), bootstrap, members, self, options.bootstrap.join_timeout_ms));
  spdlog::debug("{}: {} of {} segments, {}", ToString(self), layout.SegmentsOfServer(self.rank).size(),
                layout.num_segments(), describe);

  server->Start([&bootstrap](const Error& error) { bootstrap.Abort(FirstCause(bootstrap, error)); });
  // The workers arrive at their results when they have trained: until then the communication thread does the work.
  const Result<void> stopped = [&]() -> Result<void> {
    TRY(bootstrap.Barrier(kTrainedCollective));
    server->Stop();
    const ServerStats stats = server->Stats();
    const nlohmann::json results = {
        {"updates", stats.updates},         {"reply_survivors", stats.reply_survivors}, {"reply_elems", stats.reply_elems},
        {"preemptions", stats.preemptions}, {"nonfinite_segments", stats.nonfinite_segments},
        {"aggregate_s", double(stats.aggregate_ns) * 1e-9}, {"encode_s", double(stats.encode_ns) * 1e-9}};
    if (!options.trace.empty()) TRY(WriteTextFile(TracePartPath(options.trace, self), trace.ToJsonEvents()));
    TRY(bootstrap.AllGather(kResultsCollective, results.dump()));
    return bootstrap.Barrier(kStoppedCollective);
  }();
  server->Stop();
  TRY(stopped);
  return bootstrap.Leave();
}

}  // namespace

Result<void> RunServerRank(const ServerRankOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Bootstrap> bootstrap, Bootstrap::Join(options.bootstrap));
  Result<void> served = Serve(*bootstrap, options);
  if (served) return {};
  const Error cause = FirstCause(*bootstrap, served.error());
  bootstrap->Abort(cause);
  return tl::unexpected(cause);
}

std::string TracePartPath(const std::string& trace, Member member) {
  return trace + (member.role == Role::kServer ? ".server-" : ".worker-") + std::to_string(member.rank) + ".part";
}

Result<void> WriteTextFile(const std::string& path, const std::string& text) {
  // Written aside and renamed, so that a reader sees all of it or nothing.
  const std::string aside = path + ".new";
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(aside.c_str(), "w"), &std::fclose);
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file.get()) == text.size() &&
                       std::fclose(file.release()) == 0 && std::rename(aside.c_str(), path.c_str()) == 0;
  if (written) return {};
  const int code = errno;
  return Fail(ErrorCode::kInvalidArgument, "Cannot write " + path + ": " + std::strerror(code) + ".", code);
}

}  // namespace gradlane
