// OffloadTable: the blocks on their way down one route. Each has one entry, which says how far it is, who
// wants it, what it waits for, and with which rank.
//
//   blocked ----> waiting ----> upgrading ----> on deck ----> in flight ----> (ended)
//
// A block is blocked until the preconditions of the calls that want it have passed. It then waits by hash
// only: the cache may evict it meanwhile, and another block of its name may be registered. Blocks on deck are
// held in the source tier, ready to be copied; their number is bounded. One whose registration has a
// precondition is let go again, and blocked until that has passed. The next batch comes from the deck: higher
// priority first, older first among equals. A block that can no longer be held has gone. So no block is
// copied twice, and none before its bytes are complete.
//
// A block is wanted by calls, which may leave again by a cancel or a deadline, or permanently. One that
// nobody wants leaves the table; a copy in flight is stopped when nobody wants any block of its batch.
//
// Thread safety: thread-safe; one lock. Holds are taken and dropped outside it.
// Complexity:    O(log blocks) per step of a block. A precondition that passes costs O(blocked blocks).
// Invariant:     see check_invariants().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/pin.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tiers/offload_options.h"
#include "ashlar/tokens/sequence_hash.h"
#include "tiers/offload/offload_call.h"
#include "tiers/pool/block_mover.h"

namespace ashlar::tiers {

// Blocks that are copied together.
struct OffloadBatch {
  struct Member {
    tokens::SequenceHash hash;
    std::uint8_t priority = 0;
  };
  std::vector<Member> members;
  std::optional<Clock::TimePoint> deadline;  // after it no call wants any of them
  MoveControl control;
};

class OffloadTable : public std::enable_shared_from_this<OffloadTable> {
 public:
  // A block of the source tier, held, and the precondition of its own registration unless that has passed.
  struct Source {
    block::Hold hold;
    std::optional<block::Fence> after = {};
  };
  // Finds the block that has the name now; empty when it was evicted.
  using Upgrade = std::function<std::optional<Source>(const tokens::SequenceHash&)>;

  // `upgrade` is not called after close(). Requires: valid options, 1 <= largest_batch.
  OffloadTable(const OffloadWorkerOptions& options, std::size_t largest_batch, Clock& clock, Upgrade upgrade);

  // ---- callers

  struct Wanted {
    tokens::SequenceHash hash;
    std::vector<block::Fence> after = {};  // preconditions beside that of its registration
  };
  // Adds blocks that passed the policy, for a call, or permanently when `call` is null; blocks that did not
  // pass end for the call. A few at a time: it holds the lock meanwhile. Requires: the hashes differ, and are
  // pending in the call.
  void offer(std::span<const Wanted> wanted, std::span<const tokens::SequenceHash> filtered,
             std::uint8_t priority, const std::shared_ptr<OffloadCall>& call = {});
  // All blocks of the call were offered: its deadline counts from here on.
  void offered(const std::shared_ptr<OffloadCall>& call);
  OffloadProgress progress(OffloadCall& call);
  // Waits until the call has ended, at most until `when`. Errors: see OffloadHandle.
  Result<OffloadProgress> wait(OffloadCall& call, std::optional<Clock::TimePoint> when);
  void cancel(const std::shared_ptr<OffloadCall>& call);

  // ---- the worker's thread

  // Waits until a batch is due. False when the table is stopping, or when `wait` is false and none is due.
  bool wait_for_batch(bool wait);
  // Takes the next batch from the deck, in order, with the holds of its blocks; it may be empty.
  std::pair<std::shared_ptr<OffloadBatch>, std::vector<block::Hold>> take();
  // Ends a batch. Stopped blocks that somebody wants are queued again.
  void finish(const std::shared_ptr<OffloadBatch>& batch, const MoveReport& report);
  // Lets wait_for_batch() return.
  void stop();
  // Ends every entry as cancelled. Requires: no batch is in flight, and no other call runs or follows except
  // those of handles.
  void close();

  // ---- the manager

  // Starts queued blocks at once, and waits until none is queued or in flight. False: `until` passed first.
  bool drain(std::optional<Clock::TimePoint> until);
  // How withdraw() treats copies in flight.
  enum class Started : std::uint8_t { kFinish, kStop };
  // Takes the blocks out, and waits for those in flight or stops their batches.
  void withdraw(std::span<const tokens::SequenceHash> hashes, Started started);
  // What becomes of blocks that are offered after drop_queued(): some of a call may follow its first ones.
  enum class Later : std::uint8_t { kAccept, kRefuse };
  // Takes out every block that is not in flight. Returns their number. Those that are refused from then on
  // end as cancelled.
  std::size_t drop_queued(Later later);
  // Changes the priority of a block that is not in flight yet.
  void set_priority(const tokens::SequenceHash& hash, std::uint8_t priority);
  OffloadCounters counters() const;
  // For tests: stops the process unless entries, lists and calls agree. O(entries). Safe at any time.
  void check_invariants() const;

 private:
  // In the order of a block's way, but for the three with a list, which come first.
  enum class Stage : std::uint8_t { kBlocked, kWaiting, kOnDeck, kNew, kUpgrading, kInFlight };
  static constexpr std::size_t kLists = 3;
  static constexpr std::size_t kStages = 6;
  // Higher priority first, then older first. The age also tells one entry of a hash from a later one.
  struct Rank {
    std::uint8_t below = 0;  // 255 - priority
    std::uint64_t age = 0;

    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  struct Precondition {
    const OffloadCall* call = nullptr;  // whose it is; null: the block's own
    block::Fence fence;
  };
  using List = std::map<Rank, tokens::SequenceHash>;
  struct Entry {
    Stage stage = Stage::kNew;
    bool permanently = false;
    bool renewed = false;    // wanted again since its block was looked for
    bool withdrawn = false;  // leaves as soon as it can
    Rank rank;
    std::vector<std::shared_ptr<OffloadCall>> calls;
    std::vector<Precondition> after;
    // Of the registration of the block that was last found under the name; watched. The next may have none.
    std::optional<block::Fence> written;
    List::node_type node;                 // its place in a list, while it is in none
    std::optional<block::Hold> hold;      // on deck
    std::shared_ptr<OffloadBatch> batch;  // in flight

    bool wanted() const noexcept { return permanently || !calls.empty(); }
    // Whether nothing is known to keep it from the deck, once the preconditions of calls have passed.
    bool may_be_written() const noexcept {
      return renewed || !written || written->passed() || written->never_passes();
    }
  };
  using Entries = std::unordered_map<tokens::SequenceHash, Entry>;
  // What a change leaves to be done without the lock; declared before the lock is taken.
  struct Aftermath {
    std::vector<block::Hold> dropped;
    std::vector<std::shared_ptr<OffloadBatch>> stopped;
    std::vector<block::Fence> unwatched;

    bool empty() const noexcept { return dropped.empty() && stopped.empty(); }
    ~Aftermath() {
      for (const std::shared_ptr<OffloadBatch>& batch : stopped) batch->control.cancel();
    }
  };

  static constexpr bool is_listed(Stage stage) noexcept { return static_cast<std::size_t>(stage) < kLists; }
  std::size_t& count(Stage stage) ASHLAR_REQUIRES(mu_) { return counts_[static_cast<std::size_t>(stage)]; }
  std::size_t count(Stage stage) const ASHLAR_REQUIRES(mu_) {
    return counts_[static_cast<std::size_t>(stage)];
  }
  List& list(Stage stage) ASHLAR_REQUIRES(mu_) { return lists_[static_cast<std::size_t>(stage)]; }
  const List& list(Stage stage) const ASHLAR_REQUIRES(mu_) { return lists_[static_cast<std::size_t>(stage)]; }
  void move(Entries::iterator at, Stage stage) ASHLAR_REQUIRES(mu_);
  void move(Entry& entry, Rank rank) ASHLAR_REQUIRES(mu_);
  // Moves a block from the deck, or from an upgrade, to the blocked ones.
  void block(Entries::iterator at, Aftermath& after) ASHLAR_REQUIRES(mu_);
  void join(const Wanted& wanted, std::uint8_t priority, const std::shared_ptr<OffloadCall>& call,
            Aftermath& after) ASHLAR_REQUIRES(mu_);
  // Lets a block wait for the deck, or refuses it: the in-queue may be full.
  void enqueue(Entries::iterator at, Aftermath& after) ASHLAR_REQUIRES(mu_);
  void unblock(Aftermath& after) ASHLAR_REQUIRES(mu_);
  // Ends the calls whose deadline has passed.
  void expire(Aftermath& after) ASHLAR_REQUIRES(mu_);
  // Ends what is pending of a call that was cancelled or is late.
  void abandon(const std::shared_ptr<OffloadCall>& call, std::size_t OffloadProgress::* outcome,
               Aftermath& after) ASHLAR_REQUIRES(mu_);
  // Ends a block for everybody who wants it.
  void end(Entries::iterator at, std::size_t OffloadProgress::* outcome, Aftermath& after,
           const std::optional<Error>& error = {}) ASHLAR_REQUIRES(mu_);
  // Takes out a block that nobody wants, or stops its batch if nobody wants any of it.
  void release(Entries::iterator at, Aftermath& after) ASHLAR_REQUIRES(mu_);
  bool deck_has_room() const ASHLAR_REQUIRES(mu_);
  // Waiting blocks for which the deck has room, now on their way to it; refill() takes them there.
  std::vector<tokens::SequenceHash> next_for_deck() ASHLAR_REQUIRES(mu_);
  // Moves these and further waiting blocks to the deck until it is full.
  void refill(std::vector<tokens::SequenceHash> hashes);
  void refill();
  void upgraded(const tokens::SequenceHash& hash, std::optional<Source> source, Aftermath& after)
      ASHLAR_REQUIRES(mu_);
  // When the next batch is due; empty: not before the deck changes.
  std::optional<Clock::TimePoint> next_batch() ASHLAR_REQUIRES(mu_);
  void watch(const block::Fence& fence);

  const OffloadWorkerOptions options_;
  const std::size_t largest_batch_;
  Clock& clock_;
  const Upgrade upgrade_;

  mutable Mutex mu_;
  CondVar work_;     // for the worker's thread
  CondVar changed_;  // for drain() and withdraw()
  Entries entries_ ASHLAR_GUARDED_BY(mu_);
  std::array<List, kLists> lists_ ASHLAR_GUARDED_BY(mu_);
  std::array<std::size_t, kStages> counts_ ASHLAR_GUARDED_BY(mu_) = {};  // entries by stage
  std::set<std::pair<Clock::TimePoint, std::shared_ptr<OffloadCall>>> deadlines_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t next_age_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool fences_changed_ ASHLAR_GUARDED_BY(mu_) = false;             // some blocked block may be free
  std::optional<Clock::TimePoint> oldest_ ASHLAR_GUARDED_BY(mu_);  // when the oldest queued block came
  Clock::TimePoint not_before_ ASHLAR_GUARDED_BY(mu_) = {};        // the byte budget is spent until then
  std::size_t flushers_ ASHLAR_GUARDED_BY(mu_) = 0;                // calls of drain()
  bool refusing_ ASHLAR_GUARDED_BY(mu_) = false;                   // what is offered
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  OffloadCounters counters_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
