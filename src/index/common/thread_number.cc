#include "index/common/thread_number.h"

#include <array>
#include <atomic>
#include <bit>

namespace ashlar::index::detail {
namespace {

// One bit per number. Constant-initialised and without a destructor: threads may end after static
// destruction.
constinit std::array<std::atomic<std::uint64_t>, ThreadNumber::kLimit / 64> taken{};

std::uint32_t take_lowest() noexcept {
  for (std::uint32_t word = 0; word < taken.size(); ++word) {
    // relaxed: a guess, confirmed by the exchange.
    std::uint64_t seen = taken[word].load(std::memory_order_relaxed);
    while (seen != ~std::uint64_t{0}) {
      const auto lowest = static_cast<std::uint32_t>(std::countr_one(seen));
      // acquire: pairs with the release in give_back(): the data of the last owner is visible.
      if (taken[word].compare_exchange_weak(seen, seen | std::uint64_t{1} << lowest,
                                            std::memory_order_acquire, std::memory_order_relaxed)) {
        return word * 64 + lowest;
      }
    }
  }
  return ThreadNumber::kNone;
}

void give_back(std::uint32_t number) noexcept {
  // release: pairs with the acquire in take_lowest().
  taken[number / 64].fetch_and(~(std::uint64_t{1} << number % 64), std::memory_order_release);
}

}  // namespace

struct ThreadNumber::Owner {
  explicit Owner(std::uint32_t taken_number) noexcept : number(taken_number) { mine_ = number + 1; }
  ~Owner() {
    mine_ = kGone;
    give_back(number);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  const std::uint32_t number;
};

std::uint32_t ThreadNumber::take() noexcept {
  if (mine_ == kGone) return kNone;
  const std::uint32_t number = take_lowest();
  if (number == kNone) return kNone;
  static thread_local const Owner owner(number);
  return number;
}

}  // namespace ashlar::index::detail
