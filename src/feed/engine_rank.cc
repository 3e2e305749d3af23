#include "feed/engine_rank.h"

#include <algorithm>
#include <bit>
#include <new>

#include "ashlar/base/check.h"
#include "base/append_each.h"
#include "feed/engine_medium.h"

namespace ashlar::feed {

using events::BlockName;
using events::EngineBatch;
using events::EngineEvent;
using events::EngineEventKind;
using events::KvEvent;
using events::KvEventKind;

namespace {

// Pairs (first, second) overlap by one token: the firsts, and the second of the last pair.
void unpair(std::span<const tokens::Token> pairs, std::vector<tokens::Token>& out) {
  out.clear();
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) out.push_back(pairs[i]);
  if (pairs.size() >= 2) out.push_back(pairs[pairs.size() / 2 * 2 - 1]);
}

}  // namespace

EngineRank::EngineRank(std::uint32_t rank, const EngineIngestOptions& options, ByteBudget& budget)
    : rank_(rank),
      block_size_(options.block_size),
      max_groups_(options.max_groups),
      max_salt_bytes_(options.max_salt_bytes),
      full_reports_(options.full_reports),
      full_reports_asked_(options.full_reports_asked),
      hasher_(options.scheme, options.salt),
      waiting_(options.max_waiting, budget) {}

void EngineRank::apply(const EngineBatch& batch, EngineIngestCounters& counters, std::string& refusal,
                       ChangeOutput out) {
  Turn turn{.counters = counters, .refusal = refusal, .out = out};
  // acquire: pairs with the release of the one who lets a request pass that asks for a report
  if (full_reports_asked_ != nullptr) full_reports_ = full_reports_asked_->load(std::memory_order_acquire);
  EngineLookahead lookahead(batch, blocks_, ahead_);
  for (const EngineEvent& event : batch.events) {
    const NamesAhead ahead = lookahead.pass(event);
    if (event.kind == EngineEventKind::kUnknown) {
      ++counters.unknown_events;
      continue;
    }
    if (!is_own(event.locality, event.ownership)) {
      ++counters.external;
      continue;
    }
    const std::optional<events::TierId> tier = tier_of_medium(event.medium);
    if (!tier || event.group.value_or(0) > kMaxGroup) {
      ++counters.unknown_mediums;
      continue;
    }
    ++counters.tier_events[tier->value()];
    if (event.kind == EngineEventKind::kStored) on_stored(batch, event, tier->value(), ahead, turn);
    if (event.kind == EngineEventKind::kRemoved) on_removed(batch, event, tier->value(), ahead, turn);
    if (event.kind == EngineEventKind::kCleared) on_cleared(tier->value(), turn);
  }
  blocks_.give_back();
}

void EngineRank::on_stored(const EngineBatch& batch, const EngineEvent& event, std::size_t tier,
                           const NamesAhead& ahead, Turn& turn) {
  const std::uint32_t group_number = event.group.value_or(0);
  if (groups_.size() >= max_groups_ && find_group(group_number) == nullptr) {
    ++turn.counters.other_groups;
    turn.refusal = "group " + std::to_string(group_number) + " of layers is one more than max_groups, " +
                   std::to_string(max_groups_);
    return;
  }
  Group& group = group_of(group_number);
  if (!event.spec_kind.empty()) group.whole_prefix = needs_whole_prefix(event.spec_kind);

  std::span<const BlockName> names = batch.names_of(event);
  std::span<const tokens::Token> text = batch.tokens_of(event);
  if (text.empty() && tier != kDevice) {
    store_placeholders(names, group_number, tier, turn);
    settle(turn);
    return;
  }
  const std::uint32_t expected = block_size_ != 0 ? block_size_ : group.block_size;
  if (!tokens::validate_block_size(event.block_size) || (expected != 0 && event.block_size != expected)) {
    ++turn.counters.wrong_block_sizes;
    turn.refusal = "the engine stores blocks of " + std::to_string(event.block_size) + " tokens, " +
                   (expected == 0 ? "which no block has"
                                  : std::to_string(expected) + " are expected; configure both sides alike");
    return;
  }
  const auto is_long = [this](std::string_view name) { return name.size() > max_salt_bytes_; };
  const std::span<const events::EngineExtraKey> keys = batch.extra_keys_of(event);
  // The strings among the keys are names and salts too.
  if (is_long(event.lora_name) || is_long(event.cache_salt) ||
      std::ranges::any_of(keys, [&](const events::EngineExtraKey& key) {
        return key.kind == events::EngineExtraKey::Kind::kText && is_long(key.value);
      })) {
    ++turn.counters.long_salts;
    turn.refusal = "a LoRA name or a salt has more than the " + std::to_string(max_salt_bytes_) +
                   " bytes of max_salt_bytes";
    return;
  }
  group.block_size = event.block_size;
  if (tier == kDevice) publishes_keys_ = event.has_extra_keys;

  std::size_t whole = text.size() / event.block_size;
  if (event.token_pairs) {
    whole = text.size() / 2 / event.block_size;
    unpair(text, unpaired_);
    text = unpaired_;
  }
  if (whole < names.size()) {
    ++turn.counters.short_tokens;
    turn.refusal = std::to_string(names.size()) + " blocks came with tokens for " + std::to_string(whole);
    names = names.first(whole);
  }
  if (names.empty()) return;
  store({.group = group_number,
         .tier = tier,
         .parent = event.parent,
         .names = names,
         .tokens = text,
         .block_size = event.block_size,
         .window = event.block_size + (event.token_pairs ? 1 : 0),
         .keys = keys,
         .has_keys = event.has_extra_keys || !event.cache_salt.empty(),
         .lora = event.lora_name,
         .salt = event.cache_salt,
         .gone = {},
         .probes = ahead.probes.first(std::min(ahead.probes.size(), names.size()))},
        nullptr, turn);
  settle(turn);
}

void EngineRank::store_placeholders(std::span<const BlockName> names, std::uint32_t group, std::size_t tier,
                                    Turn& turn) {
  turn.counters.placeholders += names.size();
  for (const BlockName name : names) {
    const EngineKey key{group, name};
    if (EngineBlock* const held = blocks_.find(key)) {
      add(key, *held, tier, turn);
    } else {
      ++turn.counters.waited;
      turn.counters.overflowed += waiting_.add_placeholder(key, tier);
    }
  }
}

void EngineRank::store(const EngineRun& run, const RunParent* known_parent, Turn& turn) {
  if (known_parent != nullptr || !run.parent) return place(run, known_parent, turn);
  const EngineBlock* const own = blocks_.find_parent({run.group, *run.parent});
  const EngineBlock* const parent = own != nullptr ? own : find_elsewhere(run);
  if (parent != nullptr) {
    if (parent->ambiguous) {
      ++turn.counters.ambiguous_parents;
      return;
    }
    RunParent before = blocks_.as_parent(*parent);
    before.is_held = parent == own;
    return place(run, &before, turn);
  }
  const std::size_t known = store_known(run, turn);
  if (known == run.names.size()) return;
  const EngineRun rest = known == 0 ? run : run.behind(known);
  if (known == 0) return wait(rest, turn);
  const EngineBlock* const last = blocks_.find(run.key(known - 1));
  if (last == nullptr || last->ambiguous) return;  // counted by store_known()
  const RunParent before = blocks_.as_parent(*last);
  place(rest, &before, turn);
}

std::size_t EngineRank::store_known(const EngineRun& run, Turn& turn) {
  for (std::size_t i = 0; i < run.names.size(); ++i) {
    EngineBlock* const at = blocks_.find(run.key(i));
    if (at == nullptr) return i;
    EngineBlock& held = *at;
    // It cannot be seen whether the preceding block differs; its own tokens can.
    if (!has_tokens_of(run, i, held)) {
      ++turn.counters.collisions;
      held.ambiguous = true;
      return run.names.size();
    }
    if (held.ambiguous) {
      ++turn.counters.ambiguous_parents;
      return run.names.size();
    }
    if (!run.is_gone(i)) add(run.key(i), held, run.tier, turn);
  }
  return run.names.size();
}

// A repeated announcement of a hit from block 0 names only blocks that are present.
bool EngineRank::is_report(const EngineRun& run) const {
  for (std::size_t i = 0; i < run.names.size(); ++i) {
    const EngineBlock* const at = blocks_.find(run.key(i));
    if (at == nullptr || !at->in_tier(kDevice)) return false;
  }
  return true;
}

bool EngineRank::has_tokens_of(const EngineRun& run, std::size_t block, const EngineBlock& held) const {
  return held.has_extras ||
         blocks_.sequence(held.sequence).hasher.local_hash(run.tokens_of(block)) == held.local;
}

bool EngineRank::agrees(const EngineRun& run, std::size_t block, const EngineBlock& held) const {
  const tokens::BlockHashes& found = content_.blocks[block];
  const bool equal = held.hash == found.sequence && held.local == found.local;
  if (run.has_keys || equal) return equal;
  // The engine omitted the other inputs of the hash: the tokens and the preceding block must match.
  if (content_.has_parent_of(block) != held.has_parent) return false;
  if (held.has_parent && content_.parent_of(block) != held.parent) return false;
  return has_tokens_of(run, block, held);
}

void EngineRank::place(const EngineRun& run, const RunParent* parent, Turn& turn) {
  // Lower tiers may omit the salt of block 0; the device store supplies it.
  if (parent == nullptr && run.tier != kDevice && !run.has_keys && publishes_keys_.value_or(true)) {
    EngineBlock* const first = blocks_.find(run.key(0));
    if (first == nullptr) {
      if (!run.is_gone(0)) {
        ++turn.counters.waited;
        turn.counters.overflowed += waiting_.add_placeholder(run.key(0), run.tier);
      }
      if (run.names.size() > 1) wait(run.behind(1), turn);
      return;
    }
    if (!first->has_parent && !first->ambiguous && has_tokens_of(run, 0, *first)) {
      add(run.key(0), *first, run.tier, turn);
      if (run.names.size() == 1) return;
      const RunParent before = blocks_.as_parent(*first);
      return place(run.behind(1), &before, turn);
    }
  }

  const bool may_be_report = full_reports_ && parent == nullptr && run.tier == kDevice;
  if (may_be_report && is_report(run)) doubt_ = true;
  const bool is_indexed = indexed(run.group);
  const Result<void> hashed = hasher_.hash(run, parent, content_);
  if (!hashed)
    ++(hashed.error().code() == ErrorCode::kAlreadyExists ? turn.counters.collisions
                                                          : turn.counters.too_deep);
  std::size_t placed = 0;
  if (run.gone.empty() && waiting_.empty()) placed = place_new(run, parent, is_indexed, turn);
  std::uint32_t sequence = 0;
  for (std::size_t i = placed; i < content_.blocks.size(); ++i) {
    const EngineKey key = run.key(i);
    EngineBlock* at = blocks_.find(key);
    if (at == nullptr) {
      const bool is_named = !waiting_.empty();
      const bool has_parent = content_.has_parent_of(i);
      const BlockName parent_name = has_parent ? run.parent_of(i) : BlockName();
      if (is_named) {
        named_.emplace_back(key, content_.of(i));
        named_.back().second.parent_name = parent_name;
      }
      if (run.is_gone(i)) continue;
      if (may_be_report &&
          waiting_.expects(key, kDevice)) {  // a report of a block whose store waits for this path
        doubt_ = true;
        ++turn.counters.reannounced;
        continue;
      }
      if (sequence == 0) sequence = sequence_behind(run, parent, is_indexed);
      if (is_named) named_.back().second.sequence = sequence;
      at = &blocks_.add({.name = key.name,
                         .local = content_.blocks[i].local,
                         .hash = content_.blocks[i].sequence,
                         .parent = has_parent ? content_.parent_of(i) : tokens::SequenceHash(),
                         .parent_name = parent_name,
                         .sequence = sequence,
                         .has_parent = has_parent,
                         .has_extras = content_.has_extras(i)});
    } else if (!agrees(run, i, *at)) {
      ++turn.counters.collisions;
      at->ambiguous = true;
      return;
    } else if (at->ambiguous) {
      ++turn.counters.ambiguous_parents;
      return;
    } else if (at->has_parent && at->parent_name != run.parent_of(i) &&
               holds(key.group, run.parent_of(i), at->parent)) {
      at->parent_name = run.parent_of(i);  // the other name may go before the block does
    }
    if (may_be_report && doubt_ && at->in_tier(kDevice)) {
      ++turn.counters.reannounced;
    } else if (!run.is_gone(i)) {
      add(key, *at, run.tier, turn);
    }
  }
}

std::uint32_t EngineRank::sequence_behind(const EngineRun& run, const RunParent* parent, bool is_indexed) {
  const std::uint32_t number = blocks_.sequence(content_.root, *content_.hasher, run.group, is_indexed,
                                                parent == nullptr ? 0 : parent->sequence);
  content_.hasher = &blocks_.sequence(number).hasher;  // that of the parent may have moved
  return number;
}

// One pass, which writes each record where it stays.
std::size_t EngineRank::place_new(const EngineRun& run, const RunParent* parent, bool is_indexed,
                                  Turn& turn) {
  const std::size_t count = content_.blocks.size();
  if (count == 0) return 0;
  if ((run.probes.empty() ? blocks_.find(run.key(0)) : blocks_.find(run.key(0), run.probes[0])) != nullptr)
    return 0;
  blocks_.make_room(count);
  turn.out.make_room(count);
  if (run.probes.empty()) probes_.resize(EngineLookahead::kMost);
  const std::uint32_t sequence = sequence_behind(run, parent, is_indexed);
  // Nothing fails from here on.
  const std::uint16_t copies = run.tier == kDevice ? 1 : 0;
  const auto tiers = static_cast<std::uint8_t>(1u << run.tier);
  tokens::SequenceHash hash_before = content_.parent;
  BlockName name_before = run.parent.value_or(BlockName());
  std::size_t placed = 0;
  while (placed < count) {
    const std::size_t some = run.probes.empty() ? std::min(count - placed, EngineLookahead::kMost) : count;
    const std::span<const BlockName> names = run.names.subspan(placed, some);
    const std::span<const HeldBlocks::Probe> probes =
        run.probes.empty() ? look_ahead(run.group, names) : run.probes.first(count);
    const tokens::BlockHashes* const hashes = content_.blocks.data() + placed;
    const std::size_t added =
        blocks_.add_run(names, probes, sequence, [&](std::size_t i, EngineBlock* record) {
          *record = {.name = names[i],
                     .local = hashes[i].local,
                     .hash = hashes[i].sequence,
                     .parent = hash_before,
                     .parent_name = name_before,
                     .sequence = sequence,
                     .copies = copies,
                     .tiers = tiers,
                     .has_parent = true};
          hash_before = hashes[i].sequence;
          name_before = names[i];
        });
    placed += added;
    if (added < some) break;
  }
  if (!content_.has_parent && placed != 0) blocks_.find(run.key(0))->has_parent = false;
  if (!content_.extras.empty())
    for (std::size_t i = 0; i < placed; ++i) blocks_.find(run.key(i))->has_extras = content_.has_extras(i);
  if (placed == 0) return 0;
  const bool names_parent =
      content_.has_parent && (parent->is_held || holds(run.group, *run.parent, content_.parent));
  tell_run(run, run.names.first(placed), names_parent ? run.parent : std::nullopt, is_indexed, turn.out);
  next_sequence_ += placed;
  present_ += placed;
  turn.counters.stored += placed;
  return placed;
}

std::span<const HeldBlocks::Probe> EngineRank::look_ahead(std::uint32_t group,
                                                          std::span<const BlockName> names) {
  probes_.resize(EngineLookahead::kMost);
  const std::span<HeldBlocks::Probe> probes = std::span(probes_).first(names.size());
  blocks_.probe(group, names, probes);
  return probes;
}

EngineBlock& EngineRank::add_block(const EngineKey& key, const BlockContent& content) {
  return blocks_.add({.name = key.name,
                      .local = content.local,
                      .hash = content.hash,
                      .parent = content.parent,
                      .parent_name = content.parent_name,
                      .sequence = blocks_.sequence(content.root, content.hasher, key.group,
                                                   indexed(key.group), content.sequence),
                      .has_parent = content.has_parent,
                      .has_extras = content.has_extras});
}

void EngineRank::settle(Turn& turn) {
  while (!named_.empty()) {
    const auto [key, content] = std::move(named_.front());
    named_.pop_front();
    const WaitingBlocks::Tiers tiers = waiting_.take_placeholder(key);
    for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
      if (!tiers[tier]) continue;
      EngineBlock* held = blocks_.find(key);
      if (held == nullptr) held = &add_block(key, content);
      ++turn.counters.resolved;
      add(key, *held, tier, turn);
    }
    for (const OwnedEngineRun& run : waiting_.take_runs(key)) {
      turn.counters.resolved += static_cast<std::uint64_t>(std::ranges::count(run.gone, std::uint8_t{0}));
      const RunParent parent = content.as_parent();
      store(run.view(), &parent, turn);
    }
  }
}

void EngineRank::wait(const EngineRun& run, Turn& turn) {
  for (std::size_t i = 0; i < run.names.size(); ++i) turn.counters.waited += run.is_gone(i) ? 0 : 1;
  const std::size_t dropped = waiting_.add_run(run);
  turn.counters.overflowed += dropped;
  if (dropped != 0) doubt_ = true;
}

const EngineBlock* EngineRank::find_elsewhere(const EngineRun& run) const {
  if (indexed(run.group)) return nullptr;  // in indexed groups a parent stays held while children arrive
  for (const auto& [number, group] : groups_) {
    if (number == run.group || group.block_size != run.block_size) continue;
    if (const EngineBlock* const held = blocks_.find({number, *run.parent})) return held;
  }
  return nullptr;
}

const EngineRank::Group* EngineRank::find_group(std::uint32_t number) const {
  if (last_group_.second != nullptr && last_group_.first == number) return last_group_.second;
  const auto at = groups_.find(number);
  return at != groups_.end() ? &at->second : nullptr;
}

EngineRank::Group& EngineRank::group_of(std::uint32_t number) {
  if (last_group_.second == nullptr || last_group_.first != number) last_group_ = {number, &groups_[number]};
  return *last_group_.second;
}

bool EngineRank::indexed(std::uint32_t number) const {
  const Group* const group = find_group(number);
  if (group == nullptr || !group->whole_prefix) return number == 0;  // engines without groups had one
  return *group->whole_prefix;
}

std::uint32_t EngineRank::block_size() const noexcept {
  std::uint32_t lowest = UINT32_MAX;
  std::uint32_t size = 0;
  for (const auto& [number, group] : groups_) {
    if (number >= lowest || group.block_size == 0 || !indexed(number)) continue;
    lowest = number;
    size = group.block_size;
  }
  return size;
}

void EngineRank::add(const EngineKey& key, EngineBlock& held, std::size_t tier, Turn& turn) {
  if (held.in_tier(tier)) {
    ++turn.counters.repeated;
    if (tier == kDevice && held.copies < EngineBlock::kMaxCopies) ++held.copies;
    return;
  }
  held.set_tier(tier, true);
  if (tier == kDevice) held.copies = 1;
  ++present_;
  ++turn.counters.stored;
  tell(KvEventKind::kStored, key, held, tier, turn.out);
}

void EngineRank::forget() {
  last_group_ = {};
  groups_.clear();
  publishes_keys_.reset();
  doubt_ = false;
}

void EngineRank::check_invariants() const {
  ASHLAR_CHECK(named_.empty(), "blocks that wait for a name are placed before a call returns");
  std::size_t held_tiers = 0;
  std::unordered_map<std::uint32_t, std::uint32_t> of_sequence;
  blocks_.for_each([&](const EngineKey&, const EngineBlock& held) {
    ASHLAR_CHECK(held.tiers != 0, "a block that no tier holds is forgotten");
    const std::uint32_t copies = held.copies;
    ASHLAR_CHECK(held.in_tier(kDevice) == (copies != 0), "%u copies are in the device tier", copies);
    held_tiers += static_cast<std::size_t>(std::popcount(held.tiers));
    ++of_sequence[held.sequence];
  });
  for (const auto& [number, count] : of_sequence)
    ASHLAR_CHECK(blocks_.sequence(number).blocks == count, "sequence %u has %u blocks, %u are counted",
                 number, count, blocks_.sequence(number).blocks);
  ASHLAR_CHECK(held_tiers == present_, "%zu (name, group, tier)s are present, %zu are counted", held_tiers,
               present_);
  waiting_.check_invariants();
}

}  // namespace ashlar::feed
