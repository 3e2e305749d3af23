#include "ashlar/index/flash_index.h"

#include <algorithm>
#include <optional>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "index/common/call_batch.h"
#include "index/flash/flash_tree.h"

namespace ashlar::index {

namespace {

// Names a removal processes before other writers get a turn.
constexpr std::size_t kNamesAtOnce = 1'024;

}  // namespace

struct FlashIndex::State {
  explicit State(const FlashOptions& options) : tree(options) {}

  // Calls fn(guard) as a reader until it returns true: first without a lock; under the writers' lock when
  // more threads read than the domain has lines, or writers end era after era before the reader finishes.
  template <class F>
  void read(F&& fn) {
    {
      detail::EraDomain::Guard guard = tree.domain().enter();
      if (guard.ok() && fn(guard)) [[likely]]
        return;
    }
    const MutexLock lock(writer);
    detail::EraDomain::Guard locked = tree.domain().enter_locked();
    const bool done = fn(locked);
    ASHLAR_CHECK(done, "an era ended under the writers' lock");
  }

  Mutex writer;
  detail::FlashTree tree;  // written to under `writer`
};

FlashIndex::FlashIndex(const FlashOptions& options) : state_(std::make_unique<State>(options)) {}
FlashIndex::~FlashIndex() = default;

StoreVerdict FlashIndex::store(const BlocksStored& event) {
  for (;;) {
    const MutexLock lock(state_->writer);
    if (const std::optional<StoreVerdict> verdict = state_->tree.store(event)) return *verdict;
  }
}

std::size_t FlashIndex::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  std::size_t removed = 0;
  do {
    const std::span<const BlockName> some = names.first(std::min(names.size(), kNamesAtOnce));
    names = names.subspan(some.size());
    const MutexLock lock(state_->writer);
    removed += state_->tree.remove(worker, tier, some);
  } while (!names.empty());
  return removed;
}

void FlashIndex::clear(const Worker& worker) {
  const MutexLock lock(state_->writer);
  state_->tree.clear(worker);
}

void FlashIndex::remove_worker(WorkerId worker) {
  for (std::optional<std::uint32_t> rank = 0; rank;) {
    const MutexLock lock(state_->writer);
    rank = state_->tree.remove_worker(worker, *rank);
  }
}

void FlashIndex::find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                              const FindOptions& options) const {
  if (state_->tree.is_unknown(locals, scores)) return;
  state_->read([&](detail::EraDomain::Guard& guard) {
    return state_->tree.find(locals, scores, options.early_exit, guard);
  });
}

void FlashIndex::find_matches(std::span<const std::span<const LocalHash>> queries,
                              std::span<MatchScores> scores, const FindOptions& options) const {
  ASHLAR_CHECK(scores.size() >= queries.size(), "%zu queries, room for %zu answers", queries.size(),
               scores.size());
  state_->read([&](detail::EraDomain::Guard& guard) {
    return state_->tree.find_batch(queries, scores, options.early_exit, guard);
  });
}

void FlashIndex::places(std::span<const LocalHash> locals, std::size_t first, const Worker& worker,
                        std::span<BlockPlace> out) const {
  ASHLAR_CHECK(first <= locals.size() && locals.size() - first == out.size(),
               "%zu blocks from %zu on, room for %zu answers", locals.size(), first, out.size());
  const MutexLock lock(state_->writer);
  state_->tree.places(locals, first, worker, out);
}

bool FlashIndex::presence(const Worker& worker, std::span<const BlockName> names,
                          std::span<BlockPresence> out) const {
  ASHLAR_CHECK(names.size() == out.size(), "%zu names, room for %zu answers", names.size(), out.size());
  for (std::size_t first = 0; first < names.size(); first += kNamesAtOnce) {
    const std::size_t count = std::min(names.size() - first, kNamesAtOnce);
    const MutexLock lock(state_->writer);
    state_->tree.presence(worker, names.subspan(first, count), out.subspan(first, count));
  }
  return true;
}

bool FlashIndex::list(const Worker& worker, std::vector<BlockPresence>& out) const {
  const MutexLock lock(state_->writer);
  state_->tree.list(worker, out);
  return true;
}

bool FlashIndex::holds_nothing(const Worker& worker) const {
  const MutexLock lock(state_->writer);
  return state_->tree.holds_nothing(worker);
}

void FlashIndex::dump(IndexSink& sink) const {
  // The sink is called without the lock: it may be slow, or write to this index.
  detail::CallBatch calls;
  {
    const MutexLock lock(state_->writer);
    state_->tree.dump(calls);
  }
  calls.apply(sink);
}

void FlashIndex::outline(IndexOutline& out) const {
  out = {};
  detail::FlashTree::OutlineWalk walk;
  for (bool has_more = true; has_more;) {
    const MutexLock lock(state_->writer);
    has_more = state_->tree.outline_some(walk, out);
  }
}

IndexSizes FlashIndex::sizes() const {
  const MutexLock lock(state_->writer);
  return state_->tree.sizes();
}

IndexCounters FlashIndex::counters() const {
  const MutexLock lock(state_->writer);
  return state_->tree.counters();
}

FlashWork FlashIndex::work() const {
  const MutexLock lock(state_->writer);
  return state_->tree.work();
}

std::size_t FlashIndex::waiting_bytes() const noexcept {
  return state_->tree.domain().waiting_bytes();
}

}  // namespace ashlar::index
