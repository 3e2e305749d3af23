// Envelopes of KV hints: what is read from random ones, and from damaged ones.
#include "tiers/remote/kv_hints.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "support/damage.h"

namespace ashlar::tiers {
namespace {

// What an envelope says, as the test wrote it.
struct Written {
  std::string text;
  std::vector<KvHint> hints;
};

std::string space(Random& random) {
  return std::string(random.below(3), random.below(2) == 0 ? ' ' : '\n');
}

// Members of an object in any order, with members of later versions among them.
std::string object(std::vector<std::string> members, Random& random) {
  if (random.below(3) == 0) members.push_back(R"("later":{"a":[1,{"b":null}],"c":"\u00e9\""})");
  random.shuffle(members);
  std::string out = "{";
  for (const std::string& member : members) {
    if (out.size() > 1) out += space(random) + ",";
    out += space(random) + member;
  }
  return out + "}";
}

std::string action(KvHint& hint, Random& random) {
  hint.action_id = "id-" + std::to_string(random.below(1000));
  hint.action_type = random.below(4) == 0 ? "kv.pin" : "kv.fetch";
  hint.version = random.below(5) == 0 ? "2.0" : random.below(2) == 0 ? "1" : "1.0";
  hint.source = random.below(5) == 0 ? "" : "10.0.0.7:5710";
  hint.mode = random.below(5) == 0 ? "move" : random.below(2) == 0 ? "" : "copy";
  std::string list;
  for (std::uint64_t n = random.below(5); n > 0; --n) {
    hint.block_hashes.push_back(random.next());
    list += (list.empty() ? "" : ",") + std::to_string(hint.block_hashes.back());
  }
  std::vector<std::string> payload = {"\"block_hashes\":[" + list + "]"};
  if (!hint.source.empty()) payload.push_back("\"source_control_endpoint\":\"" + hint.source + "\"");
  if (!hint.mode.empty()) payload.push_back("\"mode\":\"" + hint.mode + "\"");
  const std::string version = hint.version == "1" ? "1" : "\"" + hint.version + "\"";
  return object({"\"action_id\":\"" + hint.action_id + "\"", "\"action_type\":\"" + hint.action_type + "\"",
                 "\"action_version\":" + version, "\"payload\":" + object(std::move(payload), random)},
                random);
}

Written write(Random& random) {
  Written out;
  std::string actions;
  for (std::uint64_t n = random.below(4); n > 0; --n)
    actions += (actions.empty() ? "" : ",") + action(out.hints.emplace_back(), random);
  const std::uint64_t message = random.below(3);  // 0: none; 1: none that is text
  for (KvHint& hint : out.hints) hint.message_id = message == 2 ? "m-7" : "";
  std::vector<std::string> members = {R"("protocol_version":"1.0")", "\"actions\":[" + actions + "]"};
  if (message != 0) members.push_back(message == 1 ? R"("message_id":7)" : R"("message_id":"m-7")");
  out.text = object(std::move(members), random);
  return out;
}

bool can_be_executed(const KvHint& hint) {
  return hint.action_type == "kv.fetch" && hint.version.starts_with('1') && !hint.source.empty() &&
         hint.mode != "move" && !hint.block_hashes.empty();
}

TEST(KvHintsTest, RandomEnvelopesAreReadAsTheyWereWritten) {
  Random random(1);
  std::size_t executable = 0;
  std::size_t refused = 0;
  while (executable < 500 || refused < 500) {
    const Written written = write(random);
    const auto read = parse_hints(written.text);
    ASSERT_TRUE(read) << read.error().message() << "\n" << written.text;
    ASSERT_EQ(read->size(), written.hints.size());
    for (std::size_t i = 0; i < read->size(); ++i) {
      const KvHint& hint = (*read)[i];
      const KvHint& wanted = written.hints[i];
      EXPECT_EQ(hint.message_id, wanted.message_id);
      EXPECT_EQ(hint.action_id, wanted.action_id);
      EXPECT_EQ(hint.action_type, wanted.action_type);
      EXPECT_EQ(hint.version, wanted.version);
      EXPECT_EQ(hint.source, wanted.source);
      EXPECT_EQ(hint.mode, wanted.mode);
      EXPECT_EQ(hint.block_hashes, wanted.block_hashes);
      EXPECT_EQ(hint.refusal.empty(), can_be_executed(wanted)) << hint.refusal << "\n" << written.text;
      (hint.refusal.empty() ? executable : refused) += 1;
    }
  }
}

TEST(KvHintsTest, DamagedEnvelopesAreRefusedWithASentenceOrRead) {
  Random random(2);
  std::size_t read = 0;
  std::size_t refused = 0;
  const testing::TimeBox box(1);
  for (int round = 0; round < 2000 || read == 0 || refused == 0 || !box.over(); ++round) {
    const Written written = write(random);
    const auto bytes = std::as_bytes(std::span(written.text));
    std::vector<std::byte> damaged(bytes.begin(), bytes.end());
    testing::damage(damaged, random);
    damaged.shrink_to_fit();
    const auto hints = parse_hints({reinterpret_cast<const char*>(damaged.data()), damaged.size()});
    if (!hints) {
      ++refused;
      ASSERT_TRUE(hints.error().code() == ErrorCode::kInvalidArgument ||
                  hints.error().code() == ErrorCode::kUnsupported);
      ASSERT_FALSE(hints.error().message().empty());
      continue;
    }
    ++read;
    ASSERT_LE(hints->size(), KvHint::kMaxActions);
    for (const KvHint& hint : *hints) {
      ASSERT_LE(hint.block_hashes.size(), KvHint::kMaxHashes);
      ASSERT_TRUE(!hint.refusal.empty() || can_be_executed(hint));
    }
  }
}

TEST(KvHintsTest, MoreThanTheLimitsAreRefused) {
  const auto envelope = [](std::size_t actions, std::size_t hashes) {
    std::string list;
    for (std::size_t i = 0; i < hashes; ++i) list += i == 0 ? "7" : ",7";
    std::string all;
    for (std::size_t i = 0; i < actions; ++i)
      all += std::string(i == 0 ? "" : ",") + R"({"payload":{"block_hashes":[)" + list + "]}}";
    return R"({"protocol_version":1,"actions":[)" + all + "]}";
  };
  EXPECT_TRUE(parse_hints(envelope(KvHint::kMaxActions, 1)));
  EXPECT_TRUE(parse_hints(envelope(1, KvHint::kMaxHashes)));
  EXPECT_EQ(parse_hints(envelope(KvHint::kMaxActions + 1, 1)).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(parse_hints(envelope(1, KvHint::kMaxHashes + 1)).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ashlar::tiers
