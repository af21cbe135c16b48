// Two real processes over UCX: this test, and ucx_process_child that it starts.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/transport/ucx_process_end.h"

namespace gradlane {
namespace {

class UcxProcess : public testing::TestWithParam<FabricKind> {
 protected:
  void Start(const std::string& what) {
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    socket_ = sockets[0];
    std::string arguments[] = {GRADLANE_BIN_DIR "/ucx_process_child", std::to_string(sockets[1]), what,
                               GetParam().transports};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), arguments[3].data(), nullptr};
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      fcntl(sockets[1], F_SETFD, 0);
      execv(argv[0], argv);
      _exit(127);
    }
    close(sockets[1]);
  }

  int WaitForChild() {
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    child_ = -1;
    return status;
  }

  ~UcxProcess() override {
    if (socket_ >= 0) close(socket_);
    if (child_ > 0) {
      kill(child_, SIGKILL);
      WaitForChild();
    }
  }

  int socket_ = -1;
  pid_t child_ = -1;
};

std::vector<FabricKind> UcxKinds() {
  std::vector<FabricKind> kinds = AllFabricKinds();
  kinds.erase(kinds.begin());
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(All, UcxProcess, testing::ValuesIn(UcxKinds()),
                         [](const auto& info) { return info.param.name; });

// Given two processes / expect bytes to go there and back intact, each side asleep while it waits.
TEST_P(UcxProcess, BytesGoThereAndBack) {
  ASSERT_NO_FATAL_FAILURE(Start("echo"));
  End end(socket_, 0, GetParam().transports);
  ASSERT_EQ(end.error, "");
  if (GetParam().transports != "tcp") {
    EXPECT_NE(end.fabric->DescribePath(1).find("shared memory, one-sided put"), std::string::npos)
        << end.fabric->DescribePath(1);
  } else {
    EXPECT_NE(end.fabric->DescribePath(1).find("eager messages"), std::string::npos) << end.fabric->DescribePath(1);
  }
  for (uint32_t round = 0; round < kRounds; ++round) {
    const std::span<std::byte> source = end.source.bytes.subspan(0, round * 5003 % kSlotBytes);
    FillPattern(source, round);
    ASSERT_TRUE(end.fabric->PutNotify({1, source, {1, round % 2 * kSlotBytes}, round, 0}));
    for (bool sent = false, arrived = false; !sent || !arrived;) {
      const Event event = end.Next();
      ASSERT_NE(event.kind, EventKind::kFailed) << end.fabric->FailureOf(1).message;
      if (event.kind == EventKind::kSent) {
        sent = true;
        continue;
      }
      arrived = true;
      EXPECT_EQ(event.imm, round + 1000);
      EXPECT_EQ(event.payload.size(), source.size());
      EXPECT_TRUE(HasPattern(event.payload, round + 1000));
      end.fabric->Release(event.release);
    }
  }
  ASSERT_TRUE(SendText(socket_, "done"));
  const int status = WaitForChild();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Given a peer that is killed with puts under way / expect one kFailed with a sentence, and a destructor that ends.
TEST_P(UcxProcess, KilledPeerIsReported) {
  ASSERT_NO_FATAL_FAILURE(Start("die"));
  End end(socket_, 0, GetParam().transports);
  ASSERT_EQ(end.error, "");
  const std::span<std::byte> source = end.source.bytes.subspan(0, kSlotBytes);
  size_t outstanding = 0;
  Event event;
  const int64_t limit_ns = NowNs() + int64_t{kTestLimitMs} * 1'000'000;
  for (bool refused = false;;) {  // not reaping it yet: a zombie is dead enough
    ASSERT_LT(NowNs(), limit_ns) << "nobody noticed";
    while (!refused && outstanding < 8) {
      if (end.fabric->PutNotify({1, source, {1, 0}, 0, 0}))
        ++outstanding;
      else
        refused = true;
    }
    if (end.fabric->Poll({&event, 1}) == 0) {
      end.fabric->Wait(100);
    } else if (event.kind == EventKind::kSent) {
      --outstanding;
    } else if (event.kind == EventKind::kFailed) {
      break;
    }
  }
  EXPECT_EQ(event.peer, 1u);
  const Error failure = end.fabric->FailureOf(1);
  EXPECT_EQ(failure.code, ErrorCode::kPeerFailed);
  EXPECT_NE(failure.native_code, 0);
  EXPECT_NE(failure.message.find("Peer 1"), std::string::npos) << failure.message;
  RecordProperty("failure", failure.message);
  ASSERT_FALSE(end.fabric->PutNotify({1, source, {1, 0}, 0, 0}));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(end.fabric->Poll({&event, 1}), 0u);
  const int status = WaitForChild();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// Given messages longer than one tcp piece, held while more arrive / expect them intact until each Release.
TEST(UcxFabric, LongMessagesAreKeptUntilRelease) {
  constexpr size_t kBytes = (size_t{3} << 20) + 17;
  constexpr uint32_t kPuts = 4;
  UcxOptions options;
  options.transports = "tcp";
  options.max_put_bytes = size_t{4} << 20;
  FabricCluster cluster({"loopback"}, 2, {}, false);
  for (PeerId self = 0; self < 2; ++self) {
    Result<std::unique_ptr<Fabric>> fabric = OpenUcxFabric(options);
    ASSERT_TRUE(fabric);
    cluster.fabrics[self] = *std::move(fabric);
    cluster.regions[self].push_back(*cluster.fabrics[self]->Allocate(kPuts * kBytes));
    cluster.addresses[self] = *cluster.fabrics[self]->LocalAddress();
  }
  cluster.Connect();
  for (uint32_t i = 0; i < kPuts; ++i) {
    const std::span<std::byte> source = cluster.regions[0][0].bytes.subspan(i * kBytes, kBytes);
    FillPattern(source, i);
    ASSERT_TRUE(cluster.fabrics[0]->PutNotify({1, source, {0, i * kBytes}, i, i}));
  }
  ASSERT_TRUE(cluster.PollUntil([&] { return cluster.Count(1, EventKind::kArrived) == kPuts; }));
  for (const Event& event : cluster.events[1]) EXPECT_TRUE(HasPattern(event.payload, event.imm));
  cluster.ReleaseAll();
  const Result<void> put = cluster.fabrics[0]->PutNotify({1, cluster.regions[0][0].bytes, {0, 0}, 0, 0});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kInvalidArgument) << "longer than the fabric was opened for";
}

// Given transports that do not exist / expect an error that says so.
TEST(UcxFabric, UnknownTransportIsUnavailable) {
  UcxOptions options;
  options.transports = "carrier_pigeon";
  Result<std::unique_ptr<Fabric>> fabric = OpenUcxFabric(options);
  ASSERT_FALSE(fabric);
  EXPECT_EQ(fabric.error().code, ErrorCode::kUnavailable) << fabric.error().message;
}

// Given a peer that never connects / expect a timeout that names it.
TEST(UcxFabric, ConnectTimesOut) {
  FabricCluster cluster({"ucx", true, "tcp"}, 2, {4096}, false);
  Result<void> connected = cluster.fabrics[0]->Connect(0, cluster.addresses, 200);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kTimeout);
  EXPECT_NE(connected.error().message.find("peer 1"), std::string::npos) << connected.error().message;
}

// Given ends that were opened for different sizes / expect a mismatch that names both.
TEST(UcxFabric, DifferentLimitsAreAMismatch) {
  UcxOptions options;
  options.max_put_bytes = 4096;
  FabricCluster cluster({"ucx", true, "tcp"}, 2, {4096}, false);
  Result<std::unique_ptr<Fabric>> other = OpenUcxFabric(options);
  ASSERT_TRUE(other);
  cluster.addresses[1] = *(*other)->LocalAddress();
  Result<void> connected = cluster.fabrics[0]->Connect(0, cluster.addresses, 200);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kMismatch);
}

}  // namespace
}  // namespace gradlane
