#include "trainer/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace gradlane {
namespace {

constexpr int64_t kMs = 1'000'000;

struct Screen {
  std::vector<std::string> writes;
  int64_t now_ns = 0;
  ProgressOutput Output(bool terminal) {
    return {[this](const std::string& text) { writes.push_back(text); }, [this] { return now_ns; }, terminal};
  }
};

TEST(Progress, GivenAFile_ExpectAPlainLineEveryTenthAndTheLast) {
  Screen screen;
  Progress progress(100, 128, true, screen.Output(false));
  for (int64_t step = 1; step <= 100; ++step) {
    screen.now_ns += 10 * kMs;
    progress.OnStep(step, step <= 10 ? float(step) : 0.25f);
  }
  progress.Finish();
  ASSERT_EQ(screen.writes.size(), 10u);
  EXPECT_EQ(screen.writes[0], "worker 0: step 10/100 (10%), loss 5.5000, 12800 images/s, 0:01 left\n")
      << "the mean loss";
  EXPECT_EQ(screen.writes[9], "worker 0: step 100/100 (100%), loss 0.2500, 12800 images/s, 0:01 in all\n");
}

TEST(Progress, GivenSlowSteps_ExpectALineEveryTenSeconds) {
  Screen screen;
  Progress progress(1'000'000, 64, true, screen.Output(false));
  for (int64_t step = 1; step <= 60; ++step) {
    screen.now_ns += 1000 * kMs;
    progress.OnStep(step, 1);
  }
  EXPECT_EQ(screen.writes.size(), 6u);
  EXPECT_THAT(screen.writes[0], testing::HasSubstr("277:46:30 left"));
}

TEST(Progress, GivenATerminal_ExpectOneLineRewrittenAtMostTenTimesASecond) {
  Screen screen;
  {
    Progress progress(3000, 64, true, screen.Output(true));
    for (int64_t step = 1; step <= 3000; ++step) {
      screen.now_ns += kMs;
      progress.OnStep(step, 1);
    }
    progress.Finish();
  }
  EXPECT_LE(screen.writes.size(), 33u);
  EXPECT_GE(screen.writes.size(), 30u);
  EXPECT_EQ(screen.writes.back(), "\n");
  for (size_t i = 0; i + 1 < screen.writes.size(); ++i) {
    EXPECT_EQ(screen.writes[i].front(), '\r');
    EXPECT_TRUE(screen.writes[i].ends_with("\x1b[K"));
    EXPECT_EQ(screen.writes[i].find('\n'), std::string::npos);
  }
  EXPECT_EQ(std::count(screen.writes.begin(), screen.writes.end(), "\n"), 1) << "ended once";
}

TEST(Progress, GivenAFailureOnTheWay_ExpectTheTerminalLineEnded) {
  Screen screen;
  { Progress(10, 64, true, screen.Output(true)).OnStep(1, 1); }
  EXPECT_EQ(screen.writes.back(), "\n");
}

TEST(Progress, GivenAnotherWorker_ExpectSilence) {
  Screen screen;
  {
    Progress progress(2, 64, false, screen.Output(true));
    progress.OnStep(1, 1);
    progress.OnStep(2, 1);
    progress.Finish();
  }
  EXPECT_TRUE(screen.writes.empty());
}

TEST(Progress, GivenFewerStepsThanLines_ExpectOneLineEach) {
  Screen screen;
  Progress progress(3, 64, true, screen.Output(false));
  for (int64_t step = 1; step <= 3; ++step) progress.OnStep(step, 1);
  progress.Finish();
  EXPECT_EQ(screen.writes.size(), 3u);
}

}  // namespace
}  // namespace gradlane
