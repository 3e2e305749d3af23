// Blocks of equal names and other tokens: a miss in every tier, before and after a restart.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_manager.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"
#include "tiers/volume/volume_tier_scenario.h"

namespace ashlar::tiers {
namespace {

using events::G1;
using tokens::SequenceHash;
using tokens::Token;
using Request = block::RequestSequence<G1>;

std::vector<Token> words(std::uint32_t first) {
  std::vector<Token> out;
  for (std::uint32_t i = 0; i < 17; ++i) out.emplace_back(first + i);
  return out;
}

class IdentityTest : public ::testing::Test {
 protected:
  void open(std::optional<tokens::PrefixKey> key = {}) {
    kv_.reset();
    KvOptions options = KvWorkload::options_in(folder_.path());
    options.prefix_key = std::move(key);
    kv_ = KvBlockManager::create(std::move(options)).value();
  }
  Request request(std::vector<Token> prompt, std::vector<SequenceHash> names = {},
                  const tokens::Salt& salt = {}) {
    return Request::create(kv_->g1(), std::move(prompt), std::move(names),
                           {.hasher = tokens::SequenceHasher(salt)})
        .value();
  }
  // Computes and stores a text. Returns its names.
  std::vector<SequenceHash> store(std::uint32_t first, std::vector<SequenceHash> names = {},
                                  const tokens::Salt& salt = {}) {
    KvWorkload work(*kv_);
    Request one = request(words(first), std::move(names), salt);
    EXPECT_TRUE(one.schedule_prefill(17));
    const std::vector<SequenceHash> hashes(one.sequence_hashes().begin(), one.sequence_hashes().end());
    for (std::size_t i = 0; i < hashes.size(); ++i) work.compute(one.block_table()[i], bytes_of(first, i));
    EXPECT_TRUE(one.apply_prefill(Token(1)));
    one.release();
    kv_->drain();
    return hashes;
  }
  // What the bytes of block i of a text are made from: not its name, which two texts may share.
  static SequenceHash bytes_of(std::uint32_t first, std::size_t i) {
    return SequenceHash::root(first * 100 + i + 1);
  }
  std::uint64_t others() const { return kv_->status().misses[static_cast<std::size_t>(Miss::kOtherTokens)]; }

  ScratchFolder folder_;
  std::unique_ptr<KvBlockManager> kv_;
};

TEST_F(IdentityTest, AForgedNameIsAMissInEveryTier) {
  open();
  const std::vector<SequenceHash> names = store(0);
  for (const events::TierId tier : {kG1, kG2, kG3, kG4}) {
    SCOPED_TRACE(unsigned{tier.value()});
    for (const events::TierId above : {kG1, kG2, kG3})
      if (above.value() < tier.value()) kv_->reset(above).value();
    EXPECT_EQ(kv_->find(names), (std::vector<TierRun>{{tier, 0, 4}}));
    const std::uint64_t before = others();
    EXPECT_EQ(request(words(1000), names).match_prefix().value(), 0u);
    EXPECT_EQ(others(), before + 1);
    {
      Request waits = request(words(1000), names);
      const block::MatchStart start = waits.begin_match([] {}).value();
      if (start.pending) {
        EXPECT_EQ(waits.finish_match().value(), 0u);
      }
    }
    EXPECT_EQ(request(words(0)).match_prefix().value(), 16u) << "the right one, from here";
  }
}

TEST_F(IdentityTest, AForgedNameIsAMissAfterARestart) {
  open();
  const std::vector<SequenceHash> names = store(0);
  open();
  EXPECT_EQ(request(words(1000), names).match_prefix().value(), 0u);
  EXPECT_EQ(others(), 1u);
  EXPECT_EQ(request(words(0)).match_prefix().value(), 16u);
}

// Both store blocks under the same names, in whichever tiers they find room: each gets its own, or nothing.
TEST_F(IdentityTest, NeitherGetsTheOthersBlocks) {
  open();
  const std::vector<SequenceHash> names = store(0);
  const auto expect_own = [&](std::uint32_t first) {
    KvWorkload work(*kv_);
    Request one = request(words(first), names);
    const std::size_t cached = one.match_prefix().value();
    for (std::size_t i = 0; i < cached / 4; ++i)
      EXPECT_TRUE(work.has_bytes(one.block_table()[i], bytes_of(first, i))) << first;
    return cached;
  };
  std::size_t found = 0;
  for (int round = 0; round < 6; ++round) {
    if (round == 3) open();
    kv_->reset(kG1).value();
    if (round % 2 == 0) kv_->reset(kG2).value();
    if (round != 4) store(1000, names);
    found += expect_own(0) + expect_own(1000);
    if (round % 3 == 2) kv_->reset(kG1).value();
    found += expect_own(1000) + expect_own(0);
    kv_->drain();
  }
  EXPECT_GT(found, 0u);
}

TEST_F(IdentityTest, OnboardComparesDigestsThatItIsGiven) {
  open();
  const std::vector<SequenceHash> names = store(0);
  kv_->reset(kG1).value();
  const auto right = tokens::TokenSequence::create(words(0), 4, kv_->hasher()).value();
  const auto wrong = tokens::TokenSequence::create(words(1000), 4, kv_->hasher()).value();
  const auto digests = [](const tokens::TokenSequence& text) {
    OnboardOptions options;
    for (const tokens::TokenBlock& block : text.blocks()) options.prefixes.push_back(block.prefix_digest());
    return options;
  };
  EXPECT_EQ(kv_->onboard(names, digests(wrong)).size(), 0u);
  EXPECT_EQ(kv_->onboard(names, digests(right)).size(), 4u);
  EXPECT_EQ(kv_->onboard(names, digests(wrong)).size(), 0u) << "in G1 too";
  EXPECT_EQ(kv_->onboard(names).size(), 4u) << "without digests names are trusted";
  OnboardOptions short_of_one = digests(right);
  short_of_one.prefixes.pop_back();
  EXPECT_EQ(kv_->onboard_async(names, short_of_one).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(kv_->prefetch(names, short_of_one).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(IdentityTest, WhatABlockIsSurvivesARestart) {
  open();
  const tokens::Salt salt("lora", "tenant");
  const std::vector<SequenceHash> names = store(0, {}, salt);
  const auto identity = [&](auto& manager) { return manager.identity(manager.hold(names[2]).value()); };
  const block::BlockIdentity first = identity(kv_->g1());
  EXPECT_EQ(first.parent, names[1]);
  EXPECT_EQ(first.root, names[0]);
  EXPECT_TRUE(first.local && first.prefix.is_known());
  EXPECT_EQ(first.salt, tokens::salt_fingerprint(salt));
  const auto expect_same = [&](const block::BlockIdentity& other) {
    EXPECT_EQ(other.hash, first.hash);
    EXPECT_EQ(other.parent, first.parent);
    EXPECT_EQ(other.root, first.root);
    EXPECT_EQ(other.local, first.local);
    EXPECT_EQ(other.prefix, first.prefix);
    EXPECT_EQ(other.salt, first.salt);
  };
  expect_same(identity(*kv_->g2()));
  expect_same(identity(*kv_->g3()));
  expect_same(identity(*kv_->g4()));
  open();
  expect_same(identity(*kv_->g3()));
  EXPECT_EQ(request(words(0), {}, salt).match_prefix().value(), 16u);
  expect_same(identity(kv_->g1()));
  // From a volume that was asked.
  kv_->reset(kG3).value();
  kv_->reset(kG1).value();
  kv_->reset(kG2).value();
  EXPECT_EQ(kv_->find(names), (std::vector<TierRun>{{kG4, 0, 4}}));
  EXPECT_EQ(identity(*kv_->g4()).parent, names[1]) << "asking tells the chain";
  EXPECT_EQ(identity(*kv_->g4()).root, names[0]);
  EXPECT_EQ(request(words(0), {}, salt).match_prefix().value(), 16u);
  expect_same(identity(kv_->g1()));
}

TEST_F(IdentityTest, AnotherKeyIsRefusedWithWhatToDo) {
  const tokens::PrefixKey key(tokens::PrefixKey::Bytes{7});
  open(key);
  store(0);
  kv_.reset();
  KvOptions options = KvWorkload::options_in(folder_.path());
  const auto refused = KvBlockManager::create(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message().find("another prefix key"), std::string::npos) << refused.error();
  open(key);
  EXPECT_EQ(request(words(0)).match_prefix().value(), 16u);
  // A hasher with a key of its own would never find anything.
  const tokens::SequenceHasher other(tokens::HashScheme(), {},
                                     tokens::PrefixKey(tokens::PrefixKey::Bytes{8}));
  EXPECT_EQ(Request::create(kv_->g1(), words(0), {.hasher = other}).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(block::SequenceManager<G1>(kv_->g1(), {.hasher = other}).make_sequence(words(0)).error().code(),
            ErrorCode::kInvalidArgument);
}

// Through guards, from token blocks under a hasher. Returns what was stored.
tokens::TokenSequence store_guards(KvBlockManager& kv, const tokens::SequenceHasher& hasher) {
  auto text = tokens::TokenSequence::create(words(0), 4, hasher).value();
  auto empty = kv.get_mutable_blocks(4).value();
  block::BlockList<block::CompleteBlock<G1>> complete;
  for (std::size_t i = 0; i < 4; ++i)
    complete.push_back(
        std::move(empty[i]).complete(text.blocks()[i], block::KvReady::asserted_by_caller()).value());
  EXPECT_TRUE(kv.register_blocks(std::move(complete)));
  kv.drain();
  return text;
}

TEST_F(IdentityTest, TokenBlocksOfAnotherKeyAreKnownByNameAndFoundInEveryTier) {
  open();
  const tokens::TokenSequence text = store_guards(*kv_, {});  // the key of this process
  EXPECT_FALSE(kv_->describe(text.sequence_hashes()[3])->in(kG1)->block.identity->prefix.is_known());
  EXPECT_EQ(kv_->g1().match_blocks(text.blocks()).size(), 4u);
  for (const events::TierId above : {kG1, kG2, kG3}) {
    EXPECT_EQ(request(words(0)).match_prefix().value(), 16u);
    kv_->reset(kG1).value();
    if (above != kG1) kv_->reset(kG2).value();
    if (above == kG3) kv_->reset(kG3).value();
  }
  EXPECT_EQ(request(words(0)).match_prefix().value(), 16u);
  kv_->drain();
  open();
  EXPECT_EQ(request(words(0)).match_prefix().value(), 16u);
  EXPECT_EQ(kv_->g1().match_blocks(text.blocks()).size(), 4u) << "what a request has, too";
  EXPECT_EQ(kv_->g1().counters().collisions, 0u);
}

TEST_F(IdentityTest, TokenBlocksOfTheManagersKeyKeepTheirDigest) {
  open();
  const tokens::TokenSequence text = store_guards(*kv_, kv_->hasher());
  EXPECT_EQ(kv_->describe(text.sequence_hashes()[3])->in(kG1)->block.identity->prefix,
            text.blocks()[3].prefix_digest());
  EXPECT_EQ(request(words(1000), text.sequence_hashes()).match_prefix().value(), 0u);
  EXPECT_EQ(request(words(0)).match_prefix().value(), 16u);
}

TEST_F(IdentityTest, BlocksThatAreBuiltTokenByTokenHaveDigestsOfTheManagersKey) {
  open();
  const auto text = tokens::TokenSequence::create(words(0), 4, kv_->hasher()).value();
  const auto process = tokens::TokenSequence::create(words(0), 4).value();
  auto empty = kv_->get_mutable_blocks(2).value();
  for (std::size_t i = 0; i < 2; ++i) {
    block::SequenceStart start;  // under the key of this process
    if (i != 0) {
      start.parent = text.blocks()[0].sequence_hash();
      start.parent_prefix = process.blocks()[0].prefix_digest();
    }
    auto partial = std::move(empty[i]).init_sequence(start).value();
    ASSERT_TRUE(partial.add_tokens(text.blocks()[i].tokens()));
    const auto complete = std::move(partial).commit(block::KvReady::asserted_by_caller()).value();
    EXPECT_EQ(complete.sequence_hash(), text.blocks()[i].sequence_hash());
    EXPECT_EQ(complete.prefix_digest(), i == 0 ? text.blocks()[0].prefix_digest() : tokens::PrefixDigest());
  }
}

TEST_F(IdentityTest, AnotherTenantsBlockIsRefusedAtEveryDoor) {
  open();
  const SequenceHash name = SequenceHash::root(5);
  const auto complete = [&](auto& manager) {
    auto empty = manager.allocate_blocks(1).value();
    auto staged = std::move(empty[0]).stage(name, block::KvReady::asserted_by_caller());
    block::BlockList<decltype(staged)> list;
    list.push_back(std::move(staged));
    return list;
  };
  const auto salt = [](const char* tenant) {
    return block::RegistrationOptions{.salt = tokens::salt_fingerprint(tokens::Salt("", tenant))};
  };
  ASSERT_TRUE(kv_->register_blocks(complete(kv_->g1()), salt("a")));
  EXPECT_EQ(kv_->register_blocks(complete(kv_->g1()), salt("b")).error().error.code(),
            ErrorCode::kCorruption);
  EXPECT_EQ(kv_->g1().register_blocks(complete(kv_->g1()), salt("b")).error().error.code(),
            ErrorCode::kCorruption);
  EXPECT_EQ(kv_->g1().counters().collisions, 2u);
  EXPECT_TRUE(kv_->g1().register_blocks(complete(kv_->g1()), salt("a")));
  EXPECT_TRUE(kv_->g1().register_blocks(complete(kv_->g1()))) << "of an unknown salt";
  kv_->drain();
  EXPECT_EQ(kv_->g2()->register_blocks(complete(*kv_->g2()), salt("b")).error().error.code(),
            ErrorCode::kCorruption);
  EXPECT_TRUE(kv_->g2()->register_blocks(complete(*kv_->g2()), salt("a")));
}

TEST(PrefixKeyTest, FingerprintsTellKeysApart) {
  using tokens::PrefixKey;
  const PrefixKey one(PrefixKey::Bytes{1});
  EXPECT_EQ(one.fingerprint(), PrefixKey(one).fingerprint());
  EXPECT_NE(one.fingerprint(), PrefixKey(PrefixKey::Bytes{2}).fingerprint());
  const auto keys = tokens::NamespaceFingerprint::from_bits(1, 2);
  EXPECT_EQ(PrefixKey::of_namespace(keys), PrefixKey::of_namespace(keys));
  EXPECT_FALSE(PrefixKey::of_namespace(keys) ==
               PrefixKey::of_namespace(tokens::NamespaceFingerprint::from_bits(1, 3)));
}

TEST(VolumeIdentityTest, AForgedNameIsAMissOnADirectoryAndInAFile) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.file("directory"));
  VolumeTier directory(
      VolumeTier::options({{.name = "v", .kind = "directory", .location = folder.file("directory")}}));
  expect_a_forged_name_is_a_miss(directory);
  const std::string path = folder.file("file");
  std::ofstream(path).close();
  std::filesystem::resize_file(path, 16 << 20);
  ASSERT_TRUE(provision_file_volume(path, {.slot_bytes = 64 << 10}));
  VolumeTier file(VolumeTier::options({{.name = "v", .kind = "file", .location = path}}));
  expect_a_forged_name_is_a_miss(file);
}

}  // namespace
}  // namespace ashlar::tiers
