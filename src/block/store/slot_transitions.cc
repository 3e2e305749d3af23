// Transitions of slots that one guard owns. No other thread changes such a slot, so none of this takes the
// lock; the word is kept up to date for concurrent readers.
#include "ashlar/block/detail/store_calls.h"

#include <algorithm>
#include <string>

#include "ashlar/base/check.h"
#include "ashlar/base/result.h"
#include "block/store/block_store.h"

namespace ashlar::block::detail {
namespace {

SlotTable& table(const SlotRef& slot) noexcept {
  return store_of(slot).slots();
}

void set_state(const SlotRef& slot, BlockState state) noexcept {
  table(slot).word(slot.id).store(SlotWord::make(state, 0, slot.generation), kOrderEvict);
}

void expect_state([[maybe_unused]] const SlotRef& slot, [[maybe_unused]] BlockState state) noexcept {
  ASHLAR_DCHECK(table(slot).word(slot.id).load(kOrderProbe) == SlotWord::make(state, 0, slot.generation),
                "block %u is not %s", slot.id, std::string(to_string(state)).c_str());
}

PartialState& partial_of(const SlotRef& slot) {
  return *table(slot).partial[slot.id];
}

void finish(const SlotRef& slot, const BlockIdentity& identity) {
  SlotTable& slots = table(slot);
  slots.set_hash(slot.id, identity.hash, identity.prefix);
  if (!slots.ancestry.empty()) {
    Ancestry& ancestry = slots.ancestry[slot.id];
    ancestry.has_parent = identity.parent.has_value();
    if (identity.parent) ancestry.parent = *identity.parent;
    ancestry.has_root = identity.root.has_value();
    if (identity.root) ancestry.root = *identity.root;
    ancestry.has_local = identity.local.has_value();
    if (identity.local) ancestry.local = identity.local->value();
    ancestry.location = identity.location;
    ancestry.group = identity.group;
    ancestry.metadata = identity.metadata;
    ancestry.salt = identity.salt;
  }
  store_of(slot).facts().set_parent(BlockId(slot.id), identity.parent);
  set_state(slot, BlockState::kComplete);
  store_of(slot).count_staging();
}

// Requires: the block is full.
void finish_partial(const SlotRef& slot) {
  PartialState& partial = partial_of(slot);
  const auto hashes =
      partial.start.hasher.hash_block({partial.start.parent, partial.start.parent_prefix}, partial.tokens);
  ASHLAR_CHECK(hashes.has_value(), "block %u: parent and scheme were checked when the block began", slot.id);
  table(slot).set_tokens(slot.id, partial.tokens);
  const bool first = !partial.start.parent.has_value();
  finish(slot,
         {.hash = hashes->sequence,
          .parent = partial.start.parent,
          .root = first ? std::optional(hashes->sequence) : partial.start.root,
          .local = hashes->local,
          .prefix = hashes->prefix,
          .salt = table(slot).ancestry.empty() ? tokens::SaltFingerprint()
                                               : tokens::salt_fingerprint(partial.start.hasher.salt())});
}

}  // namespace

Result<void> complete(const SlotRef& slot, const tokens::TokenBlock& block) {
  expect_state(slot, BlockState::kMutable);
  if (block.block_size() != block_size_of(slot)) {
    return make_error(ErrorCode::kInvalidArgument, "a token block of %u tokens for blocks of %u tokens",
                      block.block_size(), block_size_of(slot));
  }
  table(slot).set_tokens(slot.id, block.tokens());
  finish(slot, {.hash = block.sequence_hash(),
                .parent = block.parent(),
                .root = block.root(),
                .local = block.local_hash(),
                .prefix = store_of(slot).prefix_of(block)});
  return {};
}

void complete(const SlotRef& slot, const BlockIdentity& identity, std::span<const tokens::Token> tokens) {
  expect_state(slot, BlockState::kMutable);
  ASHLAR_DCHECK(tokens.size() == block_size_of(slot), "%zu tokens for block %u", tokens.size(), slot.id);
  table(slot).set_tokens(slot.id, tokens);
  finish(slot, identity);
}

void stage(const SlotRef& slot, const BlockIdentity& identity) {
  expect_state(slot, BlockState::kMutable);
  table(slot).forget_tokens(slot.id);
  finish(slot, identity);
}

Result<void> init_sequence(const SlotRef& slot, const SequenceStart& start) {
  expect_state(slot, BlockState::kMutable);
  if (start.parent && start.parent->position() >= tokens::SequenceHash::kMaxPosition) {
    return make_error(ErrorCode::kInvalidArgument, "the parent is at position %u, the last one possible",
                      start.parent->position());
  }
  if (start.parent && start.parent->is_keyed() != start.hasher.scheme().is_keyed()) {
    return make_error(ErrorCode::kInvalidArgument, "the parent's name is %s, the hash scheme %s is %s",
                      start.parent->is_keyed() ? "keyed" : "not keyed",
                      std::string(start.hasher.scheme().name()).c_str(),
                      start.hasher.scheme().is_keyed() ? "keyed" : "not");
  }
  auto& partial = table(slot).partial[slot.id];
  try {
    if (!partial) {
      auto made = std::make_unique<PartialState>();
      made->tokens.reserve(block_size_of(slot));
      partial = std::move(made);
    }
    partial->start = start;
    const std::optional<tokens::PrefixKey>& key = store_of(slot).options().prefix_key;
    if (key && !start.hasher.scheme().is_keyed() && start.hasher.prefix_key() != *key) {
      partial->start.hasher = tokens::SequenceHasher(start.hasher.scheme(), start.hasher.salt(), *key);
      partial->start.parent_prefix = {};  // of another key
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory_error();
  }
  partial->tokens.clear();
  partial->computed = 0;
  partial->generation = slot.generation;
  partial->fence.reset();
  set_state(slot, BlockState::kPartial);
  return {};
}

Result<void> add_tokens(const SlotRef& slot, std::span<const tokens::Token> tokens) {
  expect_state(slot, BlockState::kPartial);
  PartialState& partial = partial_of(slot);
  const std::size_t room = block_size_of(slot) - partial.tokens.size();
  if (tokens.size() > room) {
    return make_error(ErrorCode::kCapacity, "%zu tokens for block %u, which has room for %zu", tokens.size(),
                      slot.id, room);
  }
  partial.tokens.insert(partial.tokens.end(), tokens.begin(), tokens.end());
  return {};
}

Result<void> pop_tokens(const SlotRef& slot, std::uint32_t count) {
  expect_state(slot, BlockState::kPartial);
  PartialState& partial = partial_of(slot);
  if (count > partial.tokens.size()) {
    return make_error(ErrorCode::kInvalidArgument, "%u tokens to take off block %u, which has %zu", count,
                      slot.id, partial.tokens.size());
  }
  partial.tokens.resize(partial.tokens.size() - count);
  partial.computed = std::min(partial.computed, static_cast<std::uint32_t>(partial.tokens.size()));
  return {};
}

std::span<const tokens::Token> tokens_of(const SlotRef& slot) {
  return partial_of(slot).tokens;
}

std::span<const tokens::Token> complete_tokens_of(const SlotRef& slot) noexcept {
  expect_state(slot, BlockState::kComplete);
  const SlotTable& slots = table(slot);
  if (slots.has_tokens(slot.id)) return slots.tokens(slot.id);
  const PartialState* const partial = slots.partial[slot.id].get();
  if (partial == nullptr || partial->generation != slot.generation) return {};
  return partial->tokens;
}

std::optional<tokens::SequenceHash> full_hash_of(const SlotRef& slot) {
  expect_state(slot, BlockState::kPartial);
  const PartialState& partial = partial_of(slot);
  if (partial.tokens.size() != block_size_of(slot)) return std::nullopt;
  const auto hashes =
      partial.start.hasher.hash_block({partial.start.parent, partial.start.parent_prefix}, partial.tokens);
  ASHLAR_CHECK(hashes.has_value(), "block %u: parent and scheme were checked when the block began", slot.id);
  return hashes->sequence;
}

std::uint32_t computed_tokens_of(const SlotRef& slot) {
  return partial_of(slot).computed;
}

Result<void> commit(const SlotRef& slot) {
  expect_state(slot, BlockState::kPartial);
  if (partial_of(slot).tokens.size() != block_size_of(slot)) {
    return make_error(ErrorCode::kNotReady,
                      "block %u holds %zu of %u tokens; only a full block can be committed", slot.id,
                      partial_of(slot).tokens.size(), block_size_of(slot));
  }
  finish_partial(slot);
  return {};
}

Result<void> schedule(const SlotRef& slot) {
  expect_state(slot, BlockState::kPartial);
  const PartialState& partial = partial_of(slot);
  if (partial.computed == partial.tokens.size()) {
    return make_error(ErrorCode::kNotReady,
                      "block %u has no token whose KV is to be computed (%zu tokens, %u computed)", slot.id,
                      partial.tokens.size(), partial.computed);
  }
  set_state(slot, BlockState::kScheduled);
  return {};
}

void launch(const SlotRef& slot, Fence fence) {
  expect_state(slot, BlockState::kScheduled);
  partial_of(slot).fence = std::move(fence);
  set_state(slot, BlockState::kInflight);
}

void cancel_schedule(const SlotRef& slot) {
  expect_state(slot, BlockState::kScheduled);
  set_state(slot, BlockState::kPartial);
}

Result<bool> compute_done(const SlotRef& slot) {
  expect_state(slot, BlockState::kInflight);
  PartialState& partial = partial_of(slot);
  if (!partial.fence->passed()) {
    return make_error(ErrorCode::kNotReady, "block %u is still being computed: its fence has not passed",
                      slot.id);
  }
  partial.fence.reset();
  partial.computed = static_cast<std::uint32_t>(partial.tokens.size());
  if (partial.tokens.size() == block_size_of(slot)) {
    finish_partial(slot);
    return true;
  }
  set_state(slot, BlockState::kPartial);
  return false;
}

void reset(const SlotRef& slot) {
  if (PartialState* const partial = table(slot).partial[slot.id].get(); partial != nullptr)
    partial->tokens.clear();
  set_state(slot, BlockState::kMutable);
}

}  // namespace ashlar::block::detail
