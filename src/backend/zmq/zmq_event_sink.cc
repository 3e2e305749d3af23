#include "ashlar/backend/zmq/zmq_event_sink.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/events/event_codec.h"

namespace ashlar::backend::zmq {

using events::EngineEvent;
using events::EngineEventKind;
using events::KvEvent;
using events::KvEventKind;

std::string_view medium_of(events::TierId tier) noexcept {
  switch (tier.value()) {
    case events::G1::kIndex:
      return "GPU";
    case events::G2::kIndex:
      return "CPU";
    case events::G3::kIndex:
      return "DISK";
    case events::G4::kIndex:
      return "STORAGE";
    case events::Remote::kIndex:
      return "REMOTE";
    default:
      return "EXTERNAL";
  }
}

ZmqEventSink::ZmqEventSink(std::shared_ptr<EnginePublisher> publisher, Options options)
    : publisher_(std::move(publisher)), options_(std::move(options)) {}

std::string ZmqEventSink::describe() const {
  return "zmq " + publisher_->endpoint() + " as engines do";
}

// Update the present blocks only after the batch is sent: a refused batch is published again.
Result<void> ZmqEventSink::publish(const events::EventBatch& batch) {
  batch_ = {};
  names_.clear();
  batch_.timestamp = static_cast<double>(batch.published_ns) / 1e9;
  batch_.rank = batch.stream.worker.rank;
  const bool begins_anew = batch.kind == events::BatchKind::kSnapshot && batch.part == 0;
  if (begins_anew) add_clear(present_, events::kAllTiers);
  for (std::size_t at = 0; at < batch.events.size();) {
    const std::span<const KvEvent> left = batch.events.subspan(at);
    const std::size_t count = std::max<std::size_t>(events::run_length(left), 1);
    const KvEventKind kind = left.front().kind;
    if (kind == KvEventKind::kCleared || kind == KvEventKind::kResync) {
      Blocks blocks = begins_anew ? Blocks() : present_;
      apply(blocks, batch.events.first(at));
      add_clear(blocks, kind == KvEventKind::kCleared ? left.front().tier : events::kAllTiers);
    } else {
      add_run(left.first(count), batch.keys.block_size);
    }
    at += count;
  }
  if (!batch_.events.empty()) {
    events::encode_engine_batch(batch_, bytes_, options_.form);
    ASHLAR_RETURN_IF_ERROR(publisher_->publish(options_.topic, bytes_));
  }
  if (begins_anew) present_.clear();
  apply(present_, batch.events);
  return {};
}

void ZmqEventSink::apply(Blocks& blocks, std::span<const KvEvent> events) {
  for (const KvEvent& event : events) {
    const auto bit = static_cast<std::uint8_t>(1U << (event.tier.value() % events::kMaxTiers));
    switch (event.kind) {
      case KvEventKind::kStored: {
        Present& block = blocks[event.hash];
        block.name = event.name();
        block.tiers |= bit;
        break;
      }
      case KvEventKind::kRemoved:
        if (const auto found = blocks.find(event.hash); found != blocks.end()) {
          found->second.tiers = static_cast<std::uint8_t>(found->second.tiers & ~bit);
          if (found->second.tiers == 0) blocks.erase(found);
        }
        break;
      case KvEventKind::kCleared:
        if (event.tier != events::kAllTiers) {
          for (auto entry = blocks.begin(); entry != blocks.end();) {
            entry->second.tiers = static_cast<std::uint8_t>(entry->second.tiers & ~bit);
            entry = entry->second.tiers == 0 ? blocks.erase(entry) : std::next(entry);
          }
          break;
        }
        [[fallthrough]];
      case KvEventKind::kResync:
        blocks.clear();
        break;
      case KvEventKind::kAccess:
        break;
    }
  }
}

void ZmqEventSink::add_clear(const Blocks& blocks, events::TierId tier) {
  for (std::uint8_t each = 0; each < events::kMaxTiers; ++each) {
    if (tier != events::kAllTiers && tier.value() != each) continue;
    EngineEvent event;
    if (each == events::G1::kIndex) {
      event.kind = EngineEventKind::kCleared;
    } else {
      event.kind = EngineEventKind::kRemoved;
      event.medium = medium_of(events::TierId(each));
      event.names.begin = static_cast<std::uint32_t>(batch_.names.size());
      for (const auto& [hash, block] : blocks)
        if ((block.tiers >> each & 1) != 0) batch_.names.push_back(block.name);
      event.names.count = static_cast<std::uint32_t>(batch_.names.size()) - event.names.begin;
      if (event.names.count == 0) continue;
    }
    batch_.events.push_back(event);
  }
}

void ZmqEventSink::add_run(std::span<const KvEvent> run, std::uint32_t block_size) {
  const KvEvent& first = run.front();
  if (first.kind == KvEventKind::kStored) {
    add_stores(run, block_size);
  } else if (first.kind == KvEventKind::kRemoved) {
    EngineEvent event;
    event.kind = EngineEventKind::kRemoved;
    event.medium = medium_of(first.tier);
    event.group = first.group;
    event.names = {.begin = static_cast<std::uint32_t>(batch_.names.size()),
                   .count = static_cast<std::uint32_t>(run.size())};
    for (const KvEvent& removed : run) batch_.names.push_back(removed.name());
    batch_.events.push_back(event);
  }
}

// Blocks with and without tokens do not share an event: there, the tokens cover all its blocks.
void ZmqEventSink::add_stores(std::span<const KvEvent> run, std::uint32_t block_size) {
  bool last_had_tokens = false;
  for (std::size_t i = 0; i < run.size(); ++i) {
    const KvEvent& stored = run[i];
    std::optional<std::vector<tokens::Token>> block_tokens;
    if (options_.tokens_of) block_tokens = options_.tokens_of(stored.hash);
    if (block_tokens && block_tokens->size() != block_size) block_tokens.reset();
    if (i == 0 || block_tokens.has_value() != last_had_tokens) {
      EngineEvent event;
      event.kind = EngineEventKind::kStored;
      event.medium = medium_of(stored.tier);
      event.group = stored.group;
      event.block_size = block_size;
      event.parent = parent_name(stored);
      event.names.begin = static_cast<std::uint32_t>(batch_.names.size());
      event.tokens.begin = static_cast<std::uint32_t>(batch_.tokens.size());
      event.extra_keys.begin = static_cast<std::uint32_t>(batch_.extra_keys.size());
      event.has_extra_keys = options_.salt_of != nullptr;
      std::string salt;
      if (event.has_extra_keys && !event.parent) salt = options_.salt_of(stored.hash);
      if (!salt.empty()) {
        batch_.extra_keys.push_back({.value = std::move(salt)});
        event.extra_keys.count = 1;
      }
      batch_.events.push_back(event);
    }
    EngineEvent& event = batch_.events.back();
    batch_.names.push_back(stored.name());
    ++event.names.count;
    if (event.has_extra_keys) event.extra_key_blocks = event.names.count;
    if (block_tokens) {
      batch_.tokens.insert(batch_.tokens.end(), block_tokens->begin(), block_tokens->end());
      event.tokens.count += block_size;
    }
    ASHLAR_DCHECK(event.tokens.count == (block_tokens ? event.names.count * block_size : 0),
                  "an event of %zu blocks has %zu tokens", std::size_t{event.names.count},
                  std::size_t{event.tokens.count});
    last_had_tokens = block_tokens.has_value();
    if (stored.has_name) names_[stored.hash] = stored.name();
  }
}

std::optional<events::BlockName> ZmqEventSink::parent_name(const KvEvent& event) const {
  const std::optional<tokens::SequenceHash> parent = event.parent();
  if (!parent) return std::nullopt;
  if (const auto found = names_.find(*parent); found != names_.end()) return found->second;
  if (const auto found = present_.find(*parent); found != present_.end()) return found->second.name;
  return events::BlockName(parent->chain());
}

}  // namespace ashlar::backend::zmq
