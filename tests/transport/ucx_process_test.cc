// Two real processes over UCX: this test starts its own binary again as the other one.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/transport/fabric_cluster.h"

namespace gradlane {
namespace {

constexpr const char* kChildVariable = "GRADLANE_TEST_UCX_CHILD";  // "<socket> <what> <transports>"
constexpr size_t kSlotBytes = 300'000;
constexpr uint32_t kRounds = 50;

bool SendText(int socket, const std::string& text) {
  const uint32_t bytes = static_cast<uint32_t>(text.size());
  if (write(socket, &bytes, sizeof(bytes)) != sizeof(bytes)) return false;
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = write(socket, text.data() + at, text.size() - at);
    if (written <= 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

std::string ReceiveText(int socket) {
  uint32_t bytes = 0;
  if (recv(socket, &bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes)) return {};
  std::string text(bytes, '\0');
  return recv(socket, text.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes) ? text : std::string();
}

// One end: peer `self` of two, connected through the socket.
struct End {
  std::unique_ptr<Fabric> fabric;
  Region source, slots;
  std::string error;

  End(int socket, PeerId self, const std::string& transports) {
    UcxOptions options;
    options.transports = transports;
    Result<std::unique_ptr<Fabric>> opened = OpenUcxFabric(options);
    if (!opened) {
      error = opened.error().message;
      return;
    }
    fabric = *std::move(opened);
    source = *fabric->Allocate(2 * kSlotBytes);
    slots = *fabric->Allocate(2 * kSlotBytes);
    const std::string mine = *fabric->LocalAddress();
    if (!SendText(socket, mine)) error = "the other process is gone";
    const std::string theirs = ReceiveText(socket);
    const std::string addresses[] = {self == 0 ? mine : theirs, self == 0 ? theirs : mine};
    if (Result<void> connected = fabric->Connect(self, addresses, kTestLimitMs); !connected)
      error = connected.error().message;
  }

  // Sleeps in Wait until an event comes.
  Event Next() {
    Event event;
    const int64_t limit_ns = NowNs() + int64_t{kTestLimitMs} * 1'000'000;
    while (fabric->Poll({&event, 1}) == 0) {
      if (NowNs() > limit_ns) return {.kind = EventKind::kFailed, .imm = 0xdead};
      fabric->Wait(1000);
    }
    return event;
  }
};

// What the other process does; its exit code.
int RunChild(int socket, const std::string& what, const std::string& transports) {
  End end(socket, 1, transports);
  if (!end.error.empty()) {
    std::fprintf(stderr, "child: %s\n", end.error.c_str());
    return 3;
  }
  if (what == "die") {
    while (end.Next().kind != EventKind::kArrived) {
    }
    raise(SIGKILL);
  }
  for (uint32_t round = 0; round < kRounds;) {  // gives every payload back, one byte longer in its seed
    const Event event = end.Next();
    if (event.kind == EventKind::kFailed) return 4;
    if (event.kind == EventKind::kSent) continue;
    if (!HasPattern(event.payload, event.imm)) return 5;
    const std::span<std::byte> source = end.source.bytes.subspan(round % 2 * kSlotBytes, event.payload.size());
    FillPattern(source, event.imm + 1000);
    end.fabric->Release(event.release);
    if (!end.fabric->PutNotify({0, source, {1, round % 2 * kSlotBytes}, event.imm + 1000, 0})) return 6;
    ++round;
  }
  // The sender must not leave before its last bytes were taken.
  return ReceiveText(socket) == "done" ? 0 : 7;
}

// Only run by the other process.
TEST(UcxProcessChild, DISABLED_Run) {
  const char* job = std::getenv(kChildVariable);
  ASSERT_NE(job, nullptr);
  int socket = -1;
  char what[16] = "", transports[64] = "";
  ASSERT_GE(std::sscanf(job, "%d %15s %63s", &socket, what, transports), 2);
  _exit(RunChild(socket, what, transports));
}

class UcxProcess : public testing::TestWithParam<FabricKind> {
 protected:
  void Start(const std::string& what) {
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    socket_ = sockets[0];
    const std::string job =
        std::string(kChildVariable) + "=" + std::to_string(sockets[1]) + " " + what + " " + GetParam().transports;
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    environment.push_back(const_cast<char*>(job.c_str()));
    environment.push_back(nullptr);
    std::string arguments[] = {"transport_test", "--gtest_also_run_disabled_tests",
                               "--gtest_filter=UcxProcessChild.DISABLED_Run"};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      fcntl(sockets[1], F_SETFD, 0);
      execve("/proc/self/exe", argv, environment.data());
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
