// Writers, and how blocks lose their names while they are in use.
#include "block/store/writers.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "block/store/block_store.h"

namespace ashlar::block::detail {

class Writers::Blocks final : public Fence::Waiting {
 public:
  explicit Blocks(BlockStore& store) : store_(store.shared_from_this()) {}
  void settled(FenceEnd end) noexcept override { store_->end_writing(slots, end); }

  std::vector<SlotRef> slots;

 private:
  const std::shared_ptr<BlockStore> store_;
};

void Writers::expect(std::size_t first, std::size_t count, const Fence& fence) {
  if (count == 0 || fence.passed()) return;
  ASHLAR_DCHECK(first + count <= n_, "blocks %zu to %zu of %zu", first, first + count, n_);
  if (of_.empty()) of_.assign(n_, kComplete);
  auto at = std::find_if(writers_.rbegin(), writers_.rend(),
                         [&](const Writer& writer) { return writer.fence == fence; });
  if (at == writers_.rend()) {
    writers_.push_back({fence, std::make_unique<Blocks>(store_)});
    at = writers_.rbegin();
  }
  auto& slots = static_cast<Blocks&>(*at->blocks).slots;
  const auto number = static_cast<std::uint32_t>(writers_.rend() - at - 1);
  std::fill_n(of_.begin() + static_cast<std::ptrdiff_t>(first), count, number);
  // Room for all that it may get: add() has nowhere to report to.
  at->expected += count;
  if (at->expected > slots.capacity()) slots.reserve(std::max(at->expected, 2 * slots.capacity()));
}

void Writers::add(std::size_t i, const SlotRef& slot) noexcept {
  static_cast<Blocks&>(*writers_[of_[i]].blocks).slots.push_back(slot);
}

void Writers::keep() noexcept {
  for (Writer& writer : writers_) writer.fence.keep(std::move(writer.blocks));
}

// What nobody says has ended keeps its blocks.
void BlockStore::end_writing(std::span<const SlotRef> slots, FenceEnd end) noexcept {
  const auto is_registered = [this](const SlotRef& slot) {
    return SlotWord::state(slots_.word(slot.id).load(kOrderProbe)) != BlockState::kQuarantined;
  };
  if (end != FenceEnd::kPassed) {
    Operation operation(*this);
    RegistryEntries::Cursor cursor;
    for (std::size_t i = slots.size(); i-- > 0;)  // children first
      if (is_registered(slots[i])) withdraw_locked(slots[i].id, cursor, operation.retired);
  }
  if (end == FenceEnd::kAbandoned) return;
  Dropper dropper;
  for (std::size_t i = slots.size(); i-- > 0;) {
    if (is_registered(slots[i])) {
      dropper.drop(slots[i]);
    } else {
      end_quarantine(slots[i].id);
    }
  }
}

// A block without a name is a duplicate in no ring. Its holders may still ask the registry about it, so it
// keeps the entry alive that they may have seen.
void BlockStore::withdraw_locked(std::uint32_t slot, RegistryEntries::Cursor& cursor,
                                 RetiredExtensions& retired) {
  if (is_withdrawn_locked(slot)) return;
  const tokens::SequenceHash hash = slots_.hash(slot);
  const bool primary = SlotWord::state(slots_.word(slot).load(kOrderProbe)) == BlockState::kPrimary;
  ASHLAR_DCHECK(slots_.listing[slot] == Listing::kNone, "slot %u loses its name while it is in a pool", slot);
  const auto keep_entry = [&](Entry* entry) {
    if (is_implied(entry)) return;
    entry->add_reference();
    slots_.set_entry(slot, entry);
  };
  // relaxed: the word below publishes it.
  slots_.flags(slot).fetch_or(SlotTable::kWithdrawn, std::memory_order_relaxed);
  if (!primary || has_duplicates_locked(slot)) {
    const std::uint32_t heir = primary ? slots_.next_twin[slot] : find_confirmed(hash);
    leave_twins_locked(slot);
    if (primary) {
      pass_place_locked(slot, heir, cursor);
      pass_metadata_locked(slot, heir);
      // If the heir's own last drop is not settled yet, settling will find a primary.
      slots_.word(heir).fetch_add(SlotWord::kBecomePrimary, kOrderPublish);
    }
    registry_.pass_block(cursor, hash, [&] { keep_entry(slots_.entry(heir)); });
  } else {
    if (options_.events) publish_removed_locked(slot);
    registry_.release_block(cursor, hash, tier_, retired, [&] {
      index_.erase(HashMix::of(hash), slot);
      Entry* const entry = slots_.entry(slot);
      slots_.set_entry(slot, nullptr);
      keep_entry(entry);
      return entry;
    });
    cursor.release();  // user-supplied code runs under the store's lock alone
    if (follows_registrations_) inactive_->unregistered(BlockId(slot));
  }
  slots_.next_twin[slot] = SlotTable::kNoTwin;
  // Its release: who sees the new state sees the flag.
  if (primary) slots_.word(slot).fetch_sub(SlotWord::kBecomePrimary, kOrderPublish);
}

// The last reference to a block without a name is gone.
void BlockStore::drop_withdrawn_locked(std::uint32_t slot, RegistryEntries::Cursor& cursor,
                                       RetiredExtensions& retired) {
  if (slots_.pins[slot] != 0) {
    slots_.listing[slot] = Listing::kPinnedAside;
    ++pinned_aside_;
    return;
  }
  if (slots_.holds[slot] != 0) {
    slots_.listing[slot] = Listing::kHeldAside;
    ++held_aside_;
    return;
  }
  if (Entry* const entry = slots_.entry(slot)) {
    slots_.set_entry(slot, nullptr);
    registry_.release(cursor, *entry, retired);
  }
  cursor.release();  // user-supplied code runs under the store's lock alone
  to_reset_pool_locked(slot);
}

}  // namespace ashlar::block::detail
