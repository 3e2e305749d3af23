// What the two files of the model share: where things lie in memory, and the phases of a thread.
#pragma once

#include <cstdint>

#include "block/model/slot_protocol_model.h"

namespace ashlar::block::model {

// The access a thread makes next.
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
  kMatchPayload,
  kHintHash,
  kHintHashLow,
  kHintWord,
  kSlowIndex,
  kSlowAdd,
  kCopyAdd,
  kReadPayload,
  kDropSubtract,
  kSettleWord,
  kSettleDuplicate,
  kGiveHash,
  kGiveIndex,
  kGiveIndexAgain,
  kGiveWord,
  kGiveWordStore,
  kGivenWord,
  kAllocatePeek,
  kAllocatePick,
  kAllocateHash,
  kAllocateIndex,
  kAllocateWord,
  kFillPayload,
  kFillHash,
  kFillHashLow,
  kRegisterLookup,
  kRegisterWord,
  kRegisterIndex,
  kTwinLook,
  kTwinWord,
  kTakeIndex,
  kTakeIndexAgain,
  kTakeWord,
  kEmptiedWord,
  kDemotedWord,
  kDiscardWord,
};

using Phase = SlotProtocol::Phase;

enum SlotState : Value { kReset, kMutable, kPrimary, kDuplicate };

constexpr Value make_word(Value refs, SlotState state, Value generation) {
  return refs | state << 8 | generation << 16;
}
constexpr Value refs(Value word) {
  return word & 0xff;
}
constexpr SlotState slot_state(Value word) {
  return static_cast<SlotState>(word >> 8 & 0xff);
}
constexpr bool is_registered(Value word) {
  return slot_state(word) == kPrimary || slot_state(word) == kDuplicate;
}
// Added to the word of a duplicate, it makes the duplicate a primary.
inline constexpr int kBecomePrimary = (static_cast<int>(kPrimary) - static_cast<int>(kDuplicate)) * (1 << 8);
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
inline int last_hash(const Memory& memory, int slot) {
  return hash_from(memory.last(high_of(slot)), memory.last(low_of(slot)));
}

// Plain locations.
constexpr int payload_of(int slot) {
  return slot;
}
inline constexpr int kLists = kSlots;
static_assert(kLists < kPlainLocations);

// The other block of a hash that has two.
constexpr int twin_of(int slot) {
  static_assert(kSlots == 2);
  return 1 - slot;
}

constexpr Value listed_bit(int slot) {
  return 1U << slot;
}
constexpr Value free_bit(int slot) {
  return 1U << (8 + slot);
}

constexpr Value duplicate_bit(int slot) {
  return 1U << (16 + slot);
}

constexpr std::uint8_t byte(int value) {
  return static_cast<std::uint8_t>(value);
}

inline void push(SlotProtocol::Thread& thread, int slot) {
  thread.handles[thread.handle_count++] = byte(slot);
}
inline int top(const SlotProtocol::Thread& thread) {
  return thread.handles[thread.handle_count - 1];
}
inline void pop(SlotProtocol::Thread& thread) {
  thread.handles[--thread.handle_count] = 0;
}

inline void lock_then(SlotProtocol::Thread& thread, Phase next) {
  thread.phase = Phase::kLock;
  thread.next = next;
}
inline void unlock_then(SlotProtocol::Thread& thread, Phase next) {
  thread.phase = Phase::kUnlock;
  thread.next = next;
}

}  // namespace ashlar::block::model
