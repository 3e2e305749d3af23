#include "index/flash_slots.h"

namespace ashlar::index::detail {

FlashSlots::FlashSlots(EraDomain& domain, std::uint32_t most) : domain_(domain), most_(most) {
  publish();
}

FlashSlots::~FlashSlots() {
  delete roster_.load(std::memory_order_relaxed);
}

std::optional<std::uint32_t> FlashSlots::look_up(const Worker& worker) const {
  const auto found = by_worker_.find(worker);
  if (found == by_worker_.end()) return std::nullopt;
  return last_ = found->second;
}

std::optional<std::uint32_t> FlashSlots::assign(const Worker& worker) {
  if (by_worker_.size() >= most_) return std::nullopt;
  std::uint32_t slot = 0;
  while (slot < size() && slots_[slot].state != State::kFree) ++slot;
  if (slot >= kMaxSlots) return std::nullopt;
  if (slot == size()) slots_.emplace_back();
  slots_[slot] = {worker, State::kLive, domain_.birth(0), 0, {}};
  by_worker_.emplace(worker, slot);
  ranks_[worker.id].push_back(slot);
  publish();
  return slot;
}

std::vector<std::uint32_t> FlashSlots::slots_of(WorkerId worker) const {
  const auto found = ranks_.find(worker);
  return found == ranks_.end() ? std::vector<std::uint32_t>() : found->second;
}

void FlashSlots::kill(std::span<const std::uint32_t> slots) {
  if (slots.empty()) return;
  for (const std::uint32_t slot : slots) {
    const Worker worker = slots_[slot].worker;
    by_worker_.erase(worker);
    std::vector<std::uint32_t>& ranks = ranks_[worker.id];
    std::erase(ranks, slot);
    if (ranks.empty()) ranks_.erase(worker.id);
    slots_[slot].state = State::kDead;
    slots_[slot].blocks = 0;
  }
  if (by_worker_.empty()) std::unordered_map<Worker, std::uint32_t>().swap(by_worker_);
  publish();
}

void FlashSlots::recycle(std::uint32_t slot) {
  slots_[slot].state = State::kWaiting;
  // A reader of an era in which the worker had the slot may take its masks for the worker's. Readers from before have a
  // roster without it; those of its last owner left before it was assigned. The address carries the number.
  domain_.retire(
      reinterpret_cast<void*>(static_cast<std::uintptr_t>(slot) + 1), 0, slots_[slot].birth,
      [](void* object, void* self) {
        auto& slots = static_cast<FlashSlots*>(self)->slots_;
        slots[reinterpret_cast<std::uintptr_t>(object) - 1] = {};
        bool shrunk = false;
        while (!slots.empty() && slots.back().state == State::kFree) {
          slots.pop_back();
          shrunk = true;
        }
        if (slots.empty()) std::vector<Slot>().swap(slots);
        if (shrunk) static_cast<FlashSlots*>(self)->publish();
      },
      this);
}

void FlashSlots::publish() {
  auto* const fresh = new Roster;
  fresh->assignment = MatchScores::next_assignment();
  fresh->workers.reserve(slots_.size());
  fresh->alive.assign((slots_.size() + 63) / 64, 0);
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    const bool live = slots_[slot].state == State::kLive;
    fresh->workers.push_back(live ? slots_[slot].worker : Worker{});
    if (live) fresh->alive[slot / 64] |= std::uint64_t{1} << (slot % 64);
  }
  fresh->birth = domain_.birth(fresh->bytes());
  bytes_ += fresh->bytes();
  // release: pairs with the acquire in roster().
  const Roster* const old = roster_.exchange(fresh, std::memory_order_acq_rel);
  if (old == nullptr) return;
  domain_.retire(
      const_cast<Roster*>(old), old->bytes(), old->birth,
      [](void* object, void* self) {
        static_cast<FlashSlots*>(self)->bytes_ -= static_cast<Roster*>(object)->bytes();
        delete static_cast<Roster*>(object);
      },
      this);
}

}  // namespace ashlar::index::detail
