// Side: the choice of operations, and the comparison of everything that can be seen. Included by side.h.
#pragma once

#include "block/property/side.h"

namespace ashlar::block::property {

template <events::Tier Tier>
void Side<Tier>::step() {
  if (!options_.order_is_known) {
    const auto order = manager_.eviction_candidates(options_.model.block_count);
    model_.candidates(0);
    if (!model_.adopt_order(order)) trace_.fail("eviction_candidates() are not the inactive blocks");
  }
  struct Choice {
    unsigned weight;
    void (Side::*run)();
  };
  static constexpr Choice kChoices[] = {
      {12, &Side::allocate},
      {12, &Side::complete},
      {6, &Side::stage},
      {1, &Side::reset_complete},
      {4, &Side::drop_owned},
      {8, &Side::register_one},
      {8, &Side::register_many},
      {8, &Side::match_prefix},
      {4, &Side::match_scattered},
      {3, &Side::scan},
      {6, &Side::match_verified},
      {4, &Side::copy},
      {12, &Side::drop_shared},
      {8, &Side::drop_many},
      {4, &Side::downgrade},
      {5, &Side::upgrade},
      {4, &Side::pin},
      {4, &Side::end_pin},
      {3, &Side::ask},
      {3, &Side::set_reset_on_release},
      {1, &Side::reset_inactive},
      {6, &Side::begin_partial},
      {8, &Side::change_tokens},
      {5, &Side::schedule},
      {3, &Side::commit},
      {5, &Side::launch_or_cancel},
      {5, &Side::compute_done},
      {5, &Side::signal_fence},
      {2, &Side::release_after},
  };
  unsigned total = 0;
  for (const Choice& choice : kChoices) total += choice.weight;
  std::uint64_t drawn = random_.below(total);
  for (const Choice& choice : kChoices) {
    if (drawn < choice.weight) return (this->*choice.run)();
    drawn -= choice.weight;
  }
}

template <events::Tier Tier>
void Side<Tier>::expect_same(const PoolStatus& manager, const PoolStatus& model) {
  trace_.expect_equal("status", manager.to_string(), model.to_string());
  trace_.expect_equal("available", manager.available(), model.available());
}

template <events::Tier Tier>
void Side<Tier>::expect_same(const ManagerCounters& manager, const ManagerCounters& model) {
  const std::pair<const char*, std::uint64_t ManagerCounters::*> all[] = {
      {"allocations", &ManagerCounters::allocations},
      {"allocations_from_reset", &ManagerCounters::allocations_from_reset},
      {"evictions", &ManagerCounters::evictions},
      {"stagings", &ManagerCounters::stagings},
      {"registrations", &ManagerCounters::registrations},
      {"duplicates", &ManagerCounters::duplicates},
      {"deduplications", &ManagerCounters::deduplications},
      {"collisions", &ManagerCounters::collisions},
      {"match_hashes_requested", &ManagerCounters::match_hashes_requested},
      {"match_blocks_returned", &ManagerCounters::match_blocks_returned},
      {"scan_hashes_requested", &ManagerCounters::scan_hashes_requested},
      {"scan_blocks_returned", &ManagerCounters::scan_blocks_returned},
      {"revivals", &ManagerCounters::revivals},
      {"quarantines", &ManagerCounters::quarantines},
      {"late_releases", &ManagerCounters::late_releases},
  };
  for (const auto& [name, counter] : all) trace_.expect_equal(name, manager.*counter, model.*counter);
}

template <events::Tier Tier>
void Side<Tier>::compare(bool pools) {
  // First what changes nothing.
  expect_same(manager_.counters(), model_.counters());
  trace_.expect_equal("pressure", manager_.pressure(), model_.pressure());
  trace_.expect_equal("pressure callbacks", pressure_calls_, model_.pressure_calls());
  recorder_.drain(*log_);
  const auto& events = model_.events();
  trace_.expect_equal("number of events", recorder_.events().size(), events.size());
  for (; compared_events_ < events.size() && !trace_.failed(); ++compared_events_) {
    const events::KvEvent& published = recorder_.events()[compared_events_];
    trace_.expect_equal("an event's hash", published.hash, events[compared_events_].hash);
    trace_.expect_equal("an event's parent", published.parent(), events[compared_events_].parent());
    events::KvEvent told = published;
    told.has_local = false;  // the model has no hashes of its own
    told.local_bits = 0;
    if (told != events[compared_events_]) trace_.fail("an event differs");
  }
  std::map<Hash, Id> primaries;
  manager_.for_each_registered([&](const Hash& hash, BlockId id) { primaries[hash] = id.value(); });
  trace_.expect_equal("primaries", primaries, model_.primaries());
  for (const Hash& hash : world_.hashes())
    trace_.expect_equal("contains", manager_.contains(hash), primaries.contains(hash));
  for (const Immutable& guard : shared_) {
    const Id id = id_of(guard);
    trace_.expect_equal("use count", guard.use_count(), model_.use_count(id));
    trace_.expect_equal("is duplicate", guard.is_duplicate(), model_.is_duplicate(id));
    trace_.expect_equal("hash of a guard", guard.sequence_hash(), model_.hash(id));
  }
  for (const Partial& partial : partials_) {
    Tokens tokens;
    for (const tokens::Token token : partial.guard.tokens()) tokens.push_back(token.value());
    trace_.expect_equal("tokens", tokens, partial.tokens);
    trace_.expect_equal("computed tokens", partial.guard.computed_tokens(), partial.computed);
  }
  manager_.check_invariants();
  if (!pools) return;
  expect_same(manager_.status(), model_.status());
  const std::size_t all = options_.model.block_count;
  const std::vector<Hash> order = manager_.eviction_candidates(all);
  if (!options_.order_is_known && !model_.adopt_order(order))
    trace_.fail("candidates are not the inactive blocks");
  trace_.expect_equal("eviction candidates", order, model_.candidates(all));
  for (const PinPair& pin : pins_) {
    trace_.expect_equal("pin holds", pin.guard.active(), model_.pinned(pin.model));
  }
}

template <events::Tier Tier>
void Side<Tier>::drop_everything() {
  add("drop everything");
  for (FencePair& pair : std::exchange(fences_, {})) {
    std::move(pair.signal).signal();
    pair.model->signal();
  }
  while (drop_one(inflight_, "inflight") || drop_one(scheduled_, "scheduled") ||
         drop_one(partials_, "partial") || drop_one(completes_, "complete") ||
         drop_one(mutables_, "mutable")) {
  }
  while (!shared_.empty()) drop_many();
  weaks_.clear();
  while (!pins_.empty()) {
    model_.unpin(pins_.back().model);
    pins_.pop_back();
  }
  compare(/*pools=*/true);
  const PoolStatus status = manager_.status();
  if (status.active + status.owned + status.quarantined + status.pinned_inactive != 0) {
    trace_.fail("blocks are missing after everything was dropped: " + status.to_string());
  }
  add("reset_inactive_pool");
  trace_.expect_equal("reset blocks", manager_.reset_inactive_pool(), model_.reset_inactive());
  compare(/*pools=*/true);
}

}  // namespace ashlar::block::property
