// NodeProcess: another process with a KvBlockManager that shares its blocks, for tests of the remote tier. It
// does as it is told: stores sequences, once or all the time, reads and pushes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "support/child_process.h"
#include "tiers/kv_workload.h"
#include "tiers/shard_scenario.h"

namespace ashlar::tiers {

using NodeHashes = std::vector<tokens::SequenceHash>;

inline constexpr events::TierId kDeviceTier = events::kTierId<events::G1>;
inline constexpr events::TierId kHostTier = events::kTierId<events::G2>;
inline constexpr events::TierId kRemoteTier = events::kTierId<events::Remote>;

// The names of the random workload.
inline constexpr std::uint64_t kSequences = 8;
inline constexpr std::size_t kLength = 24;
inline NodeHashes random_sequence(Random& random, std::size_t blocks = kLength) {
  return KvWorkload::sequence(100 + random.below(kSequences), blocks);
}

// The transport of a node; null: the agent's own choice. The program that includes this says.
std::shared_ptr<transfer::RemoteTransport> node_transport();

inline KvOptions node_options(std::uint32_t blocks) {
  return {.model = KvWorkload::model(),
          .block_size = 4,
          .keys = tokens::NamespaceFingerprint::from_bits(7, 8),
          .g1 = {.block_count = blocks, .order = layout::order::kBlockSecondNhd},
          .g2 = TierShape{.block_count = blocks, .order = layout::order::kUniversalTp},
          .remote = RemoteShape{.own_agent = transfer::AgentOptions{.transport = node_transport()},
                                .block_count = 512,
                                .landing_blocks = 16,
                                .call_limit = std::chrono::seconds(60),  // who hangs is dead before that
                                .rest = Clock::Duration(0)}};
}

// Loops until it holds; the test's own time limit ends what never does.
template <class F>
void loop_until(F&& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  bool held = holds();
  for (; !held && std::chrono::steady_clock::now() < end; held = holds())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(held);
}

// Computes blocks; they stay in G2 only.
inline void store_in_g2(FleetRank& rank, const NodeHashes& hashes) {
  rank.store_in_g2(hashes);
}

// Reads a sequence from wherever it is, compares every byte, and forgets it. Returns how many blocks came.
inline std::size_t read_and_forget(FleetRank& rank, const NodeHashes& hashes) {
  const std::size_t read = rank.onboard(hashes);
  static_cast<void>(rank.kv().reset(kDeviceTier));
  static_cast<void>(rank.kv().reset(kHostTier));
  return read;
}

struct NodeWords {
  std::uint32_t ranks = 1;
  std::uint32_t rank = 0;
  std::uint32_t blocks = 48;
  std::string listen = "127.0.0.1:0";
  std::string advertise = {};
  std::int64_t lease_ms = 30'000;
  std::uint64_t seed = 1;

  std::vector<std::string> encode() const {
    return {std::to_string(ranks),    std::to_string(rank), std::to_string(blocks), listen, advertise,
            std::to_string(lease_ms), std::to_string(seed)};
  }
  static NodeWords decode(const std::vector<std::string>& words) {
    const auto number = [&](std::size_t i) { return static_cast<std::uint32_t>(std::stoul(words.at(i))); };
    return {number(0), number(1), number(2), words.at(3), words.at(4), std::stoll(words.at(5)), number(6)};
  }
};

// What a child does all the time, until it is told otherwise.
class BusyThread {
 public:
  ~BusyThread() { stop(); }
  template <class F>
  void start(F&& turn) {
    stop();
    stopping_ = false;
    thread_ = std::thread([this, turn = std::forward<F>(turn)]() mutable {
      while (!stopping_) turn();
    });
  }
  void stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// The role of the child.
inline int play_node(const testing::TestChannel& channel, const std::vector<std::string>& encoded) {
  const NodeWords words = NodeWords::decode(encoded);
  const ShardedModel model;
  KvOptions options = node_options(words.blocks);
  transfer::AgentOptions agent_options = *std::exchange(options.remote->own_agent, {});
  agent_options.listen = words.listen;
  agent_options.advertise = words.advertise;
  options.remote->lease = std::chrono::milliseconds(words.lease_ms);
  options.remote->renew = options.remote->lease / 3;
  // The port of a process that was just killed may be busy for a moment.
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (;;) {
    auto agent = transfer::RemoteAgent::create(agent_options);
    if (agent) {
      options.remote->agent = *std::move(agent);
      break;
    }
    if (std::chrono::steady_clock::now() >= end) return 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FleetRank rank(model, options, model.fleet(words.ranks)[words.rank]);
  RemoteNode& remote = *rank.kv().remote();
  Random random(words.seed);
  const std::size_t longest = std::min<std::size_t>(kLength, words.blocks);
  std::optional<RemoteBlocks> held;
  std::shared_ptr<transfer::RemotePeer> peer;
  // A connection that broke a moment ago may still look alive.
  std::string home;
  const auto connect = [&] {
    loop_until([&] {
      const auto connected = remote.connect(home);
      if (connected) peer = *connected;
      return connected.has_value();
    });
  };
  BusyThread busy;
  const auto say = [&](const std::string& text) {
    return channel.send(std::as_bytes(std::span(text.data(), text.size())));
  };
  say(remote.agent().address());
  while (const auto message = channel.receive(-1)) {
    std::istringstream in(std::string(reinterpret_cast<const char*>(message->data()), message->size()));
    std::string order;
    std::uint64_t number = 0;
    std::size_t count = 0;
    in >> order;
    std::string answer = "done";
    if (order == "store") {
      in >> number >> count;
      store_in_g2(rank, KvWorkload::sequence(number, count));
    } else if (order == "write") {  // and evict, all the time
      busy.start([&] {
        store_in_g2(rank, random_sequence(random, 1 + random.below(longest)));
        if (random.below(16) == 0) static_cast<void>(rank.kv().reset(kHostTier));
      });
    } else if (order == "evict") {  // the same without a reset, which ends leases
      busy.start([&] { store_in_g2(rank, random_sequence(random, 1 + random.below(longest))); });
    } else if (order == "connect") {
      in >> home;
      connect();
    } else if (order == "hold") {
      in >> number >> count;
      loop_until([&] {
        auto got = remote.get_remote_blocks(peer->identity(), KvWorkload::sequence(number, count));
        if (got) held = *std::move(got);
        if (!got) connect();
        return got.has_value();
      });
    } else if (order == "read") {
      busy.start([&] { read_and_forget(rank, random_sequence(random)); });
    } else if (order == "push") {
      busy.start([&] {
        const NodeHashes hashes = random_sequence(random, 1 + random.below(12));
        store_in_g2(rank, hashes);
        static_cast<void>(remote.push(peer->identity(), hashes));
      });
    } else if (order == "stop") {
      busy.stop();
      held.reset();
    } else if (order == "status") {
      const RemoteStatus status = remote.status();
      answer = std::to_string(status.leases) + " " + std::to_string(status.renewed);
    } else if (order == "export") {
      if (!channel.send(remote.export_blockset().value())) break;
      continue;
    } else if (order == "check") {  // every EXPECT of this process so far, too
      rank.expect_counts_exact();
      const bool failed = ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
      answer = failed ? "wrong" : "right";
    }
    if (!say(answer)) break;
  }
  return 0;
}

class NodeProcess {
 public:
  explicit NodeProcess(const NodeWords& words = {}) : child_("node", words.encode()) {
    address_ = heard();
    EXPECT_NE(address_, "") << "the node did not start";
  }

  const std::string& address() const noexcept { return address_; }
  const testing::ChildProcess& process() const noexcept { return child_; }
  void kill() { child_.kill(); }
  std::vector<std::byte> ask_bytes(const std::string& order) {
    EXPECT_TRUE(child_.channel().send(std::as_bytes(std::span(order.data(), order.size()))));
    const auto answer = child_.channel().receive();
    EXPECT_TRUE(answer) << "the node does not answer: " << order;
    return answer.value_or(std::vector<std::byte>());
  }
  std::string ask(const std::string& order) {
    const std::vector<std::byte> bytes = ask_bytes(order);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // Leases and renewals.
  std::pair<std::uint64_t, std::uint64_t> status() {
    std::istringstream in(ask("status"));
    std::pair<std::uint64_t, std::uint64_t> out;
    in >> out.first >> out.second;
    return out;
  }
  // Stops what it does; then nothing may be held, and nothing may have been wrong.
  void expect_right() {
    ask("stop");
    loop_until([&] { return status().first == 0; });
    EXPECT_EQ(ask("check"), "right");
  }

 private:
  std::string heard() {
    const auto said = child_.channel().receive();
    return said ? std::string(reinterpret_cast<const char*>(said->data()), said->size()) : "";
  }

  testing::ChildProcess child_;
  std::string address_;
};

}  // namespace ashlar::tiers
