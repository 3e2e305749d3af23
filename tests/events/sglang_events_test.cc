// A message as SGLang sends it: arrays, signed names, short tails; and the names that our adapter computes
// from its tokens.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "ashlar/tokens/engine_hash.h"

namespace ashlar::events {
namespace {

class Message {
 public:
  Message& byte(unsigned value) {
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  Message& number(unsigned tag, std::uint64_t value, int size) {
    byte(tag);
    for (int i = size; i-- > 0;) byte(static_cast<unsigned>(value >> (8 * i)) & 0xFF);
    return *this;
  }
  Message& text(std::string_view value) {
    byte(0xA0u | static_cast<unsigned>(value.size()));
    for (const char c : value) byte(static_cast<unsigned char>(c));
    return *this;
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

TEST(SglangEvents, NamesOfAMessageAreThoseOfItsTokens) {
  std::vector<tokens::Token> tokens;
  for (std::uint32_t i = 0; i < 8; ++i) tokens.emplace_back(1000 + i);
  const auto first = tokens::sglang_hash_block({}, std::span(tokens).first(4));
  const auto second = tokens::sglang_hash_block(first, std::span(tokens).last(4));
  Message message;
  message.byte(0x93).number(0xCB, std::bit_cast<std::uint64_t>(12.5), 8).byte(0x91);
  message.byte(0x96).text("BlockStored").byte(0x92);
  for (const auto& digest : {first, second})
    message.number(0xD3, static_cast<std::uint64_t>(tokens::sglang_external_name(digest)), 8);
  message.byte(0xC0).byte(0x98);
  for (const tokens::Token token : tokens) message.number(0xCD, token.value(), 2);
  message.byte(4).byte(0xC0).byte(0);  // block size, no LoRA, rank
  EngineBatch batch;
  const Result<void> decoded = decode_engine_batch(message.bytes(), batch);
  ASSERT_TRUE(decoded) << decoded.error();
  ASSERT_EQ(batch.events.size(), 1u);
  const EngineEvent& event = batch.events[0];
  EXPECT_EQ(event.kind, EngineEventKind::kStored);
  EXPECT_FALSE(event.parent);
  EXPECT_EQ(event.block_size, 4u);
  ASSERT_EQ(event.names.count, 2u);
  EXPECT_EQ(batch.names_of(event)[0].value(),
            static_cast<std::uint64_t>(tokens::sglang_external_name(first)));
  EXPECT_EQ(batch.names_of(event)[1].value(),
            static_cast<std::uint64_t>(tokens::sglang_external_name(second)));
  const auto got = batch.tokens_of(event);
  EXPECT_EQ(tokens::sglang_hash_block(tokens::sglang_hash_block({}, got.first(4)), got.last(4)), second);
}

}  // namespace
}  // namespace ashlar::events
