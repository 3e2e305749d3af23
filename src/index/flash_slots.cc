#include "index/flash_slots.h"

#include <algorithm>
#include <bit>

#include "ashlar/base/check.h"

namespace ashlar::index::detail {

FlashSlots::FlashSlots(EraDomain& domain, std::uint32_t most) : domain_(domain), most_(most) {
  auto first = std::make_unique<Roster>();
  first->assignment = MatchScores::next_assignment();
  publish(std::move(first));
}

FlashSlots::~FlashSlots() {
  const Roster* const roster = roster_.load(std::memory_order_relaxed);
  for (const RosterPage* const page : roster->pages) delete page;
  delete roster;
}

std::optional<std::uint32_t> FlashSlots::look_up(const Worker& worker) const {
  const auto found = by_worker_.find(worker);
  if (found == by_worker_.end()) return std::nullopt;
  return last_ = found->second;
}

// size_ when there is none.
std::uint32_t FlashSlots::lowest_free() noexcept {
  for (; first_free_ < free_.size(); ++first_free_)
    if (free_[first_free_] != 0)
      return first_free_ * 64 + static_cast<std::uint32_t>(std::countr_zero(free_[first_free_]));
  return size_;
}

void FlashSlots::add_page() {
  pages_.push_back(std::make_unique<Page>());
  for (Bits* const bits : {&free_, &dead_, &idle_}) bits->resize(pages_.size());
}

std::optional<std::uint32_t> FlashSlots::assign(const Worker& worker) {
  if (by_worker_.size() >= most_) return std::nullopt;
  const std::uint32_t slot = lowest_free();
  if (slot >= kMaxSlots) return std::nullopt;
  // Everything that takes memory comes first: a slot is live only with a roster that says so.
  if (slot / kPage == pages_.size()) add_page();
  std::unique_ptr<Roster> fresh = copy_roster(std::max(size_, slot + 1));
  const RosterPage*& place = fresh->pages[slot / kPage];
  auto page = place == nullptr ? std::make_unique<RosterPage>() : std::make_unique<RosterPage>(*place);
  by_worker_.emplace(worker, slot);
  page->workers[slot % kPage] = worker;
  page->birth = domain_.birth(sizeof(RosterPage));
  bytes_ += sizeof(RosterPage);
  place = page.release();
  fresh->assignment = MatchScores::next_assignment();
  set(fresh->alive, slot, true);
  set(free_, slot, false);
  set(idle_, slot, true);
  size_ = std::max(size_, slot + 1);
  at(slot) = {worker, State::kLive, domain_.birth(0), 0, {}};
  publish(std::move(fresh));
  return slot;
}

std::vector<std::uint32_t> FlashSlots::slots_of(WorkerId worker, std::uint32_t rank, std::size_t most) const {
  std::vector<std::uint32_t> slots;
  for (auto next = by_worker_.lower_bound({worker, rank});
       next != by_worker_.end() && next->first.id == worker && slots.size() < most; ++next)
    slots.push_back(next->second);
  return slots;
}

void FlashSlots::kill(std::span<const std::uint32_t> slots) {
  if (slots.empty()) return;
  std::unique_ptr<Roster> fresh = copy_roster(roster_.load(std::memory_order_relaxed)->slots);
  for (const std::uint32_t slot : slots) {
    by_worker_.erase(at(slot).worker);
    set(fresh->alive, slot, false);
    set(dead_, slot, true);
    set(idle_, slot, false);
    at(slot).state = State::kDead;
    at(slot).blocks = 0;
  }
  publish(std::move(fresh));
}

void FlashSlots::recycle(std::uint32_t slot) {
  at(slot).state = State::kWaiting;
  set(dead_, slot, false);
  ++waiting_;
  // A reader of an era in which the worker had the slot may take its masks for the worker's. Readers from before have a
  // roster without it; those of its last owner left before it was assigned. The address carries the number.
  domain_.retire(
      reinterpret_cast<void*>(static_cast<std::uintptr_t>(slot) + 1), 0, at(slot).birth,
      [](void* object, void* self) {
        auto& slots = *static_cast<FlashSlots*>(self);
        const auto number = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(object) - 1);
        slots.at(number) = {};
        set(slots.free_, number, true);
        slots.first_free_ = std::min(slots.first_free_, number / 64);
        --slots.waiting_;
      },
      this);
}

void FlashSlots::trim(std::size_t most) {
  std::uint32_t size = size_;
  for (; most != 0 && size != 0 && at(size - 1).state == State::kFree; --most) set(free_, --size, false);
  if (size == size_) return;
  std::unique_ptr<Roster> fresh = copy_roster(size);
  fresh->assignment = MatchScores::next_assignment();
  size_ = size;
  pages_.resize((size + kPage - 1) / kPage);
  for (Bits* const bits : {&free_, &dead_, &idle_}) bits->resize(pages_.size());
  if (size == 0) {
    std::vector<std::unique_ptr<Page>>().swap(pages_);
    for (Bits* const bits : {&free_, &dead_, &idle_}) Bits().swap(*bits);
  }
  publish(std::move(fresh));
}

std::vector<std::uint32_t> FlashSlots::idle(std::size_t most) const {
  std::vector<std::uint32_t> slots;
  for (std::size_t w = 0; w < idle_.size(); ++w)
    for (std::uint64_t left = idle_[w]; left != 0 && slots.size() < most; left &= left - 1)
      slots.push_back(static_cast<std::uint32_t>(w * 64) +
                      static_cast<std::uint32_t>(std::countr_zero(left)));
  return slots;
}

std::unique_ptr<Roster> FlashSlots::copy_roster(std::uint32_t slots) const {
  const Roster& now = *roster_.load(std::memory_order_relaxed);
  auto fresh = std::make_unique<Roster>();
  const std::size_t pages = (slots + kPage - 1) / kPage;
  const auto kept = static_cast<std::ptrdiff_t>(std::min(pages, now.pages.size()));
  fresh->assignment = now.assignment;
  fresh->slots = slots;
  fresh->pages.reserve(pages);
  fresh->pages.assign(now.pages.begin(), now.pages.begin() + kept);
  fresh->pages.resize(pages);
  fresh->alive.reserve(pages);
  fresh->alive.assign(now.alive.begin(), now.alive.begin() + kept);
  fresh->alive.resize(pages);
  return fresh;
}

void FlashSlots::publish(std::unique_ptr<Roster> fresh) {
  fresh->birth = domain_.birth(fresh->bytes());
  bytes_ += fresh->bytes();
  const Roster* const old = roster_.load(std::memory_order_relaxed);
  std::vector<const RosterPage*> replaced;
  for (std::size_t p = 0; old != nullptr && p < old->pages.size(); ++p)
    if (p >= fresh->pages.size() || fresh->pages[p] != old->pages[p]) replaced.push_back(old->pages[p]);
  // release: pairs with the acquire in roster().
  roster_.store(fresh.release(), std::memory_order_release);
  if (old == nullptr) return;
  domain_.retire(
      const_cast<Roster*>(old), old->bytes(), old->birth,
      [](void* object, void* self) {
        static_cast<FlashSlots*>(self)->bytes_ -= static_cast<Roster*>(object)->bytes();
        delete static_cast<Roster*>(object);
      },
      this);
  for (const RosterPage* const page : replaced)
    domain_.retire(
        const_cast<RosterPage*>(page), sizeof(RosterPage), page->birth,
        [](void* object, void* self) {
          static_cast<FlashSlots*>(self)->bytes_ -= sizeof(RosterPage);
          delete static_cast<RosterPage*>(object);
        },
        this);
}

std::size_t FlashSlots::bytes() const noexcept {
  return bytes_ + pages_.size() * sizeof(Page) + pages_.capacity() * sizeof(pages_[0]) +
         (free_.capacity() + dead_.capacity() + idle_.capacity()) * sizeof(std::uint64_t) +
         by_worker_.size() * (sizeof(Worker) + 48);
}

}  // namespace ashlar::index::detail
