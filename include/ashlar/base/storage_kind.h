// StorageKind: the kind of memory that holds bytes.
//
//   kSystem   pageable host memory            kDisk     a file on a local disk
//   kPinned   page-locked host memory         kRemote   memory of another node
//   kDevice   GPU memory                      kObject   an object store
//
// The numbers are part of file formats: do not renumber.
//
// Thread safety: immutable values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ashlar {

enum class StorageKind : std::uint8_t { kSystem, kPinned, kDevice, kDisk, kRemote, kObject };

inline constexpr std::size_t kStorageKinds = 6;

// False for untrusted numbers that name no kind.
constexpr bool is_known(StorageKind kind) noexcept {
  return static_cast<std::size_t>(kind) < kStorageKinds;
}

// The name of the kind in lower case; "unknown" for numbers that name none.
constexpr std::string_view to_string(StorageKind kind) noexcept {
  constexpr std::array<std::string_view, kStorageKinds> kNames = {"system", "pinned", "device",
                                                                  "disk",   "remote", "object"};
  return is_known(kind) ? kNames[static_cast<std::size_t>(kind)] : "unknown";
}

}  // namespace ashlar
