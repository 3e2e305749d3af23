#include "ashlar/base/log.h"

#include <gtest/gtest.h>

namespace ashlar {
namespace {

TEST(PrintableTest, TextStaysAsItIs) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("/mnt/a b~"), "/mnt/a b~");
  EXPECT_EQ(printable("é€𝄞\u00a0"), "é€𝄞\u00a0");
}

TEST(PrintableTest, ControlCharactersAreSpelledOut) {
  EXPECT_EQ(printable("a\x1b[2Jb\n\t\x7f"), "a\\x1b[2Jb\\x0a\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\u009b31m"), "\\xc2\\x9b31m");
}

TEST(PrintableTest, BytesThatAreNotUtf8AreSpelledOut) {
  EXPECT_EQ(printable("\x9b\x9bx"), "\\x9b\\x9bx");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b") << "an overlong form of ESC";
}

TEST(PrintableTest, WhatTurnsTextIsSpelledOut) {
  EXPECT_EQ(printable("\u202egpj.x"), "\\xe2\\x80\\xaegpj.x");
  EXPECT_EQ(printable("\u061c\u2066"), "\\xd8\\x9c\\xe2\\x81\\xa6");
}

TEST(PrintableTest, LinesStayLines) {
  EXPECT_EQ(printable_lines("a\n\x1b"), "a\n\\x1b");
}

}  // namespace
}  // namespace ashlar
