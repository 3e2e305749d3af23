// Pin: keeps a registered block from being evicted while nobody refers to it, for a limited time.
//
// A pin ends with unpin(), with the guard, or when its time is over, whichever comes first. It cannot be
// undone twice: a pin that has ended does nothing more. It does not keep the manager alive.
//
// Thread safety: thread-compatible.
#pragma once

#include <utility>

#include "ashlar/block/detail/registered.h"

namespace ashlar::block {

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
  void unpin() && { end(); }

 private:
  void end() noexcept {
    if (std::exchange(armed_, false)) detail::unpin(pin_);
  }
  detail::PinRef pin_;
  bool armed_ = false;
};

}  // namespace ashlar::block
