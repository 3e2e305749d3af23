// Parts of VolumePool: attached volumes, uses that keep them attached, volume calls, and their buffers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "tiers/volume/object_claims.h"
#include "tiers/volume/volume_calls.h"
#include "tiers/volume/volume_pool.h"
#include "transfer/copy/canonical_runs.h"

namespace ashlar::tiers {

struct VolumePool::Attached {
  std::string name;
  std::shared_ptr<Volume> volume;  // shared with abandoned calls
  VolumeUse use;
  std::uint64_t salt = 0;                       // of its name, for the choice
  std::size_t users = 0;                        // under the pool's lock
  bool leaving = false;                         // under the pool's lock
  std::stop_source stop;                        // ends its calls
  std::atomic<std::size_t> unanswered{0};       // consecutive calls abandoned at their deadline
  std::atomic<Clock::TimePoint> rests_until{};  // after it was unreachable
  const std::shared_ptr<std::atomic<std::size_t>> left =
      std::make_shared<std::atomic<std::size_t>>(0);  // abandoned calls that have not ended
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
    ASHLAR_CHECK(attached_->users != 0, "volume '%s' is released more often than it was used",
                 attached_->name.c_str());
    if (--attached_->users == 0) pool_->unused_.notify_all();
  }
  explicit operator bool() const noexcept { return attached_ != nullptr; }
  Attached* operator->() const noexcept { return attached_.get(); }
  Attached& operator*() const noexcept { return *attached_; }

 private:
  VolumePool* pool_ = nullptr;
  std::shared_ptr<Attached> attached_;
};

// The limits of a caller that uses some volumes, for all its waits: they also end when one of the volumes is
// told to stop. So a wait for another volume, or for another call, does not keep it attached.
class VolumePool::UseLimits {
 public:
  explicit UseLimits(const CallLimits& limits) : deadline_(limits.deadline) { end_with(limits.stop); }
  UseLimits(const CallLimits& limits, const Use& volume) : UseLimits(limits) { add(volume); }
  UseLimits(const UseLimits&) = delete;
  UseLimits& operator=(const UseLimits&) = delete;

  void add(const Use& volume) { end_with(volume->stop.get_token()); }
  CallLimits get() const { return {.deadline = deadline_, .stop = stop_.get_token()}; }

 private:
  struct Relay {
    std::stop_source& to;
    void operator()() const noexcept { to.request_stop(); }
  };
  void end_with(const std::stop_token& token) { relays_.emplace_back(token, Relay{stop_}); }

  const std::optional<Clock::TimePoint> deadline_;
  std::stop_source stop_;
  std::list<std::stop_callback<Relay>> relays_;
};

// Errors: kCancelled, kTimeout: the rest of the move is skipped.
inline Result<void> still_wanted(const CallLimits& limits, const Clock& clock, std::size_t blocks) {
  const Result<void> wanted = limits.check(clock);
  if (wanted) return {};
  if (wanted.error().code() == ErrorCode::kCancelled)
    return make_error(ErrorCode::kCancelled, "the move was cancelled");
  return make_error(ErrorCode::kTimeout, "the deadline came before %zu blocks had moved", blocks);
}

// Objects in buffers owned by the call that reads or writes them: a header, then a block in canonical order.
struct VolumePool::Images {
  Images(std::vector<std::string> its_keys, std::uint64_t block_bytes)
      : keys(std::move(its_keys)), bytes(VolumeObject::kHeaderBytes + block_bytes) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      memory.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
      whole.emplace_back(memory.back().get(), bytes);
    }
    written.assign(whole.begin(), whole.end());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      reads.push_back({keys[i], std::span(&whole[i], 1)});
      writes.push_back({keys[i], std::span(&written[i], 1)});
    }
  }
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;

  std::span<std::byte> header(std::size_t i) const { return whole[i].first(VolumeObject::kHeaderBytes); }
  std::span<std::byte> block(std::size_t i) const { return whole[i].subspan(VolumeObject::kHeaderBytes); }
  void gather(std::size_t i, const transfer::BlockSet& set, std::uint32_t slot) const {
    each_run(i, set, slot,
             [](std::byte* ours, std::byte* its, std::uint64_t n) { std::memcpy(ours, its, n); });
  }
  void scatter(std::size_t i, const transfer::BlockSet& set, std::uint32_t slot) const {
    each_run(i, set, slot,
             [](std::byte* ours, std::byte* its, std::uint64_t n) { std::memcpy(its, ours, n); });
  }

  const std::vector<std::string> keys;
  const std::uint64_t bytes;  // of one
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<std::span<std::byte>> whole;
  std::vector<std::span<const std::byte>> written;
  std::vector<ObjectRead> reads;
  std::vector<ObjectWrite> writes;

 private:
  template <class F>
  void each_run(std::size_t i, const transfer::BlockSet& set, std::uint32_t slot, F copy) const {
    std::byte* at = block(i).data();
    for (std::size_t plane = 0; plane < set.planes().size(); ++plane)
      transfer::for_each_run(set, plane, slot, [&](std::byte* its, std::uint64_t count) {
        copy(at, its, count);
        at += count;
      });
    ASHLAR_DCHECK(at == whole[i].data() + bytes, "the runs of a block are not as long as its object");
  }
};

// A question to all volumes.
struct VolumePool::Asking {
  const std::vector<std::pair<Number, Use>>& uses;
  const ObjectClaims::Claim& claim;
  CallLimits limits;
};

// A started call.
template <class R>
struct VolumePool::Pending {
  Attached& volume;
  std::size_t count;
  CallLimits limits;  // combined with those of the pool
  std::shared_ptr<std::vector<R>> answers = {};
  Result<std::shared_ptr<VolumeCalls::Call>> call = std::shared_ptr<VolumeCalls::Call>();
};

template <class R, class F>
VolumePool::Pending<R> VolumePool::begin_call(const Use& volume, std::size_t count, const CallLimits& limits,
                                              F fn) {
  // Most abandoned calls per volume: one that hangs must not take thread after thread.
  constexpr std::size_t kMostLeft = 8;
  Pending<R> pending{.volume = *volume, .count = count, .limits = bounded(limits)};
  if (const std::size_t left = volume->left->load(); left >= kMostLeft) {
    pending.call = make_error(ErrorCode::kUnavailable, "%s: %zu abandoned calls have not returned",
                              volume->volume->describe().c_str(), left);
    return pending;
  }
  pending.answers = std::make_shared<std::vector<R>>();
  // Volumes know only the real clock.
  const auto deadline = &clock_ == &Clock::real() ? pending.limits.deadline : std::nullopt;
  pending.call = calls_->start(
      [fn = std::move(fn), its = volume->volume, answers = pending.answers,
       deadline](const std::stop_token& stop) {
        *answers = fn(*its, CallLimits{.deadline = deadline, .stop = stop});
      },
      volume->left);
  return pending;
}

template <class R>
std::vector<R> VolumePool::finish_call(Pending<R>& pending, const CallLimits& limits) {
  const auto all = [&](const Error& error) { return std::vector<R>(pending.count, R(error)); };
  if (!pending.call) return all(pending.call.error());
  VolumeCalls::Call& call = **pending.call;
  switch (VolumeCalls::wait(call, pending.limits, pending.volume.stop.get_token(), clock_)) {
    case VolumeCalls::End::kEnded:
      break;
    case VolumeCalls::End::kLate:
    case VolumeCalls::End::kCancelled:
      return all(why_left(pending.volume, limits));
  }
  pending.volume.unanswered = 0;
  if (const auto thrown = call.thrown())
    return all(make_error(ErrorCode::kInternal, "%s: the volume threw an exception: %s",
                          pending.volume.volume->describe().c_str(), thrown->c_str()));
  ASHLAR_CHECK(pending.answers->size() == pending.count, "%s answers %zu results for %zu objects",
               pending.volume.volume->describe().c_str(), pending.answers->size(), pending.count);
  return std::move(*pending.answers);
}

template <class R, class F>
std::vector<R> VolumePool::call(const Use& volume, std::size_t count, const CallLimits& limits, F fn) {
  Pending<R> pending = begin_call<R>(volume, count, limits, std::move(fn));
  return finish_call(pending, limits);
}

}  // namespace ashlar::tiers
