// RegistrationHandle: the entry of one sequence hash in a BlockRegistry, shared by all tiers.
//
// While a handle or a registered block of any manager refers to a hash, the hash has one entry: attachments,
// touch callbacks and presence live there. The entry vanishes with its last reference, at once.
//
// A handle keeps the entry, not a block: has_block() says which tiers hold blocks of the hash now.
//
// Thread safety: thread-safe for const members; assignment is thread-compatible.
// Complexity:    O(1); presence reads take no lock. Copying counts one reference.
// Invariant:     handles of one registry that compare equal are of one hash. A moved-from handle may only be
//                assigned or destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>

#include "ashlar/base/strong_id.h"
#include "ashlar/block/attachments.h"
#include "ashlar/block/tier.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {
namespace detail {
class RegistryEntries;
struct Entry;
}  // namespace detail

// Names one touch callback of a registry.
using TouchId = StrongId<struct TouchIdTag, std::uint64_t>;

class RegistrationHandle {
 public:
  using TouchCallback = std::function<void(const RegistrationHandle&)>;

  RegistrationHandle(const RegistrationHandle& other);
  RegistrationHandle(RegistrationHandle&& other) noexcept;
  RegistrationHandle& operator=(RegistrationHandle other) noexcept;
  ~RegistrationHandle();

  // The hash of this handle.
  tokens::SequenceHash sequence_hash() const noexcept;

  // Attaches one value of type T, replacing the previous one. Errors: kAlreadyExists when T is attached many
  // times here; kCapacity without memory.
  template <class T>
  Result<void> attach_unique(T value) const {
    return detail::attach<T, true>(*entry_, std::move(value));
  }
  // Attaches another value of type T. Errors: kAlreadyExists when T is attached uniquely here; kCapacity
  // without memory.
  template <class T>
  Result<void> attach(T value) const {
    return detail::attach<T, false>(*entry_, std::move(value));
  }
  // Removes the values of type T, or those for which gone(const T&) is true; `gone` is a visitor. Returns how
  // many. Throws std::bad_alloc, with nothing removed.
  template <class T>
  std::size_t detach() const {
    return detail::detach_if<T>(*entry_, [](const T&) { return true; });
  }
  template <class T, class F>
  std::size_t detach_if(F&& gone) const {
    return detail::detach_if<T>(*entry_, std::forward<F>(gone));
  }
  // The attachments of type T, which may be empty. They keep the values alive, not the entry.
  template <class T>
  TypedAttachments<T> get() const {
    return TypedAttachments<T>(detail::find_attachment(*entry_, typeid(T), nullptr));
  }

  // Whether a block of this hash is registered in that tier, active or inactive. Exact: it changes inside the
  // transition that registers or removes the block.
  template <events::Tier Tier>
  bool has_block() const noexcept {
    return has_block(events::kTierId<Tier>);
  }
  bool has_block(events::TierId tier) const noexcept;
  // Whether any of these tiers has one.
  bool has_any_block(std::span<const events::TierId> tiers) const noexcept;
  bool has_any_block(std::initializer_list<events::TierId> tiers) const noexcept {
    return has_any_block(std::span(tiers.begin(), tiers.size()));
  }

  // Runs `callback` at every touch of the hash: a match in any manager that shares the registry,
  // registry.touch(), touch(). Callbacks run outside all locks, on the touching thread, and must not throw.
  // They end with the entry, or with remove_touch().
  TouchId on_touch(TouchCallback callback) const;
  // False when this hash has no such callback. A touch under way on another thread may still run it. Throws
  // std::bad_alloc, with nothing removed.
  bool remove_touch(TouchId id) const;
  // Counts one use of the hash and runs the touch callbacks.
  void touch() const;

  friend bool operator==(const RegistrationHandle& a, const RegistrationHandle& b) noexcept {
    return a.entry_ == b.entry_;
  }

 private:
  friend class detail::RegistryEntries;
  // Adopts a reference that the registry already counted.
  RegistrationHandle(std::shared_ptr<detail::RegistryEntries> entries, detail::Entry* entry) noexcept
      : entries_(std::move(entries)), entry_(entry) {}

  std::shared_ptr<detail::RegistryEntries> entries_;
  detail::Entry* entry_;  // null only after a move
};

}  // namespace ashlar::block
