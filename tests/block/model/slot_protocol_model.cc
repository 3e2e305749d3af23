// What surrounds the steps: the operations, the start, the invariants and the words of traces.
#include "block/model/slot_protocol_model.h"

#include <utility>

#include "block/model/slot_layout.h"

namespace ashlar::block::model {
namespace {

using Kind = Operation::Kind;
using OnFailure = Operation::OnFailure;

}  // namespace

Operation match(int hash) {
  return {.kind = Kind::kMatch, .hash = byte(hash)};
}
Operation match_or_end(int hash) {
  return {.kind = Kind::kMatch, .hash = byte(hash), .on_failure = OnFailure::kEndThread};
}
Operation must_match(int hash) {
  return {.kind = Kind::kMatch, .hash = byte(hash), .on_failure = OnFailure::kViolation};
}
Operation upgrade(int slot, int hash) {
  return {.kind = Kind::kUpgrade, .hash = byte(hash), .place = byte(slot)};
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
Operation enroll_over(int hash, int place) {
  return {.kind = Kind::kRegister,
          .hash = byte(hash),
          .place = byte(place),
          .twin = Operation::Twin::kTakesPlace};
}
Operation enroll_beside(int hash, int place) {
  return {.kind = Kind::kRegister,
          .hash = byte(hash),
          .place = byte(place),
          .twin = Operation::Twin::kStaysBehind};
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
        lock_then(thread, op.kind == Kind::kRegister ? Phase::kRegisterLookup : Phase::kDiscardWord);
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
    const bool duplicate = slot_state(word) == kDuplicate;
    const bool registered = primary || duplicate;
    const bool listed = (lists & listed_bit(slot)) != 0;
    const bool free = (lists & free_bit(slot)) != 0;
    if (registered && refs(word) != handles) return "the count differs from the handles held";
    if (!registered && handles != 0) return "a handle on a slot that is not registered";
    if (memory.locked()) continue;
    if (listed && !(primary && refs(word) == 0)) return "a listed slot is referenced or not registered";
    if (listed && (lists & duplicate_bit(twin_of(slot))) != 0) return "a listed slot has a duplicate";
    if (registered && (free || places != 0)) return "a registered slot is owned or free";
    if (!registered && places + (free ? 1 : 0) != 1) return "a slot is not owned once or free";
    if (duplicate != ((lists & duplicate_bit(slot)) != 0)) return "a duplicate is not known as one";
    if (duplicate && (last_hash(memory, slot) != last_hash(memory, twin_of(slot)) ||
                      slot_state(memory.last(word_of(twin_of(slot)))) != kPrimary))
      return "a duplicate without a primary";
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
    if (slot_state(word) == kDuplicate && refs(word) == 0)
      return "a slot is lost: a duplicate that nobody refers to";
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
    static constexpr const char* kNames[] = {"Reset", "Mutable", "Primary", "Duplicate"};
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
