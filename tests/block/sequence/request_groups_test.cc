// Groups of layers: full attention beside sliding windows, each with a block table of its own over one pool.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "block/sequence/request_fixture.h"

namespace ashlar::block::support {
namespace {

using Groups = std::vector<CacheGroup>;

constexpr CacheGroup kFull = CacheGroup::full_attention();
constexpr CacheGroup window(std::uint32_t tokens) {
  return CacheGroup::sliding_window(tokens);
}
std::string text_of(const Groups& groups) {
  std::string text;
  for (const CacheGroup& group : groups) text += group.window ? "w" + std::to_string(*group.window) : "full";
  return text;
}

class RequestGroupsTest : public RequestTest {
 protected:
  RequestGroupsTest() : RequestTest(32, DuplicatePolicy::kAllow, {kFull, window(6)}) {}
};

TEST_F(RequestGroupsTest, EachGroupHasATableOfItsOwn) {
  Request request = request_of(0, 14);
  EXPECT_EQ(request.group_count(), 2u);
  EXPECT_EQ(value_of(request.schedule_prefill(14)).new_blocks, 8u);
  EXPECT_EQ(request.block_table(0).size(), 4u);
  EXPECT_EQ(request.block_table(1).size(), 4u);
  EXPECT_EQ(engine_.run(request, 14), "");
  const Ids scheduled = table_of(request, 1);
  EXPECT_EQ(value_of(request.apply_prefill(Token(14))).registered, 6u);

  EXPECT_EQ(std::ranges::count(table_of(request, 0), kNone), 0);
  // Token 14 looks at tokens 9 to 14.
  EXPECT_EQ(table_of(request, 1), (Ids{kNone, kNone, scheduled[2], scheduled[3]}));
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(at(), (Places{.reset = 24, .inactive = 2, .active = 4, .owned = 2}));
}

TEST_F(RequestGroupsTest, EqualTokensOfTwoGroupsHaveDifferentNames) {
  Request request = request_of(0, 8);
  prefill_all(request, 8);
  const auto found = registered();
  ASSERT_EQ(found.size(), 4u);
  std::set<std::uint32_t> ids;
  for (std::size_t i = 0; i < 2; ++i) {
    const SequenceHash& name = request.sequence_hashes()[i];
    EXPECT_EQ(found.at(name), table_of(request, 0)[i]);
    EXPECT_EQ(found.at(name.in_group(1)), table_of(request, 1)[i]);
    ids.insert({found.at(name), found.at(name.in_group(1))});
  }
  EXPECT_EQ(ids.size(), 4u);
}

TEST_F(RequestGroupsTest, BlocksOutsideTheWindowAreEvictableWhileTheRequestRuns) {
  Request request = request_of(0, 5);
  prefill_all(request, 100);
  for (std::uint32_t next = 101; next < 160; ++next) {
    decode(request, next);
    overwrite_available_blocks();
    ASSERT_EQ(engine_.check(request), "");
    const Ids table = table_of(request, 1);
    const auto kept = table.size() - static_cast<std::size_t>(std::ranges::count(table, kNone));
    EXPECT_LE(kept, 3u);  // 6 tokens touch three blocks at most
    EXPECT_EQ(at().active + at().owned, table.size() + kept);
  }
}

TEST_F(RequestGroupsTest, AChunkLongerThanTheWindow) {
  Request request = request_of(0, 43);
  EXPECT_EQ(value_of(request.schedule_prefill(43)).new_blocks, 22u);
  EXPECT_EQ(engine_.run(request, 43), "");
  EXPECT_EQ(value_of(request.apply_prefill(Token(43))).registered, 20u);
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(registered().size(), 20u);
  EXPECT_EQ(at(), (Places{.reset = 10, .inactive = 9, .active = 11, .owned = 2}));
}

TEST_F(RequestGroupsTest, AHitBeginsWithHoles) {
  cache(tokens_from(0, 14));
  Request request = request_of(0, 14);
  EXPECT_EQ(value_of(request.match_prefix()), 12u);
  ASSERT_EQ(request.block_table(1).size(), 3u);
  EXPECT_EQ(table_of(request, 1)[0], kNone);  // token 12 looks at tokens 7 to 12
  EXPECT_NE(table_of(request, 1)[1], kNone);
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(at().active, 5u);
  prefill_all(request, 14);
  decode(request, 15);
}

TEST_F(RequestGroupsTest, GroupsAreRefusedTogether) {
  Request request = request_of(0, 14);
  auto rest = value_of(manager_.allocate_blocks(25));
  const Snapshot before(request);
  const Places places_before = at();
  EXPECT_EQ(reason_of(request.schedule_prefill(14)), Refused::kNoRoom);  // eight are wanted, seven are there
  EXPECT_EQ(Snapshot(request), before);
  EXPECT_EQ(at(), places_before);
  rest.truncate(24);
  prefill_all(request, 14);
}

TEST_F(RequestGroupsTest, AForkCopiesTheLastBlockOfEveryGroup) {
  Request request = request_of(0, 14);
  prefill_all(request, 100);
  Request fork = value_of(request.fork(Token(200)));
  EXPECT_EQ(table_of(fork, 0), table_of(request, 0));
  EXPECT_EQ(table_of(fork, 1), table_of(request, 1));
  const StepPlan plan = value_of(fork.schedule_decode());
  ASSERT_EQ(plan.copies.size(), 2u);
  EXPECT_EQ(plan.new_blocks, 2u);
  std::set<std::size_t> groups;
  for (const BlockCopy& copy : plan.copies) {
    groups.insert(copy.group);
    EXPECT_EQ(copy.source, request.block_table(copy.group).back());
    EXPECT_EQ(copy.destination, fork.block_table(copy.group).back());
  }
  EXPECT_EQ(groups, (std::set<std::size_t>{0, 1}));
  EXPECT_EQ(engine_.run(fork, 1), "");
  value_of(fork.apply_decode(Token(201)));
  EXPECT_EQ(engine_.check(fork), "");
  EXPECT_EQ(engine_.check(request), "");
}

TEST_F(RequestGroupsTest, ABlockThatOneSharerHasLeftBehindStaysForTheOther) {
  Request request = request_of(0, 10);
  prefill_all(request, 10);
  const Request fork = value_of(request.fork());
  for (std::uint32_t next = 11; next < 30; ++next) decode(request, next);
  overwrite_available_blocks();
  EXPECT_EQ(engine_.check(fork), "");
}

TEST_F(RequestGroupsTest, RefusedDraftsDoNotMoveTheWindow) {
  Request request = request_of(0, 7);
  prefill_all(request, 100);
  EXPECT_EQ(value_of(request.schedule_speculative(12)).new_blocks, 6u);
  EXPECT_EQ(engine_.run_with_drafts(request, tokens_from(200, 12)), "");
  value_of(request.apply_speculative(tokens_of({300})));
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(table_of(request, 1)[0] == kNone, false);  // token 8 looks at tokens 3 to 8
  decode(request, 301);
  EXPECT_EQ(table_of(request, 1)[0], kNone);
}

TEST_F(RequestGroupsTest, ResumeNeedsTheWindowOnly) {
  Request request = request_of(0, 14);
  prefill_all(request, 14);
  request.preempt().value();
  EXPECT_EQ(at(), (Places{.reset = 26, .inactive = 6}));
  EXPECT_EQ(value_of(request.resume()), 12u);
  EXPECT_EQ(table_of(request, 1)[0], kNone);
  EXPECT_EQ(engine_.check(request), "");
  prefill_all(request, 15);
}

TEST_F(RequestGroupsTest, FullAttentionAloneIsNotEnough) {
  const auto names = sequence_of(3).sequence_hashes();
  {
    Request request = request_of(0, 14);
    prefill_all(request, 14);
  }
  // Everything goes but the blocks of the first group.
  const auto kept = manager_.match_blocks(names);
  ASSERT_EQ(kept.size(), 3u);
  overwrite_available_blocks();
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 14)), 0u);
  Request request = request_of(0, 14);
  prefill_all(request, 14);
  expect_visible(request);
}

// ---- the longest prefix that is valid for all groups, for every content of the cache

class RequestGroupMatchTest : public ::testing::TestWithParam<Groups> {};

TEST_P(RequestGroupMatchTest, TheHitIsTheLongestThatEveryGroupCanServe) {
  const Groups& groups = GetParam();
  const std::size_t blocks = groups.size() < 3 ? 4 : 3;
  const auto names = sequence_of(blocks).sequence_hashes();
  for (std::uint32_t content = 0; content < (1u << (blocks * groups.size())); ++content) {
    SCOPED_TRACE(content);
    const auto present = [&](std::size_t group, std::size_t block) {
      return ((content >> (group * blocks + block)) & 1u) != 0;
    };
    Manager manager = manager_of(16);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t b = 0; b < blocks; ++b) {
        if (!present(g, b)) continue;
        const Immutable stored = store_name(manager, names[b].in_group(static_cast<std::uint32_t>(g)));
      }
    }
    std::size_t expected = 0;
    for (std::size_t length = 1; length <= blocks; ++length) {
      bool valid = true;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        for (std::size_t b = length - groups[g].blocks_needed(length, kBlockSize); b < length; ++b) {
          valid = valid && present(g, b);
        }
      }
      if (valid) expected = length;
    }

    const Places before = places(manager);
    RequestOptions options;
    options.groups = groups;
    Request request = value_of(Request::create(manager, tokens_from(0, blocks * kBlockSize + 1), options));
    ASSERT_EQ(value_of(request.match_prefix()), expected * kBlockSize);
    std::size_t used = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const Ids table = table_of(request, g);
      ASSERT_EQ(table.size(), expected);
      for (std::size_t b = 0; b < expected; ++b) {
        const bool needed = b + groups[g].blocks_needed(expected, kBlockSize) >= expected;
        ASSERT_EQ(table[b] != kNone, needed) << "group " << g << ", block " << b;
        used += needed ? 1 : 0;
      }
    }
    ASSERT_EQ(places(manager).active, used);
    request.release();
    ASSERT_EQ(places(manager), before);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, RequestGroupMatchTest,
                         ::testing::Values(Groups{kFull}, Groups{window(5)}, Groups{kFull, window(1)},
                                           Groups{kFull, window(2)}, Groups{kFull, window(4)},
                                           Groups{kFull, window(5)}, Groups{kFull, window(6)},
                                           Groups{kFull, window(9)}, Groups{kFull, window(1'000)},
                                           Groups{window(6), kFull}, Groups{window(3), window(9)},
                                           Groups{kFull, kFull}, Groups{kFull, window(5), window(9)},
                                           Groups{window(2), window(6), window(7)}),
                         [](const auto& tested) { return text_of(tested.param); });

// ---- a life in every kind of groups

class RequestGroupLifeTest : public RequestTest, public ::testing::WithParamInterface<Groups> {
 protected:
  RequestGroupLifeTest() : RequestTest(64, DuplicatePolicy::kReject, GetParam()) {}

  void look(std::initializer_list<const Request*> requests) {
    overwrite_available_blocks();
    for (const Request* request : requests) ASSERT_EQ(engine_.check(*request), "");
  }
};

TEST_P(RequestGroupLifeTest, NoBlockIsLostOrKeptTooLong) {
  Request request = request_of(0, 23);
  prefill(request, 3);
  prefill(request, 9);
  look({&request});
  prefill_all(request, 100);
  look({&request});
  for (std::uint32_t next = 101; next < 111; ++next) {
    decode(request, next);
    look({&request});
  }
  Request fork = value_of(request.fork(Token(500)));
  look({&request, &fork});
  decode(fork, 501);
  look({&request, &fork});
  decode(request, 111);
  speculate(fork, tokens_from(600, 7), tokens_of({600, 601, 700}));
  speculate(request, tokens_from(800, 7), tokens_of({900}));
  look({&request, &fork});
  EXPECT_EQ(value_of(fork.schedule_speculative(5)).copies.size(), 0u);
  fork.revert().value();
  look({&request, &fork});

  const std::size_t computed = fork.computed_tokens();
  fork.preempt().value();
  EXPECT_LE(value_of(fork.resume()), computed);  // less where an older window went
  EXPECT_EQ(engine_.check(fork), "");
  fork.preempt().value();
  look({&request});  // evicts what the request does not hold
  value_of(fork.resume());
  EXPECT_EQ(engine_.check(fork), "");
  prefill_all(fork, 1'000);
  look({&request, &fork});
  request.release();
  look({&fork});
  fork.release();
  EXPECT_EQ(at().active + at().owned, 0u);
}

TEST_P(RequestGroupLifeTest, TwoThatComputeTheSameEndWithTheSameBlocks) {
  Request first = request_of(0, 22);
  Request second = request_of(0, 22);
  for (const std::size_t chunk : {7u, 2u, 12u}) {
    prefill(first, chunk);
    prefill(second, chunk);
  }
  prefill_all(first, 100);
  prefill_all(second, 100);
  for (std::uint32_t next = 101; next < 120; ++next) {
    decode(first, next);
    decode(second, next);
    look({&first, &second});
  }
  for (std::size_t g = 0; g < first.group_count(); ++g) {
    const std::size_t full = first.computed_tokens() / kBlockSize;
    for (std::size_t b = 0; b < full; ++b) EXPECT_EQ(table_of(first, g)[b], table_of(second, g)[b]);
  }
  first.release();
  look({&second});
}

TEST_P(RequestGroupLifeTest, AHitHoldsTheRightKv) {
  cache(tokens_from(0, 30));
  for (std::size_t size = 1; size < 34; ++size) {
    Request request = request_of(0, size);
    value_of(request.match_prefix());
    EXPECT_EQ(engine_.check(request), "");
    if (size <= 30) {
      EXPECT_EQ(request.cached_tokens(), (size - 1) / kBlockSize * kBlockSize);
    }
    prefill_all(request, 1'000);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, RequestGroupLifeTest,
                         ::testing::Values(Groups{kFull}, Groups{window(6)}, Groups{kFull, window(1)},
                                           Groups{kFull, window(2)}, Groups{kFull, window(4)},
                                           Groups{kFull, window(11)}, Groups{kFull, window(1'000)},
                                           Groups{window(5), kFull, window(13)}),
                         [](const auto& tested) { return text_of(tested.param); });

}  // namespace
}  // namespace ashlar::block::support
