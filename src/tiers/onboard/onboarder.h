// Onboarder: brings prefixes into G1, or into G2 for a prefetch.
//
// A call claims blocks before it onboards them; other calls that want them wait, and then find them in G1. So
// a block is copied once.
//
// Calls that are not run on their callers' threads wait for one of a few threads, in order. One that waits is
// ended at its deadline by a thread that does nothing else; one whose blocks are all in memory goes past the
// others to a thread of its own, since those may be waiting for a volume.
//
// Thread safety: thread-safe. Holds no lock while blocks move.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "tiers/onboard/onboard_call.h"
#include "tiers/onboard/tier_stack.h"

namespace ashlar::tiers {

class Onboarder {
 public:
  struct Options {
    std::uint32_t threads = 2;  // for calls not run on the caller's thread
    std::uint32_t block_size = 16;
    std::uint32_t layers = 1;  // of a block
    bool probe = true;
    // Called when blocks have arrived in G1 or G2.
    std::function<void()> arrived = {};
  };
  Onboarder(TierStack& stack, Options options) : stack_(stack), options_(std::move(options)) {}
  ~Onboarder() { stop(); }
  // Cancels calls that are not done, waits for running ones, and starts no more.
  void stop();
  // Returns blocks that arrived for calls whose handles never collected them. After stop().
  void drop_arrived();

  // Limits: for probes of volumes.
  // `why` is set where more is known of the block that ends the prefix than that no tier has it: volumes have
  // it in shards of other
  // ranks that do not make one of this rank.
  std::vector<TierRun> find(std::span<const tokens::SequenceHash> hashes, const CallLimits& limits,
                            const BlockLineage& first = {}, Miss* why = nullptr,
                            std::span<const std::string> sources = {});
  // The same without asking volumes.
  std::vector<TierRun> find_known(std::span<const tokens::SequenceHash> hashes) {
    return find_where(hashes, [](std::size_t, const TierPool*) {});
  }
  // Whether it asks volumes for blocks that no tier is known to have.
  bool probes() const {
    return (options_.probe && stack_.g4 != nullptr) || (stack_.remote != nullptr && stack_.remote->probes());
  }
  std::shared_ptr<OnboardCall> make_call(std::span<const tokens::SequenceHash> hashes,
                                         const OnboardOptions& options, bool only_to_g2) const {
    return std::make_shared<OnboardCall>(hashes, options, only_to_g2, options_.layers, *stack_.clock);
  }
  // Runs the call on the caller's thread.
  void run(const std::shared_ptr<OnboardCall>& call);
  // While it lives, no other call onboards these blocks. It claims all of them or, when `until` passed before
  // they were free, none.
  class Claim {
   public:
    Claim(Onboarder& onboarder, std::span<const tokens::SequenceHash> hashes,
          std::optional<Clock::TimePoint> until);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    explicit operator bool() const noexcept { return claimed_; }

   private:
    Onboarder& onboarder_;
    const std::vector<tokens::SequenceHash> hashes_;
    const bool claimed_;
  };
  // Runs the call on a thread of the onboarder. Errors: kCapacity: no thread; kCancelled: after stop().
  Result<void> start(std::shared_ptr<OnboardCall> call);
  // Calls that do not run on their callers' threads: those that wait for a thread, and those that run.
  struct Calls {
    std::size_t queued = 0;
    std::size_t running = 0;
  };
  Calls calls() const {
    const MutexLock lock(queue_mu_);
    return {queue_.size(), running_.size()};
  }
  // For tests: stops the process unless running and queued calls agree with the threads. Safe at any time.
  void check_invariants();

 private:
  // Blocks in flight to G2.
  struct ToHost {
    std::vector<tokens::SequenceHash> hashes;
    std::vector<const TierPool*> best;          // the tier that each is asked for first; null: none had it
    std::vector<Miss> missing;                  // why each is absent; kNone: present
    std::unique_ptr<BlockMover::Running> move;  // from G3
    std::vector<std::size_t> places;            // indices of its blocks
  };
  // Some blocks of a prefix in flight to G1. They are claimed.
  struct Batch {
    std::span<const tokens::SequenceHash> hashes;
    std::vector<std::optional<block::Hold>> here;     // already in G1
    std::vector<std::optional<block::Hold>> in_host;  // in G2
    std::vector<std::size_t> below;                   // those of to_host
    ToHost to_host;
    std::unique_ptr<BlockMover::Running> up;  // from G2
    std::vector<std::size_t> moved;           // its blocks
    bool by_layer = false;
    std::size_t end = 0;     // no block from here on is onboarded
    Miss why = Miss::kNone;  // for this reason
  };
  struct Arrived {
    std::size_t count = 0;   // leading blocks of the batch that arrived
    Miss why = Miss::kNone;  // why the next did not
  };

  // Which queued calls a thread of the onboarder runs: all, those in memory, or those that are late.
  enum class Turn : std::uint8_t { kAny, kInMemory, kLate };
  void work(Turn turn);
  // Waits for a call of this kind, and moves it to the running ones. Null: the onboarder is stopping.
  std::shared_ptr<OnboardCall> next(Turn turn);
  // Starts the thread if it does not run yet; without one its calls wait as the others.
  void start_locked(std::thread& thread, Turn turn) ASHLAR_REQUIRES(queue_mu_);
  // Whether one more call would wait for a thread.
  bool all_busy_locked() const ASHLAR_REQUIRES(queue_mu_) { return queue_.size() + busy_ >= threads_.size(); }
  // Whether G1 and G2 seem to have every block of the call.
  bool is_in_memory(const OnboardCall& call) const;
  // Called with the place of a block that no tier has, or that is best had from a tier of this node below G2,
  // and with that tier.
  using Ask = std::function<void(std::size_t place, const TierPool* best)>;
  // Ends with the first block that is absent although `ask` was called.
  std::vector<TierRun> find_where(std::span<const tokens::SequenceHash> hashes, const Ask& ask);
  // Whether Remote is measured to be faster than a tier; `if_unmeasured`, as long as one of them is not.
  bool may_be_slower(const TierPool& tier, bool if_unmeasured) const;
  // Asks peers for blocks that `best` has; only the sources, unless it is measured to be slower. Returns the
  // place up to which that is settled.
  std::size_t ask_for_known(RemotePool::Question question, const TierPool& best, const CallLimits& limits);
  // G3 and G4, where there are peers to compare them with.
  bool is_local_below_g2(const TierPool& pool) const {
    return stack_.remote != nullptr && (&pool == stack_.g3.get() || &pool == stack_.g4.get());
  }
  OnboardTable run_up(OnboardCall& call, std::size_t wanted);
  void run_prefetch(OnboardCall& call, std::size_t wanted);
  Batch begin(OnboardCall& call, std::span<const tokens::SequenceHash> hashes, bool last);
  void begin_up(OnboardCall& call, Batch& batch, const MoveOptions& how);
  Arrived finish(OnboardCall& call, Batch& batch, const OnboardTable& table);
  void abandon(std::optional<Batch> batch);
  ToHost begin_to_host(OnboardCall& call, std::vector<tokens::SequenceHash> hashes);
  std::vector<Miss> finish_to_host(OnboardCall& call, ToHost& to_host);
  // The missing blocks that a tier can supply: those for which it is the best, or the others.
  std::vector<std::size_t> offered_by(TierPool& pool, bool as_best, const OnboardCall& call, ToHost& to_host);
  void account(TierPool& pool, const MoveReport& report);
  // The tiers below G2, the fastest first as far as measured.
  std::vector<TierPool*> below_g2() const;
  // What a block takes from each tier below G2, for a loop over blocks.
  struct BlockCosts {
    double g3 = 0;
    double g4 = 0;
    RemotePool::BlockCost remote = {};
  };
  BlockCosts block_costs() const;
  // The tier below G2 to have a block from, by who has it: a peer may be slow, and another one fast. Null: no
  // tier has it.
  TierPool* best_below_g2(const tokens::SequenceHash& hash, BlockCosts& costs) const;
  // Expected seconds of one block; 0: not measured.
  double block_seconds(const TierPool& pool) const;
  MoveOptions move_options(OnboardCall& call) const;
  // Why the tier's block of this name is not the one that the call wants; kNone: it is, as far as is known.
  static Miss other_content(const OnboardCall& call, TierPool& pool, const tokens::SequenceHash& hash);
  // Of the blocks from `first` on, up to `end`.
  std::size_t batch_size(const OnboardCall& call, std::size_t first, std::size_t end) const;
  // False when the call was cancelled or is late, when `until` has passed, or when another call has some of
  // them and this one is not to wait. A call that holds a claim does not wait: two calls could deadlock.
  bool claim(const OnboardCall* call, std::span<const tokens::SequenceHash> hashes, bool wait,
             std::optional<Clock::TimePoint> until = {});
  void release(std::span<const tokens::SequenceHash> hashes);

  TierStack& stack_;
  const Options options_;
  Mutex mu_;
  CondVar released_;
  std::unordered_set<tokens::SequenceHash> coming_ ASHLAR_GUARDED_BY(mu_);  // being onboarded

  mutable Mutex queue_mu_;
  CondVar queued_;     // for threads_
  CondVar in_memory_;  // for memory_thread_
  CondVar deadline_;   // for deadline_thread_
  std::deque<std::shared_ptr<OnboardCall>> queue_ ASHLAR_GUARDED_BY(queue_mu_);
  std::vector<std::shared_ptr<OnboardCall>> running_ ASHLAR_GUARDED_BY(queue_mu_);
  std::vector<std::weak_ptr<OnboardCall>> done_ ASHLAR_GUARDED_BY(queue_mu_);  // may have a table
  std::vector<std::thread> threads_ ASHLAR_GUARDED_BY(queue_mu_);
  std::size_t busy_ ASHLAR_GUARDED_BY(queue_mu_) = 0;  // of threads_
  std::thread memory_thread_ ASHLAR_GUARDED_BY(queue_mu_);
  std::thread deadline_thread_ ASHLAR_GUARDED_BY(queue_mu_);
  bool stopping_ ASHLAR_GUARDED_BY(queue_mu_) = false;
};

}  // namespace ashlar::tiers
