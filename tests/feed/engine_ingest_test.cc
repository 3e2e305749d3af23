#include "ashlar/feed/engine_session.h"

#include <gtest/gtest.h>

#include "ashlar/tokens/engine_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "feed/batch_builder.h"
#include "feed/engine_messages.h"

namespace ashlar::feed {
namespace {

constexpr std::uint32_t kSize = 4;

std::vector<BlockName> names(std::initializer_list<std::uint64_t> values) {
  std::vector<BlockName> out;
  for (const std::uint64_t value : values) out.emplace_back(value);
  return out;
}

// The tokens of blocks `first` to `first + count - 1` of a sequence.
std::vector<Token> text(std::uint32_t first, std::uint32_t count, std::uint32_t sequence = 0) {
  std::vector<Token> out;
  for (std::uint32_t i = first * kSize; i < (first + count) * kSize; ++i)
    out.emplace_back(sequence * 1000 + i);
  return out;
}

std::vector<tokens::BlockHashes> hashes(const std::vector<Token>& all, const tokens::Salt& salt = {}) {
  std::vector<tokens::BlockHashes> out(all.size() / kSize);
  (void)tokens::SequenceHasher(salt).hash_blocks(std::nullopt, all, kSize, out).value();
  return out;
}

class EngineIngestTest : public ::testing::Test {
 protected:
  explicit EngineIngestTest(EngineIngestOptions options = {})
      : ingest_(*EngineIngest::create(std::move(options))) {}

  std::vector<KvEvent> apply(BatchBuilder& builder) {
    std::vector<KvEvent> out;
    ingest_.apply(builder.batch(), out);
    book_.apply(out);
    EXPECT_EQ(book_.problem(), "");
    EXPECT_EQ(book_.present().size(), ingest_.present());
    return out;
  }
  // One event in a batch.
  std::vector<KvEvent> store(std::optional<BlockName> parent, std::initializer_list<std::uint64_t> blocks,
                             const std::vector<Token>& tokens, std::string_view medium = "GPU") {
    BatchBuilder builder;
    builder.stored(parent, names(blocks), tokens, kSize, medium);
    return apply(builder);
  }
  std::vector<KvEvent> remove(std::initializer_list<std::uint64_t> blocks, std::string_view medium = "GPU") {
    BatchBuilder builder;
    builder.removed(names(blocks), medium);
    return apply(builder);
  }
  std::vector<KvEvent> placeholder(std::uint64_t block, std::string_view medium = "CPU") {
    BatchBuilder builder;
    builder.placeholder(BlockName(block), medium);
    return apply(builder);
  }
  const EngineIngestCounters& counters() const { return ingest_.counters(); }

  EngineIngest ingest_;
  PresenceBook book_;
};

TEST_F(EngineIngestTest, SaysWhatABlockIs) {
  const auto events = store(std::nullopt, {11, 12}, text(0, 2));
  const auto expected = hashes(text(0, 2));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].hash, expected[0].sequence);
  EXPECT_EQ(events[1].hash, expected[1].sequence);
  EXPECT_EQ(events[1].parent(), expected[0].sequence);
  EXPECT_EQ(events[0].parent(), std::nullopt);
  EXPECT_EQ(events[1].prefix_group(), expected[0].sequence);
  EXPECT_EQ(events[1].local(), expected[1].local);
  EXPECT_EQ(events[1].name(), BlockName(12));
  EXPECT_TRUE(EngineIngest::for_index(events[1]));
  // A child in a later batch.
  const auto later = store(BlockName(12), {13}, text(2, 1));
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(later[0].hash, hashes(text(0, 3))[2].sequence);
  EXPECT_EQ(later[0].prefix_group(), expected[0].sequence);
}

TEST_F(EngineIngestTest, AnExpectedNumberOfBlocksChangesNoEvent) {
  EngineIngest expecting = EngineIngest::create({.expected_blocks = 3}).value();
  const auto both = [&](BatchBuilder& builder) {
    std::vector<KvEvent> plain;
    std::vector<KvEvent> sized;
    ingest_.apply(builder.batch(), plain);
    expecting.apply(builder.batch(), sized);
    EXPECT_EQ(sized, plain);
    EXPECT_EQ(expecting.present(), ingest_.present());
  };
  for (int round = 0; round < 2; ++round)
    for (const std::uint32_t rank : {4u, 1u}) {
      BatchBuilder builder(rank);
      builder.stored(std::nullopt, names({11, 12, 13, 14, 15}), text(0, 5), kSize);
      builder.removed(names({15, 14}));
      both(builder);
      if (rank == 1) continue;
      std::vector<KvEvent> plain;
      std::vector<KvEvent> sized;
      ingest_.clear(rank, plain);
      expecting.clear(rank, sized);
      EXPECT_EQ(sized, plain);
    }
  expecting.check_invariants();
}

// Beyond 131,072 their records lie in larger pieces of memory.
TEST_F(EngineIngestTest, HoldsManyBlocks) {
  constexpr std::uint64_t kRun = 1'000;
  constexpr std::uint64_t kRuns = 180;
  const auto name_run = [](std::uint64_t run) {
    std::vector<BlockName> out;
    for (std::uint64_t i = 0; i < kRun; ++i) out.emplace_back(1 + run * kRun + i);
    return out;
  };
  const std::vector<Token> tokens(kRun * kSize, Token(7));
  std::vector<KvEvent> out;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t run = 0; run < kRuns; ++run) {
      BatchBuilder builder;
      builder.stored(run == 0 ? std::nullopt : std::optional(BlockName(run * kRun)), name_run(run), tokens,
                     kSize);
      out.clear();
      ingest_.apply(builder.batch(), out);
      ASSERT_EQ(out.size(), kRun);
      ASSERT_EQ(out.back().name(), BlockName((run + 1) * kRun));
      ASSERT_EQ(out.back().hash.position(), (run + 1) * kRun - 1);
    }
    EXPECT_EQ(ingest_.present(), kRun * kRuns);
    ingest_.check_invariants();
    for (std::uint64_t run = kRuns; run-- > 0;) {
      BatchBuilder builder;
      builder.removed(name_run(run));
      ingest_.apply(builder.batch(), out);
      if (run == kRuns / 2) {  // freed places are taken again
        BatchBuilder again;
        again.stored(BlockName(run * kRun), name_run(run), tokens, kSize);
        again.removed(name_run(run));
        ingest_.apply(again.batch(), out);
        ingest_.check_invariants();
      }
    }
    EXPECT_EQ(ingest_.present(), 0u);
  }
  EXPECT_EQ(counters().collisions, 0u);
}

TEST_F(EngineIngestTest, CountsCopiesOfABlock) {
  store(std::nullopt, {11, 12}, text(0, 2));
  EXPECT_EQ(store(BlockName(11), {12}, text(1, 1)).size(), 0u);
  EXPECT_EQ(remove({12}).size(), 0u);
  EXPECT_EQ(remove({12}).size(), 1u);
  EXPECT_EQ(remove({12}).size(), 0u);
  EXPECT_EQ(counters().repeated, 1u);
  EXPECT_EQ(counters().released, 1u);
  EXPECT_EQ(counters().unknown_removals, 1u);
}

TEST_F(EngineIngestTest, AFullReportIsNotACopy) {
  store(std::nullopt, {11, 12, 13}, text(0, 3));
  EXPECT_EQ(store(std::nullopt, {11, 12}, text(0, 2)).size(), 0u);
  EXPECT_EQ(counters().reannounced, 2u);
  EXPECT_EQ(remove({13, 12, 11}).size(), 3u);
  EXPECT_EQ(ingest_.present(), 0u);
}

TEST_F(EngineIngestTest, WhetherReportsWereAskedForIsReadWithEveryBatch) {
  const auto asked = std::make_shared<std::atomic<bool>>(false);
  ingest_ = EngineIngest::create({.full_reports_asked = asked}).value();
  store(std::nullopt, {11, 12}, text(0, 2));
  EXPECT_EQ(store(std::nullopt, {11, 12}, text(0, 2)).size(), 0u);
  EXPECT_EQ(counters().repeated, 2u);
  EXPECT_EQ(remove({12, 11}).size(), 0u);  // copies are left
  *asked = true;
  EXPECT_EQ(store(std::nullopt, {11, 12}, text(0, 2)).size(), 0u);
  EXPECT_EQ(counters().reannounced, 2u);
  EXPECT_EQ(remove({12, 11}).size(), 2u);
}

TEST_F(EngineIngestTest, ARealStoreFromBlockZeroIsCountedWhileNothingIsInDoubt) {
  store(std::nullopt, {11, 12}, text(0, 2));
  EXPECT_EQ(store(std::nullopt, {11, 12, 13}, text(0, 3)).size(), 1u);
  EXPECT_EQ(remove({13, 12, 11}).size(), 1u);
  EXPECT_EQ(remove({12, 11}).size(), 2u);
}

TEST_F(EngineIngestTest, AReportAfterALossDoesNotCountBlocksTwice) {
  store(std::nullopt, {11, 12}, text(0, 2));
  std::vector<KvEvent> out;
  ingest_.resync(out);
  book_.apply(out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].kind, KvEventKind::kCleared);
  store(BlockName(12), {13}, text(2, 1));  // waits
  EXPECT_EQ(ingest_.waiting(), 1u);
  EXPECT_EQ(store(std::nullopt, {11, 12, 13}, text(0, 3)).size(), 3u);
  EXPECT_EQ(remove({13, 12, 11}).size(), 3u);
  EXPECT_EQ(ingest_.present(), 0u);
}

TEST_F(EngineIngestTest, AnUnknownNameDoesNotStopARemoval) {
  store(std::nullopt, {11, 12}, text(0, 2));
  EXPECT_EQ(remove({99, 12, 98, 11}).size(), 2u);
  EXPECT_EQ(counters().unknown_removals, 2u);
}

TEST_F(EngineIngestTest, AClearIsOfTheDeviceOnlyAndChildrenGoFirst) {
  store(std::nullopt, {11, 12, 13}, text(0, 3));
  placeholder(12);
  store(BlockName(99), {98}, text(5, 1));  // waits, and is cleared with the rest
  BatchBuilder builder;
  builder.cleared();
  builder.cleared();
  const auto events = apply(builder);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].name(), BlockName(13));
  EXPECT_EQ(events[2].name(), BlockName(11));
  EXPECT_EQ(ingest_.present(), 1u);
  EXPECT_EQ(ingest_.waiting(), 0u);
  EXPECT_EQ(counters().clears, 2u);
  EXPECT_EQ(counters().cancelled, 1u);
  // The offloaded block still names its place, and comes back.
  EXPECT_EQ(store(BlockName(12), {14}, text(2, 1)).size(), 1u);
}

TEST_F(EngineIngestTest, PlaceholdersWaitForTheirNames) {
  EXPECT_EQ(placeholder(12).size(), 0u);
  EXPECT_EQ(placeholder(11).size(), 0u);
  EXPECT_EQ(ingest_.waiting(), 2u);
  EXPECT_EQ(remove({11}, "CPU").size(), 0u);
  const auto events = store(std::nullopt, {11, 12}, text(0, 2));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].name(), BlockName(12));
  EXPECT_EQ(events[2].tier, events::kTierId<events::G2>);
  EXPECT_EQ(events[2].local(), hashes(text(0, 2))[1].local);
  EXPECT_EQ(counters().resolved, 1u);
  EXPECT_EQ(counters().cancelled, 1u);
  EXPECT_EQ(placeholder(12).size(), 0u) << "a lower tier is a set";
  EXPECT_EQ(remove({12}, "CPU").size(), 1u);
}

TEST_F(EngineIngestTest, ChildrenThatComeFirstWaitForTheirParents) {
  book_.strict_parents = false;
  EXPECT_EQ(store(BlockName(12), {13}, text(2, 1)).size(), 0u);
  EXPECT_EQ(store(BlockName(13), {14, 15}, text(3, 2)).size(), 0u);
  EXPECT_EQ(remove({14}).size(), 0u);  // cancelled; 15 stays behind it
  const auto events = store(std::nullopt, {11, 12}, text(0, 2));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[2].name(), BlockName(13));
  EXPECT_EQ(events[3].name(), BlockName(15));
  EXPECT_EQ(events[3].hash, hashes(text(0, 5))[4].sequence);
  EXPECT_EQ(counters().waited, 3u);
  EXPECT_EQ(counters().resolved, 2u);
  EXPECT_EQ(ingest_.waiting(), 0u);
}

TEST_F(EngineIngestTest, SaltsPassFromBlockZeroToItsChildren) {
  BatchBuilder builder;
  builder.stored(std::nullopt, names({11, 12}), text(0, 2), kSize);
  builder.key(0, "tenant-a");
  builder.stored(BlockName(12), names({13}), text(2, 1), kSize);
  const auto events = apply(builder);
  const auto expected = hashes(text(0, 3), tokens::Salt("", "tenant-a"));
  ASSERT_EQ(events.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(events[i].hash, expected[i].sequence) << i;
}

TEST_F(EngineIngestTest, LoraNamesAndSaltsAreToldApart) {
  BatchBuilder builder;
  builder.stored(std::nullopt, names({11, 12}), text(0, 2), kSize).lora_name = "adapter";
  builder.key(0, "adapter").key(0, "dynamo-cache-salt:tenant-a").key(1, "adapter");
  const auto events = apply(builder);
  const auto expected = hashes(text(0, 2), tokens::Salt("adapter", "tenant-a"));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].hash, expected[1].sequence);
  BatchBuilder other;
  other.stored(BlockName(12), names({13}), text(2, 1), kSize).lora_name = "another";
  EXPECT_TRUE(apply(other).empty());
  EXPECT_EQ(counters().collisions, 1u);
}

// Lower tiers leave out the salt; the name says which block it is.
TEST_F(EngineIngestTest, ALowerTierWithoutExtraKeysIsKnownByItsName) {
  store(BlockName(11), {12}, text(1, 1), "CPU");
  store(std::nullopt, {11}, text(0, 1), "CPU");
  EXPECT_EQ(ingest_.present(), 0u);
  BatchBuilder builder;
  builder.stored(std::nullopt, names({11, 12}), text(0, 2), kSize);
  builder.key(0, "tenant-a");
  EXPECT_EQ(apply(builder).size(), 4u);
  const auto expected = hashes(text(0, 2), tokens::Salt("", "tenant-a"));
  for (const auto& [key, hash] : book_.present())
    EXPECT_EQ(hash, expected[key.name - 11].sequence) << "tier " << key.tier;
  EXPECT_EQ(store(std::nullopt, {11}, text(0, 1), "DISK").size(), 1u);
  EXPECT_EQ(store(std::nullopt, {11}, text(0, 1, 3), "STORAGE").size(), 0u) << "other tokens";
  EXPECT_EQ(counters().collisions, 1u);
}

TEST_F(EngineIngestTest, AnEventNamesAParentThatIsHeld) {
  const auto parents = [](const std::vector<KvEvent>& events) {
    std::vector<std::optional<std::uint64_t>> out;
    for (const KvEvent& event : events) {
      EXPECT_EQ(event.kind, KvEventKind::kStored);
      EXPECT_EQ(event.parent_name().has_value(), event.has_parent && event.has_parent_name);
      out.push_back(!event.has_parent_name
                        ? std::nullopt
                        : std::optional(event.parent_name().value_or(BlockName()).value()));
    }
    return out;
  };
  using Parents = std::vector<std::optional<std::uint64_t>>;
  EXPECT_EQ(parents(store(std::nullopt, {11, 12, 13}, text(0, 3))), (Parents{0, 11, 12}));
  EXPECT_EQ(parents(store(BlockName(13), {14}, text(3, 1))), (Parents{13}));
  EXPECT_EQ(parents(placeholder(14)), (Parents{13}));
  // Of the same content under another name the block is a child too, and may be told by that name.
  EXPECT_EQ(parents(store(BlockName(12), {23}, text(2, 1))), (Parents{12}));
  EXPECT_EQ(parents(store(BlockName(23), {14}, text(3, 1), "DISK")), (Parents{23}));
  // A name that is gone, and one that means another block now, are not told.
  remove({23});
  EXPECT_EQ(parents(placeholder(14, "STORAGE")), (Parents{std::nullopt}));
  store(BlockName(12), {23}, text(7, 1));
  remove({14}, "CPU");
  EXPECT_EQ(parents(placeholder(14)), (Parents{std::nullopt}));
}

TEST_F(EngineIngestTest, ImagesEnterTheLocalHash) {
  BatchBuilder builder;
  builder.stored(std::nullopt, names({11, 12, 13}), text(0, 3), kSize);
  builder.key(1, "00000000000000aa" + std::string(48, 'f'), EngineExtraKey::Kind::kMultimodal);
  builder.key(1, "00000000000000bb" + std::string(48, 'f'), EngineExtraKey::Kind::kMultimodal);
  const auto events = apply(builder);
  ASSERT_EQ(events.size(), 3u);
  const std::uint64_t images[] = {0xAA, 0xBB};
  EXPECT_EQ(events[1].local(), tokens::router_local_hash(text(1, 1), images, tokens::Salt::kBaseSeed));
  const auto plain = hashes(text(0, 3));
  EXPECT_EQ(events[0].hash, plain[0].sequence);
  EXPECT_EQ(events[2].local(), plain[2].local);
  EXPECT_NE(events[2].hash, plain[2].sequence) << "its path leads through the images";
  // The chain goes on as it does for plain text.
  const auto step = [](const tokens::SequenceHash& before, const tokens::LocalHash& local) {
    std::vector<Token> words;
    for (const std::uint64_t number : {before.chain(), local.value()})
      words.insert(words.end(), {Token(static_cast<std::uint32_t>(number)),
                                 Token(static_cast<std::uint32_t>(number >> 32))});
    return tokens::router_local_hash(words, {}, tokens::Salt::kBaseSeed).value();
  };
  ASSERT_EQ(step(plain[0].sequence, plain[1].local), plain[1].sequence.chain());
  EXPECT_EQ(step(events[0].hash, *events[1].local()), events[1].hash.chain());
  EXPECT_EQ(tokens::SequenceHasher().hash_block(events[1].hash, text(2, 1))->sequence, events[2].hash);
}

TEST_F(EngineIngestTest, PairsAreWindowsOfOneMoreToken) {
  std::vector<Token> pairs;
  for (std::uint32_t i = 1; i <= 2 * kSize; ++i) pairs.insert(pairs.end(), {Token(i), Token(i + 1)});
  BatchBuilder builder;
  builder.stored(std::nullopt, names({11, 12}), pairs, kSize).token_pairs = true;
  const auto events = apply(builder);
  ASSERT_EQ(events.size(), 2u);
  std::vector<Token> whole;
  for (std::uint32_t i = 1; i <= 2 * kSize + 1; ++i) whole.emplace_back(i);
  const auto locals = tokens::eagle_local_hashes(whole, kSize, tokens::Salt::kBaseSeed).value();
  EXPECT_EQ(events[0].local(), locals.at(0));
  EXPECT_EQ(events[1].local(), locals.at(1));
}

TEST_F(EngineIngestTest, ANameWithOtherContentIsRefusedAndSoAreItsChildren) {
  store(std::nullopt, {11, 12}, text(0, 2));
  EXPECT_TRUE(store(BlockName(11), {12, 13}, text(1, 2, 5)).empty());
  EXPECT_EQ(counters().collisions, 1u);
  EXPECT_TRUE(store(BlockName(12), {14}, text(2, 1)).empty());
  EXPECT_EQ(counters().ambiguous_parents, 1u);
  EXPECT_EQ(store(BlockName(11), {15}, text(1, 1, 6)).size(), 1u);
  // A name twice in one event, and the parent's own.
  EXPECT_EQ(store(BlockName(11), {16, 16}, text(1, 2, 7)).size(), 1u);
  EXPECT_TRUE(store(BlockName(15), {15}, text(2, 1)).empty());
  EXPECT_EQ(counters().collisions, 3u);
}

TEST_F(EngineIngestTest, WrongSizesAndShortTokensEndTheEvent) {
  store(std::nullopt, {11}, text(0, 1));
  BatchBuilder builder;
  builder.stored(std::nullopt, names({21}), text(0, 2), 2 * kSize);  // another size than the group has
  builder.stored(std::nullopt, names({22}), text(0, 1), 0);
  builder.stored(std::nullopt, names({31, 32, 33}), text(0, 2, 1), kSize);
  EXPECT_EQ(apply(builder).size(), 2u);
  EXPECT_EQ(counters().wrong_block_sizes, 2u);
  EXPECT_EQ(counters().short_tokens, 1u);
}

TEST(EngineIngestSizes, BlocksOfHybridModelsAndTheLargest) {
  for (const std::uint32_t size : {784u, 1056u, 1600u, 65536u}) {
    EngineIngest ingest = *EngineIngest::create({});
    std::vector<Token> tokens;
    for (std::uint32_t i = 0; i < 3 * size; ++i) tokens.emplace_back(i * 7919);
    BatchBuilder builder;
    builder.stored(std::nullopt, names({1, 2, 3}), tokens, size);
    // As it comes from the wire.
    events::EngineBatch decoded;
    const std::vector<std::byte> payload = BatchEncoder::encode(builder.batch());  // the batch refers to it
    ASSERT_TRUE(events::decode_engine_batch(payload, decoded));
    std::vector<KvEvent> out;
    ingest.apply(decoded, out);
    ASSERT_EQ(out.size(), 3u) << size;
    std::vector<tokens::BlockHashes> expected(3);
    ASSERT_TRUE(tokens::SequenceHasher().hash_blocks(std::nullopt, tokens, size, expected));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(out[i].hash, expected[i].sequence) << size;
  }
  EngineIngest ingest = *EngineIngest::create({});
  BatchBuilder builder;
  builder.stored(std::nullopt, names({1}), std::vector<Token>(65537), 65537);
  std::vector<KvEvent> out;
  ingest.apply(builder.batch(), out);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(ingest.counters().wrong_block_sizes, 1u);
  const auto refused = EngineIngest::create({.block_size = 65537});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("65536"), std::string::npos) << refused.error();
}

TEST_F(EngineIngestTest, MediaAreTiersAndWhatIsNotOursIsDropped) {
  store(std::nullopt, {11}, text(0, 1));
  for (const auto& [medium, tier] :
       {std::pair{"CPU_PINNED", 1}, std::pair{"disk", 2}, std::pair{"EXTERNAL", 3}}) {
    const auto events = placeholder(11, medium);
    ASSERT_EQ(events.size(), 1u) << medium;
    EXPECT_EQ(events[0].tier.value(), tier);
  }
  EXPECT_TRUE(placeholder(11, "TAPE").empty());
  EXPECT_EQ(counters().unknown_mediums, 1u);
  BatchBuilder builder;
  builder.removed(BlockName(11)).locality = "REMOTE";
  builder.removed(BlockName(11)).ownership = "kvcr";
  builder.batch().events.emplace_back();
  EXPECT_TRUE(apply(builder).empty());
  EXPECT_EQ(counters().external, 2u);
  EXPECT_EQ(counters().unknown_events, 1u);
}

TEST_F(EngineIngestTest, GroupsAreApartAndOnlyWholePrefixesAreForAnIndex) {
  BatchBuilder builder;
  builder.stored(std::nullopt, names({11}), text(0, 1), kSize);
  EngineEvent& sliding = builder.stored(std::nullopt, names({11}), text(0, 1), kSize);
  sliding.group = 1;
  sliding.spec_kind = "sliding_window";
  EngineEvent& latent = builder.stored(std::nullopt, names({11}), text(0, 1), kSize);
  latent.group = 2;
  latent.spec_kind = "mla_attention";
  const auto events = apply(builder);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE(EngineIngest::for_index(events[0]));
  EXPECT_FALSE(EngineIngest::for_index(events[1]));
  EXPECT_TRUE(EngineIngest::for_index(events[2]));
  EXPECT_EQ(events[1].hash, events[0].hash.in_group(1));
  EXPECT_EQ(remove({11}).size(), 1u);
  EXPECT_EQ(ingest_.present(), 2u);
}

TEST_F(EngineIngestTest, RanksAreApart) {
  for (const std::uint32_t rank : {0u, 3u}) {
    BatchBuilder builder(rank);
    builder.stored(std::nullopt, names({11}), text(0, 1), kSize);
    const auto events = apply(builder);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(EngineIngest::rank_of(events[0]), rank);
  }
  std::vector<KvEvent> out;
  ingest_.clear(3, out);
  book_.apply(out);
  EXPECT_EQ(book_.present().size(), 1u);
  ingest_.clear(3, out);
  ingest_.reset(out);
  EXPECT_EQ(out.size(), 2u);
  EXPECT_EQ(ingest_.present(), 0u);
}

class SmallEngineIngestTest : public EngineIngestTest {
 protected:
  SmallEngineIngestTest() : EngineIngestTest({.block_size = kSize, .ranks = {0}, .max_waiting = 3}) {}
};

TEST_F(SmallEngineIngestTest, TheOldestGiveWayWhenTooManyWait) {
  store(BlockName(1), {12, 13}, text(1, 2));
  store(BlockName(2), {22, 23}, text(1, 2));  // the first run goes
  store(BlockName(3), {31, 32, 33, 34}, text(1, 4));
  EXPECT_EQ(counters().overflowed, 6u);
  EXPECT_EQ(ingest_.waiting(), 2u);
  for (std::uint64_t name = 100; name < 105; ++name) placeholder(name);
  EXPECT_EQ(counters().overflowed, 8u);
  EXPECT_EQ(ingest_.waiting(), 5u);
  EXPECT_EQ(store(std::nullopt, {2}, text(0, 1)).size(), 3u);
  EXPECT_EQ(store(std::nullopt, {1}, text(0, 1, 9)).size(), 1u);
}

TEST_F(SmallEngineIngestTest, OtherRanksAreCountedAndLeftOut) {
  BatchBuilder builder(1);
  builder.stored(std::nullopt, names({11}), text(0, 1), kSize);
  EXPECT_TRUE(apply(builder).empty());
  EXPECT_EQ(counters().other_ranks, 1u);
}

TEST_F(EngineIngestTest, AnOrphanThatIsStoredManyTimesIsPlacedWhenItsParentComes) {
  BatchBuilder builder;
  for (int i = 0; i < 200'000; ++i) builder.stored(BlockName(99), names({5}), text(1, 1), kSize);
  EXPECT_TRUE(apply(builder).empty());
  EXPECT_EQ(ingest_.waiting(), ingest_.options().max_waiting);
  EXPECT_EQ(store(std::nullopt, {99}, text(0, 1)).size(), 2u);
  EXPECT_EQ(ingest_.waiting(), 0u);
  EXPECT_EQ(counters().resolved, ingest_.options().max_waiting);
}

TEST_F(EngineIngestTest, GroupsBeyondTheLimitAreCountedAndLeftOut) {
  BatchBuilder builder;
  for (std::uint32_t group = 0; group < 60'000; ++group) {
    builder.stored(std::nullopt, names({11}), text(0, 1), kSize);
    builder.batch().events.back().group = group;
    builder.batch().events.back().spec_kind = "sliding_window";
  }
  EXPECT_EQ(apply(builder).size(), ingest_.options().max_groups);
  EXPECT_EQ(counters().other_groups, 60'000u - ingest_.options().max_groups);
  EXPECT_EQ(store(BlockName(11), {12}, text(1, 1)).size(), 1u) << "those that are known go on";
}

TEST(EngineIngestOptionsTest, AreChecked) {
  EXPECT_EQ(EngineIngest::create({.block_size = 70000}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(EngineIngest::create({.max_ranks = 0}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(EngineIngest::create({.max_groups = 0}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(EngineIngest::create({.ranks = {1u << 31}}).error().code(), ErrorCode::kInvalidArgument);
  for (const std::size_t blocks : {EngineIngestOptions::kMaxExpected + 1, SIZE_MAX})
    EXPECT_EQ(EngineIngest::create({.expected_blocks = blocks}).error().code(), ErrorCode::kInvalidArgument);
}

// Every scheme names images apart from plain text, and the same images alike.
TEST(EngineIngestSchemes, NameImagesApart) {
  for (const tokens::HashScheme& scheme :
       {tokens::HashScheme::xxh3_chain(), tokens::HashScheme::xxh64_int64(),
        tokens::HashScheme::keyed128({1, 2, 3})}) {
    auto ingest = EngineIngest::create({.scheme = scheme});
    ASSERT_TRUE(ingest);
    std::vector<KvEvent> out;
    for (const char* image : {"", "00000000000000aa", "00000000000000bb", "00000000000000aa"}) {
      BatchBuilder builder;
      builder.stored(std::nullopt, names({100 + out.size()}), text(0, 1), kSize);
      if (*image != '\0') builder.key(0, image, EngineExtraKey::Kind::kMultimodal);
      ingest->apply(builder.batch(), out);
    }
    ASSERT_EQ(out.size(), 4u);
    EXPECT_NE(out[0].hash, out[1].hash);
    EXPECT_NE(out[1].hash, out[2].hash);
    EXPECT_EQ(out[1].hash, out[3].hash);
    EXPECT_EQ(out[1].local(), out[3].local());
  }
}

}  // namespace
}  // namespace ashlar::feed
