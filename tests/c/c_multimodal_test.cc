// Images among the tokens: equal placeholders of different images are different blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ashlar_c.h"

namespace ashlar::testing {
namespace {

constexpr std::uint32_t kRunBlockTokens = 4;
constexpr std::size_t kRunBlocks = 4;

class CMultimodal : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(ashlar_hasher_create(nullptr, &hasher_), ASHLAR_OK);
    ashlar_manager_options options = {};
    options.struct_size = sizeof options;
    options.block_count = 32;
    options.block_size = kRunBlockTokens;
    ASSERT_EQ(ashlar_manager_create(&options, &manager_), ASHLAR_OK);
  }
  void TearDown() override {
    EXPECT_EQ(ashlar_manager_destroy(manager_), ASHLAR_OK) << ashlar_last_error();
    EXPECT_EQ(ashlar_hasher_destroy(hasher_), ASHLAR_OK);
  }

  // An image over the tokens 6 to 9, in the second and third block.
  static ashlar_multimodal_run image(std::uint64_t content) { return {content, 6, 4, 0}; }

  std::vector<std::uint64_t> chains(const ashlar_multimodal_run* runs, std::size_t count) {
    std::vector<ashlar_block_hashes> hashes(kRunBlocks);
    std::size_t made = 0;
    EXPECT_EQ(ashlar_hash_blocks_with_runs(hasher_, nullptr, tokens_.data(), tokens_.size(), kRunBlockTokens,
                                           runs, count, hashes.data(), kRunBlocks, &made),
              ASHLAR_OK)
        << ashlar_last_error();
    EXPECT_EQ(made, kRunBlocks);
    std::vector<std::uint64_t> out;
    for (const ashlar_block_hashes& one : hashes) out.push_back(one.sequence.lo);
    return out;
  }

  // Computes the prompt with this image, after what the cache has of it: tokens.
  std::size_t cached(const ashlar_multimodal_run& run) {
    ashlar_request_options options = {};
    options.struct_size = sizeof options;
    options.runs = &run;
    options.run_count = 1;
    ashlar_request request = {};
    EXPECT_EQ(ashlar_request_create(manager_, tokens_.data(), tokens_.size(), &options, &request), ASHLAR_OK)
        << ashlar_last_error();
    std::size_t found = 0;
    EXPECT_EQ(ashlar_request_match(request, &found), ASHLAR_OK);
    EXPECT_EQ(ashlar_request_schedule_prefill(request, tokens_.size() - found, nullptr), ASHLAR_OK);
    const std::uint32_t next = 1;
    EXPECT_EQ(ashlar_request_apply_prefill(request, &next, nullptr), ASHLAR_OK);
    EXPECT_EQ(ashlar_request_destroy(request), ASHLAR_OK);
    return found;
  }

  const std::vector<std::uint32_t> tokens_ = std::vector<std::uint32_t>(kRunBlocks * kRunBlockTokens + 1, 7);
  ashlar_hasher hasher_ = {};
  ashlar_manager manager_ = {};
};

TEST_F(CMultimodal, BlocksFromTheFirstTouchedOnHaveOtherNames) {
  const ashlar_multimodal_run cat = image(1), dog = image(2);
  const auto plain = chains(nullptr, 0), with_cat = chains(&cat, 1), with_dog = chains(&dog, 1);
  EXPECT_EQ(with_cat, chains(&cat, 1));
  EXPECT_EQ(with_cat[0], plain[0]);
  EXPECT_EQ(with_cat[0], with_dog[0]);
  for (std::size_t i = 1; i < kRunBlocks; ++i) {
    EXPECT_NE(with_cat[i], plain[i]) << i;
    EXPECT_NE(with_cat[i], with_dog[i]) << i;
  }
}

TEST_F(CMultimodal, ASequenceMayBeHashedInParts) {
  const ashlar_multimodal_run cat = image(1);
  ashlar_block_hashes whole[kRunBlocks], parts[kRunBlocks];
  std::size_t count = 0;
  ASSERT_EQ(ashlar_hash_blocks_with_runs(hasher_, nullptr, tokens_.data(), kRunBlocks * kRunBlockTokens,
                                         kRunBlockTokens, &cat, 1, whole, kRunBlocks, &count),
            ASHLAR_OK);
  for (std::size_t i = 0; i < kRunBlocks; ++i) {
    ASSERT_EQ(ashlar_hash_blocks_with_runs(hasher_, i == 0 ? nullptr : &parts[i - 1], tokens_.data(),
                                           kRunBlockTokens, kRunBlockTokens, &cat, 1, &parts[i], 1, &count),
              ASHLAR_OK);
    EXPECT_EQ(parts[i].sequence.hi, whole[i].sequence.hi);
    EXPECT_EQ(parts[i].sequence.lo, whole[i].sequence.lo);
    EXPECT_EQ(parts[i].prefix.lo, whole[i].prefix.lo);
  }
}

TEST_F(CMultimodal, RequestsFindTheBlocksOfTheirImageOnly) {
  EXPECT_EQ(cached(image(1)), 0u);
  EXPECT_EQ(cached(image(1)), 16u);
  EXPECT_EQ(cached(image(2)), 4u);
}

TEST_F(CMultimodal, CompletedBlocksAreFoundByTheirNames) {
  const ashlar_multimodal_run cat = image(1);
  ashlar_blocks list = {};
  ASSERT_EQ(ashlar_manager_allocate(manager_, 2, &list), ASHLAR_OK);
  // The image goes on after the second block.
  ASSERT_EQ(ashlar_blocks_complete_with_runs(list, {0}, tokens_.data(), tokens_.size(), &cat, 1, 0, &list),
            ASHLAR_OK)
      << ashlar_last_error();
  ashlar_hash names[2];
  std::size_t count = 0;
  EXPECT_EQ(ashlar_blocks_hashes(list, names, 2, &count), ASHLAR_OK);
  EXPECT_EQ(names[1].lo, chains(&cat, 1)[1]);
  ASSERT_EQ(ashlar_blocks_register(list, nullptr, &list), ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK);
  EXPECT_EQ(cached(cat), 8u);
}

TEST_F(CMultimodal, RunsThatAreWrongAreRefused) {
  ashlar_block_hashes out[kRunBlocks];
  std::size_t count = 0;
  const auto refused = [&](std::vector<ashlar_multimodal_run> runs, const char* why) {
    EXPECT_EQ(ashlar_hash_blocks_with_runs(hasher_, nullptr, tokens_.data(), tokens_.size(), kRunBlockTokens,
                                           runs.data(), runs.size(), out, kRunBlocks, &count),
              ASHLAR_INVALID_ARGUMENT);
    EXPECT_THAT(ashlar_last_error(), ::testing::HasSubstr(why));
    ashlar_request_options options = {};
    options.struct_size = sizeof options;
    options.runs = runs.data();
    options.run_count = runs.size();
    ashlar_request request = {};
    EXPECT_EQ(ashlar_request_create(manager_, tokens_.data(), tokens_.size(), &options, &request),
              ASHLAR_INVALID_ARGUMENT);
  };
  refused({{1, 4, 0, 0}}, "empty");
  refused({{1, 4, 4, 0}, {2, 6, 2, 0}}, "run 1 starts at token 6");
  refused({{1, 4, 4, 9}}, "reserved is 9");
  EXPECT_EQ(ashlar_hash_blocks_with_runs(hasher_, nullptr, tokens_.data(), tokens_.size(), kRunBlockTokens,
                                         nullptr, 1, out, kRunBlocks, &count),
            ASHLAR_INVALID_ARGUMENT);
  const ashlar_multimodal_run late = {1, 15, 4, 0};
  ashlar_blocks list = {};
  ASSERT_EQ(ashlar_manager_allocate(manager_, 1, &list), ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_complete_with_runs(list, {0}, tokens_.data(), tokens_.size(), &late, 1, 0, &list),
            ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK);
}

}  // namespace
}  // namespace ashlar::testing
