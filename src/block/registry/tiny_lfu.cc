// A hash is mixed once. The high bits choose the word; the low bits choose one of the 81 ways to pick one of
// three counters in each row. Row r owns the bits [12 r, 12 r + 12) of the word, three counters of four bits;
// the epoch is in the top 16 bits. Which word and which counter come from disjoint bits of the mix, so every
// counter is reachable.
//
// Epochs are compared modulo 2^16, so no word may fall half of that behind. Each new epoch therefore ages a
// slice of the table, and kPass epochs visit every word. The thread whose touch begins the epoch ages the
// slice, and advances the cursor only afterwards: a thread that stops in between leaves the slice to the next
// one.
#include "block/registry/tiny_lfu.h"

#include <algorithm>
#include <array>
#include <bit>

#include "ashlar/base/check.h"
#include "block/registry/hash_mix.h"

namespace ashlar::block {
namespace {

constexpr std::uint64_t kCounters = 0x0000'FFFF'FFFF'FFFFu;
constexpr std::uint64_t kHalveMask = 0x0000'7777'7777'7777u;
constexpr unsigned kEpochShift = 48;
constexpr std::uint64_t kPass = 1 << 13;  // epochs in which every word is aged once

// The word as of `epoch`, halved once for each epoch it is behind. A word that is ahead, because another
// thread saw the next epoch first, stays unchanged.
std::uint64_t aged(std::uint64_t word, std::uint16_t epoch) noexcept {
  const auto behind = static_cast<std::int16_t>(epoch - static_cast<std::uint16_t>(word >> kEpochShift));
  if (behind <= 0) return word;
  std::uint64_t counters = word & kCounters;
  for (int i = 0; i < std::min<int>(behind, 4); ++i) counters = (counters >> 1) & kHalveMask;
  return counters | std::uint64_t{epoch} << kEpochShift;
}

// The ways to pick one of three counters in each of four rows, as the low bit of each picked counter.
constexpr unsigned kPicks = 81;
constexpr std::array<std::uint64_t, kPicks> kPicked = [] {
  std::array<std::uint64_t, kPicks> picked{};
  for (unsigned pick = 0; pick < kPicks; ++pick) {
    unsigned rest = pick;
    for (unsigned row = 0; row < TinyLfu::kRows; ++row, rest /= TinyLfu::kCountersPerRow) {
      picked[pick] |= std::uint64_t{1} << (row * 12 + rest % TinyLfu::kCountersPerRow * 4);
    }
  }
  return picked;
}();

std::uint64_t picked_by(std::uint64_t mixed) noexcept {
  return kPicked[static_cast<std::size_t>((mixed & 0xFFFF'FFFFu) * kPicks >> 32)];
}

// The bit offset of the counter that a mixed hash uses in a row.
unsigned shift_of(std::uint64_t mixed, unsigned row) noexcept {
  const std::uint64_t in_row = picked_by(mixed) >> (row * 12) & 0xFFF;
  return row * 12 + static_cast<unsigned>(std::countr_zero(in_row));
}

// Increments every picked counter that is not full.
std::uint64_t incremented(std::uint64_t word, std::uint64_t picked) noexcept {
  const std::uint64_t full = word & (word >> 1) & (word >> 2) & (word >> 3);
  return word + (picked & ~full);
}

std::size_t word_of(std::uint64_t mixed, std::size_t mask) noexcept {
  return static_cast<std::size_t>(mixed >> 32) & mask;
}

}  // namespace

Result<void> TinyLfuOptions::validate() const {
  if (capacity == 0 || capacity > (std::size_t{1} << 32)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "frequency tracker capacity is %zu; it must be between 1 and 2^32 hashes", capacity);
  }
  return {};
}

TinyLfu::TinyLfu(const TinyLfuOptions& options)
    : mask_(std::bit_ceil(std::max<std::size_t>(options.capacity / 4, 1)) - 1),
      decay_after_(options.decay_after == 0 ? options.capacity * 10 : options.decay_after),
      slice_(std::max<std::uint64_t>((mask_ + 1) / kPass, 1)),
      table_(mask_ + 1) {
  ASHLAR_CHECK(options.validate().has_value(), "frequency tracker options were not validated");
}

TinyLfu::Cell TinyLfu::cell(const tokens::SequenceHash& hash, unsigned row) const noexcept {
  const std::uint64_t mixed = HashMix::of(hash);
  return {word_of(mixed, mask_), shift_of(mixed, row) / 4};
}

void TinyLfu::touch_all(std::span<const tokens::SequenceHash> hashes) noexcept {
  constexpr std::size_t kChunk = 32;
  std::uint64_t mixed[kChunk];
  while (!hashes.empty()) {
    const std::size_t count = std::min(hashes.size(), kChunk);
    for (std::size_t i = 0; i < count; ++i) {
      mixed[i] = HashMix::of(hashes[i]);
      prefetch_mixed(mixed[i]);
    }
    touch_mixed({mixed, count});
    hashes = hashes.subspan(count);
  }
}

void TinyLfu::touch_mixed(std::span<const std::uint64_t> mixed) noexcept {
  // relaxed: the number of touches only decides when counters are halved.
  const std::uint64_t before = touches_.fetch_add(mixed.size(), std::memory_order_relaxed);
  std::uint64_t epoch = before / decay_after_;
  std::uint64_t left = decay_after_ - before % decay_after_;  // touches until the next decay
  for (const std::uint64_t each : mixed) {
    if (left-- == 0) {
      ++epoch;
      left = decay_after_ - 1;
    }
    std::atomic<std::uint64_t>& word = table_[word_of(each, mask_)];
    const std::uint64_t picked = picked_by(each);
    // relaxed: counters publish no other data.
    std::uint64_t old = word.load(std::memory_order_relaxed);
    std::uint64_t next;
    do {
      next = incremented(aged(old, static_cast<std::uint16_t>(epoch)), picked);
      if (next == old) break;
    } while (!word.compare_exchange_weak(old, next, std::memory_order_relaxed));
  }
  if (mixed.size() >= decay_after_ - before % decay_after_) [[unlikely]]
    age_until((before + mixed.size()) / decay_after_);
}

void TinyLfu::age_until(std::uint64_t epoch) noexcept {
  // relaxed: counters and cursor publish no other data; ageing a slice twice has no effect.
  std::uint64_t next = aged_words_.load(std::memory_order_relaxed);
  while (next < epoch * slice_) {
    for (std::uint64_t i = next; i < next + slice_; ++i) {
      std::atomic<std::uint64_t>& word = table_[static_cast<std::size_t>(i) & mask_];
      std::uint64_t old = word.load(std::memory_order_relaxed);
      while (!word.compare_exchange_weak(old, aged(old, static_cast<std::uint16_t>(epoch)),
                                         std::memory_order_relaxed)) {
      }
    }
    if (aged_words_.compare_exchange_strong(next, next + slice_, std::memory_order_relaxed)) next += slice_;
  }
}

unsigned TinyLfu::count(const tokens::SequenceHash& hash) const noexcept {
  const std::uint64_t mixed = HashMix::of(hash);
  const auto epoch = static_cast<std::uint16_t>(decays());
  const std::uint64_t word = aged(table_[word_of(mixed, mask_)].load(std::memory_order_relaxed), epoch);
  unsigned least = kMaxCount;
  for (unsigned row = 0; row < kRows; ++row) {
    least = std::min(least, static_cast<unsigned>(word >> shift_of(mixed, row)) & kMaxCount);
  }
  return least;
}

std::uint64_t TinyLfu::decays() const noexcept {
  return touches_.load(std::memory_order_relaxed) / decay_after_;
}

}  // namespace ashlar::block
