// MissReason: why a block of a prompt was not found where the prompt went.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ashlar::service {

enum class MissReason : std::uint8_t {
  kNeverSeen,     // no request had named it; in a simulation: no worker had it before
  kEvicted,       // named by an earlier request and at no worker now, whether or not one ever had it
  kElsewhere,     // another worker has it
  kBrokenPrefix,  // it is here, behind a block that is not
};
inline constexpr std::size_t kMissReasons = 4;
// "never_seen", "evicted", "elsewhere", "broken_prefix".
std::string_view to_string(MissReason reason) noexcept;

}  // namespace ashlar::service
