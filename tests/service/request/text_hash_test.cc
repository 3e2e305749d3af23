#include "service/request/text_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::service {
namespace {

using Name = std::pair<std::uint64_t, std::uint64_t>;

constexpr tokens::SipHash128::Key kTextKey = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

Name name_of(const TextHash& hash, const std::vector<std::string>& texts) {
  TextHash::State state = hash.start();
  for (const std::string& text : texts) hash.absorb(state, text);
  const tokens::SipHash128::Digest digest = state.digest();
  return {digest.hi, digest.lo};
}

std::string text_of(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  std::string text(size, ' ');
  for (char& byte : text) byte = static_cast<char>(random.next());
  return text;
}

TEST(TextHashTest, EveryLengthHasItsOwnName) {
  const TextHash hash(kTextKey);
  const std::string text(3 * TextHash::kPart + 40, '\0');
  std::set<Name> names;
  for (std::size_t size = 0; size <= text.size(); ++size) names.insert(name_of(hash, {text.substr(0, size)}));
  EXPECT_EQ(names.size(), text.size() + 1);
}

TEST(TextHashTest, EveryByteCountsWhereverItStands) {
  const TextHash hash(kTextKey);
  for (const std::size_t size : {TextHash::kLong - 1, TextHash::kLong, TextHash::kPart, TextHash::kPart + 15,
                                 2 * TextHash::kPart + 33}) {
    std::string text = text_of(size, size);
    std::set<Name> names = {name_of(hash, {text})};
    for (char& byte : text) {
      byte ^= 0x20;
      names.insert(name_of(hash, {text}));
      byte ^= 0x20;
    }
    EXPECT_EQ(names.size(), size + 1) << size;
  }
}

TEST(TextHashTest, PartsThatChangePlacesHaveAnotherName) {
  const TextHash hash(kTextKey);
  const std::string a = text_of(TextHash::kPart, 1);
  const std::string b = text_of(TextHash::kPart, 2);
  EXPECT_NE(name_of(hash, {a + b}), name_of(hash, {b + a}));
  EXPECT_NE(name_of(hash, {a + b}), name_of(hash, {a, b}));
  EXPECT_NE(name_of(hash, {a, b}), name_of(hash, {a + b, ""}));
  EXPECT_EQ(name_of(hash, {a, b}), name_of(hash, {std::string(a), std::string(b)}));
}

TEST(TextHashTest, AnotherKeyGivesOtherNames) {
  tokens::SipHash128::Key other = kTextKey;
  other[3] ^= 1;
  for (const std::size_t size : {std::size_t{3}, TextHash::kLong, 3 * TextHash::kPart})
    EXPECT_NE(name_of(TextHash(kTextKey), {text_of(size, 7)}), name_of(TextHash(other), {text_of(size, 7)}));
}

}  // namespace
}  // namespace ashlar::service
