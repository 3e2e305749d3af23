// What sequences ask of a PrefixSource, and what they do with its blocks: a source in memory, over a pool.
#include "ashlar/block/prefix_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "block/sequence/sequence_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Names = std::vector<SequenceHash>;

// A tier below a manager: a set of names. Its blocks have no bytes. Arrivals end when the test says so.
class ListedSource final : public PrefixSource {
 public:
  explicit ListedSource(Manager& manager) : manager_(manager) {}

  class ListedArrival final : public Arrival {
   public:
    ListedArrival(ListedSource& source, Names names, std::function<void()> on_done)
        : source_(source), names_(std::move(names)), on_done_(std::move(on_done)) {
      source_.arriving.push_back(this);
    }
    ~ListedArrival() override { std::erase(source_.arriving, this); }
    bool done() const override { return done_; }
    std::size_t wait() override {
      arrive();
      return blocks_.size();
    }
    Result<std::vector<BlockId>> wait_layer(std::uint32_t, std::optional<Clock::TimePoint>) override {
      arrive();
      std::vector<BlockId> ids;
      for (const Immutable& block : blocks_) ids.push_back(block.block_id());
      return ids;
    }
    void arrive() {
      if (std::exchange(done_, true)) return;
      for (const SequenceHash& name : names_) {
        auto taken = source_.manager_.allocate_blocks(1);
        if (!taken) break;
        blocks_.push_back(value_of(
            source_.manager_.register_block(taken->take_back().stage(name, kReady), {.copied = true})));
      }
      if (on_done_) on_done_();
    }

   private:
    ListedSource& source_;
    const Names names_;
    const std::function<void()> on_done_;
    bool done_ = false;
    Blocks blocks_;
  };

  void matched(std::span<const BlockId> ids) noexcept override { hits += ids.size(); }
  bool discovers() const noexcept override { return looks_further; }
  bool has(const SequenceHash& hash) override { return names.contains(hash); }
  std::unique_ptr<Arrival> bring(const Wanted& wanted, const PrefixBudget& budget,
                                 std::function<void()> on_done) override {
    asked.emplace_back(wanted.hashes.begin(), wanted.hashes.end());
    budgets.push_back(budget);
    parent = wanted.parent;
    root = wanted.root;
    locals.assign(wanted.locals.begin(), wanted.locals.end());
    digests.assign(wanted.prefixes.begin(), wanted.prefixes.end());
    Names found;
    for (const SequenceHash& hash : wanted.hashes) {
      if (!has(hash)) break;
      found.push_back(hash);
    }
    if (found.empty()) return nullptr;
    auto arrival = std::make_unique<ListedArrival>(*this, std::move(found), on_done);
    if (on_done == nullptr) arrival->arrive();
    return arrival;
  }
  void leaving(std::span<const SequenceHash> hashes) noexcept override {
    left.emplace_back(hashes.begin(), hashes.end());
    names.insert(hashes.begin(), hashes.end());
  }

  std::set<SequenceHash> names;
  bool looks_further = false;
  std::size_t hits = 0;
  std::vector<Names> asked;  // one per bring()
  std::vector<PrefixBudget> budgets;
  std::optional<SequenceHash> parent;
  std::optional<SequenceHash> root;
  std::vector<tokens::LocalHash> locals;
  std::vector<tokens::PrefixDigest> digests;
  std::vector<Names> left;  // one per leaving()
  std::vector<ListedArrival*> arriving;

 private:
  Manager& manager_;
};

class PrefixSourceTest : public ::testing::Test {
 protected:
  PrefixSourceTest() { manager_.set_prefix_source(below_); }

  Request request(std::size_t tokens, RequestOptions options = {}) {
    return value_of(Request::create(manager_, tokens_from(0, tokens), std::move(options)));
  }
  // The names of the first blocks.
  static Names names(std::size_t count) { return names_of(tokens_from(0, count * kBlockSize)); }
  void has_below(const Names& names) { below_.names.insert(names.begin(), names.end()); }

  Manager manager_ = manager_of(8);
  ListedSource below_{manager_};
};

TEST_F(PrefixSourceTest, AMatchBringsWhatThePoolDoesNotHave) {
  const Names all = names(4);
  {
    const Blocks cached = store_names(manager_, std::span(all).first(1));
  }
  has_below({all.begin() + 1, all.end() - 1});
  Request one = request(18);
  EXPECT_EQ(value_of(one.match_prefix()), 12u);
  EXPECT_THAT(below_.asked, ElementsAre(Names(all.begin() + 1, all.end()))) << "what follows the hit";
  EXPECT_EQ(below_.hits, 1u) << "the one that the pool had";
  EXPECT_EQ(below_.parent, all[0]);
  EXPECT_EQ(below_.root, all[0]);
  EXPECT_THAT(below_.locals, IsEmpty()) << "it discovers nothing";
  ASSERT_EQ(below_.digests.size(), 3u);
  EXPECT_TRUE(std::ranges::all_of(below_.digests, &tokens::PrefixDigest::is_known));
  EXPECT_THAT(below_.arriving, IsEmpty()) << "the request has its own references";
  // All of it is in the pool now.
  EXPECT_EQ(value_of(request(13).match_prefix()), 12u);
  EXPECT_EQ(below_.asked.size(), 1u);
  manager_.check_invariants();
}

TEST_F(PrefixSourceTest, ASourceThatDiscoversGetsTheHashesOfTheTokens) {
  below_.looks_further = true;
  Request one = request(9);
  EXPECT_EQ(value_of(one.match_prefix()), 0u);
  const TokenSequence text = sequence_of(2);
  EXPECT_THAT(below_.locals, ElementsAre(text.blocks()[0].local_hash(), text.blocks()[1].local_hash()));
}

TEST_F(PrefixSourceTest, TheBudgetLimitsWhatIsWanted) {
  const Names all = names(4);
  has_below(all);
  EXPECT_EQ(value_of(request(18, {.onboard = {.max_blocks = 0}}).match_prefix()), 0u);
  EXPECT_THAT(below_.asked, IsEmpty());
  EXPECT_EQ(value_of(request(18, {.onboard = {.max_blocks = 3, .by_layer = true}}).match_prefix()), 12u);
  EXPECT_THAT(below_.asked, ElementsAre(Names(all.begin(), all.begin() + 3)));
  EXPECT_TRUE(below_.budgets.back().by_layer);
}

TEST_F(PrefixSourceTest, ASequenceAsksAsARequestDoes) {
  const Names all = names(4);
  has_below(all);
  const Sequences sequences(manager_, {.onboard = {.max_blocks = 2}});
  auto sequence = value_of(sequences.make_sequence(tokens_from(0, 17)));
  EXPECT_EQ(value_of(sequences.allocate(sequence)), 8u);
  EXPECT_THAT(below_.asked, ElementsAre(Names(all.begin(), all.begin() + 2)));
  auto later = value_of(sequences.make_sequence(tokens_from(0, 17)));
  int called = 0;
  EXPECT_TRUE(value_of(sequences.begin_allocate(later, [&] { ++called; })).pending);
  EXPECT_FALSE(later.arrived());
  below_.arriving.front()->arrive();
  EXPECT_EQ(called, 1);
  EXPECT_TRUE(later.arrived());
  EXPECT_EQ(value_of(sequences.finish_allocate(later)), 16u);
}

TEST_F(PrefixSourceTest, AMatchThatDoesNotWaitTakesWhatHasArrived) {
  const Names all = names(4);
  has_below(all);
  Request one = request(17);
  int called = 0;
  const MatchStart start = value_of(one.begin_match([&] { ++called; }));
  EXPECT_TRUE(start.pending);
  EXPECT_FALSE(one.match_ready());
  EXPECT_EQ(one.wait_layer(0).value().size(), 4u);
  EXPECT_EQ(called, 1);
  EXPECT_TRUE(one.match_ready());
  EXPECT_EQ(value_of(one.finish_match()), 16u);
  EXPECT_THAT(below_.arriving, IsEmpty());
}

TEST_F(PrefixSourceTest, WhoLeavesOrIsPreemptedCancelsWhatIsOnItsWay) {
  has_below(names(4));
  Request released = request(17);
  Request preempted = request(17);
  EXPECT_TRUE(value_of(released.begin_match([] {})).pending);
  EXPECT_TRUE(value_of(preempted.begin_match([] {})).pending);
  EXPECT_EQ(below_.arriving.size(), 2u);
  released.release();
  EXPECT_EQ(below_.arriving.size(), 1u);
  ASSERT_TRUE(preempted.preempt());
  EXPECT_THAT(below_.arriving, IsEmpty());
  EXPECT_THAT(below_.left, IsEmpty()) << "it had no blocks";
  EXPECT_EQ(manager_.available_blocks(), 8u);
}

// What a preempted sequence gives back is offered, whatever its state is later; what is released is not.
TEST_F(PrefixSourceTest, APreemptedRequestOffersItsBlocksAndFindsThemAgain) {
  Request one = request(9);
  ASSERT_TRUE(one.schedule_prefill(9));
  ASSERT_TRUE(one.apply_prefill(Token(1)));
  ASSERT_TRUE(one.preempt());
  EXPECT_THAT(below_.left, ElementsAre(names(2)));
  manager_.reset_inactive_pool();
  EXPECT_EQ(value_of(one.resume()), 8u);
  EXPECT_THAT(below_.asked.back(), names(2));
  one.release();
  EXPECT_EQ(below_.left.size(), 1u);
}

// The longest prefix that every group can have, here or below, and only the blocks that it needs.
TEST_F(PrefixSourceTest, SeveralGroupsBringTheBlocksOfTheLongestPrefixOfAll) {
  const std::vector<CacheGroup> groups = {CacheGroup::full_attention(), CacheGroup::sliding_window(4)};
  const Names all = names(4);
  has_below(all);
  below_.names.insert(all[2].in_group(1));
  {
    const Blocks cached = store_names(manager_, std::span(all).first(1));
  }
  Request one = request(18, {.groups = groups});
  EXPECT_EQ(value_of(one.match_prefix()), 12u) << "the window lacks the fourth";
  EXPECT_THAT(below_.asked, ElementsAre(Names{all[1], all[2], all[2].in_group(1)}));
  EXPECT_EQ(one.block_table(1)[1], kNoBlock);
  one.release();
  manager_.reset_inactive_pool();
  // A prefix of two has the window's second block nowhere.
  EXPECT_EQ(value_of(request(18, {.groups = groups, .onboard = {.max_blocks = 3}}).match_prefix()), 0u);
  EXPECT_EQ(value_of(request(18, {.groups = groups, .onboard = {.max_blocks = 4}}).match_prefix()), 12u);
}

}  // namespace
}  // namespace ashlar::block
