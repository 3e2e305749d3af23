#include "service/request/prompt_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/tokens/prefix_digest.h"
#include "service/request/prompt_blocks.h"

namespace ashlar::service {
namespace {

// Hashers with equal digests make equal local hashes. Nobody outside knows the key.
PromptDigest digest_of(const tokens::SequenceHasher& hasher) {
  constexpr std::uint64_t kHasher = 0x6861'7368'6572'7321;
  tokens::SipHash128 hash(tokens::PrefixKey::of_process().bytes());
  hash.update_u64(kHasher);
  hash.update_u64(static_cast<std::uint64_t>(hasher.scheme().kind()));
  hash.update(hasher.scheme().key().data(), hasher.scheme().key().size());
  for (const std::string* name : {&hasher.salt().lora(), &hasher.salt().tenant()}) {
    hash.update_u64(name->size());
    hash.update(name->data(), name->size());
  }
  hash.update_u64(hasher.salt().seed());
  return hash.digest();
}

}  // namespace

std::shared_ptr<const HashedPrompt> hash_from(const std::shared_ptr<const HashedPrompt>& begun,
                                              std::size_t shared, std::span<const tokens::Token> tokens,
                                              const tokens::SequenceHasher& hasher,
                                              std::uint32_t block_size) {
  ASHLAR_CHECK(block_size > 0 && shared <= tokens.size(), "a prompt shares no more than it has");
  const PromptDigest digest = digest_of(hasher);
  const bool is_same = begun != nullptr && begun->block_size == block_size && begun->hasher == digest;
  const std::size_t known = is_same ? std::min(begun->locals.size(), shared / block_size) : 0;
  if (is_same && known == begun->locals.size() && known == tokens.size() / block_size) return begun;
  std::vector<tokens::LocalHash> locals;
  locals.reserve(tokens.size() / block_size);
  if (known > 0)
    locals.assign(begun->locals.begin(), begun->locals.begin() + static_cast<std::ptrdiff_t>(known));
  const auto rest = hash_prompt(tokens.subspan(known * block_size), {}, hasher, block_size);
  locals.insert(locals.end(), rest.begin(), rest.end());
  return std::make_shared<const HashedPrompt>(HashedPrompt{digest, block_size, std::move(locals)});
}

std::size_t PromptCache::bytes_of(const std::vector<tokens::Token>& tokens) {
  constexpr std::size_t kOverhead = 192;  // nodes of the list and the table, bucket, control block, vector
  static_assert(kOverhead > sizeof(Entry) + sizeof(PromptDigest) + 4 * sizeof(void*),
                "an entry has several parts");
  return kOverhead + tokens.capacity() * sizeof(tokens::Token);
}

TokenList PromptCache::find(const PromptDigest& key) {
  const auto place = places_.find(key);
  if (place == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, place->second);
  return place->second->tokens;
}

void PromptCache::put(const PromptDigest& key, TokenList tokens, std::uint64_t model, bool is_joined,
                      bool stood_in) {
  if (const auto place = places_.find(key); place != places_.end()) erase(place->second);
  const std::size_t bytes = bytes_of(*tokens);
  if (bytes > max_bytes_) return;
  entries_.push_front({.key = key,
                       .tokens = std::move(tokens),
                       .model = model,
                       .is_joined = is_joined,
                       .stood_in = stood_in,
                       .bytes = bytes});
  places_.emplace(key, entries_.begin());
  bytes_ += bytes;
  make_room();
  ASHLAR_DCHECK(bytes_ <= max_bytes_ && places_.size() == entries_.size(), "the cache keeps to its size");
}

std::shared_ptr<const HashedPrompt> PromptCache::hashed(const PromptDigest& key) const {
  const auto place = places_.find(key);
  return place == places_.end() ? nullptr : place->second->hashed;
}

bool PromptCache::stood_in(const PromptDigest& key) const {
  const auto place = places_.find(key);
  return place != places_.end() && place->second->stood_in;
}

void PromptCache::set_hashed(const PromptDigest& key, const TokenList& tokens,
                             std::shared_ptr<const HashedPrompt> hashed) {
  const auto place = places_.find(key);
  if (place == places_.end() || place->second->tokens != tokens) return;
  Entry& entry = *place->second;
  const std::size_t bytes =
      bytes_of(*entry.tokens) + sizeof(HashedPrompt) + hashed->locals.capacity() * sizeof(tokens::LocalHash);
  if (bytes > max_bytes_) return;
  entry.hashed = std::move(hashed);
  bytes_ = bytes_ - entry.bytes + bytes;
  entry.bytes = bytes;
  make_room();
}

void PromptCache::make_room() {
  while (bytes_ > max_bytes_) {
    erase(std::prev(entries_.end()));
    ++evicted_;
  }
}

void PromptCache::drop_all(std::uint64_t model) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->model == model) erase(entry);
    entry = next;
  }
}

void PromptCache::drop_joined(std::uint64_t model) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->is_joined && entry->model == model) erase(entry);
    entry = next;
  }
}

void PromptCache::erase(Entries::iterator entry) {
  const std::size_t bytes = entry->bytes;
  ASHLAR_CHECK(bytes <= bytes_, "what leaves the cache was counted when it came");
  bytes_ -= bytes;
  places_.erase(entry->key);
  entries_.erase(entry);
}

}  // namespace ashlar::service
