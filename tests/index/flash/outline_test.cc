// outline() tells the same as the other questions to an index, after any history.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/index/flash_index.h"

namespace ashlar::index {
namespace {

// A chain of blocks below another, for one worker.
void store_chain(FlashIndex& index, const Worker& worker, StorageTier tier, std::optional<BlockName> parent,
                 std::uint64_t first, std::size_t count) {
  std::vector<events::StoredBlock> blocks;
  for (std::size_t i = 0; i < count; ++i)
    blocks.push_back({.local = LocalHash(first + i), .name = BlockName(first + i)});
  BlocksStored event;
  event.worker = worker;
  event.tier = tier;
  event.parent = parent;
  event.blocks = blocks;
  ASSERT_EQ(index.store(event), StoreVerdict::kApplied);
}

// Of a whole outline: every content once, and what each worker holds.
struct OutlineSums {
  std::uint64_t contents = 0;
  std::map<Worker, std::uint64_t> held;
};

OutlineSums sums_of(const IndexOutline& outline) {
  OutlineSums sums;
  std::size_t at = 0;
  for (std::size_t i = 0; i < outline.runs.size(); ++i) {
    const IndexOutline::Run& run = outline.runs[i];
    EXPECT_TRUE(run.parent == IndexOutline::kNoRun || run.parent < i) << "parents come first";
    EXPECT_EQ(run.position == 0, run.parent == IndexOutline::kNoRun);
    sums.contents += run.blocks;
    for (std::uint32_t left = run.holders; left > 0; --left, ++at) {
      EXPECT_LE(outline.holders[at].blocks, run.blocks);
      sums.held[outline.workers[outline.holders[at].worker]] += outline.holders[at].blocks;
    }
  }
  EXPECT_EQ(at, outline.holders.size());
  return sums;
}

TEST(FlashOutline, AnEmptyIndexHasNoRuns) {
  const FlashIndex index;
  IndexOutline outline;
  outline.runs.emplace_back();
  index.outline(outline);
  EXPECT_TRUE(outline.runs.empty());
}

TEST(FlashOutline, ABlockInTwoTiersCountsOnce) {
  FlashIndex index;
  const Worker worker{.id = WorkerId(1)};
  store_chain(index, worker, StorageTier::kDevice, {}, 100, 10);
  store_chain(index, worker, StorageTier::kHost, {}, 100, 4);
  IndexOutline outline;
  index.outline(outline);
  const OutlineSums sums = sums_of(outline);
  EXPECT_EQ(sums.contents, 10u);
  EXPECT_EQ(sums.held.at(worker), 10u);
}

// places() of a chain of 8 blocks and 12 of a branch, from `first` on, beside what the workers list.
void expect_places(const FlashIndex& index, const std::vector<Worker>& workers, std::uint64_t stem,
                   std::uint64_t branch, std::size_t first) {
  std::vector<LocalHash> locals;
  for (std::uint64_t i = 0; i < 20; ++i) locals.emplace_back(i < 8 ? stem + i : stem + branch + i - 8);
  std::map<Worker, std::set<std::uint64_t>> held;
  for (const Worker& worker : workers) {
    std::vector<BlockPresence> list;
    ASSERT_TRUE(index.list(worker, list));
    for (const BlockPresence& block : list)
      if (block.is_held()) held[worker].insert(block.local.value());
  }
  for (const Worker& worker : workers) {
    std::vector<BlockPlace> places(locals.size() - first);
    index.places(locals, first, worker, places);
    for (std::size_t i = first; i < locals.size(); ++i) {
      BlockPlace expected = BlockPlace::kNowhere;
      for (const auto& [holder, contents] : held)
        if (contents.contains(locals[i].value()) && expected != BlockPlace::kHere)
          expected = holder == worker ? BlockPlace::kHere : BlockPlace::kElsewhere;
      EXPECT_EQ(places[i - first], expected) << "block " << i << " of " << stem << " and " << branch;
    }
  }
  std::vector<BlockPlace> none(locals.size() - first);
  index.places(locals, first, {.id = WorkerId(99)}, none);
  EXPECT_EQ(std::ranges::count(none, BlockPlace::kHere), 0);
}

TEST(FlashOutline, AgreesWithListsAfterAnyHistory) {
  Random random(7);
  FlashIndex index;
  std::vector<Worker> workers;
  for (std::uint32_t i = 0; i < 6; ++i) workers.push_back({.id = WorkerId(i / 2 + 1), .rank = i % 2});
  // Chains of 20 blocks that branch at their 8th: names follow from contents.
  for (int step = 0; step < 400; ++step) {
    const Worker worker = workers[random.next() % workers.size()];
    const std::uint64_t stem = 1000 * (1 + random.next() % 5);
    const std::uint64_t branch = stem + 100 * (1 + random.next() % 4);
    const auto tier = static_cast<StorageTier>(random.next() % 2);
    switch (random.next() % 8) {
      case 0:
        if (random.next() % 10 == 0) index.clear(worker);
        break;
      case 1:
      case 2: {
        std::vector<BlockName> names;
        for (std::uint64_t i = 0; i < 5; ++i) names.emplace_back(branch + random.next() % 12);
        index.remove(worker, tier, names);
        break;
      }
      default:
        store_chain(index, worker, tier, {}, stem, 8);
        store_chain(index, worker, tier, BlockName(stem + 7), branch, 12);
    }
    if (step % 20 != 0) continue;
    IndexOutline outline;
    index.outline(outline);
    const OutlineSums sums = sums_of(outline);
    for (const Worker& one : workers) {
      std::vector<BlockPresence> list;
      ASSERT_TRUE(index.list(one, list));
      std::set<std::uint64_t> contents;
      for (const BlockPresence& block : list)
        if (block.is_held()) contents.insert(block.local.value());
      const auto held = sums.held.find(one);
      EXPECT_EQ(held == sums.held.end() ? 0 : held->second, contents.size()) << step;
    }
    EXPECT_EQ(sums.contents, index.sizes().contents) << step;
    expect_places(index, workers, 1000 * (1 + random.next() % 5), 100 * (1 + random.next() % 4),
                  random.next() % 21);
  }
}

// While a writer adds to chains, cuts them and removes some, every block of a part that nobody touches is
// told, each once.
TEST(FlashOutline, TellsWhatStaysWhileOthersWrite) {
  FlashIndex index;
  const Worker still{.id = WorkerId(1)};
  constexpr std::uint64_t kChains = 3000;  // several parts of the walk
  for (std::uint64_t i = 0; i < kChains; ++i) store_chain(index, still, StorageTier::kDevice, {}, i << 20, 6);
  std::atomic<bool> stops{false};
  std::atomic<std::uint64_t> rounds{0};
  std::thread writer([&] {
    Random random(5);
    const Worker busy{.id = WorkerId(2)};
    while (!stops.load()) {
      // Branches off in the middle of a chain that the other worker holds whole, and is cleared later.
      const std::uint64_t chain = random.next() % kChains << 20;
      store_chain(index, busy, StorageTier::kDevice, {}, chain, 3);
      store_chain(index, busy, StorageTier::kDevice, BlockName(chain + 2), chain + 100, 4);
      if (rounds.fetch_add(1) % 200 == 199) index.clear(busy);
    }
  });
  // Until enough was written between the parts of walks.
  for (int walks = 0; walks < 20 || rounds.load() < 4000; ++walks) {
    IndexOutline outline;
    index.outline(outline);
    const OutlineSums sums = sums_of(outline);
    ASSERT_EQ(sums.held.at(still), 6 * kChains);
  }
  stops.store(true);
  writer.join();
}

}  // namespace
}  // namespace ashlar::index
