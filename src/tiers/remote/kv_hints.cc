#include "tiers/remote/kv_hints.h"

#include "events/json_reader.h"
#include "events/json_writer.h"

namespace ashlar::tiers {

using events::JsonReader;

namespace {

// A version as text or as a number.
bool read_version(JsonReader& in, std::string& out) {
  if (in.peek() == JsonReader::Type::kText) return in.read_text(out, "a version must be text or a number");
  std::uint64_t number = 0;
  if (!in.read_unsigned(number, UINT32_MAX, "a version must be text or a number")) return false;
  out = std::to_string(number);
  return true;
}

bool is_first_version(std::string_view version) {
  return version == "1" || version.starts_with("1.");
}

bool read_hashes(JsonReader& in, std::vector<std::uint64_t>& out) {
  bool more = false;
  if (!in.begin_array("block_hashes must be an array")) return false;
  while (in.next_item(more) && more) {
    if (out.size() == KvHint::kMaxHashes) return in.fail("block_hashes has more than 65536 items");
    std::uint64_t hash = 0;
    if (!in.read_bits(hash, "a block hash must be a 64-bit integer")) return false;
    out.push_back(hash);
  }
  return in.fault() == nullptr;
}

bool read_payload(JsonReader& in, KvHint& hint) {
  if (in.take_null()) return true;
  bool more = false;
  std::string key;
  if (!in.begin_object("payload must be an object")) return false;
  while (in.next_key(key, more) && more) {
    bool good = false;
    if (key == "source_control_endpoint") {
      good = in.read_text(hint.source, "source_control_endpoint must be text");
    } else if (key == "mode") {
      good = in.read_text(hint.mode, "mode must be text");
    } else if (key == "block_hashes") {
      good = read_hashes(in, hint.block_hashes);
    } else {
      good = in.skip();
    }
    if (!good) return false;
  }
  return in.fault() == nullptr;
}

bool read_action(JsonReader& in, KvHint& hint) {
  bool more = false;
  std::string key;
  if (!in.begin_object("an action must be an object")) return false;
  while (in.next_key(key, more) && more) {
    bool good = false;
    if (key == "action_id") {
      good = in.read_text(hint.action_id, "action_id must be text");
    } else if (key == "action_type") {
      good = in.read_text(hint.action_type, "action_type must be text");
    } else if (key == "action_version") {
      good = read_version(in, hint.version);
    } else if (key == "payload") {
      good = read_payload(in, hint);
    } else {
      good = in.skip();
    }
    if (!good) return false;
  }
  return in.fault() == nullptr;
}

std::string refusal_of(const KvHint& hint) {
  if (hint.action_type != "kv.fetch") return "this action is not executed here; kv.fetch is";
  if (!is_first_version(hint.version)) return "kv.fetch is executed in version 1.0";
  if (hint.mode != "copy" && !hint.mode.empty()) return "kv.fetch is executed in the mode copy";
  if (hint.source.empty()) return "kv.fetch names no source_control_endpoint";
  if (hint.block_hashes.empty()) return "kv.fetch names no block_hashes";
  return {};
}

}  // namespace

Result<std::vector<KvHint>> parse_hints(std::string_view envelope) {
  JsonReader in(envelope);
  std::vector<KvHint> hints;
  std::string version;
  std::string message;
  bool has_actions = false;
  const auto read = [&] {
    bool more = false;
    std::string key;
    if (!in.begin_object("an envelope of KV hints must be an object")) return false;
    while (in.next_key(key, more) && more) {
      if (key == "protocol_version") {
        if (!read_version(in, version)) return false;
      } else if (key == "message_id") {
        const bool is_text = in.peek() == JsonReader::Type::kText;
        if (is_text ? !in.read_text(message, "message_id must be text") : !in.skip()) return false;
      } else if (key == "actions") {
        has_actions = true;
        bool item = false;
        if (!in.begin_array("actions must be an array")) return false;
        while (in.next_item(item) && item) {
          if (hints.size() == KvHint::kMaxActions) return in.fail("an envelope has more than 1024 actions");
          if (!read_action(in, hints.emplace_back())) return false;
        }
        if (in.fault() != nullptr) return false;
      } else if (!in.skip()) {
        return false;
      }
    }
    return in.fault() == nullptr && (in.at_end() || in.fail("text follows the envelope"));
  };
  if (!read())
    return make_error(ErrorCode::kInvalidArgument, "not an envelope of KV hints: %s, at byte %zu",
                      in.fault() == nullptr ? "it ends early" : in.fault(), in.fault_offset());
  if (!has_actions)
    return make_error(ErrorCode::kInvalidArgument, "not an envelope of KV hints: it has no actions");
  if (!is_first_version(version))
    return make_error(ErrorCode::kUnsupported, "KV hints of protocol version \"%.32s\"; version 1 is read",
                      version.c_str());
  for (KvHint& hint : hints) {
    hint.message_id = message;
    hint.refusal = refusal_of(hint);
  }
  return hints;
}

std::string outcomes_to_json(std::span<const HintOutcome> outcomes) {
  constexpr std::string_view kNames[] = {"done", "clipped", "rejected"};
  std::string out = "{\"outcomes\":[";
  for (const HintOutcome& outcome : outcomes) {
    if (&outcome != outcomes.data()) out += ',';
    out += '{';
    if (!outcome.message_id.empty()) {
      out += "\"message_id\":";
      events::append_quoted(out, outcome.message_id);
      out += ',';
    }
    out += "\"action_id\":";
    events::append_quoted(out, outcome.action_id);
    out += ",\"action_type\":";
    events::append_quoted(out, outcome.action_type);
    out += ",\"outcome\":";
    events::append_quoted(out, kNames[static_cast<std::size_t>(outcome.kind)]);
    out += ",\"blocks_wanted\":";
    events::append_number(out, outcome.wanted);
    out += ",\"blocks_fetched\":";
    events::append_number(out, outcome.fetched);
    if (!outcome.reason.empty()) {
      out += ",\"reason\":";
      events::append_quoted(out, outcome.reason);
    }
    out += '}';
  }
  return out + "]}";
}

}  // namespace ashlar::tiers
