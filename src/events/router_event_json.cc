#include "ashlar/events/router_event_json.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "ashlar/events/event_codec.h"
#include "events/dump_check.h"
#include "events/json_reader.h"
#include "events/json_writer.h"

namespace ashlar::events {
namespace {

constexpr std::array<std::string_view, kStorageTiers> kTierNames = {"device", "host_pinned", "disk",
                                                                    "external", "remote"};

class RouterDecoder {
 public:
  RouterDecoder(JsonReader& in, RouterEvent& out) noexcept : in_(in), out_(out) {}

  bool event() {
    bool identified = false;
    bool told = false;
    const std::size_t start = in_.offset();
    if (!in_.begin_object("a router event must be an object")) return false;
    for (bool more = true;;) {
      if (!in_.next_key(key_, more)) return false;
      if (!more) break;
      if (key_ == "worker_id") {
        std::uint64_t id = 0;
        if (!in_.read_unsigned(id, UINT64_MAX, "worker_id must be an integer of 64 bits")) return false;
        out_.worker.id = WorkerId(id);
        identified = true;
      } else if (key_ == "storage_tier") {
        if (!in_.read_text(text_, "storage_tier must be text")) return false;
        if (!tier()) return false;
      } else if (key_ == "residency_domain") {
        if (!in_.read_text(out_.residency_domain, "residency_domain must be text")) return false;
      } else if (key_ == "event") {
        if (!cache_event()) return false;
        told = true;
      } else if (!in_.skip()) {
        return false;
      }
    }
    if (!identified) return in_.fail_at("a router event without worker_id", start);
    if (!told) return in_.fail_at("a router event without event", start);
    return true;
  }

  bool unknown_tier() const noexcept { return unknown_tier_; }
  const std::string& text() const noexcept { return text_; }

 private:
  bool tier() {
    for (std::size_t i = 0; i < kTierNames.size(); ++i) {
      if (text_ != kTierNames[i]) continue;
      out_.tier = TierId(static_cast<std::uint8_t>(i));
      return true;
    }
    unknown_tier_ = true;
    return in_.fail("a storage tier that is not known");
  }

  bool cache_event() {
    bool told = false;
    const std::size_t start = in_.offset();
    if (!in_.begin_object("event must be an object")) return false;
    for (bool more = true;;) {
      if (!in_.next_key(key_, more)) return false;
      if (!more) break;
      if (key_ == "event_id") {
        if (!in_.read_unsigned(out_.event_id, UINT64_MAX, "event_id must be an integer of 64 bits"))
          return false;
      } else if (key_ == "dp_rank") {
        std::uint64_t rank = 0;
        if (in_.take_null()) continue;
        if (!in_.read_unsigned(rank, UINT32_MAX, "dp_rank must be an integer of 32 bits")) return false;
        out_.worker.rank = static_cast<std::uint32_t>(rank);
      } else if (key_ == "data") {
        if (!data()) return false;
        told = true;
      } else if (!in_.skip()) {
        return false;
      }
    }
    return told || in_.fail_at("an event without data", start);
  }

  bool data() {
    if (in_.peek() == JsonReader::Type::kText) {
      const std::size_t start = in_.offset();
      if (!in_.read_text(text_, "")) return false;
      out_.kind = KvEventKind::kCleared;
      return text_ == "cleared" || in_.fail_at("data must be stored, removed or cleared", start);
    }
    bool more = false;
    if (!in_.begin_object("data must be an object or \"cleared\"")) return false;
    if (!in_.next_key(key_, more)) return false;
    const bool stored_here = more && key_ == "stored";
    if (!stored_here && !(more && key_ == "removed"))
      return in_.fail("data must be stored, removed or cleared");
    if (stored_here ? !stored() : !removed()) return false;
    if (!in_.next_key(key_, more)) return false;
    return !more || in_.fail("data must be one thing");
  }

  bool stored() {
    out_.kind = KvEventKind::kStored;
    if (!in_.begin_object("stored must be an object")) return false;
    for (bool more = true;;) {
      if (!in_.next_key(key_, more)) return false;
      if (!more) return true;
      if (key_ == "parent_hash") {
        std::uint64_t parent = 0;
        if (in_.take_null()) continue;
        if (!in_.read_bits(parent, "parent_hash must be null or an integer of 64 bits")) return false;
        out_.parent = BlockName(parent);
      } else if (key_ == "start_position") {
        std::uint64_t position = 0;
        if (in_.take_null()) continue;
        if (!in_.read_unsigned(position, UINT32_MAX, "start_position must be null or an integer of 32 bits"))
          return false;
        out_.start_position = static_cast<std::uint32_t>(position);
      } else if (key_ == "blocks") {
        if (!blocks()) return false;
      } else if (!in_.skip()) {
        return false;
      }
    }
  }

  bool blocks() {
    out_.blocks.clear();
    if (!in_.begin_array("blocks must be an array")) return false;
    for (bool item = true;;) {
      if (!in_.next_item(item)) return false;
      if (!item) return true;
      const std::size_t start = in_.offset();
      std::optional<std::uint64_t> name;
      std::optional<std::uint64_t> local;
      if (!in_.begin_object("a block must be an object")) return false;
      for (bool more = true;;) {
        if (!in_.next_key(key_, more)) return false;
        if (!more) break;
        std::uint64_t bits = 0;
        if (key_ == "block_hash") {
          if (!in_.read_bits(bits, "block_hash must be an integer of 64 bits")) return false;
          name = bits;
        } else if (key_ == "tokens_hash") {
          if (!in_.read_bits(bits, "tokens_hash must be an integer of 64 bits")) return false;
          local = bits;
        } else if (!in_.skip()) {
          return false;
        }
      }
      if (!name || !local) return in_.fail_at("a block without block_hash and tokens_hash", start);
      out_.blocks.push_back({tokens::LocalHash(*local), BlockName(*name)});
    }
  }

  bool removed() {
    out_.kind = KvEventKind::kRemoved;
    if (!in_.begin_object("removed must be an object")) return false;
    for (bool more = true;;) {
      if (!in_.next_key(key_, more)) return false;
      if (!more) return true;
      if (key_ != "block_hashes") {
        if (!in_.skip()) return false;
        continue;
      }
      out_.removed.clear();
      if (!in_.begin_array("block_hashes must be an array")) return false;
      for (bool item = true;;) {
        if (!in_.next_item(item)) return false;
        if (!item) break;
        std::uint64_t bits = 0;
        if (!in_.read_bits(bits, "a block hash must be an integer of 64 bits")) return false;
        out_.removed.emplace_back(bits);
      }
    }
  }

  JsonReader& in_;
  RouterEvent& out_;
  std::string key_;
  std::string text_;
  bool unknown_tier_ = false;
};

Error fault_of(const JsonReader& in, const RouterDecoder& decoder, std::string_view json, const char* what) {
  if (decoder.unknown_tier())
    return make_error(ErrorCode::kUnsupported,
                      "%s: storage tier \"%.64s\"; known are device, host_pinned, disk, external and remote",
                      what, decoder.text().c_str());
  return make_error(ErrorCode::kCorruption, "%s: %s, at byte %zu of %zu", what, in.fault(), in.fault_offset(),
                    json.size());
}

Error no_router_form(const KvEvent& event, const char* why) {
  return make_error(ErrorCode::kUnsupported, "event %llu (%s) has no form for routers: %s",
                    static_cast<unsigned long long>(event.sequence),
                    std::string(to_string(event.kind)).c_str(), why);
}

// The name of a stored block's parent, given the names of the blocks stored before it in the batch.
using OwnNames = std::unordered_map<tokens::SequenceHash, BlockName>;
Result<std::optional<BlockName>> parent_name(const KvEvent& event, const OwnNames& own) {
  if (!event.has_parent) return std::optional<BlockName>();
  if (!event.has_name) return std::optional(BlockName(event.parent_bits.chain()));
  if (const auto found = own.find(event.parent_bits); found != own.end()) return std::optional(found->second);
  return no_router_form(event, "the own name of its parent is not in the batch");
}

}  // namespace

void append_router_event(const RouterEvent& event, std::string& out) {
  ASHLAR_CHECK(event.tier.value() < kTierNames.size(), "a router event of a tier that routers do not know");
  out += "{\"worker_id\":";
  append_number(out, event.worker.id.value());
  out += ",\"storage_tier\":";
  append_quoted(out, kTierNames[event.tier.value()]);
  out += ",\"residency_domain\":";
  append_quoted(out, event.residency_domain);
  out += ",\"event\":{\"event_id\":";
  append_number(out, event.event_id);
  out += ",\"data\":";
  if (event.kind == KvEventKind::kStored) {
    out += "{\"stored\":{\"parent_hash\":";
    event.parent ? append_number(out, event.parent->value()) : void(out += "null");
    out += ",\"start_position\":";
    event.start_position ? append_number(out, *event.start_position) : void(out += "null");
    out += ",\"blocks\":[";
    for (std::size_t i = 0; i < event.blocks.size(); ++i) {
      out += i == 0 ? "{\"block_hash\":" : ",{\"block_hash\":";
      append_number(out, event.blocks[i].name.value());
      out += ",\"tokens_hash\":";
      append_number(out, event.blocks[i].local.value());
      out += ",\"mm_extra_info\":null}";
    }
    out += "]}}";
  } else if (event.kind == KvEventKind::kRemoved) {
    out += "{\"removed\":{\"block_hashes\":[";
    for (std::size_t i = 0; i < event.removed.size(); ++i) {
      if (i != 0) out += ',';
      append_number(out, event.removed[i].value());
    }
    out += "]}}";
  } else {
    ASHLAR_CHECK(event.kind == KvEventKind::kCleared, "a router event of a kind that routers do not know");
    out += "\"cleared\"";
  }
  out += ",\"dp_rank\":";
  append_number(out, event.worker.rank);
  out += "}}";
}

Result<void> decode_router_event(std::string_view json, RouterEvent& out) {
  out = {};
  JsonReader in(json);
  RouterDecoder decoder(in, out);
  if (decoder.event() && (in.at_end() || in.fail("more text after the event"))) return {};
  out = {};
  return fault_of(in, decoder, json, "router event");
}

Result<void> to_router_events(const EventBatch& batch, std::uint64_t& next_id,
                              std::vector<RouterEvent>& out) {
  OwnNames own;
  std::vector<RouterEvent> made;
  for (std::span<const KvEvent> left = batch.events; !left.empty();) {
    const std::span<const KvEvent> run = left.first(run_length(left));
    left = left.subspan(run.size());
    const KvEvent& first = run.front();
    if (first.kind == KvEventKind::kAccess || first.group != 0) continue;
    if (first.kind == KvEventKind::kResync) return no_router_form(first, "events were lost; send a snapshot");
    const bool clears = first.kind == KvEventKind::kCleared;
    if (clears && first.tier != kAllTiers) return no_router_form(first, "routers clear all tiers at once");
    if (!clears && first.tier.value() >= kTierNames.size())
      return no_router_form(first, "routers do not know its tier");
    RouterEvent event{
        .worker = batch.stream.worker, .tier = clears ? TierId(0) : first.tier, .kind = first.kind};
    if (first.kind == KvEventKind::kStored) {
      ASHLAR_TRY(event.parent, parent_name(first, own));
      event.start_position = first.hash.position();
      for (const KvEvent& block : run) {
        if (!block.has_local) return no_router_form(block, "it has no local hash");
        if (block.has_name) own[block.hash] = block.name();
        event.blocks.push_back({*block.local(), block.name()});
      }
    } else if (first.kind == KvEventKind::kRemoved) {
      for (const KvEvent& block : run) event.removed.push_back(block.name());
    }
    made.push_back(std::move(event));
  }
  for (RouterEvent& event : made) {
    event.event_id = next_id++;
    out.push_back(std::move(event));
  }
  return {};
}

Result<void> append_kv_events(const RouterEvent& event, std::vector<KvEvent>& out) {
  const std::size_t before = out.size();
  KvEvent record;
  record.kind = event.kind;
  record.tier = event.kind == KvEventKind::kCleared ? kAllTiers : event.tier;
  if (event.kind == KvEventKind::kCleared) out.push_back(record);
  for (const BlockName name : event.removed) {
    record.hash = tokens::SequenceHash::root(name.value());
    out.push_back(record);
  }
  if (event.blocks.empty()) return {};
  if (event.parent && !event.start_position)
    return make_error(ErrorCode::kUnsupported,
                      "router event %llu: a parent without start_position; an index can take it",
                      static_cast<unsigned long long>(event.event_id));
  std::uint64_t position = event.start_position.value_or(0);
  if ((position != 0) != event.parent.has_value())
    return make_error(ErrorCode::kInvalidArgument, "router event %llu: start_position %llu %s a parent",
                      static_cast<unsigned long long>(event.event_id),
                      static_cast<unsigned long long>(position), event.parent ? "with" : "without");
  std::uint64_t parent = event.parent ? event.parent->value() : 0;
  if (event.parent) {
    ASHLAR_TRY(const tokens::SequenceHash hash, tokens::SequenceHash::make(position - 1, parent, 0));
    record.set_parent(hash);
  }
  for (const StoredBlock& block : event.blocks) {
    const Result<tokens::SequenceHash> hash =
        tokens::SequenceHash::make(position++, block.name.value(), parent);
    if (!hash) {
      out.resize(before);
      return hash.error();
    }
    record.hash = *hash;
    record.set_local(block.local);
    out.push_back(record);
    parent = block.name.value();
    record.set_parent(*hash);
  }
  return {};
}

// --- The dump of an index. ---

RouterDumpWriter::RouterDumpWriter(std::string_view key, std::uint32_t block_size) {
  out_ = "{";
  append_quoted(out_, key);
  out_ += ":{\"block_size\":";
  append_number(out_, block_size);
  out_ += ",\"events\":[";
}

void RouterDumpWriter::append(RouterEvent event) {
  if (error_) return;
  if (event.tier.value() >= kTierNames.size()) {
    error_ = make_error(ErrorCode::kUnsupported, "a dump for routers cannot have tier %u; they know %zu",
                        unsigned{event.tier.value()}, kTierNames.size());
    return;
  }
  if (!next_ids_.empty()) out_ += ',';
  event.event_id = next_ids_[event.worker]++;
  append_router_event(event, out_);
}

StoreVerdict RouterDumpWriter::store(const BlocksStored& event) {
  append({.worker = event.worker,
          .tier = TierId(static_cast<std::uint8_t>(event.tier)),
          .parent = event.parent,
          .start_position = event.start_position,
          .blocks = {event.blocks.begin(), event.blocks.end()}});
  return error_ ? StoreVerdict::kFull : StoreVerdict::kApplied;
}

std::size_t RouterDumpWriter::remove(const Worker& worker, StorageTier tier,
                                     std::span<const BlockName> names) {
  append({.worker = worker,
          .tier = TierId(static_cast<std::uint8_t>(tier)),
          .kind = KvEventKind::kRemoved,
          .removed = {names.begin(), names.end()}});
  return names.size();
}

void RouterDumpWriter::clear(const Worker& worker) {
  append({.worker = worker, .kind = KvEventKind::kCleared});
}

void RouterDumpWriter::remove_worker(WorkerId worker) {
  if (!error_)
    error_ = make_error(ErrorCode::kUnsupported, "a dump removes no workers; this one removes worker %llu",
                        static_cast<unsigned long long>(worker.value()));
}

Result<std::string> RouterDumpWriter::finish() && {
  if (error_) return *error_;
  out_ += "]}}";
  return std::move(out_);
}

namespace {

template <class Calls>
Result<void> make_call(const RouterEvent& event, Calls& calls) {
  const auto tier = static_cast<StorageTier>(event.tier.value());
  if (event.kind == KvEventKind::kCleared) return calls.clear(event.worker);
  if (event.kind == KvEventKind::kRemoved) return calls.remove(event.worker, tier, event.removed);
  return calls.store({.worker = event.worker,
                      .tier = tier,
                      .parent = event.parent,
                      .start_position = event.start_position,
                      .blocks = event.blocks});
}

// Makes the calls of the chosen index of a dump. Sets `block_size`.
template <class Calls>
Result<void> make_router_calls(std::string_view json, std::string_view key, Calls& calls,
                               std::uint32_t& block_size) {
  JsonReader in(json);
  RouterEvent event;
  RouterDecoder decoder(in, event);
  std::string word;
  std::size_t keys = 0;
  bool is_found = false;
  const auto fault = [&] { return fault_of(in, decoder, json, "router dump"); };
  if (!in.begin_object("a dump must be an object")) return fault();
  for (bool more = true;;) {
    if (!in.next_key(word, more)) return fault();
    if (!more) break;
    ++keys;
    if (key.empty() ? keys > 1 : word != key) {
      if (!in.skip()) return fault();
      continue;
    }
    if (is_found && !in.fail("the same key twice")) return fault();
    is_found = true;
    if (!in.begin_object("the dump of an index must be an object")) return fault();
    bool has_events = false;
    for (bool field = true;;) {
      if (!in.next_key(word, field)) return fault();
      if (!field) break;
      if (word == "block_size") {
        std::uint64_t tokens = 0;
        if (!in.read_unsigned(tokens, UINT32_MAX, "block_size must be an integer of 32 bits")) return fault();
        block_size = static_cast<std::uint32_t>(tokens);
      } else if (word == "events") {
        if (has_events && !in.fail("events twice")) return fault();
        has_events = true;
        if (!in.begin_array("events must be an array")) return fault();
        for (bool item = true;;) {
          if (!in.next_item(item)) return fault();
          if (!item) break;
          const std::size_t at = in.offset();
          event = {};
          if (!decoder.event()) return fault();
          if (const Result<void> made = make_call(event, calls); !made)
            return make_error(made.error().code(), "router dump: %s; the event at byte %zu of %zu",
                              made.error().message().c_str(), at, json.size());
        }
      } else if (!in.skip()) {
        return fault();
      }
    }
    if (!has_events && !in.fail("an index without events")) return fault();
  }
  if (!in.at_end() && !in.fail("more text after the dump")) return fault();
  if (!key.empty() && !is_found)
    return make_error(ErrorCode::kNotFound, "the dump has %zu indexes, none of the key \"%.*s\"", keys,
                      static_cast<int>(std::min<std::size_t>(key.size(), 64)), key.data());
  if (key.empty() && keys != 1)
    return make_error(ErrorCode::kNotFound, "the dump has %zu indexes; name the key of one", keys);
  return {};
}

}  // namespace

Result<DumpCounts> read_router_dump(std::string_view json, IndexSink& into, std::string_view key) {
  DumpCheck check;
  std::uint32_t block_size = 0;
  ASHLAR_RETURN_IF_ERROR(make_router_calls(json, key, check, block_size));
  DumpCounts counts = check.counts();
  counts.block_size = block_size;
  DumpApply apply(into);
  Result<void> made = make_router_calls(json, key, apply, block_size);
  if (made) made = check.confirm(into);
  if (made) return counts;
  apply.undo();
  return made.error();
}

}  // namespace ashlar::events
