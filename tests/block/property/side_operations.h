// Side: the operations. Each goes to the manager and to the model, and compares what they answer. Included by
// side.h.
#pragma once

#include "ashlar/block/block_identity.h"
#include "block/property/side.h"

namespace ashlar::block::property {

inline constexpr KvReady kReady = KvReady::asserted_by_caller();

// ---- allocation and owned blocks

template <events::Tier Tier>
void Side<Tier>::expect_refusal(const std::optional<AllocationRefusal>& refused,
                                const NaiveManager::Allocation& model, std::size_t n) {
  trace_.expect_equal("refused", refused.has_value(), model.refused.has_value());
  if (!refused || !model.refused) return;
  trace_.expect_equal("reason", refused->reason, *model.refused);
  trace_.expect_equal("requested", refused->requested, n);
  PoolStatus status = model_.status();
  // An allocation that gives up is still in the queue when it looks at the pools.
  if (model.refused == AllocationRefusal::Reason::kTimedOut) status.waiters = 1;
  expect_same(refused->status, status);
}

template <events::Tier Tier>
void Side<Tier>::allocate() {
  const std::size_t total = options_.model.block_count;
  const std::size_t n = random_.chance(0.8)   ? random_.below(std::min<std::size_t>(total, 4) + 1)
                        : random_.chance(0.9) ? random_.below(total + 1)
                                              : total + 1;
  BlockList<MutableBlock<Tier>> blocks;
  std::optional<AllocationRefusal> refused;
  NaiveManager::Allocation model;
  const std::uint64_t form = random_.below(4);
  add("allocate " + std::to_string(n) + " by form " + std::to_string(form));
  if (form == 0) {
    auto result = manager_.allocate_blocks(n);
    result ? void(blocks = *std::move(result)) : void(refused = result.error());
    model = model_.allocate(n);
  } else if (form == 1) {
    std::vector<MutableBlock<Tier>> out(n);
    if (auto taken = manager_.allocate_blocks(std::span(out)); !taken) refused = taken.error();
    if (!refused) blocks = BlockList<MutableBlock<Tier>>(std::move(out));
    model = model_.allocate(n);
  } else if (form == 2) {
    auto result = manager_.allocate_blocks_with_evictions(n);
    model = model_.allocate(n);
    if (result) {
      trace_.expect_equal("evicted hashes", result->evicted, model.evicted);
      blocks = std::move(result->blocks);
    } else {
      refused = result.error();
    }
  } else {
    auto result = manager_.try_allocate_until(n, world_.clock().now());
    result ? void(blocks = *std::move(result)) : void(refused = result.error());
    model = model_.allocate(n, /*until=*/true);
  }
  expect_refusal(refused, model, n);
  std::vector<Id> ids;
  for (auto& block : blocks) ids.push_back(id_of(block));
  trace_.expect_equal("allocated ids", ids, model.blocks);
  while (!blocks.empty()) mutables_.push_back(blocks.take_back());
}

template <events::Tier Tier>
void Side<Tier>::complete() {
  if (mutables_.empty()) return;
  auto block = take(mutables_);
  const Id id = id_of(block);
  const World::Pick pick = world_.pick();
  const tokens::TokenBlock& tokens = world_.block(pick);
  add("complete block " + text(id) + " as " + tokens.sequence_hash().to_string());
  auto done = std::move(block).complete(tokens, kReady);
  if (!done) return trace_.fail("complete() was refused");
  model_.finish(id, world_.identity(pick));
  completes_.push_back(*std::move(done));
}

template <events::Tier Tier>
void Side<Tier>::stage() {
  if (mutables_.empty()) return;
  auto block = take(mutables_);
  const Id id = id_of(block);
  const World::Pick pick = world_.pick();
  NaiveIdentity identity = world_.identity(pick);
  const bool with_digest = random_.chance(0.3);
  if (!with_digest) identity.tokens.reset();
  if (random_.chance(0.5)) identity.parent.reset();
  if (random_.chance(0.5)) identity.root.reset();
  add("stage block " + text(id) + " as " + identity.hash.to_string());
  const BlockIdentity named{
      .hash = identity.hash,
      .parent = identity.parent,
      .root = identity.root,
      .prefix = with_digest ? world_.block(pick).prefix_digest() : tokens::PrefixDigest()};
  completes_.push_back(std::move(block).stage(named, kReady));
  model_.finish(id, identity);
}

template <events::Tier Tier>
void Side<Tier>::reset_complete() {
  if (completes_.empty()) return;
  auto block = take(completes_);
  add("reset complete block " + text(id_of(block)));
  model_.set_state(id_of(block), BlockState::kMutable);
  mutables_.push_back(std::move(block).reset());
}

template <events::Tier Tier>
template <class T>
bool Side<Tier>::drop_one(std::vector<T>& guards, const char* what) {
  if (guards.empty()) return false;
  const T gone = take(guards);
  Id id = 0;
  if constexpr (requires { gone.guard; }) {
    id = id_of(gone.guard);
  } else {
    id = id_of(gone);
  }
  add("drop " + std::string(what) + " block " + text(id));
  model_.drop_owned(id);
  return true;
}

template <events::Tier Tier>
void Side<Tier>::drop_owned() {
  switch (random_.below(5)) {
    case 0:
      drop_one(mutables_, "mutable");
      break;
    case 1:
      drop_one(completes_, "complete");
      break;
    case 2:
      drop_one(partials_, "partial");
      break;
    case 3:
      drop_one(scheduled_, "scheduled");
      break;
    default:
      drop_one(inflight_, "inflight");
      break;
  }
}

// ---- registration

template <events::Tier Tier>
void Side<Tier>::register_one() {
  if (completes_.empty()) return;
  auto block = take(completes_);
  const Id id = id_of(block);
  add("register block " + text(id) + " as " + block.sequence_hash().to_string());
  auto registered = manager_.register_block(std::move(block));
  const NaiveManager::Registration model = model_.register_blocks(std::span(&id, 1));
  trace_.expect_equal("refused", !registered.has_value(), model.refused.has_value());
  if (trace_.failed()) return;
  if (!registered) {
    trace_.expect_equal("error", registered.error().error.code(), *model.refused);
    completes_.push_back(std::move(registered.error().guard));
    return;
  }
  trace_.expect_equal("registered block", id_of(*registered), model.blocks[0]);
  keep(*std::move(registered));
}

template <events::Tier Tier>
void Side<Tier>::register_many() {
  std::vector<CompleteBlock<Tier>> chosen;
  const std::size_t wanted = random_.below(completes_.size() + 1);
  while (chosen.size() < wanted) chosen.push_back(take(completes_));
  if (random_.chance(0.5)) {
    std::sort(chosen.begin(), chosen.end(),
              [](const auto& a, const auto& b) { return a.sequence_hash() < b.sequence_hash(); });
  }
  std::vector<Id> ids;
  std::string operation = "register blocks";
  for (const auto& block : chosen) {
    ids.push_back(id_of(block));
    operation += " " + text(ids.back());
  }
  add(operation);
  auto registered = manager_.register_blocks(BlockList<CompleteBlock<Tier>>(std::move(chosen)));
  const NaiveManager::Registration model = model_.register_blocks(ids);
  trace_.expect_equal("refused", !registered.has_value(), model.refused.has_value());
  if (trace_.failed()) return;
  if (!registered) {
    trace_.expect_equal("error", registered.error().error.code(), *model.refused);
    auto& back = registered.error().guard;
    trace_.expect_equal("blocks that came back", back.size(), ids.size());
    while (!back.empty()) completes_.push_back(back.take_back());
    return;
  }
  std::vector<Id> got;
  for (const Immutable& guard : *registered) got.push_back(id_of(guard));
  trace_.expect_equal("registered blocks", got, model.blocks);
  while (!registered->empty()) keep(registered->take_back());
}

// ---- matching

template <events::Tier Tier>
void Side<Tier>::match_prefix() {
  const std::vector<Hash> hashes = world_.some_hashes(/*scattered=*/false);
  add("match a prefix of " + std::to_string(hashes.size()));
  std::vector<Id> got;
  if (random_.chance(0.5)) {
    auto found = manager_.match_blocks(hashes);
    for (Immutable& guard : found) got.push_back(id_of(guard));
    while (!found.empty()) keep(found.take_back());
  } else {
    std::vector<Immutable> out(hashes.size());
    const std::size_t hits = manager_.match_blocks(hashes, std::span(out));
    for (std::size_t i = 0; i < hits; ++i) {
      got.push_back(id_of(out[i]));
      keep(std::move(out[i]));
    }
  }
  trace_.expect_equal("matched blocks", got, model_.match_prefix(hashes));
}

template <events::Tier Tier>
void Side<Tier>::match_scattered() {
  const std::vector<Hash> hashes = world_.some_hashes(/*scattered=*/true);
  add("match " + std::to_string(hashes.size()) + " scattered hashes");
  std::vector<Immutable> found = manager_.match_blocks_scattered(hashes);
  std::vector<std::optional<Id>> got;
  for (Immutable& guard : found) {
    got.push_back(guard ? std::optional(id_of(guard)) : std::nullopt);
    if (guard) keep(std::move(guard));
  }
  trace_.expect_equal("matched blocks", got, model_.match_scattered(hashes));
}

template <events::Tier Tier>
void Side<Tier>::scan() {
  const std::vector<Hash> hashes = world_.some_hashes(/*scattered=*/true);
  const bool touch = random_.chance(0.5);
  add("scan " + std::to_string(hashes.size()) + " hashes");
  auto found = manager_.scan_matches(hashes, touch);
  std::map<Hash, Id> got;
  for (auto& [hash, guard] : found) {
    got[hash] = id_of(guard);
    keep(std::move(guard));
  }
  trace_.expect_equal("scanned blocks", got, model_.scan(hashes, touch));
}

template <events::Tier Tier>
void Side<Tier>::match_verified() {
  const std::size_t number = random_.below(world_.sequences().size());
  const auto& sequence = world_.sequences()[number];
  const std::size_t n = random_.below(sequence.size() + 1);
  add("match a verified prefix of " + std::to_string(n));
  std::vector<NaiveIdentity> wanted;
  for (std::size_t i = 0; i < n; ++i) wanted.push_back(world_.identity({number, i}));
  auto found = manager_.match_blocks(std::span<const tokens::TokenBlock>(sequence).first(n));
  std::vector<Id> got;
  for (const Immutable& guard : found) got.push_back(id_of(guard));
  trace_.expect_equal("verified blocks", got, model_.match_verified(wanted));
  while (!found.empty()) keep(found.take_back());
}

// ---- references

template <events::Tier Tier>
void Side<Tier>::copy() {
  if (shared_.empty()) return;
  Immutable guard = shared_[random_.below(shared_.size())];
  add("copy a guard of block " + text(id_of(guard)));
  model_.copy(id_of(guard));
  keep(std::move(guard));
}

template <events::Tier Tier>
void Side<Tier>::drop_shared() {
  if (shared_.empty()) return;
  Id id = 0;
  {
    const Immutable gone = take(shared_);
    id = id_of(gone);
    add("drop a guard of block " + text(id));
  }
  model_.drop(id);
}

template <events::Tier Tier>
void Side<Tier>::drop_many() {
  const std::size_t wanted = std::min<std::size_t>(random_.below(shared_.size() + 1), 60);
  std::vector<Immutable> chosen;
  std::vector<Id> ids;
  std::string operation = "drop guards of blocks";
  while (chosen.size() < wanted) {
    chosen.push_back(take(shared_));
    ids.push_back(id_of(chosen.back()));
    operation += " " + text(ids.back());
  }
  add(operation);
  if (random_.chance(0.5)) {
    BlockList<Immutable>(std::move(chosen)).clear();
  } else {
    Immutable::release(chosen);
  }
  model_.drop_many(ids);
}

template <events::Tier Tier>
void Side<Tier>::downgrade() {
  if (shared_.empty() || weaks_.size() > 12) return;
  const Immutable& guard = shared_[random_.below(shared_.size())];
  add("downgrade a guard of block " + text(id_of(guard)));
  weaks_.push_back({guard.downgrade(), model_.downgrade(id_of(guard))});
}

template <events::Tier Tier>
void Side<Tier>::upgrade() {
  if (weaks_.empty()) return;
  const bool last = random_.chance(0.3);
  const std::size_t at = random_.below(weaks_.size());
  add("upgrade a weak guard of block " + text(weaks_[at].model.id));
  auto guard = weaks_[at].guard.upgrade();
  const std::optional<Id> got = guard ? std::optional(id_of(*guard)) : std::nullopt;
  trace_.expect_equal("upgraded", got, model_.upgrade(weaks_[at].model));
  if (guard) keep(*std::move(guard));
  if (last) weaks_.erase(weaks_.begin() + static_cast<std::ptrdiff_t>(at));
}

template <events::Tier Tier>
void Side<Tier>::set_reset_on_release() {
  if (shared_.empty()) return;
  Immutable& guard = shared_[random_.below(shared_.size())];
  const bool reset = random_.chance(0.5);
  add("set_reset_on_release of block " + text(id_of(guard)) + (reset ? " true" : " false"));
  guard.set_reset_on_release(reset);
  model_.set_reset_on_release(id_of(guard), reset);
}

// ---- pins and pools

template <events::Tier Tier>
void Side<Tier>::pin() {
  const Clock::Duration ttl = random_.chance(0.95) ? world_.unique_ttl() : Clock::Duration::zero();
  std::optional<Result<Pin>> pinned;
  NaiveManager::PinResult model;
  if (random_.chance(0.5) && !shared_.empty()) {
    const Immutable& guard = shared_[random_.below(shared_.size())];
    add("pin block " + text(id_of(guard)) + " for " + std::to_string(ttl.count()) + " ns");
    pinned.emplace(guard.pin(ttl));
    model = model_.pin_block(id_of(guard), ttl);
  } else {
    const Hash hash = world_.hashes()[random_.below(world_.hashes().size())];
    add("pin " + hash.to_string() + " for " + std::to_string(ttl.count()) + " ns");
    pinned.emplace(manager_.pin(hash, ttl));
    model = model_.pin(hash, ttl);
  }
  trace_.expect_equal("refused", !pinned->has_value(), model.refused.has_value());
  if (trace_.failed()) return;
  if (!*pinned) {
    trace_.expect_equal("error", pinned->error().code(), *model.refused);
    return;
  }
  pins_.push_back({**std::move(pinned), model.key});
}

template <events::Tier Tier>
void Side<Tier>::end_pin() {
  if (pins_.empty()) return;
  PinPair pair = take(pins_);
  add("unpin");
  std::move(pair.guard).unpin();
  model_.unpin(pair.model);
}

template <events::Tier Tier>
void Side<Tier>::reset_inactive() {
  add("reset_inactive_pool");
  trace_.expect_equal("reset blocks", manager_.reset_inactive_pool(), model_.reset_inactive());
}

template <events::Tier Tier>
void Side<Tier>::ask() {
  const std::size_t n = random_.below(options_.model.block_count + 2);
  add("can_allocate and candidates of " + std::to_string(n));
  std::optional<AllocationRefusal> refused;
  if (auto room = manager_.can_allocate(n); !room) refused = room.error();
  NaiveManager::Allocation model;
  model.refused = model_.why_not(n);
  expect_refusal(refused, model, n);
  const auto order = manager_.eviction_candidates(n);
  trace_.expect_equal("candidates", order, model_.candidates(n));
}

// ---- partial blocks and work in flight

template <events::Tier Tier>
NaiveIdentity Side<Tier>::identity_of(const Partial& partial) const {
  NaiveIdentity identity = world_.identity(partial.aim);
  if (!partial.prefix_known) identity.tokens.reset();
  return identity;
}

template <events::Tier Tier>
void Side<Tier>::begin_partial() {
  if (mutables_.empty()) return;
  const World::Pick aim = world_.pick();
  const tokens::TokenBlock& block = world_.block(aim);
  auto guard = take(mutables_);
  const Id id = id_of(guard);
  add("init_sequence in block " + text(id));
  SequenceStart start{world_.hasher(aim.sequence), block.parent(), block.root()};
  const bool prefix_known = aim.place == 0 || random_.chance(0.7);
  if (aim.place != 0 && prefix_known)
    start.parent_prefix = world_.block({aim.sequence, aim.place - 1}).prefix_digest();
  auto partial = std::move(guard).init_sequence(start);
  if (!partial) return trace_.fail("init_sequence() was refused");
  model_.set_state(id, BlockState::kPartial);
  partials_.push_back({*std::move(partial), aim, {}, 0, prefix_known});
}

template <events::Tier Tier>
void Side<Tier>::change_tokens() {
  if (partials_.empty()) return;
  Partial& partial = partials_[random_.below(partials_.size())];
  const auto wanted = world_.block(partial.aim).tokens();
  if (random_.chance(0.2)) {
    const auto count = static_cast<std::uint32_t>(random_.below(world_.block_size() + 1));
    add("pop " + std::to_string(count) + " tokens off block " + text(id_of(partial.guard)));
    trace_.expect_equal("popped", partial.guard.pop_tokens(count).has_value(),
                        count <= partial.tokens.size());
    if (count <= partial.tokens.size()) partial.tokens.resize(partial.tokens.size() - count);
    partial.computed = std::min(partial.computed, static_cast<std::uint32_t>(partial.tokens.size()));
    return;
  }
  const std::size_t room = wanted.size() - partial.tokens.size();
  const std::size_t count = random_.chance(0.6) ? room : random_.below(room + 1);
  add("add " + std::to_string(count) + " tokens to block " + text(id_of(partial.guard)));
  const auto more = wanted.subspan(partial.tokens.size(), count);
  if (!partial.guard.add_tokens(more)) trace_.fail("add_tokens() was refused");
  for (const tokens::Token token : more) partial.tokens.push_back(token.value());
  if (random_.chance(0.1)) {
    const std::vector<tokens::Token> too_many(room - count + 1);
    if (partial.guard.add_tokens(too_many)) trace_.fail("more tokens than there is room for were added");
  }
}

template <events::Tier Tier>
void Side<Tier>::schedule() {
  if (partials_.empty()) return;
  Partial partial = take(partials_);
  const Id id = id_of(partial.guard);
  add("schedule block " + text(id));
  auto scheduled = std::move(partial.guard).schedule();
  trace_.expect_equal("scheduled", scheduled.has_value(), partial.computed < partial.tokens.size());
  if (trace_.failed()) return;
  if (!scheduled) {
    partial.guard = std::move(scheduled.error().guard);
    partials_.push_back(std::move(partial));
    return;
  }
  model_.set_state(id, BlockState::kScheduled);
  scheduled_.push_back({*std::move(scheduled), std::move(partial)});
}

template <events::Tier Tier>
void Side<Tier>::commit() {
  if (partials_.empty()) return;
  Partial partial = take(partials_);
  const Id id = id_of(partial.guard);
  if (random_.chance(0.1)) {
    add("reset partial block " + text(id));
    model_.set_state(id, BlockState::kMutable);
    mutables_.push_back(std::move(partial.guard).reset());
    return;
  }
  add("commit block " + text(id));
  auto complete = std::move(partial.guard).commit(kReady);
  trace_.expect_equal("committed", complete.has_value(), partial.tokens.size() == world_.block_size());
  if (trace_.failed()) return;
  if (!complete) {
    partial.guard = std::move(complete.error().guard);
    partials_.push_back(std::move(partial));
    return;
  }
  model_.finish(id, identity_of(partial));
  completes_.push_back(*std::move(complete));
}

template <events::Tier Tier>
typename Side<Tier>::FencePair& Side<Tier>::some_fence() {
  if (fences_.empty() || random_.chance(0.5)) {
    auto [fence, signal] = Fence::create();
    fences_.push_back({fence, std::move(signal), std::make_shared<NaiveFence>()});
  }
  return fences_[random_.below(fences_.size())];
}

template <events::Tier Tier>
void Side<Tier>::launch_or_cancel() {
  if (scheduled_.empty()) return;
  Scheduled scheduled = take(scheduled_);
  const Id id = id_of(scheduled.guard);
  if (random_.chance(0.2)) {
    add("cancel block " + text(id));
    model_.set_state(id, BlockState::kPartial);
    scheduled.rest.guard = std::move(scheduled.guard).cancel();
    partials_.push_back(std::move(scheduled.rest));
    return;
  }
  FencePair& fence = some_fence();
  add("launch block " + text(id));
  model_.launch(id, fence.model);
  inflight_.push_back(
      {std::move(scheduled.guard).launch(fence.fence), std::move(scheduled.rest), fence.model});
}

template <events::Tier Tier>
void Side<Tier>::compute_done() {
  if (inflight_.empty()) return;
  Inflight inflight = take(inflight_);
  const Id id = id_of(inflight.guard);
  add("compute_done of block " + text(id));
  auto done = std::move(inflight.guard).compute_done();
  trace_.expect_equal("done", done.has_value(), inflight.fence->passed);
  if (trace_.failed()) return;
  if (!done) {
    inflight.guard = std::move(done.error().guard);
    inflight_.push_back(std::move(inflight));
    return;
  }
  Partial partial = std::move(inflight.rest);
  partial.computed = static_cast<std::uint32_t>(partial.tokens.size());
  model_.land(id);
  const bool full = partial.tokens.size() == world_.block_size();
  trace_.expect_equal("complete", std::holds_alternative<CompleteBlock<Tier>>(*done), full);
  if (trace_.failed()) return;
  if (full) {
    model_.finish(id, identity_of(partial));
    completes_.push_back(std::get<CompleteBlock<Tier>>(*std::move(done)));
  } else {
    model_.set_state(id, BlockState::kPartial);
    partial.guard = std::get<PartialBlock<Tier>>(*std::move(done));
    partials_.push_back(std::move(partial));
  }
}

template <events::Tier Tier>
void Side<Tier>::signal_fence() {
  if (fences_.empty()) return;
  FencePair pair = take(fences_);
  add("signal a fence");
  std::move(pair.signal).signal();
  pair.model->signal();
}

template <events::Tier Tier>
void Side<Tier>::release_after() {
  if (shared_.empty()) return;
  Immutable guard = take(shared_);
  FencePair& fence = some_fence();
  const Id id = id_of(guard);
  add("release block " + text(id) + " after a fence");
  std::move(guard).release_after(fence.fence);
  model_.drop_after(id, *fence.model);
}

}  // namespace ashlar::block::property
