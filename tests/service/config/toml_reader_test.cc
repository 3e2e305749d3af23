#include "service/config/toml_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace ashlar::service {
namespace {

std::vector<TomlTable> read_tables(std::string_view text) {
  Result<std::vector<TomlTable>> tables = read_toml("file", text);
  EXPECT_TRUE(tables.has_value()) << text << ": " << (tables ? "" : tables.error().message());
  return tables ? std::move(*tables) : std::vector<TomlTable>(1);
}

template <class T>
T toml_value(std::string_view text) {
  const std::vector<TomlTable> tables = read_tables("a = " + std::string(text));
  EXPECT_EQ(tables[0].entries.size(), 1u) << text;
  if (tables[0].entries.size() != 1) return {};
  const T* const found = std::get_if<T>(&tables[0].entries[0].value.value);
  EXPECT_NE(found, nullptr) << text;
  return found == nullptr ? T{} : *found;
}

std::string toml_refusal(std::string_view text) {
  const Result<std::vector<TomlTable>> tables = read_toml("file", text);
  EXPECT_FALSE(tables.has_value()) << text;
  return tables ? "" : tables.error().message();
}

TEST(TomlReader, ReadsTablesInTheirOrder) {
  const std::vector<TomlTable> tables = read_tables(
      "\xEF\xBB\xBF# first\na = 1 # one\r\n'b c'=true\n\n[ x . \"y\" ]\nk = 'v'\n"
      "[[worker]]\nn=1\n[[worker]]\nn=2\n[empty]");
  ASSERT_EQ(tables.size(), 5u);
  EXPECT_EQ(tables[0].name, "");
  ASSERT_EQ(tables[0].entries.size(), 2u);
  EXPECT_EQ(tables[0].entries[0].key, "a");
  EXPECT_EQ(tables[0].entries[0].place.line, 2u);
  EXPECT_EQ(tables[0].entries[0].value.place.column, 5u);
  EXPECT_EQ(tables[0].entries[1].key, "b c");
  EXPECT_EQ(tables[1].name, "x.y");
  EXPECT_FALSE(tables[1].is_item);
  EXPECT_EQ(tables[2].name, "worker");
  EXPECT_TRUE(tables[2].is_item);
  EXPECT_EQ(tables[3].place.line, 9u);
  EXPECT_TRUE(tables[4].entries.empty());
  EXPECT_EQ(read_tables("").size(), 1u);
}

TEST(TomlReader, ReadsTextsOfAllKinds) {
  EXPECT_EQ(toml_value<std::string>(R"("a\tb\"\\\u00e9\U0001F600")"), "a\tb\"\\\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(toml_value<std::string>(R"('C:\new')"), "C:\\new");
  EXPECT_EQ(toml_value<std::string>("\"\"\"\nx\r\ny \\\n\n   z\"\"\""), "x\ny z");
  EXPECT_EQ(toml_value<std::string>("'''a'b\n\\c'''"), "a'b\n\\c");
  EXPECT_EQ(toml_value<std::string>("\"\"\"a\"\"\"\"\""), "a\"\"");
  EXPECT_EQ(toml_value<std::string>("''''a'''"), "'a");
  EXPECT_EQ(toml_value<std::string>("\"\""), "");
}

TEST(TomlReader, ReadsNumbersAndBooleans) {
  EXPECT_EQ(toml_value<std::int64_t>("+1_000"), 1000);
  EXPECT_EQ(toml_value<std::int64_t>("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(toml_value<std::int64_t>("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(toml_value<std::int64_t>("0xFf"), 255);
  EXPECT_EQ(toml_value<std::int64_t>("0o17"), 15);
  EXPECT_EQ(toml_value<std::int64_t>("0b101"), 5);
  EXPECT_EQ(toml_value<std::int64_t>("0"), 0);
  EXPECT_EQ(toml_value<double>("-0.5"), -0.5);
  EXPECT_EQ(toml_value<double>("1e3"), 1000);
  EXPECT_EQ(toml_value<double>("6.5_0E-1"), 0.65);
  EXPECT_TRUE(std::isinf(toml_value<double>("+inf")));
  EXPECT_TRUE(std::isnan(toml_value<double>("nan")));
  EXPECT_EQ(toml_value<bool>("true"), true);
  EXPECT_EQ(toml_value<bool>("false"), false);
}

TEST(TomlReader, ReadsArraysOverLines) {
  const auto array = toml_value<TomlArray>("[ 1, # one\n 'two',\n [true, ], ]");
  ASSERT_EQ(array.size(), 3u);
  EXPECT_EQ(array[1].place.line, 2u);
  EXPECT_EQ(array[2].kind(), "an array");
  EXPECT_TRUE(toml_value<TomlArray>("[]").empty());
}

TEST(TomlReader, RefusalsHaveTheirPlace) {
  EXPECT_EQ(toml_refusal("a = 1\nb = \n"), "file:2:5: a value should be here");
  EXPECT_EQ(toml_refusal("a = 1\n\na = 2"), "file:3:1: this key is already in this table");
  EXPECT_EQ(toml_refusal("[a]\n[a]"), "file:2:1: this table, or a key of its name, is already there");
  EXPECT_EQ(toml_refusal("d = 1979-05-27T07:32:00Z"),
            "file:1:5: dates and times are not read; write a text, in quotes");
  EXPECT_EQ(toml_refusal("d = {a = 1}"),
            "file:1:5: inline tables are not read; write a table: [name], or [[name]]");
  EXPECT_EQ(toml_refusal("a.b = 1"), "file:1:2: dotted keys are not read; write a table: [name]");
  EXPECT_EQ(toml_refusal("a = 127.0.0.1"), "file:1:5: no value of TOML; texts stand in quotes");
  EXPECT_EQ(toml_refusal("a = 'x\n'"), "file:1:5: this text does not end on its line");
}

TEST(TomlReader, RefusesWhatIsNoToml) {
  for (const char* text : {"a",
                           "a =",
                           "= 1",
                           "a = 1 b = 2",
                           "a = \"",
                           "a = \"\\x\"",
                           "a = \"\\ud800\"",
                           "a = '''x",
                           "a = [1",
                           "a = [1 2]",
                           "a = [,]",
                           "[a",
                           "[a] b",
                           "[[a]",
                           "[]",
                           "[a.]",
                           "a = 01",
                           "a = 1__0",
                           "a = _1",
                           "a = 1_",
                           "a = 0x",
                           "a = 1.",
                           "a = .5",
                           "a = 1.e3",
                           "a = truE",
                           "a = -",
                           "a = +0xF",
                           "a = 12:30",
                           "a = 99999999999999999999",
                           "a = \x01",
                           "# \x02",
                           "a = '\x7f'",
                           "\"\"\"a\"\"\" = 1",
                           "[a]\n[[a]]",
                           "[[a]]\n[a]",
                           "a = 1\n[a]",
                           "a = \"\\",
                           "a = \"\\u12",
                           "a = 1\rb = 2"})
    EXPECT_NE(toml_refusal(text).find("file:"), std::string::npos) << text;
  EXPECT_NE(toml_refusal("a = " + std::string(100'000, '[')).find("nested too deep"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::service
