#include "ashlar/events/engine_codec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/wire.h"

namespace ashlar::events {
namespace {

using testing::wire;
using Names = std::vector<BlockName>;

// [1.5, [event], 0]
std::vector<std::byte> batch_of(const std::string& event) {
  return wire("93 cb3ff8000000000000 91 " + event + " 00");
}

// A batch and the bytes that it refers to.
struct Decoded {
  std::vector<std::byte> bytes;
  EngineBatch batch;
  Result<void> result = {};

  explicit Decoded(std::vector<std::byte> from) : bytes(std::move(from)) {
    result = decode_engine_batch(bytes, batch);
  }
  const EngineEvent& event() const { return batch.events.at(0); }
  std::vector<std::uint32_t> tokens() const {
    std::vector<std::uint32_t> values;
    for (const tokens::Token token : batch.tokens_of(event())) values.push_back(token.value());
    return values;
  }
};

Names names(std::initializer_list<std::uint64_t> values) {
  Names out;
  for (const std::uint64_t value : values) out.emplace_back(value);
  return out;
}

std::string failure(const std::vector<std::byte>& bytes) {
  EngineBatch batch;
  const Result<void> decoded = decode_engine_batch(bytes, batch);
  if (decoded) return "";
  EXPECT_EQ(decoded.error().code(), ErrorCode::kCorruption);
  EXPECT_TRUE(batch.events.empty() && batch.names.empty() && batch.tokens.empty());
  return decoded.error().message();
}

constexpr const char* kFullMap =
    "8f a4'type' ab'BlockStored' ac'block_hashes' 92 cfffffffffffffffff 05 b1'parent_block_hash' cd1234 "
    "a9'token_ids' 94 00 cc80 cd0100 ce00010000 aa'block_size' 02 a7'lora_id' 07 a6'medium' a3'GPU' "
    "a9'lora_name' a3'adp' aa'extra_keys' 92 93 a3'adp' 92 a2'im' fd c402 0102 c0 a9'group_idx' 01 "
    "b2'kv_cache_spec_kind' ae'sliding_window' bc'kv_cache_spec_sliding_window' cd0400 "
    "a8'locality' a5'LOCAL' a9'ownership' a6'engine' aa'session_id' a2's1'";

void expect_full(const Decoded& got) {
  ASSERT_TRUE(got.result) << got.result.error();
  EXPECT_EQ(got.batch.timestamp, 1.5);
  EXPECT_EQ(got.batch.rank, 0u);
  const EngineEvent& event = got.event();
  EXPECT_EQ(event.kind, EngineEventKind::kStored);
  EXPECT_EQ(got.batch.names, names({UINT64_MAX, 5}));
  EXPECT_EQ(event.parent, BlockName(0x1234));
  EXPECT_EQ(got.tokens(), (std::vector<std::uint32_t>{0, 128, 256, 65536}));
  EXPECT_FALSE(event.token_pairs);
  EXPECT_EQ(event.block_size, 2u);
  EXPECT_EQ(event.lora_id, 7);
  EXPECT_EQ(event.medium, "GPU");
  EXPECT_EQ(event.lora_name, "adp");
  using Kind = EngineExtraKey::Kind;
  EXPECT_TRUE(event.has_extra_keys);
  EXPECT_EQ(event.extra_key_blocks, 2u);
  const std::vector<EngineExtraKey> keys = {
      {0, Kind::kText, "adp", 0}, {0, Kind::kMultimodal, "im", -3}, {0, Kind::kBytes, "\x01\x02", 0}};
  EXPECT_EQ(got.batch.extra_keys, keys);
  EXPECT_EQ(event.group, 1u);
  EXPECT_EQ(event.spec_kind, "sliding_window");
  EXPECT_EQ(event.sliding_window, 1024u);
  EXPECT_EQ(event.locality, "LOCAL");
  EXPECT_EQ(event.ownership, "engine");
}

TEST(EngineCodec, AMapWithEveryFieldIsReadAndWrittenAgain) {
  const Decoded got(batch_of(kFullMap));
  expect_full(got);
  EXPECT_EQ(got.event().session_id, "s1");
  EXPECT_EQ(got.event().cache_salt.data(), nullptr);
  std::vector<std::byte> again;
  encode_engine_batch(got.batch, again);
  EXPECT_EQ(again, got.bytes);
}

TEST(EngineCodec, AnArrayWithEveryFieldIsReadAndWrittenAgain) {
  const Decoded got(batch_of(
      "9e ab'BlockStored' 92 cfffffffffffffffff 05 cd1234 94 00 cc80 cd0100 ce00010000 02 07 a3'GPU' a3'adp' "
      "92 93 a3'adp' 92 a2'im' fd c402 0102 c0 01 ae'sliding_window' cd0400 a5'LOCAL' a6'engine'"));
  expect_full(got);
  std::vector<std::byte> again;
  encode_engine_batch(got.batch, again, EngineForm::kArray);
  EXPECT_EQ(again, got.bytes);
}

TEST(EngineCodec, KeysMayComeInAnyOrderAndUnknownOnesAreSkipped) {
  const Decoded got(batch_of(
      "87 a5'other' 82 a1'x' 93 c3 c0 d6ff00000000 01 ca00000000 a6'medium' a3'CPU' a9'token_ids' 91 01 "
      "a4'type' ab'BlockStored' b1'parent_block_hash' c0 ac'block_hashes' 91 09 aa'cache_salt' a1's'"));
  ASSERT_TRUE(got.result) << got.result.error();
  EXPECT_EQ(got.event().medium, "CPU");
  EXPECT_EQ(got.event().cache_salt, "s");
  EXPECT_EQ(got.batch.names, names({9}));
  EXPECT_EQ(got.tokens(), std::vector<std::uint32_t>{1});
  EXPECT_FALSE(got.event().parent);
  EXPECT_EQ(got.event().block_size, 0u);
  EXPECT_FALSE(got.event().has_extra_keys);
}

TEST(EngineCodec, ArraysMayEndEarly) {
  // SGLang ends at lora_id.
  const Decoded got(batch_of("96 ab'BlockStored' 91 05 c0 92 01 02 02 c0"));
  ASSERT_TRUE(got.result) << got.result.error();
  EXPECT_EQ(got.event().block_size, 2u);
  EXPECT_EQ(got.event().medium.data(), nullptr);
  EXPECT_FALSE(got.event().lora_id);
  const Decoded shortest(batch_of("92 ab'BlockStored' 90"));
  ASSERT_TRUE(shortest.result) << shortest.result.error();
  EXPECT_EQ(shortest.event().names.count, 0u);
}

TEST(EngineCodec, ArraysMayGoOnBeyondWhatIsKnown) {
  const Decoded got(batch_of("d0 00"));
  EXPECT_FALSE(got.result);
  const Decoded longer(batch_of("9a ac'BlockRemoved' 91 05 a3'GPU' 01 c0 c0 c0 c0 82 01 02 03 04 05"));
  ASSERT_TRUE(longer.result) << longer.result.error();
  EXPECT_EQ(longer.event().group, 1u);
  // A list of multimodal items in the tail.
  const Decoded items(batch_of("9a ab'BlockStored' 91 05 c0 91 01 01 c0 a3'GPU' c0 c0 91 81 a1'h' 05"));
  ASSERT_TRUE(items.result) << items.result.error();
  EXPECT_FALSE(items.event().group);
}

TEST(EngineCodec, RemovedAndClearedHaveBothForms) {
  for (const char* text :
       {"84 a4'type' ac'BlockRemoved' ac'block_hashes' 91 05 a6'medium' a3'GPU' a9'group_idx' 00",
        "94 ac'BlockRemoved' 91 05 a3'GPU' 00"}) {
    const Decoded got(batch_of(text));
    ASSERT_TRUE(got.result) << got.result.error();
    EXPECT_EQ(got.event().kind, EngineEventKind::kRemoved);
    EXPECT_EQ(got.batch.names, names({5}));
    EXPECT_EQ(got.event().medium, "GPU");
    EXPECT_EQ(got.event().group, 0u);
  }
  for (const char* text : {"81 a4'type' b0'AllBlocksCleared'", "91 b0'AllBlocksCleared'"}) {
    const Decoded got(batch_of(text));
    ASSERT_TRUE(got.result) << got.result.error();
    EXPECT_EQ(got.event().kind, EngineEventKind::kCleared);
  }
  const Decoded owned(batch_of("92 b0'AllBlocksCleared' a4'kvcr'"));
  EXPECT_EQ(owned.event().ownership, "kvcr");
}

TEST(EngineCodec, NamesAreIntegersOfAnyWidthOrDigests) {
  const Decoded got(batch_of(
      "93 ac'BlockRemoved' 9a 00 7f cc80 cd8000 ce80000000 cf8000000000000000 ff d0ff d38000000000000000 "
      "d200000005 c0"));
  ASSERT_TRUE(got.result) << got.result.error();
  EXPECT_EQ(got.batch.names, names({0, 127, 128, 32768, 0x80000000, 0x8000000000000000, UINT64_MAX,
                                    UINT64_MAX, 0x8000000000000000, 5}));
  EXPECT_EQ(got.event().digest_size, 0u);
}

TEST(EngineCodec, DigestsAreKeptWhole) {
  const std::string a = "c410 00000000000000000102030405060708 ";
  const std::string b = "c410 ffffffffffffffff1112131415161718 ";
  // The parent comes before the names.
  const Decoded got(batch_of("84 a4'type' ab'BlockStored' b1'parent_block_hash' " + a +
                             "ac'block_hashes' 92 " + b + a + "a9'token_ids' 90"));
  ASSERT_TRUE(got.result) << got.result.error();
  EXPECT_EQ(got.batch.names, names({0x1112131415161718, 0x0102030405060708}));
  EXPECT_EQ(got.event().parent, BlockName(0x0102030405060708));
  ASSERT_EQ(got.event().digest_size, 16u);
  EXPECT_EQ(got.batch.digests.size(), 48u);
  EXPECT_TRUE(std::ranges::equal(got.batch.digest_of(got.event(), 0), wire(b.substr(5))));
  EXPECT_TRUE(std::ranges::equal(got.batch.digest_of(got.event(), 2), wire(a.substr(5))));
  EXPECT_TRUE(got.batch.digest_of(got.event(), 3).empty());
  // Names of several forms keep only their last bytes.
  const Decoded mixed(batch_of("93 ac'BlockRemoved' 92 07 " + b + "c0"));
  ASSERT_TRUE(mixed.result) << mixed.result.error();
  EXPECT_EQ(mixed.batch.names, names({7, 0x1112131415161718}));
  EXPECT_EQ(mixed.event().digest_size, 0u);
  EXPECT_TRUE(mixed.batch.digests.empty());
}

TEST(EngineCodec, TokensMayBePairs) {
  const Decoded got(batch_of("95 ab'BlockStored' 91 05 c0 92 92 01 02 92 02 ce00020000 02"));
  ASSERT_TRUE(got.result) << got.result.error();
  EXPECT_TRUE(got.event().token_pairs);
  EXPECT_EQ(got.tokens(), (std::vector<std::uint32_t>{1, 2, 2, 0x20000}));
}

TEST(EngineCodec, TokensOfEveryWidthAreReadAtEveryPlace) {
  const std::string forms[] = {"7f ",   "cc80 ",  "cd1234 ", "ce12345678 ", "cf0000000012345678 ",
                               "d07f ", "d34444 "};
  const std::uint32_t values[] = {127, 128, 0x1234, 0x12345678, 0x12345678, 127};
  for (std::size_t shift = 0; shift < 40; ++shift) {
    std::string text;
    std::vector<std::uint32_t> want;
    for (std::size_t i = 0; i < 48; ++i) {
      const std::size_t form = i < shift ? 2 : (i * i + shift) % 6;
      text += forms[form];
      want.push_back(values[form]);
    }
    const Decoded got(batch_of("94 ab'BlockStored' 91 05 c0 dc0030 " + text));
    ASSERT_TRUE(got.result) << got.result.error();
    EXPECT_EQ(got.tokens(), want);
  }
}

TEST(EngineCodec, ExtraKeysOfOtherKindsAreKeptAsTheyAre) {
  using Kind = EngineExtraKey::Kind;
  const Decoded got(
      batch_of("99 ab'BlockStored' 91 05 c0 90 01 c0 c0 c0 93 a1'a' 93 07 92 01 a1'x' 93 a1'x' 01 02 92 c0 "
               "92 a1'q' cfffffffffffffffff"));
  ASSERT_TRUE(got.result) << got.result.error();
  const auto text = [](const char* hex) {
    const std::vector<std::byte> bytes = wire(hex);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const std::vector<EngineExtraKey> keys = {{0, Kind::kText, "a", 0},
                                            {1, Kind::kOther, text("07"), 0},
                                            {1, Kind::kOther, text("92 01 a1'x'"), 0},
                                            {1, Kind::kOther, text("93 a1'x' 01 02"), 0},
                                            {2, Kind::kOther, text("c0"), 0},
                                            {2, Kind::kOther, text("92 a1'q' cfffffffffffffffff"), 0}};
  EXPECT_EQ(got.batch.extra_keys, keys);
}

TEST(EngineCodec, AnUnknownEventKeepsTheRestOfTheBatch) {
  for (const std::string event : {"92 a5'Other' 93 01 02 80", "82 a1'x' c3 a4'type' a5'Other'"}) {
    const Decoded got(wire("93 00 93 91 b0'AllBlocksCleared' " + event + " 93 ac'BlockRemoved' 91 05 c0 c0"));
    ASSERT_TRUE(got.result) << got.result.error();
    ASSERT_EQ(got.batch.events.size(), 3u);
    EXPECT_EQ(got.batch.events[1].kind, EngineEventKind::kUnknown);
    EXPECT_EQ(got.batch.events[1].tag, "Other");
    EXPECT_TRUE(std::ranges::equal(got.batch.events[1].raw, wire(event)));
    EXPECT_EQ(got.batch.events[2].kind, EngineEventKind::kRemoved);
    EXPECT_FALSE(got.batch.rank);
  }
}

TEST(EngineCodec, BatchesHaveTwoOrThreeParts) {
  EXPECT_EQ(Decoded(wire("92 cb3ff8000000000000 90")).batch.timestamp, 1.5);
  EXPECT_EQ(Decoded(wire("92 ca3fc00000 90")).batch.timestamp, 1.5);
  EXPECT_EQ(Decoded(wire("92 ce6553f100 90")).batch.timestamp, 1.7e9);
  EXPECT_EQ(Decoded(wire("92 ff 90")).batch.timestamp, -1);
  EXPECT_EQ(Decoded(wire("93 00 90 03")).batch.rank, 3u);
  EXPECT_FALSE(Decoded(wire("93 00 90 c0")).batch.rank);
  EXPECT_TRUE(Decoded(wire("94 00 90 c0 a1'x'")).result);
}

TEST(EngineCodec, FaultsAreNamedWithTheirPlace) {
  EXPECT_EQ(failure({}), "engine batch: the bytes end where a value should be, at byte 0 of 0");
  EXPECT_EQ(failure(wire("91 00")), "engine batch: a batch must have a timestamp and events, at byte 0 of 2");
  EXPECT_EQ(failure(wire("92 a1'x' 90")),
            "engine batch: the timestamp of a batch must be a number, at byte 1 of 4");
  EXPECT_EQ(failure(wire("92 00 dd7fffffff")),
            "engine batch: more elements announced than bytes are left, at byte 2 of 7");
  EXPECT_EQ(failure(wire("92 00 90 00")), "engine batch: bytes after the end of the batch, at byte 3 of 4");
  EXPECT_EQ(failure(wire("92 00 91 c0")), "engine batch: an event must be a map or an array, at byte 3 of 4");
  EXPECT_EQ(failure(wire("92 00 91 90")), "engine batch: an event without a type, at byte 3 of 4");
  EXPECT_EQ(failure(wire("92 00 91 81 a1'x' 00")), "engine batch: an event without a type, at byte 3 of 7");
  EXPECT_EQ(failure(wire("92 00 91 82 01 02 03 04")),
            "engine batch: a key of an event must be text, at byte 4 of 8");
  EXPECT_EQ(failure(wire("92 00 91 81 a4'type' ac'BlockRemoved'")),
            "engine batch: an event without block_hashes, at byte 3 of 22");
  EXPECT_EQ(failure(wire("92 00 91 92 ac'BlockRemoved' 91 a1'x'")),
            "engine batch: a block hash must be an integer or bytes, at byte 18 of 20");
  EXPECT_EQ(failure(wire("92 00 91 92 ac'BlockRemoved' 91 c40101")),
            "engine batch: a block hash of bytes must have 8..64 of them, at byte 18 of 21");
  EXPECT_EQ(failure(wire("92 00 91 94 ab'BlockStored' 90 c0 91 ff")),
            "engine batch: a token id is no integer of 0..4294967295, at byte 19 of 20");
  EXPECT_EQ(failure(wire("92 00 91 94 ab'BlockStored' 90 c0 99 0000000000000000ff")),
            "engine batch: a token id is no integer of 0..4294967295, at byte 27 of 28");
  EXPECT_EQ(failure(wire("92 00 91 94 ab'BlockStored' 90 c0 92 920102 05")),
            "engine batch: a token id among pairs must be a pair, at byte 22 of 23");
  EXPECT_EQ(failure(wire("92 00 91 91 c1")),
            "engine batch: an array event must begin with its type, at byte 4 of 5");
  EXPECT_EQ(failure(wire("92 00 91 92 a1'x' c1")),
            "engine batch: no msgpack value begins with this byte, at byte 6 of 7");
}

TEST(EngineCodec, EveryCutIsAFault) {
  const std::vector<std::byte> whole = batch_of(kFullMap);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // A copy of its own, so that a read beyond the end is seen.
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(failure(cut), "") << size;
  }
}

TEST(EngineCodec, DepthIsNoDanger) {
  std::string deep = "92 a1'x' ";
  for (int i = 0; i < 100'000; ++i) deep += "91";
  deep += "c0";
  EXPECT_TRUE(Decoded(batch_of(deep)).result);
}

}  // namespace
}  // namespace ashlar::events
