// Redis as a volume of a KvBlockManager.
#include <gtest/gtest.h>

#include <string>

#include "ashlar/backend/redis/redis_volume.h"
#include "backend/redis/redis_server.h"
#include "c/volume_round_trip.h"
#include "tiers/rank_scenario.h"
#include "tiers/shard_scenario.h"
#include "tiers/volume/volume_tier_scenario.h"

namespace ashlar::backend::redis {
namespace {

using tiers::VolumeTier;

tiers::KvOptions tier_at_port(int port) {
  tiers::VolumeRegistry kinds = tiers::VolumeRegistry::with_builtin();
  kinds.add("redis", attach);
  return VolumeTier::options({{.name = "cache",
                               .kind = "redis",
                               .location = "127.0.0.1:" + std::to_string(port),
                               .options = {{"retries", "1"}, {"backoff_ms", "5"}, {"pipeline", "2"}}}},
                             std::move(kinds));
}

class RedisTierTest : public ::testing::Test {
 protected:
  void SetUp() override { ASHLAR_NEEDS_SERVER(RedisServer::is_installed(), "redis-server is missing"); }
};

TEST_F(RedisTierTest, BlocksGoToTheServerAndBack) {
  const RedisServer server;
  VolumeTier tier(tier_at_port(server.port()));
  expect_blocks_go_to_the_server_and_back(tier);
}

TEST_F(RedisTierTest, BlocksGoThereAndBackThroughTheCInterface) {
  const RedisServer server;
  testing::CVolumeRoundTrip("redis", "127.0.0.1:" + std::to_string(server.port()), {{"pipeline", "2"}}).run();
}

TEST_F(RedisTierTest, AForgedNameIsAMiss) {
  const RedisServer server;
  VolumeTier tier(tier_at_port(server.port()));
  expect_a_forged_name_is_a_miss(tier);
}

TEST_F(RedisTierTest, ADeadServerIsAMiss) {
  RedisServer server;
  VolumeTier tier(tier_at_port(server.port()));
  expect_a_dead_server_is_a_miss(tier, [&] { server.kill(); }, [&] { server.start(); });
}

TEST_F(RedisTierTest, AServerThatDiesInTheMiddleMakesNothingWrong) {
  for (const std::uint64_t bytes : {2'000, 15'000, 35'000, 60'000, 100'000}) {
    RedisServer server;
    const Proxy proxy(server.port(), bytes, [&] { server.kill(); });
    VolumeTier tier(tier_at_port(proxy.port()));
    expect_nothing_wrong_when_the_server_dies(tier);
    EXPECT_GT(tier.kv().status().volumes[0].failed, 0u) << "it died after " << bytes << " bytes";
  }
}

TEST_F(RedisTierTest, RanksOfOneModelReadTheirOwnBytes) {
  const RedisServer server;
  expect_ranks_read_their_own_bytes(tier_at_port(server.port()));
}

TEST_F(RedisTierTest, FleetsOfOtherDegreesReadEachOther) {
  const RedisServer server;
  expect_shards_across_degrees(tier_at_port(server.port()), tiers::many_degrees());
}

}  // namespace
}  // namespace ashlar::backend::redis
