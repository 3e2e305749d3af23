// ApproximateIndex<Inner>: an index that also predicts what routing decisions will lead to.
//
//   index.predict(worker, locals);   // a request with these blocks was sent there: its device tier will hold
//                                    them
//
// A prediction answers queries like a real block until its time to live expires; predicting the same content
// for that worker again restarts it. Predictions serve workers that publish no events, and bridge the delay
// until events of other workers arrive.
//
// Real events win. A worker holds a content either for real or as predicted, never both. A store of the
// worker, in any tier, ends its predictions of that content, so a later removal makes it absent at once;
// predicting a content that the worker really holds changes nothing. Real blocks never expire. clear() and
// remove_worker() end predictions too.
//
// The inner index stores predictions under generated names. A name that the worker uses is never generated,
// and a prediction is dropped when the worker starts to use its name.
//
// Only find_matches() and sizes() show predictions: counters() leaves out calls made for predictions, and
// dump() rebuilds an index with the real blocks only. (Where a real block lies behind a predicted one, the
// dump stores the predicted one too and removes it at the end.) sizes() counts everything, including the
// memory of the adapter; predicted() says how many of its blocks are predictions.
//
// Requires: Inner answers at once (no ThreadPoolIndexer inside) and keeps what lies behind a removed block
// (MidChainRemoval::kRetain).
//
// Thread safety: find_matches() as Inner's; everything else is thread-compatible.
// Complexity:    on top of Inner, O(1) expected per block and O(log names) where a content has several names,
//                but for the steps that double or halve tables; O(log workers) per call. To know what a real
//                store replaces, the meaning of every real name is kept here: about 85 bytes per (worker,
//                name), 135 where a content has several. A prediction takes about 125.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

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
  // Predictions at a time. Before there are more, those that expire first end, all that expire together.
  std::size_t most = SIZE_MAX;

  // Errors: kInvalidArgument, with the value and what is allowed.
  Result<void> validate() const;
};

// What became of predictions since the start, in blocks except the last.
struct PredictionCounters {
  std::uint64_t predicted = 0;  // added
  std::uint64_t renewed = 0;    // predicted again while they were there
  std::uint64_t replaced = 0;   // ended by a store of the worker
  std::uint64_t expired = 0;    // ended by time
  std::uint64_t dropped = 0;    // ended by clear() or remove_worker(), or because the worker uses the name
  std::uint64_t refused = 0;    // calls of predict() that were not applied
  std::uint64_t evicted = 0;    // ended by the limit of ApproximateOptions

  friend bool operator==(const PredictionCounters&, const PredictionCounters&) = default;
};

// A predicted block, as predictions() tells it.
struct PredictedBlock {
  Worker worker;
  std::uint32_t parent = 0;  // 1 + the place in the list of the block before it; 0: it begins a sequence
  LocalHash local;
  std::int64_t due = 0;  // when it expires, in buckets of kBucket; 0: the worker holds it for real
};

namespace detail {

// What ApproximateIndex keeps beside its index, over any IndexSink. Invariant: a content is held by a worker
// for real or as predicted, never both.
//
// Thread safety: thread-compatible.
class PredictionLedger {
 public:
  // Requires: options.validate(). `inner` must outlive the ledger, answer at once, and have no other writer.
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
  // Ends the oldest ones until there is room for so many more.
  void make_room(std::size_t blocks);
  std::vector<PredictedBlock> predictions() const;
  void restore(std::span<const PredictedBlock> blocks);

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

template <Indexer Inner>
class ApproximateIndex {
  static_assert(!requires { Inner::kAppliesLater; }, "the index inside must answer at once");

 public:
  // `args` make the index inside. Errors: those of ApproximateOptions::validate(); kCapacity without memory.
  template <class... Args>
    requires std::constructible_from<Inner, Args...>
  static Result<ApproximateIndex> create(const ApproximateOptions& options, Args&&... args) {
    ASHLAR_RETURN_IF_ERROR(options.validate());
    try {
      return ApproximateIndex(std::make_unique<State>(options, std::forward<Args>(args)...));
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kCapacity, "out of memory");
    }
  }
  // A moved-from index may only be destroyed.
  ApproximateIndex(ApproximateIndex&&) noexcept = default;
  ApproximateIndex& operator=(ApproximateIndex&&) noexcept = default;

  // For reading only: writing to it directly breaks the invariants above.
  const Inner& get() const noexcept { return state_->index; }

  // The worker will hold these blocks from the start of a sequence. All or nothing; real blocks among them do
  // not change. Returns: kApplied; kEmpty for no blocks; kFull for more than the limit, or what the inner
  // index says when it takes no more.
  StoreVerdict predict(const Worker& worker, std::span<const LocalHash> locals) {
    return state_->ledger.predict(worker, locals);
  }
  // Ends expired predictions, at most `limit`. Returns how many. predict() and store() end a few each, which
  // bounds the backlog; the owner calls expire() periodically so that no prediction counts too long.
  std::size_t expire(std::size_t limit = SIZE_MAX) { return state_->ledger.expire(limit); }

  // All predictions that have not expired, parents first, and the real blocks before them.
  std::vector<PredictedBlock> predictions() const { return state_->ledger.predictions(); }
  // Predicts them again, to end when they would have. Requires: a list of predictions(), and an index without
  // predictions that holds the same real blocks (dump()).
  void restore(std::span<const PredictedBlock> blocks) { state_->ledger.restore(blocks); }

  // Predicted blocks now.
  std::size_t predicted() const noexcept { return state_->ledger.predicted(); }
  PredictionCounters prediction_counters() const noexcept { return state_->ledger.counters(); }

  StoreVerdict store(const BlocksStored& event) { return state_->ledger.store(event); }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
    return state_->ledger.remove(worker, tier, names);
  }
  void clear(const Worker& worker) { state_->ledger.clear(worker); }
  void remove_worker(WorkerId worker) { state_->ledger.remove_worker(worker); }

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options = {}) const {
    state_->index.find_matches(locals, scores, options);
  }
  void dump(IndexSink& sink) const {
    state_->ledger.dump(sink, [this](IndexSink& filtered) { state_->index.dump(filtered); });
  }
  IndexSizes sizes() const {
    IndexSizes sizes = state_->index.sizes();
    sizes.bytes += state_->ledger.bytes();
    return sizes;
  }
  IndexCounters counters() const { return state_->ledger.without_predictions(state_->index.counters()); }

 private:
  struct State {
    template <class... Args>
    explicit State(const ApproximateOptions& options, Args&&... args)
        : index(std::forward<Args>(args)...), sink(index), ledger(sink, options) {}

    Inner index;
    SinkOf<Inner> sink;
    detail::PredictionLedger ledger;
  };

  explicit ApproximateIndex(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}

  std::unique_ptr<State> state_;
};

}  // namespace ashlar::index
