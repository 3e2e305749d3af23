// OffloadCall: one offload call, shared by the worker and its handles.
//
// Thread safety: thread-safe.
// Invariant:     every block of the call is pending or has ended in exactly one way.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

class OffloadWorker;

// The worker, while it exists.
struct OffloadWorkerLink {
  Mutex mu;
  OffloadWorker* worker ASHLAR_GUARDED_BY(mu) = nullptr;
};

class OffloadCall {
 public:
  OffloadCall(std::size_t total, std::uint8_t priority, std::optional<Clock::TimePoint> deadline,
              Clock& clock, std::shared_ptr<OffloadWorkerLink> link)
      : priority_(priority), deadline_(deadline), clock_(clock), link_(std::move(link)) {
    progress_.total = total;
  }

  void pending(const tokens::SequenceHash& hash) {
    const MutexLock lock(mu_);
    ++pending_[hash];
  }
  // Only the first outcome of a hash counts. True when the call has no pending hash left.
  bool end(const tokens::SequenceHash& hash, std::size_t OffloadProgress::* outcome,
           const std::optional<Error>& error) {
    const MutexLock lock(mu_);
    const auto found = pending_.find(hash);
    if (found == pending_.end()) return false;
    progress_.*outcome += found->second;
    pending_.erase(found);
    ASHLAR_CHECK(progress_.ended() <= progress_.total, "%zu of %zu blocks of an offload call have ended",
                 progress_.ended(), progress_.total);
    if (error && !error_) error_ = error;
    if (pending_.empty()) changed_.notify_all();
    return pending_.empty();
  }
  bool ended() const {
    const MutexLock lock(mu_);
    return pending_.empty();
  }
  bool is_pending(const tokens::SequenceHash& hash) const {
    const MutexLock lock(mu_);
    return pending_.contains(hash);
  }
  void cancel() {
    const MutexLock lock(mu_);
    cancelled_ = true;
  }
  // How the pending blocks of an abandoned call end: cancelled or late. Null while the call is wanted.
  std::size_t OffloadProgress::* abandoned() const {
    const MutexLock lock(mu_);
    if (cancelled_) return &OffloadProgress::cancelled;
    return deadline_ && clock_.now() >= *deadline_ ? &OffloadProgress::late : nullptr;
  }
  OffloadProgress progress() const {
    const MutexLock lock(mu_);
    return progress_;
  }
  // False when `when` came before the call ended.
  bool wait(std::optional<Clock::TimePoint> when) {
    const MutexLock lock(mu_);
    while (progress_.ended() < progress_.total) {
      if (when && clock_.now() >= *when) return false;
      if (when) {
        clock_.wait_until(changed_, mu_, *when);
      } else {
        changed_.wait(mu_);
      }
    }
    return true;
  }
  Result<OffloadProgress> result() const {
    const MutexLock lock(mu_);
    if (progress_.ended() < progress_.total)
      return make_error(ErrorCode::kTimeout, "%zu of %zu blocks have ended", progress_.ended(),
                        progress_.total);
    if (error_) return *error_;
    if (progress_.late != 0)
      return make_error(ErrorCode::kTimeout, "the deadline came before %zu of %zu blocks had arrived",
                        progress_.late, progress_.total);
    return progress_;
  }
  std::vector<tokens::SequenceHash> pending_hashes() const {
    const MutexLock lock(mu_);
    std::vector<tokens::SequenceHash> hashes;
    hashes.reserve(pending_.size());
    for (const auto& [hash, times] : pending_) hashes.push_back(hash);
    return hashes;
  }
  const std::shared_ptr<OffloadWorkerLink>& link() const noexcept { return link_; }
  std::uint8_t priority() const noexcept { return priority_; }
  std::optional<Clock::TimePoint> deadline() const noexcept { return deadline_; }

 private:
  const std::uint8_t priority_;
  const std::optional<Clock::TimePoint> deadline_;
  Clock& clock_;
  const std::shared_ptr<OffloadWorkerLink> link_;
  mutable Mutex mu_;
  CondVar changed_;
  bool cancelled_ ASHLAR_GUARDED_BY(mu_) = false;
  OffloadProgress progress_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Error> error_ ASHLAR_GUARDED_BY(mu_);
  std::unordered_map<tokens::SequenceHash, std::size_t> pending_
      ASHLAR_GUARDED_BY(mu_);  // how often it was named
};

}  // namespace ashlar::tiers
