// Nodes of the remote tier in one process, and what their tests say in one word.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/tiers/kv_block_manager.h"
#include "base/owned_fd.h"
#include "tiers/kv_workload.h"
#include "tiers/shard_scenario.h"

namespace ashlar::tiers::remote {

using Hashes = std::vector<tokens::SequenceHash>;

inline constexpr events::TierId kRemote = events::kTierId<events::Remote>;
inline constexpr events::TierId kHost = events::kTierId<events::G2>;

inline KvOptions node(std::vector<std::string> peers = {}, std::uint32_t blocks = 64) {
  return {.model = KvWorkload::model(),
          .block_size = 4,
          .keys = tokens::NamespaceFingerprint::from_bits(7, 8),
          .g1 = {.block_count = blocks, .order = layout::order::kBlockSecondNhd},
          .g2 = TierShape{.block_count = blocks, .order = layout::order::kUniversalTp},
          // A busy machine is slow, not dead.
          .remote = RemoteShape{.own_agent = transfer::AgentOptions{.silence = std::chrono::minutes(2),
                                                                    .call_limit = std::chrono::minutes(2)},
                                .block_count = 256,
                                .peers = std::move(peers),
                                .landing_blocks = 16,
                                .call_limit = std::chrono::seconds(60),
                                .rest = Clock::Duration(0),
                                .patience = std::chrono::seconds(60)}};
}

inline std::string address(KvBlockManager& kv) {
  return kv.remote()->agent().address();
}
inline std::string address(FleetRank& rank) {
  return address(rank.kv());
}

// Loops until it holds; the test's own time limit ends what never does.
template <class F>
void eventually(F&& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!holds() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(holds());
}

// Computes blocks; they stay in G2 only.
inline void store(FleetRank& rank, const Hashes& hashes) {
  rank.store_in_g2(hashes);
}

inline FleetRank rank_of(const ShardedModel& model, const layout::Shard& shard,
                         std::vector<std::string> peers = {}) {
  return FleetRank(model, node(std::move(peers)), shard);
}
inline const ShardedModel kModel = {};
inline layout::Shard undivided() {
  return kModel.fleet(1)[0];
}

// An address at which nobody answers. At first connections are refused; after listen() they are made, and
// nothing is ever said over them, until this is destroyed.
class SilentPlace {
 public:
  SilentPlace() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;  // an agent may listen here in its place
    EXPECT_EQ(::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    sockaddr_in here = {};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof here;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&here), sizeof here), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&here), &length), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(here.sin_port));
  }
  void listen() { EXPECT_EQ(::listen(fd_.get(), 64), 0); }
  // Waits for a connection, and holds it.
  void accept() {
    held_.emplace_back(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(held_.back().valid());
  }
  // Connections that were made by now and not accepted yet.
  std::size_t waiting() {
    std::size_t count = 0;
    pollfd one = {fd_.get(), POLLIN, 0};
    for (; ::poll(&one, 1, 0) == 1; ++count) accept();
    return count;
  }
  const std::string& address() const noexcept { return address_; }

 private:
  OwnedFd fd_;
  std::vector<OwnedFd> held_;
  std::string address_;
};

// A node whose one thread for requests a test can hold: an owner that answers nothing, a reader that hears no
// withdrawal.
class HeldNode {
  static constexpr std::uint16_t kHold = 98;
  std::latch inside_{1};
  std::latch open_{1};
  std::shared_ptr<transfer::RemoteAgent> agent_;
  transfer::RemoteOffer gate_;

 public:
  explicit HeldNode(KvOptions options)
      : agent_(transfer::RemoteAgent::create({.silence = std::chrono::minutes(2), .handler_threads = 1})
                   .value()) {
    options.remote->own_agent.reset();
    options.remote->agent = agent_;
    rank = std::make_unique<FleetRank>(kModel, options, undivided());
    gate_ = agent_
                ->serve(kHold,
                        [this](const auto&, auto) -> Result<std::vector<std::byte>> {
                          inside_.count_down();
                          open_.wait();
                          return std::vector<std::byte>();
                        })
                .value();
  }
  // By a message of a peer of it.
  void hold(FleetRank& from) {
    const auto peer = from.kv().remote()->agent().connect(agent_->address());
    ASSERT_TRUE(peer) << peer.error();
    ASSERT_TRUE((*peer)->notify(kHold, {}));
    inside_.wait();
  }
  void go_on() { open_.count_down(); }

  std::unique_ptr<FleetRank> rank;
};

inline std::vector<Miss> misses_of(const OnboardHandle& call) {
  std::vector<Miss> out;
  for (const BlockOutcome& block : call.blocks()) out.push_back(block.miss);
  return out;
}

}  // namespace ashlar::tiers::remote
