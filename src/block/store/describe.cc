// What a manager shows of one block.
#include <algorithm>
#include <string>

#include "ashlar/base/check.h"
#include "block/store/block_store.h"

namespace ashlar::block {
namespace detail {
namespace {

bool has_one_owner(BlockState state) noexcept {
  return state == BlockState::kMutable || state == BlockState::kPartial || state == BlockState::kScheduled ||
         state == BlockState::kInflight || state == BlockState::kComplete;
}

}  // namespace

// The owner of an unregistered slot may change everything but the word without the lock: only the word is
// read. A registered slot keeps its columns while the lock is held.
BlockDescription BlockStore::describe_locked(std::uint32_t slot) {
  const std::uint64_t word = slots_.word(slot).load(kOrderProbe);
  BlockDescription out;
  out.id = BlockId(slot);
  out.state = SlotWord::state(word);
  if (has_one_owner(out.state)) out.references = 1;
  if (out.state != BlockState::kPrimary && out.state != BlockState::kDuplicate) return out;
  out.references = SlotWord::refs(word);
  out.pins = slots_.pins[slot];
  out.holds = slots_.holds[slot];
  // relaxed: a hint of its holders.
  out.reset_on_release =
      (slots_.flags(slot).load(std::memory_order_relaxed) & SlotTable::kResetOnRelease) != 0;
  out.identity = identity_of(slot);
  if (facts_->keeps_retentions()) out.retention = facts_->retention(BlockId(slot));
  if (slots_.has_tokens(slot)) {
    const std::span<const tokens::Token> tokens = slots_.tokens(slot);
    out.tokens.emplace(tokens.begin(), tokens.end());
  }
  if (out.state == BlockState::kDuplicate && is_withdrawn_locked(slot)) return out;
  // Its entry, or that of its primary, lives while it is registered.
  const std::uint32_t primary = out.state == BlockState::kPrimary ? slot : find_confirmed(out.identity->hash);
  ASHLAR_DCHECK(primary != kNone, "block %u is a duplicate of no block", slot);
  const Entry* const entry = slots_.entry(primary);
  if (is_implied(entry)) {
    out.tiers.push_back(tier_);
    return out;
  }
  for (std::uint8_t tier = 0; tier < events::kMaxTiers; ++tier)
    // relaxed: presence is a count.
    if (entry->presence[tier].load(std::memory_order_relaxed) != 0) out.tiers.emplace_back(tier);
  return out;
}

Result<BlockDescription> BlockStore::describe(BlockId id) {
  if (id.value() >= options_.block_count) {
    return make_error(ErrorCode::kInvalidArgument, "there is no block %u in %s, which has blocks 0 to %u",
                      id.value(), tier_name_.c_str(), options_.block_count - 1);
  }
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  return describe_locked(id.value());
}

std::optional<BlockDescription> BlockStore::describe(const tokens::SequenceHash& hash) {
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  const std::uint32_t slot = find_confirmed(hash);
  // A candidate enters the index before its word says so.
  if (slot == kNone || SlotWord::state(slots_.word(slot).load(kOrderProbe)) != BlockState::kPrimary)
    return std::nullopt;
  return describe_locked(slot);
}

}  // namespace detail

std::string BlockDescription::to_string() const {
  std::string text = "block " + std::to_string(id.value()) + ": " +
                     std::string(is_inactive() ? "inactive" : block::to_string(state));
  if (identity) text += " " + identity->hash.to_string();
  text += ", " + std::to_string(references) + " references, " + std::to_string(pins) + " pins, " +
          std::to_string(holds) + " holds";
  if (retention) text += ", priority " + std::to_string(retention->priority);
  if (!tiers.empty()) text += ", tiers";
  for (const events::TierId tier : tiers) text += " " + std::to_string(unsigned{tier.value()});
  return text;
}

}  // namespace ashlar::block
