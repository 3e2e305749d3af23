// Open addressing in a table twice as large as its capacity, so every search ends at a free cell. add() only
// tries the lock; report() swaps in an empty table and reads the old one without the lock.
#include "ashlar/events/access_sampler.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::events {

AccessSampler::AccessSampler(const Options& options)
    : every_(std::max(1u, options.every)),
      capacity_(std::max<std::size_t>(1, options.capacity)),
      cells_(std::bit_ceil(2 * capacity_)) {
  ASHLAR_CHECK(cells_.size() > capacity_, "a search ends at a free cell; %zu cells for %zu blocks have none",
               cells_.size(), capacity_);
}

void AccessSampler::add(TierId tier, const tokens::SequenceHash& hash) noexcept {
  if (mu_.try_lock()) {
    const std::size_t mask = cells_.size() - 1;
    std::size_t at = std::hash<tokens::SequenceHash>()(hash) * 0x9E3779B97F4A7C15u >> 20;
    bool counted = false;
    for (;; ++at) {
      Cell& cell = cells_[at & mask];
      if (cell.hits != 0 && (cell.hash != hash || cell.tier != tier)) continue;
      if (cell.hits == 0) {
        if (used_ == capacity_) break;
        ++used_;
        cell.hash = hash;
        cell.tier = tier;
      }
      cell.hits += static_cast<std::uint32_t>(every_);
      counted = true;
      break;
    }
    mu_.unlock();
    if (counted) return;
  }
  missed_.fetch_add(every_, std::memory_order_relaxed);
}

void AccessSampler::report(std::vector<KvEvent>& out) {
  std::vector<Cell> seen(std::bit_ceil(2 * capacity_));
  {
    const MutexLock lock(mu_);
    if (used_ == 0) return;
    ASHLAR_DCHECK(seen.size() == cells_.size(), "the table keeps its size, so that add() never allocates");
    seen.swap(cells_);
    used_ = 0;
  }
  for (const Cell& cell : seen) {
    if (cell.hits == 0) continue;
    KvEvent event;
    event.kind = KvEventKind::kAccess;
    event.tier = cell.tier;
    event.hash = cell.hash;
    event.block = cell.hits;
    out.push_back(event);
  }
}

}  // namespace ashlar::events
