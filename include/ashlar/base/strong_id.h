// StrongId<Tag, Rep>: a typed integer id that converts to no other type.
//
//   using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
//
// Ids of one kind compare, hash and print as their number. Conversions to and from a number are always
// explicit: BlockId(7), id.value().
//
// Thread safety: immutable value. Complexity: O(1); as large as Rep.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <ostream>

namespace ashlar {

template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;

  // Of 0.
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) noexcept : value_(value) {}

  constexpr Rep value() const noexcept { return value_; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  // As a number, also where Rep is a character type.
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value_; }

 private:
  Rep value_{};
};

}  // namespace ashlar

template <class Tag, class Rep>
struct std::hash<ashlar::StrongId<Tag, Rep>> {
  std::size_t operator()(ashlar::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
