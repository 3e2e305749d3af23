// Receipts: the last decisions with what became of them, by number.
//
// Thread safety: thread-safe.
// Complexity:    O(1); memory for `capacity` decisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/service/passage.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

// Why an engine found more or less than was expected.
enum class Misroute : std::uint8_t {
  kNone,
  kEvicted,          // it dropped blocks in between
  kStoredMeanwhile,  // another request stored blocks in between
  kCleared,          // it was cleared or restarted in between
  kNotExact,         // its events were not complete, or it has none
  kOtherTokens,      // it counted other prompt tokens than were routed by
  kUnexplained,
};
inline constexpr std::size_t kMisroutes = 7;
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

class Receipts {
 public:
  explicit Receipts(std::size_t capacity) : ring_(capacity) {
    ASHLAR_CHECK(capacity > 0, "at least one receipt is kept");
  }

  // Calls `fill` with the receipt of a decision; it assigns every field but the outcome. The memory of the
  // one that it replaces is used again.
  template <class Fill>
  void add(DecisionId id, const Fill& fill) {
    MutexLock lock(mu_);
    auto& slot = ring_[id.value() % ring_.size()];
    if (!slot) slot = std::make_unique<Receipt>();
    fill(*slot);
    slot->outcome = {};
    last_ = std::max(last_, id.value());
  }
  // Nothing if it is no longer kept.
  void set_outcome(DecisionId id, const RequestOutcome& outcome) {
    MutexLock lock(mu_);
    auto& slot = ring_[id.value() % ring_.size()];
    if (slot && slot->decision.id == id) slot->outcome = outcome;
  }
  std::optional<Receipt> find(DecisionId id) const {
    MutexLock lock(mu_);
    const auto& slot = ring_[id.value() % ring_.size()];
    return slot && slot->decision.id == id ? std::optional(*slot) : std::nullopt;
  }
  // The youngest first.
  std::vector<Receipt> last(std::size_t count) const {
    MutexLock lock(mu_);
    std::vector<Receipt> out;
    for (std::uint64_t id = last_; id > 0 && last_ - id < ring_.size() && out.size() < count; --id)
      if (const auto& slot = ring_[id % ring_.size()]; slot && slot->decision.id.value() == id)
        out.push_back(*slot);
    return out;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::unique_ptr<Receipt>> ring_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t last_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::service
