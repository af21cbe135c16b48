// W workers and S servers as threads of this process over the loopback fabric, without bootstrap or model: gradients are
// a function of worker, step and parameters. For tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ps/server.h"
#include "ps/worker.h"
#include "transport/loopback_fabric.h"

namespace gradlane::testing_support {

inline Job SmallJob() {
  Job job;
  job.tensors = {{"a.weight", 700, 0, true},      {"a.bias", 20, 0, false},  {"b.weight", 30'000, 1, true},
                 {"b.bias", 50, 1, false},        {"c.weight", 9'000, 2, true}};
  job.segment_bytes = 16 << 10;
  job.window_bytes = 64 << 10;
  job.codec = Codec::kNone;
  job.reply = ReplyCodec::kRaw;
  job.fec_threshold = -6;
  job.fec_reply_threshold = -9;
  job.lr.base = 0.1f;
  job.lr.total_steps = 20;
  job.weight_decay = 1e-4f;
  return job;
}

// Any smooth function will do, as long as it depends on all three.
inline void MakeGrad(uint32_t worker, int step, std::span<const float> params, std::span<float> grad) {
  for (size_t i = 0; i < grad.size(); ++i) {
    const uint32_t mixed = uint32_t(i) * 2654435761u ^ (worker * 97u + uint32_t(step) * 131u);
    grad[i] = params[i] * 0.05f + (float(mixed >> 8) / float(1u << 24) - 0.5f) * 0.2f;
  }
}

inline void InitParams(ParameterStore& store, const Job& job) {
  for (uint32_t t = 0; t < job.tensors.size(); ++t) {
    std::span<float> params = store.Params(t);
    for (size_t i = 0; i < params.size(); ++i) params[i] = std::sin(float(i) * 0.1f + float(t));
  }
}

// May spoil a gradient after it was made.
using GradHook = std::function<void(uint32_t worker, int step, uint32_t tensor, std::span<float> grad)>;

// What a trainer does, as the model's passes would.
inline Result<void> RunSteps(ParameterStore& store, const Job& job, uint32_t worker, int num_steps,
                             const GradHook& hook = {}, int first_step = 0) {
  const uint32_t num_layers = job.tensors.back().layer + 1;
  for (int step = first_step; step < first_step + num_steps; ++step) {
    for (uint32_t k = 0; k < num_layers; ++k) TRY(store.WaitParams(k));
    for (uint32_t k = num_layers; k-- > 0;) {
      for (uint32_t t = 0; t < job.tensors.size(); ++t) {
        if (job.tensors[t].layer != k) continue;
        MakeGrad(worker, step, store.Params(t), store.Grads(t));
        if (hook) hook(worker, step, t, store.Grads(t));
      }
      store.GradReady(k);
    }
  }
  for (uint32_t k = 0; k < num_layers; ++k) TRY(store.WaitParams(k));
  return {};
}

inline std::vector<float> AllParams(ParameterStore& store, const Job& job) {
  std::vector<float> all;
  for (uint32_t t = 0; t < job.tensors.size(); ++t) all.insert(all.end(), store.Params(t).begin(), store.Params(t).end());
  return all;
}

struct ClusterResult {
  std::vector<std::vector<float>> params;  // by worker
  std::vector<StoreStats> stats;           // by worker
  std::vector<ServerStats> server_stats;   // by server
  std::vector<std::vector<CodecDecision>> decisions;  // by worker
  std::vector<Error> errors;
};

// By rank: what SaveState made.
struct ClusterState {
  std::vector<std::vector<std::byte>> workers, servers;
};

struct ClusterExtras {
  GradHook hook;
  // The server that prepare will have killed, if any; being dead, it tells nobody what it saw.
  std::optional<uint32_t> victim;
  CodecAuto codec_auto = {};
  int first_step = 0;
  const ClusterState* resume_from = nullptr;  // after first_step steps
  ClusterState* save_to = nullptr;            // after the last step, while all communication threads run
};

// prepare: called with the hub before anything is connected, to inject faults.
template <typename Prepare>
ClusterResult RunCluster(const Job& job, Membership members, int num_steps, Prepare&& prepare,
                         const ClusterExtras& extras = {}) {
  ClusterResult result;
  const auto layout = Layout::Make(job, members);
  EXPECT_TRUE(layout);
  const std::unique_ptr<LoopbackHub> hub = LoopbackHub::Create(members.Count());
  prepare(*hub);
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::string> addresses;
  for (uint32_t s = 0; s < members.num_servers; ++s) {
    auto server = Server::Open({&job, &*layout, members, s, nullptr}, hub->Open(s));
    EXPECT_TRUE(server);
    addresses.push_back(*(*server)->fabric().LocalAddress());
    servers.push_back(std::move(*server));
  }
  for (uint32_t w = 0; w < members.num_workers; ++w) {
    auto worker = Worker::Open({&job, &*layout, members, w, nullptr, {}, extras.codec_auto}, hub->Open(members.num_servers + w));
    EXPECT_TRUE(worker);
    addresses.push_back(*(*worker)->fabric().LocalAddress());
    workers.push_back(std::move(*worker));
  }
  for (uint32_t i = 0; i < members.Count(); ++i) {
    Fabric& fabric = i < members.num_servers ? servers[i]->fabric() : workers[i - members.num_servers]->fabric();
    EXPECT_TRUE(fabric.Connect(i, addresses, 5000));
  }
  std::mutex mutex;
  auto fail = [&](const Error& error) {
    const std::lock_guard lock(mutex);
    result.errors.push_back(error);
    for (auto& worker : workers) worker->Fail(error);
  };
  if (extras.resume_from != nullptr) {
    for (uint32_t s = 0; s < members.num_servers; ++s) {
      EXPECT_TRUE(servers[s]->LoadState(extras.resume_from->servers[s]));
    }
    for (uint32_t w = 0; w < members.num_workers; ++w) {
      EXPECT_TRUE(workers[w]->LoadState(extras.resume_from->workers[w]));
    }
  }
  for (uint32_t s = 0; s < members.num_servers; ++s) {
    servers[s]->Start([&fail, silent = extras.victim == s](const Error& error) {
      if (!silent) fail(error);
    });
  }
  for (auto& worker : workers) worker->OnError(fail);
  if (extras.resume_from == nullptr) InitParams(*workers[0], job);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < members.num_workers; ++w) {
    threads.emplace_back([&, w] {
      Result<void> done = extras.resume_from != nullptr ? workers[w]->Resume() : workers[w]->Begin();
      if (done) done = RunSteps(*workers[w], job, w, num_steps, extras.hook, extras.first_step);
      if (!done) fail(done.error());
    });
  }
  for (auto& thread : threads) thread.join();
  if (extras.save_to != nullptr && result.errors.empty()) {
    auto keep = [&](std::vector<std::vector<std::byte>>& states, Result<std::vector<std::byte>> state) {
      if (state) states.push_back(*std::move(state));
      else fail(state.error());
    };
    for (auto& worker : workers) keep(extras.save_to->workers, worker->SaveState());
    for (auto& server : servers) keep(extras.save_to->servers, server->SaveState(60'000));
  }
  for (auto& worker : workers) worker->Stop();
  for (auto& server : servers) {
    server->Stop();
    result.server_stats.push_back(server->Stats());
  }
  for (auto& worker : workers) {
    result.params.push_back(AllParams(*worker, job));
    result.stats.push_back(worker->Stats());
    result.decisions.push_back(worker->CodecDecisions());
  }
  return result;
}

inline ClusterResult RunCluster(const Job& job, Membership members, int num_steps, const ClusterExtras& extras = {}) {
  return RunCluster(job, members, num_steps, [](LoopbackHub&) {}, extras);
}

}  // namespace gradlane::testing_support
