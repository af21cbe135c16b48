#include "ps/send_queue.h"

#include <gtest/gtest.h>

#include <memory>

#include "transport/loopback_fabric.h"

namespace gradlane {
namespace {

TEST(SendQueue, GivenAPeerFoundDeadByThePutItselfItIsNamed) {
  const auto hub = LoopbackHub::Create(2);
  const std::unique_ptr<Fabric> server = hub->Open(0);
  const std::unique_ptr<Fabric> worker = hub->Open(1);
  ASSERT_TRUE(server->Allocate(64));
  const Result<Region> source = worker->Allocate(64);
  ASSERT_TRUE(source);
  ASSERT_TRUE(worker->Connect(1, std::vector<std::string>{*server->LocalAddress(), *worker->LocalAddress()}, 1000));
  SendQueue queue(*worker, {1, 1}, SendPolicy::kPreemptive, {{0, 0}}, 1, 64, nullptr);
  queue.Push(0);

  hub->Kill(0);  // and nobody has polled since
  const Result<bool> posted = queue.PostOne([&](uint32_t) -> Result<Outgoing> {
    return Outgoing{.peer = 0, .source = source->bytes, .slot = {0, 0}, .message = {0, 1, MessageKind::kData}};
  });

  ASSERT_FALSE(posted);
  EXPECT_EQ(posted.error().code, ErrorCode::kPeerFailed);
  EXPECT_EQ(posted.error().message.find("lost server 0: "), 0u) << posted.error().message;
}

}  // namespace
}  // namespace gradlane
