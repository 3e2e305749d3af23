// One node of the radix trees: its edge, its owners and what goes on from it.
#include "index/radix/radix_node.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "ashlar/base/random.h"
#include "index/radix/slot_set.h"

namespace ashlar::index {
namespace {

std::vector<StoredBlock> blocks(std::uint64_t first, std::size_t count) {
  std::vector<StoredBlock> blocks(count);
  for (StoredBlock& block : blocks) block.local = LocalHash(first++);
  return blocks;
}

std::vector<LocalHash> locals(std::uint64_t first, std::size_t count) {
  std::vector<LocalHash> locals(count);
  for (LocalHash& local : locals) local = LocalHash(first++);
  return locals;
}

class RadixNodeTest : public ::testing::Test {
 protected:
  RadixNode& make(std::uint64_t first, std::size_t count) {
    node_ = std::make_unique<RadixNode>(&root_, 0, blocks(first, count), tally_);
    return *node_;
  }

  RadixTally tally_;
  RadixNode root_;
  std::unique_ptr<RadixNode> node_;
};

TEST_F(RadixNodeTest, AnEdgeTakesSixtyFourBlocks) {
  const RadixNode& node = make(100, 70);
  EXPECT_EQ(node.length(), 64u);
  EXPECT_FALSE(node.extends_at(64));
  EXPECT_EQ(node.match(locals(100, 80)), 64u);
  EXPECT_EQ(RadixNode::bits(0, 64), ~std::uint64_t{0});
  EXPECT_EQ(RadixNode::bits(3, 2), 0b11000u);
}

TEST_F(RadixNodeTest, MatchStopsAtTheFirstDifference) {
  const RadixNode& node = make(100, 50);
  for (std::size_t at = 0; at < 50; ++at) {
    std::vector<LocalHash> query = locals(100, 60);
    query[at] = LocalHash(1);
    EXPECT_EQ(node.match(query), at);
    EXPECT_EQ(node.match(locals(100, at)), at);
    std::vector<StoredBlock> run = blocks(103, 60);
    run[at].local = LocalHash(1);
    EXPECT_EQ(node.match(3, run), std::min<std::size_t>(at, 47));
  }
}

TEST_F(RadixNodeTest, AnEdgeGrowsAtItsEndOnly) {
  RadixNode& node = make(100, 3);
  EXPECT_FALSE(node.extends_at(2));
  EXPECT_TRUE(node.extends_at(3));
  EXPECT_EQ(node.extend(blocks(103, 10), tally_), 10u);
  EXPECT_EQ(node.extend(blocks(113, 100), tally_), 51u);
  EXPECT_EQ(node.match(locals(100, 100)), 64u);
  EXPECT_FALSE(root_.extends_at(0));
}

TEST_F(RadixNodeTest, WorkersThatHoldTheWholeEdgeAreFull) {
  RadixNode& node = make(100, 10);
  node.add(200, StorageTier::kDevice, RadixNode::bits(0, 10), tally_);
  node.add(3, StorageTier::kDevice, RadixNode::bits(0, 9), tally_);
  node.add(4, StorageTier::kHost, RadixNode::bits(0, 10), tally_);
  EXPECT_TRUE(node.full().contains(200));
  EXPECT_FALSE(node.full().contains(3));
  EXPECT_FALSE(node.full().contains(4));
  node.add(3, StorageTier::kDevice, RadixNode::bits(9, 1), tally_);
  EXPECT_TRUE(node.full().contains(3));
  node.extend(blocks(110, 1), tally_);
  EXPECT_FALSE(node.full().contains(200));
  EXPECT_FALSE(node.full().contains(3));
}

TEST_F(RadixNodeTest, AnEndThatNobodyHoldsIsCutOff) {
  RadixNode& node = make(100, 10);
  node.add(1, StorageTier::kDevice, RadixNode::bits(0, 10), tally_);
  node.add(2, StorageTier::kDevice, RadixNode::bits(0, 4), tally_);
  node.take(1, StorageTier::kDevice, RadixNode::bits(5, 5), tally_);
  EXPECT_EQ(node.length(), 5u);
  EXPECT_TRUE(node.full().contains(1));
  node.take(1, StorageTier::kDevice, RadixNode::bits(4, 1), tally_);
  EXPECT_TRUE(node.full().contains(2));
  EXPECT_EQ(tally_.contents, 4);
  EXPECT_EQ(tally_.blocks, 8);
}

TEST_F(RadixNodeTest, ABlockInTheMiddleStaysAsPath) {
  RadixNode& node = make(100, 10);
  node.add(1, StorageTier::kDevice, RadixNode::bits(0, 10), tally_);
  node.take(1, StorageTier::kDevice, RadixNode::bits(2, 5), tally_);
  EXPECT_EQ(node.length(), 10u);
  EXPECT_EQ(node.match(locals(100, 10)), 10u);
  EXPECT_EQ(tally_.contents, 5);
}

TEST_F(RadixNodeTest, AChildKeepsTheEdgeUpToItsOffset) {
  RadixNode& node = make(100, 10);
  node.add(1, StorageTier::kDevice, RadixNode::bits(0, 10), tally_);
  auto low = std::make_unique<RadixNode>(&node, 4, blocks(500, 3), tally_);
  auto high = std::make_unique<RadixNode>(&node, 6, blocks(500, 3), tally_);
  node.link(low.get(), tally_);
  node.link(high.get(), tally_);
  EXPECT_EQ(node.child(4, LocalHash(500)), low.get());
  EXPECT_EQ(node.child(6, LocalHash(500)), high.get());
  EXPECT_EQ(node.child(5, LocalHash(500)), nullptr);
  EXPECT_EQ(high->start(), 6u);
  node.take_all(1, tally_);
  EXPECT_EQ(node.length(), 6u);
  node.unlink(high.get(), tally_);
  EXPECT_EQ(node.length(), 4u);
  EXPECT_FALSE(node.vacant());
  node.unlink(low.get(), tally_);
  EXPECT_TRUE(node.vacant());
  EXPECT_EQ(node.length(), 1u);
  EXPECT_EQ(node.match(locals(100, 1)), 1u);
}

TEST_F(RadixNodeTest, TheLastBranchIsKnownWithoutAWalkOverTheChildren) {
  RadixNode& node = make(100, 64);
  std::vector<std::unique_ptr<RadixNode>> children;
  const auto link = [&](std::uint32_t offset, std::uint64_t first) {
    children.push_back(std::make_unique<RadixNode>(&node, offset, blocks(first, 1), tally_));
    node.link(children.back().get(), tally_);
    return children.back().get();
  };
  for (std::uint64_t i = 0; i < 1'000; ++i) link(20, 1'000 + i);
  RadixNode* tail = link(64, 5);
  RadixNode* second_tail = link(64, 6);
  node.add(1, StorageTier::kDevice, 1, tally_);
  const std::uint64_t before = walked_steps;
  node.unlink(tail, tally_);
  EXPECT_EQ(node.length(), 64u);
  node.unlink(second_tail, tally_);
  EXPECT_EQ(node.length(), 20u);
  EXPECT_LE(walked_steps - before, 64u);
  for (std::uint64_t i = 0; i < 1'000; ++i) node.unlink(node.child(20, LocalHash(1'000 + i)), tally_);
  EXPECT_EQ(node.length(), 1u);
  EXPECT_FALSE(node.has_children());
}

TEST_F(RadixNodeTest, AFreedNodeLeavesNoBytes) {
  Random random(5);
  RadixNode& node = make(100, 40);
  for (std::uint32_t slot = 0; slot < 300; slot += 7)
    node.add(slot, kAllStorageTiers[random.below(kStorageTiers)], RadixNode::bits(0, 40), tally_);
  std::vector<std::unique_ptr<RadixNode>> children;
  for (std::uint32_t i = 0; i < 30; ++i) {
    children.push_back(
        std::make_unique<RadixNode>(&node, 1 + i % 40, blocks(std::uint64_t{1000} * (i + 1), 1), tally_));
    node.link(children.back().get(), tally_);
  }
  for (const auto& child : children) {
    node.unlink(child.get(), tally_);
    tally_.bytes -= static_cast<std::int64_t>(child->bytes());
  }
  for (std::uint32_t slot = 0; slot < 300; ++slot) node.take_all(slot, tally_);
  EXPECT_TRUE(node.vacant());
  EXPECT_EQ(tally_.bytes, static_cast<std::int64_t>(node.bytes()));
  EXPECT_EQ(tally_.blocks, 0);
  EXPECT_EQ(tally_.contents, 0);
}

// Owners, full workers and sums against sets of (slot, tier, offset).
TEST_F(RadixNodeTest, HoldsWhatAModelHolds) {
  Random random(9);
  RadixNode& node = make(100, 64);
  std::map<std::uint32_t, std::array<std::uint64_t, kStorageTiers>> model;
  for (int step = 0; step < 4'000; ++step) {
    const auto slot = static_cast<std::uint32_t>(random.below(10) * 37);
    const StorageTier tier = kAllStorageTiers[random.below(kStorageTiers)];
    std::uint64_t& held = model[slot][static_cast<std::size_t>(tier)];
    // The last block is never taken, so that the edge keeps its length.
    std::uint64_t some = RadixNode::bits(static_cast<std::uint32_t>(random.below(32)),
                                         1 + static_cast<std::uint32_t>(random.below(32)));
    if (step < 10 || random.below(2) == 0) {
      some |= std::uint64_t{1} << 63;
      EXPECT_EQ(node.add(slot, tier, some, tally_), held & some);
      held |= some;
    } else if ((some & held) != 0) {
      node.take(slot, tier, some & held, tally_);
      held &= ~some;
    }
    std::int64_t presences = 0;
    std::uint64_t contents = 0;
    std::uint32_t owners = 0;
    for (const auto& [one, masks] : model) {
      std::uint64_t all = 0;
      for (const std::uint64_t mask : masks) {
        presences += std::popcount(mask);
        all |= mask;
      }
      contents |= all;
      owners += all != 0 ? 1 : 0;
      const std::uint32_t at = node.owners().find(one);
      ASSERT_EQ(at < node.owners().size(), all != 0);
      if (all == 0) continue;
      ASSERT_EQ(node.owners().held(at), all);
      for (const StorageTier each : kAllStorageTiers)
        ASSERT_EQ(node.owners().mask(at, each), masks[static_cast<std::size_t>(each)]);
      ASSERT_EQ(node.full().contains(one), masks[0] == ~std::uint64_t{0});
    }
    ASSERT_EQ(node.owners().size(), owners);
    ASSERT_EQ(tally_.blocks, presences);
    ASSERT_EQ(tally_.contents, std::popcount(contents));
    ASSERT_EQ(tally_.bytes, static_cast<std::int64_t>(node.bytes()));
  }
}

TEST(SlotSetTest, HoldsWhatAModelHolds) {
  Random random(2);
  for (const std::uint32_t range : {64u, 128u, 1'000u}) {
    SlotSet set;
    std::set<std::uint32_t> model;
    for (int step = 0; step < 2'000; ++step) {
      const auto slot = static_cast<std::uint32_t>(1'000 + random.below(range));
      if (random.below(3) != 0) {
        set.insert(slot);
        model.insert(slot);
      } else {
        set.erase(slot);
        model.erase(slot);
      }
      if (step % 500 == 499) {
        set.clear();
        model.clear();
      }
      for (std::size_t word = 0; word < 40; ++word) {
        std::uint64_t expected = 0;
        for (const std::uint32_t one : model)
          if (one / 64 == word) expected |= std::uint64_t{1} << (one % 64);
        ASSERT_EQ(set.word(word), expected);
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::index
