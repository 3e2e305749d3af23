// Counts allocations: this file replaces the global operator new of the test program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/counted_new.h"
#include "tokens/token_lists.h"

namespace ashlar::tokens {
namespace {

// How many allocations f() makes.
template <class F>
std::size_t allocations_of(F&& f) {
  const std::size_t before = g_allocations.load();
  f();
  return g_allocations.load() - before;
}

// Appends `count` tokens one by one; how many allocations that makes.
std::size_t allocations_of_appending(TokenSequence& sequence, std::size_t count) {
  return allocations_of([&] {
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(sequence.append(Token(1)));
  });
}

TEST(AllocationTest, AppendAllocatesNothingAfterReserve) {
  for (const std::uint32_t block_size : {1u, 16u}) {
    auto sequence = TokenSequence::create(block_size).value();
    sequence.reserve(100);
    // The partial block after the last reserved one is provided for, too.
    EXPECT_EQ(allocations_of_appending(sequence, 101 * block_size - 1), 0u) << "block size " << block_size;
    EXPECT_EQ(sequence.blocks().size(), 100u);
  }
}

TEST(AllocationTest, ExtendAllocatesNothingAfterReserve) {
  for (const std::uint32_t block_size : {1u, 16u}) {
    const std::vector<Token> tokens(99 * block_size, Token(7));
    const std::vector<std::uint32_t> numbers(tokens.size(), 7);
    auto sequence = TokenSequence::create(block_size).value();
    sequence.reserve(200);
    EXPECT_EQ(allocations_of([&] {
                ASSERT_TRUE(sequence.extend(tokens));
                ASSERT_TRUE(sequence.append(Token(7)));
                ASSERT_TRUE(sequence.extend(numbers));
              }),
              0u)
        << "block size " << block_size;
    EXPECT_EQ(sequence.size(), 2 * tokens.size() + 1);
  }
}

TEST(AllocationTest, ShorteningKeepsWhatIsReserved) {
  for (const std::uint32_t block_size : {1u, 16u}) {
    auto sequence = TokenSequence::create(block_size).value();
    sequence.reserve(10);
    const auto fill_up = [&] {
      return allocations_of_appending(sequence, 11 * block_size - 1 - sequence.size());
    };
    EXPECT_EQ(fill_up(), 0u);
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(sequence.truncate(3 * block_size + block_size / 2));
      EXPECT_EQ(fill_up(), 0u) << "after truncate(), block size " << block_size;
      ASSERT_TRUE(sequence.unwind(2 * block_size));
      EXPECT_EQ(fill_up(), 0u) << "after unwind(), block size " << block_size;
      for (std::uint32_t i = 0; i < 2 * block_size; ++i) ASSERT_TRUE(sequence.pop());
      EXPECT_EQ(fill_up(), 0u) << "after pop(), block size " << block_size;
      sequence.reset();
      EXPECT_EQ(fill_up(), 0u) << "after reset(), block size " << block_size;
    }
  }
}

TEST(AllocationTest, ReserveCountsTheBlocksThatAreThere) {
  auto sequence = TokenSequence::create(tokens_from_to(1, 40), 16).value();  // 2 blocks and a half
  sequence.reserve(10);
  EXPECT_EQ(allocations_of([&] { sequence.reserve(10); }), 0u);
  EXPECT_EQ(allocations_of_appending(sequence, 11 * 16 - 1 - 40), 0u);
  EXPECT_GT(allocations_of_appending(sequence, 1), 0u);
}

TEST(AllocationTest, ACopyReservesForItself) {
  auto sequence = TokenSequence::create(tokens_from_to(1, 40), 16).value();
  sequence.reserve(10);
  TokenSequence copy = sequence;
  copy.reserve(10);
  EXPECT_EQ(allocations_of_appending(copy, 11 * 16 - 1 - 40), 0u);
  auto assigned = TokenSequence::create(1).value();
  assigned.reserve(10);
  assigned = sequence;
  EXPECT_GT(allocations_of_appending(assigned, 16), 0u);
  EXPECT_EQ(allocations_of_appending(sequence, 11 * 16 - 1 - 40), 0u);
}

TEST(AllocationTest, WithoutReserveABoundaryCostsItsStorageAndSometimesTheListsGrowth) {
  for (const std::uint32_t block_size : {1u, 16u}) {
    auto sequence = TokenSequence::create(block_size).value();
    std::size_t growths = 0;
    for (std::uint32_t i = 0; i < 100 * block_size; ++i) {
      const std::size_t made = allocations_of_appending(sequence, 1);
      if ((i + 1) % block_size != 0) {
        EXPECT_EQ(made, 0u) << "token " << i;
        continue;
      }
      EXPECT_TRUE(made == 1 || made == 2) << made << " allocations at token " << i;
      growths += made == 2 ? 1 : 0;
    }
    EXPECT_LE(growths, 12u) << "block size " << block_size;  // amortised: the list at least grows by half
  }
}

TEST(AllocationTest, ExtendingBlockByBlockGrowsTheListRarely) {
  auto sequence = TokenSequence::create(16).value();
  const std::vector<Token> block(16, Token(1));
  const std::size_t made = allocations_of([&] {
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(sequence.extend(block));
  });
  EXPECT_LE(made, 1000u + 20u);
}

TEST(AllocationTest, ShorteningAllocatesNothing) {
  auto sequence = TokenSequence::create(tokens_from_to(1, 100), 16).value();
  EXPECT_EQ(allocations_of([&] {
              ASSERT_TRUE(sequence.pop());
              ASSERT_TRUE(sequence.unwind(20));
              ASSERT_TRUE(sequence.truncate(17));
              ASSERT_TRUE(sequence.append(Token(1)));
              sequence.reset();
            }),
            0u);
}

TEST(AllocationTest, HashingAllocatesNothing) {
  Random random(51);
  const auto tokens = random_tokens(random, 4096);
  std::vector<BlockHashes> out(tokens.size());
  for (const HashScheme& scheme :
       {HashScheme::xxh3_chain(), HashScheme::xxh64_int64(), HashScheme::keyed128({1})}) {
    const SequenceHasher hasher(scheme, Salt("lora", "tenant"));
    for (const std::uint32_t block_size : {1u, 16u, 64u, 1024u}) {
      const std::vector<MultimodalRun> runs = {{1, 0, 3}, {2, 10, 2000}};
      EXPECT_EQ(allocations_of([&] {
                  ASSERT_TRUE(hasher.hash_blocks(std::nullopt, tokens, block_size, out));
                  ASSERT_TRUE(hasher.hash_block(std::nullopt, std::span(tokens).first(block_size), runs));
                  const SequenceHasher copy = hasher;
                  ASSERT_EQ(copy, hasher);
                }),
                0u);
    }
  }
}

}  // namespace
}  // namespace ashlar::tokens
