#include "index/flash/flash_slots.h"

#include <algorithm>
#include <bit>
#include <new>

#include "ashlar/base/check.h"

namespace ashlar::index::detail {

FlashSlots::FlashSlots(EraDomain& domain, std::uint32_t most) : domain_(domain), most_(most) {
  auto first = std::make_unique<Roster>();
  first->assignment = MatchScores::next_assignment();
  publish(std::move(first), {});
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

void FlashSlots::reserve_page() {
  const std::size_t wanted = pages_.size() + 1;
  const auto grow = [&](auto& list) {
    if (list.capacity() < wanted) list.reserve(std::max(wanted, 2 * list.capacity()));
  };
  grow(pages_);
  for (Bits* const bits : {&free_, &dead_, &idle_}) grow(*bits);
}

void FlashSlots::add_page(std::unique_ptr<Page> page) noexcept {
  pages_.push_back(std::move(page));
  for (Bits* const bits : {&free_, &dead_, &idle_}) bits->resize(pages_.size());
}

void FlashSlots::release_pages() noexcept {
  std::vector<std::unique_ptr<Page>>().swap(pages_);
  for (Bits* const bits : {&free_, &dead_, &idle_}) Bits().swap(*bits);
}

std::optional<std::uint32_t> FlashSlots::assign(const Worker& worker) {
  if (by_worker_.size() >= most_) return std::nullopt;
  const std::uint32_t slot = lowest_free();
  if (slot >= kMaxSlots) return std::nullopt;
  // Allocate everything first: a slot becomes live only with a roster that lists it.
  std::unique_ptr<Page> more;
  if (slot / kPage == pages_.size()) {
    reserve_page();
    more = std::make_unique<Page>();
  }
  std::unique_ptr<Roster> fresh = copy_roster(std::max(size_, slot + 1));
  const RosterPage*& place = fresh->pages[slot / kPage];
  auto page = place == nullptr ? std::make_unique<RosterPage>() : std::make_unique<RosterPage>(*place);
  place = page.get();
  const Pages replaced = prepare(*fresh);
  by_worker_.emplace(worker, slot);

  page->workers[slot % kPage] = worker;
  page->birth = domain_.birth(sizeof(RosterPage));
  bytes_ += sizeof(RosterPage);
  place = page.release();  // the roster owns it from here on
  if (more != nullptr) add_page(std::move(more));
  fresh->assignment = MatchScores::next_assignment();
  set(fresh->alive, slot, true);
  set(free_, slot, false);
  set(idle_, slot, true);
  size_ = std::max(size_, slot + 1);
  at(slot) = {worker, State::kLive, domain_.birth(0), 0, {}};
  publish(std::move(fresh), replaced);
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
  const Pages replaced = prepare(*fresh);
  for (const std::uint32_t slot : slots) {
    ASHLAR_CHECK(at(slot).state == State::kLive, "slot %u dies twice", slot);
    by_worker_.erase(at(slot).worker);
    set(fresh->alive, slot, false);
    set(dead_, slot, true);
    set(idle_, slot, false);
    at(slot).state = State::kDead;
    at(slot).blocks = 0;
  }
  publish(std::move(fresh), replaced);
}

void FlashSlots::recycle(std::uint32_t slot) {
  ASHLAR_CHECK(at(slot).state == State::kDead, "slot %u is recycled while its worker lives", slot);
  at(slot).state = State::kWaiting;
  set(dead_, slot, false);
  ++waiting_;
  // A reader of an era in which the worker had the slot may take its masks for the worker's. Earlier readers
  // have a roster without it; readers of its previous owner left before it was assigned. The address carries
  // the number.
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

void FlashSlots::trim(std::size_t most) noexcept {
  if (size_ == 0) return release_pages();
  std::uint32_t size = size_;
  for (; most != 0 && size != 0 && at(size - 1).state == State::kFree; --most) --size;
  if (size == size_) return;
  std::unique_ptr<Roster> fresh;
  Pages replaced;
  try {
    fresh = copy_roster(size);
    replaced = prepare(*fresh);
  } catch (const std::bad_alloc&) {
    return;
  }
  fresh->assignment = MatchScores::next_assignment();
  while (size_ != size) set(free_, --size_, false);
  pages_.resize((size + kPage - 1) / kPage);
  for (Bits* const bits : {&free_, &dead_, &idle_}) bits->resize(pages_.size());
  if (size == 0) release_pages();
  publish(std::move(fresh), replaced);
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

FlashSlots::Pages FlashSlots::prepare(const Roster& fresh) {
  const Roster& old = *roster_.load(std::memory_order_relaxed);
  Pages replaced;
  for (std::size_t p = 0; p < old.pages.size(); ++p)
    if (p >= fresh.pages.size() || fresh.pages[p] != old.pages[p]) replaced.push_back(old.pages[p]);
  domain_.reserve(1 + replaced.size());
  return replaced;
}

void FlashSlots::publish(std::unique_ptr<Roster> fresh, const Pages& replaced) noexcept {
  fresh->birth = domain_.birth(fresh->bytes());
  bytes_ += fresh->bytes();
  const Roster* const old = roster_.load(std::memory_order_relaxed);
  assignment_.store(fresh->assignment, std::memory_order_relaxed);
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
