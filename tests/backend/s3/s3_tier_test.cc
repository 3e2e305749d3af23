// S3 as a volume of a KvBlockManager.
#include <gtest/gtest.h>

#include <string>

#include "ashlar/backend/s3/s3_volume.h"
#include "backend/s3/s3_server.h"
#include "c/volume_round_trip.h"
#include "tiers/rank_scenario.h"
#include "tiers/shard_scenario.h"
#include "tiers/volume/volume_tier_scenario.h"

namespace ashlar::backend::s3 {
namespace {

using tiers::VolumeTier;

tiers::KvOptions in_bucket(const S3Server& server, int port) {
  tiers::VolumeRegistry kinds = tiers::VolumeRegistry::with_builtin();
  kinds.add("s3", attach);
  return VolumeTier::options({{.name = "cold",
                               .kind = "s3",
                               .location = std::string(S3Server::kBucket) + "/tier",
                               .options = {{"endpoint", "http://127.0.0.1:" + std::to_string(port)},
                                           {"access_key", server.access_key},
                                           {"secret_key", server.secret_key},
                                           {"backoff_ms", "5"},
                                           {"retries", "1"}}}},
                             std::move(kinds));
}

class S3TierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASHLAR_NEEDS_SERVER(S3Server::is_installed(), "the S3 server for tests is missing");
  }
};

TEST_F(S3TierTest, BlocksGoToTheStoreAndBackAndADeadStoreIsAMiss) {
  S3Server server;
  VolumeTier tier(in_bucket(server, server.port()));
  expect_blocks_go_to_the_server_and_back(tier);
  tier.restart();
  expect_a_forged_name_is_a_miss(tier);
  tier.restart();
  expect_a_dead_server_is_a_miss(tier, [&] { server.kill(); }, [&] { server.start(); });
}

TEST_F(S3TierTest, BlocksGoThereAndBackThroughTheCInterface) {
  const S3Server server;
  testing::CVolumeRoundTrip("s3", std::string(S3Server::kBucket) + "/c",
                            {{"endpoint", "http://127.0.0.1:" + std::to_string(server.port())},
                             {"access_key", server.access_key},
                             {"secret_key", server.secret_key}})
      .run();
}

TEST_F(S3TierTest, AStoreThatDiesInTheMiddleMakesNothingWrong) {
  for (const std::uint64_t bytes : {20'000, 60'000}) {
    S3Server server;
    const Proxy proxy(server.port(), bytes, [&] { server.kill(); });
    VolumeTier tier(in_bucket(server, proxy.port()));
    expect_nothing_wrong_when_the_server_dies(tier);
    EXPECT_GT(tier.kv().status().volumes[0].failed, 0u) << "it died after " << bytes << " bytes";
  }
}

TEST_F(S3TierTest, RanksOfOneModelReadTheirOwnBytes) {
  const S3Server server;
  expect_ranks_read_their_own_bytes(in_bucket(server, server.port()));
}

TEST_F(S3TierTest, FleetsOfOtherDegreesReadEachOther) {
  const S3Server server;
  expect_shards_across_degrees(in_bucket(server, server.port()), tiers::kFewDegrees);
}

}  // namespace
}  // namespace ashlar::backend::s3
