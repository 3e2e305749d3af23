// Tiers of the C interface that share volumes and files: ranks, hash schemes, keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar_c.h"
#include "support/scratch_folder.h"

namespace ashlar::testing {
namespace {

constexpr std::uint32_t kTokens = 16;

// A rank with two of the heads of a model, over a volume and perhaps a file.
struct RankOptions {
  explicit RankOptions(const std::string& folder) : volume(folder), directory(volume.c_str()) {
    options.struct_size = sizeof options;
    options.num_layers = 2;
    options.num_heads = 2;
    options.head_dim = 8;
    options.block_size = kTokens;
    options.dtype = ASHLAR_DTYPE_F16;
    options.model = "ranks";
    options.g1_blocks = options.g2_blocks = options.g4_blocks = 8;
    options.g4_directories = &directory;
    options.g4_directory_count = 1;
  }
  RankOptions(const RankOptions&) = delete;
  RankOptions& operator=(const RankOptions&) = delete;

  const std::string volume;
  const char* const directory;
  ashlar_tiers_options options = {};
};

class RankTiers {
 public:
  explicit RankTiers(const ashlar_tiers_options& options, const char* scheme = nullptr)
      : heads_(options.num_heads) {
    EXPECT_EQ(ashlar_tiers_create(&options, &tiers_), ASHLAR_OK) << ashlar_last_error();
    ashlar_hasher_options named = {};
    named.struct_size = sizeof named;
    named.scheme = scheme;
    ashlar_hasher hasher = {};
    EXPECT_EQ(ashlar_tiers_hasher(tiers_, &named, &hasher), ASHLAR_OK) << ashlar_last_error();
    std::vector<std::uint32_t> tokens(kTokens);
    std::iota(tokens.begin(), tokens.end(), 1u);
    std::size_t count = 0;
    EXPECT_EQ(ashlar_hash_blocks(hasher, nullptr, tokens.data(), tokens.size(), kTokens, &hashes_, 1, &count),
              ASHLAR_OK);
    EXPECT_EQ(ashlar_hasher_destroy(hasher), ASHLAR_OK);
  }
  ~RankTiers() { EXPECT_EQ(ashlar_tiers_destroy(tiers_), ASHLAR_OK) << ashlar_last_error(); }
  RankTiers(const RankTiers&) = delete;
  RankTiers& operator=(const RankTiers&) = delete;

  // A block in which every head of this rank has its own byte, the first one's is `first`.
  void store(int first) {
    ashlar_manager manager = {};
    ashlar_blocks list = {};
    EXPECT_EQ(ashlar_tiers_manager(tiers_, &manager), ASHLAR_OK);
    ASSERT_EQ(ashlar_manager_allocate(manager, 1, &list), ASHLAR_OK);
    each_head(list, [&](unsigned char* at, std::size_t bytes, std::uint32_t head) {
      std::memset(at, first + static_cast<int>(head), bytes);
    });
    ASSERT_EQ(ashlar_blocks_stage(list, &hashes_, 1, nullptr, nullptr, &list), ASHLAR_OK);
    ASSERT_EQ(ashlar_blocks_register(list, nullptr, &list), ASHLAR_OK);
    EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK);
    EXPECT_EQ(ashlar_tiers_drain(tiers_, ASHLAR_FOREVER), ASHLAR_OK);
  }

  // The byte of each head; empty where no tier has the block.
  std::vector<int> load() {
    ashlar_blocks list = {};
    std::size_t count = 0;
    std::vector<int> found;
    EXPECT_EQ(ashlar_tiers_onboard(tiers_, &hashes_.sequence, 1, nullptr, &list), ASHLAR_OK);
    EXPECT_EQ(ashlar_blocks_info(list, &count, nullptr), ASHLAR_OK);
    if (count != 0)
      each_head(list, [&](const unsigned char* at, std::size_t bytes, std::uint32_t head) {
        if (found.size() <= head) found.resize(head + 1, at[0]);
        EXPECT_EQ(found[head], at[0]);
        EXPECT_EQ(found[head], at[bytes - 1]);
      });
    EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK);
    return found;
  }

 private:
  template <class F>
  void each_head(ashlar_blocks list, F&& body) {
    std::uint32_t id = 0;
    std::size_t count = 0;
    ASSERT_EQ(ashlar_blocks_ids(list, &id, 1, &count), ASHLAR_OK);
    for (std::uint32_t layer = 0; layer < 2; ++layer)
      for (std::uint32_t outer = 0; outer < 2; ++outer) {
        void* address = nullptr;
        std::uint64_t bytes = 0;
        ASSERT_EQ(ashlar_tiers_block_memory(tiers_, id, layer, outer, &address, &bytes), ASHLAR_OK);
        const std::size_t head_bytes = bytes / kTokens / heads_;
        for (std::uint32_t token = 0; token < kTokens; ++token)
          for (std::uint32_t head = 0; head < heads_; ++head)
            body(static_cast<unsigned char*>(address) + (token * heads_ + head) * head_bytes, head_bytes,
                 head);
      }
  }

  const std::uint32_t heads_;
  ashlar_tiers tiers_ = {};
  ashlar_block_hashes hashes_ = {};
};

// What tiers with these options are refused for.
std::string refusal_of(const ashlar_tiers_options& options) {
  ashlar_tiers tiers = {};
  const ashlar_status status = ashlar_tiers_create(&options, &tiers);
  EXPECT_EQ(status, ASHLAR_INVALID_ARGUMENT);
  if (status == ASHLAR_OK) {
    EXPECT_EQ(ashlar_tiers_destroy(tiers), ASHLAR_OK);
  }
  return status == ASHLAR_OK ? "" : ashlar_last_error();
}

TEST(CRanks, RanksThatShareAVolumeFindOnlyTheirOwnBlocks) {
  const ScratchFolder folder;
  RankOptions first(folder.path()), second(folder.path());
  first.options.ranks = second.options.ranks = 2;
  second.options.rank = 1;
  RankTiers(first.options).store(0x10);
  EXPECT_THAT(RankTiers(second.options).load(), ::testing::IsEmpty());
  RankTiers(second.options).store(0x20);
  EXPECT_THAT(RankTiers(first.options).load(), ::testing::ElementsAre(0x10, 0x11));
  EXPECT_THAT(RankTiers(second.options).load(), ::testing::ElementsAre(0x20, 0x21));
}

TEST(CRanks, ARankOfAnotherDegreeTakesItsHeadsFromTheVolume) {
  const ScratchFolder folder;
  RankOptions first(folder.path()), second(folder.path()), whole(folder.path()), stage(folder.path());
  first.options.ranks = second.options.ranks = 2;
  second.options.rank = 1;
  RankTiers(first.options).store(0x10);
  RankTiers(second.options).store(0x20);
  whole.options.num_heads = 4;
  EXPECT_THAT(RankTiers(whole.options).load(), ::testing::IsEmpty());
  const std::uint32_t two = 2, one = 1;
  whole.options.other_ranks = &two;
  whole.options.other_rank_count = 1;
  EXPECT_THAT(RankTiers(whole.options).load(), ::testing::ElementsAre(0x10, 0x11, 0x20, 0x21));

  // Of another model that is stored whole.
  whole.options.model = stage.options.model = "stages";
  whole.options.other_rank_count = 0;
  RankTiers(whole.options).store(0x40);
  stage.options.ranks = 4;
  stage.options.rank = 2;
  stage.options.num_heads = 1;
  stage.options.other_ranks = &one;
  stage.options.other_rank_count = 1;
  EXPECT_THAT(RankTiers(stage.options).load(), ::testing::ElementsAre(0x42));
}

TEST(CRanks, ARankThatDoesNotAddUpIsRefused) {
  const ScratchFolder folder;
  RankOptions rank(folder.path());
  ashlar_tiers_options& options = rank.options;
  options.rank = 2;
  options.ranks = 2;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("rank 2 of 2"));
  options.rank = 1;
  options.model_heads = 8;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("8 KV heads holds 4 of them, and this one has 2"));
  options.model_heads = 3;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("3 KV heads"));
  options.model_heads = 0;
  options.first_layer = 2;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("model_layers"));
  options.model_layers = 3;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("2 layers from layer 2 on"));
  options.first_layer = 0;
  options.model_layers = 0;
  const std::uint32_t none = 0;
  options.other_ranks = &none;
  options.other_rank_count = 1;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("at least one rank"));
  options.g4_directory_count = 0;
  options.g4_blocks = 0;
  const std::uint32_t one = 1;
  options.other_ranks = &one;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("other_ranks"));
}

TEST(CRanks, AFileOfAnotherSchemeOrKeyIsRefused) {
  const ScratchFolder folder;
  const std::string file = folder.file("g3");
  const char* const path = file.c_str();
  RankOptions tiers(folder.path());
  ashlar_tiers_options& options = tiers.options;
  options.g4_blocks = 0;
  options.g4_directory_count = 0;
  options.g3_blocks = 8;
  options.g3_paths = &path;
  options.g3_path_count = 1;
  RankTiers(options).store(0x30);
  EXPECT_THAT(RankTiers(options).load(), ::testing::ElementsAre(0x30, 0x31));
  options.hash_scheme = "xxh64_int64";
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("another hash scheme"));
  options.hash_scheme = nullptr;
  const std::uint8_t key[16] = {1, 2, 3};
  options.prefix_key = key;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("prefix_key has 0 bytes; it needs 16"));
  options.prefix_key_size = 16;
  EXPECT_THAT(refusal_of(options), ::testing::HasSubstr("another prefix key"));
}

TEST(CRanks, TiersRefuseHashersOfAnotherScheme) {
  const ScratchFolder folder;
  RankOptions tiers(folder.path());
  tiers.options.hash_scheme = "xxh64_int64";
  ashlar_tiers made = {};
  ASSERT_EQ(ashlar_tiers_create(&tiers.options, &made), ASHLAR_OK) << ashlar_last_error();
  ashlar_manager manager = {};
  ASSERT_EQ(ashlar_tiers_manager(made, &manager), ASHLAR_OK);
  ashlar_hasher plain = {}, theirs = {};
  ASSERT_EQ(ashlar_hasher_create(nullptr, &plain), ASHLAR_OK);
  ashlar_request_options request = {};
  request.struct_size = sizeof request;
  request.hasher = plain;
  const std::uint32_t token = 1;
  ashlar_request refused = {};
  EXPECT_EQ(ashlar_request_create(manager, &token, 1, &request, &refused), ASHLAR_INVALID_ARGUMENT);
  EXPECT_THAT(ashlar_last_error(), ::testing::HasSubstr("hash_scheme"));
  ashlar_hasher_options named = {};
  named.struct_size = sizeof named;
  named.scheme = "xxh3_chain";
  EXPECT_EQ(ashlar_tiers_hasher(made, &named, &theirs), ASHLAR_INVALID_ARGUMENT);
  EXPECT_THAT(ashlar_last_error(), ::testing::HasSubstr("xxh64_int64"));

  // Without a scheme, theirs is that of the tiers, and so it is for requests.
  ASSERT_EQ(ashlar_tiers_hasher(made, nullptr, &theirs), ASHLAR_OK);
  request.hasher = theirs;
  ASSERT_EQ(ashlar_request_create(manager, &token, 1, &request, &refused), ASHLAR_OK);
  EXPECT_EQ(ashlar_request_destroy(refused), ASHLAR_OK);
  std::uint64_t known = 0, found = 0;
  ashlar_hasher same = {};
  named.scheme = "xxh64_int64";
  ASSERT_EQ(ashlar_hasher_create(&named, &same), ASHLAR_OK);
  EXPECT_EQ(ashlar_hasher_fingerprint(same, &known), ASHLAR_OK);
  EXPECT_EQ(ashlar_hasher_fingerprint(theirs, &found), ASHLAR_OK);
  EXPECT_EQ(found, known);
  for (const ashlar_hasher one : {plain, theirs, same}) EXPECT_EQ(ashlar_hasher_destroy(one), ASHLAR_OK);
  EXPECT_EQ(ashlar_tiers_destroy(made), ASHLAR_OK);
}

}  // namespace
}  // namespace ashlar::testing
