#include "ashlar/events/rolling_events.h"

#include <limits>
#include <utility>

#include "ashlar/events/event_codec.h"
#include "ashlar/tokens/engine_hash.h"
#include "ashlar/tokens/hash_scheme.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "events/json_reader.h"
#include "events/json_writer.h"

namespace ashlar::events {
namespace {

constexpr std::array<std::string_view, kStorageTiers> kMedia = {"gpu", "cpu", "disk", "external", "remote"};

class RollingDecoder {
 public:
  RollingDecoder(std::string_view json, RollingEvent& out) noexcept : in_(json), out_(out) {}
  const JsonReader& reader() const noexcept { return in_; }

  bool event() {
    bool typed = false;
    bool numbered = false;
    if (!in_.begin_object("an event must be an object")) return false;
    for (bool more = true;;) {
      if (!in_.next_key(key_, more)) return false;
      if (!more) break;
      if (key_ == "event_type") {
        if (!type()) return false;
        typed = true;
      } else if (key_ == "event_id") {
        if (!in_.read_unsigned(out_.event_id, UINT64_MAX, "event_id must be an integer of 64 bits"))
          return false;
        numbered = true;
      } else if (!field()) {
        return false;
      }
    }
    if (!typed) return in_.fail_at("an event without event_type", 0);
    if (!numbered) return in_.fail_at("an event without event_id", 0);
    if (!in_.at_end()) return in_.fail("more text after the event");
    return true;
  }

 private:
  bool type() {
    if (!in_.read_text(text_, "event_type must be text")) return false;
    for (const KvEventKind kind : {KvEventKind::kStored, KvEventKind::kRemoved, KvEventKind::kCleared}) {
      if (text_ != to_string(kind)) continue;
      out_.kind = kind;
      return true;
    }
    return in_.fail("event_type must be stored, removed or cleared");
  }

  bool field() {
    if (in_.take_null()) return true;
    if (key_ == "timestamp")
      return number(out_.timestamp_ms, "timestamp must be null or an integer of 64 bits");
    if (key_ == "model_name") return text(out_.source.model_name, "model_name must be null or text");
    if (key_ == "block_size")
      return number(out_.block_size, "block_size must be null or an integer of 32 bits");
    if (key_ == "additional_salt")
      return text(out_.source.additional_salt, "additional_salt must be null or text");
    if (key_ == "lora_name") return text(out_.source.lora_name, "lora_name must be null or text");
    if (key_ == "tenant_id") return in_.read_text(out_.source.tenant_id, "tenant_id must be text");
    if (key_ == "backend_id") return in_.read_text(out_.source.backend_id, "backend_id must be text");
    if (key_ == "medium") return text(out_.medium, "medium must be null or text");
    if (key_ == "dp_rank") return number(out_.rank, "dp_rank must be null or an integer of 32 bits");
    if (key_ == "base_block_idx")
      return number(out_.first_position, "base_block_idx must be null or an integer of 32 bits");
    if (key_ == "parent_hash") {
      std::uint64_t bits = 0;
      if (!in_.read_bits(bits, "parent_hash must be null or an integer of 64 bits")) return false;
      out_.parent = bits;
      return true;
    }
    if (key_ == "seq_hashes") {
      out_.hashes.clear();
      return numbers("seq_hashes must be an array", "a hash must be an integer of 64 bits", UINT64_MAX,
                     [this](std::uint64_t value) { out_.hashes.push_back(value); });
    }
    if (key_ == "token_ids") {
      out_.token_ids.emplace();
      return numbers(
          "token_ids must be null or an array", "a token id must be an integer of 32 bits", UINT32_MAX,
          [this](std::uint64_t value) { out_.token_ids->emplace_back(static_cast<std::uint32_t>(value)); });
    }
    return in_.skip();
  }

  template <class T>
  bool number(std::optional<T>& out, const char* what) {
    std::uint64_t value = 0;
    if (!in_.read_unsigned(value, std::numeric_limits<T>::max(), what)) return false;
    out = static_cast<T>(value);
    return true;
  }
  bool text(std::optional<std::string>& out, const char* what) { return in_.read_text(out.emplace(), what); }
  template <class F>
  bool numbers(const char* what, const char* item_what, std::uint64_t limit, F&& take) {
    if (!in_.begin_array(what)) return false;
    for (bool item = true;;) {
      if (!in_.next_item(item)) return false;
      if (!item) return true;
      std::uint64_t value = 0;
      if (!(limit == UINT64_MAX ? in_.read_bits(value, item_what)
                                : in_.read_unsigned(value, limit, item_what)))
        return false;
      take(value);
    }
  }

  JsonReader in_;
  RollingEvent& out_;
  std::string key_;
  std::string text_;
};

void append_text(std::string& out, const char* key, const std::optional<std::string>& value) {
  out += key;
  value ? append_quoted(out, *value) : void(out += "null");
}
template <class T>
void append_optional(std::string& out, const char* key, const std::optional<T>& value) {
  out += key;
  value ? append_number(out, *value) : void(out += "null");
}
template <class List, class F>
void append_list(std::string& out, const List& values, F&& value_of) {
  out += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i != 0) out += ',';
    append_number(out, value_of(values[i]));
  }
  out += ']';
}

Error no_rolling_form(const KvEvent& event, const char* why) {
  return make_error(ErrorCode::kUnsupported, "event %llu (%s) has no form in the KV Events API: %s",
                    static_cast<unsigned long long>(event.sequence),
                    std::string(to_string(event.kind)).c_str(), why);
}

Result<TierId> tier_of(const RollingEvent& event) {
  for (std::size_t i = 0; i < kMedia.size(); ++i)
    if (event.medium == kMedia[i]) return TierId(static_cast<std::uint8_t>(i));
  return make_error(ErrorCode::kUnsupported,
                    "event %llu: medium \"%.64s\"; known are gpu, cpu, disk, external and remote",
                    static_cast<unsigned long long>(event.event_id), event.medium.value_or("").c_str());
}

// The local hashes of the event's blocks if it has tokens; empty if it has none, or its hashes follow another
// rule.
Result<std::vector<tokens::BlockHashes>> locals_of(const RollingEvent& event) {
  std::vector<tokens::BlockHashes> found;
  if (!event.token_ids) return found;
  const std::uint32_t block_size = event.block_size.value_or(0);
  if (event.token_ids->size() != event.hashes.size() * std::uint64_t{block_size})
    return make_error(ErrorCode::kInvalidArgument, "event %llu: %zu tokens for %zu blocks of %u",
                      static_cast<unsigned long long>(event.event_id), event.token_ids->size(),
                      event.hashes.size(), block_size);
  if (event.hashes.empty()) return found;
  found.resize(event.hashes.size());
  std::optional<tokens::SequenceHash> parent;
  if (event.parent) parent = tokens::SequenceHash::root(*event.parent);
  ASHLAR_RETURN_IF_ERROR(tokens::SequenceHasher().hash_blocks(parent, *event.token_ids, block_size, found));
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].sequence.chain() == event.hashes[i]) continue;
    found.clear();
    break;
  }
  return found;
}

}  // namespace

void append_rolling_event(const RollingEvent& event, std::string& out) {
  out += "{\"event_id\":";
  append_number(out, event.event_id);
  append_optional(out, ",\"timestamp\":", event.timestamp_ms);
  out += ",\"event_type\":";
  append_quoted(out, to_string(event.kind));
  append_text(out, ",\"model_name\":", event.source.model_name);
  append_optional(out, ",\"block_size\":", event.block_size);
  append_text(out, ",\"additional_salt\":", event.source.additional_salt);
  append_text(out, ",\"lora_name\":", event.source.lora_name);
  out += ",\"tenant_id\":";
  append_quoted(out, event.source.tenant_id);
  out += ",\"backend_id\":";
  append_quoted(out, event.source.backend_id);
  append_text(out, ",\"medium\":", event.medium);
  append_optional(out, ",\"dp_rank\":", event.rank);
  if (event.kind != KvEventKind::kCleared) {
    out += ",\"seq_hashes\":";
    append_list(out, event.hashes, [](std::uint64_t hash) { return hash; });
    append_optional(out, ",\"base_block_idx\":", event.first_position);
  }
  if (event.kind == KvEventKind::kStored) {
    append_optional(out, ",\"parent_hash\":", event.parent);
    out += ",\"token_ids\":";
    if (event.token_ids) {
      append_list(out, *event.token_ids, [](tokens::Token token) { return token.value(); });
    } else {
      out += "null";
    }
  }
  out += '}';
}

Result<void> decode_rolling_event(std::string_view json, RollingEvent& out) {
  out = {};
  RollingDecoder decoder(json, out);
  if (decoder.event()) return {};
  out = {};
  return make_error(ErrorCode::kCorruption, "KV event: %s, at byte %zu of %zu", decoder.reader().fault(),
                    decoder.reader().fault_offset(), json.size());
}

Result<void> to_rolling_events(const EventBatch& batch, const RollingSource& source, RollingIds& ids,
                               std::vector<RollingEvent>& out) {
  if (batch.keys.scheme != 0 && batch.keys.scheme != tokens::HashScheme::xxh3_chain().fingerprint())
    return make_error(
        ErrorCode::kUnsupported,
        "blocks named by hash scheme %016llx; the KV Events API has names of the xxh3 chain only",
        static_cast<unsigned long long>(batch.keys.scheme));
  std::vector<RollingEvent> made;
  std::vector<std::size_t> tiers;
  for (std::span<const KvEvent> left = batch.events; !left.empty();) {
    const std::span<const KvEvent> run = left.first(run_length(left));
    left = left.subspan(run.size());
    const KvEvent& first = run.front();
    if (first.kind == KvEventKind::kAccess || first.group != 0) continue;
    if (first.kind == KvEventKind::kResync)
      return no_rolling_form(first, "events were lost; send a snapshot");
    const bool everywhere = first.kind == KvEventKind::kCleared && first.tier == kAllTiers;
    if (!everywhere && first.tier.value() >= kMedia.size())
      return no_rolling_form(first, "its tier has no medium");
    RollingEvent event{.source = source, .kind = first.kind, .rank = batch.stream.worker.rank};
    if (batch.published_ns > 0)
      event.timestamp_ms = static_cast<std::uint64_t>(batch.published_ns) / 1'000'000;
    if (batch.keys.block_size != 0) event.block_size = batch.keys.block_size;
    if (first.kind != KvEventKind::kCleared) {
      for (const KvEvent& block : run) {
        if (block.hash.is_keyed()) return no_rolling_form(block, "its name is keyed");
        if (block.has_name && block.name_bits != block.hash.chain())
          return no_rolling_form(block, "it has a name of its own");
        event.hashes.push_back(block.hash.chain());
      }
      // Removed blocks of one run may stand in any order.
      if (first.kind == KvEventKind::kStored || run.size() == 1) event.first_position = first.hash.position();
      if (first.kind == KvEventKind::kStored && first.has_parent) event.parent = first.parent_bits.chain();
    }
    for (std::size_t tier = 0; tier < kMedia.size(); ++tier) {
      if (!everywhere && tier != first.tier.value()) continue;
      event.medium = kMedia[tier];
      made.push_back(event);
      tiers.push_back(tier);
    }
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i].event_id = ids[tiers[i]]++;
    out.push_back(std::move(made[i]));
  }
  return {};
}

Result<void> append_kv_events(const RollingEvent& event, std::vector<KvEvent>& out) {
  ASHLAR_TRY(const TierId tier, tier_of(event));
  KvEvent record;
  record.kind = event.kind;
  record.tier = tier;
  if (event.kind == KvEventKind::kCleared) {
    out.push_back(record);
    return {};
  }
  if (event.kind == KvEventKind::kRemoved) {
    for (const std::uint64_t hash : event.hashes) {
      record.hash = tokens::SequenceHash::root(hash);
      out.push_back(record);
    }
    return {};
  }
  if (event.hashes.empty()) return {};
  if (!event.first_position)
    return make_error(ErrorCode::kUnsupported,
                      "event %llu: no base_block_idx; where its blocks stand is not known",
                      static_cast<unsigned long long>(event.event_id));
  std::uint64_t position = *event.first_position;
  if ((position != 0) != event.parent.has_value())
    return make_error(ErrorCode::kInvalidArgument, "event %llu: base_block_idx %llu %s a parent",
                      static_cast<unsigned long long>(event.event_id),
                      static_cast<unsigned long long>(position), event.parent ? "with" : "without");
  ASHLAR_TRY(const std::vector<tokens::BlockHashes> locals, locals_of(event));
  if (position + event.hashes.size() - 1 > tokens::SequenceHash::kMaxPosition)
    return make_error(ErrorCode::kInvalidArgument,
                      "event %llu: %zu blocks from position %llu; the last is %u",
                      static_cast<unsigned long long>(event.event_id), event.hashes.size(),
                      static_cast<unsigned long long>(position), tokens::SequenceHash::kMaxPosition);
  std::uint64_t parent = event.parent.value_or(0);
  if (event.parent) record.set_parent(tokens::SequenceHash::make(position - 1, parent, 0).value());
  for (std::size_t i = 0; i < event.hashes.size(); ++i) {
    record.hash = tokens::SequenceHash::make(position++, event.hashes[i], parent).value();
    if (!locals.empty()) record.set_local(locals[i].local);
    out.push_back(record);
    parent = event.hashes[i];
    record.set_parent(record.hash);
  }
  return {};
}

Result<std::vector<std::uint64_t>> rolling_hashes(std::span<const tokens::Token> tokens,
                                                  std::uint32_t block_size, std::uint64_t seed,
                                                  const std::optional<std::uint64_t>& parent) {
  ASHLAR_RETURN_IF_ERROR(tokens::validate_block_size(block_size));
  std::vector<std::uint64_t> hashes;
  if (seed == tokens::Salt::kBaseSeed) {
    std::optional<tokens::SequenceHash> before;
    if (parent) before = tokens::SequenceHash::root(*parent);
    std::vector<tokens::BlockHashes> blocks(tokens.size() / block_size);
    ASHLAR_RETURN_IF_ERROR(tokens::SequenceHasher().hash_blocks(before, tokens, block_size, blocks));
    for (const tokens::BlockHashes& block : blocks) hashes.push_back(block.sequence.chain());
    return hashes;
  }
  std::optional<std::uint64_t> previous = parent;
  for (; tokens.size() >= block_size; tokens = tokens.subspan(block_size)) {
    const std::uint64_t local = tokens::router_local_hash(tokens.first(block_size), {}, seed).value();
    if (previous) {
      // Two hashes in little-endian order are the bytes of four tokens.
      const auto half = [](std::uint64_t value, int shift) {
        return tokens::Token(static_cast<std::uint32_t>(value >> shift));
      };
      const std::array<tokens::Token, 4> pair = {half(*previous, 0), half(*previous, 32), half(local, 0),
                                                 half(local, 32)};
      previous = tokens::router_local_hash(pair, {}, seed).value();
    } else {
      previous = local;
    }
    hashes.push_back(*previous);
  }
  return hashes;
}

}  // namespace ashlar::events
