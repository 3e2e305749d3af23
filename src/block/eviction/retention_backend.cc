// Two heaps keep the order: normal_ up to the default priority, retained_ above it. The next victim is the
// top of the first non-empty one; the block to demote is the top of retained_. A third heap, fading_, holds
// the times at which priorities change; catch_up() takes those that are due, recomputes the block's priority
// and moves it from retained_ to normal_ once it reaches the default. A demoted block leaves fading_ and so
// stays at the default.
#include "block/eviction/retention_backend.h"

#include <cmath>
#include <utility>

namespace ashlar::block {
namespace {

constexpr unsigned kPriorityShift = 57;
constexpr unsigned kHitShift = 56;
constexpr std::uint64_t kRest = (std::uint64_t{1} << kPriorityShift) - 1;  // the bits below the priority
static_assert(BlockRetention::kMaxPriority < (1u << (64 - kPriorityShift)));

Clock::TimePoint later(Clock::TimePoint moment, Clock::Duration by) noexcept {
  return by > BlockRetention::kForever - moment ? BlockRetention::kForever : moment + by;
}

}  // namespace

Result<void> RetentionOptions::validate() const {
  if (default_priority > BlockRetention::kMaxPriority) {
    return make_error(ErrorCode::kInvalidArgument, "default_priority is %u; priorities go from 0 to %u",
                      default_priority, BlockRetention::kMaxPriority);
  }
  if (!(retained_share >= 0 && retained_share <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "retained_share is %g; it must be between 0 and 1",
                      retained_share);
  }
  if (half_life < Clock::Duration::zero()) {
    return make_error(ErrorCode::kInvalidArgument, "half_life is %lld ns; it must not be negative",
                      static_cast<long long>(half_life.count()));
  }
  return {};
}

Result<RetentionBackend> RetentionBackend::create(const EvictionContext& context,
                                                  const RetentionOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return RetentionBackend(context, options);
}

RetentionBackend::RetentionBackend(const EvictionContext& context, const RetentionOptions& options)
    : options_(options),
      cap_(static_cast<std::size_t>(std::floor(options.retained_share * context.block_count))),
      clock_(context.clock),
      facts_(context.facts),
      normal_(context.block_count),
      retained_(context.block_count),
      fading_(context.block_count) {
  facts_->keep_retentions();
  if (options_.never_hit_first) facts_->keep_hits();
}

RetentionBackend::Key RetentionBackend::key_at(int distance, Key rest) const noexcept {
  return static_cast<Key>(options_.default_priority + distance) << kPriorityShift | rest;
}

RetentionBackend::Worth RetentionBackend::worth_of(BlockId id) const {
  const std::optional<BlockRetention> retention = facts_->retention(id);
  if (!retention) return {0, BlockRetention::kForever};
  const int distance = retention->priority - options_.default_priority;
  if (distance == 0 || retention->until == BlockRetention::kForever) {
    return {distance, BlockRetention::kForever};
  }
  return faded({distance, later(retention->until, options_.half_life)}, clock_->now());
}

RetentionBackend::Worth RetentionBackend::faded(Worth worth, Clock::TimePoint now) const noexcept {
  while (worth.distance != 0 && worth.fades <= now) {
    worth.distance = options_.half_life == Clock::Duration::zero() ? 0 : worth.distance / 2;
    worth.fades = worth.distance == 0 ? BlockRetention::kForever : later(worth.fades, options_.half_life);
  }
  return worth;
}

void RetentionBackend::place(BlockId id) {
  const Worth worth = worth_of(id);
  const bool hit = options_.never_hit_first && facts_->was_hit(id);
  const Key key = key_at(worth.distance, Key{hit} << kHitShift | ++tick_);
  if (worth.fades != BlockRetention::kForever) fading_.push(id, worth.fades);
  if (worth.distance <= 0) {
    normal_.push(id, key);
    return;
  }
  retained_.push(id, key);
  if (retained_.size() <= cap_) return;
  const BlockId first = *retained_.top();
  normal_.push(first, key_at(0, retained_.key_of(first) & kRest));
  retained_.remove(first);
  if (fading_.contains(first)) fading_.remove(first);
}

void RetentionBackend::catch_up() const {
  if (fading_.empty()) return;
  const Clock::TimePoint now = clock_->now();
  for (auto next = fading_.top(); next && fading_.key_of(*next) <= now; next = fading_.top()) {
    const BlockId id = *next;
    const bool was_retained = retained_.contains(id);
    const Key old = was_retained ? retained_.key_of(id) : normal_.key_of(id);
    const int distance = static_cast<int>(old >> kPriorityShift) - options_.default_priority;
    const Worth worth = faded({distance, fading_.key_of(id)}, now);
    const Key key = key_at(worth.distance, old & kRest);
    if (worth.fades == BlockRetention::kForever) {
      fading_.remove(id);
    } else {
      fading_.update(id, worth.fades);
    }
    if (!was_retained) {
      normal_.update(id, key);
    } else if (worth.distance > 0) {
      retained_.update(id, key);
    } else {
      retained_.remove(id);
      normal_.push(id, key);
    }
  }
}

void RetentionBackend::insert(BlockId id, const tokens::SequenceHash&) {
  catch_up();
  place(id);
}

void RetentionBackend::remove(BlockId id) {
  if (retained_.contains(id)) {
    retained_.remove(id);
  } else {
    normal_.remove(id);
  }
  if (fading_.contains(id)) fading_.remove(id);
}

void RetentionBackend::touch(BlockId id) {
  catch_up();
  remove(id);
  place(id);
}

std::optional<BlockId> RetentionBackend::pop() {
  catch_up();
  const std::optional<BlockId> victim = normal_.empty() ? retained_.top() : normal_.top();
  if (victim) remove(*victim);
  return victim;
}

std::size_t RetentionBackend::peek(std::span<BlockId> out) const {
  catch_up();
  const std::size_t normal = normal_.peek(out);
  return normal + retained_.peek(out.subspan(normal));
}

}  // namespace ashlar::block
