// The two models for 224x224: one step each, which must learn from its image and stay within memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>

#include "model_reference.h"

namespace gradlane {
namespace {

void CheckOneStep(const char* name) {
  BoundModel bound(Zoo(name, {3, 224, 224}, 1000), 1, 1, 1, /*jitter=*/false);
  const float loss = bound.Step();
  EXPECT_TRUE(std::isfinite(loss));
  for (size_t t = 0; t < bound.memory->grads().size(); t++) {
    double sum = 0;
    for (float g : bound.memory->grads()[t]) sum += std::fabs(g);
    EXPECT_TRUE(std::isfinite(sum)) << bound.model->tensors()[t].name;
    EXPECT_GT(sum, 0) << bound.model->tensors()[t].name;
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 8L << 20) << "KiB at most";
}

TEST(LargeModel, Resnet50Steps) { CheckOneStep("resnet50"); }
TEST(LargeModel, Vgg16Steps) { CheckOneStep("vgg16"); }

}  // namespace
}  // namespace gradlane
