#include "ps/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/fec.h"
#include "ps/message.h"
#include "trainer/model.h"

namespace gradlane {
namespace {

Job JobOf(const std::string& model, ImageShape image, int num_classes) {
  Job job;
  const auto tensors = ModelTensors(model, image, num_classes);
  EXPECT_TRUE(tensors) << tensors.error().message;
  for (const TensorSpec& spec : *tensors) job.tensors.push_back({spec.name, spec.NumElems(), spec.layer, spec.decay});
  return job;
}

class LayoutOfLargeModels : public testing::TestWithParam<std::string> {};

TEST_P(LayoutOfLargeModels, GivenSeveralServersTheirLoadIsEvenWithin5Percent) {
  const Job job = JobOf(GetParam(), {3, 224, 224}, 1000);
  for (uint32_t servers : {1u, 2u, 3u, 5u, 8u, 16u}) {
    const auto layout = Layout::Make(job, {4, servers});
    ASSERT_TRUE(layout);
    std::vector<uint64_t> load(servers, 0);
    for (const Segment& segment : layout->segments()) load[segment.server] += segment.RawBytes();
    const double mean = double(layout->raw_bytes()) / servers;
    EXPECT_LE(double(*std::ranges::max_element(load)), mean * 1.05) << servers << " servers";
    EXPECT_GE(double(*std::ranges::min_element(load)), mean * 0.95) << servers << " servers";
  }
}
INSTANTIATE_TEST_SUITE_P(, LayoutOfLargeModels, testing::Values("resnet50", "vgg16"));

TEST(Layout, GivenAnyNumberOfServersTheSegmentsAreTheSame) {
  const Job job = JobOf("lenet5", {1, 28, 28}, 10);
  const auto one = Layout::Make(job, {2, 1});
  const auto three = Layout::Make(job, {2, 3});
  ASSERT_TRUE(one && three);
  ASSERT_EQ(one->num_segments(), three->num_segments());
  for (uint32_t s = 0; s < one->num_segments(); ++s) {
    EXPECT_EQ(one->segments()[s].flat_elem, three->segments()[s].flat_elem);
    EXPECT_EQ(one->segments()[s].num_elems, three->segments()[s].num_elems);
  }
}

TEST(Layout, GivenAModelEverySegmentLiesInItsOwnPlace) {
  const Job job = JobOf("resnet20", {3, 32, 32}, 10);
  const auto layout = Layout::Make(job, {2, 3});
  ASSERT_TRUE(layout);
  uint64_t flat_end = 0, slot_end = 0;
  std::vector<uint64_t> server_elem_end(3, 0), server_slot_end(3, 0);
  uint32_t layer = 0;
  for (const Segment& s : layout->segments()) {
    EXPECT_GE(s.flat_elem, flat_end);
    flat_end = s.flat_elem + s.num_elems;
    EXPECT_GE(s.slot_offset_bytes, slot_end);
    slot_end = s.slot_offset_bytes + s.slot_bytes;
    EXPECT_GE(s.slot_bytes, std::max(s.RawBytes(), fec::Bound(s.num_elems)));
    EXPECT_GE(s.server_elem, server_elem_end[s.server]);
    server_elem_end[s.server] = s.server_elem + s.num_elems;
    EXPECT_GE(s.server_slot_bytes, server_slot_end[s.server]);
    server_slot_end[s.server] = s.server_slot_bytes + s.slot_bytes;
    EXPECT_EQ(s.flat_elem % 16, 0u);
    EXPECT_EQ(s.server_elem % 16, 0u);
    EXPECT_GE(s.layer, layer);
    layer = s.layer;
  }
  EXPECT_LE(flat_end, layout->flat_elems());
  EXPECT_LE(slot_end, layout->slots_bytes());
  for (uint32_t server = 0; server < 3; ++server) {
    EXPECT_LE(server_elem_end[server], layout->ServerElems(server));
    EXPECT_LE(server_slot_end[server], layout->ServerSlotsBytes(server));
  }
  uint64_t elems = 0;
  for (const JobTensor& tensor : job.tensors) elems += tensor.num_elems;
  EXPECT_EQ(layout->raw_bytes(), elems * sizeof(float));
}

TEST(Layout, GivenNoServerItIsRefused) {
  const auto layout = Layout::Make(JobOf("mlp", {1, 28, 28}, 10), {2, 0});
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, ErrorCode::kInvalidArgument);
}

TEST(Message, GivenAnyMessageItSurvivesPacking) {
  for (const Message message : {Message{0, 0, MessageKind::kData}, Message{kMaxSegments - 1, 255, MessageKind::kInit},
                                Message{1234, 77, MessageKind::kNonFinite}, Message{5, 2, MessageKind::kRaw}}) {
    EXPECT_EQ(Unpack(Pack(message)), message);
  }
}

}  // namespace
}  // namespace gradlane
