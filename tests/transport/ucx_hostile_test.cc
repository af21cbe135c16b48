// Messages that no Gradlane would send, from a plain UCX program that knows a fabric's address.
#include <ucp/api/ucp.h>

#include <cstring>

#include "tests/transport/fabric_cluster.h"
#include "transport/ucx_address.h"
#include "transport/ucx_wire.h"

namespace gradlane {
namespace {

// Sends arbitrary bytes as an active message.
class PlainSender {
 public:
  explicit PlainSender(const UcxAddress& address) {
    ucp_config_t* config = nullptr;
    EXPECT_EQ(ucp_config_read(nullptr, nullptr, &config), UCS_OK);
    EXPECT_EQ(ucp_config_modify(config, "TLS", "tcp"), UCS_OK);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    EXPECT_EQ(ucp_init(&params, config, &context_), UCS_OK);
    ucp_config_release(config);
    ucp_worker_params_t worker_params{};
    EXPECT_EQ(ucp_worker_create(context_, &worker_params, &worker_), UCS_OK);
    ucp_ep_params_t endpoint_params{};
    endpoint_params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    endpoint_params.address = reinterpret_cast<const ucp_address_t*>(address.worker.data());
    endpoint_params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    endpoint_params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    EXPECT_EQ(ucp_ep_create(worker_, &endpoint_params, &endpoint_), UCS_OK);
  }
  ~PlainSender() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint_, &param);
    while (UCS_PTR_IS_PTR(closing) && ucp_request_check_status(closing) == UCS_INPROGRESS) ucp_worker_progress(worker_);
    if (UCS_PTR_IS_PTR(closing)) ucp_request_free(closing);
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  void Send(const void* header, size_t header_bytes, std::string_view data, FabricCluster& cluster) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint_, kUcxMessageId, header, header_bytes, data.data(), data.size(), &param);
    EXPECT_FALSE(UCS_PTR_IS_ERR(request));
    EXPECT_TRUE(cluster.PollUntil([&] {
      ucp_worker_progress(worker_);
      return !UCS_PTR_IS_PTR(request) || ucp_request_check_status(request) != UCS_INPROGRESS;
    }));
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

class UcxHostile : public testing::Test {
 protected:
  UcxHostile()
      : cluster_({"ucx", true, "tcp"}, 3, {4096}),
        address_(*ParseUcxAddress(cluster_.addresses[0])),
        sender_(address_) {
    good_.kind = UcxKind::kMessage;
    good_.token = address_.token;
    good_.from = 1;
    good_.payload_bytes = 4;
  }

  void Send(const UcxHeader& header, std::string_view data) { sender_.Send(&header, sizeof(header), data, cluster_); }

  // A put by the honest peer 2 still arrives, after everything sent before was taken in.
  void ExpectAlive(size_t arrivals) {
    ASSERT_TRUE(cluster_.fabrics[2]->PutNotify({0, {}, {0, 0}, 777, 0}));
    ASSERT_TRUE(cluster_.PollUntil([&] {
      for (const Event& event : cluster_.events[0]) {
        if (event.kind == EventKind::kArrived && event.imm == 777) return true;
      }
      return false;
    }));
    EXPECT_EQ(cluster_.Count(0, EventKind::kArrived), arrivals + 1);
  }

  FabricCluster cluster_;
  const UcxAddress address_;
  PlainSender sender_;
  UcxHeader good_;
};

// Given messages that bear no peer's name or not this fabric's token / expect them to be dropped, nobody to be blamed.
TEST_F(UcxHostile, StraysAreDropped) {
  sender_.Send("x", 1, "", cluster_);
  sender_.Send(&good_, sizeof(good_) - 1, "data", cluster_);
  UcxHeader header = good_;
  header.token ^= 1;
  Send(header, "data");
  header = good_;
  header.magic = 0;
  Send(header, "data");
  for (const PeerId from : {PeerId{0}, PeerId{3}, PeerId{0xffffffff}}) {
    header = good_;
    header.from = from;
    Send(header, "data");
  }
  Send(good_, "data");  // the one that a peer might have sent
  ASSERT_TRUE(cluster_.PollUntil([&] { return cluster_.Count(0, EventKind::kArrived) == 1; }));
  ExpectAlive(1);
  EXPECT_EQ(cluster_.Count(0, EventKind::kFailed), 0u);
  EXPECT_NE(cluster_.fabrics[0]->Describe().find("7 stray messages"), std::string::npos)
      << cluster_.fabrics[0]->Describe();
  cluster_.ReleaseAll();
}

// Given a peer's message with each field wrong in turn / expect that peer to fail with a sentence, others to live on.
class UcxMalformed : public UcxHostile, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Fields, UcxMalformed, testing::Range(0, 8));

TEST_P(UcxMalformed, FailsThePeerThatSentIt) {
  UcxHeader header = good_;
  switch (GetParam()) {
    case 0:
      header.region = 1;
      break;
    case 1:
      header.region = 0xffffffff;
      break;
    case 2:
      header.offset_bytes = 4093;
      break;
    case 3:
      header.offset_bytes = ~uint64_t{0};
      break;
    case 4:
      header.payload_bytes = ~uint64_t{0};
      break;
    case 5:
      header.payload_bytes = 5;
      break;
    case 6:
      header.kind = static_cast<UcxKind>(9);
      break;
    case 7:
      header.kind = UcxKind::kNotice;
      break;  // with data
  }
  Send(header, "data");
  ASSERT_TRUE(cluster_.PollUntil([&] { return cluster_.Count(0, EventKind::kFailed) == 1; }));
  const Error failure = cluster_.fabrics[0]->FailureOf(1);
  EXPECT_EQ(failure.code, ErrorCode::kMalformed);
  EXPECT_NE(failure.message.find("Peer 1"), std::string::npos) << failure.message;
  ExpectAlive(0);
}

}  // namespace
}  // namespace gradlane
