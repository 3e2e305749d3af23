// Hold: keeps a registered block where it is, without using it: for those who copy it.
//
// A reference would take an inactive block out of the eviction order and put it back as the newest. A hold
// leaves it in its place. It is not evicted while it is held; if its turn comes, it is set aside, still
// findable, and the eviction is done when the last hold ends. A match revives it as ever. A hold is no use:
// it counts no frequency and calls no callback.
//
// It does not keep the manager alive, and is safe after it.
//
// Thread safety: thread-compatible.
#pragma once

#include <utility>

#include "ashlar/block/block_id.h"
#include "ashlar/block/detail/registered.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

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

  explicit operator bool() const noexcept { return armed_; }
  // Requires: it holds something.
  BlockId block_id() const noexcept { return BlockId(hold_.slot); }
  const tokens::SequenceHash& sequence_hash() const noexcept { return hold_.hash; }

 private:
  void end() noexcept {
    if (std::exchange(armed_, false)) detail::end_hold(hold_);
  }
  detail::HoldRef hold_;
  bool armed_ = false;
};

}  // namespace ashlar::block
