// The untyped core under the guards: a reference to a slot, and two holders that return it when they die.
//
// Guards are these holders plus a tier and a state in their type. Everything here calls into the store's compiled
// code; nothing here is for callers of the library.
//
// Thread safety: thread-compatible, as the guards are. The store behind them is thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/block/block_id.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block::detail {

class BlockStore;

// Which slot of which store, in which life of the slot. 16 bytes.
struct SlotRef {
  BlockStore* store = nullptr;
  std::uint32_t id = 0;
  std::uint32_t generation = 0;
};
static_assert(sizeof(SlotRef) == 16);

std::uint32_t block_size_of(const SlotRef& slot) noexcept;
tokens::SequenceHash hash_of(const SlotRef& slot) noexcept;

// Returns a uniquely owned slot: to the reset pool, or into quarantine when it is in flight.
void drop_owned(const SlotRef& slot) noexcept;
// One more, one less reference to a registered slot.
void add_reference(const SlotRef& slot) noexcept;
void drop_reference(const SlotRef& slot) noexcept;
// Drops many references of one store with one visit to its lock, from the last to the first.
void drop_references(std::span<const SlotRef> slots) noexcept;

// Owns a slot alone. A moved-from holder is empty.
class OwnedSlot {
 public:
  OwnedSlot() = default;
  explicit OwnedSlot(SlotRef slot) noexcept : slot_(slot) {}
  OwnedSlot(OwnedSlot&& other) noexcept : slot_(std::exchange(other.slot_, {})) {}
  OwnedSlot& operator=(OwnedSlot&& other) noexcept {
    if (this != &other) {
      drop();
      slot_ = std::exchange(other.slot_, {});
    }
    return *this;
  }
  OwnedSlot(const OwnedSlot&) = delete;
  OwnedSlot& operator=(const OwnedSlot&) = delete;
  ~OwnedSlot() { drop(); }

  bool empty() const noexcept { return slot_.store == nullptr; }
  const SlotRef& get() const noexcept {
    ASHLAR_CHECK(!empty(), "this guard holds no block: it was moved from, or never given one");
    return slot_;
  }
  // Takes over a slot, in place of the one held before.
  void adopt(SlotRef slot) noexcept {
    drop();
    slot_ = slot;
  }
  // Gives the slot up to the caller.
  SlotRef take() noexcept {
    ASHLAR_CHECK(!empty(), "this guard holds no block: it was moved from, or never given one");
    return std::exchange(slot_, {});
  }

 private:
  void drop() noexcept {
    if (!empty()) drop_owned(std::exchange(slot_, {}));
  }
  SlotRef slot_;
};

// Holds one reference to a registered slot. A moved-from holder is empty.
class SharedSlot {
 public:
  SharedSlot() = default;
  // Adopts a reference that the store has counted already.
  explicit SharedSlot(SlotRef slot) noexcept : slot_(slot) {}
  SharedSlot(const SharedSlot& other) noexcept : slot_(other.slot_) {
    if (!empty()) add_reference(slot_);
  }
  SharedSlot(SharedSlot&& other) noexcept : slot_(std::exchange(other.slot_, {})) {}
  SharedSlot& operator=(SharedSlot other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  // Takes over a reference that the store has counted already, in place of the one held before.
  void adopt(SlotRef slot) noexcept {
    if (!empty()) drop_reference(slot_);
    slot_ = slot;
  }
  ~SharedSlot() {
    if (!empty()) drop_reference(slot_);
  }

  bool empty() const noexcept { return slot_.store == nullptr; }
  const SlotRef& get() const noexcept {
    ASHLAR_CHECK(!empty(), "this guard holds no block: it was moved from, or never given one");
    return slot_;
  }
  // The slot, given up without a look; an empty one stays empty.
  SlotRef detach() noexcept {
    const SlotRef slot = slot_;
    slot_.store = nullptr;
    return slot;
  }
  SlotRef take() noexcept {
    ASHLAR_CHECK(!empty(), "this guard holds no block: it was moved from, or never given one");
    return std::exchange(slot_, {});
  }

 private:
  SlotRef slot_;
};

}  // namespace ashlar::block::detail
