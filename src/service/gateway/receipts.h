// Receipts: the last decisions with what became of them, by number.
//
// Thread safety: thread-safe.
// Complexity:    O(1) amortised; memory for as many decisions, and as many bytes, as its limits say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/service/passage.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

// Why an engine found more or less than was expected.
enum class Misroute : std::uint8_t {
  kNone,
  kEvicted,          // it dropped a block of what was expected in between
  kStoredMeanwhile,  // another request stored blocks in between
  kCleared,          // it was cleared or restarted in between
  kNotExact,         // its events were not complete, or it has none
  kOtherTokens,      // it counted other prompt tokens than were routed by
  kForgotten,        // it dropped too many blocks in between to remember whether these were among them
  kUnexplained,
};
inline constexpr std::size_t kMisroutes = 8;
std::string_view to_string(Misroute misroute) noexcept;

struct RequestOutcome {
  bool is_over = false;
  PassageEnd end = PassageEnd::kComplete;
  unsigned status = 0;                              // of the worker's answer; 0: none came
  std::optional<std::uint64_t> delivered_tokens{};  // that the engine says it found
  std::optional<std::uint64_t> prompt_tokens{};     // that it counted
  std::optional<std::uint64_t> output_tokens{};
  Misroute misroute = Misroute::kNone;
};

struct Receipt {
  Decision decision;
  std::string group;
  std::string worker_name;
  std::string state_reason = {};  // of a worker that was not EXACT
  std::string token_source = {};  // "given", "asked", …; empty: none
  std::string claim_reason = {};  // why no cached tokens are claimed, if that is not the worker's doing
  RequestOutcome outcome = {};
};

// Bytes of a receipt in memory, with those it points to.
inline std::size_t memory_of(const Receipt& receipt) {
  std::size_t bytes = sizeof(Receipt) + receipt.decision.candidates.capacity() * sizeof(Candidate);
  for (const std::string* text : {&receipt.group, &receipt.worker_name, &receipt.state_reason,
                                  &receipt.claim_reason, &receipt.token_source})
    if (text->capacity() > std::string().capacity()) bytes += text->capacity() + 1;
  return bytes;
}

class Receipts {
 public:
  struct Limits {
    std::size_t decisions = 0;
    std::size_t bytes = 0;
  };
  explicit Receipts(Limits limits) : limits_(limits) {
    ASHLAR_CHECK(limits.decisions > 0, "at least one receipt is kept");
  }

  // Calls `fill` with the receipt of a decision; it assigns every field but the outcome. The oldest are
  // dropped to make room, and the memory of the last of these is used again.
  template <class Fill>
  void add(DecisionId id, const Fill& fill) {
    MutexLock lock(mu_);
    if (id.value() < first_) return;  // those around it are gone already
    // Decisions without a receipt leave empty slots.
    if (id.value() - first_ >= slots_.size() + limits_.decisions) {
      while (!slots_.empty()) drop_first();
      first_ = id.value();
    }
    std::unique_ptr<Receipt> receipt;
    while (id.value() - first_ >= limits_.decisions) receipt = drop_first();
    while (id.value() - first_ >= slots_.size()) {
      slots_.emplace_back();
      bytes_ += sizeof slots_.back();
    }
    if (!receipt) receipt = std::make_unique<Receipt>();
    fill(*receipt);
    receipt->outcome = {};
    bytes_ += memory_of(*receipt);
    ASHLAR_DCHECK(!slots_[id.value() - first_], "a decision has one receipt");
    slots_[id.value() - first_] = std::move(receipt);
    while (bytes_ > limits_.bytes && !slots_.empty()) drop_first();
  }
  // Nothing if it is no longer kept.
  void set_outcome(DecisionId id, const RequestOutcome& outcome) {
    MutexLock lock(mu_);
    if (Receipt* receipt = find_locked(id)) receipt->outcome = outcome;
  }
  std::optional<Receipt> find(DecisionId id) const {
    MutexLock lock(mu_);
    const Receipt* receipt = find_locked(id);
    return receipt != nullptr ? std::optional(*receipt) : std::nullopt;
  }
  // The youngest first.
  std::vector<Receipt> last(std::size_t count) const {
    MutexLock lock(mu_);
    std::vector<Receipt> out;
    for (auto slot = slots_.rbegin(); slot != slots_.rend() && out.size() < count; ++slot)
      if (*slot) out.push_back(**slot);
    return out;
  }
  // Calls `fn` with the last `count` receipts, the youngest first, under the lock: it copies what it needs.
  template <class Fn>
  void for_each_last(std::size_t count, const Fn& fn) const {
    MutexLock lock(mu_);
    for (auto slot = slots_.rbegin(); slot != slots_.rend() && count > 0; ++slot)
      if (*slot) {
        fn(std::as_const(**slot));
        --count;
      }
  }
  // Of all receipts, in memory.
  std::size_t bytes() const {
    MutexLock lock(mu_);
    return bytes_;
  }

 private:
  std::unique_ptr<Receipt> drop_first() ASHLAR_REQUIRES(mu_) {
    std::unique_ptr<Receipt> receipt = std::move(slots_.front());
    slots_.pop_front();
    ++first_;
    const std::size_t bytes = sizeof receipt + (receipt ? memory_of(*receipt) : 0);
    ASHLAR_DCHECK(bytes_ >= bytes, "%zu bytes of %zu", bytes, bytes_);
    bytes_ -= bytes;
    return receipt;
  }
  Receipt* find_locked(DecisionId id) const ASHLAR_REQUIRES(mu_) {
    if (id.value() < first_ || id.value() - first_ >= slots_.size()) return nullptr;
    return slots_[id.value() - first_].get();
  }

  const Limits limits_;
  mutable Mutex mu_;
  std::deque<std::unique_ptr<Receipt>> slots_ ASHLAR_GUARDED_BY(mu_);  // from decision first_ on
  std::uint64_t first_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::size_t bytes_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::service
