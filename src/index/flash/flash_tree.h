// FlashTree: the tree, the tables and the bookkeeping of a FlashIndex.
//
// The writer's calls come one at a time, under the lock of the FlashIndex; find() comes from readers inside
// the domain at any time. flash_node.h says which changes readers may see. The parts:
//   owners.cc        which slots hold which blocks of a node
//   nodes.cc         building, replacing, splitting and freeing nodes; children
//   store.cc         store(): plan, names, publication
//   remove.cc        remove(), the orphan policy, names
//   tidy.cc          clear() and its sweep; work that one call leaves to later ones
//   find.cc          find()
//   dump.cc          dump(), sizes
//   outline.cc       outline_some()
//   presence.cc      presence(), list(), places()
//
// Invariants, between the writer's calls:
//   - names_ has an entry (name -> block) for every block whose `named` bit is set, and no other; a block
//     without holders is not named, unless dead slots hold it. A holder of a named block holds it by that
//     name unless AliasNames says otherwise; a holder of an unnamed block has an alias for it.
//   - every node but the root has a holder or a child, or is the end of a barren chain queued in barren_, or
//     unpruned_ is set.
//   - with kOrphan, every holder of a block holds its parent, dead slots aside.
//
// Memory. A call changes state only once it has the memory for all its changes: a store prepares everything
// before it publishes, and refuses with kFull if std::bad_alloc is thrown before that. Removals need no
// memory. Removing nodes, shrinking them and returning memory is optional: it is postponed when there is no
// memory to retire the replaced objects.
//
// Steps. The writer counts its work: a block of an event; a removed node, name or alias; 16 holders of a node
// or 16 words of a roster; an object checked against the readers' eras. A call takes the steps of its own
// event, O(blocks) and O(holders) per node, and at most kTidySteps for work left by earlier calls.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/index/flash_index.h"
#include "ashlar/index/indexer.h"
#include "base/tag_table.h"
#include "index/common/call_batch.h"
#include "index/flash/alias_names.h"
#include "index/flash/chunked_pool.h"
#include "index/flash/edge_table.h"
#include "index/flash/era_domain.h"
#include "index/flash/flash_node.h"
#include "index/flash/flash_slots.h"
#include "index/flash/node_arena.h"

namespace ashlar::index::detail {

inline constexpr std::uint32_t kMaxDepth = std::uint32_t{1} << 24;

class FlashTree {
 public:
  explicit FlashTree(const FlashOptions& options);
  FlashTree(const FlashTree&) = delete;
  FlashTree& operator=(const FlashTree&) = delete;
  // Requires: no readers.
  ~FlashTree();

  // --- The writer's calls. ---

  // Empty: a slot for the worker may become free after more of the sweep. Call again, after other writers had
  // their turn.
  std::optional<StoreVerdict> store(const BlocksStored& event) noexcept;
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) noexcept;
  // This and the calls below throw std::bad_alloc with no visible change.
  void clear(const Worker& worker);
  // Removes the worker's ranks from `rank` on, up to kKills of them. Returns the rank to continue with, empty
  // when all are gone.
  std::optional<std::uint32_t> remove_worker(WorkerId worker, std::uint32_t rank);
  // Finishes the sweep, releases idle slots and frees memory that no reader holds.
  void settle();
  void dump(CallBatch& calls);
  // A part of the outline; true: there is more. Other calls may come in between.
  struct OutlineWalk;
  bool outline_some(OutlineWalk& walk, IndexOutline& out);
  void presence(const Worker& worker, std::span<const BlockName> names,
                std::span<BlockPresence> out) noexcept;
  void list(const Worker& worker, std::vector<BlockPresence>& out);
  bool holds_nothing(const Worker& worker) const {
    const std::optional<std::uint32_t> slot = slots_.find(worker);
    return !slot || slots_.blocks(*slot) == 0;
  }
  void places(std::span<const LocalHash> locals, std::size_t first, const Worker& worker,
              std::span<BlockPlace> out) noexcept;
  IndexSizes sizes();
  const IndexCounters& counters() const noexcept { return counters_; }
  FlashWork work() const noexcept;

  // --- Readers. ---
  const EraDomain& domain() const noexcept { return domain_; }
  // Whether no worker has the first block, told without entering the domain; then the answer is in `scores`.
  // False: find() knows.
  bool is_unknown(std::span<const LocalHash> locals, MatchScores& scores) const;
  // False when era after era ended before the query finished; the scores are then invalid.
  bool find(std::span<const LocalHash> locals, MatchScores& scores, bool early_exit,
            EraDomain::Guard& guard) const;
  bool find_batch(std::span<const std::span<const LocalHash>> queries, std::span<MatchScores> scores,
                  bool early_exit, EraDomain::Guard& guard) const;

 private:
  friend class FlashWalk;
  friend class FlashDump;

  // --- Owners (owners.cc). ---

  // The masks of one slot in one node.
  struct Owner {
    OwnerSet* set = nullptr;
    std::uint32_t index = 0;
    std::atomic<Mask>* first = nullptr;  // in a node without a set

    explicit operator bool() const noexcept { return set != nullptr || first != nullptr; }
    std::atomic<Mask>* word(std::size_t tier) const noexcept {
      if (set == nullptr) return tier == 0 ? first : nullptr;
      return tier == 0 || set->lower ? &set->masks(tier)[index] : nullptr;
    }
    Mask mask(std::size_t tier) const noexcept {
      const std::atomic<Mask>* const found = word(tier);
      return found == nullptr ? 0 : found->load(std::memory_order_relaxed);
    }
    Mask any() const noexcept {
      Mask all = mask(0);
      if (set != nullptr && set->lower)
        for (std::size_t tier = 1; tier < kStorageTiers; ++tier) all |= mask(tier);
      return all;
    }
  };
  Owner owner(Node& node, std::uint32_t slot) const noexcept;
  // Creates an entry where there is none. Publishes only an empty mask. Throws std::bad_alloc with nothing
  // changed.
  Owner make_owner(Node& node, std::uint32_t slot, std::size_t tier);
  void write_mask(Node& node, const Owner& owner, std::uint32_t slot, std::size_t tier, Mask mask) noexcept;
  void write_tier(Node& node, const Owner& owner, std::uint32_t slot, std::size_t tier, Mask mask) noexcept;
  // Adds blocks to those the slot holds.
  void hold(Node& node, const Owner& owner, std::uint32_t slot, std::size_t tier, Mask blocks) noexcept;
  TierBits tiers_at(Node& node, std::uint32_t slot, std::uint32_t offset) const noexcept;
  // Blocks that other slots hold in any tier, dead ones aside; `but` may be kNoSlot.
  Mask held(const Node& node, std::uint32_t but) const noexcept;
  // Ends growth: from here on the set records which slots hold all blocks.
  void close(Node& node) noexcept;
  void set_full_bits(const Node& node, OwnerSet& set) noexcept;
  static void list(OwnerSet& set, std::uint32_t slot, bool holds) noexcept;

  struct Entry {
    std::uint32_t slot = 0;
    std::array<Mask, kStorageTiers> masks{};
  };
  // --- Outline (outline.cc). ---
  static constexpr std::uint32_t kOutlineNodes = 1024;  // in one hold of the lock
  void outline_node(Node& node, std::uint32_t parent_run, OutlineWalk& walk, IndexOutline& out);
  // The node, or the one of its ancestors, that is a child of `parent`; null: it is gone.
  Node* find_below(std::uint32_t id, std::uint32_t parent) noexcept;

  // The non-empty entries of a node, dead slots aside.
  void collect_entries(Node& node, std::vector<Entry>& entries) const;
  OwnerSet* new_set(std::span<const Entry> entries, std::uint32_t room, bool lower);
  // Sets the owners of an unpublished node.
  void set_owners(Node& node, std::span<const Entry> entries);
  void replace_set(Node& node, bool lower);
  static void free_set(OwnerSet* set) noexcept;
  void retire_set(OwnerSet* set);

  // --- Nodes (nodes.cc). ---
  Node& node_at(std::uint32_t id) noexcept { return *nodes_[id]; }
  const Node& node_at(std::uint32_t id) const noexcept { return *nodes_[id]; }
  // An unpublished node, with a new id unless `id` names one.
  Node* new_node(std::uint32_t blocks, std::uint32_t id = kNoNode);
  // Frees the memory of a node that no reader can see.
  void free_node(Node* node) noexcept;
  // Takes back a node that was never published.
  void discard(Node* node) noexcept;
  // Requires: no link leads to the node. `with_id`: its id is out of use too. Readers of the node may still
  // look the id up in the edge table, so the id is freed once they have left.
  void retire(Node* node, bool with_id);
  bool is_empty() const noexcept { return live_nodes_ == 1; }
  // Returns the memory that an empty index keeps for names and ids. Requires: is_empty(), and no probe is
  // used afterwards.
  void forget_all() noexcept;
  Node* find_child(const Node& node, std::uint64_t local) const noexcept;
  // Links a complete node below `parent` and thereby publishes it. Requires: edges_for() inserts are
  // prepared.
  void link(Node& parent, Node* child) noexcept;
  static std::uint32_t edges_for(const Node& parent) noexcept;
  void unlink(Node* node);
  // The same node with other room, or cut to `blocks`; replaces the old one for new readers. Throws
  // std::bad_alloc with nothing changed.
  Node* rebuild(Node* old, std::uint32_t blocks, std::uint32_t room);
  // Cuts a node in two before block `at`; returns the front, which has a new id. `newcomer` may have names in
  // it, but no masks yet; if it `joins`, the front has an entry for it. Throws std::bad_alloc with nothing
  // changed.
  Node* split(Node* old, std::uint32_t at, std::uint32_t newcomer, std::size_t tier, bool joins);
  class AliasMoves;
  void take_place(Node* old, Node* fresh) noexcept;
  void move_name(Node& from, std::uint32_t offset, BlockRef to) noexcept;
  // Frees the node and its ancestors as long as they have no holder and no child, and there is memory to
  // retire them.
  void prune(Node* node) noexcept;
  bool prune_one(Node* node) noexcept;
  bool is_barren(const Node& node) const noexcept {
    return &node != root_ && node.first_child == kNoNode && held(node, kNoSlot) == 0;
  }
  // Queues the end of a barren chain.
  void leave_barren(std::uint32_t id) noexcept;

  // --- Names. ---
  std::uint32_t find_name(std::uint64_t name) const;
  bool is_named(std::uint32_t word, std::uint64_t name) const noexcept {
    const BlockRef block(word);
    return const_cast<FlashTree*>(this)->nodes_[block.node()]->names()[block.offset()] == name;
  }
  void erase_name(Node& node, std::uint32_t offset);
  // The tiers in which the slot holds the block by its canonical name.
  TierBits canonical_tiers(Node& node, std::uint32_t slot, std::uint32_t offset) const;
  // The block that the worker uses this name for, in any tier.
  std::optional<BlockRef> resolve(std::uint32_t slot, std::uint64_t name) const;

  // --- store (store.cc). ---
  struct Piece {
    Node* node = nullptr;
    std::uint32_t offset = 0;
    std::uint32_t count = 0;
    std::uint32_t block = 0;  // of the event
    Owner owner{};            // the worker's entry, from prepare() on
  };
  enum class NameKind : std::uint8_t { kCanonical, kInserted, kNewAlias, kAlias };
  // The event being processed.
  struct Store {
    const BlocksStored* event = nullptr;
    std::uint32_t slot = 0;
    std::size_t tier = 0;
    std::uint32_t position = 0;  // of its first block
    Node* at = nullptr;          // node where the known content ends,
    std::uint32_t offset = 0;    // and its blocks on the path
    std::uint32_t known = 0;     // blocks of the event already in the tree
    std::uint32_t appended = 0;  // blocks appended to `at` itself
    std::uint32_t checked = 0;   // blocks whose names are resolved
    Owner owner{};               // of the appended blocks
  };
  std::optional<StoreVerdict> store(Store& store);
  StoreVerdict refuse(StoreVerdict verdict) noexcept;
  void prefetch_leaf(BlockRef last, std::size_t blocks) noexcept;
  bool continues_leaf(Store& store, std::uint32_t slot) noexcept;
  StoreVerdict append(Store& store);
  // Readers see the node's blocks up to there.
  void lengthen(Node& node, std::uint32_t length) noexcept;
  std::optional<BlockRef> find_parent(std::uint32_t slot, std::uint64_t name);
  void plan(Store& store);
  static void write_blocks(Node& node, std::uint32_t offset, std::span<const StoredBlock> blocks) noexcept;
  void make_space(Store& store);
  bool settle_names(Store& store);
  bool settle_known(Store& store, const Piece& piece);
  struct Place {
    Node* node = nullptr;
    std::uint32_t offset = 0;
    std::uint32_t room = 0;
  };
  Place place_of(const Store& store, std::uint32_t block) const noexcept;
  void probe_from(const Store& store, std::uint32_t first) noexcept;
  bool settle_in_a_row(Store& store);
  bool settle_one_by_one(Store& store);
  // Reserves memory for set_kind().
  void reserve_kinds(const Store& store);
  void set_kind(std::uint32_t block, NameKind kind) noexcept { kinds_[block] = kind; }
  bool settle_new(Store& store, Node& node, std::uint32_t offset, std::uint32_t block);
  bool add_alias(Store& store, Node& node, std::uint32_t offset, std::uint32_t block);
  // The piece with this block of the event. Requires: the block was in the tree already.
  const Piece& piece_with(std::uint32_t block) const noexcept;
  // Whether the worker will hold the block by this name once the event is processed.
  bool names_in_event(const Store& store, BlockRef other, std::uint64_t name);
  void undo_names(Store& store) noexcept;
  // Undoes the changes of a store before its publication.
  void undo(Store& store) noexcept;
  void prepare(Store& store);
  void publish(Store& store) noexcept;
  void count_repeats(const Store& store, const Piece& piece) noexcept;

  // --- remove (remove.cc). ---
  // Consecutive names of one removal mostly lie in one node; its masks are written once.
  struct Removal {
    std::uint32_t slot = 0;
    std::size_t tier = 0;
    bool plain = false;  // names mean what the name table says, and no block removes others with it
    Node* node = nullptr;
    const std::uint64_t* names = nullptr;  // of the node
    std::uint32_t last = 0;                // offset of the last name;
    std::uint32_t step = ~0u;              // expected distance to the next one
    Owner owner;
    Mask mine = 0;       // in this tier, after the removal
    Mask before = 0;     // in this tier, now
    Mask elsewhere = 0;  // the slot's other tiers
    Mask others = 0;
  };
  void prefetch_names(const FlashSlots::Trail& trail) noexcept;
  std::size_t remove_run(Removal& removal, std::span<const BlockName> names, std::size_t probe);
  BlockRef next_of(const Removal& removal) const noexcept;
  bool expect(Removal& removal, BlockRef block, std::uint64_t name);
  bool remove_name(Removal& removal, std::uint64_t name, const TagTable::Probe& probe);
  bool remove_alias(Removal& removal, std::uint32_t alias);
  bool turn_to(Removal& removal, Node& node);
  void finish(Removal& removal);
  void shrink(Node* node, std::uint32_t blocks) noexcept;
  void forget_below(Removal& removal, std::uint32_t offset);
  // Drops all blocks a live slot holds in a node, or those in `blocks`, names included. Does not prune.
  void drop(Node& node, std::uint32_t slot, Mask blocks);

  // --- Work left to later calls (tidy.cc). ---
  static constexpr std::uint64_t kTidySteps = 1'024;  // that a call takes for it,
  static constexpr std::size_t kTidyNodes = 32;       // nodes it examines while slots are dead
  static constexpr std::size_t kPrunes = 256;         // ancestors a call frees
  static constexpr std::size_t kPieces = 64;          // pieces of memory a call returns
  static constexpr std::size_t kKills = 512;          // workers removed at once
  void begin_call() noexcept;
  // Does a share of the pending work, as far as memory permits.
  void tidy() noexcept;
  std::uint64_t steps() const noexcept { return steps_ + domain_.work().examined + aliases_.steps(); }
  void count_holders(std::uint32_t holders) const noexcept { steps_ += 1 + holders / 16; }
  bool any_dead() const noexcept { return !sweeping_.empty() || !died_.empty(); }
  bool has_dead(const Node& node) const noexcept;
  // Drops the names of blocks that only dead slots hold, or held when the sweep came. Requires: no store has
  // given the node names without having written their masks.
  void drop_dead_names(Node& node);
  // Called before the node, or its set, is replaced by one without dead slots. Requires: their names were
  // dropped.
  void leave_out_dead(const Node& node) noexcept;
  // Removes dead slots from a node, from entry `from` on, until the step count reaches `until`. False when
  // more remain; `from` is then where to continue.
  bool purge(Node& node, std::uint32_t& from, std::uint64_t until);
  void kill(std::span<const std::uint32_t> slots);
  // Examines up to `nodes` nodes, until the step count reaches `until`; true when no dead slot is left, or
  // there is no memory to continue.
  bool sweep(std::size_t nodes, std::uint64_t until) noexcept;
  bool sweep_is_due() const noexcept { return any_dead() || unpruned_ || in_sweep_; }
  bool prune_barren() noexcept;
  bool give_back(std::size_t pieces) noexcept;
  // Releases the slots of up to kKills workers that hold nothing; returns how many.
  std::size_t release_idle();
  // Tries to free slots: dead ones, and those of workers that hold nothing. False: more work remains.
  bool release_slots();

  const FlashOptions options_;
  EraDomain domain_;
  SlabPool slabs_;
  NodeArena arena_{slabs_};
  ChunkedPool<Node*> nodes_;
  EdgeTable edges_;
  TagTable names_;
  AliasNames aliases_;
  FlashSlots slots_;
  Node* root_ = nullptr;
  std::size_t live_nodes_ = 0;  // includes the root; excludes retired nodes, whose ids are not free yet
  IndexCounters counters_;
  std::size_t set_bytes_ = 0;

  // The sweep: slots being removed from nodes and aliases, and slots that died since it began.
  std::vector<std::uint32_t> sweeping_;
  std::vector<std::uint32_t> died_;
  std::uint32_t sweep_at_ = 0;     // node,
  std::uint32_t sweep_entry_ = 0;  // entry of its set
  std::uint32_t sweep_alias_ = 0;
  bool in_sweep_ = false;  // a sweep is running
  // A node without holder or child may be in the tree but not in barren_: the next sweep finds it.
  bool unpruned_ = false;
  // Ids of nodes without holder or child; they may be freed, or in use again, by now.
  std::vector<std::uint32_t> barren_;
  std::size_t prunes_left_ = 0;  // of this call
  bool gives_back_ = false;      // there may be memory to return

  mutable std::uint64_t steps_ = 0;
  std::uint64_t call_began_ = 0;  // steps when the call began
  std::uint64_t most_steps_ = 0;  // of one call

  // Names being prefetched: those in work and as many behind them.
  static constexpr std::uint32_t kAhead = 16;
  std::array<TagTable::Probe, std::size_t{2} * kAhead> probes_{};

  mutable std::uint32_t likely_owner_ = 0;  // where the last slot was found among the owners of a node

  // Scratch of the writer's calls.
  std::vector<Piece> pieces_;
  std::vector<Node*> fresh_;
  std::vector<NameKind> kinds_;  // of the event's blocks; empty while all are plain
  std::vector<Entry> entries_;
};

struct FlashTree::OutlineWalk {
  struct Open {
    std::uint32_t node;
    std::uint32_t parent;
    std::uint32_t parent_run;
  };
  bool has_begun = false;
  std::vector<Open> todo;
  std::vector<std::uint32_t> numbers;  // of workers, by slot
  std::vector<Entry> entries;          // of one node
};

}  // namespace ashlar::index::detail
