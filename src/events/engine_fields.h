// The fields of an engine's events: their keys in the map form and their positions in the array form.
#pragma once

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

// The field that a key names.
constexpr EngineField field_of(std::string_view key) noexcept {
  const auto is = [key](EngineField field) { return key == key_of(field); };
  switch (key.size()) {
    case 4:
      return is(EngineField::kType) ? EngineField::kType : EngineField::kUnknown;
    case 6:
      return is(EngineField::kMedium) ? EngineField::kMedium : EngineField::kUnknown;
    case 7:
      return is(EngineField::kLoraId) ? EngineField::kLoraId : EngineField::kUnknown;
    case 8:
      return is(EngineField::kLocality) ? EngineField::kLocality : EngineField::kUnknown;
    case 9:
      for (const EngineField field :
           {EngineField::kTokenIds, EngineField::kGroup, EngineField::kLoraName, EngineField::kOwnership})
        if (is(field)) return field;
      return EngineField::kUnknown;
    case 10:
      for (const EngineField field : {EngineField::kBlockSize, EngineField::kExtraKeys,
                                      EngineField::kSessionId, EngineField::kCacheSalt})
        if (is(field)) return field;
      return EngineField::kUnknown;
    case 12:
      return is(EngineField::kBlockHashes) ? EngineField::kBlockHashes : EngineField::kUnknown;
    case 17:
      return is(EngineField::kParent) ? EngineField::kParent : EngineField::kUnknown;
    case 18:
      return is(EngineField::kSpecKind) ? EngineField::kSpecKind : EngineField::kUnknown;
    case 28:
      return is(EngineField::kSlidingWindow) ? EngineField::kSlidingWindow : EngineField::kUnknown;
    default:
      return EngineField::kUnknown;
  }
}

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
