// Messages of an engine, encoded by hand, and a source that plays them from a script.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/feed/engine_source.h"
#include "feed/batch_builder.h"

namespace ashlar::feed {

// The msgpack bytes of a batch, with events as maps.
class BatchEncoder {
 public:
  static std::vector<std::byte> encode(const EngineBatch& batch) {
    BatchEncoder out;
    out.byte(0x93);
    out.byte(0xcb);
    out.big(std::bit_cast<std::uint64_t>(batch.timestamp), 8);
    out.array(batch.events.size());
    for (const EngineEvent& event : batch.events) out.event(batch, event);
    out.number(batch.rank.value_or(0));
    return std::move(out.bytes_);
  }

 private:
  void byte(unsigned value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void big(std::uint64_t value, unsigned size) {
    for (unsigned i = size; i-- > 0;) byte(static_cast<unsigned>(value >> (8 * i)) & 0xFF);
  }
  void number(std::uint64_t value) { byte(0xcf), big(value, 8); }
  void array(std::size_t size) { byte(0xdd), big(size, 4); }
  void text(std::string_view value) {
    byte(0xd9), big(value.size(), 1);
    for (const char c : value) byte(static_cast<unsigned char>(c));
  }
  void nil() { byte(0xc0); }
  void names(const EngineBatch& batch, const EngineEvent& event) {
    text("block_hashes");
    array(event.names.count);
    for (const BlockName name : batch.names_of(event)) number(name.value());
  }
  void event(const EngineBatch& batch, const EngineEvent& event) {
    switch (event.kind) {
      case EngineEventKind::kStored: {
        byte(0xde), big(event.has_extra_keys ? 9 : 8, 2);
        text("type"), text("BlockStored");
        names(batch, event);
        text("parent_block_hash");
        event.parent ? number(event.parent->value()) : nil();
        text("token_ids"), array(event.tokens.count);
        for (const Token token : batch.tokens_of(event)) number(token.value());
        text("block_size"), number(event.block_size);
        text("lora_id"), nil();
        text("medium"), text(event.medium);
        if (event.has_extra_keys) {
          text("extra_keys"), array(event.names.count);
          for (std::uint32_t i = 0; i < event.names.count; ++i) {
            std::vector<std::string> keys;
            for (const EngineExtraKey& key : batch.extra_keys_of(event))
              if (key.block == i) keys.push_back(key.value);
            if (keys.empty()) {
              nil();
              continue;
            }
            array(keys.size());
            for (const std::string& key : keys) text(key);
          }
        }
        text("group_idx"), number(event.group.value_or(0));
        return;
      }
      case EngineEventKind::kRemoved:
        byte(0xde), big(4, 2);
        text("type"), text("BlockRemoved");
        names(batch, event);
        text("medium"), text(event.medium);
        text("group_idx"), number(event.group.value_or(0));
        return;
      case EngineEventKind::kCleared:
      case EngineEventKind::kUnknown:
        byte(0xde), big(1, 2);
        text("type"), text("AllBlocksCleared");
        return;
    }
  }

  std::vector<std::byte> bytes_;
};

// Plays a script. What it keeps for replays is a list of its own, so that a test can let it forget or lie.
class ScriptedSource final : public EngineSource {
 public:
  struct Script {
    std::deque<EngineMessage> live;
    std::vector<EngineMessage> kept;
    std::optional<ErrorCode> replay_error;
    std::vector<std::uint64_t> asked;
    std::uint64_t restarts = 0;
  };
  explicit ScriptedSource(Script& script) : script_(script) {}

  Result<std::optional<EngineMessage>> receive(Clock::Duration) override {
    if (script_.live.empty()) return Error(ErrorCode::kNotFound, "the script has ended");
    EngineMessage message = std::move(script_.live.front());
    script_.live.pop_front();
    return std::optional(std::move(message));
  }
  Result<EngineReplay> replay(std::uint64_t from) override {
    script_.asked.push_back(from);
    if (script_.replay_error) return Error(*script_.replay_error, "no replay");
    EngineReplay replay;
    for (const EngineMessage& message : script_.kept)
      if (message.sequence >= from) replay.messages.push_back(message);
    return replay;
  }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::uint64_t restarts() const noexcept override { return script_.restarts; }
  std::string describe() const override { return "script"; }

 private:
  Script& script_;
};

}  // namespace ashlar::feed
