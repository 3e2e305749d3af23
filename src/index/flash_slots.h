// FlashSlots: which (worker, rank) has which slot, as the writer keeps it and as readers see it.
//
// A slot is live (it belongs to a worker), dead (its worker was cleared; nodes may still have masks for it), waiting (no
// node has) or free. It waits until no reader from before that moment is left, so that a query never takes one worker's
// mask for another's. Readers see a Roster: a snapshot that is replaced as a whole.
//
// Thread safety: the writer's; roster() from readers inside the domain.
// Complexity:    O(slots) per change, O(1) per lookup.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/index/indexer.h"
#include "index/era_domain.h"
#include "index/flash_node.h"

namespace ashlar::index::detail {

struct Roster {
  std::uint64_t birth = 0;
  std::uint64_t assignment = 0;
  std::vector<Worker> workers;       // by slot
  std::vector<std::uint64_t> alive;  // bit per slot

  std::size_t bytes() const noexcept {
    return sizeof(Roster) + workers.size() * sizeof(Worker) + alive.size() * 8;
  }
};

class FlashSlots {
 public:
  FlashSlots(EraDomain& domain, std::uint32_t most);
  FlashSlots(const FlashSlots&) = delete;
  FlashSlots& operator=(const FlashSlots&) = delete;
  ~FlashSlots();

  std::optional<std::uint32_t> find(const Worker& worker) const {
    // Events mostly come in bursts of one worker.
    if (last_ < slots_.size() && slots_[last_].state == State::kLive && slots_[last_].worker == worker)
      return last_;
    return look_up(worker);
  }
  // Gives the worker a slot; nothing when all are taken. Requires: it has none.
  std::optional<std::uint32_t> assign(const Worker& worker);
  // The live slots of all ranks of a worker.
  std::vector<std::uint32_t> slots_of(WorkerId worker) const;
  const Worker& worker(std::uint32_t slot) const noexcept { return slots_[slot].worker; }

  // live -> dead. The workers may be assigned again at once, to other slots.
  void kill(std::span<const std::uint32_t> slots);
  // dead -> free as soon as the readers allow it. Requires: no node has a mask for the slot.
  void recycle(std::uint32_t slot);
  bool dead(std::uint32_t slot) const noexcept { return slots_[slot].state == State::kDead; }
  bool live(std::uint32_t slot) const noexcept { return slots_[slot].state == State::kLive; }

  // Slots that were ever assigned, up to the last one in use.
  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(slots_.size()); }
  // (worker, tier, content) presences of a slot.
  std::size_t& blocks(std::uint32_t slot) noexcept { return slots_[slot].blocks; }
  std::size_t blocks(std::uint32_t slot) const noexcept { return slots_[slot].blocks; }
  // What the slot's last events tell about the next ones; the blocks may be gone.
  struct Trail {
    BlockRef stored;           // where the last store ended,
    bool fresh = false;        // and whether it brought new content
    BlockRef removed_next;     // what a removal would take next if it went on like the last one
    std::uint32_t step = ~0u;  // from block to block there: 1, or -1
  };
  Trail& trail(std::uint32_t slot) noexcept { return slots_[slot].trail; }

  // acquire: pairs with the release in publish().
  const Roster* roster() const noexcept { return roster_.load(std::memory_order_acquire); }
  std::size_t bytes() const noexcept {
    return bytes_ + slots_.capacity() * sizeof(Slot) + by_worker_.size() * (sizeof(Worker) + 48);
  }

 private:
  enum class State : std::uint8_t { kFree, kLive, kDead, kWaiting };
  struct Slot {
    Worker worker;
    State state = State::kFree;
    std::uint64_t birth = 0;  // era of the assignment
    std::size_t blocks = 0;
    Trail trail;
  };
  std::optional<std::uint32_t> look_up(const Worker& worker) const;
  void publish();

  // What readers look at lies apart from what every event writes.
  alignas(kApart) std::atomic<const Roster*> roster_{nullptr};
  alignas(kApart) EraDomain& domain_;
  const std::uint32_t most_;
  std::vector<Slot> slots_;
  std::unordered_map<Worker, std::uint32_t> by_worker_;
  std::map<WorkerId, std::vector<std::uint32_t>> ranks_;  // slots of a worker's ranks
  std::size_t bytes_ = 0;
  mutable std::uint32_t last_ = 0;  // the slot that was looked up last
};

}  // namespace ashlar::index::detail
