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
    : scheme_(scheme), base_(base) {}

const tokens::SequenceHasher& ContentHasher::hasher_for(const tokens::Salt& salt) {
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

Result<BlockContent> ContentHasher::hash_block(const EngineRun& run, std::size_t block,
                                               const BlockContent* parent,
                                               const tokens::SequenceHasher& hasher,
                                               const std::vector<std::uint64_t>& extras) {
  BlockContent content{.hasher = hasher};
  const std::optional<tokens::SequenceHash> before =
      parent != nullptr ? std::optional(parent->hash) : std::nullopt;
  if (extras.empty()) {
    ASHLAR_TRY(auto hashes, hasher.hash_block(before, run.tokens_of(block)));
    content.local = hashes.local;
    content.hash = hashes.sequence;
  } else if (scheme_.kind() == tokens::HashScheme::Kind::kXxh3Chain) {
    content.has_extras = true;
    content.local = tokens::router_local_hash(run.tokens_of(block), extras, hasher.salt().seed());
    if (parent == nullptr) {
      content.hash = tokens::SequenceHash::root(content.local.value());
    } else {
      ASHLAR_TRY(auto next, parent->hash.child(chain_step(parent->hash.chain(), content.local)));
      content.hash = next;
    }
  } else {
    // The field has no rule for the other schemes: content beside the tokens becomes part of the block's
    // salt.
    content.has_extras = true;
    std::string tenant = hasher.salt().tenant();
    for (const std::uint64_t extra : extras) tenant += '\0' + std::to_string(extra);
    ASHLAR_TRY(auto hashes, tokens::SequenceHasher(scheme_, tokens::Salt(hasher.salt().lora(), tenant))
                                .hash_block(before, run.tokens_of(block)));
    content.local = hashes.local;
    content.hash = hashes.sequence;
  }
  return content;
}

Result<void> ContentHasher::hash(const EngineRun& run, const BlockContent* parent,
                                 std::vector<BlockContent>& out) {
  const std::size_t count = run.names.size();
  const bool begins = parent == nullptr;
  const tokens::SequenceHasher hasher = begins ? hasher_for(salt_of(run)) : parent->hasher;
  if (!begins && !run.lora.empty() && run.lora != hasher.salt().lora())
    return make_error(ErrorCode::kAlreadyExists,
                      "a block of the LoRA adapter '%.*s' cannot follow one of '%s'",
                      static_cast<int>(std::min<std::size_t>(run.lora.size(), 256)), run.lora.data(),
                      hasher.salt().lora().c_str());

  bool plain = run.window == run.block_size;
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
      plain = false;
    }
  }

  const std::size_t before = out.size();
  out.reserve(before + count);
  if (plain) {
    hashes_.resize(count);
    ASHLAR_RETURN_IF_ERROR(hasher.hash_blocks(begins ? std::nullopt : std::optional(parent->hash),
                                              run.tokens.first(count * run.block_size), run.block_size,
                                              hashes_));
    for (const tokens::BlockHashes& hashes : hashes_)
      out.push_back({.hash = hashes.sequence, .local = hashes.local, .hasher = hasher});
  } else {
    static const std::vector<std::uint64_t> kNone;
    const BlockContent* previous = parent;
    for (std::size_t i = 0; i < count; ++i) {
      ASHLAR_TRY(auto content, hash_block(run, i, previous, hasher, run.keys.empty() ? kNone : extras_[i]));
      out.push_back(std::move(content));
      previous = &out.back();
    }
  }
  for (std::size_t i = before; i < out.size(); ++i) {
    const BlockContent* previous = i == before ? parent : &out[i - 1];
    out[i].has_parent = previous != nullptr;
    if (previous != nullptr) out[i].parent = previous->hash;
    out[i].root = previous != nullptr ? (i == before ? parent->root : out[before].root) : out[i].hash;
  }
  return {};
}

}  // namespace ashlar::feed
