// Stripes: every instrument has an array of padded cells, and a thread adds to the cell of its stripe. A
// thread claims the lowest stripe that no living thread holds and is then its only writer, so it adds without
// a locked instruction. When the thread ends, the next claimer takes over: the release of its claim and the
// acquire of the next one order their writes, so no count is lost. Threads that find all stripes held, and
// threads in their last destructors, use shared stripes with atomic adds.
#include "ashlar/base/metrics.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar {
namespace detail {
namespace {

static_assert(kOwnStripes <= 64, "claims are the bits of one word");

// Bit i is set while stripe i is unavailable; the bits above the last stripe always are.
constexpr std::uint64_t kNoStripes = kOwnStripes == 64 ? 0 : ~std::uint64_t{0} << kOwnStripes % 64;
constinit std::atomic<std::uint64_t> claimed{kNoStripes};
constinit std::atomic<std::uint32_t> next_shared{0};

std::uint32_t shared_stripe() noexcept {
  // relaxed: any number will do.
  return kOwnStripes + next_shared.fetch_add(1, std::memory_order_relaxed) % kSharedStripes;
}

std::uint32_t try_claim() noexcept {
  std::uint64_t seen = claimed.load(std::memory_order_relaxed);
  while (seen != ~std::uint64_t{0}) {
    const auto lowest = static_cast<std::uint32_t>(std::countr_one(seen));
    // acquire: pairs with the release in ~Claim(), so that we add to the last owner's value.
    if (claimed.compare_exchange_weak(seen, seen | (std::uint64_t{1} << lowest), std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
      return lowest;
    }
  }
  return shared_stripe();
}

// Holds a stripe until its thread ends. The thread's last destructors count on a shared one.
struct Claim {
  const std::uint32_t stripe = try_claim();

  Claim() = default;
  ~Claim() {
    if (stripe >= kOwnStripes) return;
    thread_stripe = shared_stripe() + 1;
    // release: pairs with the acquire in try_claim().
    const std::uint64_t before = claimed.fetch_and(~(std::uint64_t{1} << stripe), std::memory_order_release);
    ASHLAR_CHECK((before >> stripe & 1) != 0, "stripe %u was given back by another thread", stripe);
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
  const std::uint32_t mine = detail::stripe_of_this_thread();
  const bool own = mine < kOwnStripes;
  const std::uint32_t stripe = own ? mine : kOwnStripes + mine % (kStripes - kOwnStripes);
  const auto above = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  detail::add_to_cell(word(stripe, static_cast<std::size_t>(above - bounds_.begin())), 1, own);
  detail::add_to_cell(word(stripe, bounds_.size() + 1), value, own);
}

Histogram::Snapshot Histogram::snapshot() const {
  Snapshot result;
  result.buckets.resize(bounds_.size() + 1);
  for (std::size_t stripe = 0; stripe < kStripes; ++stripe) {
    for (std::size_t bucket = 0; bucket < result.buckets.size(); ++bucket) {
      result.buckets[bucket] +=
          word(stripe, bucket).load(std::memory_order_relaxed);  // relaxed: as in add_to_cell()
    }
    result.sum +=
        word(stripe, bounds_.size() + 1).load(std::memory_order_relaxed);  // relaxed: as in add_to_cell()
  }
  for (const std::uint64_t count : result.buckets) result.count += count;
  return result;
}

}  // namespace ashlar
