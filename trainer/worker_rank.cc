#include "trainer/worker_rank.h"

#include <sodium.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <sstream>
#include <unistd.h>
#include <utility>

#include "ps/server_rank.h"
#include "ps/worker.h"
#include "trainer/codec_plan_file.h"
#include "trainer/dumping_store.h"
#include "trainer/local_store.h"
#include "trainer/progress.h"
#include "trainer/report.h"
#include "trainer/train.h"

namespace gradlane {
namespace {

int64_t NumSteps(const Options& options, const Dataset& train) {
  const int64_t steps_per_epoch = int64_t(train.Count()) / (int64_t{options.members.num_workers} * options.batch);
  return options.steps.value_or(options.epochs * std::max<int64_t>(1, steps_per_epoch));
}

Job MakeJob(const Options& options, std::span<const TensorSpec> tensors, const Dataset& train) {
  const double steps_per_epoch = double(train.Count()) / double(int64_t{options.members.num_workers} * options.batch);
  Job job;
  for (const TensorSpec& spec : tensors) job.tensors.push_back({spec.name, spec.NumElems(), spec.layer, spec.decay});
  job.segment_bytes = options.segment_bytes;
  job.window_bytes = options.window_bytes;
  job.codec = options.codec;
  job.fec_auto = !options.fec_threshold.has_value();
  job.fec_threshold = options.fec_threshold.value_or(-7);
  job.fec_density = options.fec_density;
  job.fec_runs_layout = options.fec_runs_layout;
  job.fec_rounding = options.fec_rounding;
  job.seed = options.seed;
  job.error_feedback = options.error_feedback;
  job.two_bit_threshold = options.two_bit_threshold;
  job.reply = options.reply;
  job.fec_reply_threshold = options.fec_reply_threshold;
  job.schedule = options.schedule;
  job.sync = options.sync;
  job.optimizer = options.optimizer;
  job.momentum = options.momentum;
  job.weight_decay = options.weight_decay;
  job.nonfinite_limit = options.nonfinite_limit;
  job.lr.base = options.lr;
  job.lr.schedule = options.lr_schedule;
  job.lr.total_steps = NumSteps(options, train);
  job.lr.warmup_steps = int64_t(options.warmup_epochs * steps_per_epoch);
  job.lr.step_every = std::max<int64_t>(1, int64_t(options.lr_step_epochs * steps_per_epoch));
  job.lr.gamma = options.lr_gamma;
  return job;
}

std::string Sha256Hex(const unsigned char (&hash)[crypto_hash_sha256_BYTES]) {
  char hex[crypto_hash_sha256_BYTES * 2 + 1];
  sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
  return hex;
}

// Over the fp32 bytes of every tensor, in order.
std::string ParametersSha256(ParameterStore& store, size_t num_tensors) {
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  for (uint32_t t = 0; t < num_tensors; ++t) {
    const auto bytes = std::as_bytes(store.Params(t));
    crypto_hash_sha256_update(&state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  }
  unsigned char hash[crypto_hash_sha256_BYTES];
  crypto_hash_sha256_final(&state, hash);
  return Sha256Hex(hash);
}

// Hands a failure that the bootstrap learns of to the store, for as long as that lives.
class FailureRelay {
 public:
  void Attach(ParameterStore& store) {
    const std::lock_guard lock(mutex_);
    store_ = &store;
  }
  void Tell(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (store_ != nullptr) store_->Fail(error);
  }
  void Detach() {
    const std::lock_guard lock(mutex_);
    store_ = nullptr;
  }

 private:
  std::mutex mutex_;
  ParameterStore* store_ = nullptr;  // by mutex_
};

std::string CodecText(const Job& job) {
  if (job.codec == Codec::kNone) return "none: gradients travel as fp32";
  if (job.codec == Codec::kTwoBit) return "2bit, threshold " + std::to_string(job.two_bit_threshold);
  std::ostringstream text;
  if (job.codec == Codec::kAuto) text << "auto: ";
  text << "fec, ";
  if (job.fec_auto) text << "threshold steered to a density of " << job.fec_density;
  else text << "threshold 2^" << job.fec_threshold;
  text << (job.error_feedback ? ", with error feedback" : ", without error feedback");
  if (job.fec_rounding != fec::Rounding::kNearest) text << ", rounding " << ToString(job.fec_rounding);
  if (job.fec_runs_layout) text << ", published layout only";
  return text.str();
}

// What decides, and where its numbers come from.
std::string CodecAutoText(const Options& options) {
  if (!options.codec_plan.empty()) return "decisions of " + options.codec_plan + ": nothing is measured";
  const uint32_t steps = options.codec_decide_steps;
  return "from step " + std::to_string(steps + 1) + " on, tensors travel as fp32 where coding takes longer than it saves: by times that each worker measures in steps " +
         std::to_string(steps / 2 + 1) + " to " + std::to_string(steps) + ", and a link of " +
         std::to_string(options.link_mbps.value_or(kDefaultLinkMbps)) + " Mbit/s (" +
         (options.link_mbps ? "as --link-mbps says" : "the default of --link-mbps") + ", not measured)";
}

std::string VectorsText(const CodecChoice& choice) {
  const std::string target = choice.target.empty() ? fec::CodecTargets().front() : choice.target;
  std::string text = target.starts_with("AVX3") ? target + " (AVX-512)" : target + ", not AVX-512: ";
  if (!choice.target.empty()) text += target.starts_with("AVX3") ? ", asked for by name" : "asked for by name";
  else if (!target.starts_with("AVX3")) text += "this processor does not have it";
  return text + ", " + std::to_string(choice.num_threads) + (choice.num_threads == 1 ? " thread" : " threads");
}

std::string ReplyText(const Job& job) {
  if (job.reply == ReplyCodec::kRaw) return "raw: parameters come back as fp32";
  if (job.fec_auto) return "fec: changes of parameters, steered to the same density, with the server's error feedback";
  return "fec: changes of parameters, threshold 2^" + std::to_string(job.fec_reply_threshold) +
         ", with the server's error feedback";
}

std::string ScheduleText(const Job& job) {
  return std::string(ToString(job.schedule)) + ", segments of " + std::to_string(job.segment_bytes >> 10) +
         " KiB, at most " + std::to_string(job.window_bytes >> 10) + " KiB in flight";
}

StartupReport MakeStartupReport(const Options& options, const Job& job, const Model& model, const DataSplits& data) {
  const Membership members = options.members;
  StartupReport report;
  report.push_back({"job", std::to_string(members.num_workers) + " workers, " + std::to_string(members.num_servers) +
                               " servers, " + std::to_string(job.lr.total_steps) + " steps of " +
                               std::to_string(int64_t{members.num_workers} * options.batch) + " images"});
  report.push_back({"model", model.Describe()});
  report.push_back({"data", options.data + ", " + std::to_string(data.train.Count()) + " images to train on, " +
                                std::to_string(data.test.Count()) + " to test with"});
  report.push_back({"device", "cpu: this version has no CUDA layers, so no GPU is used"});
  if (members.num_servers == 0) {
    report.push_back({"servers", "none: parameters are updated in place; codec, schedule and sync do not apply"});
    return report;
  }
  report.push_back({"codec", CodecText(job)});
  if (job.codec == Codec::kAuto) report.push_back({"codec auto", CodecAutoText(options)});
  report.push_back({"reply", ReplyText(job)});
  if (job.codec == Codec::kFec || job.codec == Codec::kAuto || job.reply == ReplyCodec::kFec) {
    report.push_back({"fec vectors", VectorsText(options.codec_choice)});
  }
  report.push_back({"schedule", ScheduleText(job)});
  report.push_back({"sync", ToString(job.sync)});
  return report;
}

// Writes the whole timeline: this rank's part, and those of the others as far as they lie beside it.
Result<void> WriteTrace(const Options& options, const Trace& own) {
  std::vector<std::string> parts = {own.ToJsonEvents()};
  std::vector<std::string> used;
  for (uint32_t i = 0; i < options.members.Count(); ++i) {
    const std::string path = TracePartPath(options.trace, options.members.At(i));
    std::ifstream file(path);
    if (!file) continue;  // another host, or this rank: that part stays where it is
    std::ostringstream text;
    text << file.rdbuf();
    parts.push_back(text.str());
    used.push_back(path);
  }
  TRY(WriteTraceFile(options.trace, parts));
  for (const std::string& path : used) unlink(path.c_str());
  return {};
}

class WorkerRun {
 public:
  WorkerRun(const Options& options, const DataSplits& data, LoopbackHub* hub)
      : options_(options),
        data_(data),
        hub_(hub),
        self_{Role::kWorker, options.rank},
        trace_(options.members.IndexOf(self_), ToString(self_)) {}

  Result<void> Run() {
    if (options_.members.num_servers > 0) {
      BootstrapOptions bootstrap = BootstrapOptionsOf(options_, self_);
      ASSIGN_OR_RETURN(const std::string plan, CodecPlanDigest(options_.codec_plan));
      bootstrap.agreed["codec-plan"] = plan;
      ASSIGN_OR_RETURN(bootstrap_, Bootstrap::Join(bootstrap));
    }
    Result<void> done = Work();
    if (!done && bootstrap_) {
      const Error cause = FirstCause(*bootstrap_, done.error());
      bootstrap_->Abort(cause);
      done = tl::unexpected(cause);
    }
    relay_.Detach();
    return done;
  }

 private:
  bool first() const { return self_.rank == 0; }
  TraceTrack* AddTrack(const char* name) { return options_.trace.empty() ? nullptr : trace_.AddTrack(name); }

  Result<void> Work() {
    TRY(BuildModel());
    TRY(OpenStore());
    ParameterStore* store = store_.get();
    std::unique_ptr<DumpingStore> dumping;
    if (first() && !options_.dump_gradients.empty()) {
      ASSIGN_OR_RETURN(dumping, DumpingStore::Open({options_.dump_gradients, options_.dump_step}, job_, *store_));
      store = dumping.get();
    }
    BindAndInit();
    if (first()) std::printf("gradlane-train\n%s", ToText(startup_).c_str());
    std::fflush(stdout);
    TRY(store_->Begin());

    PipelineOptions pipeline_options;
    pipeline_options.rank = self_.rank;
    pipeline_options.num_workers = options_.members.num_workers;
    pipeline_options.batch = options_.batch;
    pipeline_options.seed = options_.seed;
    pipeline_options.augment = options_.augment.value_or(options_.data.starts_with("cifar"));
    ASSIGN_OR_RETURN(std::unique_ptr<Pipeline> pipeline, Pipeline::Start(data_.train, pipeline_options, AddTrack("data")));

    RunResults results;
    results.steps = job_.lr.total_steps;
    results.images = results.steps * options_.batch * options_.members.num_workers;
    LossCurve curve(results.steps);
    Progress progress(results.steps, int64_t{options_.batch} * options_.members.num_workers, first());
    ASSIGN_OR_RETURN(results.train, Train(*model_, *store, *pipeline, results.steps, job_.nonfinite_limit, AddTrack("training"),
                                          [&](int64_t step, float loss) {
                                            progress.OnStep(step, loss);
                                            curve.Add(step, loss, store_->BytesSoFar());
                                          }));
    progress.Finish();
    results.curve = curve.ToJson();
    pipeline.reset();  // its thread writes to the trace
    if (bootstrap_) TRY(bootstrap_->Barrier(kTrainedCollective));
    if (first()) {
      results.test = Test(*model_, data_.test, options_.batch);
      results.parameters_sha256 = ParametersSha256(*store_, job_.tensors.size());
    }
    results.store = store_->Stats();
    if (worker_ != nullptr) TRY(EndJob(results));
    return first() ? Report(results) : Result<void>{};
  }

  Result<void> BuildModel() {
    ModelOptions model_options;
    model_options.name = options_.model;
    model_options.image = data_.train.image;
    model_options.num_classes = data_.train.num_classes;
    model_options.batch = options_.batch;
    model_options.num_threads = options_.threads;
    ASSIGN_OR_RETURN(model_, BuildCpuModel(model_options));
    job_ = MakeJob(options_, model_->tensors(), data_.train);
    startup_ = MakeStartupReport(options_, job_, *model_, data_);
    return {};
  }

  Result<void> OpenStore() {
    const Membership members = options_.members;
    if (members.num_servers == 0) {
      ASSIGN_OR_RETURN(store_, LocalStore::Open(job_));
      return {};
    }
    ASSIGN_OR_RETURN(job_, Job::Parse(job_.ToJson()));  // the servers get no other, and its bounds hold here too
    TRY(bootstrap_->AllGather(kJobCollective, job_.ToJson()));
    ASSIGN_OR_RETURN(layout_, Layout::Make(job_, members));
    ASSIGN_OR_RETURN(OpenedFabric opened, OpenFabric({options_.fabric, hub_}, members.IndexOf(self_), job_.segment_bytes));
    startup_.push_back({"fabric", opened.reason});
    CodecAuto codec_auto{options_.codec_decide_steps, options_.link_mbps.value_or(kDefaultLinkMbps), nullptr};
    if (!options_.codec_plan.empty()) {
      ASSIGN_OR_RETURN(codec_plan_, ReadCodecPlan(options_.codec_plan, job_.tensors, members.num_workers));
      codec_auto.plan = &codec_plan_;
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker,
                     Worker::Open({&job_, &layout_, members, self_.rank, AddTrack("communication"), options_.codec_choice, codec_auto},
                                  std::move(opened.fabric)));
    worker_ = worker.get();
    store_ = std::move(worker);
    relay_.Attach(*store_);
    worker_->OnError([this](const Error& error) {
      const Error cause = FirstCause(*bootstrap_, error);
      bootstrap_->Abort(cause);
      worker_->Fail(cause);
    });
    bootstrap_->OnFailure([this](const Error& error) { relay_.Tell(error); });
    TRY(ConnectFabric(worker_->fabric(), *bootstrap_, members, self_, options_.join_timeout_ms));
    startup_.push_back({"fabric detail", worker_->fabric().Describe()});
    for (uint32_t s = 0; s < members.num_servers; ++s) {
      startup_.push_back({"path to " + ToString(Member{Role::kServer, s}), worker_->fabric().DescribePath(s)});
    }
    return {};
  }

  void BindAndInit() {
    std::vector<std::span<float>> params, grads;
    for (uint32_t t = 0; t < job_.tensors.size(); ++t) {
      params.push_back(store_->Params(t));
      grads.push_back(store_->Grads(t));
      if (first()) InitTensor(model_->tensors()[t], t, options_.seed, params.back());
    }
    model_->Bind(params, grads);
  }

  // Collective: stops the communication, and gives worker 0 what everybody counted.
  Result<void> EndJob(RunResults& results) {
    worker_->Stop();
    if (!options_.trace.empty() && !first()) {
      TRY(WriteTextFile(TracePartPath(options_.trace, self_), trace_.ToJsonEvents()));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> blobs, bootstrap_->AllGather(kResultsCollective, OwnResults(results).dump()));
    TRY(bootstrap_->Barrier(kStoppedCollective));
    TRY(bootstrap_->Leave());
    std::vector<nlohmann::json> of_workers;
    std::vector<std::vector<CodecDecision>> decisions;  // by worker, of --codec auto
    uint64_t nonfinite_segments = 0;
    for (uint32_t i = 0; i < blobs.size(); ++i) {
      const nlohmann::json blob = nlohmann::json::parse(blobs[i], nullptr, false);
      if (!blob.is_object()) {
        return Fail(ErrorCode::kMalformed, ToString(options_.members.At(i)) + " sent results that are no JSON object.");
      }
      if (options_.members.At(i).role == Role::kWorker) {
        of_workers.push_back(blob);
        if (job_.codec == Codec::kAuto) {
          ASSIGN_OR_RETURN(decisions.emplace_back(),
                           DecisionsFromText(blob.value("codec_decisions", std::string()), job_.tensors.size()));
        }
        continue;
      }
      results.server_preemptions += blob.value("preemptions", uint64_t{0});
      nonfinite_segments += blob.value("nonfinite_segments", uint64_t{0});
      results.reply_survivors += blob.value("reply_survivors", uint64_t{0});
      results.reply_elems += blob.value("reply_elems", uint64_t{0});
      results.server_aggregate_s += blob.value("aggregate_s", 0.0);
      results.server_encode_s += blob.value("encode_s", 0.0);
    }
    if (job_.codec == Codec::kAuto) results.codec_plan = PlanOf(decisions);
    results.store = SumOf(of_workers);
    results.store.nonfinite_segments = nonfinite_segments;  // a worker does not know of all: see StoreStats
    return {};
  }

  nlohmann::json OwnResults(const RunResults& results) const {
    nlohmann::json own = ToJson(results.store);
    if (job_.codec == Codec::kAuto) own["codec_decisions"] = ToText(worker_->CodecDecisions());
    return own;
  }

  CodecPlan PlanOf(const std::vector<std::vector<CodecDecision>>& decisions) const {
    CodecPlan plan;
    plan.link_mbps = options_.link_mbps.value_or(kDefaultLinkMbps);
    plan.decide_steps = options_.codec_decide_steps;
    plan.num_workers = uint32_t(decisions.size());
    for (size_t t = 0; t < job_.tensors.size(); ++t) {
      CodecPlan::Tensor tensor{job_.tensors[t].name, job_.tensors[t].num_elems, {}};
      for (const auto& of_worker : decisions) tensor.of_worker.push_back(of_worker[t]);
      plan.tensors.push_back(std::move(tensor));
    }
    return plan;
  }

  Result<void> Report(const RunResults& results) {
    std::printf("%s", ToText(results).c_str());
    std::fflush(stdout);
    if (!options_.codec_plan_out.empty()) {
      TRY(WriteNewFile("--codec-plan-out", options_.codec_plan_out, results.codec_plan->ToJson()));
    }
    if (!options_.json.empty()) TRY(WriteTextFile(options_.json, ToJson(results, options_, startup_).dump(2) + "\n"));
    if (!options_.trace.empty()) TRY(WriteTrace(options_, trace_));
    return {};
  }

  const Options& options_;
  const DataSplits& data_;
  LoopbackHub* const hub_;
  const Member self_;
  Trace trace_;
  StartupReport startup_;
  Job job_;
  Layout layout_;
  CodecPlan codec_plan_;  // of --codec-plan
  FailureRelay relay_;                    // before bootstrap_, whose thread calls it
  std::unique_ptr<Bootstrap> bootstrap_;  // before what reports to it
  std::unique_ptr<Model> model_;
  std::unique_ptr<ParameterStore> store_;
  Worker* worker_ = nullptr;              // store_, where there are servers
};

}  // namespace

Result<void> RunWorkerRank(const Options& options, const DataSplits& data, LoopbackHub* hub) {
  return WorkerRun(options, data, hub).Run();
}

BootstrapOptions BootstrapOptionsOf(const Options& options, Member self) {
  BootstrapOptions bootstrap;
  bootstrap.self = self;
  bootstrap.members = options.members;
  bootstrap.rendezvous = options.rendezvous;
  bootstrap.listen_fd = options.listen_fd;
  bootstrap.secret = options.secret;
  bootstrap.join_timeout_ms = options.join_timeout_ms;
  bootstrap.peer_timeout_ms = options.peer_timeout_ms;
  bootstrap.parent_fd = options.parent_fd;
  if (self.role == Role::kServer) return bootstrap;
  std::ostringstream lr;
  lr << options.lr;
  bootstrap.agreed = {{"model", options.model},
                      {"data", options.data},
                      {"batch", std::to_string(options.batch)},
                      {"seed", std::to_string(options.seed)},
                      {"epochs", std::to_string(options.epochs)},
                      {"steps", options.steps ? std::to_string(*options.steps) : "by epochs"},
                      {"lr", lr.str()},
                      {"optimizer", ToString(options.optimizer)},
                      {"codec", ToString(options.codec)},
                      {"reply", ToString(options.reply)},
                      {"schedule", ToString(options.schedule)},
                      {"sync", ToString(options.sync)},
                      {"segment-bytes", std::to_string(options.segment_bytes)}};
  if (options.codec == Codec::kAuto) {
    bootstrap.agreed["link-mbps"] = std::to_string(options.link_mbps.value_or(kDefaultLinkMbps));
    bootstrap.agreed["codec-decide-steps"] = std::to_string(options.codec_decide_steps);
  }
  return bootstrap;
}

ImageShape SyntheticShape(const std::string& model) {
  return model == "vgg16" || model == "resnet50" ? ImageShape{3, 224, 224} : ImageShape{1, 28, 28};
}

}  // namespace gradlane
