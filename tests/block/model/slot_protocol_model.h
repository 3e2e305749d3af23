// The slot-word protocol as small-step threads, for the explorer of tests/support.
//
// Two slots, three hashes, one mutex. The hashes are chosen so that a half of H2 and a half of H3 make H1. A
// thread runs a short list of operations; each atomic access, plain access, lock and unlock of an operation
// is one step. The orders come from include/ashlar/block/detail/slot_ref.h unless a test weakens one, and
// a test may switch off one rule of the protocol to see that a scenario notices.
//
//   word[s]     atomic {refs, state, generation}
//   hash[s]     two atomic halves, the hash the slot was last filled for; stored by its owner
//   index[h]    atomic, the slot registered under h, or none; written under the mutex
//   payload[s]  plain; a slot filled for hash h holds the value h
//   lists       plain, under the mutex; which slots are inactive, free, and duplicates
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/block/detail/slot_ref.h"
#include "support/weak_memory.h"

namespace ashlar::block::model {

inline constexpr int kThreads = 3;
inline constexpr int kLocations = 9;
inline constexpr int kPlainLocations = 4;
inline constexpr exploration::Limits kLimits{
    .threads = kThreads, .locations = kLocations, .plain_locations = kPlainLocations, .messages = 14};

using exploration::Value;
using Memory = exploration::Memory<kLimits>;
using Access = exploration::Access<kLimits>;

inline constexpr int kSlots = 2;
inline constexpr int kHashes = 3;

// The orders of one run. Match has its constant in three places.
struct Orders {
  std::memory_order publish = kOrderPublish;       // the store of register
  std::memory_order promote = kOrderPublish;       // the addition that makes a duplicate the primary
  std::memory_order match_load = kOrderMatch;      // the load of the word
  std::memory_order match_exchange = kOrderMatch;  // the exchange that succeeds
  std::memory_order match_retry = kOrderMatch;     // the exchange that fails
  std::memory_order upgrade = kOrderMatch;         // all three in a weak upgrade
  std::memory_order drop = kOrderDrop;
  std::memory_order settle = kOrderSettle;
  std::memory_order revive = kOrderRevive;
  std::memory_order copy = kOrderCopy;
  std::memory_order evict = kOrderEvict;
  std::memory_order probe = kOrderProbe;
  bool mutex_releases = true;
};

// The rules of the protocol, and what happens where a test switches one to the other value.
struct Rules {
  // kAfter: the fast path counts first; where the hash then differs, it goes the slow way and leaves the
  // count. kBeforeTheFirst: an exchange that failed is tried again without another comparison.
  enum class Comparison : std::uint8_t { kBefore, kBeforeTheFirst, kAfter, kNever };
  Comparison match_compares_hash = Comparison::kBefore;
  // false: the fast path takes a count from 0 to 1.
  bool match_needs_a_reference = true;
  // false: the slow path takes the slot the fast path was at, whatever its state / whatever its hash.
  bool hint_needs_a_primary = true;
  bool hint_compares_hash = true;
  // false: a weak handle takes whatever is registered in its slot.
  bool upgrade_compares_hash = true;
  // false: drop ends with the subtraction.
  bool drop_settles = true;
  // false: settle lists a slot that is listed already.
  bool settle_sees_listed = true;
  // false: the last dropper lists the slot, whatever the word says by then.
  bool settle_looks_again = true;
  // false: a revived slot stays listed.
  bool revive_unlists = true;
  // false: evict sees a count of zero first, takes the mutex then, and does not look again.
  bool evict_looks_under_mutex = true;
  // false: evict takes a registered slot whose count reads zero, listed or not.
  bool evict_picks_from_list = true;
  // false: a recycled slot keeps its generation.
  bool evict_advances_generation = true;
  // false: the index entry of an evicted hash stays.
  bool evict_empties_index = true;
  // false: the hash is stored by register, after the word.
  bool hash_before_word = true;
  // true: register stores the index entry before it publishes the word.
  bool index_before_word = true;
  // false: a second slot is registered under a hash that has one.
  bool register_looks_for_primary = true;
  // false: a candidate takes the place of a primary whose count reads zero, listed or not.
  bool place_is_taken_from_list = true;
  // false: when a place passes, the index entry is emptied before it is stored anew.
  bool place_passes_in_one_store = true;
  // false: the heir's word is loaded and stored.
  bool heir_is_made_by_addition = true;
  // false: a primary with a duplicate is listed.
  bool primary_gives_way = true;
};

// One operation of a thread. Handles form a stack: match, upgrade, register and copy push, drop pops. A
// thread owns up to two slots in numbered places. An operation whose handle or place is empty does nothing.
// Fill is what an owner does without the mutex: it writes the payload and stores the hash.
struct Operation {
  enum class Kind : std::uint8_t {
    kMatch,
    kUpgrade,
    kCopy,
    kRead,
    kDrop,
    kAllocate,
    kFill,
    kRegister,
    kDiscard
  };
  Kind kind;
  std::uint8_t hash = 0;   // match, upgrade, fill, register
  std::uint8_t place = 0;  // allocate, fill, register, discard: the place; upgrade: the slot
  // register, where the hash has a primary: that is the answer; or the slot takes its place, and it becomes a
  // duplicate or is emptied; or the slot stays behind a primary that is not inactive.
  enum class Twin : std::uint8_t { kPrimary, kTakesPlace, kStaysBehind };
  Twin twin = Twin::kPrimary;
  enum class OnFailure : std::uint8_t { kGoOn, kEndThread, kViolation };
  OnFailure on_failure = OnFailure::kGoOn;  // match and allocate
};

Operation match(int hash);
Operation match_or_end(int hash);  // ends the thread at a miss
Operation must_match(int hash);
Operation upgrade(int slot, int hash);
Operation copy();
Operation read();
Operation drop();
Operation allocate(int place = 0);
Operation allocate_or_end(int place = 0);  // ends the thread where nothing can be evicted
Operation must_allocate(int place = 0);
Operation fill(int hash, int place = 0);
Operation enroll(int hash, int place = 0);       // register; where the hash has a primary, that is the answer
Operation enroll_over(int hash, int place = 0);  // takes the primary's place
Operation enroll_beside(int hash, int place = 0);  // stays behind a primary in use
Operation discard(int place = 0);

// How a slot starts. Everything in it happened before every thread.
struct Start {
  enum class Kind : std::uint8_t { kFree, kOwned, kReferenced, kInactive };
  Kind kind = Kind::kFree;
  std::uint8_t hash = 0;
  std::vector<int> holders = {};  // threads: the owner, or one entry per reference
};

// A program: the starting slots and what each thread does.
struct Scenario {
  std::string name;
  std::array<Start, kSlots> slots;
  std::vector<std::vector<Operation>> threads;
};

// A scenario under given orders and rules, in the shape the explorer asks for.
//
// Invariants it checks after every step: a registered slot's count equals the handles held on it; a slot that
// is not registered has no handles. Whenever the mutex is free: the inactive list holds only primaries of
// count zero that have no duplicate; index and primaries agree, so that a hash has at most one primary; a
// duplicate's hash has one; a slot that is not registered is owned once or free. At the end also: a primary
// of count zero is listed, and a duplicate has a count. On the way:
// no match or upgrade counts itself on a block of another hash, not even for a moment; what it returns has
// the payload of its hash; a match or allocation that must succeed does; only slots of count zero are
// evicted; nothing is listed twice; and no plain access races.
//
// Thread safety: immutable.
class SlotProtocol {
 public:
  static constexpr exploration::Limits kLimits = model::kLimits;

  enum class Phase : std::uint8_t;

  // Registers of one thread. They have no padding, so that their bytes are their value.
  struct Thread {
    Value word = 0;  // what a compare-exchange expects
    std::uint8_t operation = 0;
    Phase phase{};
    Phase next{};           // where to go on after a lock or an unlock
    std::uint8_t slot = 0;  // the slot the operation works on
    std::uint8_t handle_count = 0;
    std::array<std::uint8_t, 5> handles{};
    std::array<std::uint8_t, 2> owned{};  // slot + 1, or 0
  };

  struct State {
    Memory memory;
    std::array<Thread, kThreads> threads{};
  };

  explicit SlotProtocol(Scenario scenario, Orders orders = {}, Rules rules = {});

  State initial() const;
  bool done(const State& state, int thread) const;
  bool enabled(const State& state, int thread) const;
  bool is_local(const State& state, int thread) const;
  void step(State& state, Access& access) const;
  std::optional<std::string> check(const State& state) const;
  std::optional<std::string> check_final(const State& state) const;
  void append_to(const State& state, std::string& key) const;
  static std::string describe(int location, Value value);

 private:
  const Operation& operation(const Thread& thread, int index) const {
    return scenario_.threads[index][thread.operation];
  }
  void begin(Thread& thread, int index) const;
  void finish(Thread& thread, int index) const;
  void give_up(Thread& thread, int index) const;
  Rules::Comparison comparison(const Operation& op) const;
  void examine(Thread& thread, const Operation& op, bool again) const;
  void look_up_slowly(Thread& thread) const;

  void step_fast_match(State& state, Thread& thread, Access& access) const;
  void step_slow_match(State& state, Thread& thread, Access& access) const;
  void step_handle(State& state, Thread& thread, Access& access) const;
  void step_allocate(State& state, Thread& thread, Access& access) const;
  void step_give_way(Thread& thread, Access& access) const;
  void step_owned(Thread& thread, Access& access) const;
  void step_twin(State& state, Thread& thread, Access& access) const;

  Scenario scenario_;
  Orders orders_;
  Rules rules_;
};

}  // namespace ashlar::block::model
