#include "feed/block_content.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "ashlar/tokens/engine_hash.h"

namespace ashlar::feed {
namespace {

using events::EngineExtraKey;
using tokens::Token;

// Some front ends mark a cache salt this way before it reaches the engine.
constexpr std::string_view kSaltTag = "dynamo-cache-salt:";
constexpr std::size_t kMaxHashers = 1024;

std::string_view untagged(std::string_view salt) {
  return salt.starts_with(kSaltTag) ? salt.substr(kSaltTag.size()) : salt;
}

std::uint64_t number_of_text(std::string_view text) {
  return tokens::Salt(text, "").seed();
}

// The next hash of the xxh3 chain: XXH3-64 of two little-endian numbers, which are four tokens.
std::uint64_t chain_step(std::uint64_t previous, tokens::LocalHash local) {
  const std::array<Token, 4> words = {Token(static_cast<std::uint32_t>(previous)),
                                      Token(static_cast<std::uint32_t>(previous >> 32)),
                                      Token(static_cast<std::uint32_t>(local.value())),
                                      Token(static_cast<std::uint32_t>(local.value() >> 32))};
  return tokens::router_local_hash(words, {}, tokens::Salt::kBaseSeed).value();
}

}  // namespace

// Routers take the first 16 hex digits of an item's identifier.
std::uint64_t item_number(std::string_view identifier) {
  std::uint64_t number = 0;
  if (identifier.size() >= 16) {
    const char* end = identifier.data() + 16;
    const auto parsed = std::from_chars(identifier.data(), end, number, 16);
    if (parsed.ec == std::errc() && parsed.ptr == end) return number;
  }
  return number_of_text(identifier);
}

ContentHasher::ContentHasher(const tokens::HashScheme& scheme, const tokens::Salt& base)
    : scheme_(scheme), base_(base), base_hasher_(scheme, base) {}

const tokens::SequenceHasher& ContentHasher::hasher_for(const EngineRun& run) {
  if (run.lora.empty() && run.salt.empty() && run.keys.empty()) return base_hasher_;
  const tokens::Salt salt = salt_of(run);
  const std::pair<std::string, std::string> key{salt.lora(), salt.tenant()};
  const auto known = hashers_.find(key);
  if (known != hashers_.end()) return known->second;
  if (hashers_.size() >= kMaxHashers) hashers_.clear();
  return hashers_.emplace(key, tokens::SequenceHasher(scheme_, salt)).first->second;
}

// The strings among the keys of block 0 are the LoRA name, if any, then the cache salt.
tokens::Salt ContentHasher::salt_of(const EngineRun& run) const {
  std::string_view lora = run.lora;
  std::string_view salt = run.salt;
  std::vector<std::string_view> texts;
  for (const EngineExtraKey& key : run.keys)
    if (key.block == run.first_key_block && key.kind == EngineExtraKey::Kind::kText)
      texts.push_back(key.value);
  std::size_t next = 0;
  if (next < texts.size() && !lora.empty() && texts[next] == lora) ++next;
  if (lora.empty() && texts.size() > 1) lora = texts[next++];
  if (next < texts.size() && salt.empty()) salt = texts[next];
  salt = untagged(salt);
  return {lora.empty() ? std::string_view(base_.lora()) : lora,
          salt.empty() ? std::string_view(base_.tenant()) : salt};
}

Result<tokens::BlockHashes> ContentHasher::hash_block(const EngineRun& run, std::size_t block,
                                                      const std::optional<tokens::SequenceHash>& before,
                                                      const tokens::SequenceHasher& hasher,
                                                      const std::vector<std::uint64_t>& extras) {
  if (scheme_.kind() == tokens::HashScheme::Kind::kXxh3Chain) {
    tokens::BlockHashes hashes;
    hashes.local = tokens::router_local_hash(run.tokens_of(block), extras, hasher.salt().seed());
    if (!before) {
      hashes.sequence = tokens::SequenceHash::root(hashes.local.value());
    } else {
      ASHLAR_TRY(auto next, before->child(chain_step(before->chain(), hashes.local)));
      hashes.sequence = next;
    }
    return hashes;
  }
  // The field has no rule for the other schemes: content beside the tokens becomes part of the block's salt.
  std::string tenant = hasher.salt().tenant();
  for (const std::uint64_t extra : extras) tenant += '\0' + std::to_string(extra);
  return tokens::SequenceHasher(scheme_, tokens::Salt(hasher.salt().lora(), tenant))
      .hash_block(before, run.tokens_of(block));
}

Result<void> ContentHasher::hash(const EngineRun& run, const RunParent* parent, RunContent& out) {
  const std::size_t count = run.names.size();
  const bool begins = parent == nullptr;
  out.blocks.clear();
  out.extras.clear();
  out.has_parent = !begins;
  out.parent = begins ? tokens::SequenceHash() : parent->hash;
  out.hasher = begins ? &hasher_for(run) : parent->hasher;
  const tokens::SequenceHasher& hasher = *out.hasher;
  if (!begins && !run.lora.empty() && run.lora != hasher.salt().lora())
    return make_error(ErrorCode::kAlreadyExists,
                      "a block of the LoRA adapter '%.*s' cannot follow one of '%s'",
                      static_cast<int>(std::min<std::size_t>(run.lora.size(), 256)), run.lora.data(),
                      hasher.salt().lora().c_str());

  bool has_extras = false;
  if (!run.keys.empty()) {
    if (extras_.size() < count) extras_.resize(count);
    for (std::size_t i = 0; i < count; ++i) extras_[i].clear();
    for (const EngineExtraKey& key : run.keys) {
      if (key.block < run.first_key_block || key.block - run.first_key_block >= count) continue;
      const std::size_t block = key.block - run.first_key_block;
      if (key.kind == EngineExtraKey::Kind::kText &&
          ((begins && block == 0) || key.value == hasher.salt().lora()))
        continue;  // in the salt
      extras_[block].push_back(key.kind == EngineExtraKey::Kind::kMultimodal ? item_number(key.value)
                                                                             : number_of_text(key.value));
      has_extras = true;
    }
  }

  const auto before = [&]() -> std::optional<tokens::SequenceHash> {
    if (!out.blocks.empty()) return out.blocks.back().sequence;
    return begins ? std::nullopt : std::optional(out.parent);
  };
  Result<void> done;
  if (!has_extras && run.window == run.block_size) {
    out.blocks.resize(count);
    const Result<std::size_t> hashed =
        hasher.hash_names(begins ? std::nullopt : std::optional(out.parent),
                          run.tokens.first(count * run.block_size), run.block_size, out.blocks);
    if (!hashed) {
      out.blocks.clear();
      done = hashed.error();
    }
  } else {
    if (has_extras) out.extras.assign(count, false);
    for (std::size_t i = 0; i < count && done; ++i) {
      const bool extra = has_extras && !extras_[i].empty();
      Result<tokens::BlockHashes> hashes = extra ? hash_block(run, i, before(), hasher, extras_[i])
                                                 : hasher.hash_block(before(), run.tokens_of(i));
      if (!hashes) {
        done = hashes.error();
        break;
      }
      out.blocks.push_back(*hashes);
      if (extra) out.extras[i] = true;
    }
  }
  if (!begins) {
    out.root = parent->root;
  } else if (!out.blocks.empty()) {
    out.root = out.blocks[0].sequence;
  }
  return done;
}

}  // namespace ashlar::feed
