// What VolumePool is made of: attached volumes, and uses that keep them attached.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "ashlar/tiers/volume_pool.h"

namespace ashlar::tiers {

struct VolumePool::Attached {
  std::string name;
  std::unique_ptr<Volume> volume;
  VolumeUse use;
  std::uint64_t salt = 0;                       // of its name, for the choice
  std::size_t users = 0;                        // under the pool's lock
  bool leaving = false;                         // under the pool's lock
  std::atomic<Clock::TimePoint> rests_until{};  // it could not be reached
  Counter put;
  Counter got;
  Counter failed;
};

// Keeps a volume attached.
class VolumePool::Use {
 public:
  Use() = default;
  Use(VolumePool& pool, std::shared_ptr<Attached> attached) : pool_(&pool), attached_(std::move(attached)) {}
  Use(Use&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), attached_(std::move(other.attached_)) {}
  Use& operator=(Use&&) = delete;
  ~Use() {
    if (pool_ == nullptr || attached_ == nullptr) return;
    const MutexLock lock(pool_->mu_);
    if (--attached_->users == 0) pool_->unused_.notify_all();
  }
  explicit operator bool() const noexcept { return attached_ != nullptr; }
  Attached* operator->() const noexcept { return attached_.get(); }
  Attached& operator*() const noexcept { return *attached_; }

 private:
  VolumePool* pool_ = nullptr;
  std::shared_ptr<Attached> attached_;
};

}  // namespace ashlar::tiers
