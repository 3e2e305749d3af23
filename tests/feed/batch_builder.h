// BatchBuilder: batches of an engine, made by hand. PresenceBook: what KvEvents add up to, and the first one
// that does not fit.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/feed/engine_session.h"

namespace ashlar::feed {

using events::BlockName;
using events::EngineBatch;
using events::EngineEvent;
using events::EngineEventKind;
using events::EngineExtraKey;
using events::KvEvent;
using events::KvEventKind;
using tokens::Token;

// Views of the events refer to literals.
class BatchBuilder {
 public:
  explicit BatchBuilder(std::uint32_t rank = 0) { batch_.rank = rank; }

  EngineEvent& stored(std::optional<BlockName> parent, std::span<const BlockName> names,
                      std::span<const Token> tokens, std::uint32_t block_size,
                      std::string_view medium = "GPU") {
    EngineEvent& event = add(EngineEventKind::kStored, names, medium);
    event.parent = parent;
    event.tokens = {static_cast<std::uint32_t>(batch_.tokens.size()),
                    static_cast<std::uint32_t>(tokens.size())};
    batch_.tokens.insert(batch_.tokens.end(), tokens.begin(), tokens.end());
    event.block_size = block_size;
    if (medium == "GPU") {
      event.has_extra_keys = true;
      event.spec_kind = "full_attention";
    }
    return event;
  }
  EngineEvent& placeholder(BlockName name, std::string_view medium = "CPU") {
    return add(EngineEventKind::kStored, std::span(&name, 1), medium);
  }
  EngineEvent& removed(std::span<const BlockName> names, std::string_view medium = "GPU") {
    return add(EngineEventKind::kRemoved, names, medium);
  }
  EngineEvent& removed(BlockName name, std::string_view medium = "GPU") {
    return removed(std::span(&name, 1), medium);
  }
  EngineEvent& cleared() { return add(EngineEventKind::kCleared, {}, ""); }
  // Of the last event.
  BatchBuilder& key(std::uint32_t block, std::string value,
                    EngineExtraKey::Kind kind = EngineExtraKey::Kind::kText) {
    EngineEvent& event = batch_.events.back();
    if (event.extra_keys.count == 0)
      event.extra_keys.begin = static_cast<std::uint32_t>(batch_.extra_keys.size());
    ++event.extra_keys.count;
    event.has_extra_keys = true;
    EngineExtraKey extra;
    extra.block = block;
    extra.kind = kind;
    extra.value = std::move(value);
    batch_.extra_keys.push_back(std::move(extra));
    return *this;
  }
  EngineBatch& batch() { return batch_; }

 private:
  EngineEvent& add(EngineEventKind kind, std::span<const BlockName> names, std::string_view medium) {
    EngineEvent& event = batch_.events.emplace_back();
    event.kind = kind;
    event.names = {static_cast<std::uint32_t>(batch_.names.size()), static_cast<std::uint32_t>(names.size())};
    batch_.names.insert(batch_.names.end(), names.begin(), names.end());
    event.medium = medium;
    if (kind != EngineEventKind::kCleared) event.group = 0;
    return event;
  }

  EngineBatch batch_;
};

class PresenceBook {
 public:
  struct Key {
    std::uint32_t rank = 0;
    std::uint32_t group = 0;
    std::uint32_t tier = 0;
    std::uint64_t name = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  // A parent that was removed while its children waited is never stored.
  bool strict_parents = true;

  void apply(std::span<const KvEvent> events) {
    for (const KvEvent& event : events) apply(event);
  }
  const std::map<Key, tokens::SequenceHash>& present() const { return present_; }
  std::set<Key> keys() const {
    std::set<Key> keys;
    for (const auto& [key, hash] : present_) keys.insert(key);
    return keys;
  }
  // Empty while every event fits.
  const std::string& problem() const { return problem_; }

 private:
  void report(const KvEvent& event, const char* what) {
    if (problem_.empty())
      problem_ = "name " + std::to_string(event.name_bits) + " (" + event.hash.to_string() + ") tier " +
                 std::to_string(event.tier.value()) + ": " + what;
  }
  void apply(const KvEvent& event) {
    const std::uint32_t rank = EngineIngest::rank_of(event);
    if (event.sequence != next_[rank]++) report(event, "its number does not follow the one before");
    if (event.kind == KvEventKind::kCleared) {
      std::erase_if(present_, [&](const auto& entry) {
        return entry.first.rank == rank &&
               (event.tier == events::kAllTiers || entry.first.tier == event.tier.value());
      });
      return;
    }
    const Key key{rank, event.group, event.tier.value(), event.name_bits};
    if (event.kind == KvEventKind::kStored) {
      if (!present_.emplace(key, event.hash).second) report(event, "stored, and present already");
      if (strict_parents && EngineIngest::for_index(event) && event.parent() &&
          !known_.contains({rank, *event.parent()}))
        report(event, "its parent never came");
      if (event.parent().has_value() != (event.hash.position() > 0))
        report(event, "parent and position differ");
      known_.insert({rank, event.hash});
      return;
    }
    const auto at = present_.find(key);
    if (at == present_.end()) return report(event, "removed, and not present");
    if (at->second != event.hash) report(event, "removed with another hash");
    present_.erase(at);
  }

  std::map<Key, tokens::SequenceHash> present_;
  std::set<std::pair<std::uint32_t, tokens::SequenceHash>> known_;
  std::map<std::uint32_t, std::uint64_t> next_;
  std::string problem_;
};

}  // namespace ashlar::feed
