#include "ashlar/events/access_sampler.h"

#include <algorithm>
#include <new>

namespace ashlar::events {

AccessSampler::AccessSampler(const Options& options)
    : every_(std::max(1u, options.every)), capacity_(std::max<std::size_t>(1, options.capacity)) {
  hits_.reserve(capacity_);
}

void AccessSampler::add(TierId tier, const tokens::SequenceHash& hash) noexcept {
  const std::unique_lock lock(mu_, std::try_to_lock);
  if (lock.owns_lock()) {
    try {
      const Key key{hash, tier};
      if (const auto known = hits_.find(key); known != hits_.end()) {
        known->second += static_cast<std::uint32_t>(every_);
        return;
      }
      if (hits_.size() < capacity_) {
        hits_.emplace(key, static_cast<std::uint32_t>(every_));
        return;
      }
    } catch (const std::bad_alloc&) {
      // it is missed
    }
  }
  missed_.fetch_add(every_, std::memory_order_relaxed);
}

void AccessSampler::report(std::vector<KvEvent>& out) {
  std::unordered_map<Key, std::uint32_t, KeyHash> seen;
  seen.reserve(capacity_);
  {
    const std::lock_guard lock(mu_);
    seen.swap(hits_);
  }
  for (const auto& [key, hits] : seen) {
    KvEvent event;
    event.kind = KvEventKind::kAccess;
    event.tier = key.tier;
    event.hash = key.hash;
    event.block = hits;
    out.push_back(event);
  }
}

}  // namespace ashlar::events
