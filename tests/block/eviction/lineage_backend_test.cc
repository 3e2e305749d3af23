// LineageBackend: leaves first, in both orders; against a naive model and by example.
#include "block/eviction/lineage_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ashlar/base/random.h"
#include "support/block_fixture.h"
#include "support/rounds.h"

namespace ashlar::block {
namespace {

using support::make_registry;
using support::value_of;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using tokens::SequenceHash;

constexpr std::array kOrders = {LineageOrder::kOldestChainFirst, LineageOrder::kRoundRobin};

SequenceHash chained(std::uint64_t position, std::uint64_t chain, std::uint64_t parent_chain = 0) {
  return value_of(SequenceHash::make(position, chain, parent_chain));
}
SequenceHash keyed(std::uint64_t position, std::uint64_t digest_hi, std::uint64_t digest_lo) {
  return value_of(SequenceHash::make_keyed(position, digest_hi, digest_lo));
}
// A name with the parent and the fragment of another, but not that name: the top bit of the chain hash, or of
// the digest, differs.
SequenceHash twin_of(const SequenceHash& name) {
  const unsigned high = name.is_keyed() ? 38 : name.mode() == 0 ? 54 : name.mode() == 1 ? 46 : 38;
  return SequenceHash::from_bits(name.hi() ^ (std::uint64_t{1} << (high - 1)), name.lo());
}
// `count` names, each the child of the one before.
std::vector<SequenceHash> chain_of(std::size_t count, std::uint64_t first_chain, std::uint32_t from = 0) {
  std::vector<SequenceHash> names = {chained(from, first_chain)};
  while (names.size() < count) {
    names.push_back(value_of(names.back().child(first_chain + names.size() * 0x9E3779B97F4A7C15u)));
  }
  return names;
}

// A backend, and the facts it reads.
class Lineage {
 public:
  explicit Lineage(std::uint32_t blocks, LineageOrder order = LineageOrder::kOldestChainFirst)
      : context_(blocks, shared_registry()), backend_(context_, order) {}

  LineageBackend* operator->() { return &backend_; }
  void registered(std::uint32_t id, const SequenceHash& name,
                  const std::optional<SequenceHash>& parent = std::nullopt) {
    context_.facts->set_parent(BlockId(id), parent);
    backend_.registered(BlockId(id), name);
  }
  void insert(std::uint32_t id, const SequenceHash& name,
              const std::optional<SequenceHash>& parent = std::nullopt) {
    context_.facts->set_parent(BlockId(id), parent);
    backend_.insert(BlockId(id), name);
  }
  // Ids first, first + 1, … for the names; all in use.
  void registered_all(std::uint32_t first, const std::vector<SequenceHash>& names) {
    for (const SequenceHash& name : names) registered(first++, name);
  }
  // As a sequence is released: the tail first.
  void insert_tail_first(std::uint32_t first, const std::vector<SequenceHash>& names) {
    for (std::size_t i = names.size(); i-- > 0;) insert(first + static_cast<std::uint32_t>(i), names[i]);
  }
  std::optional<std::uint32_t> pop() {
    const auto victim = backend_.pop();
    return victim ? std::optional(victim->value()) : std::nullopt;
  }
  std::vector<std::uint32_t> peeked(std::size_t n) const {
    std::vector<BlockId> ids(n);
    ids.resize(backend_.peek(ids));
    std::vector<std::uint32_t> values;
    for (const BlockId id : ids) values.push_back(id.value());
    return values;
  }
  // Also proves that peek() foretells it.
  std::vector<std::uint32_t> drained() {
    const auto foretold = peeked(backend_.size() + 1);
    std::vector<std::uint32_t> ids;
    while (const auto victim = pop()) ids.push_back(*victim);
    EXPECT_EQ(foretold, ids);
    EXPECT_EQ(backend_.size(), 0u);
    return ids;
  }

 private:
  // The backend does not use it; making one for each of thousands takes time.
  static const BlockRegistry& shared_registry() {
    static const BlockRegistry registry = make_registry();
    return registry;
  }

  EvictionContext context_;
  LineageBackend backend_;
};

// ---- the order, by definition

// What the header says, without structure: every question goes over all blocks.
class NaiveLineage {
 public:
  struct Name {
    SequenceHash hash;
    std::optional<SequenceHash> parent;  // what the facts say; of meaning for keyed names
  };

  NaiveLineage(std::size_t blocks, LineageOrder order) : order_(order), blocks_(blocks) {}

  void registered(std::size_t id, const Name& name) {
    announce(id, name);
    blocks_[id].inactive = false;
  }
  void unregistered(std::size_t id) {
    blocks_[id] = {};
    settle();
  }
  void insert(std::size_t id, const Name& name) {
    announce(id, name);
    blocks_[id].inactive = true;
    touch(id);
  }
  void remove(std::size_t id) { blocks_[id].inactive = false; }
  void touch(std::size_t id) {
    blocks_[id].leaf = is_leaf(id);
    blocks_[id].tick = blocks_[id].moved = ++now_;
  }
  std::optional<std::uint32_t> pop() {
    std::optional<std::size_t> victim;
    for (std::size_t id = 0; id < blocks_.size(); ++id) {
      if (blocks_[id].inactive && (!victim || rank(id) < rank(*victim))) victim = id;
    }
    if (!victim) return std::nullopt;
    unregistered(*victim);
    return static_cast<std::uint32_t>(*victim);
  }
  std::vector<std::uint32_t> peeked(std::size_t n) const {
    NaiveLineage copy = *this;
    std::vector<std::uint32_t> victims;
    while (victims.size() < n) {
      const auto victim = copy.pop();
      if (!victim) break;
      victims.push_back(*victim);
    }
    return victims;
  }
  bool is_inactive(std::size_t id) const { return blocks_[id].inactive; }
  std::size_t size() const {
    return static_cast<std::size_t>(
        std::count_if(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.inactive; }));
  }

 private:
  struct Block {
    std::optional<Name> name;
    bool inactive = false;
    bool leaf = false;
    std::uint64_t registered = 0;
    std::uint64_t tick = 0;   // of the last release or touch
    std::uint64_t moved = 0;  // when it became what it is: a leaf, or not
  };

  // Whether children of one are children of the other, as far as names tell.
  static bool alike(const SequenceHash& a, const SequenceHash& b) {
    if (a.position() != b.position() || a.is_keyed() != b.is_keyed()) return false;
    if (a.is_keyed()) return a.lo() == b.lo();
    return a.fragment_for_child() && a.fragment_for_child() == b.fragment_for_child();
  }
  static bool is_parent_of(const SequenceHash& parent, const Name& child) {
    if (child.hash.is_keyed()) return child.parent && alike(parent, *child.parent);
    return !parent.is_keyed() && parent.position() + 1 == child.hash.position() &&
           parent.fragment_for_child() == child.hash.parent_fragment();
  }
  // The same life, as far as parents and children can tell.
  static bool same(const Name& a, const Name& b) {
    const auto told = [](const Name& name) {
      const SequenceHash& hash = name.hash;
      return hash.is_keyed() ? std::tuple(hash.position(), hash.lo(), std::uint64_t{3})
                             : std::tuple(hash.position(), hash.fragment_for_child().value_or(0),
                                          hash.parent_fragment() << 2);
    };
    if (told(a) != told(b)) return false;
    if (!a.hash.is_keyed()) return true;
    return a.parent.has_value() == b.parent.has_value() && (!a.parent || alike(*a.parent, *b.parent));
  }
  bool is_leaf(std::size_t id) const {
    return std::none_of(blocks_.begin(), blocks_.end(), [&](const Block& other) {
      return other.name && is_parent_of(blocks_[id].name->hash, *other.name);
    });
  }
  std::tuple<bool, std::uint64_t> rank(std::size_t id) const {
    const Block& block = blocks_[id];
    return {!block.leaf, order_ == LineageOrder::kOldestChainFirst ? block.tick : block.moved};
  }
  void announce(std::size_t id, const Name& name) {
    if (blocks_[id].name && same(*blocks_[id].name, name)) return;
    if (blocks_[id].name) unregistered(id);
    blocks_[id].name = name;
    blocks_[id].registered = ++now_;
    settle();
  }
  // Blocks that became leaves, or ceased to be, move: those registered first go first.
  void settle() {
    std::vector<std::size_t> ids(blocks_.size());
    std::iota(ids.begin(), ids.end(), 0u);
    std::sort(ids.begin(), ids.end(),
              [&](std::size_t a, std::size_t b) { return blocks_[a].registered < blocks_[b].registered; });
    for (const std::size_t id : ids) {
      if (!blocks_[id].inactive || blocks_[id].leaf == is_leaf(id)) continue;
      blocks_[id].leaf = !blocks_[id].leaf;
      blocks_[id].moved = ++now_;
    }
  }

  LineageOrder order_;
  std::vector<Block> blocks_;
  std::uint64_t now_ = 0;
};

// A small forest of names with twins: chained, keyed or both, across a change of the fragment's width or not.
std::vector<NaiveLineage::Name> forest(Random& random, std::size_t count) {
  constexpr std::array<std::uint32_t, 5> kBases = {0, 0, 253, 65533, SequenceHash::kMaxPosition - 2};
  const std::uint32_t base = kBases[random.below(kBases.size())];
  const double keyed_share = static_cast<double>(random.below(3)) / 2;
  std::vector<NaiveLineage::Name> names;
  for (std::size_t i = 0; i < count; ++i) {
    if (!names.empty() && random.chance(0.25)) {
      const NaiveLineage::Name& other = names[random.below(names.size())];
      names.push_back({twin_of(other.hash), other.parent});
      continue;
    }
    const auto* parent =
        names.empty() || random.chance(0.2) ? nullptr : &names[random.below(names.size())].hash;
    if (parent != nullptr && parent->position() == SequenceHash::kMaxPosition) parent = nullptr;
    const std::uint32_t position = parent != nullptr ? parent->position() + 1 : base;
    if (parent != nullptr ? parent->is_keyed() : random.chance(keyed_share)) {
      const SequenceHash name = keyed(position, random.next(), random.next());
      const bool known = parent != nullptr && random.chance(0.8);
      const bool own = random.chance(0.03);  // nonsense, and harmless
      names.push_back({name, own ? std::optional(name) : known ? std::optional(*parent) : std::nullopt});
    } else {
      names.push_back(
          {chained(position, random.next(), parent != nullptr ? parent->chain() : random.next()), {}});
    }
  }
  return names;
}

void agrees_with_the_naive_model(LineageOrder order, std::uint64_t seed) {
  Random random(seed);
  const auto blocks = static_cast<std::uint32_t>(1 + random.below(12));
  const auto names = forest(random, 1 + random.below(16));
  const bool orderly = random.chance(0.5);  // as a store would, or anything
  Lineage lineage(blocks, order);
  NaiveLineage model(blocks, order);
  for (int turn = 0; turn < 80; ++turn) {
    const auto id = static_cast<std::uint32_t>(random.below(blocks));
    const auto& name = names[orderly ? id % names.size() : random.below(names.size())];
    switch (random.below(8)) {
      case 0:
        if (orderly && model.is_inactive(id)) break;
        lineage.registered(id, name.hash, name.parent);
        model.registered(id, name);
        break;
      case 1:
      case 2:
      case 3:
        if (orderly && model.is_inactive(id)) break;
        lineage.insert(id, name.hash, name.parent);
        model.insert(id, name);
        break;
      case 4:
        if (!model.is_inactive(id)) break;
        lineage->remove(BlockId(id));
        model.remove(id);
        break;
      case 5:
        if (!model.is_inactive(id)) break;
        lineage->touch(BlockId(id));
        model.touch(id);
        break;
      case 6:
        if (orderly && model.is_inactive(id)) break;
        lineage->unregistered(BlockId(id));
        model.unregistered(id);
        break;
      default:
        ASSERT_EQ(lineage.pop(), model.pop()) << "turn " << turn;
        break;
    }
    ASSERT_EQ(lineage->size(), model.size()) << "turn " << turn;
    const std::size_t ahead = random.below(blocks + 2);
    ASSERT_EQ(lineage.peeked(ahead), model.peeked(ahead)) << "turn " << turn;
  }
  ASSERT_EQ(lineage.drained(), model.peeked(blocks));
}

TEST(LineageBackendTest, AgreesWithTheNaiveModelThroughRandomPrograms) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(4000); ++seed) {
    for (const LineageOrder order : kOrders) {
      SCOPED_TRACE("order " + std::to_string(static_cast<int>(order)) + ", seed " + std::to_string(seed));
      agrees_with_the_naive_model(order, seed);
      if (HasFatalFailure()) return;
    }
  }
}

// ---- examples

TEST(LineageBackendTest, TheOldestChainGoesWholeFromItsTail) {
  Lineage lineage(20);
  const auto a = chain_of(3, 100);
  const auto b = chain_of(3, 200);
  lineage.registered_all(0, a);
  lineage.registered_all(10, b);
  lineage.insert_tail_first(0, a);
  lineage.insert_tail_first(10, b);
  EXPECT_THAT(lineage.drained(), ElementsAre(2, 1, 0, 12, 11, 10));
}

TEST(LineageBackendTest, RoundRobinTakesATailOfEveryChainInTurn) {
  Lineage lineage(20, LineageOrder::kRoundRobin);
  const auto a = chain_of(3, 100);
  const auto b = chain_of(3, 200);
  lineage.registered_all(0, a);
  lineage.registered_all(10, b);
  lineage.insert_tail_first(0, a);
  lineage.insert_tail_first(10, b);
  EXPECT_THAT(lineage.drained(), ElementsAre(2, 12, 1, 11, 0, 10));
}

TEST(LineageBackendTest, AChainReleasedHeadFirstIsStillPeeledFromItsTail) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(4, order);
    const auto names = chain_of(4, 7);
    for (std::uint32_t id = 0; id < 4; ++id) lineage.insert(id, names[id]);  // not announced before
    EXPECT_THAT(lineage.drained(), ElementsAre(3, 2, 1, 0));
  }
}

TEST(LineageBackendTest, ASharedPrefixGoesWhenItsLastBranchIsGone) {
  Lineage lineage(8);
  const auto trunk = chain_of(2, 1);
  lineage.insert(0, trunk[0]);
  lineage.insert(1, trunk[1]);
  for (const std::uint32_t branch : {2u, 3u, 4u}) lineage.insert(branch, value_of(trunk[1].child(branch)));
  EXPECT_THAT(lineage.drained(), ElementsAre(2, 3, 4, 1, 0));
}

TEST(LineageBackendTest, ATouchedLeafGoesLater) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(4, order);
    for (std::uint32_t id = 0; id < 3; ++id) lineage.insert(id, chained(0, id));
    lineage->touch(BlockId(0));
    EXPECT_THAT(lineage.drained(), ElementsAre(1, 2, 0));
  }
}

TEST(LineageBackendTest, TheParentOfABlockInUseIsTheLastResort) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(8, order);
    const auto names = chain_of(3, 5);
    lineage.registered_all(0, names);  // block 2 stays in use
    lineage.insert(0, names[0]);
    lineage.insert(1, names[1]);
    lineage.insert(6, chained(0, 77));
    EXPECT_EQ(lineage.pop(), 6u);
    EXPECT_EQ(lineage.pop(), 0u);  // the oldest: neither is a leaf
    EXPECT_EQ(lineage.pop(), 1u);
    EXPECT_EQ(lineage.pop(), std::nullopt);
  }
}

TEST(LineageBackendTest, AParentBecomesALeafWhenItsChildInUseIsUnregistered) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(8, order);
    const auto names = chain_of(2, 5);
    lineage.registered_all(0, names);
    lineage.insert(0, names[0]);
    lineage.insert(4, chained(0, 77));
    EXPECT_THAT(lineage.peeked(2), ElementsAre(4, 0));
    lineage->unregistered(BlockId(1));
    lineage->unregistered(BlockId(1));  // not known any more: nothing happens
    if (order == LineageOrder::kOldestChainFirst) {
      EXPECT_THAT(lineage.drained(), ElementsAre(0, 4));
    } else {
      EXPECT_THAT(lineage.drained(), ElementsAre(4, 0));
    }
  }
}

TEST(LineageBackendTest, ALeafIsALeafNoMoreWhenAChildIsRegistered) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(8, order);
    const auto names = chain_of(2, 5);
    lineage.insert(0, names[0]);
    lineage.insert(1, chained(0, 99));
    EXPECT_THAT(lineage.peeked(8), ElementsAre(0, 1));
    lineage.registered(2, names[1]);
    EXPECT_THAT(lineage.peeked(8), ElementsAre(1, 0));
  }
}

TEST(LineageBackendTest, AChildMayBeRegisteredBeforeItsParent) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(8, order);
    const auto names = chain_of(2, 5);
    lineage.registered(1, names[1]);
    lineage.insert(0, names[0]);
    lineage.insert(3, chained(0, 99));
    EXPECT_THAT(lineage.peeked(8), ElementsAre(3, 0));
    lineage.insert(1, names[1]);
    EXPECT_THAT(lineage.drained(), ElementsAre(3, 1, 0));
  }
}

TEST(LineageBackendTest, AChildWhoseParentNeverComesIsALeafLikeAnother) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(8, order);
    lineage.insert(0, chained(9, 1, 1000));
    lineage.insert(1, chained(0, 2));
    lineage.insert(2, chained(9, 3, 1000));
    lineage.insert(3, keyed(9, 4, 4));  // keyed, its parent not known
    EXPECT_THAT(lineage.drained(), ElementsAre(0, 1, 2, 3));
  }
}

TEST(LineageBackendTest, KeyedNamesFindTheirParentsInTheFacts) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(8, order);
    const SequenceHash head = keyed(0, 1, 10);
    const SequenceHash tail = keyed(1, 2, 20);
    const SequenceHash stray = keyed(1, 3, 30);
    lineage.insert(0, head);
    lineage.insert(1, stray);
    lineage.insert(2, tail, head);
    EXPECT_THAT(lineage.drained(), ElementsAre(1, 2, 0));
  }
}

TEST(LineageBackendTest, ANewNameIsANewLife) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(8, order);
    const auto a = chain_of(2, 100);
    const auto b = chain_of(2, 200);
    lineage.insert(0, a[0]);
    lineage.insert(1, b[0]);
    lineage.registered(2, a[1]);
    EXPECT_THAT(lineage.peeked(8), ElementsAre(1, 0));
    lineage.registered(2, b[1]);  // nobody said that its first life ended
    EXPECT_THAT(lineage.peeked(8), ElementsAre(0, 1));
    lineage.insert(2, a[1]);
    EXPECT_THAT(lineage.drained(), ElementsAre(1, 2, 0));
  }
}

TEST(LineageBackendTest, TwoBlocksOfOneNameAreBothHeldAndBothGoOnce) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(8, order);
    const auto names = chain_of(2, 5);
    for (const std::uint32_t id : {0u, 1u}) lineage.insert(id, names[0]);
    for (const std::uint32_t id : {2u, 3u}) lineage.insert(id, names[1]);
    EXPECT_THAT(lineage.drained(), ElementsAre(2, 3, 0, 1));
  }
}

TEST(LineageBackendTest, AParentIsFoundWhereTheWidthOfTheFragmentChanges) {
  // The child's position decides: 54 bits up to 255, 46 up to 65535, 38 beyond.
  constexpr std::uint64_t kChain = 0xFEDC'BA98'7654'3210u;
  for (const LineageOrder order : kOrders) {
    for (const std::uint32_t position : {254u, 255u, 256u, 65534u, 65535u, 65536u}) {
      Lineage lineage(4, order);
      lineage.insert(0, chained(position, kChain, 1));
      lineage.insert(1, chained(position + 1, 2, kChain));
      lineage.insert(2, chained(position + 1, 3, kChain ^ 1));  // no child of it
      EXPECT_THAT(lineage.drained(),
                  order == LineageOrder::kOldestChainFirst ? ElementsAre(1, 0, 2) : ElementsAre(1, 2, 0))
          << position;
    }
  }
}

TEST(LineageBackendTest, TheLastPositionHasNoChildren) {
  for (const LineageOrder order : kOrders) {
    Lineage lineage(4, order);
    const auto names = chain_of(3, 9, SequenceHash::kMaxPosition - 2);
    for (std::uint32_t id = 0; id < 3; ++id) lineage.insert(id, names[id]);
    EXPECT_THAT(lineage.drained(), ElementsAre(2, 1, 0));
  }
}

TEST(LineageBackendTest, BlocksThatCollideAreKeptAndFreedTogether) {
  for (const LineageOrder order : kOrders) {
    for (const bool with_key : {false, true}) {
      Lineage lineage(8, order);
      const SequenceHash parent = with_key ? keyed(3, 1, 500) : chained(3, 500, 1);
      const SequenceHash child = with_key ? keyed(4, 2, 600) : chained(4, 600, 500);
      ASSERT_NE(twin_of(parent), parent);
      ASSERT_EQ(twin_of(parent).fragment_for_child(), parent.fragment_for_child());
      lineage.insert(0, twin_of(parent));
      lineage.insert(1, parent);
      lineage.registered(2, child, parent);
      lineage.insert(3, chained(0, 1));
      EXPECT_THAT(lineage.peeked(8), ElementsAre(3, 0, 1));
      lineage.insert(2, child, parent);
      EXPECT_THAT(lineage.drained(), ElementsAre(3, 2, 0, 1));
    }
  }
}

TEST(LineageBackendTest, APoolOfNothingButCollisionsGivesBackEveryBlockOnce) {
  constexpr std::uint32_t kBlocks = 300;
  for (const LineageOrder order : kOrders) {
    Lineage lineage(kBlocks, order);
    Random random(11);
    for (int round = 0; round < 5; ++round) {
      for (std::uint32_t id = 0; id < kBlocks; ++id) {
        // Ten names at each of six positions that all look alike to their children.
        const std::uint64_t chain = 42 | random.below(10) << 58;
        lineage.insert(id, chained(random.below(6), chain, 42));
      }
      EXPECT_EQ(lineage->size(), kBlocks);
      auto ids = lineage.drained();
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      EXPECT_EQ(ids.size(), kBlocks);
    }
  }
}

TEST(LineageBackendTest, AChainOfAHundredThousandBlocksIsPeeledFromItsTail) {
  constexpr std::uint32_t kBlocks = 100'000;
  const auto names = chain_of(kBlocks, 3);
  std::vector<std::uint32_t> tail_to_head(kBlocks);
  std::iota(tail_to_head.rbegin(), tail_to_head.rend(), 0u);
  for (const LineageOrder order : kOrders) {
    for (const bool tail_first : {true, false}) {
      Lineage lineage(kBlocks, order);
      lineage.registered_all(0, names);
      if (tail_first) {
        lineage.insert_tail_first(0, names);
      } else {
        for (std::uint32_t id = 0; id < kBlocks; ++id) lineage.insert(id, names[id]);
      }
      EXPECT_TRUE(lineage.drained() == tail_to_head);
    }
  }
}

TEST(LineageBackendTest, AFullPoolOfStrangersFindsRoomForEveryLife) {
  // Every block has a parent that never comes: the most families that a pool can have, over and over.
  constexpr std::uint32_t kBlocks = 64;
  for (const LineageOrder order : kOrders) {
    Lineage lineage(kBlocks, order);
    Random random(5);
    for (int life = 0; life < 20'000; ++life) {
      const auto name = chained(1 + random.below(1000), random.next(), random.next());
      lineage.insert(static_cast<std::uint32_t>(random.below(kBlocks)), name);
    }
    EXPECT_EQ(lineage.drained().size(), kBlocks);
  }
}

TEST(LineageBackendTest, APoolTooLargeToNumberItsFamiliesIsRefused) {
  EvictionContext context(1, make_registry());
  context.block_count = LineageBackend::kMaxBlocks + 1;
  const auto refused = LineageBackend::create(context);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
}

TEST(LineageBackendTest, TakesEightyBytesPerBlock) {
  EXPECT_EQ(LineageBackend::kBytesPerBlock, 80u);
}

TEST(LineageBackendTest, BothOrdersHaveNames) {
  const auto names = chain_of(2, 1);
  for (const char* name : {"lineage", "lineage_round_robin"}) {
    const auto pool = value_of(value_of(eviction_by_name(name))(EvictionContext{8, make_registry()}));
    EXPECT_TRUE(pool->follows_registrations());
    pool->registered(BlockId(5), names[1]);
    pool->insert(BlockId(4), names[0]);
    pool->insert(BlockId(3), chained(0, 9));
    std::array<BlockId, 3> out;
    ASSERT_EQ(pool->pop(out), 2u);
    EXPECT_EQ(out[0], BlockId(3)) << name;
  }
}

}  // namespace
}  // namespace ashlar::block
