#include "service/request/prompt_cache.h"

#include <iterator>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::service {

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

void PromptCache::put(const PromptDigest& key, TokenList tokens, std::uint64_t model, bool is_joined) {
  if (const auto place = places_.find(key); place != places_.end()) erase(place->second);
  const std::size_t bytes = bytes_of(*tokens);
  if (bytes > max_bytes_) return;
  while (bytes_ + bytes > max_bytes_) {
    erase(std::prev(entries_.end()));
    ++evicted_;
  }
  entries_.push_front({key, std::move(tokens), model, is_joined});
  places_.emplace(key, entries_.begin());
  bytes_ += bytes;
  ASHLAR_DCHECK(bytes_ <= max_bytes_ && places_.size() == entries_.size(), "the cache keeps to its size");
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
  const std::size_t bytes = bytes_of(*entry->tokens);
  ASHLAR_CHECK(bytes <= bytes_, "what leaves the cache was counted when it came");
  bytes_ -= bytes;
  places_.erase(entry->key);
  entries_.erase(entry);
}

}  // namespace ashlar::service
