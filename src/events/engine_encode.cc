// encode_engine_batch(): the encoding of vLLM 0.32. Fields stand in the order of their declaration; those
// without a default are always present, the others only with a value. Integers have their shortest form, the
// timestamp is a float.
#include <algorithm>

#include "ashlar/events/engine_codec.h"
#include "events/engine_fields.h"
#include "events/msgpack_writer.h"

namespace ashlar::events {
namespace {

// The keys of the map form: the positions of the array form, and for kStored two more.
constexpr EngineField kMapOnly[] = {EngineField::kSessionId, EngineField::kCacheSalt};

std::span<const EngineField> map_only(EngineEventKind kind) noexcept {
  return kind == EngineEventKind::kStored ? std::span<const EngineField>(kMapOnly)
                                          : std::span<const EngineField>();
}

// Whether vLLM writes the field even without a value.
bool is_required(EngineField field) noexcept {
  return field <= EngineField::kLoraName;
}

class Encoder {
 public:
  Encoder(const EngineBatch& batch, std::vector<std::byte>& out) noexcept : batch_(batch), out_(out) {}

  void batch(EngineForm form) {
    out_.array(3);
    out_.number(batch_.timestamp);
    out_.array(batch_.events.size());
    for (const EngineEvent& event : batch_.events) {
      if (event.kind == EngineEventKind::kUnknown) {
        if (event.raw.empty()) {
          out_.array(1);
          out_.text(event.tag);
        } else {
          out_.raw(event.raw);
        }
      } else if (form == EngineForm::kMap) {
        map_event(event);
      } else {
        array_event(event);
      }
    }
    optional(batch_.rank);
  }

 private:
  void map_event(const EngineEvent& event) {
    std::size_t count = 1;
    for (const auto fields : {places_of(event.kind), map_only(event.kind)})
      for (const EngineField field : fields) count += is_required(field) || has(field, event) ? 1 : 0;
    out_.map(count);
    out_.text(key_of(EngineField::kType));
    out_.text(kEngineTags[static_cast<std::size_t>(event.kind)]);
    for (const auto fields : {places_of(event.kind), map_only(event.kind)}) {
      for (const EngineField field : fields) {
        if (!is_required(field) && !has(field, event)) continue;
        out_.text(key_of(field));
        value(field, event);
      }
    }
  }

  void array_event(const EngineEvent& event) {
    const std::span<const EngineField> places = places_of(event.kind);
    std::size_t count = places.size();
    while (count > 0 && !is_required(places[count - 1]) && !has(places[count - 1], event)) --count;
    out_.array(1 + count);
    out_.text(kEngineTags[static_cast<std::size_t>(event.kind)]);
    for (const EngineField field : places.first(count)) value(field, event);
  }

  static bool has(EngineField field, const EngineEvent& event) noexcept {
    switch (field) {
      case EngineField::kExtraKeys:
        return event.has_extra_keys;
      case EngineField::kGroup:
        return event.group.has_value();
      case EngineField::kSlidingWindow:
        return event.sliding_window.has_value();
      case EngineField::kSpecKind:
        return event.spec_kind.data() != nullptr;
      case EngineField::kLocality:
        return event.locality.data() != nullptr;
      case EngineField::kOwnership:
        return event.ownership.data() != nullptr;
      case EngineField::kSessionId:
        return event.session_id.data() != nullptr;
      case EngineField::kCacheSalt:
        return event.cache_salt.data() != nullptr;
      default:
        return true;
    }
  }

  void value(EngineField field, const EngineEvent& event) {
    switch (field) {
      case EngineField::kBlockHashes:
        out_.array(event.names.count);
        for (std::uint32_t i = 0; i < event.names.count; ++i) name(event, batch_.names_of(event)[i], i);
        return;
      case EngineField::kParent:
        return event.parent ? name(event, *event.parent, event.names.count) : out_.nil();
      case EngineField::kTokenIds:
        return token_ids(event);
      case EngineField::kBlockSize:
        return out_.unsigned_integer(event.block_size);
      case EngineField::kLoraId:
        return event.lora_id ? out_.integer(*event.lora_id) : out_.nil();
      case EngineField::kMedium:
        return text(event.medium);
      case EngineField::kLoraName:
        return text(event.lora_name);
      case EngineField::kExtraKeys:
        return extra_keys(event);
      case EngineField::kGroup:
        return optional(event.group);
      case EngineField::kSpecKind:
        return text(event.spec_kind);
      case EngineField::kSlidingWindow:
        return optional(event.sliding_window);
      case EngineField::kLocality:
        return text(event.locality);
      case EngineField::kOwnership:
        return text(event.ownership);
      case EngineField::kSessionId:
        return text(event.session_id);
      case EngineField::kCacheSalt:
        return text(event.cache_salt);
      case EngineField::kType:
      case EngineField::kUnknown:
        return out_.nil();
    }
  }

  void name(const EngineEvent& event, BlockName name, std::uint32_t index) {
    const std::span<const std::byte> digest = batch_.digest_of(event, index);
    if (digest.empty()) return out_.unsigned_integer(name.value());
    out_.bytes(digest);
  }

  void token_ids(const EngineEvent& event) {
    const std::span<const tokens::Token> tokens = batch_.tokens_of(event);
    out_.array(event.token_pairs ? tokens.size() / 2 : tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (event.token_pairs && i % 2 == 0) out_.array(2);
      out_.unsigned_integer(tokens[i].value());
    }
  }

  void extra_keys(const EngineEvent& event) {
    if (!event.has_extra_keys) return out_.nil();
    std::span<const EngineExtraKey> keys = batch_.extra_keys_of(event);
    out_.array(event.extra_key_blocks);
    for (std::uint32_t block = 0; block < event.extra_key_blocks; ++block) {
      const auto other =
          std::ranges::find_if(keys, [block](const EngineExtraKey& key) { return key.block != block; });
      const auto own = keys.first(static_cast<std::size_t>(other - keys.begin()));
      keys = keys.subspan(own.size());
      if (own.empty()) {
        out_.nil();
        continue;
      }
      out_.array(own.size());
      for (const EngineExtraKey& key : own) extra_key(key);
    }
  }

  void extra_key(const EngineExtraKey& key) {
    const auto bytes = std::as_bytes(std::span(key.value));
    switch (key.kind) {
      case EngineExtraKey::Kind::kText:
        return out_.text(key.value);
      case EngineExtraKey::Kind::kBytes:
        return out_.bytes(bytes);
      case EngineExtraKey::Kind::kOther:
        return out_.raw(bytes);
      case EngineExtraKey::Kind::kMultimodal:
        out_.array(2);
        out_.text(key.value);
        return out_.integer(key.offset);
    }
  }

  void text(std::string_view value) { return value.data() == nullptr ? out_.nil() : out_.text(value); }
  void optional(const std::optional<std::uint32_t>& value) {
    return value ? out_.unsigned_integer(*value) : out_.nil();
  }

  const EngineBatch& batch_;
  MsgpackWriter out_;
};

}  // namespace

void encode_engine_batch(const EngineBatch& batch, std::vector<std::byte>& out, EngineForm form) {
  out.clear();
  Encoder(batch, out).batch(form);
}

}  // namespace ashlar::events
