// Compiles the inner loops for every instruction set, and finds those that this processor runs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fec_blocks.cc"
#define HWY_COMPILE_ALL_ATTAINABLE  // the scalar loops too, so that tests run them
#define HWY_WANT_AVX3_DL
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
// after foreach_target.h
#include <hwy/highway.h>

#include "kernels/fec_blocks.h"
#include "kernels/fec_blocks_decode-inl.h"
#include "kernels/fec_blocks_encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradlane::fec {
namespace HWY_NAMESPACE {

const BlockKernels* Kernels() {
  static constexpr BlockKernels kernels = {Encode, Check, DecodeAssign, DecodeAdd};
  return &kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace gradlane::fec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradlane::fec {

HWY_EXPORT(Kernels);

const std::vector<BlockTarget>& BlockTargets() {
  static const std::vector<BlockTarget> all = [] {
    std::vector<BlockTarget> targets;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      targets.push_back({hwy::TargetName(target), HWY_DYNAMIC_DISPATCH(Kernels)()});
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return targets;
  }();
  return all;
}

}  // namespace gradlane::fec
#endif
