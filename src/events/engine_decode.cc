// decode_engine_batch(): one pass over the bytes, field by field.
//
// A map is read in the order of its keys; only its tag must be known first, and a map that does not begin
// with the tag is scanned for it. A parent's digest may precede those of the names, so it is kept until the
// event ends.
//
// A growing array counts twice while it moves. So before it grows, the current size of all arrays plus its
// new size must fit the limit.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ashlar/events/engine_codec.h"
#include "events/engine_fields.h"
#include "events/msgpack_reader.h"
#include "events/token_run.h"

namespace ashlar::events {
namespace {

constexpr std::size_t kMinDigest = 8;
constexpr std::size_t kMaxDigest = 64;
constexpr std::size_t kTextOverhead = 16;  // of a heap-allocated string

// Whether `kSize` bytes are the same. Words that overlap at the end: a call of memcmp() takes longer.
template <std::size_t kSize>
bool are_same(const void* a, const void* b) noexcept {
  using Word = std::conditional_t<kSize >= 8, std::uint64_t, std::uint32_t>;
  static_assert(kSize >= sizeof(Word));
  const auto differ = [&](std::size_t at) {
    Word one = 0;
    Word other = 0;
    std::memcpy(&one, static_cast<const char*>(a) + at, sizeof(Word));
    std::memcpy(&other, static_cast<const char*>(b) + at, sizeof(Word));
    return one ^ other;
  };
  Word differs = differ(kSize - sizeof(Word));
  for (std::size_t at = 0; at + sizeof(Word) < kSize; at += sizeof(Word)) differs |= differ(at);
  return differs == 0;
}

class EngineDecoder {
 public:
  EngineDecoder(std::span<const std::byte> payload, EngineBatch& out, std::size_t max_bytes) noexcept
      : in_(payload), out_(out), max_bytes_(max_bytes) {}

  bool batch();
  const MsgpackReader& reader() const noexcept { return in_; }
  // Decoding failed because the batch would take too much memory.
  bool is_too_large() const noexcept { return is_too_large_; }

 private:
  std::size_t memory() const noexcept {
    return out_.events.capacity() * sizeof(EngineEvent) + out_.names.capacity() * sizeof(BlockName) +
           out_.digests.capacity() + out_.tokens.capacity() * sizeof(tokens::Token) +
           out_.extra_keys.capacity() * sizeof(EngineExtraKey) + texts_;
  }
  bool has_room(std::size_t bytes) {
    const std::size_t used = memory();
    if (used <= max_bytes_ && bytes <= max_bytes_ - used) return true;
    is_too_large_ = true;
    return in_.fail("the batch takes too much memory");
  }
  // Room for `more` in one of the arrays of the batch.
  template <class T>
  bool grow(std::vector<T>& array, std::size_t more) {
    const std::size_t needed = array.size() + more;
    if (needed <= array.capacity()) return true;
    const std::size_t used = memory();
    const std::size_t most = used < max_bytes_ ? (max_bytes_ - used) / sizeof(T) : 0;
    const std::size_t wanted = std::max(needed, 2 * array.capacity());
    if (needed > most) return has_room(needed * sizeof(T));
    array.reserve(std::min(wanted, most));
    return true;
  }
  // The bytes of an extra key, heap-allocated when long.
  bool take_text(std::size_t bytes) {
    if (!has_room(bytes + kTextOverhead) || !grow(out_.extra_keys, 1)) return false;
    texts_ += bytes + kTextOverhead;
    return true;
  }
  bool event();
  bool map_event(EngineEvent& event);
  bool array_event(EngineEvent& event);
  // Skips the field's key. False, with nothing skipped, if another one comes.
  template <EngineField kField>
  bool take_key() noexcept;
  // Reads such fields as come next, in the order in which vLLM sends them; `left`: keys of the event.
  bool usual_fields(EngineEvent& event, std::uint32_t& left);
  bool field(EngineField field, EngineEvent& event);
  bool names(EngineEvent& event);
  std::uint32_t long_integers(BlockName* to, std::uint32_t count) noexcept;
  bool name(BlockName& name, std::span<const std::byte>& digest);
  bool token_ids(EngineEvent& event);
  bool extra_keys(EngineEvent& event);
  bool extra_key(std::uint32_t block);
  bool optional_u32(std::optional<std::uint32_t>& out, const char* what);
  bool finish_digests(EngineEvent& event);

  MsgpackReader in_;
  EngineBatch& out_;
  const std::size_t max_bytes_;
  std::size_t texts_ = 0;  // bytes of extra keys
  bool is_too_large_ = false;
  std::span<const std::byte> parent_digest_;  // of the current event
};

bool EngineDecoder::batch() {
  std::uint32_t length = 0;
  if (!in_.read_array(length, "a batch must be an array")) return false;
  if (length < 2) return in_.fail_at("a batch must have a timestamp and events", 0);
  if (!in_.read_number(out_.timestamp, "the timestamp of a batch must be a number")) return false;
  std::uint32_t events = 0;
  if (!in_.read_array(events, "the events of a batch must be an array")) return false;
  for (std::uint32_t i = 0; i < events; ++i)
    if (!event()) return false;
  if (length > 2 &&
      !optional_u32(out_.rank, "the rank of a batch must be nil or an integer of 0..4294967295"))
    return false;
  for (std::uint32_t i = 3; i < length; ++i)
    if (!in_.skip()) return false;
  if (in_.left() != 0) return in_.fail("bytes after the end of the batch");
  return true;
}

bool EngineDecoder::event() {
  const std::size_t start = in_.offset();
  const std::byte* const first = in_.at();
  if (!grow(out_.events, 1)) return false;
  EngineEvent& event = out_.events.emplace_back();
  parent_digest_ = {};
  const MsgpackReader::Type type = in_.peek();
  if (type == MsgpackReader::Type::kMap) {
    if (!map_event(event)) return false;
  } else if (type == MsgpackReader::Type::kArray) {
    if (!array_event(event)) return false;
  } else {
    return in_.fail("an event must be a map or an array");
  }
  if (event.kind == EngineEventKind::kUnknown) {
    event.raw = {first, in_.offset() - start};
  } else if (event.digest_size != 0 || !parent_digest_.empty()) {
    return finish_digests(event);
  }
  return true;
}

bool EngineDecoder::map_event(EngineEvent& event) {
  const std::size_t start = in_.offset();
  std::uint32_t count = 0;
  if (!in_.read_map(count, "an event must be a map")) return false;
  const std::size_t first_key = in_.offset();
  bool tag_is_first = true;
  bool found = false;
  for (std::uint32_t i = 0; i < count && !found; ++i) {
    std::string_view key;
    if (!in_.read_text(key, "a key of an event must be text")) return false;
    if (field_of(key) != EngineField::kType) {
      tag_is_first = false;
      if (!in_.skip()) return false;
      continue;
    }
    if (!in_.read_text(event.tag, "the type of an event must be text")) return false;
    found = true;
  }
  if (!found) return in_.fail_at("an event without a type", start);
  event.kind = kind_of(event.tag);
  if (!tag_is_first) in_.seek(first_key);
  if (event.kind == EngineEventKind::kUnknown) {
    for (std::uint32_t i = tag_is_first ? 1 : 0; i < count; ++i)
      if (!in_.skip() || !in_.skip()) return false;
    return true;
  }
  event.tag = {};
  bool named = event.kind == EngineEventKind::kCleared;
  std::uint32_t left = tag_is_first ? count - 1 : count;
  if (tag_is_first && left != 0 && take_key<EngineField::kBlockHashes>()) {
    named = true;
    --left;
    if (!names(event) || !usual_fields(event, left)) return false;
  }
  for (; left != 0; --left) {
    std::string_view key;
    if (!in_.read_text(key, "a key of an event must be text")) return false;
    const EngineField known = field_of(key);
    if (known == EngineField::kBlockHashes) named = true;
    if (!field(known, event)) return false;
  }
  if (!named) return in_.fail_at("an event without block_hashes", start);
  return true;
}

template <EngineField kField>
bool EngineDecoder::take_key() noexcept {
  constexpr const auto& kKey = kEncodedKey<kField>;
  if (in_.left() < kKey.size() || !are_same<kKey.size()>(in_.at(), kKey.data())) return false;
  in_.advance(kKey.size());
  return true;
}

bool EngineDecoder::usual_fields(EngineEvent& event, std::uint32_t& left) {
  const auto next = [&]<EngineField kField>() {
    if (left == 0 || !take_key<kField>()) return true;
    --left;
    return field(kField, event);
  };
  return next.template operator()<EngineField::kParent>() &&
         next.template operator()<EngineField::kTokenIds>() &&
         next.template operator()<EngineField::kBlockSize>() &&
         next.template operator()<EngineField::kLoraId>() &&
         next.template operator()<EngineField::kMedium>() &&
         next.template operator()<EngineField::kLoraName>() &&
         next.template operator()<EngineField::kExtraKeys>() &&
         next.template operator()<EngineField::kGroup>() &&
         next.template operator()<EngineField::kSpecKind>() &&
         next.template operator()<EngineField::kSlidingWindow>();
}

bool EngineDecoder::array_event(EngineEvent& event) {
  const std::size_t start = in_.offset();
  std::uint32_t count = 0;
  if (!in_.read_array(count, "an event must be an array")) return false;
  if (count == 0) return in_.fail_at("an event without a type", start);
  if (!in_.read_text(event.tag, "an array event must begin with its type")) return false;
  event.kind = kind_of(event.tag);
  if (event.kind != EngineEventKind::kUnknown) event.tag = {};
  if ((event.kind == EngineEventKind::kStored || event.kind == EngineEventKind::kRemoved) && count < 2)
    return in_.fail_at("an event without block_hashes", start);
  const std::span<const EngineField> places = places_of(event.kind);
  for (std::uint32_t i = 1; i < count; ++i) {
    EngineField place = i <= places.size() ? places[i - 1] : EngineField::kUnknown;
    // Some publishers append a list of multimodal items to the tail, where our fields contain no list.
    if (place >= EngineField::kGroup && in_.peek() == MsgpackReader::Type::kArray)
      place = EngineField::kUnknown;
    if (!field(place, event)) return false;
  }
  return true;
}

bool EngineDecoder::field(EngineField field, EngineEvent& event) {
  if (field == EngineField::kUnknown) return in_.skip();
  if (field == EngineField::kBlockHashes) return names(event);
  if (in_.take_nil()) return true;
  std::uint64_t number = 0;
  switch (field) {
    case EngineField::kParent: {
      BlockName parent;
      if (!name(parent, parent_digest_)) return false;
      event.parent = parent;
      return true;
    }
    case EngineField::kTokenIds:
      return token_ids(event);
    case EngineField::kBlockSize:
      if (!in_.read_unsigned(number, UINT32_MAX, "block_size must be an integer of 0..4294967295"))
        return false;
      event.block_size = static_cast<std::uint32_t>(number);
      return true;
    case EngineField::kLoraId: {
      MsgpackReader::Integer value;
      if (!in_.read_integer(value, "lora_id must be nil or an integer")) return false;
      event.lora_id = static_cast<std::int64_t>(value.bits);
      return true;
    }
    case EngineField::kMedium:
      return in_.read_text(event.medium, "medium must be nil or text");
    case EngineField::kLoraName:
      return in_.read_text(event.lora_name, "lora_name must be nil or text");
    case EngineField::kExtraKeys:
      return extra_keys(event);
    case EngineField::kGroup:
      return optional_u32(event.group, "group_idx must be nil or an integer of 0..4294967295");
    case EngineField::kSpecKind:
      return in_.read_text(event.spec_kind, "kv_cache_spec_kind must be nil or text");
    case EngineField::kSlidingWindow:
      return optional_u32(event.sliding_window,
                          "kv_cache_spec_sliding_window must be nil or an integer of 0..4294967295");
    case EngineField::kLocality:
      return in_.read_text(event.locality, "locality must be nil or text");
    case EngineField::kOwnership:
      return in_.read_text(event.ownership, "ownership must be nil or text");
    case EngineField::kSessionId:
      return in_.read_text(event.session_id, "session_id must be nil or text");
    case EngineField::kCacheSalt:
      return in_.read_text(event.cache_salt, "cache_salt must be nil or text");
    case EngineField::kType:  // read before the other fields
    case EngineField::kBlockHashes:
    case EngineField::kUnknown:
      break;
  }
  return in_.skip();
}

bool EngineDecoder::name(BlockName& name, std::span<const std::byte>& digest) {
  if (in_.peek() != MsgpackReader::Type::kBytes) {
    MsgpackReader::Integer value;
    if (!in_.read_integer(value, "a block hash must be an integer or bytes")) return false;
    name = BlockName(value.bits);
    digest = {};
    return true;
  }
  const std::size_t start = in_.offset();
  if (!in_.read_bytes(digest, "a block hash must be an integer or bytes")) return false;
  if (digest.size() < kMinDigest || digest.size() > kMaxDigest)
    return in_.fail_at("a block hash of bytes must have 8..64 of them", start);
  std::uint64_t value = 0;
  for (const std::byte byte : digest.last(8)) value = (value << 8) | std::to_integer<std::uint64_t>(byte);
  name = BlockName(value);
  return true;
}

// Names of 64 bits, as most are, up to the first of another form. Returns how many.
std::uint32_t EngineDecoder::long_integers(BlockName* to, std::uint32_t count) noexcept {
  constexpr std::size_t kBytes = 9;
  const std::byte* at = in_.at();
  const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(count, in_.left() / kBytes));
  std::uint32_t read = 0;
  for (; read < most && *at == std::byte{0xCF}; ++read, at += kBytes) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, at + 1, sizeof(bits));
    if constexpr (std::endian::native == std::endian::little) bits = __builtin_bswap64(bits);
    to[read] = BlockName(bits);
  }
  in_.advance(read * kBytes);
  return read;
}

bool EngineDecoder::names(EngineEvent& event) {
  std::uint32_t count = 0;
  if (!in_.read_array(count, "block_hashes must be an array")) return false;
  const std::size_t begin = out_.names.size();
  const std::size_t digests = out_.digests.size();
  if (!grow(out_.names, count)) return false;
  out_.names.resize(begin + count);
  BlockName* const to = out_.names.data() + begin;
  event.names = {static_cast<std::uint32_t>(begin), count};
  std::size_t size = 0;
  bool alike = true;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (const std::uint32_t whole = long_integers(to + i, count - i); whole != 0) {
      alike = alike && size == 0;
      i += whole - 1;
      continue;
    }
    std::span<const std::byte> digest;
    if (!name(to[i], digest)) return false;
    if (i == 0) size = digest.size();
    alike = alike && digest.size() == size;
    if (alike && !digest.empty()) {
      if (!grow(out_.digests, digest.size())) return false;
      out_.digests.insert(out_.digests.end(), digest.begin(), digest.end());
    }
  }
  if (!alike) out_.digests.resize(digests);
  event.digest_size = alike ? static_cast<std::uint32_t>(size) : 0;
  event.digests = {static_cast<std::uint32_t>(digests),
                   static_cast<std::uint32_t>(out_.digests.size() - digests)};
  return true;
}

// Requires: the digests of the event's names are the last ones of the batch.
bool EngineDecoder::finish_digests(EngineEvent& event) {
  const std::size_t size = event.names.count == 0 ? parent_digest_.size() : event.digest_size;
  if (event.names.count == 0) event.digests = {static_cast<std::uint32_t>(out_.digests.size()), 0};
  if (!event.parent.has_value()) return true;
  if (size == 0 || parent_digest_.size() != size) {
    out_.digests.resize(event.digests.begin);
    event.digests.count = 0;
    event.digest_size = 0;
    return true;
  }
  event.digest_size = static_cast<std::uint32_t>(size);
  if (!grow(out_.digests, size)) return false;
  out_.digests.insert(out_.digests.end(), parent_digest_.begin(), parent_digest_.end());
  event.digests.count += static_cast<std::uint32_t>(size);
  return true;
}

bool EngineDecoder::token_ids(EngineEvent& event) {
  std::uint32_t count = 0;
  if (!in_.read_array(count, "token_ids must be an array")) return false;
  const std::size_t begin = out_.tokens.size();
  event.tokens = {static_cast<std::uint32_t>(begin), count};
  event.token_pairs = count != 0 && in_.peek() == MsgpackReader::Type::kArray;
  if (!event.token_pairs) {
    if (!grow(out_.tokens, count)) return false;
    out_.tokens.resize(begin + count);
    return read_token_run(in_, count, out_.tokens.data() + begin);
  }
  event.tokens.count = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t start = in_.offset();
    std::uint32_t two = 0;
    if (!in_.read_array(two, "a token id among pairs must be a pair")) return false;
    if (two != 2) return in_.fail_at("a pair of token ids must have two", start);
    if (!grow(out_.tokens, 2)) return false;
    for (int k = 0; k < 2; ++k) {
      std::uint64_t value = 0;
      if (!in_.read_unsigned(value, UINT32_MAX, "a token id is no integer of 0..4294967295")) return false;
      out_.tokens.emplace_back(static_cast<std::uint32_t>(value));
    }
    event.tokens.count += 2;
  }
  return true;
}

bool EngineDecoder::extra_keys(EngineEvent& event) {
  std::uint32_t blocks = 0;
  if (!in_.read_array(blocks, "extra_keys must be nil or an array")) return false;
  event.has_extra_keys = true;
  event.extra_key_blocks = blocks;
  event.extra_keys = {static_cast<std::uint32_t>(out_.extra_keys.size()), 0};
  for (std::uint32_t block = 0; block < blocks; ++block) {
    if (in_.take_nil()) continue;
    if (in_.peek() != MsgpackReader::Type::kArray) {
      if (!extra_key(block)) return false;
      continue;
    }
    std::uint32_t keys = 0;
    if (!in_.read_array(keys, "")) return false;
    for (std::uint32_t i = 0; i < keys; ++i)
      if (!extra_key(block)) return false;
  }
  event.extra_keys.count = static_cast<std::uint32_t>(out_.extra_keys.size()) - event.extra_keys.begin;
  return true;
}

bool EngineDecoder::extra_key(std::uint32_t block) {
  using Kind = EngineExtraKey::Kind;
  const std::size_t start = in_.offset();
  const std::byte* const first = in_.at();
  const MsgpackReader::Type type = in_.peek();
  if (type == MsgpackReader::Type::kText) {
    std::string_view text;
    if (!in_.read_text(text, "") || !take_text(text.size())) return false;
    out_.extra_keys.push_back({block, Kind::kText, std::string(text), 0});
    return true;
  }
  if (type == MsgpackReader::Type::kBytes) {
    std::span<const std::byte> bytes;
    if (!in_.read_bytes(bytes, "") || !take_text(bytes.size())) return false;
    out_.extra_keys.push_back(
        {block, Kind::kBytes, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), 0});
    return true;
  }
  if (type == MsgpackReader::Type::kArray) {
    std::uint32_t count = 0;
    if (!in_.read_array(count, "")) return false;
    if (count == 2 && in_.peek() == MsgpackReader::Type::kText) {
      std::string_view identifier;
      if (!in_.read_text(identifier, "")) return false;
      if (in_.peek() == MsgpackReader::Type::kInteger) {
        MsgpackReader::Integer offset;
        if (!in_.read_integer(offset, "")) return false;
        if (offset.negative || offset.bits <= INT64_MAX) {
          if (!take_text(identifier.size())) return false;
          out_.extra_keys.push_back(
              {block, Kind::kMultimodal, std::string(identifier), static_cast<std::int64_t>(offset.bits)});
          return true;
        }
      }
    }
    in_.seek(start);
  }
  if (!in_.skip() || !take_text(in_.offset() - start)) return false;
  out_.extra_keys.push_back(
      {block, Kind::kOther, std::string(reinterpret_cast<const char*>(first), in_.offset() - start), 0});
  return true;
}

bool EngineDecoder::optional_u32(std::optional<std::uint32_t>& out, const char* what) {
  if (in_.take_nil()) return true;
  std::uint64_t number = 0;
  if (!in_.read_unsigned(number, UINT32_MAX, what)) return false;
  out = static_cast<std::uint32_t>(number);
  return true;
}

}  // namespace

Result<void> decode_engine_batch(std::span<const std::byte> payload, EngineBatch& out,
                                 std::size_t max_bytes) {
  out.clear();
  if (payload.size() > UINT32_MAX)
    return make_error(ErrorCode::kCorruption, "engine batch of %zu bytes: none is larger than 4 GiB",
                      payload.size());
  for (bool again = false;; again = true) {
    EngineDecoder decoder(payload, out, max_bytes);
    if (decoder.batch()) return {};
    const char* const fault = decoder.reader().fault();
    const std::size_t offset = decoder.reader().fault_offset();
    out.clear();
    if (!decoder.is_too_large())
      return make_error(ErrorCode::kCorruption, "engine batch: %s, at byte %zu of %zu", fault, offset,
                        payload.size());
    // It may fit without the memory that earlier batches left behind.
    out = {};
    if (again)
      return make_error(
          ErrorCode::kCapacity,
          "engine batch of %zu bytes: its memory exceeds the limit of %zu bytes from byte %zu on; raise the "
          "limit",
          payload.size(), max_bytes, offset);
  }
}

}  // namespace ashlar::events
