#include "ps/codec_plan.h"

#include <algorithm>
#include <cmath>

#include "ps/json_reader.h"
#include "ps/state_file.h"

namespace gradlane {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "gradlane codec plan";
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxPlanTextBytes = size_t{64} << 20;
constexpr int kMaxPlanNesting = 5;  // {"tensors": [{"workers": [{}]}]}
constexpr uint64_t kMaxStep = uint64_t{1} << 40;
constexpr double kMaxNsPerElem = 1e12;
constexpr double kMaxRatio = 1e9;

double LinkNs(double bytes, uint32_t link_mbps) { return bytes * 8 * 1000 / link_mbps; }

tl::unexpected<Error> BadPlan(const std::string& complaint) {
  return Fail(ErrorCode::kInvalidArgument, "The codec plan " + complaint + ".");
}

nlohmann::ordered_json ToJsonValue(const CodecDecision& d) {
  return {{"send", d.raw_from_step == 0 ? "fec" : "raw"},    {"from_step", d.raw_from_step == 0 ? 1 : d.raw_from_step},
          {"encode_ns_per_elem", d.cost.encode_ns_per_elem}, {"decode_ns_per_elem", d.cost.decode_ns_per_elem},
          {"add_ns_per_elem", d.cost.add_ns_per_elem},       {"ratio", d.cost.ratio}};
}

// Returns the complaint, or nothing.
std::string ReadDecision(const Json& json, const std::string& where, CodecDecision* decision) {
  std::string send;
  uint64_t from_step = 0;
  JsonReader reader(json, where);
  reader.String("send", &send)
      .Int<uint64_t>("from_step", &from_step, 1, kMaxStep)
      .Real("encode_ns_per_elem", &decision->cost.encode_ns_per_elem, 0, kMaxNsPerElem)
      .Real("decode_ns_per_elem", &decision->cost.decode_ns_per_elem, 0, kMaxNsPerElem)
      .Real("add_ns_per_elem", &decision->cost.add_ns_per_elem, 0, kMaxNsPerElem)
      .Real("ratio", &decision->cost.ratio, 0, kMaxRatio)
      .NoMore();
  if (!reader.error().empty()) return reader.error();
  if (send == "raw") {
    decision->raw_from_step = from_step;
  } else if (send != "fec" || from_step != 1) {
    return where + " sends neither raw from a step on nor fec from step 1";
  }
  return "";
}

}  // namespace

double CodecCost::CodedNs(uint64_t num_elems, uint32_t link_mbps) const {
  const double coded_bytes = double(num_elems) * sizeof(float) / ratio;
  return double(num_elems) * (encode_ns_per_elem + decode_ns_per_elem) + LinkNs(coded_bytes, link_mbps);
}

double CodecCost::RawNs(uint64_t num_elems, uint32_t link_mbps) const {
  return double(num_elems) * add_ns_per_elem + LinkNs(double(num_elems) * sizeof(float), link_mbps);
}

void CodecMeter::Add(const Sample& segment) {
  step_.elems += segment.elems;
  step_.coded_bytes += segment.coded_bytes;
  step_.encode_ns += segment.encode_ns;
  step_.decode_ns += segment.decode_ns;
  step_.add_ns += segment.add_ns;
}

void CodecMeter::EndStep(bool complete) {
  const Sample step = std::exchange(step_, {});
  if (!complete || step.elems == 0) return;
  auto keep = [&](double& best, int64_t ns) {
    const double per_elem = double(ns) / double(step.elems);
    best = any_ ? std::min(best, per_elem) : per_elem;
  };
  keep(best_.encode_ns_per_elem, step.encode_ns);
  keep(best_.decode_ns_per_elem, step.decode_ns);
  keep(best_.add_ns_per_elem, step.add_ns);
  total_.elems += step.elems;
  total_.coded_bytes += step.coded_bytes;
  any_ = true;
}

CodecCost CodecMeter::Cost() const {
  CodecCost cost = best_;
  if (any_) cost.ratio = double(total_.elems) * sizeof(float) / double(std::max<uint64_t>(total_.coded_bytes, 1));
  return cost;
}

void CodecCost::SaveTo(StateWriter& out) const {
  out.F64(encode_ns_per_elem);
  out.F64(decode_ns_per_elem);
  out.F64(add_ns_per_elem);
  out.F64(ratio);
}

void CodecCost::LoadFrom(StateReader& in) {
  for (double* time : {&encode_ns_per_elem, &decode_ns_per_elem, &add_ns_per_elem})
    *time = in.F64("time", 0, kMaxNsPerElem);
  ratio = in.F64("ratio", 0, kMaxRatio);
}

void CodecMeter::SaveTo(StateWriter& out) const {
  best_.SaveTo(out);
  out.U64(total_.elems);
  out.U64(total_.coded_bytes);
  out.U8(any_ ? 1 : 0);
}

void CodecMeter::LoadFrom(StateReader& in) {
  step_ = {};
  best_.LoadFrom(in);
  total_ = {};
  total_.elems = in.U64();
  total_.coded_bytes = in.U64();
  const uint8_t any = in.U8();
  any_ = any == 1;
  if (any > 1 || any_ != (total_.elems > 0)) in.Complain("has measurements that cannot be");
}

std::vector<CodecDecision> CodecPlan::OfWorker(uint32_t worker) const {
  std::vector<CodecDecision> decisions;
  for (const Tensor& tensor : tensors) decisions.push_back(tensor.of_worker[worker]);
  return decisions;
}

std::string CodecPlan::ToJson() const {
  nlohmann::ordered_json json = {{"format", kFormat},          {"version", kVersion},
                                 {"link_mbps", link_mbps},     {"decide_steps", decide_steps},
                                 {"num_workers", num_workers}, {"tensors", nlohmann::ordered_json::array()}};
  for (const Tensor& tensor : tensors) {
    nlohmann::ordered_json workers = nlohmann::ordered_json::array();
    for (const CodecDecision& decision : tensor.of_worker) workers.push_back(ToJsonValue(decision));
    json["tensors"].push_back({{"name", tensor.name}, {"elems", tensor.num_elems}, {"workers", std::move(workers)}});
  }
  return json.dump(1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<CodecPlan> CodecPlan::Parse(const std::string& text, std::span<const JobTensor> tensors, uint32_t num_workers) {
  if (text.size() > kMaxPlanTextBytes) {
    return BadPlan("has " + std::to_string(text.size()) + " bytes: at most " + std::to_string(kMaxPlanTextBytes) +
                   " are possible");
  }
  if (JsonNesting(text) > kMaxPlanNesting) return BadPlan("is nested too deeply");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return BadPlan("is not JSON");

  CodecPlan plan;
  std::string format;
  uint32_t version = 0;
  JsonReader reader(json, "object");
  reader.String("format", &format);
  if (reader.error().empty() && format != kFormat)
    return BadPlan("is something else: its format is " + QuotedForMessage(format));
  reader.Int<uint32_t>("version", &version, 0, UINT32_MAX);
  if (reader.error().empty() && version != kVersion) {
    return BadPlan("is of version " + std::to_string(version) + ", and this program reads version " +
                   std::to_string(kVersion));
  }
  reader.Int<uint32_t>("link_mbps", &plan.link_mbps, 1, kMaxLinkMbps)
      .Int<uint32_t>("decide_steps", &plan.decide_steps, 1, kMaxDecideSteps)
      .Int<uint32_t>("num_workers", &plan.num_workers, 1, UINT32_MAX);
  const Json* array = reader.Array("tensors");
  reader.NoMore();
  if (!reader.error().empty()) return BadPlan("is wrong: its " + reader.error());
  if (plan.num_workers != num_workers) {
    return BadPlan("is of a job of " + std::to_string(plan.num_workers) + " workers, and this job has " +
                   std::to_string(num_workers));
  }
  if (array->size() != tensors.size()) {
    return BadPlan("is of another model: it has " + std::to_string(array->size()) + " tensors where this model has " +
                   std::to_string(tensors.size()));
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    const std::string where = "tensor " + std::to_string(t);
    Tensor tensor;
    JsonReader of_tensor((*array)[t], where);
    of_tensor.String("name", &tensor.name).Int<uint64_t>("elems", &tensor.num_elems, 1, UINT64_MAX);
    const Json* workers = of_tensor.Array("workers");
    of_tensor.NoMore();
    if (!of_tensor.error().empty()) return BadPlan("is wrong: " + of_tensor.error());
    if (tensor.name != tensors[t].name || tensor.num_elems != tensors[t].num_elems) {
      return BadPlan("is of another model: its " + where + " is " + QuotedForMessage(tensor.name) + " of " +
                     std::to_string(tensor.num_elems) + " elements where this model has " +
                     QuotedForMessage(tensors[t].name) + " of " + std::to_string(tensors[t].num_elems));
    }
    if (workers->size() != num_workers) {
      return BadPlan("is wrong: " + where + " has decisions of " + std::to_string(workers->size()) + " workers");
    }
    for (const Json& worker : *workers) {
      CodecDecision decision;
      const std::string of = where + ", worker " + std::to_string(tensor.of_worker.size());
      if (const std::string complaint = ReadDecision(worker, of, &decision); !complaint.empty()) {
        return BadPlan("is wrong: " + complaint);
      }
      tensor.of_worker.push_back(decision);
    }
    plan.tensors.push_back(std::move(tensor));
  }
  return plan;
}

std::string ToText(std::span<const CodecDecision> decisions) {
  Json json = Json::array();
  for (const CodecDecision& d : decisions) {
    json.push_back(
        {d.raw_from_step, d.cost.encode_ns_per_elem, d.cost.decode_ns_per_elem, d.cost.add_ns_per_elem, d.cost.ratio});
  }
  return json.dump();
}

Result<std::vector<CodecDecision>> DecisionsFromText(const std::string& text, size_t num_tensors) {
  const auto bad = [] { return Fail(ErrorCode::kMalformed, "A worker's codec decisions are not what was agreed on."); };
  if (JsonNesting(text) > 2) return bad();
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.size() != num_tensors) return bad();
  std::vector<CodecDecision> decisions;
  for (const Json& row : json) {
    if (!row.is_array() || row.size() != 5 || !row[0].is_number_unsigned() || row[0].get<uint64_t>() > kMaxStep)
      return bad();
    CodecDecision d;
    d.raw_from_step = row[0].get<uint64_t>();
    size_t i = 1;
    for (double* value :
         {&d.cost.encode_ns_per_elem, &d.cost.decode_ns_per_elem, &d.cost.add_ns_per_elem, &d.cost.ratio}) {
      const Json& number = row[i++];
      if (!number.is_number() || !std::isfinite(number.get<double>())) return bad();
      *value = std::clamp(number.get<double>(), 0.0, value == &d.cost.ratio ? kMaxRatio : kMaxNsPerElem);
    }
    decisions.push_back(d);
  }
  return decisions;
}

}  // namespace gradlane
