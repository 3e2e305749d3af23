// Stripes: every instrument has an array of padded cells and a thread adds to the cell of its stripe. A
// thread claims the lowest stripe that no living thread holds, so threads that live at the same time use
// different cells until the claims run out; after that stripes are dealt in turn and shared. Sharing costs
// speed only: all adds are atomic.
#include "ashlar/base/metrics.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar {
namespace detail {
namespace {

constexpr std::uint32_t kClaims = 64;

// Bit i is set while a living thread holds stripe i.
constinit std::atomic<std::uint64_t> claimed{0};
constinit std::atomic<std::uint32_t> next_shared{0};

// Holds a claim until its thread ends. A count that comes later in the thread's end still goes to the old
// stripe.
struct Claim {
  std::uint32_t stripe = 0;
  bool exclusive = false;

  Claim() noexcept {
    // relaxed, here and below: a stripe publishes nothing; its cells are atomic whoever uses them.
    std::uint64_t seen = claimed.load(std::memory_order_relaxed);
    while (seen != UINT64_MAX) {
      const auto lowest = static_cast<std::uint32_t>(std::countr_one(seen));
      if (claimed.compare_exchange_weak(seen, seen | (std::uint64_t{1} << lowest),
                                        std::memory_order_relaxed)) {
        stripe = lowest;
        exclusive = true;
        return;
      }
    }
    stripe = next_shared.fetch_add(1, std::memory_order_relaxed) % kClaims;
  }
  ~Claim() {
    if (exclusive) claimed.fetch_and(~(std::uint64_t{1} << stripe), std::memory_order_relaxed);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
};

}  // namespace

std::uint32_t claim_thread_stripe() noexcept {
  static thread_local const Claim claim;
  thread_stripe = claim.stripe + 1;
  return claim.stripe;
}

}  // namespace detail

namespace {

std::size_t lines_for(std::size_t words) {
  return (words + 7) / 8;
}

}  // namespace

Histogram::Histogram(std::vector<std::uint64_t> bounds, std::uint64_t divisor)
    : bounds_(std::move(bounds)),
      divisor_(divisor),
      lines_per_stripe_(lines_for(bounds_.size() + 2)),
      lines_(std::make_unique<Line[]>(kStripes * lines_per_stripe_)) {
  ASHLAR_CHECK(divisor_ > 0, "a histogram's divisor must not be 0");
  const auto bad = std::adjacent_find(bounds_.begin(), bounds_.end(), std::greater_equal<>());
  ASHLAR_CHECK(bad == bounds_.end(), "a histogram's bounds must rise, but bound %zu does not",
               static_cast<std::size_t>(bad - bounds_.begin()) + 1);
}

std::vector<std::uint64_t> Histogram::exponential_bounds(std::uint64_t first, std::uint64_t factor,
                                                         std::size_t count) {
  ASHLAR_CHECK(first > 0 && factor > 1, "exponential bounds need a first bound above 0 and a factor above 1");
  std::vector<std::uint64_t> bounds;
  bounds.reserve(count);
  std::uint64_t bound = first;
  while (bounds.size() < count) {
    bounds.push_back(bound);
    ASHLAR_CHECK(bounds.size() == count || bound <= UINT64_MAX / factor,
                 "exponential bound %zu does not fit in 64 bits", bounds.size());
    bound *= factor;
  }
  return bounds;
}

void Histogram::observe(std::uint64_t value) noexcept {
  const std::size_t stripe = detail::stripe_of_this_thread() % kStripes;
  const auto bucket =
      static_cast<std::size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  // relaxed: counts are read on their own; nothing is published by them.
  word(stripe, bucket).fetch_add(1, std::memory_order_relaxed);
  word(stripe, bounds_.size() + 1).fetch_add(value, std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::snapshot() const {
  Snapshot result;
  result.buckets.resize(bounds_.size() + 1);
  for (std::size_t stripe = 0; stripe < kStripes; ++stripe) {
    for (std::size_t bucket = 0; bucket < result.buckets.size(); ++bucket) {
      result.buckets[bucket] +=
          word(stripe, bucket).load(std::memory_order_relaxed);  // relaxed: as in observe()
    }
    result.sum +=
        word(stripe, bounds_.size() + 1).load(std::memory_order_relaxed);  // relaxed: as in observe()
  }
  for (const std::uint64_t count : result.buckets) result.count += count;
  return result;
}

}  // namespace ashlar
