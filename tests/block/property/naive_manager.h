// NaiveManager: what a BlockManager does, written for obviousness. One thread, standard containers, no
// cleverness.
//
// Each public call stands for one call of the manager, or of a guard, and leaves the same block ids, pools,
// counters, presence and events behind. Blocks are named by id; the caller keeps track of which guards it
// has. Pins are ended by time where the manager notices: in the calls that look at the pools.
//
// Thread safety: confined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block::property {

using Hash = tokens::SequenceHash;
using Id = std::uint32_t;
using Tokens = std::vector<std::uint32_t>;

// The registry that naive managers share.
struct NaiveRegistry {
  struct Entry {
    unsigned references = 0;  // handles, and primaries of all managers
    unsigned callbacks = 0;   // touch callbacks
    std::map<std::uint8_t, unsigned> presence;
  };
  std::map<Hash, Entry> entries;
  std::map<Hash, unsigned> uses;
  std::map<Hash, unsigned> callbacks_run;

  // One more reference; a new entry counts as a use if `counts`.
  void acquire(const Hash& hash, bool counts);
  void release(const Hash& hash);
  void touch(const Hash& hash);
  bool present(const Hash& hash, std::uint8_t tier) const;
};

// A moment; what waits for it runs in order when it comes.
struct NaiveFence {
  bool passed = false;
  std::vector<std::function<void()>> waiting;
  void signal();
  void on_passed(std::function<void()> callback);
};

struct NaiveOptions {
  Id block_count = 0;
  std::uint8_t tier = 0;
  DuplicatePolicy duplicates = DuplicatePolicy::kAllow;
  bool last_in_first_out = false;  // the reset pool
  bool default_reset_on_release = false;
  std::size_t max_pins = 1;
  Watermarks watermarks;
};

struct NaiveIdentity {
  Hash hash;
  std::optional<Hash> parent;
  std::optional<Hash> root;
  std::optional<Tokens> tokens;  // from the start of the sequence; nothing when only the name is known
};

class NaiveManager {
 public:
  using Reason = AllocationRefusal::Reason;
  struct Allocation {
    std::optional<Reason> refused;
    std::vector<Id> blocks;
    std::vector<Hash> evicted;
  };
  struct Registration {
    std::optional<ErrorCode> refused;
    std::vector<Id> blocks;  // the guard of each candidate names this block afterwards
  };
  struct Weak {
    Hash hash;
    std::optional<Tokens> tokens;
    Id id;
  };
  using PinKey = std::uint64_t;
  struct PinResult {
    std::optional<ErrorCode> refused;
    PinKey key = 0;
  };

  NaiveManager(const NaiveOptions& options, std::shared_ptr<NaiveRegistry> registry);

  // ---- allocation. `until`: an allocation that would wait, but whose deadline has come.
  Allocation allocate(std::size_t n, bool until = false);
  std::optional<Reason> why_not(std::size_t n);

  // ---- blocks that one guard owns
  void finish(Id id, const NaiveIdentity& identity);  // complete, stage, commit, compute_done of a full block
  void set_state(Id id, BlockState state) { blocks_[id].state = state; }
  void launch(Id id, std::shared_ptr<NaiveFence> fence);
  void land(Id id) { blocks_[id].fence = nullptr; }  // compute_done, before the next state
  void drop_owned(Id id);

  // ---- registered blocks
  Registration register_blocks(std::span<const Id> candidates);
  std::vector<Id> match_prefix(std::span<const Hash> hashes);
  std::vector<std::optional<Id>> match_scattered(std::span<const Hash> hashes);
  std::map<Hash, Id> scan(std::span<const Hash> hashes, bool touch);
  std::vector<Id> match_verified(std::span<const NaiveIdentity> blocks);
  void copy(Id id) { ++blocks_[id].refs; }
  void drop(Id id) { drop_many(std::span(&id, 1)); }
  // As one call: from the last to the first, all counts before what follows from them.
  void drop_many(std::span<const Id> ids);
  void drop_after(Id id, NaiveFence& fence);
  Weak downgrade(Id id) const { return {blocks_[id].hash, blocks_[id].tokens, id}; }
  std::optional<Id> upgrade(const Weak& weak);
  void set_reset_on_release(Id id, bool reset) { blocks_[id].reset_on_release = reset; }

  // ---- pins
  PinResult pin(const Hash& hash, Clock::Duration ttl);
  PinResult pin_block(Id id, Clock::Duration ttl);
  void unpin(PinKey key);
  bool pinned(PinKey key);
  void advance(Clock::Duration by) { now_ += by; }
  Clock::TimePoint now() const { return now_; }

  // ---- pools
  std::size_t reset_inactive();
  std::vector<Hash> candidates(std::size_t n);
  // Takes the order of the inactive blocks from elsewhere. False when these are not the inactive blocks.
  bool adopt_order(std::span<const Hash> order);

  // ---- observations
  PoolStatus status();
  ManagerCounters& counters() { return counters_; }
  Pressure pressure() const { return pressure_; }
  const std::vector<std::pair<Pressure, std::size_t>>& pressure_calls() const { return pressure_calls_; }
  const std::vector<events::KvEvent>& events() const { return events_; }
  const std::map<Hash, Id>& primaries() const { return primaries_; }
  unsigned use_count(Id id) const { return blocks_[id].refs; }
  const Hash& hash(Id id) const { return blocks_[id].hash; }
  bool is_duplicate(Id id) const { return blocks_[id].state == BlockState::kDuplicate; }

 private:
  struct Block {
    BlockState state = BlockState::kReset;
    std::uint64_t life = 0;
    Hash hash;
    std::optional<Hash> parent;
    std::optional<Hash> root;
    std::optional<Tokens> tokens;
    std::shared_ptr<NaiveFence> fence;
    bool reset_on_release = false;
    unsigned refs = 0;
    unsigned pins = 0;
    std::list<Id> duplicates;  // of a primary, the next heir first
  };
  struct PinRecord {
    Id block;
    Clock::TimePoint end;
  };

  std::size_t available() const { return reset_.size() + inactive_.size(); }
  PoolStatus pools() const;
  std::optional<Reason> refusal(std::size_t n) const;
  // Nothing when the block has other tokens, as far as both sides know them.
  std::optional<Id> acquire(const Hash& hash, const std::optional<Tokens>& tokens = std::nullopt);
  void add_reference(Id id);
  void settle(Id id);
  // The heir becomes the primary of the hash, and the primary nothing yet.
  void pass_place(Id primary, Id heir);
  void unregister(Id id);
  void to_reset_pool(Id id);
  void release_pin(std::map<PinKey, PinRecord>::iterator pin);
  void expire_pins();
  PinResult add_pin(Id id, Clock::Duration ttl);
  void publish(events::KvEventKind kind, Id id);
  // What every visit to the manager ends with.
  void note_pressure();
  static bool agree(const std::optional<Tokens>& a, const std::optional<Tokens>& b) {
    return !a || !b || *a == *b;
  }

  NaiveOptions options_;
  std::shared_ptr<NaiveRegistry> registry_;
  std::vector<Block> blocks_;
  std::list<Id> reset_;     // the front is handed out next
  std::list<Id> inactive_;  // the front is evicted next
  std::set<Id> aside_;      // unreferenced and pinned
  std::map<Hash, Id> primaries_;
  std::map<PinKey, PinRecord> pins_;
  PinKey next_pin_ = 1;
  Clock::TimePoint now_;
  std::size_t owned_ = 0;
  std::size_t quarantined_ = 0;
  ManagerCounters counters_;
  Pressure pressure_ = Pressure::kNormal;
  std::vector<std::pair<Pressure, std::size_t>> pressure_calls_;
  std::vector<events::KvEvent> events_;
};

}  // namespace ashlar::block::property
