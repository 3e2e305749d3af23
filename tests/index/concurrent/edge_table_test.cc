// The table of children: what a map does, and what readers see while it grows and shrinks.
#include "index/flash/edge_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "index/flash/node_arena.h"

namespace ashlar::index::detail {
namespace {

class EdgeTableTest : public ::testing::Test {
 protected:
  ~EdgeTableTest() override {
    for (Node* const node : made_) arena_.free(node);
  }
  Node* make(std::uint32_t parent, std::uint64_t local) {
    Node* const node = arena_.allocate(1);
    node->parent = parent;
    node->hashes()[0] = local;
    made_.push_back(node);
    return node;
  }
  Node* look_up(std::uint32_t parent, std::uint64_t local) {
    EraDomain::Guard guard = domain_.enter();
    for (;;) {
      const EdgeTable::Found found = table_.find(parent, local, guard);
      if (!found.era_over) return found.node;
      guard.renew();
    }
  }

  EraDomain domain_;
  EdgeTable table_{domain_, TableSeed(1)};
  SlabPool pool_;
  NodeArena arena_{pool_};
  std::vector<Node*> made_;
};

TEST_F(EdgeTableTest, DoesWhatAMapDoes) {
  Random random(1);
  std::map<std::pair<std::uint32_t, std::uint64_t>, Node*> model;
  for (int step = 0; step < 30'000; ++step) {
    // It grows, then empties, and so on.
    const bool grows = step / 5'000 % 2 == 0;
    const std::pair<std::uint32_t, std::uint64_t> key(1 + random.below(4), random.below(3'000));
    const auto held = model.find(key);
    ASSERT_EQ(look_up(key.first, key.second), held == model.end() ? nullptr : held->second);
    ASSERT_EQ(table_.find(key.first, key.second), held == model.end() ? nullptr : held->second);
    if (held == model.end()) {
      if (!grows && random.below(10) != 0) continue;
      Node* const node = make(key.first, key.second);
      table_.insert(node);
      model[key] = node;
    } else if (random.below(8) == 0) {
      Node* const fresh = make(key.first, key.second);
      table_.replace(held->second, fresh);
      held->second = fresh;
    } else if (!grows || random.below(10) == 0) {
      table_.erase(held->second);
      model.erase(held);
    }
    ASSERT_EQ(table_.size(), model.size());
  }
  for (const auto& [key, node] : model) {
    ASSERT_EQ(look_up(key.first, key.second), node);
    table_.erase(node);
  }
  while (!table_.free_some(1)) {
  }
  domain_.flush();
  EXPECT_EQ(table_.bytes(), 0u);
}

// Local hashes that met in one bucket of a table with a known hash function, and others that differ in few
// bits.
TEST_F(EdgeTableTest, ChosenHashesDoNotMeet) {
  constexpr std::uint64_t kEdges = 20'000;
  const auto inverse = [](std::uint64_t odd) {
    std::uint64_t found = 1;
    for (int round = 0; round < 6; ++round) found *= 2 - odd * found;
    return found;
  };
  const std::uint64_t first = inverse(0xBF58476D1CE4E5B9u);
  const std::uint64_t second = inverse(0x94D049BB133111EBu);
  const auto unmixed = [&](std::uint64_t i) {
    std::uint64_t hash = (i * 0x10001 << 32) * second;
    hash ^= hash >> 32;
    return hash * first ^ 0x9E3779B97F4A7C15u;
  };
  for (int family = 0; family < 5; ++family) {
    std::vector<Node*> nodes;
    for (std::uint64_t i = 0; i < kEdges; ++i) {
      const std::uint64_t locals[] = {unmixed(i), i, i << 49, i << 32, 5};
      nodes.push_back(make(family == 4 ? static_cast<std::uint32_t>(i) + 1 : 1, locals[family]));
      table_.insert(nodes.back());
    }
    EXPECT_LE(table_.longest_search(), 4u) << "family " << family;
    for (Node* const node : nodes) table_.erase(node);
    while (!table_.free_some(16)) {
    }
  }
  domain_.flush();
  EXPECT_EQ(table_.bytes(), 0u);
}

// Entries that stay are found at every instant, whatever comes and goes beside them.
TEST_F(EdgeTableTest, ReadersFindWhatStaysWhileTheTableGrowsAndShrinks) {
  constexpr std::uint64_t kStaying = 300;
  std::vector<Node*> staying;
  for (std::uint64_t i = 0; i < kStaying; ++i) {
    staying.push_back(make(7, i));
    table_.insert(staying.back());
  }
  std::vector<Node*> passing;
  for (std::uint64_t i = 0; i < 4'000; ++i) passing.push_back(make(8, i));
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> missed{0};
  std::atomic<std::uint64_t> invented{0};
  {
    std::vector<std::jthread> readers;
    for (std::uint64_t r = 0; r < 2; ++r)
      readers.emplace_back([&, r] {
        Random random(r);
        while (!done.load(std::memory_order_relaxed)) {
          const std::uint64_t i = random.below(kStaying);
          missed += look_up(7, i) != staying[i];
          invented += look_up(9, i) != nullptr;
        }
      });
    for (int round = 0; round < 12; ++round) {
      for (Node* const node : passing) table_.insert(node);
      for (Node* const node : passing) table_.erase(node);
      domain_.flush();
    }
    done.store(true, std::memory_order_relaxed);
  }
  EXPECT_EQ(missed.load(), 0u);
  EXPECT_EQ(invented.load(), 0u);
  for (Node* const node : staying) table_.erase(node);
  domain_.flush();
}

}  // namespace
}  // namespace ashlar::index::detail
