// Two managers of different tiers on one registry: the same hashes are registered and evicted in both, by
// many threads, while handles come and go. An entry is shared by all who refer to its hash, and lives as long
// as one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/sequence_builder.h"
#include "ashlar/testing/time_box.h"
#include "block/stress/yielding_hook.h"

namespace ashlar::block::stress {
namespace {

using events::G1;
using events::G2;
using Hash = tokens::SequenceHash;

std::atomic<std::int64_t> g_marks = 0;

// An attachment with a number of its own, which counts itself.
struct TierMark {
  explicit TierMark(std::uint64_t n) : number(n) { g_marks.fetch_add(1); }
  TierMark(const TierMark& other) : number(other.number) { g_marks.fetch_add(1); }
  TierMark& operator=(const TierMark&) = default;
  ~TierMark() { g_marks.fetch_sub(1); }
  std::uint64_t number;
};

// What keeps an entry: a handle, or a block of either tier. The mark was attached when the thread came to
// hold the entry, and goes along when the thread holds it by something else.
struct Holder {
  std::variant<RegistrationHandle, ImmutableBlock<G1>, ImmutableBlock<G2>> by;
  std::uint64_t mark;

  RegistrationHandle handle() const {
    if (const auto* block = std::get_if<ImmutableBlock<G1>>(&by)) return block->registration_handle();
    if (const auto* block = std::get_if<ImmutableBlock<G2>>(&by)) return block->registration_handle();
    return std::get<RegistrationHandle>(by);
  }
};

bool has_mark(const RegistrationHandle& handle, std::uint64_t number) {
  bool found = false;
  handle.get<TierMark>().with_multiple([&](std::span<const TierMark> marks) {
    found =
        std::any_of(marks.begin(), marks.end(), [&](const TierMark& mark) { return mark.number == number; });
  });
  return found;
}

class TwoTierStress {
 public:
  TwoTierStress(std::size_t threads, std::uint64_t seed) : registry_(testing::make_counting_registry()) {
    // Fewer blocks than hashes, so that entries are orphaned all the time; or as many, so that tiers share.
    const std::uint32_t hashes = seed % 2 == 0 ? 24 : 8;
    for (std::uint32_t i = 0; i < hashes; ++i) names_.push_back(testing::numbered_hash(i, i / 2));
    ManagerOptions options = testing::manager_options(8, 4, seed % 4 < 2 ? "lru" : "hashmap_fifo");
    options.registry = registry_;
    options.duplicates = seed % 3 == 0 ? DuplicatePolicy::kReject : DuplicatePolicy::kAllow;
    g1_.emplace(testing::make_manager<G1>(options));
    options.block_count = 12;
    g2_.emplace(testing::make_manager<G2>(options));
    Random random(seed);
    for (std::size_t i = 0; i < threads; ++i) workers_.push_back(std::make_unique<Worker>(random.fork()));
  }

  void run_round(std::size_t operations) {
    std::vector<std::jthread> threads;
    for (auto& worker : workers_) {
      threads.emplace_back([this, &worker, operations] {
        for (std::size_t i = 0; i < operations; ++i) step(*worker);
      });
    }
  }

  // Compares the registry with what the managers and the threads hold. Requires: no round runs.
  void check() {
    EXPECT_EQ(missing_.load(), 0u) << "entries or marks that were gone while a thread held them";
    EXPECT_EQ(wrong_.load(), 0u);
    std::set<Hash> expected;
    if (g1_) check_presence(*g1_, expected);
    if (g2_) check_presence(*g2_, expected);
    for (const auto& worker : workers_) {
      for (const Holder& holder : worker->held) {
        const RegistrationHandle handle = holder.handle();
        EXPECT_TRUE(has_mark(handle, holder.mark)) << handle.sequence_hash();
        if (std::holds_alternative<RegistrationHandle>(holder.by)) {
          expected.insert(handle.sequence_hash());
        } else {
          EXPECT_TRUE(expected.contains(handle.sequence_hash())) << "a block is held and not registered";
        }
      }
    }
    EXPECT_EQ(registry_.registered_count(), expected.size());

    std::int64_t marks = 0;
    for (const Hash& name : names_) {
      EXPECT_EQ(registry_.is_registered(name), expected.contains(name)) << name;
      const std::uint64_t number = next_mark_.fetch_add(1);
      {
        const auto handle = registry_.match_sequence_hash(name, /*touch=*/false);
        EXPECT_EQ(handle.has_value(), expected.contains(name)) << name;
        if (!handle) continue;
        EXPECT_TRUE(handle->attach(TierMark(number)).has_value());
      }
      // Inactive blocks and other threads' handles keep what this handle has attached.
      const auto again = registry_.match_sequence_hash(name, /*touch=*/false);
      ASSERT_TRUE(again.has_value()) << name;
      EXPECT_TRUE(has_mark(*again, number)) << name;
      again->get<TierMark>().with_multiple(
          [&](auto values) { marks += static_cast<std::int64_t>(values.size()); });
    }
    EXPECT_EQ(g_marks.load(), marks) << "marks of entries that are gone";
  }

  // The handles outlive one manager, then the other; with them goes the last entry.
  void finish() {
    for (auto& worker : workers_) {
      std::erase_if(worker->held, [](const Holder& holder) {
        return !std::holds_alternative<RegistrationHandle>(holder.by);
      });
    }
    check();
    g1_.reset();
    check();
    expect_absent<G1>();
    g2_.reset();
    check();
    expect_absent<G2>();
    for (auto& worker : workers_) worker->held.clear();
    EXPECT_EQ(registry_.registered_count(), 0u);
    EXPECT_EQ(g_marks.load(), 0);
  }

  // How often a thread held a hash by a handle alone, without a block in either tier.
  std::uint64_t orphans() const { return orphans_.load(); }
  std::uint64_t evictions() const { return g1_->counters().evictions + g2_->counters().evictions; }

 private:
  struct Worker {
    explicit Worker(Random own) : random(own) {}
    Random random;
    std::vector<Holder> held;
  };
  static constexpr std::size_t kMaxHeld = 3;

  template <class Tier>
  void check_presence(const BlockManager<Tier>& manager, std::set<Hash>& registered) {
    manager.check_invariants();
    std::set<Hash> here;
    manager.for_each_registered([&](const Hash& hash, BlockId) { EXPECT_TRUE(here.insert(hash).second); });
    const std::vector<bool> present = registry_.check_presence<Tier>(names_);
    for (std::size_t i = 0; i < names_.size(); ++i) {
      EXPECT_EQ(bool{present[i]}, here.contains(names_[i])) << Tier::kName << ' ' << names_[i];
      const auto handle = registry_.match_sequence_hash(names_[i], /*touch=*/false);
      EXPECT_EQ(handle && handle->template has_block<Tier>(), here.contains(names_[i]));
    }
    registered.insert(here.begin(), here.end());
  }
  template <class Tier>
  void expect_absent() {
    for (const bool present : registry_.check_presence<Tier>(names_)) EXPECT_FALSE(present);
  }

  void keep(Worker& worker, decltype(Holder::by) by) {
    Holder holder{std::move(by), next_mark_.fetch_add(1)};
    if (!holder.handle().attach(TierMark(holder.mark))) wrong_.fetch_add(1);
    look(holder);
    worker.held.push_back(std::move(holder));
    while (worker.held.size() > kMaxHeld) drop(worker);
  }

  // Who holds an entry finds it, and everything attached to it since.
  void look(const Holder& holder) {
    const RegistrationHandle handle = holder.handle();
    const Hash name = handle.sequence_hash();
    if (!registry_.is_registered(name) || !has_mark(handle, holder.mark)) missing_.fetch_add(1);
    const auto same = registry_.match_sequence_hash(name, /*touch=*/false);
    if (!same || *same != handle) missing_.fetch_add(1);
    if (std::holds_alternative<ImmutableBlock<G1>>(holder.by)) {
      if (!handle.has_block<G1>()) missing_.fetch_add(1);
    } else if (std::holds_alternative<ImmutableBlock<G2>>(holder.by)) {
      if (!handle.has_block<G2>()) missing_.fetch_add(1);
    } else if (!handle.has_any_block({events::kTierId<G1>, events::kTierId<G2>})) {
      orphans_.fetch_add(1);
    }
  }

  void drop(Worker& worker) {
    if (worker.held.empty()) return;
    std::swap(worker.held[worker.random.below(worker.held.size())], worker.held.back());
    look(worker.held.back());
    worker.held.pop_back();
  }

  // A block of the hash in the tier: found, or registered, with another one evicted for it.
  template <class Tier>
  std::optional<ImmutableBlock<Tier>> block_of(BlockManager<Tier>& manager, Random& random,
                                               const Hash& name) {
    if (random.chance(0.3)) {
      auto found = manager.match_blocks(std::span(&name, 1));
      if (!found.empty()) return found.take_back();
    }
    auto empty = manager.allocate_blocks(1);
    if (!empty) return std::nullopt;  // every block is held
    auto registered = manager.register_block(empty->take_back().stage(name, KvReady::asserted_by_caller()));
    if (!registered || registered->sequence_hash() != name) {
      wrong_.fetch_add(1);
      return std::nullopt;
    }
    return *std::move(registered);
  }

  template <class Tier>
  void use_block(BlockManager<Tier>& manager, Worker& worker, const Hash& name) {
    auto block = block_of(manager, worker.random, name);
    if (block && worker.random.chance(0.5)) keep(worker, *std::move(block));
  }

  // Goes on holding the entry by something else: the entry must not die in between.
  template <class Tier>
  void change_hold(BlockManager<Tier>& manager, Worker& worker) {
    if (worker.held.empty()) return;
    Holder& holder = worker.held[worker.random.below(worker.held.size())];
    if (!std::holds_alternative<RegistrationHandle>(holder.by)) {
      holder.by = holder.handle();
    } else if (auto block = block_of(manager, worker.random, holder.handle().sequence_hash())) {
      holder.by = *std::move(block);
    }
    look(holder);
  }

  void step(Worker& worker) {
    Random& random = worker.random;
    const Hash& name = names_[random.below(names_.size())];
    switch (random.below(16)) {
      case 0:
      case 1:
      case 2:
        return use_block(*g1_, worker, name);
      case 3:
      case 4:
      case 5:
        return use_block(*g2_, worker, name);
      case 6:
        return keep(worker, registry_.register_sequence_hash(name));
      case 7:
        if (auto handle = registry_.match_sequence_hash(name, random.chance(0.5))) {
          keep(worker, *std::move(handle));
        }
        return;
      case 8:
        return keep(worker, registry_.transfer_registration(name));
      case 9:
      case 10:
        return change_hold(*g1_, worker);
      case 11:
      case 12:
        return change_hold(*g2_, worker);
      case 13:
        if (random.chance(0.1)) g1_->reset_inactive_pool();
        if (random.chance(0.1)) g2_->reset_inactive_pool();
        return;
      default:
        return drop(worker);
    }
  }

  BlockRegistry registry_;
  std::vector<Hash> names_;
  std::optional<BlockManager<G1>> g1_;
  std::optional<BlockManager<G2>> g2_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<std::uint64_t> next_mark_ = 0;
  std::atomic<std::size_t> missing_ = 0;
  std::atomic<std::size_t> wrong_ = 0;
  std::atomic<std::uint64_t> orphans_ = 0;
};

class TwoTierStressTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(TwoTierStressTest, AnEntryIsSharedByBothTiersAndLivesAsLongAsItsLastHolder) {
  const testing::TimeBox box(1);
  const YieldingHook hook;
  std::uint64_t seed = 0;
  std::uint64_t orphans = 0;
  std::uint64_t evictions = 0;
  do {
    SCOPED_TRACE("seed " + std::to_string(++seed));
    TwoTierStress stress(GetParam(), seed);
    for (int round = 0; round < 6; ++round) {
      stress.run_round(200);
      stress.check();
    }
    orphans += stress.orphans();
    evictions += stress.evictions();
    stress.finish();
    // Two seeds at least, one of each kind, however slow the machine.
  } while ((seed < 2 || !box.over()) && !HasFailure());
  EXPECT_GT(orphans, 0u);
  EXPECT_GT(evictions, 0u);
}

INSTANTIATE_TEST_SUITE_P(Threads, TwoTierStressTest, ::testing::Values(2, 4, 8),
                         [](const auto& tested) { return std::to_string(tested.param); });

}  // namespace
}  // namespace ashlar::block::stress
