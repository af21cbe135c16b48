// What a Worker and a Server are opened with. Everything pointed to is borrowed and outlives them.
#pragma once

#include "ps/codec.h"
#include "ps/codec_plan.h"
#include "ps/job.h"
#include "ps/layout.h"
#include "transport/base/members.h"
#include "transport/base/trace.h"

namespace gradlane {

// --codec auto, at a worker.
struct CodecAuto {
  uint32_t decide_steps = 20;  // measured under FEC; decisions hold from the next step on
  uint32_t link_mbps = kDefaultLinkMbps;
  const CodecPlan* plan = nullptr;  // decisions to repeat: nothing is measured then
};

struct RankConfig {
  const Job* job = nullptr;
  const Layout* layout = nullptr;
  Membership members;
  uint32_t rank = 0;            // among the members of its role
  TraceTrack* track = nullptr;  // of the communication thread; may be null
  CodecChoice codec = {};
  CodecAuto codec_auto = {};
};

}  // namespace gradlane
