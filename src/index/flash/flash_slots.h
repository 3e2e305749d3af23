// FlashSlots: maps (worker, rank) to slots, for the writer and, as a snapshot, for readers.
//
// A slot is live (it belongs to a worker), dead (its worker was cleared; nodes may still have masks for it),
// waiting (no node has) or free. It waits until no reader from before that moment is left, so a query never
// takes one worker's mask for another's. Readers see a Roster: a snapshot replaced as a whole, except for the
// pages of worker ids, which two rosters share where they agree.
//
// Thread safety: the writer's; roster() from readers inside the domain.
// Complexity:    a lookup is O(1) for the worker last looked up, else O(log workers). A change is O(slots /
//                64): the bits and the addresses of a roster, and one page of 64 workers.
// Invariant:     without slots it owns the memory of an empty roster.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/index/indexer.h"
#include "index/flash/era_domain.h"
#include "index/flash/flash_node.h"

namespace ashlar::index::detail {

// Workers of 64 slots. A slot without a worker keeps the last one it had.
struct RosterPage {
  std::uint64_t birth = 0;
  std::array<Worker, 64> workers{};
};

struct Roster {
  std::uint64_t birth = 0;
  std::uint64_t assignment = 0;  // of workers to slots; unchanged while workers only leave
  std::uint32_t slots = 0;
  std::vector<const RosterPage*> pages;  // by slot / 64. A page is retired after the last roster that has it.
  std::vector<std::uint64_t> alive;      // bit per slot

  std::size_t bytes() const noexcept { return sizeof(Roster) + (pages.size() + alive.size()) * 8; }
};

class FlashSlots {
 public:
  FlashSlots(EraDomain& domain, std::uint32_t most);
  FlashSlots(const FlashSlots&) = delete;
  FlashSlots& operator=(const FlashSlots&) = delete;
  ~FlashSlots();

  std::optional<std::uint32_t> find(const Worker& worker) const {
    // Events mostly come in bursts from one worker.
    if (last_ < size_ && at(last_).state == State::kLive && at(last_).worker == worker) return last_;
    return look_up(worker);
  }
  // Assigns a slot to the worker; empty when all are taken. Throws std::bad_alloc with nothing changed.
  // Requires: it has none.
  std::optional<std::uint32_t> assign(const Worker& worker);
  // Live slots of a worker's ranks from `rank` on, by ascending rank, up to `most` of them.
  std::vector<std::uint32_t> slots_of(WorkerId worker, std::uint32_t rank, std::size_t most) const;
  const Worker& worker(std::uint32_t slot) const noexcept { return at(slot).worker; }

  // live -> dead. The workers may be assigned again at once, to other slots. Throws std::bad_alloc with
  // nothing changed.
  void kill(std::span<const std::uint32_t> slots);
  // dead -> free once no earlier reader is left. Requires: no node has a mask for the slot; room for a
  // retirement.
  void recycle(std::uint32_t slot);
  // For any number: entries of free slots stay in nodes, with empty masks.
  bool dead(std::uint32_t slot) const noexcept { return (dead_bits(slot / 64) >> (slot % 64) & 1) != 0; }
  bool live(std::uint32_t slot) const noexcept { return at(slot).state == State::kLive; }
  // The same for 64 slots.
  std::uint64_t dead_bits(std::size_t word) const noexcept { return word < dead_.size() ? dead_[word] : 0; }
  std::size_t waiting() const noexcept { return waiting_; }

  // Slots ever assigned, less those trimmed.
  std::uint32_t size() const noexcept { return size_; }
  bool has_free_end() const noexcept { return size_ != 0 && at(size_ - 1).state == State::kFree; }
  // Returns up to `most` free slots past the last one in use, if there is memory for a roster without them.
  void trim(std::size_t most) noexcept;

  // (worker, tier, content) presences of a slot.
  std::size_t blocks(std::uint32_t slot) const noexcept { return at(slot).blocks; }
  void add_blocks(std::uint32_t slot, std::size_t count) noexcept {
    if (at(slot).blocks == 0) set(idle_, slot, false);
    at(slot).blocks += count;
  }
  // Requires: a live slot with at least `count` blocks.
  void take_blocks(std::uint32_t slot, std::size_t count) noexcept {
    at(slot).blocks -= count;
    if (at(slot).blocks == 0) set(idle_, slot, true);
  }
  // Up to `most` live slots without blocks.
  std::vector<std::uint32_t> idle(std::size_t most) const;

  // Predicts the slot's next events from its last ones; the blocks may be gone.
  struct Trail {
    BlockRef stored;           // where the last store ended,
    bool fresh = false;        // and whether it added new content
    BlockRef removed_next;     // the next block, if removal continues like the last one
    std::uint32_t step = ~0u;  // from block to block there: 1, or -1
  };
  Trail& trail(std::uint32_t slot) noexcept { return at(slot).trail; }

  // acquire: pairs with the release in publish().
  const Roster* roster() const noexcept { return roster_.load(std::memory_order_acquire); }
  // Of the current roster; for readers, inside the domain or not. relaxed: it is compared, not followed.
  std::uint64_t assignment() const noexcept { return assignment_.load(std::memory_order_relaxed); }
  std::size_t bytes() const noexcept;

 private:
  static constexpr std::uint32_t kPage = 64;

  enum class State : std::uint8_t { kFree, kLive, kDead, kWaiting };
  struct Slot {
    Worker worker;
    State state = State::kFree;
    std::uint64_t birth = 0;  // era of the assignment
    std::size_t blocks = 0;
    Trail trail;
  };
  using Page = std::array<Slot, kPage>;
  using Bits = std::vector<std::uint64_t>;

  Slot& at(std::uint32_t slot) noexcept { return (*pages_[slot / kPage])[slot % kPage]; }
  const Slot& at(std::uint32_t slot) const noexcept { return (*pages_[slot / kPage])[slot % kPage]; }
  static void set(Bits& bits, std::uint32_t slot, bool value) noexcept {
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    bits[slot / 64] = value ? bits[slot / 64] | bit : bits[slot / 64] & ~bit;
  }
  std::optional<std::uint32_t> look_up(const Worker& worker) const;
  std::uint32_t lowest_free() noexcept;
  // Reserves room for one more page.
  void reserve_page();
  void add_page(std::unique_ptr<Page> page) noexcept;
  // Without slots no pages are needed.
  void release_pages() noexcept;
  // A copy of the current roster, for `slots` slots.
  std::unique_ptr<Roster> copy_roster(std::uint32_t slots) const;
  // Pages of the old roster missing from the new one; reserves memory to retire them and the old roster.
  using Pages = std::vector<const RosterPage*>;
  Pages prepare(const Roster& fresh);
  // Replaces the roster; pages that only the old one has are retired after it.
  void publish(std::unique_ptr<Roster> fresh, const Pages& replaced) noexcept;

  // Fields that readers load are kept apart from fields that every event writes.
  alignas(kApart) std::atomic<const Roster*> roster_{nullptr};
  std::atomic<std::uint64_t> assignment_{0};
  alignas(kApart) EraDomain& domain_;
  const std::uint32_t most_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::uint32_t size_ = 0;
  std::size_t waiting_ = 0;
  std::uint32_t first_free_ = 0;  // no word of free_ before it has a bit
  Bits free_;                     // a bit per slot below size_
  Bits dead_;
  Bits idle_;  // live, without blocks
  std::map<Worker, std::uint32_t> by_worker_;
  std::size_t bytes_ = 0;           // of rosters and their pages
  mutable std::uint32_t last_ = 0;  // the last slot looked up
};

}  // namespace ashlar::index::detail
