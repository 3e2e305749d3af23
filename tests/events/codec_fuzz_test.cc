// Every decoder against damaged bytes: it answers with a value or an error, reads nothing beyond the end
// (under the address sanitizer every input has a block of memory of its own), and allocates no more than in
// proportion to the input. And every encoder against its decoder on random values.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/events/engine_codec.h"
#include "ashlar/events/rolling_events.h"
#include "ashlar/events/router_event_json.h"
#include "ashlar/testing/time_box.h"
#include "support/counted_new.h"
#include "support/damage.h"
#include "support/kvrec.h"

namespace ashlar::events {
namespace {

using Bytes = std::vector<std::byte>;
using testing::damage;
using testing::TimeBox;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Damages one of `seeds` at a time and hands it to `decode`, which says whether it was accepted.
void fuzz(const std::vector<Bytes>& seeds, std::uint64_t seed, std::size_t bytes_per_byte,
          const std::function<bool(const Bytes&)>& decode) {
  ASSERT_FALSE(seeds.empty());
  Random random(seed);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  Bytes input;
  const TimeBox box(1);
  for (int round = 0; round < 10 || !box.over(); ++round) {
    for (int i = 0; i < 200; ++i) {
      input = seeds[random.below(seeds.size())];
      damage(input, random);
      input.shrink_to_fit();
      const std::size_t before = g_allocated_bytes.load();
      (decode(input) ? accepted : refused) += 1;
      const std::size_t allocated = g_allocated_bytes.load() - before;
      ASSERT_LE(allocated, 4096 + bytes_per_byte * input.size());
    }
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_GT(refused, 0u);
}

std::vector<Bytes> recorded() {
  std::vector<Bytes> seeds;
  for (const std::string name : testing::kVllmRecordings)
    for (Bytes& payload : testing::kvrec_payloads(std::string(ASHLAR_TEST_DATA) + "/vllm/" + name + ".kvrec"))
      if (payload.size() < 2000) seeds.push_back(std::move(payload));
  return seeds;
}

// Values without sense, but of every form. Texts live in `texts`.
class Values {
 public:
  explicit Values(std::uint64_t seed) : random_(seed) {}

  bool coin() { return random_.below(2) == 0; }
  std::uint64_t number() { return random_.next() >> random_.below(64); }
  std::uint32_t number32() { return static_cast<std::uint32_t>(number()); }
  std::string text() {
    std::string out;
    for (std::uint64_t n = random_.below(coin() ? 6 : 300); n > 0; --n)
      out += static_cast<char>(1 + random_.below(127));
    return out;
  }
  std::string_view view() { return texts_.emplace_back(std::make_unique<std::string>(text()))->c_str(); }
  std::size_t below(std::size_t n) { return random_.below(n); }

  EngineBatch engine_batch() {
    EngineBatch batch;
    batch.timestamp = static_cast<double>(number());
    if (coin()) batch.rank = number32();
    for (std::size_t n = below(20); n > 0; --n) {
      EngineEvent event;
      event.kind = static_cast<EngineEventKind>(below(3));
      if (event.kind != EngineEventKind::kCleared) {
        names(batch, event);
        if (coin()) event.medium = view();
        if (coin()) event.group = number32();
        if (coin()) event.spec_kind = view();
        if (coin()) event.sliding_window = number32();
        if (coin()) event.locality = view();
      }
      if (coin()) event.ownership = view();
      if (event.kind == EngineEventKind::kStored) stored(batch, event);
      batch.events.push_back(event);
    }
    return batch;
  }

 private:
  void names(EngineBatch& batch, EngineEvent& event) {
    event.names = {static_cast<std::uint32_t>(batch.names.size()), static_cast<std::uint32_t>(below(20))};
    for (std::uint32_t i = 0; i < event.names.count; ++i) batch.names.emplace_back(number());
    if (event.kind == EngineEventKind::kStored && coin()) event.parent = BlockName(number());
    event.digests.begin = static_cast<std::uint32_t>(batch.digests.size());
    const std::size_t digests = event.names.count + (event.parent ? 1u : 0u);
    if (digests == 0 || coin()) return;
    event.digest_size = static_cast<std::uint32_t>(8 + below(57));
    for (std::size_t i = 0; i < digests; ++i) {
      const std::uint64_t name =
          i < event.names.count ? batch.names[event.names.begin + i].value() : event.parent->value();
      for (std::size_t k = event.digest_size; k-- > 0;)
        batch.digests.push_back(static_cast<std::byte>(k < 8 ? name >> (8 * k) : random_.below(256)));
    }
    event.digests.count = static_cast<std::uint32_t>(batch.digests.size()) - event.digests.begin;
  }
  void stored(EngineBatch& batch, EngineEvent& event) {
    event.tokens = {static_cast<std::uint32_t>(batch.tokens.size()),
                    static_cast<std::uint32_t>(2 * below(70))};
    event.token_pairs = event.tokens.count != 0 && coin();
    for (std::uint32_t i = 0; i < event.tokens.count; ++i) batch.tokens.emplace_back(number32());
    event.block_size = number32();
    if (coin()) event.lora_id = static_cast<std::int64_t>(number()) * (coin() ? 1 : -1);
    if (coin()) event.lora_name = view();
    event.has_extra_keys = coin();
    event.extra_keys.begin = static_cast<std::uint32_t>(batch.extra_keys.size());
    event.extra_key_blocks = event.has_extra_keys ? static_cast<std::uint32_t>(below(6)) : 0;
    for (std::uint32_t block = 0; block < event.extra_key_blocks; ++block) {
      for (std::size_t n = below(3); n > 0; --n) {
        EngineExtraKey key{block, static_cast<EngineExtraKey::Kind>(below(3)), text(), 0};
        if (key.kind == EngineExtraKey::Kind::kMultimodal)
          key.offset = static_cast<std::int64_t>(random_.next());
        batch.extra_keys.push_back(key);
      }
    }
    event.extra_keys.count = static_cast<std::uint32_t>(batch.extra_keys.size()) - event.extra_keys.begin;
  }

  Random random_;
  std::vector<std::unique_ptr<std::string>> texts_;
};

TEST(CodecFuzz, DamagedEngineBatches) {
  std::vector<Bytes> seeds = recorded();
  Values values(1);
  for (int i = 0; i < 20; ++i) {
    for (const EngineForm form : {EngineForm::kMap, EngineForm::kArray}) {
      Bytes encoded;
      encode_engine_batch(values.engine_batch(), encoded, form);
      seeds.push_back(std::move(encoded));
    }
  }
  fuzz(seeds, 2, 500, [](const Bytes& input) {
    EngineBatch batch;
    if (!decode_engine_batch(input, batch)) return false;
    for (const EngineEvent& event : batch.events) {
      // All ranges lie within their arrays.
      EXPECT_LE(batch.names_of(event).size() + batch.tokens_of(event).size(), 3 * input.size());
      for (const EngineExtraKey& key : batch.extra_keys_of(event))
        EXPECT_LT(key.block, event.extra_key_blocks);
      if (event.digest_size != 0 && event.names.count != 0) {
        EXPECT_EQ(batch.digest_of(event, event.names.count - 1).size(), event.digest_size);
      }
    }
    return true;
  });
}

TEST(CodecFuzz, DamagedRouterEvents) {
  std::vector<Bytes> seeds;
  RouterEvent event{
      .worker = {WorkerId(UINT64_MAX), 3}, .residency_domain = "a\"b\\\n\xc3\xa9", .parent = BlockName(5)};
  event.start_position = 7;
  for (std::uint64_t i = 0; i < 5; ++i) event.blocks.push_back({tokens::LocalHash(i << 40), BlockName(~i)});
  for (const KvEventKind kind : {KvEventKind::kStored, KvEventKind::kRemoved, KvEventKind::kCleared}) {
    event.kind = kind;
    event.removed.assign(4, BlockName(9));
    std::string json;
    append_router_event(event, json);
    seeds.push_back(bytes_of(json));
  }
  fuzz(seeds, 3, 100, [](const Bytes& input) {
    RouterEvent read;
    if (!decode_router_event(text_of(input), read)) return false;
    std::vector<KvEvent> events;
    (void)append_kv_events(read, events).has_value();
    return true;
  });
}

TEST(CodecFuzz, DamagedRollingEvents) {
  std::vector<Bytes> seeds;
  RollingEvent event{.source = {.model_name = "m", .backend_id = "b"},
                     .block_size = 2,
                     .medium = "gpu",
                     .hashes = {1, 2, 3}};
  event.first_position = 4;
  event.parent = 5;
  event.token_ids.emplace(6, tokens::Token(70000));
  for (const KvEventKind kind : {KvEventKind::kStored, KvEventKind::kRemoved, KvEventKind::kCleared}) {
    event.kind = kind;
    std::string json;
    append_rolling_event(event, json);
    seeds.push_back(bytes_of(json));
  }
  fuzz(seeds, 4, 150, [](const Bytes& input) {
    RollingEvent read;
    if (!decode_rolling_event(text_of(input), read)) return false;
    std::vector<KvEvent> events;
    (void)append_kv_events(read, events).has_value();
    return true;
  });
}

TEST(CodecFuzz, DamagedRecordings) {
  const std::string folder = std::string(ASHLAR_TEST_DATA) + "/vllm/";
  fuzz({testing::read_test_file(folder + "salt.kvrec"),
        testing::read_test_file(folder + "algo-sha256-seed0.kvrec")},
       5, 100, [](const Bytes& input) { return testing::parse_kvrec(input).has_value(); });
}

void expect_equal(const EngineBatch& got, const EngineBatch& want, EngineForm form) {
  EXPECT_EQ(got.timestamp, want.timestamp);
  EXPECT_EQ(got.rank, want.rank);
  EXPECT_EQ(got.names, want.names);
  EXPECT_EQ(got.digests, want.digests);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.extra_keys, want.extra_keys);
  ASSERT_EQ(got.events.size(), want.events.size());
  const auto same_text = [](std::string_view a, std::string_view b) {
    return a == b && (a.data() == nullptr) == (b.data() == nullptr);
  };
  const auto same_range = [](EngineRange a, EngineRange b) {
    return a.count == b.count && (a.count == 0 || a.begin == b.begin);
  };
  for (std::size_t i = 0; i < got.events.size(); ++i) {
    const EngineEvent& a = got.events[i];
    const EngineEvent& b = want.events[i];
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_TRUE(same_range(a.names, b.names) && same_range(a.tokens, b.tokens) &&
                same_range(a.digests, b.digests) && same_range(a.extra_keys, b.extra_keys));
    EXPECT_EQ(a.parent, b.parent);
    EXPECT_EQ(a.digest_size, b.digest_size);
    EXPECT_EQ(a.token_pairs, b.token_pairs);
    EXPECT_EQ(a.block_size, b.block_size);
    EXPECT_EQ(a.has_extra_keys, b.has_extra_keys);
    EXPECT_EQ(a.extra_key_blocks, b.extra_key_blocks);
    EXPECT_EQ(a.group, b.group);
    EXPECT_EQ(a.sliding_window, b.sliding_window);
    EXPECT_EQ(a.lora_id, b.lora_id);
    EXPECT_TRUE(same_text(a.medium, b.medium) && same_text(a.lora_name, b.lora_name) &&
                same_text(a.spec_kind, b.spec_kind) && same_text(a.locality, b.locality) &&
                same_text(a.ownership, b.ownership));
    if (form == EngineForm::kArray) continue;
    EXPECT_TRUE(same_text(a.session_id, b.session_id) && same_text(a.cache_salt, b.cache_salt));
  }
}

TEST(CodecFuzz, EngineBatchesComeBackAsTheyWere) {
  Bytes encoded;
  EngineBatch decoded;
  std::uint64_t seed = 0;
  for (const TimeBox box(1); !box.over() && !::testing::Test::HasFailure();) {
    Values values(++seed);
    EngineBatch batch = values.engine_batch();
    for (EngineEvent& event : batch.events) {
      if (event.kind != EngineEventKind::kStored) continue;
      if (values.coin()) event.session_id = values.view();
      if (values.coin()) event.cache_salt = values.view();
    }
    for (const EngineForm form : {EngineForm::kMap, EngineForm::kArray}) {
      encode_engine_batch(batch, encoded, form);
      const Result<void> result = decode_engine_batch(encoded, decoded);
      ASSERT_TRUE(result) << result.error() << ", seed " << seed;
      expect_equal(decoded, batch, form);
    }
  }
}

TEST(CodecFuzz, JsonEventsComeBackAsTheyWere) {
  Values values(9);
  for (const TimeBox box(0.5); !box.over() && !::testing::Test::HasFailure();) {
    RouterEvent router{.worker = {WorkerId(values.number()), values.number32()},
                       .tier = TierId(static_cast<std::uint8_t>(values.below(4))),
                       .residency_domain = values.text(),
                       .event_id = values.number(),
                       .kind = values.coin() ? KvEventKind::kStored : KvEventKind::kRemoved};
    if (router.kind == KvEventKind::kStored) {
      if (values.coin()) router.parent = BlockName(values.number());
      if (values.coin()) router.start_position = values.number32();
      for (std::size_t n = values.below(9); n > 0; --n)
        router.blocks.push_back({tokens::LocalHash(values.number()), BlockName(values.number())});
    } else {
      for (std::size_t n = values.below(9); n > 0; --n) router.removed.emplace_back(values.number());
    }
    std::string json;
    append_router_event(router, json);
    RouterEvent router_again;
    ASSERT_TRUE(decode_router_event(json, router_again)) << json;
    EXPECT_EQ(router_again, router);

    RollingEvent rolling{.event_id = values.number(), .kind = router.kind};
    if (values.coin()) rolling.source.model_name = values.text();
    if (values.coin()) rolling.source.lora_name = values.text();
    if (values.coin()) rolling.source.additional_salt = values.text();
    rolling.source.tenant_id = values.text();
    rolling.source.backend_id = values.text();
    if (values.coin()) rolling.timestamp_ms = values.number();
    if (values.coin()) rolling.block_size = values.number32();
    if (values.coin()) rolling.medium = values.text();
    if (values.coin()) rolling.rank = values.number32();
    if (values.coin()) rolling.first_position = values.number32();
    for (std::size_t n = values.below(9); n > 0; --n) rolling.hashes.push_back(values.number());
    if (rolling.kind == KvEventKind::kStored) {
      if (values.coin()) rolling.parent = values.number();
      if (values.coin()) rolling.token_ids.emplace(values.below(9), tokens::Token(values.number32()));
    }
    json.clear();
    append_rolling_event(rolling, json);
    RollingEvent rolling_again;
    ASSERT_TRUE(decode_rolling_event(json, rolling_again)) << json;
    EXPECT_EQ(rolling_again, rolling);
  }
}

}  // namespace
}  // namespace ashlar::events
