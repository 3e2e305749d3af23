// A thread is a phase (the access it makes next) and a few registers. step() makes that access and sets the
// next phase; what lies between two accesses belongs to the step before it. Lists are read and written in the
// step of the atomic access they go with: both are under the mutex, so that no other thread can tell.
#include "block/model/slot_protocol_model.h"

#include <utility>

namespace ashlar::block::model {

enum class SlotProtocol::Phase : std::uint8_t {
  kEnd,
  kGiveUp,
  kLock,
  kUnlock,
  kMatchIndex,
  kMatchWord,
  kMatchHash,
  kMatchHashLow,
  kMatchExchange,
  kMatchHashAgain,
  kMatchHashAgainLow,
  kMatchPayload,
  kSlowIndex,
  kSlowWord,
  kSlowExchange,
  kCopyAdd,
  kReadPayload,
  kDropSubtract,
  kSettleWord,
  kAllocatePeek,
  kAllocatePick,
  kAllocateHash,
  kAllocateIndex,
  kAllocateWord,
  kFillPayload,
  kRegisterLookup,
  kRegisterHash,
  kRegisterHashLow,
  kRegisterWord,
  kRegisterIndex,
  kDiscardWord,
};

namespace {

using Phase = SlotProtocol::Phase;
using Kind = Operation::Kind;
using OnFailure = Operation::OnFailure;

enum SlotState : Value { kReset, kMutable, kPrimary };

constexpr Value make_word(Value refs, SlotState state, Value generation) {
  return refs | state << 8 | generation << 16;
}
constexpr Value refs(Value word) {
  return word & 0xff;
}
constexpr SlotState slot_state(Value word) {
  return static_cast<SlotState>(word >> 8 & 0xff);
}
constexpr Value generation(Value word) {
  return word >> 16;
}

// Locations.
constexpr int word_of(int slot) {
  return slot;
}
constexpr int high_of(int slot) {
  return kSlots + 2 * slot;
}
constexpr int low_of(int slot) {
  return kSlots + 2 * slot + 1;
}
constexpr int index_of(int hash) {
  return 3 * kSlots + hash - 1;
}
static_assert(3 * kSlots + kHashes <= kLocations);

// Halves of H1 = (1, 1), H2 = (1, 2), H3 = (2, 1).
constexpr Value high(int hash) {
  return hash == 3 ? 2 : 1;
}
constexpr Value low(int hash) {
  return hash == 2 ? 2 : 1;
}

// Returns: the hash of the two halves, or 0 where they belong to none.
constexpr int hash_from(Value high_half, Value low_half) {
  for (int hash = 1; hash <= kHashes; ++hash)
    if (high(hash) == high_half && low(hash) == low_half) return hash;
  return 0;
}
int last_hash(const Memory& memory, int slot) {
  return hash_from(memory.last(high_of(slot)), memory.last(low_of(slot)));
}

// Plain locations.
constexpr int payload_of(int slot) {
  return slot;
}
constexpr int kLists = kSlots;
static_assert(kLists < kPlainLocations);

constexpr Value listed_bit(int slot) {
  return 1U << slot;
}
constexpr Value free_bit(int slot) {
  return 1U << (8 + slot);
}

std::uint8_t byte(int value) {
  return static_cast<std::uint8_t>(value);
}

void push(SlotProtocol::Thread& thread, int slot) {
  thread.handles[thread.handle_count++] = byte(slot);
}
int top(const SlotProtocol::Thread& thread) {
  return thread.handles[thread.handle_count - 1];
}
void pop(SlotProtocol::Thread& thread) {
  thread.handles[--thread.handle_count] = 0;
}

void lock_then(SlotProtocol::Thread& thread, Phase next) {
  thread.phase = Phase::kLock;
  thread.next = next;
}
void unlock_then(SlotProtocol::Thread& thread, Phase next) {
  thread.phase = Phase::kUnlock;
  thread.next = next;
}

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kMatch:
      return "match";
    case Kind::kUpgrade:
      return "upgrade";
    case Kind::kCopy:
      return "copy";
    case Kind::kRead:
      return "read";
    case Kind::kDrop:
      return "drop";
    case Kind::kAllocate:
      return "allocate";
    case Kind::kFill:
      return "fill";
    case Kind::kRegister:
      return "register";
    case Kind::kDiscard:
      return "discard";
  }
  return "";
}

}  // namespace

Operation match(int hash) {
  return {.kind = Kind::kMatch, .hash = byte(hash)};
}
Operation must_match(int hash) {
  return {.kind = Kind::kMatch, .hash = byte(hash), .on_failure = OnFailure::kViolation};
}
Operation upgrade(int slot, int of_generation, int hash) {
  return {.kind = Kind::kUpgrade, .hash = byte(hash), .place = byte(slot), .generation = byte(of_generation)};
}
Operation copy() {
  return {.kind = Kind::kCopy};
}
Operation read() {
  return {.kind = Kind::kRead};
}
Operation drop() {
  return {.kind = Kind::kDrop};
}
Operation allocate(int place) {
  return {.kind = Kind::kAllocate, .place = byte(place)};
}
Operation allocate_or_end(int place) {
  return {.kind = Kind::kAllocate, .place = byte(place), .on_failure = OnFailure::kEndThread};
}
Operation must_allocate(int place) {
  return {.kind = Kind::kAllocate, .place = byte(place), .on_failure = OnFailure::kViolation};
}
Operation fill(int hash, int place) {
  return {.kind = Kind::kFill, .hash = byte(hash), .place = byte(place)};
}
Operation enroll(int hash, int place) {
  return {.kind = Kind::kRegister, .hash = byte(hash), .place = byte(place)};
}
Operation discard(int place) {
  return {.kind = Kind::kDiscard, .place = byte(place)};
}

SlotProtocol::SlotProtocol(Scenario scenario, Orders orders, Rules rules)
    : scenario_(std::move(scenario)), orders_(orders), rules_(rules) {
  scenario_.threads.resize(kThreads);
}

SlotProtocol::State SlotProtocol::initial() const {
  State state;
  Value lists = 0;
  for (int location = 0; location < kLocations; ++location) state.memory.set_initial(location, 0);
  for (int slot = 0; slot < kSlots; ++slot) {
    const Start& start = scenario_.slots[slot];
    const auto holders = static_cast<Value>(start.holders.size());
    switch (start.kind) {
      case Start::Kind::kFree:
        lists |= free_bit(slot);
        break;
      case Start::Kind::kOwned: {
        state.memory.set_initial(word_of(slot), make_word(0, kMutable, 0));
        Thread& owner = state.threads[start.holders[0]];
        owner.owned[owner.owned[0] == 0 ? 0 : 1] = byte(slot + 1);
        break;
      }
      case Start::Kind::kInactive:
        lists |= listed_bit(slot);
        [[fallthrough]];
      case Start::Kind::kReferenced:
        state.memory.set_initial(word_of(slot), make_word(holders, kPrimary, 0));
        state.memory.set_initial(high_of(slot), high(start.hash));
        state.memory.set_initial(low_of(slot), low(start.hash));
        state.memory.set_initial(index_of(start.hash), slot + 1);
        state.memory.set_initial_plain(payload_of(slot), start.hash);
        for (const int holder : start.holders) push(state.threads[holder], slot);
        break;
    }
  }
  state.memory.set_initial_plain(kLists, lists);
  for (int t = 0; t < kThreads; ++t) begin(state.threads[t], t);
  return state;
}

// Goes to the first access of the thread's operation, past operations that have nothing to work on.
void SlotProtocol::begin(Thread& thread, int index) const {
  const std::vector<Operation>& operations = scenario_.threads[index];
  thread.phase = thread.next = Phase::kEnd;
  thread.word = 0;
  thread.slot = 0;
  const std::uint8_t count = byte(static_cast<int>(operations.size()));
  for (; thread.operation < count; ++thread.operation) {
    const Operation& op = operations[thread.operation];
    const bool has_handle = thread.handle_count > 0;
    const bool has_slot = thread.owned[op.place & 1] != 0;
    if (has_handle) thread.slot = byte(top(thread));
    switch (op.kind) {
      case Kind::kMatch:
        thread.slot = 0;
        thread.phase = Phase::kMatchIndex;
        return;
      case Kind::kUpgrade:
        thread.slot = op.place;
        thread.phase = Phase::kMatchWord;
        return;
      case Kind::kCopy:
        if (!has_handle) continue;
        thread.phase = Phase::kCopyAdd;
        return;
      case Kind::kRead:
        if (!has_handle) continue;
        thread.phase = Phase::kReadPayload;
        return;
      case Kind::kDrop:
        if (!has_handle) continue;
        thread.phase = Phase::kDropSubtract;
        return;
      case Kind::kAllocate:
        if (has_slot) continue;
        thread.slot = 0;
        if (rules_.evict_looks_under_mutex) {
          lock_then(thread, Phase::kAllocatePick);
        } else {
          thread.phase = Phase::kAllocatePeek;
        }
        return;
      case Kind::kFill:
        if (!has_slot) continue;
        thread.slot = byte(thread.owned[op.place] - 1);
        thread.phase = Phase::kFillPayload;
        return;
      case Kind::kRegister:
      case Kind::kDiscard:
        if (!has_slot) continue;
        thread.slot = byte(thread.owned[op.place] - 1);
        if (op.kind == Kind::kRegister && rules_.hash_before_mutex) {
          thread.phase = Phase::kRegisterHash;
        } else {
          lock_then(thread, op.kind == Kind::kRegister ? Phase::kRegisterLookup : Phase::kDiscardWord);
        }
        return;
    }
  }
  thread.slot = 0;
}

void SlotProtocol::finish(Thread& thread, int index) const {
  ++thread.operation;
  begin(thread, index);
}

// Ends an operation that found nothing.
void SlotProtocol::give_up(Thread& thread, int index) const {
  if (operation(thread, index).on_failure == OnFailure::kEndThread)
    thread.operation = byte(static_cast<int>(scenario_.threads[index].size()) - 1);
  finish(thread, index);
}

bool SlotProtocol::done(const State& state, int thread) const {
  return state.threads[thread].operation >= scenario_.threads[thread].size();
}

bool SlotProtocol::enabled(const State& state, int thread) const {
  return state.threads[thread].phase != Phase::kLock || !state.memory.locked();
}

bool SlotProtocol::is_local(const State& state, int thread) const {
  const Phase phase = state.threads[thread].phase;
  return phase == Phase::kUnlock || phase == Phase::kMatchPayload || phase == Phase::kReadPayload ||
         phase == Phase::kFillPayload;
}

void SlotProtocol::step(State& state, Access& access) const {
  Thread& thread = state.threads[access.thread()];
  access.at(name(operation(thread, access.thread()).kind));
  switch (thread.phase) {
    case Phase::kEnd:
    case Phase::kGiveUp:
      break;
    case Phase::kLock:
      access.lock();
      thread.phase = std::exchange(thread.next, Phase::kEnd);
      break;
    case Phase::kUnlock:
      access.unlock(orders_.mutex_releases);
      thread.phase = std::exchange(thread.next, Phase::kEnd);
      if (thread.phase == Phase::kEnd) conclude(thread, access.thread());
      if (thread.phase == Phase::kGiveUp) give_up(thread, access.thread());
      break;
    case Phase::kMatchIndex:
    case Phase::kMatchWord:
    case Phase::kMatchHash:
    case Phase::kMatchHashLow:
    case Phase::kMatchExchange:
    case Phase::kMatchHashAgain:
    case Phase::kMatchHashAgainLow:
    case Phase::kMatchPayload:
      step_fast_match(thread, access);
      break;
    case Phase::kSlowIndex:
    case Phase::kSlowWord:
    case Phase::kSlowExchange:
      step_slow_match(thread, access);
      break;
    case Phase::kCopyAdd:
    case Phase::kReadPayload:
    case Phase::kDropSubtract:
    case Phase::kSettleWord:
      step_handle(state, thread, access);
      break;
    case Phase::kAllocatePeek:
    case Phase::kAllocatePick:
    case Phase::kAllocateHash:
    case Phase::kAllocateIndex:
    case Phase::kAllocateWord:
      step_allocate(state, thread, access);
      break;
    case Phase::kFillPayload:
    case Phase::kRegisterLookup:
    case Phase::kRegisterHash:
    case Phase::kRegisterHashLow:
    case Phase::kRegisterWord:
    case Phase::kRegisterIndex:
    case Phase::kDiscardWord:
      step_owned(thread, access);
      break;
  }
}

// Decides, from the word last seen, whether the fast path goes on.
void SlotProtocol::examine(Thread& thread, const Operation& op) const {
  const Value word = thread.word;
  const bool upgrades = op.kind == Kind::kUpgrade;
  bool usable = slot_state(word) == kPrimary && (refs(word) > 0 || !rules_.match_needs_a_reference);
  if (upgrades && rules_.upgrade_compares_generation) usable = usable && generation(word) == op.generation;
  if (usable) {
    thread.phase = upgrades || !rules_.match_compares_hash_before ? Phase::kMatchExchange : Phase::kMatchHash;
  } else {
    look_up_slowly(thread);
  }
}

void SlotProtocol::look_up_slowly(Thread& thread) const {
  thread.word = 0;
  thread.slot = 0;
  lock_then(thread, Phase::kSlowIndex);
}

void SlotProtocol::step_fast_match(Thread& thread, Access& access) const {
  const Operation& op = operation(thread, access.thread());
  switch (thread.phase) {
    case Phase::kMatchIndex: {
      const Value entry = access.load(index_of(op.hash), orders_.probe);
      if (entry == 0) {
        if (op.on_failure == OnFailure::kViolation) access.fail("match missed a hash that stayed registered");
        finish(thread, access.thread());
        return;
      }
      thread.slot = byte(static_cast<int>(entry) - 1);
      thread.phase = Phase::kMatchWord;
      return;
    }
    case Phase::kMatchWord:
      thread.word = access.load(word_of(thread.slot), orders_.probe_word);
      examine(thread, op);
      return;
    case Phase::kMatchHash:
      if (access.load(high_of(thread.slot), orders_.probe) != high(op.hash)) return look_up_slowly(thread);
      thread.phase = Phase::kMatchHashLow;
      return;
    case Phase::kMatchHashLow:
      if (access.load(low_of(thread.slot), orders_.probe) != low(op.hash)) return look_up_slowly(thread);
      thread.phase = Phase::kMatchExchange;
      return;
    case Phase::kMatchExchange: {
      const Access::Exchanged result = access.compare_exchange(
          word_of(thread.slot), thread.word, thread.word + 1, orders_.match, orders_.probe_word);
      if (!result.done) {
        thread.word = result.seen;
        examine(thread, op);
        return;
      }
      push(thread, thread.slot);
      thread.word = 0;
      thread.phase = op.kind == Kind::kMatch && rules_.match_compares_hash_after ? Phase::kMatchHashAgain
                                                                                 : Phase::kMatchPayload;
      return;
    }
    case Phase::kMatchHashAgain:
    case Phase::kMatchHashAgainLow: {
      const bool is_high = thread.phase == Phase::kMatchHashAgain;
      const Value half = access.load(is_high ? high_of(thread.slot) : low_of(thread.slot), orders_.probe);
      if (half == (is_high ? high(op.hash) : low(op.hash))) {
        thread.phase = is_high ? Phase::kMatchHashAgainLow : Phase::kMatchPayload;
      } else {
        thread.undoing = 1;
        thread.phase = Phase::kDropSubtract;
      }
      return;
    }
    default:  // kMatchPayload
      if (access.read(payload_of(thread.slot)) != op.hash) access.fail("matched a block of another hash");
      finish(thread, access.thread());
      return;
  }
}

void SlotProtocol::step_slow_match(Thread& thread, Access& access) const {
  const Operation& op = operation(thread, access.thread());
  switch (thread.phase) {
    case Phase::kSlowIndex: {
      const Value entry = access.load(index_of(op.hash), std::memory_order_relaxed);
      if (entry == 0) {
        if (op.on_failure == OnFailure::kViolation) access.fail("match missed a hash that stayed registered");
        unlock_then(thread, Phase::kEnd);
        return;
      }
      thread.slot = byte(static_cast<int>(entry) - 1);
      thread.phase = rules_.revive_adds ? Phase::kSlowExchange : Phase::kSlowWord;
      return;
    }
    case Phase::kSlowWord:
      thread.word = access.load(word_of(thread.slot), std::memory_order_relaxed);
      thread.phase = Phase::kSlowExchange;
      return;
    default: {  // kSlowExchange
      if (rules_.revive_adds) {
        thread.word = access.fetch_add(word_of(thread.slot), 1, orders_.revive);
      } else {
        const Access::Exchanged result = access.compare_exchange(
            word_of(thread.slot), thread.word, thread.word + 1, orders_.revive, std::memory_order_relaxed);
        if (!result.done) {
          thread.word = result.seen;
          return;
        }
      }
      if (slot_state(thread.word) != kPrimary) access.fail("the index led to a slot that is not registered");
      if (refs(thread.word) == 0 && rules_.revive_unlists) {
        const Value lists = access.read(kLists);
        if ((lists & listed_bit(thread.slot)) != 0) access.write(kLists, lists & ~listed_bit(thread.slot));
      }
      push(thread, thread.slot);
      thread.word = 0;
      unlock_then(thread, Phase::kMatchPayload);
      return;
    }
  }
}

// Ends an operation; where a drop was the undo of a fast match, goes on to the slow path instead.
void SlotProtocol::conclude(Thread& thread, int index) const {
  if (thread.undoing == 0) return finish(thread, index);
  thread.undoing = 0;
  look_up_slowly(thread);
}

void SlotProtocol::step_handle(State& state, Thread& thread, Access& access) const {
  switch (thread.phase) {
    case Phase::kCopyAdd:
      access.fetch_add(word_of(thread.slot), 1, orders_.copy);
      push(thread, thread.slot);
      finish(thread, access.thread());
      return;
    case Phase::kReadPayload: {
      const auto payload = static_cast<int>(access.read(payload_of(thread.slot)));
      if (payload != last_hash(state.memory, thread.slot)) access.fail("a held block changed its payload");
      finish(thread, access.thread());
      return;
    }
    case Phase::kDropSubtract: {
      const Value before = access.fetch_add(word_of(thread.slot), -1, orders_.drop);
      pop(thread);
      const bool settles = thread.undoing != 0 ? rules_.undo_settles : rules_.drop_settles;
      if (refs(before) == 1 && settles) {
        lock_then(thread, Phase::kSettleWord);
      } else {
        conclude(thread, access.thread());
      }
      return;
    }
    default: {  // kSettleWord
      const Value word = access.load(word_of(thread.slot), orders_.settle);
      if ((slot_state(word) == kPrimary && refs(word) == 0) || !rules_.settle_looks_again) {
        const Value lists = access.read(kLists);
        const bool listed = (lists & listed_bit(thread.slot)) != 0;
        if (!listed) access.write(kLists, lists | listed_bit(thread.slot));
        if (listed && !rules_.settle_sees_listed) access.fail("a slot was listed twice");
      }
      unlock_then(thread, Phase::kEnd);
      return;
    }
  }
}

void SlotProtocol::step_allocate(State& state, Thread& thread, Access& access) const {
  const Operation& op = operation(thread, access.thread());
  switch (thread.phase) {
    case Phase::kAllocatePeek: {
      const Value word = access.load(word_of(0), std::memory_order_relaxed);
      if (slot_state(word) == kPrimary && refs(word) == 0) {
        lock_then(thread, Phase::kAllocateHash);
      } else {
        give_up(thread, access.thread());
      }
      return;
    }
    case Phase::kAllocatePick: {
      const Value lists = access.read(kLists);
      for (int slot = 0; slot < kSlots; ++slot) {
        if ((lists & free_bit(slot)) == 0) continue;
        access.write(kLists, lists & ~free_bit(slot));
        thread.slot = byte(slot);
        thread.phase = Phase::kAllocateWord;
        return;
      }
      if (!rules_.evict_picks_from_list) {
        const Value word = access.load(word_of(0), std::memory_order_relaxed);
        if (slot_state(word) == kPrimary && refs(word) == 0) {
          thread.phase = Phase::kAllocateHash;
          return;
        }
      }
      for (int slot = 0; slot < kSlots && rules_.evict_picks_from_list; ++slot) {
        if ((lists & listed_bit(slot)) == 0) continue;
        thread.slot = byte(slot);
        thread.phase = Phase::kAllocateHash;
        return;
      }
      if (op.on_failure == OnFailure::kViolation)
        access.fail("allocate found nothing though no match had succeeded");
      unlock_then(thread, Phase::kGiveUp);
      return;
    }
    case Phase::kAllocateHash: {
      const Value lists = access.read(kLists);
      if ((lists & listed_bit(thread.slot)) != 0) access.write(kLists, lists & ~listed_bit(thread.slot));
      thread.word = access.load(high_of(thread.slot), std::memory_order_relaxed);
      thread.phase = Phase::kAllocateIndex;
      return;
    }
    case Phase::kAllocateIndex: {
      const int hash = hash_from(thread.word, access.load(low_of(thread.slot), std::memory_order_relaxed));
      thread.word = 0;
      if (hash == 0) return access.fail("evict saw no hash in a registered slot");
      if (rules_.evict_empties_index) access.store(index_of(hash), 0, std::memory_order_relaxed);
      thread.phase = Phase::kAllocateWord;
      return;
    }
    default: {  // kAllocateWord
      const Value word = state.memory.last(word_of(thread.slot));
      if (refs(word) != 0) access.fail("evicted a slot that is referenced");
      const Value next = generation(word) + (rules_.evict_advances_generation ? 1 : 0);
      access.store(word_of(thread.slot), make_word(0, kMutable, next), orders_.evict);
      thread.owned[op.place] = byte(thread.slot + 1);
      unlock_then(thread, Phase::kEnd);
      return;
    }
  }
}

void SlotProtocol::step_owned(Thread& thread, Access& access) const {
  const Operation& op = operation(thread, access.thread());
  const int slot = thread.slot;
  switch (thread.phase) {
    case Phase::kFillPayload:
      access.write(payload_of(slot), op.hash);
      finish(thread, access.thread());
      return;
    case Phase::kRegisterLookup: {
      const Value entry = access.load(index_of(op.hash), std::memory_order_relaxed);
      if (entry != 0 && rules_.register_looks_for_primary) {
        thread.slot = byte(static_cast<int>(entry) - 1);
        thread.phase = rules_.revive_adds ? Phase::kSlowExchange : Phase::kSlowWord;
      } else {
        const bool hash_next = rules_.register_stores_hash_first && !rules_.hash_before_mutex;
        thread.phase = hash_next ? Phase::kRegisterHash : Phase::kRegisterWord;
      }
      return;
    }
    case Phase::kRegisterHash:
      access.store(high_of(slot), high(op.hash), std::memory_order_relaxed);
      thread.phase = Phase::kRegisterHashLow;
      return;
    case Phase::kRegisterHashLow:
      access.store(low_of(slot), low(op.hash), std::memory_order_relaxed);
      if (rules_.hash_before_mutex) return lock_then(thread, Phase::kRegisterLookup);
      thread.phase = rules_.register_stores_hash_first ? Phase::kRegisterWord : Phase::kRegisterIndex;
      return;
    case Phase::kRegisterWord: {
      const Value word = access.load(word_of(slot), std::memory_order_relaxed);
      access.store(word_of(slot), make_word(1, kPrimary, generation(word)), orders_.publish);
      thread.owned[op.place] = 0;
      push(thread, slot);
      thread.phase = rules_.register_stores_hash_first ? Phase::kRegisterIndex : Phase::kRegisterHash;
      return;
    }
    case Phase::kRegisterIndex:
      access.store(index_of(op.hash), slot + 1, std::memory_order_relaxed);
      unlock_then(thread, Phase::kEnd);
      return;
    default: {  // kDiscardWord
      const Value word = access.load(word_of(slot), std::memory_order_relaxed);
      access.store(word_of(slot), make_word(0, kReset, generation(word)), std::memory_order_relaxed);
      access.write(kLists, access.read(kLists) | free_bit(slot));
      thread.owned[op.place] = 0;
      unlock_then(thread, Phase::kEnd);
      return;
    }
  }
}

std::optional<std::string> SlotProtocol::check(const State& state) const {
  const Memory& memory = state.memory;
  const Value lists = memory.plain(kLists);
  for (int slot = 0; slot < kSlots; ++slot) {
    Value handles = 0;
    int places = 0;
    for (const Thread& thread : state.threads) {
      for (int i = 0; i < thread.handle_count; ++i) handles += thread.handles[i] == slot ? 1 : 0;
      for (const std::uint8_t owned : thread.owned) places += owned == slot + 1 ? 1 : 0;
    }
    const Value word = memory.last(word_of(slot));
    const bool primary = slot_state(word) == kPrimary;
    const bool listed = (lists & listed_bit(slot)) != 0;
    const bool free = (lists & free_bit(slot)) != 0;
    if (primary && refs(word) != handles) return "the count differs from the handles held";
    if (!primary && handles != 0) return "a handle on a slot that is not registered";
    if (memory.locked()) continue;
    if (listed && !(primary && refs(word) == 0)) return "a listed slot is referenced or not registered";
    if (primary && (free || places != 0)) return "a registered slot is owned or free";
    if (!primary && places + (free ? 1 : 0) != 1) return "a slot is not owned once or free";
    if (primary) {
      const int hash = last_hash(memory, slot);
      if (hash == 0) return "a primary has no hash";
      for (int other = 0; other < slot; ++other)
        if (slot_state(memory.last(word_of(other))) == kPrimary && last_hash(memory, other) == hash)
          return "two primaries for one hash";
      if (static_cast<int>(memory.last(index_of(hash))) != slot + 1) return "a primary is not indexed";
    }
  }
  if (memory.locked()) return std::nullopt;
  for (int hash = 1; hash <= kHashes; ++hash) {
    const auto slot = static_cast<int>(memory.last(index_of(hash))) - 1;
    if (slot < 0) continue;
    if (slot_state(memory.last(word_of(slot))) != kPrimary || last_hash(memory, slot) != hash)
      return "an index entry leads to a slot not registered under its hash";
  }
  return std::nullopt;
}

std::optional<std::string> SlotProtocol::check_final(const State& state) const {
  if (state.memory.locked()) return "the mutex is held at the end";
  for (int slot = 0; slot < kSlots; ++slot) {
    const Value word = state.memory.last(word_of(slot));
    const bool listed = (state.memory.plain(kLists) & listed_bit(slot)) != 0;
    if (slot_state(word) == kPrimary && refs(word) == 0 && !listed)
      return "a slot is lost: registered, not referenced, not listed";
  }
  return std::nullopt;
}

void SlotProtocol::append_to(const State& state, std::string& key) const {
  Memory::append_bytes(key, state.threads);
}

std::string SlotProtocol::describe(int location, Value value) {
  const auto number = [](auto n) { return std::to_string(n); };
  if (location < 0) {
    const int plain = -1 - location;
    if (plain == kLists) return "lists = " + number(value);
    return "payload[" + number(plain) + "] = H" + number(value);
  }
  if (location < kSlots) {
    static constexpr const char* kNames[] = {"Reset", "Mutable", "Primary"};
    return "word[" + number(location) + "] = {" + kNames[slot_state(value)] + ", refs " +
           number(refs(value)) + ", gen " + number(generation(value)) + "}";
  }
  if (location < index_of(1)) {
    const int slot = (location - kSlots) / 2;
    return "hash[" + number(slot) + (location == high_of(slot) ? "].high = " : "].low = ") + number(value);
  }
  return "index[H" + number(location - index_of(1) + 1) +
         "] = " + (value == 0 ? std::string("none") : "slot " + number(value - 1));
}

}  // namespace ashlar::block::model
