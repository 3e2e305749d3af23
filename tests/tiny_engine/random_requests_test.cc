// Random requests over random tiers: small pools, all triggers, forks, preemption, tenants, restarts. Every
// text and every logit is compared.
#include <gtest/gtest.h>

#include "support/rounds.h"
#include "tiny_engine/engine_fixture.h"

namespace tiny_engine::testing {
namespace {

// What happened over all rounds; the loop runs until each has.
struct Seen {
  std::uint64_t preemptions = 0;
  std::uint64_t copies = 0;
  std::uint64_t evictions = 0;
  std::uint64_t g2 = 0;
  std::uint64_t g3 = 0;
  std::uint64_t g4 = 0;

  void add(Engine& engine) {
    preemptions += engine.counters().preemptions;
    copies += engine.counters().block_copies;
    const tiers::KvStatus status = engine.kv().status();
    evictions += status.g1.evictions;
    g2 += status.g2 ? status.g2->onboarded : 0;
    g3 += status.g3 ? status.g3->onboarded : 0;
    g4 += status.g4 ? status.g4->onboarded : 0;
  }
  bool everything() const { return preemptions && copies && evictions && g2 && g3 && g4; }
};

EngineOptions random_engine(Random& random, const std::string& folder) {
  const auto triggers = std::to_array({tiers::Trigger::kOnArrival, tiers::Trigger::kNearEviction});
  EngineOptions options = small_engine(static_cast<std::uint32_t>(24 + random.below(60)));
  options.ranks = 1U << random.below(3);
  options.step_tokens = 1 + random.below(80);
  options.max_running = 1 + random.below(10);
  options.onboard.max_blocks = random.below(4) == 0 ? random.below(6) : 1000;
  options.kv.to_g2.trigger = triggers[random.below(2)];
  options.kv.to_g3.trigger = triggers[random.below(2)];
  options.kv.to_g4.trigger = triggers[random.below(2)];
  options.kv.to_g2.look_ahead = options.kv.to_g3.look_ahead = options.kv.to_g4.look_ahead = 8;
  options.kv.g2 = tiers::TierShape{.block_count = static_cast<std::uint32_t>(24 + random.below(60))};
  if (random.below(2) == 0)
    options.kv.g3 =
        tiers::DiskShape{.block_count = 100, .paths = {folder + "/g3"}, .survive_power_loss = false};
  if (!options.kv.g3 || random.below(2) == 0) {
    std::filesystem::create_directories(folder + "/volume");
    options.kv.g4 = tiers::VolumeShape{
        .block_count = 1000,
        .volumes = {{.name = "shared", .kind = "directory", .location = folder + "/volume"}}};
  }
  return options;
}

void run_one(std::uint64_t seed, Seen& seen) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const ScratchFolder folder;
  const EngineOptions options = random_engine(random, folder.path());
  for (int life = 0; life < 2; ++life) {
    const auto engine = make_engine(options);
    for (std::uint64_t wave = 0; wave < 3; ++wave) {
      std::vector<Request> requests = conversations(seed * 4 + random.below(3), 1 + random.below(10));
      for (Request& request : requests) {
        if (random.below(4) == 0) request.samples = 1 + random.below(3);
        if (random.below(4) == 0) request.tenant = "tenant";
        if (random.below(4) == 0) request.priority = static_cast<std::uint8_t>(random.below(101));
      }
      serve(*engine, requests);
    }
    seen.add(*engine);
    for (std::uint32_t rank = 0; rank < engine->rank_count(); ++rank) {
      ASSERT_TRUE(engine->kv(rank).shutdown());
      engine->kv(rank).check_invariants();
    }
  }
}

TEST(TinyEngineRandomTest, EveryTextAndLogitIsRight) {
  Seen seen;
  const std::uint64_t rounds = ashlar::testing::rounds(20);
  for (std::uint64_t seed = 0; seed < rounds || !seen.everything(); ++seed) {
    ASSERT_LT(seed, 2000u) << "not everything happens";
    run_one(seed, seen);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tiny_engine::testing
