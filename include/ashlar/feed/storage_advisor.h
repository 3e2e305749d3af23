// StorageAdvisor: recommends how to move blocks between storages, from events alone.
//
// It follows the streams of any number of workers and keeps an index of live blocks, by place (a volume, a
// file or a tier) and by prefix group (the first block of their sequence). advise() examines every group of
// every storage place:
//
//   promote    the group is hot, and a faster place exists
//   demote     the group is cold, and a slower place exists
//   coalesce   the group consists of many small objects that are read together
//   compact    much of the place was removed: the rest is scattered
//
// Heat comes from the hits that Access events report; without them, from how often removed blocks come back,
// and from age. Every advice names its basis. Heat halves in every half-life. A snapshot changes neither heat
// nor age of known blocks. The advisor never calls a manager.
//
// A place exists from its first block to its last one; those in Options::order exist permanently.
//
// find() says where a block is, group() what a prefix consists of. A RemovalHook hears what left a place, to
// clean up what belonged to it or to keep its bytes elsewhere.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) per stored, removed or accessed block; clears and resets visit the blocks they remove,
//                advise() visits all blocks. find() is O(holders of the block), group() O(places + the
//                group's blocks). Memory: live blocks, and as many removed ones, to recognise their return.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/feed/stream_receiver.h"

namespace ashlar::feed {

struct Advice {
  enum class Action : std::uint8_t { kPromote, kDemote, kCoalesce, kCompact };
  enum class Basis : std::uint8_t { kAccesses, kRestores, kLayout };

  Action action = Action::kPromote;
  Basis basis = Basis::kAccesses;
  std::string from;                                // place
  std::string to = {};                             // place; empty where the action has none
  std::optional<tokens::SequenceHash> group = {};  // none: the whole place
  std::vector<tokens::SequenceHash> blocks = {};   // by position
  std::uint64_t bytes = 0;
  double heat = 0;          // hits or stores per block, halved in every half-life
  double idle_seconds = 0;  // since the last use
  std::string reason;

  // One line of JSON.
  std::string to_json() const;
};

std::string_view to_string(Advice::Action action) noexcept;
std::string_view to_string(Advice::Basis basis) noexcept;

// Acts on advice. User-defined movers implement it.
class AdviceHook {
 public:
  virtual ~AdviceHook() = default;
  // Errors are counted and kept in last_hook_error(); the advisor continues.
  virtual Result<void> on_advice(const Advice& advice) = 0;
};

// A block in one tier of one worker.
struct BlockHolding {
  tokens::SequenceHash hash;
  std::optional<tokens::SequenceHash> parent = {};  // the block before it, if an event named it
  tokens::SequenceHash group;                       // the first block of its sequence, as far as known
  events::Worker worker;
  events::TierId tier;
  std::string place;  // a volume, a file, or a tier of memory
  std::uint64_t bytes = 0;
  std::uint32_t metadata = 0;  // the producer's own
  double heat = 0;             // as of the last batch

  friend bool operator==(const BlockHolding&, const BlockHolding&) = default;
};

struct BlockRemoval {
  BlockHolding holding;  // what ended
  // Where the block still is, as far as the events so far say, from the fastest place on. Those of different
  // tiers are not ordered: ask find() again before the last trace of a block is deleted.
  std::vector<BlockHolding> left = {};
};

// Hears of removals. User-defined movers and cleaners implement it.
class RemovalHook {
 public:
  virtual ~RemovalHook() = default;
  // Called after the batch was applied; it may call find() and group(). A block that is back by then is not
  // reported. Errors are counted and kept in last_hook_error(); the advisor continues.
  virtual Result<void> on_removed(const BlockRemoval& removal) = 0;
};

class StorageAdvisor final : public StreamListener {
 public:
  struct Options {
    // Places from the fastest to the slowest; others follow, by tier and name.
    std::vector<std::string> order = {};
    double half_life_seconds = 600;
    double hot_heat = 4;                   // per block, from which a group is promoted
    double cold_seconds = 3600;            // unused for this long, a group is demoted
    std::uint64_t small_object = 1 << 20;  // bytes below which objects should lie together
    std::size_t coalesce_blocks = 8;       // at least this many of them
    double scattered = 0.5;                // share of removed bytes from which a place should be compacted
    std::uint64_t compact_bytes = std::uint64_t{64} << 20;  // and at least this many

    // Errors: kInvalidArgument with the field.
    Result<void> validate() const;
  };
  // Of one place.
  struct PlaceSummary {
    std::string name;
    events::TierId tier;
    std::size_t blocks = 0;
    std::size_t groups = 0;
    std::uint64_t bytes = 0;
    std::uint64_t removed_bytes = 0;  // lately, or since it was compacted
    std::uint64_t restored = 0;       // blocks stored again after a removal
  };
  struct Counters {
    std::uint64_t stored = 0;
    std::uint64_t removed = 0;
    std::uint64_t accesses = 0;  // hits reported
    std::uint64_t resets = 0;    // workers that restarted
    std::uint64_t hook_failures = 0;
  };

  static Result<std::unique_ptr<StorageAdvisor>> create(const Options& options);

  void on_reset(const events::StreamId& stream) override;
  void on_events(const events::EventBatch& batch) override;

  // Advice at Unix time `now_ns`, hottest first, then coldest. Repeats itself until something changes.
  std::vector<Advice> advise(std::int64_t now_ns) const;
  // Passes each advice to the hook. Returns how many succeeded.
  std::size_t act(std::span<const Advice> advice, AdviceHook& hook);

  // Where a block is, from the fastest place on.
  std::vector<BlockHolding> find(const tokens::SequenceHash& hash) const;
  // Every holding of the prefix group of a block, by position, then from the fastest place on. `prefix` is
  // the first block of the sequences, or any known block of them.
  std::vector<BlockHolding> group(const tokens::SequenceHash& prefix) const;
  // From now on. A clear removes the blocks that it covers, and a snapshot those that it no longer lists. A
  // worker that restarts removes nothing: its storage may outlive it. Null: none. The hook must outlive the
  // advisor, or its removal.
  void set_removal_hook(RemovalHook* hook);

  std::vector<PlaceSummary> places() const;
  // The summary as a text table.
  std::string table() const;
  const Counters& counters() const noexcept { return counters_; }
  // When the last batch was published: the time for advise() on a recording.
  std::int64_t latest_ns() const noexcept { return latest_ns_; }
  Advice::Basis basis() const noexcept {
    return counters_.accesses != 0 ? Advice::Basis::kAccesses : Advice::Basis::kRestores;
  }
  const std::string& last_hook_error() const noexcept { return last_hook_error_; }
  // Aborts on inconsistent tables. For tests; O(blocks).
  void check_invariants() const;

 private:
  using PlaceId = std::uint32_t;
  struct Block {
    tokens::SequenceHash hash;
    tokens::SequenceHash group;
    std::optional<tokens::SequenceHash> parent = {};
    std::uint64_t bytes = 0;
    std::uint32_t metadata = 0;
    std::int64_t stored_ns = 0;
    std::int64_t used_ns = 0;
    double heat = 0;  // at used_ns
    PlaceId place = 0;
  };
  struct PlaceHistory {
    double removed_bytes = 0;  // as of removed_ns; they fade as heat does
    std::int64_t removed_ns = 0;
    std::uint64_t restored = 0;
  };
  using PlaceName = std::pair<std::uint8_t, std::string>;  // tier, name
  struct Place {
    std::string name;
    events::TierId tier;
    std::uint64_t bytes = 0;
    PlaceHistory history = {};
    // Blocks of each group, with the number of their holders.
    std::unordered_map<tokens::SequenceHash, std::unordered_map<tokens::SequenceHash, std::uint32_t>> groups =
        {};
  };
  // (worker, tier, hash): what one worker holds.
  struct Holder {
    events::Worker worker;
    events::TierId tier;
    tokens::SequenceHash hash;
    friend bool operator==(const Holder&, const Holder&) = default;
  };
  struct HolderHash {
    std::size_t operator()(const Holder& holder) const noexcept {
      return std::hash<events::Worker>()(holder.worker) ^
             (std::hash<tokens::SequenceHash>()(holder.hash) + holder.tier.value());
    }
  };
  // A live block, in the list of its worker and tier.
  struct Live {
    Block block;
    std::pair<const Holder, Live>* before = nullptr;
    std::pair<const Holder, Live>* next = nullptr;
  };
  using Entry = std::pair<const Holder, Live>;
  using Shelf = std::pair<events::Worker, events::TierId>;
  // What is known of a name in any place.
  struct Known {
    tokens::SequenceHash group;
    std::vector<Holder> holders = {};
  };
  // Earlier holdings: removed, or only forgotten because the worker restarted.
  struct Gone {
    Block block;
    bool removed = false;
  };

  explicit StorageAdvisor(const Options& options) : options_(options) {}
  PlaceId place_of(const events::KvEvent& event, std::span<const events::LocationName> names);
  tokens::SequenceHash group_of(const events::KvEvent& event);
  void store(const events::Worker& worker, const events::KvEvent& event, std::int64_t now,
             std::span<const events::LocationName> names);
  enum class Why : std::uint8_t { kRemoved, kReset, kReplaced };
  void remove(const Holder& holder, Why why, std::int64_t now);
  // The worker's blocks in the tier, or with kAllTiers in all of them.
  void remove_all(const events::Worker& worker, events::TierId tier, Why why, std::int64_t now);
  void put_on_shelf(Entry& entry);
  void take_from_shelf(const Entry& entry);
  void drop_place(PlaceId id);
  void access(const events::KvEvent& event, std::int64_t now);
  BlockHolding holding_of(const Holder& holder, const Block& block) const;
  // Appends the holdings of a block, from the fastest place on.
  void list(const tokens::SequenceHash& hash, std::vector<BlockHolding>& out) const;
  void report_removals();
  double faded(double value, std::int64_t since, std::int64_t now) const;
  double heat_at(const Block& block, std::int64_t now) const { return faded(block.heat, block.used_ns, now); }
  double removed_at(const Place& place, std::int64_t now) const {
    return faded(place.history.removed_bytes, place.history.removed_ns, now);
  }
  // How fast a place is, by the operator's order and by its tier; smaller is faster.
  std::pair<std::size_t, std::uint8_t> speed_of(const Place& place) const;
  std::vector<PlaceId> by_speed() const;

  const Options options_;
  std::vector<Place> places_;  // by id; those not in place_ids_ are free
  std::vector<PlaceId> free_places_;
  std::map<PlaceName, PlaceId> place_ids_;
  std::map<PlaceName, PlaceHistory> gone_places_;
  std::unordered_map<Holder, Live, HolderHash> blocks_;
  std::map<Shelf, Entry*> shelves_;  // first of each list; no list is empty
  std::unordered_map<tokens::SequenceHash, Known> known_;
  std::unordered_map<Holder, Gone, HolderHash> gone_;
  std::int64_t latest_ns_ = 0;
  RemovalHook* removal_hook_ = nullptr;
  std::map<events::Worker, std::uint64_t> incarnations_;
  std::vector<std::pair<Holder, BlockHolding>> removals_;  // of the current batch
  // Dropped by a reset within an incarnation; the snapshot that follows says which of them are gone.
  std::map<events::Worker, std::unordered_map<Holder, BlockHolding, HolderHash>> unconfirmed_;
  Counters counters_;
  std::string last_hook_error_;
};

}  // namespace ashlar::feed
