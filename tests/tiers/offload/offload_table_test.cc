#include "tiers/offload/offload_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/managers.h"
#include "support/rounds.h"

namespace ashlar::tiers {
namespace {

using block::KvReady;
using events::G2;
using tokens::SequenceHash;

SequenceHash hash_of(std::uint64_t i) {
  return SequenceHash::root(i + 1);
}

// The holds of a batch end with it.
struct Taken {
  std::shared_ptr<OffloadBatch> batch;
  std::vector<block::Hold> holds;
};

class OffloadTableTest : public ::testing::Test {
 protected:
  void cache(std::uint64_t i, const std::optional<block::Fence>& after = {}) {
    static_cast<void>(compute(i, after));
  }
  block::ImmutableBlock<G2> compute(std::uint64_t i, const std::optional<block::Fence>& after = {}) {
    auto blocks = manager_.allocate_blocks(1).value();
    written_.insert_or_assign(blocks[0].block_id(), after.value_or(block::Fence::passed_already()));
    return manager_.register_block(std::move(blocks[0]).stage(hash_of(i), KvReady::asserted_by_caller()))
        .value();
  }
  bool is_written(const block::Hold& hold) { return written_.at(hold.block_id()).passed(); }
  std::shared_ptr<OffloadTable> table(std::size_t on_deck, std::size_t waiting = 1000,
                                      std::size_t batch = 1) {
    return std::make_shared<OffloadTable>(
        OffloadWorkerOptions{.queue = {.on_deck = on_deck, .waiting = waiting}, .full_batch = 1}, batch,
        clock_, [this](const SequenceHash& hash) {
          if (at_upgrade_) std::exchange(at_upgrade_, nullptr)();
          return source(hash);
        });
  }
  std::optional<OffloadTable::Source> source(const SequenceHash& hash) {
    auto hold = manager_.hold(hash);
    if (!hold) return std::nullopt;
    const block::Fence after = written_.at(hold->block_id());
    return OffloadTable::Source{*std::move(hold),
                                after.passed() ? std::nullopt : std::optional<block::Fence>(after)};
  }
  static void offer(OffloadTable& table, std::uint64_t i, std::uint8_t priority = 10) {
    table.offer(std::vector<OffloadTable::Wanted>{{hash_of(i)}}, {}, priority);
  }
  static OffloadHandle call(const std::shared_ptr<OffloadTable>& table,
                            const std::vector<std::uint64_t>& some, const OffloadOptions& options = {}) {
    std::vector<SequenceHash> hashes;
    std::vector<OffloadTable::Wanted> wanted;
    for (const std::uint64_t i : some) {
      hashes.push_back(hash_of(i));
      wanted.push_back({hash_of(i), options.after});
    }
    const auto made = std::make_shared<OffloadCall>(hashes.size(), options, table);
    for (const SequenceHash& hash : hashes) EXPECT_TRUE(made->name(hash));
    table->offer(wanted, {}, options.priority.value_or(35), made);
    table->offered(made);
    return OffloadHandle(made);
  }
  static std::optional<Taken> take(OffloadTable& table) {
    if (!table.wait_for_batch(false)) return std::nullopt;
    auto [batch, holds] = table.take();
    return Taken{std::move(batch), std::move(holds)};
  }
  static void finish(OffloadTable& table, Taken taken, Moved how = Moved::kArrived) {
    taken.holds.clear();
    table.finish(taken.batch, {.blocks = std::vector<Moved>(taken.batch->members.size(), how), .error = {}});
  }
  // Every batch that the table has, in the order in which it gives them; all of them arrive.
  static std::vector<SequenceHash> run_all(OffloadTable& table) {
    std::vector<SequenceHash> out;
    while (std::optional<Taken> taken = take(table)) {
      for (const OffloadBatch::Member& member : taken->batch->members) out.push_back(member.hash);
      finish(table, *std::move(taken));
    }
    return out;
  }

  ManualClock clock_;
  std::function<void()> at_upgrade_;
  std::shared_ptr<OffloadTable> flaky_;
  std::map<block::BlockId, block::Fence> written_;  // when the bytes of each block are complete
  block::BlockManager<G2> manager_ = ashlar::testing::make_manager<G2>(64);
};

TEST_F(OffloadTableTest, GoesStraightOnDeckWhileThereIsRoom) {
  for (std::uint64_t i = 0; i < 4; ++i) cache(i);
  const auto table = this->table(2);
  offer(*table, 0);
  offer(*table, 1);
  offer(*table, 2, 99);
  EXPECT_EQ(table->counters().queue.on_deck, 2u);
  EXPECT_EQ(table->counters().queue.waiting, 1u);
  EXPECT_EQ(manager_.status().held_inactive, 2u) << "those on deck are held, the others are not";
  std::optional<Taken> first = take(*table);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->batch->members[0].hash, hash_of(0));
  EXPECT_EQ(run_all(*table), (std::vector{hash_of(2), hash_of(1)})) << "the deck was refilled";
  finish(*table, *std::move(first));
  table->close();
}

TEST_F(OffloadTableTest, HigherPriorityFirstOlderFirstAmongEquals) {
  for (std::uint64_t i = 0; i < 8; ++i) cache(i);
  const auto table = this->table(1);
  offer(*table, 0, 50);
  offer(*table, 1, 10);
  offer(*table, 2, 90);
  offer(*table, 3, 10);
  offer(*table, 4, 90);
  offer(*table, 3, 95);
  offer(*table, 3, 20);
  offer(*table, 5, 10);
  table->set_priority(hash_of(5), 92);
  table->set_priority(hash_of(7), 92);  // unknown here
  table->check_invariants();
  EXPECT_EQ(run_all(*table),
            (std::vector{hash_of(0), hash_of(3), hash_of(5), hash_of(2), hash_of(4), hash_of(1)}));
}

// So what a caller offers has been found, or not, when offer() returns; whoever drains is awake by then.
TEST_F(OffloadTableTest, WhoOffersABlockLooksForItWhileTheDeckHasRoom) {
  cache(0);
  std::atomic<std::size_t> elsewhere{0};
  const std::thread::id here = std::this_thread::get_id();
  const auto table = std::make_shared<OffloadTable>(
      OffloadWorkerOptions{.queue = {.on_deck = 2, .waiting = 10}, .full_batch = 1}, 1, clock_,
      [&](const SequenceHash& hash) {
        if (std::this_thread::get_id() != here) ++elsewhere;
        return source(hash);
      });
  std::thread worker([&] {
    while (table->wait_for_batch(true)) {
      auto [batch, holds] = table->take();
      finish(*table, Taken{std::move(batch), std::move(holds)});
    }
  });
  for (std::uint64_t i = 0; i < ashlar::testing::rounds(2000); ++i)
    EXPECT_EQ(call(table, {0}).wait()->arrived, 1u);
  EXPECT_EQ(elsewhere, 0u);
  table->stop();
  worker.join();
  table->close();
}

TEST_F(OffloadTableTest, WhatWasEvictedMeanwhileIsDiscarded) {
  for (std::uint64_t i = 0; i < 4; ++i) cache(i);
  const auto table = this->table(1);
  for (std::uint64_t i = 0; i < 4; ++i) offer(*table, i);
  EXPECT_EQ(manager_.reset_inactive_pool(), 3u) << "all but the one on deck";
  EXPECT_EQ(run_all(*table), std::vector{hash_of(0)});
  EXPECT_EQ(table->counters().queue.discarded, 3u);
  EXPECT_EQ(call(table, {2}).progress().gone, 1u);
  cache(2);
  EXPECT_FALSE(call(table, {2}).done());
  table->close();
}

TEST_F(OffloadTableTest, NothingIsTakenTwiceUntilItHasEnded) {
  cache(0);
  const auto table = this->table(4);
  offer(*table, 0);
  std::optional<Taken> taken = take(*table);
  ASSERT_TRUE(taken);
  const OffloadHandle joins = call(table, {0});
  EXPECT_FALSE(take(*table));
  finish(*table, *std::move(taken));
  EXPECT_EQ(joins.progress().arrived, 1u);
  offer(*table, 0);
  EXPECT_EQ(run_all(*table), std::vector{hash_of(0)});
}

TEST_F(OffloadTableTest, AFullQueueKeepsWhatComesFirst) {
  for (std::uint64_t i = 0; i < 8; ++i) cache(i);
  const auto table = this->table(1, 2);
  offer(*table, 0, 50);
  offer(*table, 1, 20);
  const OffloadHandle last = call(table, {2}, {.priority = 10});
  EXPECT_EQ(call(table, {3}, {.priority = 10}).progress().refused, 1u) << "older ones of its priority wait";
  EXPECT_FALSE(last.done());
  offer(*table, 4, 30);
  EXPECT_EQ(last.progress().refused, 1u) << "displaced";
  EXPECT_EQ(table->counters().queue.displaced, 1u);
  EXPECT_EQ(run_all(*table), (std::vector{hash_of(0), hash_of(4), hash_of(1)}));
}

TEST_F(OffloadTableTest, CancelWorksInEveryStage) {
  for (std::uint64_t i = 0; i < 4; ++i) cache(i);
  const auto table = this->table(1);
  const OffloadHandle on_deck = call(table, {0});
  const OffloadHandle waiting = call(table, {1});
  const auto [fence, signal] = block::Fence::create();
  const OffloadHandle blocked = call(table, {2}, {.after = {fence}});
  waiting.cancel();
  on_deck.cancel();
  blocked.cancel();
  for (const OffloadHandle& handle : {on_deck, waiting, blocked})
    EXPECT_EQ(handle.progress(), (OffloadProgress{.total = 1, .cancelled = 1}));
  at_upgrade_ = [&] {
    // The thread that offers is about to hold the block.
    call(table, {3}).cancel();
    EXPECT_EQ(table->drop_queued(OffloadTable::Later::kAccept), 1u) << "the one that is being held";
  };
  const OffloadHandle upgrading = call(table, {3});
  EXPECT_EQ(upgrading.progress().cancelled, 1u);
  EXPECT_FALSE(take(*table));
  EXPECT_EQ(manager_.status().held_inactive, 0u);
  table->check_invariants();
}

TEST_F(OffloadTableTest, ABlockRegisteredAgainDuringItsUpgradeIsNotLost) {
  std::optional<OffloadHandle> second;
  bool first = true;
  const auto flaky = std::make_shared<OffloadTable>(
      OffloadWorkerOptions{.full_batch = 1}, 1, clock_,
      [&](const SequenceHash& hash) -> std::optional<OffloadTable::Source> {
        if (std::exchange(first, false)) {
          cache(0);  // evicted when it was looked for, and registered and offered again before the answer
          second.emplace(call(flaky_, {0}));
          return std::nullopt;
        }
        return source(hash);
      });
  flaky_ = flaky;
  const OffloadHandle handle = call(flaky, {0});
  EXPECT_EQ(run_all(*flaky), std::vector{hash_of(0)});
  EXPECT_EQ(handle.progress().arrived, 1u);
  EXPECT_EQ(second->progress().arrived, 1u);
}

TEST_F(OffloadTableTest, AFenceThatPassesWhileItsBlockIsOfferedIsNotMissed) {
  cache(0);
  cache(1);
  const auto table = this->table(4);
  auto [fence, signal] = block::Fence::create();
  const std::vector<OffloadTable::Wanted> wanted = {{hash_of(0)}, {hash_of(1), {fence}}};
  at_upgrade_ = [&, s = &signal] {
    EXPECT_EQ(table->counters().blocked, 1u) << "recorded, and not yet watched";
    std::move(*s).signal();
  };
  table->offer(wanted, {}, 10);
  EXPECT_FALSE(at_upgrade_);
  EXPECT_EQ(run_all(*table), (std::vector{hash_of(0), hash_of(1)}));
  EXPECT_EQ(table->counters().blocked, 0u);
  table->check_invariants();
}

TEST_F(OffloadTableTest, TheRegistrationOfTheBlockThatIsTakenCounts) {
  const auto table = this->table(1);
  cache(0);
  offer(*table, 0);  // has the deck
  cache(1);
  offer(*table, 1);
  const auto hangs = block::Fence::create();
  cache(2, hangs.first);
  offer(*table, 2);
  manager_.reset_inactive_pool();
  auto [fence, signal] = block::Fence::create();
  cache(1, fence);  // under the same name, and not offered
  cache(2);
  EXPECT_EQ(run_all(*table), (std::vector{hash_of(0), hash_of(2)}));
  EXPECT_EQ(table->counters().blocked, 1u);
  EXPECT_EQ(manager_.status().held_inactive, 0u) << "what waits for its bytes can be evicted";
  EXPECT_TRUE(table->drain({}));
  table->check_invariants();
  std::move(signal).signal();
  EXPECT_EQ(run_all(*table), std::vector{hash_of(1)});
  table->check_invariants();
}

TEST_F(OffloadTableTest, ABlockThatWillNeverBeWrittenFailsAndItsSuccessorDoesNot) {
  const auto table = this->table(4);
  auto never = std::make_optional(block::Fence::create());
  auto hangs = block::Fence::create();
  cache(0, never->first);
  cache(1, never->first);
  cache(2, hangs.first);
  const OffloadHandle lost = call(table, {0});
  const OffloadHandle replaced = call(table, {1});
  const OffloadHandle again = call(table, {2});
  EXPECT_EQ(table->counters().blocked, 3u);
  manager_.reset_inactive_pool();
  cache(0, never->first);
  cache(1);
  cache(2);
  EXPECT_TRUE(run_all(*table).empty());
  offer(*table, 2);  // its precondition went with the block that had it
  EXPECT_EQ(run_all(*table), std::vector{hash_of(2)});
  never.reset();
  EXPECT_EQ(run_all(*table), std::vector{hash_of(1)});
  EXPECT_EQ(lost.wait().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(replaced.progress().arrived, 1u);
  EXPECT_EQ(again.progress().arrived, 1u);
  cache(3, block::Fence::create().first);  // abandoned before it is offered
  EXPECT_EQ(call(table, {3}).progress().failed, 1u);
}

TEST_F(OffloadTableTest, ADuplicateInheritsItsNameWithItsOwnPrecondition) {
  const auto table = this->table(1);
  cache(0);
  offer(*table, 0);  // has the deck
  auto [fence, signal] = block::Fence::create();
  const auto unwritten = compute(1, fence);
  {
    const auto written = compute(1);
    ASSERT_NE(written.block_id(), unwritten.block_id());
    offer(*table, 1);
  }
  ASSERT_EQ(manager_.hold(hash_of(1))->block_id(), unwritten.block_id());
  EXPECT_EQ(run_all(*table), std::vector{hash_of(0)});
  std::move(signal).signal();
  EXPECT_EQ(run_all(*table), std::vector{hash_of(1)});
}

TEST_F(OffloadTableTest, WhoWaitsKeepsNothingOfOthersThatAreLate) {
  for (std::uint64_t i = 0; i < 2; ++i) cache(i);
  const auto table = this->table(2);
  const Clock::TimePoint now = clock_.now();
  const OffloadHandle soon = call(table, {0}, {.deadline = now + std::chrono::seconds(1)});
  const OffloadHandle late = call(table, {1}, {.deadline = now + std::chrono::hours(1)});
  EXPECT_EQ(manager_.status().held_inactive, 2u);
  std::thread waits([&] { EXPECT_EQ(late.wait().value().cancelled, 1u); });
  while (clock_.waiters() == 0) std::this_thread::yield();
  clock_.advance(std::chrono::seconds(1));
  while (manager_.status().held_inactive != 1) std::this_thread::yield();  // that thread returns it
  EXPECT_EQ(soon.progress().late, 1u);
  EXPECT_FALSE(late.done());
  late.cancel();
  waits.join();
  table->close();
}

TEST_F(OffloadTableTest, WhoRefusesTakesBackNoCopyThatWasStopped) {
  for (std::uint64_t i = 0; i < 3; ++i) cache(i);
  const auto table = this->table(2);
  const OffloadHandle handle = call(table, {0, 1});
  std::optional<Taken> taken = take(*table);
  ASSERT_TRUE(taken);
  EXPECT_EQ(table->drop_queued(OffloadTable::Later::kRefuse), 1u);
  finish(*table, *std::move(taken), Moved::kStopped);
  offer(*table, 2);
  EXPECT_EQ(handle.progress(), (OffloadProgress{.total = 2, .cancelled = 2}));
  EXPECT_TRUE(run_all(*table).empty());
  table->check_invariants();
  table->close();
}

TEST_F(OffloadTableTest, WithdrawnBlocksLeaveThoughTheyAreWanted) {
  for (std::uint64_t i = 0; i < 3; ++i) cache(i);
  const auto table = this->table(1, 1000, 1);
  const OffloadHandle handle = call(table, {0, 1});
  std::optional<Taken> taken = take(*table);
  ASSERT_TRUE(taken);
  std::thread withdraws(
      [&] { table->withdraw(std::vector{hash_of(0), hash_of(1)}, OffloadTable::Started::kStop); });
  while (!taken->batch->control.cancelled()) std::this_thread::yield();
  const OffloadHandle joins = call(table, {0});
  finish(*table, *std::move(taken), Moved::kStopped);
  withdraws.join();
  EXPECT_EQ(handle.progress(), (OffloadProgress{.total = 2, .cancelled = 2}));
  EXPECT_EQ(joins.progress(), (OffloadProgress{.total = 1, .cancelled = 1}));
  EXPECT_FALSE(take(*table));
  table->check_invariants();
}

// One thread against a naive model of what may be copied: never a block before its fences have passed, even
// if it replaced the one that was offered, never
// twice at a time, in order of rank; every call ends, once for each block, and as late only when it was.
TEST_F(OffloadTableTest, RandomSteps) {
  constexpr std::uint64_t kBlocks = 12;
  for (std::uint64_t seed = 0; seed < ashlar::testing::rounds(200); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto table = this->table(1 + random.below(3), 1 + random.below(8), 1 + random.below(3));
    struct Made {
      OffloadHandle handle;
      std::optional<Clock::TimePoint> deadline;
      bool cancelled = false;
    };
    struct Pending {
      block::Fence fence;
      std::optional<block::FenceSignal> signal;
      std::vector<std::uint64_t> blocks;
    };
    std::vector<Made> made;
    std::vector<Pending> fences;
    std::vector<Taken> flying;
    std::array<int, kBlocks> in_flight{};
    for (std::uint64_t i = 0; i < kBlocks; ++i)
      if (!manager_.hold(hash_of(i))) cache(i);
    const auto some = [&] {
      std::vector<std::uint64_t> out;
      for (std::uint64_t i = 0; i < kBlocks; ++i)
        if (random.below(4) == 0) out.push_back(i);
      return out;
    };
    for (int step = 0; step < 80; ++step) {
      switch (random.below(9)) {
        case 0:
        case 1: {
          OffloadOptions options{.priority = static_cast<std::uint8_t>(random.below(4))};
          const std::vector<std::uint64_t> blocks = some();
          if (random.below(3) == 0) {
            auto [fence, signal] = block::Fence::create();
            options.after = {fence};
            fences.push_back({fence, std::move(signal), blocks});
          }
          if (random.below(3) == 0) options.deadline = clock_.now() + std::chrono::seconds(random.below(3));
          made.push_back({call(table, blocks, options), options.deadline});
          break;
        }
        case 2:
          offer(*table, random.below(kBlocks), static_cast<std::uint8_t>(random.below(4)));
          break;
        case 3:
          if (made.empty()) break;
          {
            Made& one = made[random.below(made.size())];
            one.cancelled = true;
            one.handle.cancel();
            EXPECT_TRUE(one.handle.done());
          }
          break;
        case 4:
          if (fences.empty()) break;
          {
            const std::size_t which = random.below(fences.size());
            if (random.below(4) != 0) std::move(*fences[which].signal).signal();
            fences.erase(fences.begin() + static_cast<std::ptrdiff_t>(which));
          }
          break;
        case 5:
        case 6:
          if (std::optional<Taken> taken = take(*table)) {
            for (std::size_t i = 0; i < taken->batch->members.size(); ++i) {
              const auto& [hash, priority] = taken->batch->members[i];
              const std::uint64_t which = hash.chain() - 1;
              EXPECT_EQ(in_flight[which]++, 0) << "copied twice at a time";
              EXPECT_EQ(taken->holds[i].sequence_hash(), hash);
              EXPECT_TRUE(is_written(taken->holds[i])) << "copied before its bytes are complete";
              if (i > 0) {
                EXPECT_LE(priority, taken->batch->members[i - 1].priority);
              }
            }
            flying.push_back(*std::move(taken));
          }
          break;
        case 7:
          if (flying.empty()) break;
          {
            Taken ends = std::move(flying.front());
            flying.erase(flying.begin());
            for (const auto& member : ends.batch->members) --in_flight[member.hash.chain() - 1];
            finish(*table, std::move(ends),
                   std::array{Moved::kArrived, Moved::kStopped, Moved::kFailed}[random.below(3)]);
          }
          break;
        default:
          if (random.below(2) == 0) clock_.advance(std::chrono::seconds(1));
          if (random.below(4) == 0) table->drop_queued(OffloadTable::Later::kAccept);
          if (random.below(3) == 0) manager_.reset_inactive_pool();
          for (std::uint64_t i = 0; i < kBlocks; ++i) {
            if (manager_.hold(hash_of(i)) || random.below(2) == 0) continue;
            auto [fence, signal] = block::Fence::create();
            cache(i, fence);
            if (random.below(2) == 0)
              fences.push_back({fence, std::move(signal), {}});
            else
              std::move(signal).signal();
          }
          if (random.below(4) == 0 && flying.empty())
            table->withdraw(std::vector{hash_of(random.below(kBlocks))}, OffloadTable::Started::kFinish);
      }
      table->check_invariants();
    }
    for (Taken& taken : std::exchange(flying, {})) finish(*table, std::move(taken));
    fences.clear();  // those left are abandoned: their blocks fail
    run_all(*table);
    const OffloadCounters counters = table->counters();
    EXPECT_EQ(counters.blocked + counters.queue.on_deck + counters.queue.waiting + counters.queue.in_flight,
              0u);
    for (const Made& one : made) {
      const OffloadProgress progress = one.handle.progress();
      EXPECT_EQ(progress.ended(), progress.total);
      if (!one.deadline || *one.deadline > clock_.now()) {
        EXPECT_EQ(progress.late, 0u);
      }
    }
    table->close();
    EXPECT_EQ(manager_.status().held_inactive, 0u);
  }
}

// Many threads: every block is in flight at most once at a time, every call ends, holds are all returned.
TEST_F(OffloadTableTest, ManyThreadsOfferTakeAndCancel) {
  for (std::uint64_t i = 0; i < 64; ++i) cache(i);
  const auto table = this->table(8, 32, 3);
  std::array<std::atomic<int>, 64> flying{};
  std::atomic<int> mistakes{0};
  std::atomic<bool> stop{false};
  std::thread worker([&] {  // as the one of a route: it alone takes and ends batches
    while (!stop) {
      std::optional<Taken> taken = take(*table);
      if (!taken) {
        std::this_thread::yield();
        continue;
      }
      for (const block::Hold& hold : taken->holds)
        if (flying[hold.sequence_hash().chain() - 1]++ != 0) ++mistakes;
      for (const block::Hold& hold : taken->holds) --flying[hold.sequence_hash().chain() - 1];
      const Moved how = taken->batch->control.cancelled() ? Moved::kStopped : Moved::kArrived;
      finish(*table, *std::move(taken), how);
    }
  });
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 1500; ++i) {
        const std::uint64_t which = random.below(64);
        if (i % 64 == 0) table->check_invariants();
        switch (random.below(4)) {
          case 0:
            offer(*table, which, static_cast<std::uint8_t>(random.below(4)));
            break;
          case 1:
            call(table, {which}).cancel();
            break;
          case 2: {
            auto [fence, signal] = block::Fence::create();
            const OffloadHandle handle = call(table, {which}, {.after = {fence}});
            if (random.below(2) == 0) std::move(signal).signal();
            break;  // else it is abandoned
          }
          default:
            table->withdraw(std::vector{hash_of(which)}, OffloadTable::Started::kStop);
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  table->check_invariants();
  EXPECT_TRUE(table->drain({}));
  stop = true;
  worker.join();
  EXPECT_EQ(mistakes, 0);
  table->close();
  EXPECT_EQ(manager_.status().held_inactive, 0u);
  EXPECT_EQ(manager_.available_blocks(), 64u);
  manager_.check_invariants();
}

}  // namespace
}  // namespace ashlar::tiers
