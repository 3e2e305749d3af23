// Receipts are bounded in number and in bytes, as the allocator counts them; so are remembered prompts.
#include "service/gateway/receipts.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/salt.h"
#include "service/request/prompt_cache.h"
#include "support/live_bytes.h"

namespace ashlar::service {
namespace {

void add(Receipts& receipts, std::uint64_t id, std::size_t candidates, const std::string& text = "m") {
  receipts.add(DecisionId(id), [&](Receipt& receipt) {
    receipt.decision.id = DecisionId(id);
    receipt.decision.candidates.assign(candidates, Candidate{});
    receipt.group = text;
    receipt.worker_name = text;
    receipt.state_reason = text;
    receipt.claim_reason = text;
    receipt.token_source = text;
  });
}

TEST(Receipts, KeepTheLast) {
  Receipts receipts({.decisions = 3, .bytes = 1 << 20});
  for (const std::uint64_t id : {1u, 2u, 4u, 3u}) add(receipts, id, 2);  // choices race to their receipts
  EXPECT_FALSE(receipts.find(DecisionId(1)));
  for (const std::uint64_t id : {2u, 3u, 4u}) EXPECT_TRUE(receipts.find(DecisionId(id))) << id;
  receipts.set_outcome(DecisionId(3), {.is_over = true, .status = 200});
  receipts.set_outcome(DecisionId(1), {.is_over = true});
  EXPECT_EQ(receipts.find(DecisionId(3))->outcome.status, 200u);
  const auto last = receipts.last(2);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].decision.id.value(), 4u);
  EXPECT_EQ(last[1].decision.id.value(), 3u);
  // Choices that failed leave gaps.
  add(receipts, 1000, 2);
  EXPECT_EQ(receipts.last(10).size(), 1u);
  add(receipts, 2, 2);
  EXPECT_FALSE(receipts.find(DecisionId(2))) << "too late";
}

TEST(Receipts, AreBoundedInBytes) {
  constexpr std::size_t kBytes = 256 << 10;
  const std::size_t before = g_live_bytes.load();
  {
    Receipts receipts({.decisions = 1 << 20, .bytes = kBytes});
    Random random(1);
    std::size_t most = 0;
    for (std::uint64_t id = 1; id < 5000; ++id) {
      add(receipts, id, random.below(60), std::string(random.below(80), 'x'));
      ASSERT_LE(receipts.bytes(), kBytes);
      ASSERT_TRUE(receipts.find(DecisionId(id))) << "the youngest is kept";
      const std::size_t live = g_live_bytes.load() - before;
      most = std::max(most, live);
      // What the allocator says: its rounding and the deque's blocks come on top.
      ASSERT_LE(live, kBytes + kBytes / 8);
    }
    EXPECT_GT(most, kBytes * 3 / 4) << "the memory is used";
    EXPECT_GT(receipts.last(5000).size(), 20u);
    // One that is larger than all memory together is not kept, nor in the way.
    add(receipts, 5000, kBytes / sizeof(Candidate) + 1);
    EXPECT_FALSE(receipts.find(DecisionId(5000)));
    add(receipts, 5001, 3);
    EXPECT_TRUE(receipts.find(DecisionId(5001)));
  }
  EXPECT_EQ(g_live_bytes.load(), before);
}

// A salt may be as long as the body of its request.
TEST(PromptCache, HoldsNoSaltsOfItsPrompts) {
  const auto list = std::make_shared<const std::vector<tokens::Token>>(64);
  (void)hash_from(nullptr, 0, *list, {}, 16);  // what it makes once
  const std::size_t before = g_live_bytes.load();
  PromptCache cache(1 << 20);
  for (std::uint64_t i = 0; i < 16; ++i) {
    const std::string salt((1 << 20) + i, 's');
    cache.put({i, 0}, list, 1, false);
    cache.set_hashed({i, 0}, list,
                     hash_from(nullptr, 0, *list, tokens::SequenceHasher(tokens::Salt("", salt)), 16));
    ASSERT_NE(cache.hashed({i, 0}), nullptr);
  }
  EXPECT_EQ(cache.size(), 16u);
  EXPECT_LE(g_live_bytes.load() - before, cache.bytes());
}

}  // namespace
}  // namespace ashlar::service
