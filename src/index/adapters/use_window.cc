#include "ashlar/index/use_window.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "index/adapters/use_counts.h"

namespace ashlar::index {

Result<void> UseWindowOptions::validate() const {
  if (buckets == 0 || buckets > kMaxBuckets) {
    return make_error(ErrorCode::kInvalidArgument, "buckets is %u; it must be 1 to %u", buckets, kMaxBuckets);
  }
  if (window.count() < static_cast<std::int64_t>(buckets)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "window is %lld ns; it must be at least 1 ns for each of the %u buckets",
                      static_cast<long long>(window.count()), buckets);
  }
  if (max_contents == 0 || max_contents > kMaxContents) {
    return make_error(ErrorCode::kInvalidArgument, "max_contents is %zu; it must be 1 to %zu", max_contents,
                      kMaxContents);
  }
  if (ring_blocks < 2 || ring_blocks > kMaxRingBlocks) {
    return make_error(ErrorCode::kInvalidArgument, "ring_blocks is %zu; it must be 2 to %zu", ring_blocks,
                      kMaxRingBlocks);
  }
  return {};
}

// A ring of words from one recorder to the collector. A prefix is its length followed by its local hashes.
// Both ends count words since the start; each is written by one side.
class UseWindow::Ring {
 public:
  explicit Ring(std::size_t words)
      : mask_(std::bit_ceil(words) - 1), words_(std::make_unique<std::uint64_t[]>(mask_ + 1)) {}

  // --- The recorder's side. ---

  bool put(std::span<const LocalHash> prefix) noexcept {
    // relaxed: only this side writes it.
    const std::uint64_t begin = written_.load(std::memory_order_relaxed);
    const std::uint64_t end = begin + prefix.size() + 1;
    if (end - seen_taken_ > mask_ + 1) {
      // acquire: pairs with the release in take(); the collector has read the words to be overwritten.
      seen_taken_ = taken_.load(std::memory_order_acquire);
      if (end - seen_taken_ > mask_ + 1) {
        // relaxed: a counter with one writer.
        dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return false;
      }
    }
    words_[begin & mask_] = prefix.size();
    for (std::size_t i = 0; i < prefix.size(); ++i) words_[(begin + 1 + i) & mask_] = prefix[i].value();
    // relaxed: a counter with one writer.
    recorded_.store(recorded_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    // release: pairs with the acquire in take().
    written_.store(end, std::memory_order_release);
    return true;
  }
  // release: pairs with the acquire in is_closed(); all puts come before.
  void close() noexcept { closed_.store(true, std::memory_order_release); }

  // --- The collector's side. ---

  // acquire: pairs with the release in close(); a later written() is final.
  bool is_closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  // Words put before the call. acquire: pairs with the release in put().
  std::uint64_t written() const noexcept { return written_.load(std::memory_order_acquire); }

  // Counts prefixes put before `end`, a value of written(), until they have `most` blocks. Adds the blocks
  // without room to `uncounted`. Returns false when more remain.
  bool take(std::uint64_t end, std::size_t most, detail::UseCounts& counts, std::vector<LocalHash>& scratch,
            std::uint64_t& uncounted) {
    // relaxed: only this side writes it.
    std::uint64_t at = taken_.load(std::memory_order_relaxed);
    const std::uint64_t begin = at;
    while (at != end && at - begin < most) {
      scratch.resize(words_[at & mask_]);
      for (std::size_t i = 0; i < scratch.size(); ++i) scratch[i] = LocalHash(words_[(at + 1 + i) & mask_]);
      at += scratch.size() + 1;
      ASHLAR_DCHECK(at <= end, "a prefix of %zu blocks reaches beyond what was recorded", scratch.size());
      uncounted += counts.use(scratch);
    }
    // release: pairs with the acquire in put().
    taken_.store(at, std::memory_order_release);
    return at == end;
  }

  // relaxed: counters that order nothing.
  std::uint64_t recorded() const noexcept { return recorded_.load(std::memory_order_relaxed); }
  std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  const std::size_t mask_;
  const std::unique_ptr<std::uint64_t[]> words_;

  // Written by the recorder.
  alignas(64) std::atomic<std::uint64_t> written_{0};
  std::uint64_t seen_taken_ = 0;  // taken_ when last loaded
  std::atomic<std::uint64_t> recorded_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> closed_{false};

  // Written by the collector.
  alignas(64) std::atomic<std::uint64_t> taken_{0};
};

UseWindow::Recorder::~Recorder() {
  if (ring_) ring_->close();
}

UseWindow::Recorder& UseWindow::Recorder::operator=(Recorder&& other) noexcept {
  std::swap(ring_, other.ring_);
  return *this;
}

bool UseWindow::Recorder::record(std::span<const LocalHash> locals, std::size_t depth) noexcept {
  const std::span<const LocalHash> prefix = locals.first(std::min(depth, locals.size()));
  return prefix.empty() || ring_->put(prefix);
}

namespace {
// Contents forgotten and blocks counted under one hold of the lock, except for the last prefix.
constexpr std::size_t kPerHold = 4096;
}  // namespace

struct UseWindow::State {
  explicit State(const UseWindowOptions& chosen)
      : bucket(chosen.window / chosen.buckets),
        ring_blocks(chosen.ring_blocks),
        counts(chosen.buckets, chosen.max_contents) {}

  const Clock::Duration bucket;
  const std::size_t ring_blocks;

  Mutex collect_mu;  // held throughout collect(); then mu, for parts of it
  mutable Mutex mu;
  detail::UseCounts counts ASHLAR_GUARDED_BY(mu);
  std::vector<std::shared_ptr<Ring>> rings ASHLAR_GUARDED_BY(mu);
  UseCounters past ASHLAR_GUARDED_BY(mu);  // of rings that are gone; and uncounted
  std::vector<LocalHash> scratch ASHLAR_GUARDED_BY(mu);
};

UseWindow::UseWindow(const UseWindowOptions& options) : state_(std::make_unique<State>(options)) {}
UseWindow::~UseWindow() = default;

Result<std::unique_ptr<UseWindow>> UseWindow::create(const UseWindowOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return std::unique_ptr<UseWindow>(new UseWindow(options));
}

UseWindow::Recorder UseWindow::recorder() {
  auto ring = std::make_shared<Ring>(state_->ring_blocks);
  const MutexLock lock(state_->mu);
  state_->rings.push_back(ring);
  return Recorder(std::move(ring));
}

void UseWindow::collect(Clock::TimePoint now) {
  State& state = *state_;
  const MutexLock alone(state.collect_mu);
  const std::int64_t bucket = std::max<std::int64_t>(now.time_since_epoch() / state.bucket, 0);
  for (bool done = false; !done;) {
    const MutexLock lock(state.mu);
    done = state.counts.advance(bucket, kPerHold);
  }
  std::vector<std::shared_ptr<Ring>> rings;
  {
    const MutexLock lock(state.mu);
    rings = state.rings;
  }
  for (const std::shared_ptr<Ring>& ring : rings) {
    const bool closed = ring->is_closed();
    const std::uint64_t end = ring->written();
    for (bool done = false; !done;) {
      const MutexLock lock(state.mu);
      done = ring->take(end, kPerHold, state.counts, state.scratch, state.past.uncounted);
      if (!done || !closed) continue;
      state.past.recorded += ring->recorded();
      state.past.dropped += ring->dropped();
      std::erase(state.rings, ring);
    }
  }
}

std::size_t UseWindow::recent_uses(std::span<const LocalHash> locals, std::span<std::uint32_t> uses) const {
  const MutexLock lock(state_->mu);
  return state_->counts.read(locals.first(std::min(locals.size(), uses.size())), uses);
}

UseCounters UseWindow::counters() const {
  const MutexLock lock(state_->mu);
  UseCounters counters = state_->past;
  for (const std::shared_ptr<Ring>& ring : state_->rings) {
    counters.recorded += ring->recorded();
    counters.dropped += ring->dropped();
  }
  counters.shortened = state_->counts.shortened();
  counters.contents = state_->counts.contents();
  counters.bytes = state_->counts.bytes();
  counters.recorders = state_->rings.size();
  return counters;
}

}  // namespace ashlar::index
