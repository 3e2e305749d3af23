// A thread is a phase (the access it makes next) and a few registers. step() makes that access and sets the
// next phase; what lies between two accesses belongs to the step before it. Lists are read and written in the
// step of the atomic access they go with: both are under the mutex, so that no other thread can tell.
#include <utility>

#include "block/model/slot_layout.h"
#include "block/model/slot_protocol_model.h"

namespace ashlar::block::model {
namespace {

using Kind = Operation::Kind;
using OnFailure = Operation::OnFailure;
using Comparison = Rules::Comparison;

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
      if (thread.phase == Phase::kEnd) finish(thread, access.thread());
      if (thread.phase == Phase::kGiveUp) give_up(thread, access.thread());
      break;
    case Phase::kMatchIndex:
    case Phase::kMatchWord:
    case Phase::kMatchHash:
    case Phase::kMatchHashLow:
    case Phase::kMatchExchange:
    case Phase::kMatchPayload:
      step_fast_match(state, thread, access);
      break;
    case Phase::kHintHash:
    case Phase::kHintHashLow:
    case Phase::kHintWord:
    case Phase::kSlowIndex:
    case Phase::kSlowAdd:
      step_slow_match(state, thread, access);
      break;
    case Phase::kCopyAdd:
    case Phase::kReadPayload:
    case Phase::kDropSubtract:
    case Phase::kSettleWord:
    case Phase::kSettleDuplicate:
      step_handle(state, thread, access);
      break;
    case Phase::kGiveHash:
    case Phase::kGiveIndex:
    case Phase::kGiveIndexAgain:
    case Phase::kGiveWord:
    case Phase::kGiveWordStore:
    case Phase::kGivenWord:
      step_give_way(thread, access);
      break;
    case Phase::kAllocatePeek:
    case Phase::kAllocatePick:
    case Phase::kAllocateHash:
    case Phase::kAllocateIndex:
    case Phase::kAllocateWord:
      step_allocate(state, thread, access);
      break;
    case Phase::kFillPayload:
    case Phase::kFillHash:
    case Phase::kFillHashLow:
    case Phase::kRegisterLookup:
    case Phase::kRegisterWord:
    case Phase::kRegisterIndex:
    case Phase::kDiscardWord:
      step_owned(thread, access);
      break;
    case Phase::kTwinLook:
    case Phase::kTwinWord:
    case Phase::kTakeIndex:
    case Phase::kTakeIndexAgain:
    case Phase::kTakeWord:
    case Phase::kEmptiedWord:
    case Phase::kDemotedWord:
      step_twin(state, thread, access);
      break;
  }
}

Comparison SlotProtocol::comparison(const Operation& op) const {
  if (op.kind != Kind::kUpgrade) return rules_.match_compares_hash;
  return rules_.upgrade_compares_hash ? Comparison::kBefore : Comparison::kNever;
}

// Decides, from the word last seen, whether the fast path goes on. `again` is true after an exchange that
// failed.
void SlotProtocol::examine(Thread& thread, const Operation& op, bool again) const {
  const Value word = thread.word;
  const bool registered = op.kind == Kind::kUpgrade ? is_registered(word) : slot_state(word) == kPrimary;
  const bool usable = registered && (refs(word) > 0 || !rules_.match_needs_a_reference);
  if (!usable) return look_up_slowly(thread);
  const Comparison rule = comparison(op);
  const bool compares = rule == Comparison::kBefore || (rule == Comparison::kBeforeTheFirst && !again);
  thread.phase = compares ? Phase::kMatchHash : Phase::kMatchExchange;
}

// The slot the fast path was at is a hint for the slow one.
void SlotProtocol::look_up_slowly(Thread& thread) const {
  thread.word = 0;
  lock_then(thread, rules_.hint_compares_hash ? Phase::kHintHash : Phase::kHintWord);
}

void SlotProtocol::step_fast_match(State& state, Thread& thread, Access& access) const {
  const Operation& op = operation(thread, access.thread());
  const bool upgrades = op.kind == Kind::kUpgrade;
  switch (thread.phase) {
    case Phase::kMatchIndex: {
      const Value entry = access.load(index_of(op.hash), orders_.probe);
      if (entry == 0) {
        if (op.on_failure == OnFailure::kViolation) access.fail("match missed a hash that stayed registered");
        give_up(thread, access.thread());
        return;
      }
      thread.slot = byte(static_cast<int>(entry) - 1);
      thread.phase = Phase::kMatchWord;
      return;
    }
    case Phase::kMatchWord:
      thread.word = access.load(word_of(thread.slot), upgrades ? orders_.upgrade : orders_.match_load);
      examine(thread, op, /*again=*/false);
      return;
    case Phase::kMatchHash:
    case Phase::kMatchHashLow: {
      const bool is_high = thread.phase == Phase::kMatchHash;
      const Value half = access.load(is_high ? high_of(thread.slot) : low_of(thread.slot), orders_.probe);
      const bool counted = comparison(op) == Comparison::kAfter;
      if (half != (is_high ? high(op.hash) : low(op.hash))) {
        if (counted) pop(thread);
        look_up_slowly(thread);
      } else if (is_high) {
        thread.phase = Phase::kMatchHashLow;
      } else {
        thread.phase = counted ? Phase::kMatchPayload : Phase::kMatchExchange;
      }
      return;
    }
    case Phase::kMatchExchange: {
      const Access::Exchanged result =
          access.compare_exchange(word_of(thread.slot), thread.word, thread.word + 1,
                                  upgrades ? orders_.upgrade : orders_.match_exchange,
                                  upgrades ? orders_.upgrade : orders_.match_retry);
      if (!result.done) {
        thread.word = result.seen;
        examine(thread, op, /*again=*/true);
        return;
      }
      thread.word = 0;
      push(thread, thread.slot);
      const bool compares = comparison(op) == Comparison::kAfter;
      if (!compares && last_hash(state.memory, thread.slot) != op.hash)
        access.fail("wrong block: a match counted itself on a block of another hash");
      thread.phase = compares ? Phase::kMatchHash : Phase::kMatchPayload;
      return;
    }
    default:  // kMatchPayload
      if (access.read(payload_of(thread.slot)) != op.hash)
        access.fail("wrong block: a match returned the payload of another hash");
      finish(thread, access.thread());
      return;
  }
}

void SlotProtocol::step_slow_match(State& state, Thread& thread, Access& access) const {
  const Operation& op = operation(thread, access.thread());
  switch (thread.phase) {
    case Phase::kHintHash:
    case Phase::kHintHashLow: {
      const bool is_high = thread.phase == Phase::kHintHash;
      const Value half = access.load(is_high ? high_of(thread.slot) : low_of(thread.slot), orders_.probe);
      if (half != (is_high ? high(op.hash) : low(op.hash))) {
        thread.phase = Phase::kSlowIndex;
      } else if (is_high) {
        thread.phase = Phase::kHintHashLow;
      } else {
        thread.phase = rules_.hint_needs_a_primary ? Phase::kHintWord : Phase::kSlowAdd;
      }
      return;
    }
    case Phase::kHintWord: {
      const Value word = access.load(word_of(thread.slot), orders_.probe);
      thread.phase = slot_state(word) == kPrimary ? Phase::kSlowAdd : Phase::kSlowIndex;
      return;
    }
    case Phase::kSlowIndex: {
      const Value entry = access.load(index_of(op.hash), orders_.probe);
      if (entry == 0) {
        if (op.on_failure == OnFailure::kViolation) access.fail("match missed a hash that stayed registered");
        unlock_then(thread, Phase::kGiveUp);
        return;
      }
      thread.slot = byte(static_cast<int>(entry) - 1);
      thread.phase = Phase::kSlowAdd;
      return;
    }
    default: {  // kSlowAdd
      const Value before = access.fetch_add(word_of(thread.slot), 1, orders_.revive);
      if (slot_state(before) != kPrimary)
        access.fail("the slow path counted on a slot that is not registered");
      if (last_hash(state.memory, thread.slot) != op.hash)
        access.fail("wrong block: the slow path counted on a block of another hash");
      if (refs(before) == 0 && rules_.revive_unlists) {
        const Value lists = access.read(kLists);
        if ((lists & listed_bit(thread.slot)) != 0) access.write(kLists, lists & ~listed_bit(thread.slot));
      }
      push(thread, thread.slot);
      unlock_then(thread, Phase::kMatchPayload);
      return;
    }
  }
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
      if (refs(before) == 1 && rules_.drop_settles) {
        lock_then(thread, Phase::kSettleWord);
      } else {
        finish(thread, access.thread());
      }
      return;
    }
    case Phase::kSettleDuplicate: {
      const Value word = access.load(word_of(thread.slot), orders_.probe);
      access.store(word_of(thread.slot), make_word(0, kReset, generation(word)), orders_.evict);
      const Value lists = access.read(kLists);
      access.write(kLists, (lists & ~duplicate_bit(thread.slot)) | free_bit(thread.slot));
      unlock_then(thread, Phase::kEnd);
      return;
    }
    default: {  // kSettleWord
      const Value word = access.load(word_of(thread.slot), orders_.settle);
      if (slot_state(word) == kDuplicate && refs(word) == 0) {
        thread.phase = Phase::kSettleDuplicate;
        return;
      }
      const bool has_twin = (access.read(kLists) & duplicate_bit(twin_of(thread.slot))) != 0;
      if (slot_state(word) == kPrimary && refs(word) == 0 && has_twin && rules_.primary_gives_way) {
        thread.phase = Phase::kGiveHash;
        return;
      }
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

// The settled slot is emptied, and its duplicate becomes the primary.
void SlotProtocol::step_give_way(Thread& thread, Access& access) const {
  const int heir = twin_of(thread.slot);
  switch (thread.phase) {
    case Phase::kGiveHash:
      thread.word = access.load(high_of(thread.slot), orders_.probe);
      thread.phase = Phase::kGiveIndex;
      return;
    case Phase::kGiveIndex: {
      const int hash = hash_from(thread.word, access.load(low_of(thread.slot), orders_.probe));
      if (hash == 0) return access.fail("a primary that gives way has no hash");
      const bool at_once = rules_.place_passes_in_one_store;
      access.store(index_of(hash), at_once ? heir + 1 : 0, orders_.probe);
      thread.word = at_once ? 0 : static_cast<Value>(hash);
      thread.phase = at_once ? Phase::kGiveWord : Phase::kGiveIndexAgain;
      return;
    }
    case Phase::kGiveIndexAgain:
      access.store(index_of(static_cast<int>(thread.word)), heir + 1, orders_.probe);
      thread.word = 0;
      thread.phase = Phase::kGiveWord;
      return;
    case Phase::kGiveWord:
      if (!rules_.heir_is_made_by_addition) {
        thread.word = access.load(word_of(heir), orders_.settle);
        thread.phase = Phase::kGiveWordStore;
        return;
      }
      access.fetch_add(word_of(heir), kBecomePrimary, orders_.promote);
      thread.phase = Phase::kGivenWord;
      return;
    case Phase::kGiveWordStore:
      access.store(word_of(heir), make_word(refs(thread.word), kPrimary, generation(thread.word)),
                   orders_.promote);
      thread.word = 0;
      thread.phase = Phase::kGivenWord;
      return;
    default: {  // kGivenWord
      const Value word = access.load(word_of(thread.slot), orders_.probe);
      access.store(word_of(thread.slot), make_word(0, kReset, generation(word)), orders_.evict);
      const Value lists = access.read(kLists);
      access.write(kLists, (lists & ~duplicate_bit(heir)) | free_bit(thread.slot));
      unlock_then(thread, Phase::kEnd);
      return;
    }
  }
}

void SlotProtocol::step_allocate(State& state, Thread& thread, Access& access) const {
  const Operation& op = operation(thread, access.thread());
  switch (thread.phase) {
    case Phase::kAllocatePeek: {
      const Value word = access.load(word_of(0), orders_.probe);
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
        const Value word = access.load(word_of(0), orders_.probe);
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
      thread.word = access.load(high_of(thread.slot), orders_.probe);
      thread.phase = Phase::kAllocateIndex;
      return;
    }
    case Phase::kAllocateIndex: {
      const int hash = hash_from(thread.word, access.load(low_of(thread.slot), orders_.probe));
      thread.word = 0;
      if (hash == 0) return access.fail("evict saw no hash in a registered slot");
      if (rules_.evict_empties_index) access.store(index_of(hash), 0, orders_.probe);
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
      if (!rules_.hash_before_word) return finish(thread, access.thread());
      thread.phase = Phase::kFillHash;
      return;
    case Phase::kFillHash:
      access.store(high_of(slot), high(op.hash), orders_.probe);
      thread.phase = Phase::kFillHashLow;
      return;
    case Phase::kFillHashLow:
      access.store(low_of(slot), low(op.hash), orders_.probe);
      if (op.kind == Kind::kFill) return finish(thread, access.thread());
      if (rules_.index_before_word) return unlock_then(thread, Phase::kEnd);
      thread.phase = Phase::kRegisterIndex;
      return;
    case Phase::kRegisterLookup: {
      const Value entry = access.load(index_of(op.hash), orders_.probe);
      if (entry != 0 && op.twin != Operation::Twin::kPrimary) {
        thread.phase = Phase::kTwinLook;
      } else if (entry != 0 && rules_.register_looks_for_primary) {
        thread.slot = byte(static_cast<int>(entry) - 1);
        thread.phase = Phase::kSlowAdd;
      } else {
        thread.phase = rules_.index_before_word ? Phase::kRegisterIndex : Phase::kRegisterWord;
      }
      return;
    }
    case Phase::kRegisterWord: {
      const Value word = access.load(word_of(slot), orders_.probe);
      access.store(word_of(slot), make_word(1, kPrimary, generation(word)), orders_.publish);
      thread.owned[op.place] = 0;
      push(thread, slot);
      if (!rules_.hash_before_word) {
        thread.phase = Phase::kFillHash;
      } else if (rules_.index_before_word) {
        unlock_then(thread, Phase::kEnd);
      } else {
        thread.phase = Phase::kRegisterIndex;
      }
      return;
    }
    case Phase::kRegisterIndex:
      access.store(index_of(op.hash), slot + 1, orders_.probe);
      if (rules_.index_before_word) {
        thread.phase = Phase::kRegisterWord;
      } else {
        unlock_then(thread, Phase::kEnd);
      }
      return;
    default: {  // kDiscardWord
      const Value word = access.load(word_of(slot), orders_.probe);
      access.store(word_of(slot), make_word(0, kReset, generation(word)), orders_.evict);
      access.write(kLists, access.read(kLists) | free_bit(slot));
      thread.owned[op.place] = 0;
      unlock_then(thread, Phase::kEnd);
      return;
    }
  }
}

// The hash of an owned slot has a primary, in the other slot.
void SlotProtocol::step_twin(State& state, Thread& thread, Access& access) const {
  const Operation& op = operation(thread, access.thread());
  const int slot = thread.slot;
  const int primary = twin_of(slot);
  switch (thread.phase) {
    case Phase::kTwinLook: {
      const Value lists = access.read(kLists);
      const bool listed = (lists & listed_bit(primary)) != 0;
      const bool idle =
          !rules_.place_is_taken_from_list && refs(access.load(word_of(primary), orders_.probe)) == 0;
      if (listed) access.write(kLists, lists & ~listed_bit(primary));
      thread.word = listed || idle ? 1 : 0;  // whether the primary is emptied
      const bool takes = thread.word != 0 || op.twin == Operation::Twin::kTakesPlace;
      thread.phase = takes ? Phase::kTakeIndex : Phase::kTwinWord;
      return;
    }
    case Phase::kTwinWord: {
      const Value lists = access.read(kLists);
      const Value word = access.load(word_of(slot), orders_.probe);
      access.store(word_of(slot), make_word(1, kDuplicate, generation(word)), orders_.publish);
      access.write(kLists, lists | duplicate_bit(slot));
      thread.owned[op.place] = 0;
      push(thread, slot);
      unlock_then(thread, Phase::kEnd);
      return;
    }
    case Phase::kTakeIndex: {
      const bool at_once = rules_.place_passes_in_one_store;
      access.store(index_of(op.hash), at_once ? slot + 1 : 0, orders_.probe);
      thread.phase = at_once ? Phase::kTakeWord : Phase::kTakeIndexAgain;
      return;
    }
    case Phase::kTakeIndexAgain:
      access.store(index_of(op.hash), slot + 1, orders_.probe);
      thread.phase = Phase::kTakeWord;
      return;
    case Phase::kTakeWord: {
      const Value word = access.load(word_of(slot), orders_.probe);
      access.store(word_of(slot), make_word(1, kPrimary, generation(word)), orders_.publish);
      thread.owned[op.place] = 0;
      push(thread, slot);
      thread.phase = std::exchange(thread.word, 0) != 0 ? Phase::kEmptiedWord : Phase::kDemotedWord;
      return;
    }
    case Phase::kDemotedWord:
      access.fetch_add(word_of(primary), -kBecomePrimary, orders_.revive);
      access.write(kLists, access.read(kLists) | duplicate_bit(primary));
      unlock_then(thread, Phase::kEnd);
      return;
    default: {  // kEmptiedWord
      const Value word = state.memory.last(word_of(primary));
      if (refs(word) != 0) access.fail("took the place of a slot that is referenced");
      access.store(word_of(primary), make_word(0, kReset, generation(word)), orders_.evict);
      access.write(kLists, access.read(kLists) | free_bit(primary));
      unlock_then(thread, Phase::kEnd);
      return;
    }
  }
}

}  // namespace ashlar::block::model
