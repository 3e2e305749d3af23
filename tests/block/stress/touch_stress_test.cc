// Touches from everywhere: threads match in two tiers, touch by name and by handle, evict and register, while
// managers of a third tier come and go. Whoever is told of a touch may be in the middle of anything, or gone.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/blocks.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/sequence_builder.h"
#include "ashlar/testing/time_box.h"
#include "block/stress/yielding_hook.h"

namespace ashlar::block::stress {
namespace {

using events::G1;
using events::G2;
using events::G3;
using Hash = tokens::SequenceHash;

class TouchStress {
 public:
  TouchStress(const std::string& backend, std::uint64_t seed)
      : registry_(testing::make_counting_registry()),
        device_(make<G1>(backend, 8)),
        host_(make<G2>(backend, 12)),
        backend_(backend),
        seed_(seed) {
    for (std::uint32_t i = 0; i < 16; ++i) names_.push_back(testing::numbered_hash(i, i));
    for (const Hash& each : names_) {
      handles_.push_back(registry_.register_sequence_hash(each));
      handles_.back().on_touch([this](const RegistrationHandle&) { calls_.fetch_add(1); });
    }
  }

  void run(std::size_t operations) {
    std::vector<std::jthread> threads;
    Random random(seed_);
    threads.emplace_back([this, operations, own = random.fork()]() mutable {
      for (std::size_t i = 0; i < operations; ++i) use(device_, own);
    });
    threads.emplace_back([this, operations, own = random.fork()]() mutable {
      for (std::size_t i = 0; i < operations; ++i) use(host_, own);
    });
    threads.emplace_back([this, operations, own = random.fork()]() mutable {
      for (std::size_t i = 0; i < operations; ++i) touch(own);
    });
    threads.emplace_back([this, operations, own = random.fork()]() mutable {
      for (std::size_t i = 0; i < operations / 16; ++i) live_and_die(own);
    });
  }

  // Requires: no run is on.
  void check() {
    device_.check_invariants();
    host_.check_invariants();
    EXPECT_EQ(calls_.load(), uses_.load()) << "every use runs the callback once";
    for (const RegistrationHandle& each : handles_) EXPECT_FALSE(each.has_block<G3>());
    // What is used now is not the next to go, in any pool that has a choice.
    const auto host_order = host_.eviction_candidates(12);
    ASSERT_GT(host_order.size(), 1u);
    registry_.touch(host_order.front());
    uses_.fetch_add(1);
    // One use more may not be enough.
    if (backend_ == "lfu" || backend_ == "s3_fifo") return;
    const bool moves = backend_ != "fifo" && backend_ != "hashmap_fifo" && backend_ != "hashmap_lifo";
    EXPECT_EQ(host_.eviction_candidates(1).front() != host_order.front(), moves);
  }

 private:
  template <class Tier>
  BlockManager<Tier> make(const std::string& backend, std::uint32_t blocks) {
    ManagerOptions options = testing::manager_options(blocks, 4, backend);
    options.registry = registry_;
    return testing::make_manager<Tier>(options);
  }

  // Matches some hashes, or registers one; the last drop makes the blocks inactive again.
  template <class Tier>
  void use(BlockManager<Tier>& manager, Random& random) {
    const Hash& one = names_[random.below(names_.size())];
    switch (random.below(4)) {
      case 0: {
        const auto found = manager.match_blocks(std::span(names_).subspan(random.below(names_.size())));
        uses_.fetch_add(found.size());
        return;
      }
      case 1: {
        const auto found = manager.match_blocks_scattered(names_);
        for (const auto& each : found) uses_.fetch_add(each ? 1 : 0);
        return;
      }
      case 2:
        (void)manager.eviction_candidates(4);
        return;
      default:
        if (auto empty = manager.allocate_blocks(1)) {
          (void)manager.register_block(empty->take_back().stage(one, KvReady::asserted_by_caller()));
        }
    }
  }

  void touch(Random& random) {
    const std::size_t at = random.below(names_.size());
    switch (random.below(3)) {
      case 0:
        registry_.touch(names_[at]);
        break;
      case 1:
        handles_[at].touch();
        break;
      default:
        if (!registry_.match_sequence_hash(names_[at], /*touch=*/true)) ADD_FAILURE() << "a handle keeps it";
    }
    uses_.fetch_add(1);
  }

  // A manager that others tell of touches, until it is gone.
  void live_and_die(Random& random) {
    BlockManager<G3> manager = make<G3>(backend_, 6);
    for (int i = 0; i < 8; ++i) use(manager, random);
  }

  BlockRegistry registry_;
  BlockManager<G1> device_;
  BlockManager<G2> host_;
  std::string backend_;
  std::uint64_t seed_;
  std::vector<Hash> names_;
  std::vector<RegistrationHandle> handles_;
  std::atomic<std::uint64_t> uses_ = 0;
  std::atomic<std::uint64_t> calls_ = 0;
};

class TouchStressTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TouchStressTest, TouchesMeetEvictionsRegistrationsAndTheEndOfManagers) {
  const testing::TimeBox box(0.5);
  const YieldingHook hook;
  std::uint64_t seed = 0;
  do {
    SCOPED_TRACE("seed " + std::to_string(++seed));
    TouchStress stress(GetParam(), seed);
    for (int round = 0; round < 3; ++round) {
      stress.run(400);
      stress.check();
    }
  } while (!box.over() && !HasFailure());
}

INSTANTIATE_TEST_SUITE_P(Backends, TouchStressTest, ::testing::ValuesIn(eviction_names()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace ashlar::block::stress
