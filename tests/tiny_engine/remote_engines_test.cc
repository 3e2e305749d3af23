// Engines in processes of their own: one computes, another pulls the blocks from it, and says what the model
// says without a cache, bit for bit.
#include <gtest/gtest.h>

#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/child_process.h"
#include "tiny_engine/engine_fixture.h"

namespace tiny_engine::testing {
namespace {

using ashlar::testing::ChildProcess;
using ashlar::testing::TestChannel;

constexpr std::uint64_t kSeed = 21;
constexpr std::size_t kRequests = 12;

EngineOptions engine_with_peers(std::uint32_t ranks, std::vector<std::string> peers) {
  EngineOptions options = small_engine();
  options.ranks = ranks;
  options.kv.g2 = tiers::TierShape{.block_count = 256};
  // A busy machine may take its time.
  options.kv.remote =
      tiers::RemoteShape{.own_agent = transfer::AgentOptions{.silence = std::chrono::minutes(2)},
                         .peers = std::move(peers),
                         .call_limit = std::chrono::minutes(1)};
  return options;
}

// The role of the child: computes, says where its ranks are, and how many tokens it computed.
int play_prefill(const TestChannel& channel, const std::vector<std::string>& words) {
  const auto engine = make_engine(engine_with_peers(static_cast<std::uint32_t>(std::stoul(words.at(0))), {}));
  serve(*engine, conversations(kSeed, kRequests));
  std::string said;
  for (std::uint32_t rank = 0; rank < engine->rank_count(); ++rank) {
    engine->kv(rank).drain();
    said += engine->kv(rank).remote()->agent().address() + " ";
  }
  if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) return 1;
  channel.send(std::as_bytes(std::span(said.data(), said.size())));
  while (channel.receive()) continue;
  return 0;
}

TEST(RemoteEnginesTest, TheTextIsTheSameWhereAnotherProcessComputed) {
  for (const std::uint32_t from : {1u, 2u})
    for (const std::uint32_t to : {1u, 2u}) {
      SCOPED_TRACE(std::to_string(from) + " ranks compute, " + std::to_string(to) + " pull");
      const ChildProcess prefill("prefill", {std::to_string(from)});
      const auto said = prefill.channel().receive();
      ASSERT_TRUE(said);
      std::vector<std::string> peers;
      std::string word;
      for (const std::byte one : *said) {
        if (one != std::byte{' '}) {
          word += static_cast<char>(one);
        } else {
          peers.push_back(std::exchange(word, {}));
        }
      }
      ASSERT_EQ(peers.size(), from);
      const auto decode = make_engine(engine_with_peers(to, peers));
      const std::vector<Request> requests = conversations(kSeed, kRequests);
      const std::vector<Reply> replies = serve(*decode, requests);
      ASSERT_EQ(replies.size(), requests.size());
      for (std::size_t i = 0; i < replies.size(); ++i)
        EXPECT_EQ(replies[i].cached_tokens, (requests[i].prompt.size() - 1) / 8 * 8) << "all full blocks";
      for (std::uint32_t rank = 0; rank < to; ++rank)
        EXPECT_GT(decode->kv(rank).status().remote->onboarded, 0u) << rank;
    }
}

}  // namespace
}  // namespace tiny_engine::testing

int main(int argc, char** argv) {
  return ashlar::testing::run_tests(argc, argv, {{"prefill", tiny_engine::testing::play_prefill}});
}
