// PredictionLedger: what ApproximateIndex (which see) knows beside its index, over any IndexSink.
//
// Per (worker, rank) it keeps what each of the worker's names means, and for each content whether the
// worker's events or a prediction say that it is held; never both. Contents have numbers in a trie over all
// workers. All predictions stand in one list by the time they end: the time to live is the same for all, so a
// new or renewed one goes to the end of the list, and the first ones are the next to expire. No block has a
// timer.
//
// Thread safety: thread-compatible.
// Complexity:    per block of a call O(1) expected, and O(log names) where a content has several names, but
//                for the steps that double or halve tables; per call O(log workers). remove_worker() is
//                O(what its ranks hold). Memory: about 85 bytes per real name and 125 per predicted block; 50
//                more per name where a content of a worker has several.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index {

struct ApproximateOptions {
  static constexpr Clock::Duration kBucket = std::chrono::milliseconds(100);
  static constexpr Clock::Duration kMaxTtl = std::chrono::hours(24 * 365);

  // How long a prediction counts; rounded up to the end of a bucket.
  Clock::Duration ttl = std::chrono::seconds(120);
  // Must outlive the index.
  Clock* clock = &Clock::real();
  // Where the names of predictions start; drawn at random when it is not given.
  std::optional<std::uint64_t> salt = std::nullopt;

  // Errors: kInvalidArgument, with the value and what is allowed.
  Result<void> validate() const;
};

// What became of predictions since the start, in blocks but for the last.
struct PredictionCounters {
  std::uint64_t predicted = 0;  // added
  std::uint64_t renewed = 0;    // predicted again while they were there
  std::uint64_t replaced = 0;   // ended by a store of the worker
  std::uint64_t expired = 0;    // ended by time
  std::uint64_t dropped = 0;    // ended by clear() or remove_worker(), or because the worker uses the name
  std::uint64_t refused = 0;    // calls of predict() that were not applied

  friend bool operator==(const PredictionCounters&, const PredictionCounters&) = default;
};

namespace detail {

class PredictionLedger {
 public:
  // Requires: options.validate(). `inner` must outlive the ledger, answer at once, and be written by nobody
  // else.
  PredictionLedger(IndexSink& inner, const ApproximateOptions& options);
  ~PredictionLedger();
  PredictionLedger(const PredictionLedger&) = delete;
  PredictionLedger& operator=(const PredictionLedger&) = delete;

  StoreVerdict store(const BlocksStored& event);
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  void clear(const Worker& worker);
  void remove_worker(WorkerId worker);

  StoreVerdict predict(const Worker& worker, std::span<const LocalHash> locals);
  // Ends predictions whose time has come, at most `limit`. Returns how many.
  std::size_t expire(std::size_t limit);

  // Passes on what dump_inner() sends, without the predictions.
  void dump(IndexSink& sink, const std::function<void(IndexSink&)>& dump_inner) const;
  // What remains of the inner index's counters when the ledger's own calls are taken out.
  IndexCounters without_predictions(const IndexCounters& inner) const;

  std::size_t predicted() const noexcept;
  std::size_t bytes() const noexcept;
  PredictionCounters counters() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail
}  // namespace ashlar::index
