// BlockTables: the blocks of one sequence, a table per cache group, and every way they change.
//
// A table lists blocks in token order: first registered blocks, each held by a reference, then blocks the
// table owns alone. A fork turns owned blocks into shared ones; a writer copies a shared block first. Blocks
// that left a group's window are gaps.
//
// While the fence of the last step has not settled, what the tables return waits for it: all of release(),
// and of settle() the sources of copies, blocks outside windows, and blocks of refused drafts.
//
// Thread safety: thread-compatible; tables that share blocks may be used by different threads.
// Invariant: all tables are equally long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/block/block_identity.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/block/prefix_source.h"
#include "ashlar/block/request_sequence.h"
#include "block/sequence/sequence_text.h"
#include "block/sequence/slot_share.h"
#include "block/store/block_store.h"

namespace ashlar::block::detail {

// Retention of a request's blocks; shared by its forks.
struct BlockWorth {
  RetentionPlan plan;
  std::size_t prompt_tokens;
};

class BlockTables {
 public:
  // `worth` may be null.
  BlockTables(std::shared_ptr<BlockStore> store, std::span<const CacheGroup> groups,
              std::shared_ptr<const BlockWorth> worth);
  BlockTables(BlockTables&&) noexcept = default;
  BlockTables& operator=(BlockTables&&) = delete;
  ~BlockTables() { release(); }

  BlockStore& store() const noexcept { return *store_; }
  std::size_t group_count() const noexcept { return tables_.size(); }
  // In blocks, gaps included.
  std::size_t size() const noexcept { return tables_.front().slots.size(); }
  std::span<const BlockId> ids(std::size_t group) const noexcept { return tables_[group].ids; }
  std::span<const BlockCopy> copies() const noexcept { return copies_; }
  // Block `i` of the text, which its table may not have yet; computes its name. `text` is that of the tables.
  SequenceBlock block(SequenceText& text, std::size_t group, std::size_t i) const;
  // References to entry `i`, by guards, sequences and forks; 0: none allocated.
  std::size_t use_count(std::size_t group, std::size_t i) const noexcept;
  void reserve(std::size_t blocks);

  // The calls below that may throw std::bad_alloc leave the tables unchanged when they do.

  // Shares the longest prefix of at most `limit` blocks that is cached and valid for all groups. Returns its
  // length in blocks. Requires: the tables are empty.
  std::size_t match(SequenceText& text, std::size_t limit);
  using Arrival = std::unique_ptr<PrefixSource::Arrival>;
  // Asks the source of the manager for the blocks after a match of `matched` blocks. Null: nothing comes.
  Arrival bring(SequenceText& text, std::size_t matched, std::size_t limit, const PrefixBudget& budget,
                std::function<void()> on_done);
  // Shares what has arrived too. Returns the length of the prefix.
  std::size_t match_further(SequenceText& text, std::size_t matched, std::size_t limit);
  // match(), and the rest from below as far as the budget allows.
  std::size_t match_with_source(SequenceText& text, std::size_t limit, const PrefixBudget& budget);
  // Offers the registered blocks to the source: they are about to be released.
  void leave_for(SequenceText& text) noexcept;

  // Blocks to allocate so that the tables have `blocks` entries and the block holding token `computed` is
  // writable. Reclaims blocks that are no longer shared.
  std::size_t wanted(std::size_t computed, std::size_t blocks);
  // Reserves the memory that place() needs.
  void make_room(std::size_t computed, std::size_t blocks);
  // Places exactly this many blocks. Replaces shared blocks that must be written; copies() lists the copies
  // to make. Requires: make_room().
  void place(std::size_t computed, std::size_t blocks, std::span<const SlotRef> fresh);
  // wanted(), make_room(), an allocation, and place(). Returns the number of new blocks.
  Result<std::size_t, AllocationRefusal> extend(std::size_t computed, std::size_t blocks);
  // A step was applied, and the tables need `blocks` entries for `computed` tokens: releases the sources of
  // its copies, later entries, and blocks outside their group's window. Without memory to make them wait for
  // a step that is running, the next call does it. Requires: no removed entry is registered.
  void settle(std::size_t blocks, std::size_t computed) noexcept;
  // The copies were not made: puts the shared blocks back.
  void undo_copies(std::size_t computed) noexcept;
  // Truncates the tables to `blocks` entries at once, last block first. Requires: no removed block is
  // registered.
  void truncate(std::size_t blocks) noexcept { truncate(blocks, nullptr); }

  // Blocks of one table whose KV is complete, to be registered.
  struct Publication {
    BlockTables* tables;
    std::size_t group;
    std::size_t from;
    std::size_t count;
  };
  // Names the owned blocks among the first `full` and lists them.
  void collect(SequenceText& text, std::size_t full, std::vector<Publication>& out);
  // Removes the names of listed blocks that were not registered.
  static void uncollect(std::span<const Publication> publications) noexcept;
  struct Published {
    std::size_t registered = 0;
    std::size_t replaced = 0;
  };
  // Registers them; all belong to one store. A hash collision leaves that block and all later ones with their
  // owner. If memory runs out after a collision, the next collect() handles the rest.
  using OnTwin = BlockStore::OnTwin;
  static Published publish(std::span<const Publication> publications, OnTwin on_twin = OnTwin::kFollowPolicy);

  // The blocks that are published from now on are complete when the fence passes, and nothing that the tables
  // have now is returned before it has ended. Allocates if make_waiting() did not.
  void set_written_after(std::optional<Fence> fence);
  // The memory that set_written_after() needs.
  void make_waiting();

  // The number of computed tokens at which blocks next leave a window.
  std::size_t next_leaving() const noexcept;

  // Releases all blocks, last block first.
  void release() noexcept;
  // The same once the fence has ended, too. Throws std::bad_alloc without changing anything.
  void release_after(const Fence& fence);
  // Drops all blocks without releasing them: they are never allocated again.
  void abandon() noexcept;
  // Empty tables for the same groups.
  BlockTables empty_copy() const;
  // Requires: tables for the same groups of the same store.
  void swap(BlockTables& other) noexcept;
  // A second set of tables with the same blocks. If it throws, or the fork is abandoned, call
  // take_back_shares().
  BlockTables fork();
  // Returns slots that are no longer shared to sole ownership.
  void take_back_shares() noexcept;

 private:
  struct Table {
    CacheGroup group;
    std::vector<SlotRef> slots;  // store == nullptr: a gap
    std::vector<BlockId> ids;
    std::vector<SlotShare> shares;  // empty, or one per slot; where there is one, it owns the slot
    std::size_t live = 0;           // entries before it are gaps
    std::size_t registered = 0;     // entries before it are registered or gaps
  };

  std::uint32_t block_size() const noexcept { return store_->options().block_size; }
  // Tables whose block holding token `computed` is shared and must be written.
  std::size_t shared_tails(std::size_t computed) const noexcept;
  // What place() fills: new entries, and shared blocks that must be written.
  std::size_t places(std::size_t computed, std::size_t blocks) const noexcept;
  // Appends the blocks of `names`, which are [from, from + names.size()) of the text. Returns the hits.
  std::size_t acquire(Table& table, const SequenceText& text, std::size_t from,
                      std::span<const tokens::SequenceHash> names);
  std::size_t match_all(SequenceText& text, std::size_t limit);
  std::size_t match_groups(SequenceText& text, std::size_t limit);
  struct Known;
  // The longest prefix of at most `limit` blocks that all groups seem to have. `known` carries the findings
  // of earlier calls with larger limits, one per group. Probes each block of each group at most once over all
  // these calls. With `below`, blocks of that source count too. Requires: `limit` names and digests.
  std::size_t longest(std::span<const tokens::SequenceHash> names,
                      std::span<const tokens::PrefixDigest> prefixes, std::size_t limit,
                      std::span<Known> known, PrefixSource* below = nullptr) const;
  // What a prefix of several groups wants from below.
  class GroupChoice;
  void push_gap(Table& table);
  // Blocks that left, and wait for a fence.
  class Departed;
  // Whether a step may be running that uses blocks of the tables.
  bool in_flight() const noexcept { return waiting_ != nullptr && !written_after_->ended(); }
  // Blocks of the table that are outside its window once `computed` tokens have KV.
  std::size_t outside(const Table& table, std::size_t computed) const noexcept;
  // The copies are done: releases their sources.
  void copied() noexcept;
  // Entries leave a table: to `later`, or they are dropped.
  void truncate(std::size_t blocks, BlockTables* later) noexcept;
  void leave_windows(std::size_t computed, BlockTables* later) noexcept;
  void settle_later(std::size_t blocks, std::size_t computed) noexcept;
  // Moves entries [from, to) behind those of another table with room for them.
  static void hand_over(Table& table, std::size_t from, std::size_t to, Table& later) noexcept;
  // Releases entries [from, to) of a table, last first.
  void drop(Table& table, std::size_t from, std::size_t to) noexcept;
  // All or none. Returns the error of a collision.
  class Walk;
  static Result<void> register_all(std::span<const Publication> publications, bool tentative, OnTwin on_twin,
                                   Published& published);
  // Tells the eviction backend the retention of entries [from, to) of a table, if it uses it.
  void set_worth(const Table& table, std::size_t from, std::size_t to) const;
  void describe(std::size_t i, RegisteredBlock& block) const;
  void clear() noexcept;

  std::shared_ptr<BlockStore> store_;
  std::vector<Table> tables_;
  std::shared_ptr<const BlockWorth> worth_;
  std::vector<BlockCopy> copies_;
  std::vector<SlotShare> sources_;  // of copies_, in their order; before them some of earlier steps
  std::optional<Fence> written_after_;
  // Empty tables, ready to wait for written_after_; null when nothing here was used by its step.
  std::unique_ptr<Fence::Waiting> waiting_;
  static constexpr std::size_t kShared = SIZE_MAX;
  std::size_t private_from_ =
      kShared;  // a hash collided at this block: none from here on is registered, in any group
};

}  // namespace ashlar::block::detail
