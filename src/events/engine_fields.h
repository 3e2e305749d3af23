// The fields of an engine's events: their keys in the map form and their positions in the array form.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "ashlar/events/engine_codec.h"

namespace ashlar::events {

enum class EngineField : std::uint8_t {
  kType,
  kBlockHashes,
  kParent,
  kTokenIds,
  kBlockSize,
  kLoraId,
  kMedium,
  kLoraName,
  kExtraKeys,
  kGroup,
  kSpecKind,
  kSlidingWindow,
  kLocality,
  kOwnership,
  kSessionId,
  kCacheSalt,
  kUnknown,
};

inline constexpr std::array<std::string_view, 16> kEngineKeys = {
    "type",      "block_hashes",       "parent_block_hash",
    "token_ids", "block_size",         "lora_id",
    "medium",    "lora_name",          "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
    "locality",  "ownership",          "session_id",
    "cache_salt"};
constexpr std::string_view key_of(EngineField field) noexcept {
  return kEngineKeys[static_cast<std::size_t>(field)];
}

// A key as it stands in a message.
template <EngineField kField>
inline constexpr auto kEncodedKey = [] {
  constexpr std::string_view kKey = key_of(kField);
  static_assert(kKey.size() < 32);
  std::array<char, kKey.size() + 1> bytes{};
  bytes[0] = static_cast<char>(0xA0 | kKey.size());
  for (std::size_t i = 0; i < kKey.size(); ++i) bytes[i + 1] = kKey[i];
  return bytes;
}();

// The field that a key names.
constexpr EngineField field_of(std::string_view key) noexcept {
  // By length and first letter there is one at most.
  const auto only = [key](EngineField field) { return key == key_of(field) ? field : EngineField::kUnknown; };
  switch (key.size()) {
    case 4:
      return only(EngineField::kType);
    case 6:
      return only(EngineField::kMedium);
    case 7:
      return only(EngineField::kLoraId);
    case 8:
      return only(EngineField::kLocality);
    case 9:
      return only(key[0] == 't'   ? EngineField::kTokenIds
                  : key[0] == 'g' ? EngineField::kGroup
                  : key[0] == 'l' ? EngineField::kLoraName
                                  : EngineField::kOwnership);
    case 10:
      return only(key[0] == 'b'   ? EngineField::kBlockSize
                  : key[0] == 'e' ? EngineField::kExtraKeys
                  : key[0] == 's' ? EngineField::kSessionId
                                  : EngineField::kCacheSalt);
    case 12:
      return only(EngineField::kBlockHashes);
    case 17:
      return only(EngineField::kParent);
    case 18:
      return only(EngineField::kSpecKind);
    case 28:
      return only(EngineField::kSlidingWindow);
    default:
      return EngineField::kUnknown;
  }
}
static_assert(std::ranges::all_of(kEngineKeys,
                                  [](std::string_view key) { return key_of(field_of(key)) == key; }));

// The fields of the array form after the tag.
inline constexpr EngineField kStoredPlaces[] = {
    EngineField::kBlockHashes, EngineField::kParent,   EngineField::kTokenIds,      EngineField::kBlockSize,
    EngineField::kLoraId,      EngineField::kMedium,   EngineField::kLoraName,      EngineField::kExtraKeys,
    EngineField::kGroup,       EngineField::kSpecKind, EngineField::kSlidingWindow, EngineField::kLocality,
    EngineField::kOwnership};
inline constexpr EngineField kRemovedPlaces[] = {
    EngineField::kBlockHashes,   EngineField::kMedium,   EngineField::kGroup,    EngineField::kSpecKind,
    EngineField::kSlidingWindow, EngineField::kLocality, EngineField::kOwnership};
inline constexpr EngineField kClearedPlaces[] = {EngineField::kOwnership};

constexpr std::span<const EngineField> places_of(EngineEventKind kind) noexcept {
  switch (kind) {
    case EngineEventKind::kStored:
      return kStoredPlaces;
    case EngineEventKind::kRemoved:
      return kRemovedPlaces;
    case EngineEventKind::kCleared:
      return kClearedPlaces;
    case EngineEventKind::kUnknown:
      break;
  }
  return {};
}

inline constexpr std::array<std::string_view, 3> kEngineTags = {"BlockStored", "BlockRemoved",
                                                                "AllBlocksCleared"};

constexpr EngineEventKind kind_of(std::string_view tag) noexcept {
  for (std::size_t i = 0; i < kEngineTags.size(); ++i)
    if (tag == kEngineTags[i]) return static_cast<EngineEventKind>(i);
  return EngineEventKind::kUnknown;
}

}  // namespace ashlar::events
