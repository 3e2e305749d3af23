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
#include "tokens/token_lists.h"

namespace {

std::atomic<std::size_t> g_allocations = 0;

void* counted(std::size_t size, std::size_t alignment) {
  g_allocations.fetch_add(1);
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(size)
                           : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace ashlar::tokens {
namespace {

// How many allocations f() makes.
template <class F>
std::size_t allocations_of(F&& f) {
  const std::size_t before = g_allocations.load();
  f();
  return g_allocations.load() - before;
}

TEST(AllocationTest, AppendAllocatesOnlyAtBlockBoundaries) {
  auto sequence = TokenSequence::create(16).value();
  sequence.reserve(100);
  for (std::uint32_t i = 0; i < 1600; ++i) {
    const std::size_t made = allocations_of([&] { ASSERT_TRUE(sequence.append(Token(i))); });
    EXPECT_EQ(made, i % 16 == 15 ? 1u : 0u) << "token " << i;
  }
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
