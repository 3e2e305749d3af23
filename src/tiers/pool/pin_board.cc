#include "tiers/pool/pin_board.h"

#include <algorithm>
#include <string>

#include "ashlar/base/check.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

bool PinRequest::active() const {
  const std::shared_ptr<PinBoard> board = board_.lock();
  if (board == nullptr || board->now() >= end_) return false;
  const MutexLock lock(mu_);
  return !ended_;
}

std::size_t PinRequest::pinned() const {
  if (!active()) return 0;
  const MutexLock lock(mu_);
  return pins_.size();
}

std::size_t PinRequest::refused() const {
  const MutexLock lock(mu_);
  return refused_;
}

void PinRequest::end() noexcept {
  if (const std::shared_ptr<PinBoard> board = board_.lock()) board->take_off(*this);
  Pins gone;  // ended outside the lock
  const MutexLock lock(mu_);
  ended_ = true;
  gone.swap(pins_);
}

Result<void> PinRequest::pin(TierPool& pool, const SequenceHash& hash, Clock::TimePoint now) {
  if (now >= end_) return {};
  Result<block::Pin> made = pool.pin(hash, end_ - now);
  if (!made) {
    if (made.error().code() == ErrorCode::kNotFound) return {};
    const MutexLock lock(mu_);
    ++refused_;
    return made.error();
  }
  // The pin of an earlier life of the block, or of another thread that found it too, ends outside the lock.
  const MutexLock lock(mu_);
  if (!ended_ && !forgotten_.contains(hash)) std::swap(pins_[Key(hash, pool.tier())], *made);
  return {};
}

Result<std::shared_ptr<PinRequest>> PinBoard::pin(std::span<const SequenceHash> hashes, Clock::Duration ttl,
                                                  std::span<TierPool* const> pools) {
  if (ttl <= Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "a pin of %lld ns; its time must be positive",
                      static_cast<long long>(ttl.count()));
  std::vector<SequenceHash> names(hashes.begin(), hashes.end());
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  const Clock::TimePoint start = now();
  const Clock::TimePoint end = ttl > Clock::TimePoint::max() - start ? Clock::TimePoint::max() : start + ttl;
  const auto request = std::make_shared<PinRequest>(weak_from_this(), std::move(names), end);
  const auto pin_all = [&]() -> Result<void> {
    {
      const MutexLock lock(mu_);
      for (const SequenceHash& hash : request->hashes_) {
        wanted_.emplace(hash, request);
        count_.store(wanted_.size(), std::memory_order_relaxed);
      }
    }
    for (TierPool* const pool : pools)
      for (const SequenceHash& hash : request->hashes_)
        if (Result<void> pinned = request->pin(*pool, hash, start); !pinned)
          return make_error(pinned.error().code(), "%zu hashes cannot be pinned in %s: %s",
                            request->hashes_.size(), std::string(pool->name()).c_str(),
                            pinned.error().message().c_str());
    return {};
  };
  const Result<void> pinned = unless_out_of_memory(pin_all);
  if (pinned) return request;
  request->end();
  return pinned.error();
}

// Without memory a block stays unpinned, as where its tier has no pin left.
void PinBoard::arrived(TierPool& pool, std::span<const block::RegisteredBlock> blocks) noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  const auto pin_each = [&] {
    std::vector<std::pair<std::shared_ptr<PinRequest>, SequenceHash>> wanted;
    {
      const MutexLock lock(mu_);
      for (const block::RegisteredBlock& block : blocks) {
        const auto [first, last] = wanted_.equal_range(block.identity.hash);
        for (auto at = first; at != last; ++at) wanted.emplace_back(at->second, at->first);
      }
    }
    const Clock::TimePoint time = now();
    for (const auto& [request, hash] : wanted) static_cast<void>(request->pin(pool, hash, time));
    return true;
  };
  unless_out_of_memory(pin_each, [] { return false; });
}

void PinBoard::forget(std::span<const SequenceHash> hashes) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<std::pair<std::shared_ptr<PinRequest>, SequenceHash>> found;
  {
    const MutexLock lock(mu_);
    for (const SequenceHash& hash : hashes) {
      const auto [first, last] = wanted_.equal_range(hash);
      for (auto at = first; at != last; ++at) found.emplace_back(at->second, hash);
      wanted_.erase(first, last);
    }
    count_.store(wanted_.size(), std::memory_order_relaxed);
  }
  std::vector<PinRequest::Pins::node_type> gone;  // ended outside the locks
  for (const auto& [request, hash] : found) {
    const MutexLock lock(request->mu_);
    request->forgotten_.insert(hash);
    for (std::uint8_t tier = 0; tier < events::kMaxTiers; ++tier)
      gone.push_back(request->pins_.extract(PinRequest::Key(hash, events::TierId(tier))));
  }
}

// Without memory the blocks stay until their pins end.
void PinBoard::removed(events::TierId tier, std::span<const SequenceHash> hashes) noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  const auto end_each = [&] {
    std::vector<std::pair<std::shared_ptr<PinRequest>, SequenceHash>> found;
    {
      const MutexLock lock(mu_);
      for (const SequenceHash& hash : hashes) {
        const auto [first, last] = wanted_.equal_range(hash);
        for (auto at = first; at != last; ++at) found.emplace_back(at->second, hash);
      }
    }
    std::vector<PinRequest::Pins::node_type> gone(found.size());  // ended outside the locks
    for (std::size_t i = 0; i < found.size(); ++i) {
      PinRequest& request = *found[i].first;
      const MutexLock lock(request.mu_);
      gone[i] = request.pins_.extract(PinRequest::Key(found[i].second, tier));
    }
    return true;
  };
  unless_out_of_memory(end_each, [] { return false; });
}

void PinBoard::forget_in(events::TierId tier) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<std::pair<std::shared_ptr<PinRequest>, SequenceHash>> wanted;
  {
    const MutexLock lock(mu_);
    wanted.reserve(wanted_.size());
    for (const auto& [hash, request] : wanted_) wanted.emplace_back(request, hash);
  }
  for (const auto& [request, hash] : wanted) {
    PinRequest::Pins::node_type gone;  // ended outside the lock
    const MutexLock lock(request->mu_);
    gone = request->pins_.extract(PinRequest::Key(hash, tier));
  }
}

std::size_t PinBoard::requests_for(const SequenceHash& hash) const {
  const Clock::TimePoint time = now();
  const MutexLock lock(mu_);
  const auto [first, last] = wanted_.equal_range(hash);
  return static_cast<std::size_t>(
      std::count_if(first, last, [&](const auto& entry) { return time < entry.second->end_; }));
}

void PinBoard::take_off(PinRequest& request) noexcept {
  // The caller keeps the request: none is destroyed under the lock.
  const MutexLock lock(mu_);
  for (const SequenceHash& hash : request.hashes_) {
    const auto [first, last] = wanted_.equal_range(hash);
    const auto at =
        std::find_if(first, last, [&](const auto& entry) { return entry.second.get() == &request; });
    if (at != last) wanted_.erase(at);
  }
  count_.store(wanted_.size(), std::memory_order_relaxed);
}

}  // namespace ashlar::tiers
