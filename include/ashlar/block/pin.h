// Pin: keeps a registered block from being evicted while no guard refers to it, for a limited time.
// Hold: keeps a registered block in its slot without using it, for code that copies it.
//
// A pin ends with unpin(), with the guard, or when its time is over, whichever comes first. An ended pin has
// no effect.
//
// A reference would take an inactive block out of the eviction order and put it back as the newest. A hold
// leaves it in its place. A held block is not evicted: when its turn comes it is set aside, still findable,
// and the eviction happens when the last hold ends. A match revives it as usual. A hold does not count as a
// use: it adds to no frequency and runs no callback.
//
// Neither keeps the manager alive, and both are safe after its destruction.
//
// Thread safety: thread-compatible.
// Complexity:    O(1); ending one takes the store's lock.
#pragma once

#include <utility>

#include "ashlar/block/block_identity.h"
#include "ashlar/block/detail/store_calls.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

// Made by ImmutableBlock::pin() and BlockManager::pin().
class [[nodiscard]] Pin {
 public:
  // Pins nothing.
  Pin() = default;
  explicit Pin(detail::PinRef pin) noexcept : pin_(std::move(pin)), armed_(true) {}
  Pin(Pin&& other) noexcept : pin_(std::move(other.pin_)), armed_(std::exchange(other.armed_, false)) {}
  Pin& operator=(Pin&& other) noexcept {
    if (this != &other) {
      end();
      pin_ = std::move(other.pin_);
      armed_ = std::exchange(other.armed_, false);
    }
    return *this;
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  ~Pin() { end(); }

  // True while the pin still holds.
  bool active() const noexcept { return armed_ && detail::is_pinned(pin_); }
  // Ends the pin early. No effect on an ended pin.
  void unpin() && { end(); }

 private:
  void end() noexcept {
    if (std::exchange(armed_, false)) detail::unpin(pin_);
  }
  detail::PinRef pin_;
  bool armed_ = false;
};

// Made by BlockManager::hold().
class [[nodiscard]] Hold {
 public:
  // Holds nothing.
  Hold() = default;
  explicit Hold(detail::HoldRef hold) noexcept : hold_(std::move(hold)), armed_(true) {}
  Hold(Hold&& other) noexcept : hold_(std::move(other.hold_)), armed_(std::exchange(other.armed_, false)) {}
  Hold& operator=(Hold&& other) noexcept {
    if (this != &other) {
      end();
      hold_ = std::move(other.hold_);
      armed_ = std::exchange(other.armed_, false);
    }
    return *this;
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { end(); }

  // True until it is moved from or ended.
  explicit operator bool() const noexcept { return armed_; }
  // Requires: it holds a block.
  BlockId block_id() const noexcept { return BlockId(hold_.slot); }
  const tokens::SequenceHash& sequence_hash() const noexcept { return hold_.hash; }

 private:
  template <events::Tier Tier>
  friend class BlockManager;
  void end() noexcept {
    if (std::exchange(armed_, false)) detail::end_hold(hold_);
  }
  detail::HoldRef hold_;
  bool armed_ = false;
};

}  // namespace ashlar::block
