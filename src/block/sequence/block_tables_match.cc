// How block tables find a cached prefix: in their manager, and through it in the tiers below.
#include <algorithm>
#include <new>
#include <utility>

#include "ashlar/base/check.h"
#include "block/sequence/block_tables.h"

namespace ashlar::block::detail {

std::size_t BlockTables::acquire(Table& table, const SequenceText& text, std::size_t from,
                                 std::span<const tokens::SequenceHash> names) {
  const std::size_t before = table.slots.size();
  const std::size_t hits =
      store_->match_prefix(names, std::span(text.prefixes).subspan(from, names.size()),
                           [&](std::size_t first, std::span<const SlotRef> slots) {
                             if (slots.empty()) return;
                             if (first == 0) {
                               table.slots.reserve(before + names.size());
                               table.ids.reserve(before + names.size());
                             }
                             table.slots.insert(table.slots.end(), slots.begin(), slots.end());
                             for (const SlotRef& slot : slots) table.ids.emplace_back(slot.id);
                             table.registered = table.slots.size();
                           });
  if (worth_ != nullptr) set_worth(table, before, table.registered);
  if (store_->options().keep_tokens && hits != 0)
    store_->restore_tokens(std::span(table.slots).subspan(before, hits),
                           std::span(text.prefixes).subspan(from, hits),
                           std::span(text.tokens).subspan(from * block_size(), hits * block_size()));
  return hits;
}

void BlockTables::set_worth(const Table& table, std::size_t from, std::size_t to) const {
  const Clock::TimePoint now = store_->options().clock->now();
  const std::size_t size = block_size();
  for (std::size_t i = from; i < to; ++i) {
    const auto asked = worth_->plan.of_block(i * size, (i + 1) * size, worth_->prompt_tokens, now);
    if (asked) store_->set_retention(table.slots[i], *asked);
  }
}

// Requires: room for it.
void BlockTables::push_gap(Table& table) {
  ASHLAR_DCHECK(table.registered == table.slots.size(), "a gap behind %zu blocks that are not registered",
                table.slots.size() - table.registered);
  table.slots.emplace_back();
  table.ids.push_back(kNoBlock);
  table.live = table.registered = table.slots.size();
}

std::size_t BlockTables::match(SequenceText& text, std::size_t limit) {
  ASHLAR_DCHECK(size() == 0, "a match into tables of %zu blocks", size());
  try {
    return match_all(text, limit);
  } catch (...) {
    release();
    throw;
  }
}

std::size_t BlockTables::match_all(SequenceText& text, std::size_t limit) {
  if (limit == 0) return 0;
  if (tables_.size() == 1 && !tables_.front().group.window) {
    return acquire(tables_.front(), text, 0, text.names(limit));
  }
  return match_groups(text, limit);
}

// The blocks of a group that a match knows to be cached: [from, to), the end of the prefix examined so far.
struct BlockTables::Known {
  std::size_t from = 0;
  std::size_t to = 0;
};

// A missing block rules out every longer prefix whose window covers it, and windows only move forward with
// the prefix. So the walk starts from the longest prefix: a missing block cuts the prefix before itself, and
// results for earlier blocks stay valid. Each block of each group is probed at most once. Full attention
// needs all blocks from the first on, so it is probed in that order.
std::size_t BlockTables::longest(std::span<const tokens::SequenceHash> names,
                                 std::span<const tokens::PrefixDigest> prefixes, std::size_t limit,
                                 std::span<Known> known, PrefixSource* below) const {
  std::size_t probes = 0;
  const auto holds = [&](std::size_t i, std::size_t g) {
    ++probes;
    const tokens::SequenceHash name = names[i].in_group(static_cast<std::uint32_t>(g));
    return store_->holds(name, prefixes[i]) || (below != nullptr && below->has(name));
  };
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    if (tables_[g].group.window) continue;
    while (known[g].to < limit && holds(known[g].to, g)) ++known[g].to;
    limit = std::min(limit, known[g].to);
  }
  for (std::size_t g = 0, settled = 0; settled < tables_.size() && limit != 0; g = (g + 1) % tables_.size()) {
    const CacheGroup& group = tables_[g].group;
    Known& has = known[g];
    ++settled;
    if (!group.window) continue;  // settled above, for every shorter prefix too
    has.to = std::min(has.to, limit);
    if (has.to < limit || has.from > has.to) has.from = has.to = limit;
    const std::size_t first = limit - group.blocks_needed(limit, block_size());
    while (has.from > first && holds(has.from - 1, g)) --has.from;
    if (has.from <= first) continue;
    limit = has.from - 1;
    settled = 0;  // the other groups retry the shorter prefix, this group the blocks before the missing one
  }
  store_->count_probes(probes);
  return limit;
}

// First find a prefix length that all groups seem to have, then take the references. Another thread may evict
// in between; the prefix then ends before the evicted block, so the loop terminates.
std::size_t BlockTables::match_groups(SequenceText& text, std::size_t limit) {
  const std::span<const tokens::SequenceHash> names = text.names(limit);
  std::vector<tokens::SequenceHash> in_group;
  std::vector<Known> known(tables_.size());
  for (std::size_t blocks = longest(names, text.prefixes, names.size(), known); blocks > 0;) {
    reserve(blocks);
    std::size_t valid = blocks;
    for (std::uint32_t g = 0; g < tables_.size() && valid == blocks; ++g) {
      Table& table = tables_[g];
      const std::size_t from = blocks - table.group.blocks_needed(blocks, block_size());
      while (table.slots.size() < from) push_gap(table);
      in_group.clear();
      for (const auto& name : names.subspan(from, blocks - from)) in_group.push_back(name.in_group(g));
      valid = from + acquire(table, text, from, in_group);
      ASHLAR_DCHECK(valid <= blocks, "%zu blocks were acquired where %zu were asked for", valid, blocks);
    }
    if (valid == blocks) return blocks;
    release();
    blocks = longest(names, text.prefixes, valid, known);
  }
  return 0;
}

// ---- bringing from below

// Made by the thread of the sequence, used by one of the source, perhaps after the sequence has gone: it has
// its own copy of the names, and its tables keep the store alive. They stay empty; they know the groups.
class BlockTables::GroupChoice final : public PrefixSource::Choice {
 public:
  // `locals`: one per name, or none.
  GroupChoice(BlockTables tables, std::span<const tokens::SequenceHash> names,
              std::span<const tokens::PrefixDigest> prefixes, std::vector<tokens::LocalHash> locals,
              tokens::SaltFingerprint salt, std::size_t max_blocks)
      : tables_(std::move(tables)),
        names_(names.begin(), names.end()),
        prefixes_(prefixes.begin(), prefixes.end()),
        locals_(std::move(locals)),
        salt_(salt),
        max_blocks_(max_blocks),
        in_group_(tables_.tables_.size()) {
    ASHLAR_DCHECK(prefixes_.size() == names_.size(), "%zu digests for %zu names", prefixes_.size(),
                  names_.size());
    for (std::uint32_t g = 0; g < in_group_.size(); ++g) {
      for (const tokens::SequenceHash& name : names_) in_group_[g].push_back(name.in_group(g));
      candidates_.push_back({.hashes = in_group_[g],
                             .prefixes = {},
                             .root = in_group_[g].front(),
                             .locals = locals_,
                             .group = static_cast<std::uint16_t>(g)});
    }
  }

  std::span<const PrefixSource::Wanted> candidates() const override { return candidates_; }
  // By position, all groups that need it: a hit needs every group. Of the prefixes that every group can have,
  // the longest whose missing blocks are within the budget.
  PrefixSource::Wanted choose(PrefixSource& source) override {
    std::vector<Known> known(in_group_.size());
    std::size_t blocks = tables_.longest(names_, prefixes_, names_.size(), known, &source);
    const std::vector<std::vector<std::size_t>> absent = absent_before(blocks);
    const auto missing = [&] {
      std::size_t count = 0;
      for (std::uint32_t g = 0; g < in_group_.size(); ++g)
        count += absent[g][blocks] - absent[g][first_needed(g, blocks)];
      return count;
    };
    while (missing() > max_blocks_) blocks = tables_.longest(names_, prefixes_, blocks - 1, known, &source);
    for (std::size_t i = 0; i < blocks; ++i)
      for (std::uint32_t g = 0; g < in_group_.size(); ++g) {
        if (i < first_needed(g, blocks) || absent[g][i + 1] == absent[g][i]) continue;
        hashes_.push_back(in_group_[g][i]);
        digests_.push_back(prefixes_[i]);
      }
    return {.hashes = hashes_, .prefixes = digests_, .salt = salt_};
  }

 private:
  // The first block of a group that a prefix of so many blocks needs.
  std::size_t first_needed(std::uint32_t g, std::size_t blocks) const {
    return blocks - tables_.tables_[g].group.blocks_needed(blocks, tables_.block_size());
  }
  // How many of the first i blocks of each group the pool does not have, for each i up to `blocks`.
  std::vector<std::vector<std::size_t>> absent_before(std::size_t blocks) const {
    std::vector<std::vector<std::size_t>> absent(in_group_.size(), {0});
    for (std::uint32_t g = 0; g < in_group_.size(); ++g)
      for (std::size_t i = 0; i < blocks; ++i)
        absent[g].push_back(absent[g].back() +
                            (tables_.store_->holds(in_group_[g][i], prefixes_[i]) ? 0 : 1));
    return absent;
  }

  const BlockTables tables_;
  const std::vector<tokens::SequenceHash> names_;
  const std::vector<tokens::PrefixDigest> prefixes_;
  const std::vector<tokens::LocalHash> locals_;
  const tokens::SaltFingerprint salt_;
  const std::size_t max_blocks_;
  std::vector<std::vector<tokens::SequenceHash>> in_group_;  // the names, by group
  std::vector<PrefixSource::Wanted> candidates_;
  std::vector<tokens::SequenceHash> hashes_;  // chosen
  std::vector<tokens::PrefixDigest> digests_;
};

BlockTables::Arrival BlockTables::bring(SequenceText& text, std::size_t matched, std::size_t limit,
                                        const PrefixBudget& budget, std::function<void()> on_done) {
  PrefixSource* const source = store_->prefix_source();
  if (source == nullptr) return nullptr;
  for (std::uint32_t g = 0; g < tables_.size(); ++g) source->matched(ids(g));
  if (matched >= limit || budget.max_blocks == 0) return nullptr;
  const std::span<const tokens::SequenceHash> names = text.names(limit);
  const std::span<const tokens::PrefixDigest> prefixes = std::span(text.prefixes).first(names.size());
  const bool one_group = tables_.size() == 1 && !tables_.front().group.window;
  const std::size_t from = one_group ? matched : 0;
  const std::size_t count = one_group ? std::min(names.size() - matched, budget.max_blocks) : names.size();
  std::vector<tokens::LocalHash> locals;
  if (source->discovers())
    for (std::size_t i = from; i < from + count; ++i) locals.push_back(text.local_hash(i));
  if (!one_group)
    return source->bring_chosen(
        std::make_unique<GroupChoice>(empty_copy(), names, prefixes, std::move(locals), text.rules->salt,
                                      budget.max_blocks),
        budget, std::move(on_done));
  PrefixSource::Wanted wanted{.hashes = names.subspan(from, count),
                              .prefixes = prefixes.subspan(from, count),
                              .salt = text.rules->salt,
                              .root = names[0],
                              .locals = locals};
  if (matched != 0) wanted.parent = names[matched - 1];
  return source->bring(wanted, budget, std::move(on_done));
}

std::size_t BlockTables::match_further(SequenceText& text, std::size_t matched, std::size_t limit) {
  const std::span<const tokens::SequenceHash> names = text.names(limit);
  if (tables_.size() == 1 && !tables_.front().group.window)
    return matched + acquire(tables_.front(), text, matched, names.subspan(matched));
  // What the first match found stays in use meanwhile.
  BlockTables before = empty_copy();
  before.swap(*this);
  try {
    return match_groups(text, names.size());
  } catch (...) {
    release();
    before.swap(*this);
    throw;
  }
}

std::size_t BlockTables::match_with_source(SequenceText& text, std::size_t limit,
                                           const PrefixBudget& budget) {
  const std::size_t matched = match(text, limit);
  const Arrival arrival = bring(text, matched, limit, budget, nullptr);
  if (arrival == nullptr || arrival->wait() == 0) return matched;
  return match_further(text, matched, limit);
}

void BlockTables::leave_for(SequenceText& text) noexcept {
  PrefixSource* const source = store_->prefix_source();
  if (source == nullptr) return;
  try {
    std::vector<tokens::SequenceHash> hashes;
    std::size_t longest = 0;
    for (const Table& table : tables_) longest = std::max(longest, table.registered);
    const std::span<const tokens::SequenceHash> names = text.names(std::min(longest, text.full_blocks()));
    for (std::size_t i = 0; i < names.size(); ++i)
      for (std::uint32_t g = 0; g < tables_.size(); ++g)
        if (i >= tables_[g].live && i < tables_[g].registered) hashes.push_back(names[i].in_group(g));
    if (!hashes.empty()) source->leaving(hashes);
  } catch (const std::bad_alloc&) {
    return;  // they stay in the cache, as without a source
  }
}

}  // namespace ashlar::block::detail
