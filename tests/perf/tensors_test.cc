#include "perf/tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "perf/segmented_codec.h"
#include "perf/steady_state.h"

namespace gradlane::perf {
namespace {

std::vector<float> Pattern(const std::string& distribution, size_t num_elems) {
  return MakePattern(distribution, num_elems).value();
}

class GradientFile {
 public:
  explicit GradientFile(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  ~GradientFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ =
      testing::TempDir() + "gradlane-" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(Tensors, GivenADistribution_ExpectTheSameFiniteValuesOfItsScaleEachTime) {
  for (const char* name : {"gaussian", "laplace", "heavy-tail"}) {
    const std::vector<float> values = Pattern(name, 100'000);
    EXPECT_EQ(values, Pattern(name, 100'000)) << name;
    EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) << name;
    const auto below = std::ranges::count_if(values, [](float value) { return value < 0; });
    EXPECT_NEAR(below, 50'000, 1'000) << name;
  }
  // Medians of the magnitude: 0.6745 sigma; ln 2; the upper quartile of Student's t with 3 degrees of freedom.
  EXPECT_NEAR(MagnitudeQuantile(Pattern("gaussian", 100'000), 0.5), 0.006745, 1e-4);
  EXPECT_NEAR(MagnitudeQuantile(Pattern("laplace", 100'000), 0.5), 0.006931, 1e-4);
  EXPECT_NEAR(MagnitudeQuantile(Pattern("heavy-tail", 100'000), 0.5), 0.007649, 1e-4);
}

TEST(Tensors, GivenAShareOfTheElements_ExpectTheMagnitudeThatItReaches) {
  const std::vector<float> values = {-4, 1, 3, -2};
  EXPECT_EQ(MagnitudeQuantile(values, 0.25), 4);
  EXPECT_EQ(MagnitudeQuantile(values, 0.5), 3);
  EXPECT_EQ(MagnitudeQuantile(values, 1), 1);
}

TEST(Tensors, GivenAShortPattern_ExpectItRepeatedAndShiftedFromStepToStep) {
  const std::vector<float> pattern = Pattern("gaussian", 1000);
  const Gradients gradients(pattern, 2500);
  EXPECT_TRUE(std::ranges::equal(gradients.At(0).subspan(2000), std::span(pattern).first(500)));
  EXPECT_EQ(gradients.At(1).size(), 2500u);
  EXPECT_EQ(gradients.At(1).data(), gradients.At(1026).data()) << "1025 shifts";
  EXPECT_NE(gradients.At(1).data(), gradients.At(2).data());
}

TEST(Tensors, GivenAFile_ExpectItsValues) {
  const std::vector<float> values = {1, -0.5f, 0};
  EXPECT_EQ(Pattern(GradientFile(Bytes(values)).path(), 100), values);
}

TEST(Tensors, GivenAFileThatHoldsNoGradients_ExpectASentence) {
  const auto refusal = [](const std::string& bytes) {
    const auto pattern = MakePattern(GradientFile(bytes).path(), 100);
    return pattern ? "accepted" : pattern.error().message;
  };
  EXPECT_THAT(refusal(""), testing::HasSubstr("not a multiple of 4 above 0"));
  EXPECT_THAT(refusal("12345"), testing::HasSubstr("has 5 bytes"));
  EXPECT_THAT(refusal(Bytes({0, std::numeric_limits<float>::quiet_NaN()})), testing::HasSubstr("first at element 1"));
  EXPECT_THAT(MakePattern("no such file", 1).error().message, testing::HasSubstr("nor is there such a file"));
  EXPECT_THAT(MakePattern(testing::TempDir(), 1).error().message, testing::HasSubstr("nor is there such a file"));
}

TEST(SteadyState, GivenAWantedDensity_ExpectTheNextStepToHaveIt) {
  const std::vector<float> pattern = Pattern("gaussian", 65'536);
  for (const double density : {0.01, 0.1}) {
    const SteadyState state = WarmUp(pattern, density, {}, "");
    std::vector<float> residual = state.residual;
    SegmentedCodec codec(pattern.size(), 0, 1, "");
    const size_t survivors =
        codec.Encode(Gradients(pattern, pattern.size()).At(state.steps), residual, state.params).survivors;
    EXPECT_NEAR(static_cast<double>(survivors) / static_cast<double>(pattern.size()), density, 0.2 * density);
  }
}

TEST(SegmentedCodec, GivenSegments_ExpectTheValuesOfOneCall) {
  const std::vector<float> grad = Pattern("laplace", 20'000);
  std::vector<float> whole_residual(grad.size()), parts_residual(grad.size()), whole(grad.size()), parts(grad.size());
  SegmentedCodec in_one_call(grad.size(), 0, 1, ""), in_segments(grad.size(), 8192, 2, "");
  const size_t survivors = in_one_call.Encode(grad, whole_residual, {}).survivors;
  EXPECT_EQ(in_segments.Encode(grad, parts_residual, {}).survivors, survivors);
  in_one_call.DecodeAdd(whole);
  in_segments.DecodeAdd(parts);
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(parts_residual, whole_residual);
}

}  // namespace
}  // namespace gradlane::perf
