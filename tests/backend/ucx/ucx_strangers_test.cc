// Who reaches the transport, and what becomes of those who are not peers.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/transfer/remote_agent.h"
#include "backend/ucx/context.h"
#include "backend/ucx/framing.h"
#include "backend/ucx/ucx_library.h"
#include "base/owned_fd.h"

namespace ashlar::backend::ucx {
namespace {

using ::testing::HasSubstr;

sockaddr_in place(const char* host, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  inet_pton(AF_INET, host, &out.sin_addr);
  return out;
}

bool is_listened_at(const char* host, std::uint16_t port) {
  const OwnedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in there = place(host, port);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0;
}

std::shared_ptr<transfer::RemoteAgent> agent_over(const std::shared_ptr<UcxTransport>& transport,
                                                  const std::string& listen) {
  return transfer::RemoteAgent::create(
             {.listen = listen, .transport = transport, .silence = std::chrono::minutes(2)})
      .value();
}

TEST(UcxStrangersTest, TheTransportOfAnAgentIsReachedWhereTheAgentIs) {
  const auto transport = UcxTransport::create({}).value();
  EXPECT_TRUE(is_listened_at("127.0.0.3", decode_address(transport->address()).value().port));
  const auto agent = agent_over(transport, "127.0.0.1:0");
  const WorkerAddress address = decode_address(transport->address()).value();
  EXPECT_EQ(address.hosts, "127.0.0.1");
  EXPECT_TRUE(is_listened_at("127.0.0.1", address.port));
  EXPECT_FALSE(is_listened_at("127.0.0.2", address.port));
  EXPECT_FALSE(is_listened_at("127.0.0.3", address.port));
  // Peers reach it, and others at the same host may share it.
  const auto other =
      agent_over(UcxTransport::create({.connect_limit = std::chrono::minutes(2)}).value(), "127.0.0.1:0");
  const auto peer =
      other->connect(agent->address(), {.deadline = Clock::real().now() + std::chrono::minutes(2)});
  EXPECT_TRUE(peer);
  EXPECT_TRUE(transport->listen_at("127.0.0.1"));
  EXPECT_TRUE(transport->listen_at("0.0.0.0"));
  EXPECT_EQ(decode_address(transport->address()).value().port, address.port);
  const auto elsewhere = transfer::RemoteAgent::create({.listen = "127.0.0.4:0", .transport = transport});
  ASSERT_FALSE(elsewhere);
  EXPECT_THAT(elsewhere.error().message(), HasSubstr("listens at 127.0.0.1 for another agent"));
}

// A client of UCX that connects, and asks nothing.
class MuteClient {
 public:
  explicit MuteClient(std::uint16_t port)
      : worker_(UcxWorker::create(UcxContext::create({}).value()).value()) {
    const sockaddr_in there = place("127.0.0.1", port);
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                            UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    parameters.err_handler = {lost, this};
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    parameters.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    parameters.sockaddr = {reinterpret_cast<const sockaddr*>(&there), sizeof there};
    ucp_ep_h endpoint = nullptr;
    EXPECT_EQ(ucx().ucp_ep_create(worker_->handle(), &parameters, &endpoint), UCS_OK);
  }
  bool is_lost() {
    worker_->progress();
    return lost_;
  }

 private:
  static void lost(void* user, ucp_ep_h, ucs_status_t) { static_cast<MuteClient*>(user)->lost_ = true; }

  std::unique_ptr<UcxWorker> worker_;
  bool lost_ = false;
};

TEST(UcxStrangersTest, AClientThatAsksNothingIsDisconnected) {
  const auto transport = UcxTransport::create({.reply_limit = std::chrono::milliseconds(50)}).value();
  const std::uint16_t port = decode_address(transport->address()).value().port;
  std::vector<std::unique_ptr<MuteClient>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(std::make_unique<MuteClient>(port));
  // The time limit of the test ends what never comes.
  for (const auto& client : clients)
    while (!client->is_lost()) std::this_thread::yield();
}

}  // namespace
}  // namespace ashlar::backend::ucx
