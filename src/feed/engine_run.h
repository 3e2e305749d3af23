// EngineRun: consecutive blocks of one sequence as an engine stored them, ready to be named.
//
// Thread safety: plain values; a run refers to its creator's memory.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/token.h"
#include "base/tag_table.h"

namespace ashlar::feed {

// A block's name within a rank.
struct EngineKey {
  std::uint32_t group = 0;
  events::BlockName name;

  friend auto operator<=>(const EngineKey&, const EngineKey&) = default;
};

struct EngineKeyHash {
  std::size_t operator()(const EngineKey& key) const noexcept {
    return static_cast<std::size_t>((key.name.value() ^ (std::uint64_t{key.group} << 48)) *
                                    0x9E3779B97F4A7C15u);
  }
};

struct EngineRun {
  std::uint32_t group = 0;
  std::size_t tier = 0;  // value of a TierId
  std::optional<events::BlockName> parent;
  std::span<const events::BlockName> names;
  // Tokens of block i: `window` tokens from i * block_size on; pairs of speculative decoding look one token
  // ahead.
  std::span<const tokens::Token> tokens;
  std::uint32_t block_size = 0;
  std::uint32_t window = 0;
  std::span<const events::EngineExtraKey> keys;  // by rising block
  std::uint32_t first_key_block = 0;             // the number that the keys give to block 0 of this run
  bool has_keys = false;                         // the engine sent the field
  std::string_view lora;
  std::string_view salt;
  std::span<const std::uint8_t> gone;            // 1: removed while it waited; empty: none
  std::span<const TagTable::Probe> probes = {};  // of the names, in the table of held blocks; empty: none yet

  EngineKey key(std::size_t block) const { return {group, names[block]}; }
  // Requires: the block has a parent.
  events::BlockName parent_of(std::size_t block) const { return block == 0 ? *parent : names[block - 1]; }
  std::span<const tokens::Token> tokens_of(std::size_t block) const {
    return tokens.subspan(block * block_size, window);
  }
  std::span<const tokens::Token> needed_tokens() const {
    if (names.empty()) return {};
    return tokens.first(std::min(tokens.size(), (names.size() - 1) * block_size + window));
  }
  bool is_gone(std::size_t block) const { return !gone.empty() && gone[block] != 0; }
  // The blocks from `first` on, after block first - 1.
  EngineRun behind(std::size_t first) const {
    EngineRun rest = *this;
    rest.parent = names[first - 1];
    rest.names = names.subspan(first);
    rest.tokens = tokens.subspan(first * block_size);
    rest.first_key_block = first_key_block + static_cast<std::uint32_t>(first);
    if (!gone.empty()) rest.gone = gone.subspan(first);
    if (!probes.empty()) rest.probes = probes.subspan(first);
    return rest;
  }
};

// A run that owns its memory: only the parts of the event that its blocks need.
struct OwnedEngineRun {
  explicit OwnedEngineRun(const EngineRun& run)
      : head(run),
        names(run.names.begin(), run.names.end()),
        tokens(run.needed_tokens().begin(), run.needed_tokens().end()),
        lora(run.lora),
        salt(run.salt),
        gone(run.names.size(), 0) {
    for (std::size_t i = 0; i < run.gone.size(); ++i) gone[i] = run.gone[i];
    for (const events::EngineExtraKey& key : run.keys)
      if (key.block >= run.first_key_block && key.block - run.first_key_block < names.size())
        keys.push_back(key);
    head.gone = {};
    head.probes = {};
    head.names = {};
    head.tokens = {};
    head.keys = {};
    head.lora = {};
    head.salt = {};
  }

  EngineRun view() const {
    EngineRun run = head;
    run.names = names;
    run.tokens = tokens;
    run.keys = keys;
    run.lora = lora;
    run.salt = salt;
    run.gone = gone;
    return run;
  }

  EngineRun head;  // without the memory it refers to
  std::vector<events::BlockName> names;
  std::vector<tokens::Token> tokens;
  std::vector<events::EngineExtraKey> keys;
  std::string lora;
  std::string salt;
  std::vector<std::uint8_t> gone;
};

}  // namespace ashlar::feed
