#include "transport/ucx_address.h"

#include <gtest/gtest.h>

#include "transport/ucx_wire.h"

namespace gradlane {
namespace {

UcxAddress Example() {
  UcxAddress address;
  address.token = 0x0123456789abcdef;
  address.ucx_version = 1 << 16 | 13;
  address.max_put_bytes = 1 << 20;
  address.host = "host";
  address.process = 17;
  address.started = 99;
  address.worker = "worker";
  address.regions = {{0x1000, 4096, "key one"}, {0x20000, 1 << 30, "k"}};
  return address;
}

TEST(UcxAddress, ComesBack) {
  Result<UcxAddress> parsed = ParseUcxAddress(PackUcxAddress(Example()));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->token, 0x0123456789abcdefu);
  EXPECT_EQ(parsed->worker, "worker");
  EXPECT_EQ(parsed->host, "host");
  EXPECT_EQ(parsed->process, 17u);
  EXPECT_EQ(parsed->started, 99u);
  ASSERT_EQ(parsed->regions.size(), 2u);
  EXPECT_EQ(parsed->regions[1].bytes, uint64_t{1} << 30);
  EXPECT_EQ(parsed->regions[0].rkey, "key one");
}

TEST(UcxAddress, CutOrChangedIsAnError) {
  const std::string good = PackUcxAddress(Example());
  for (size_t length = 0; length < good.size(); ++length) EXPECT_FALSE(ParseUcxAddress(good.substr(0, length)));
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      EXPECT_FALSE(ParseUcxAddress(bad)) << at << " " << bit;
    }
  }
}

// Given a region that wraps around the address space / expect an error although the checksum is right.
TEST(UcxAddress, WrappingRegionIsAnError) {
  UcxAddress address = Example();
  address.regions[0].base = ~uint64_t{0} - 10;
  EXPECT_FALSE(ParseUcxAddress(PackUcxAddress(address)));
}

// Given what UCX 1.13 prints of endpoints / expect the path that it can carry.
TEST(UcxPath, IsChosenByLanes) {
  const std::string shm =
      "#                 lane[0]:  4:sysv/memory.0 md[2]           -> md[2]/sysv/sysdev[255] rma_bw#0 am am_bw#0\n"
      "#                 lane[1]:  6:cma/memory.0 md[4]            -> md[4]/cma/sysdev[255] rma_bw#1\n#\n"
      "#                 am_send: 0..<egr/short>..92..<egr/bcopy>..(inf)\n"
      "#                  put[0]: 0..<short>..4294967295..<zcopy>..(inf)\n";
  EXPECT_EQ(ChooseUcxPath(shm, true).method, UcxMethod::kPut);
  EXPECT_EQ(ChooseUcxPath(shm, true).description, "shared memory, one-sided put (sysv/memory)");
  EXPECT_EQ(ChooseUcxPath(shm, false).method, UcxMethod::kMessages) << "memory that is not mapped here";

  const std::string tcp =
      "#                 lane[0]:  1:tcp/eth0.0 md[1]              -> md[1]/tcp/sysdev[255] rma_bw#0 am am_bw#0 "
      "wireup\n";
  EXPECT_EQ(ChooseUcxPath(tcp, false).method, UcxMethod::kMessages);
  EXPECT_EQ(ChooseUcxPath(tcp, false).description, "tcp/eth0, eager messages (UCX emulates put here)");

  const std::string rc =
      "#                 lane[0]:  3:rc_mlx5/mlx5_0:1.0 md[3]      -> md[3]/ib/sysdev[1] rma_bw#0 am am_bw#0\n"
      "#                  put[0]: 0..<short>..220..<bcopy>..8192..<zcopy>..(inf)\n";
  EXPECT_EQ(ChooseUcxPath(rc, false).method, UcxMethod::kPutFlushNotice);
  EXPECT_EQ(ChooseUcxPath(rc, false).description, "RDMA, one-sided put, flushed before its notice (rc_mlx5/mlx5_0:1)");

  for (const char* odd : {"", "lane[", " lane[x]: a", " lane[0]: /", " put[0]", " put[9999999999]: x", " lane[0]:/."}) {
    EXPECT_EQ(ChooseUcxPath(odd, true).method, UcxMethod::kMessages) << odd;
  }
}

}  // namespace
}  // namespace gradlane
