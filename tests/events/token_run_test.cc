// read_token_run(): both of its ways say what one value after another says.
#include "events/token_run.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::events {
namespace {

using tokens::Token;

class Writer {
 public:
  // An integer behind `head`, in `width` bytes.
  void put(unsigned head, std::uint64_t value, unsigned width) {
    bytes.push_back(static_cast<std::byte>(head));
    for (unsigned i = width; i-- > 0;) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void put_shortest(std::uint32_t value) {
    if (value < 0x80) return put(value, 0, 0);
    if (value < 0x100) return put(0xCC, value, 1);
    if (value < 0x10000) return put(0xCD, value, 2);
    put(0xCE, value, 4);
  }
  std::vector<std::byte> bytes;
};

struct Outcome {
  std::vector<std::uint32_t> tokens;  // none after a fault
  std::optional<std::size_t> fault = {};
  std::size_t end = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome by_run(const std::vector<std::byte>& bytes, std::uint32_t count) {
  MsgpackReader reader(bytes);
  std::vector<Token> out(count);
  if (!read_token_run(reader, count, out.data())) return {.tokens = {}, .fault = reader.fault_offset()};
  Outcome outcome{.tokens = {}, .end = reader.offset()};
  for (const Token token : out) outcome.tokens.push_back(token.value());
  return outcome;
}

Outcome one_by_one(const std::vector<std::byte>& bytes, std::uint32_t count) {
  MsgpackReader reader(bytes);
  Outcome outcome;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint64_t value = 0;
    if (!reader.read_unsigned(value, UINT32_MAX, "")) return {.tokens = {}, .fault = reader.fault_offset()};
    outcome.tokens.push_back(static_cast<std::uint32_t>(value));
  }
  outcome.end = reader.offset();
  return outcome;
}

TEST(TokenRun, MixesOfEveryKindAreReadAsOneByOne) {
  Random random(5);
  for (const std::uint64_t limit : {100u, 300u, 1024u, 60'000u, 152'000u, UINT32_MAX}) {
    for (int round = 0; round < 60; ++round) {
      Writer writer;
      const auto count = static_cast<std::uint32_t>(1 + random.below(1500));
      for (std::uint32_t i = 0; i < count; ++i)
        writer.put_shortest(static_cast<std::uint32_t>(random.below(limit)));
      for (std::uint64_t tail = random.below(300); tail != 0; --tail)
        writer.bytes.push_back(static_cast<std::byte>(random.below(256)));
      ASSERT_EQ(by_run(writer.bytes, count), one_by_one(writer.bytes, count)) << limit << " " << round;
    }
  }
}

TEST(TokenRun, OtherFormsMayStandAmongThem) {
  Random random(6);
  for (int round = 0; round < 200; ++round) {
    Writer writer;
    const std::uint32_t count = 1200;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t value = random.below(70'000);
      switch (random.below(200)) {
        case 0:
          writer.put(0xCF, value, 8);
          break;
        case 1:
          writer.put(0xD3, value, 8);
          break;
        case 2:
          writer.put(0xD2, value, 4);
          break;
        case 3:
          writer.put(0xCE, value % 100, 4);
          break;
        default:
          writer.put_shortest(static_cast<std::uint32_t>(random.below(2) == 0 ? value : value % 128));
      }
    }
    ASSERT_EQ(by_run(writer.bytes, count), one_by_one(writer.bytes, count)) << round;
  }
}

// Rows of one width, with one of another here and there, from every byte of a line, into exactly their room.
TEST(TokenRun, RowsOfOneWidthAreReadAsOneByOne) {
  Random random(9);
  for (const unsigned head : {0xCDu, 0xCEu}) {
    for (std::uint32_t count = 1; count < 120; ++count) {
      for (int odd = -1; odd < 3; ++odd) {
        Writer writer;
        const auto place = odd < 0 ? UINT32_MAX : static_cast<std::uint32_t>(random.below(count));
        for (std::uint32_t i = 0; i < count; ++i) {
          if (i == place)
            writer.put_shortest(static_cast<std::uint32_t>(random.below(70'000)));
          else
            writer.put(head, random.next() & (head == 0xCD ? 0xFFFF : UINT32_MAX), head == 0xCD ? 2 : 4);
        }
        for (std::uint64_t tail = random.below(40); tail != 0; --tail)
          writer.bytes.push_back(static_cast<std::byte>(head));
        ASSERT_EQ(by_run(writer.bytes, count), one_by_one(writer.bytes, count)) << head << " " << count;
        writer.bytes.resize(random.below(writer.bytes.size()));
        ASSERT_EQ(by_run(writer.bytes, count), one_by_one(writer.bytes, count)) << head << " " << count;
      }
    }
  }
}

TEST(TokenRun, EveryHeadThatIsNoTokenIsAFaultInItsPlace) {
  Random random(7);
  for (unsigned head = 0x80; head < 0x100; ++head) {
    Writer writer;
    const std::uint32_t count = 1000;
    const std::uint64_t place = random.below(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (i == place) writer.bytes.push_back(static_cast<std::byte>(head));
      writer.put_shortest(static_cast<std::uint32_t>(random.below(random.below(2) == 0 ? 100 : 100'000)));
    }
    ASSERT_EQ(by_run(writer.bytes, count), one_by_one(writer.bytes, count)) << head;
  }
}

TEST(TokenRun, EveryCutIsAFault) {
  Random random(8);
  Writer writer;
  const std::uint32_t count = 700;
  for (std::uint32_t i = 0; i < count; ++i)
    writer.put_shortest(static_cast<std::uint32_t>(random.below(152'000)));
  for (std::size_t size = 0; size < writer.bytes.size(); ++size) {
    const std::vector<std::byte> cut(writer.bytes.begin(),
                                     writer.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const Outcome outcome = by_run(cut, count);
    ASSERT_TRUE(outcome.fault.has_value());
    ASSERT_EQ(outcome, one_by_one(cut, count)) << size;
  }
}

}  // namespace
}  // namespace ashlar::events
