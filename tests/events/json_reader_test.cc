#include "events/json_reader.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

#include "events/json_writer.h"

namespace ashlar::events {
namespace {

bool skips(std::string_view text) {
  JsonReader in(text);
  return in.skip() && in.at_end();
}

TEST(JsonReader, StepsOverEveryValue) {
  for (const char* text : {"null", "true", "false", "0", "-1.5e+10", "\"\"", "[]", "{}",
                           " [ 1 , [ ] , { \"a\" : [ 2 ] , \"b\" : { } } ] ", "\"\\u0041\\ud83d\\ude00\\n\"",
                           "\"\\ud800\"", "\"\\udc00 a text that is longer than a word\""})
    EXPECT_TRUE(skips(text)) << text;
  for (const char* text : {"",         "nul",        "tru",        "-",     "1.",   "1e",    "\"",
                           "\"\\x\"",  "\"\\ud80\"", "\"\\u\"",    "[1 2]", "[1,]", "[",     "{\"a\"}",
                           "{\"a\":}", "{1:2}",      "{\"a\":1,}", "1 2",   "]",    "\"\n\""})
    EXPECT_FALSE(skips(text)) << text;
}

// Skipping reads eight or 16 bytes at a time: every place of what ends a text, in texts of every length.
TEST(JsonReader, TextsOfEveryLengthAreSkipped) {
  for (std::size_t length = 0; length < 40; ++length) {
    const std::string text(length, '\xc3');
    EXPECT_TRUE(skips('"' + text + '"')) << length;
    EXPECT_FALSE(skips('"' + text)) << length;
    for (std::size_t at = 0; at <= length; ++at) {
      const auto with = [&](std::string_view part) {
        return '"' + text.substr(0, at) + std::string(part) + text.substr(at) + '"';
      };
      EXPECT_TRUE(skips(with("\\\""))) << length << ' ' << at;
      EXPECT_TRUE(skips(with("\\\\"))) << length << ' ' << at;
      EXPECT_TRUE(skips(with("! #[]\x7f"))) << length << ' ' << at;
      EXPECT_FALSE(skips(with("\x1f"))) << length << ' ' << at;
      EXPECT_FALSE(skips(with("\""))) << length << ' ' << at;
    }
  }
}

TEST(JsonReader, BooleansAreWords) {
  bool value = false;
  EXPECT_TRUE(JsonReader(" true").read_bool(value, "what"));
  EXPECT_TRUE(value);
  EXPECT_TRUE(JsonReader("false").read_bool(value, "what"));
  EXPECT_FALSE(value);
  for (const char* text : {"", "tru", "null", "1", "\"true\""})
    EXPECT_FALSE(JsonReader(text).read_bool(value, "what")) << text;
}

TEST(JsonReader, IntegersAreExactTo64Bits) {
  const auto bits = [](std::string_view text) -> std::optional<std::uint64_t> {
    JsonReader in(text);
    std::uint64_t value = 0;
    if (!in.read_bits(value, "what") || !in.at_end()) return std::nullopt;
    return value;
  };
  EXPECT_EQ(bits("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(bits("9007199254740993"), 9007199254740993u);
  EXPECT_EQ(bits("-1"), UINT64_MAX);
  EXPECT_EQ(bits("-9223372036854775808"), std::uint64_t{1} << 63);
  EXPECT_EQ(bits("0"), 0u);
  for (const char* text : {"18446744073709551616", "-9223372036854775809", "01", "1.0", "1e3", "", "-", "x",
                           "99999999999999999999"})
    EXPECT_FALSE(bits(text)) << text;
  JsonReader in("-1");
  std::uint64_t value = 0;
  EXPECT_FALSE(in.read_unsigned(value, 10, "what"));
}

TEST(JsonReader, TextIsWrittenAsUtf8WhateverItsBytesAre) {
  const std::initializer_list<std::pair<const char*, const char*>> cases = {
      {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xef\xbf\xbd", nullptr},
      {"caf\xe9", "caf\\ufffd"},
      {"a\xff"
       "b",
       "a\\ufffdb"},
      {"\xe2\x82", "\\ufffd\\ufffd"},
      {"\xc0\x9b", "\\ufffd\\ufffd"},                        // overlong
      {"\xe0\x80\x9b", "\\ufffd\\ufffd\\ufffd"},             // overlong
      {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},             // a surrogate
      {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},  // past the last character
      {"\u202egpj.x", "\\u202egpj.x"},
      {"\u061c\u200e\u200f\u2066\u2069\u2028", "\\u061c\\u200e\\u200f\\u2066\\u2069\\u2028"},
      {"\u009b31m\x7f", "\\u009b31m\\u007f"},
  };
  for (const auto& [text, expected] : cases) {
    std::string json;
    append_quoted(json, text);
    EXPECT_EQ(json, std::string("\"") + (expected == nullptr ? text : expected) + "\"");
    JsonReader in(json);
    std::string again;
    EXPECT_TRUE(in.read_text(again, "what")) << json;
  }
}

TEST(JsonReader, TextIsDecodedAndWrittenAgain) {
  const std::string text = "a\"b\\c\x01\n\x1f/\xc3\xa9";
  std::string json;
  append_quoted(json, text);
  JsonReader in(json);
  std::string again;
  ASSERT_TRUE(in.read_text(again, "what"));
  EXPECT_EQ(again, text);
  JsonReader escaped("\"\\u00e9\\u20ac\\ud83d\\ude00\\/\\b\\f\\r\\t\"");
  ASSERT_TRUE(escaped.read_text(again, "what"));
  EXPECT_EQ(again, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80/\b\f\r\t");
}

TEST(JsonReader, ListsOfNumbersAreReadAsOneByOne) {
  const char* const lists[] = {"[]",
                               "[ ]",
                               "[0]",
                               "[1,2,3]",
                               "[ 1 , 2 ,3]",
                               "[4294967295]",
                               "[1,]",
                               "[,1]",
                               "[01,2]",
                               "[1,02]",
                               "[999999999,1000000000,4294967295,7]",
                               "[1,4294967296]",
                               "[1,-2,3]",
                               "[1.5,2]",
                               "[1,2e3]",
                               "[1 2]",
                               "[1,\"a\"]",
                               "[1,2",
                               "[1,2,",
                               "[1",
                               "[",
                               "[99999999999999999999,1]",
                               "[1,null]",
                               "[1,[2]]",
                               "[00,1]",
                               "[0,0,0]",
                               "[12345678901,2]",
                               "[1234567,12345678,123456789,1,22,333,4444,55555,666666,7777777,8,9,10,11]",
                               "[1,2,3,4,5,6,:,7,8,9,1,2,3]",
                               "[1,2,3,4,5,6,/,7,8,9,1,2,3]",
                               "[1,2,3,4,\xb1,5,6,7,8,9]"};
  for (const char* list : lists) {
    JsonReader one(list);
    std::vector<std::uint32_t> expected;
    bool more = false;
    bool good = one.begin_array("what");
    while (good && (good = one.next_item(more)) && more) {
      std::uint64_t number = 0;
      good = one.read_unsigned(number, UINT32_MAX, "what");
      if (good) expected.push_back(static_cast<std::uint32_t>(number));
    }
    JsonReader in(list);
    std::vector<std::uint32_t> numbers;
    EXPECT_EQ(in.begin_array("what") && in.read_numbers(numbers, "what"), good) << list;
    EXPECT_EQ(numbers, expected) << list;
    EXPECT_EQ(in.offset(), one.offset()) << list;
    EXPECT_EQ(in.fault_offset(), one.fault_offset()) << list;
  }
}

TEST(JsonReader, DepthHasALimit) {
  EXPECT_TRUE(skips(std::string(60, '[') + std::string(60, ']')));
  const std::string deep(1'000'000, '[');
  JsonReader in(deep);
  EXPECT_FALSE(in.skip());
  EXPECT_STREQ(in.fault(), "nested too deep");
}

TEST(JsonReader, FaultsHaveTheirPlace) {
  JsonReader in("{\"a\": [1, x]}");
  EXPECT_FALSE(in.skip());
  EXPECT_STREQ(in.fault(), "no value of JSON");
  EXPECT_EQ(in.fault_offset(), 10u);
}

}  // namespace
}  // namespace ashlar::events
