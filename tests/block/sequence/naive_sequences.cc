#include "block/sequence/naive_sequences.h"

#include <algorithm>
#include <utility>

namespace ashlar::block::sequences {

using Reason = SequenceError::Reason;
using Room = AllocationRefusal::Reason;

NaiveSequences::NaiveSequences(const NaiveOptions& options)
    : options_(options), blocks_(options.block_count) {
  for (Id id = 0; id < options.block_count; ++id) empty_.push_back(id);
}

std::size_t NaiveSequences::blocks_for(std::size_t tokens) const {
  return tokens / options_.block_size + (tokens % options_.block_size == 0 ? 0 : 1);
}

Tokens NaiveSequences::prefix(const NaiveSequence& sequence, std::size_t blocks) const {
  const auto end = sequence.tokens.begin() + static_cast<std::ptrdiff_t>(blocks * options_.block_size);
  return {sequence.tokens.begin(), end};
}

std::vector<Id> NaiveSequences::hits(const NaiveSequence& sequence) const {
  std::vector<Id> found;
  std::size_t coverable = sequence.tokens.size();
  if (!options_.reuse_last_token && coverable > 0) --coverable;
  for (std::size_t blocks = 1; blocks * options_.block_size <= coverable; ++blocks) {
    const auto primary = primaries_.find(prefix(sequence, blocks));
    if (primary == primaries_.end()) break;
    found.push_back(primary->second);
  }
  return found;
}

std::size_t NaiveSequences::cached_among(const std::vector<Id>& ids) const {
  return static_cast<std::size_t>(
      std::count_if(ids.begin(), ids.end(), [&](Id id) { return blocks_[id].references == 0; }));
}

std::optional<Room> NaiveSequences::why_not(std::size_t wanted, std::size_t revived) const {
  if (wanted > blocks_.size()) return Room::kTooMany;
  if (wanted + revived > empty_.size() + cached_.size()) return Room::kNoRoom;
  return std::nullopt;
}

std::optional<Room> NaiveSequences::why_not_allocate(const NaiveSequence& sequence) const {
  const std::vector<Id> found = hits(sequence);
  return why_not(blocks_for(sequence.tokens.size()) - found.size(), cached_among(found));
}

Result<std::size_t, NaiveSequences::Refused> NaiveSequences::allocate(NaiveSequence& sequence) {
  if (!sequence.table.empty()) return Refused{Reason::kWrongState};
  if (sequence.tokens.empty()) return Refused{Reason::kNothingToCompute};
  if (const auto refused = why_not_allocate(sequence)) return Refused{Reason::kNoRoom, refused};
  sequence.table = hits(sequence);
  for (const Id id : sequence.table) refer(id);
  sequence.registered = sequence.table.size();
  sequence.cached = sequence.table.size() * options_.block_size;
  sequence.computed = sequence.cached;
  while (sequence.table.size() < blocks_for(sequence.tokens.size())) sequence.table.push_back(take());
  if (at_once()) {
    register_up_to(sequence, sequence.tokens.size() / options_.block_size, /*computed=*/false);
  }
  return sequence.cached;
}

Result<void, NaiveSequences::Refused> NaiveSequences::deallocate(NaiveSequence& sequence) {
  if (sequence.table.empty()) return Refused{Reason::kWrongState};
  drop(sequence);
  return {};
}

void NaiveSequences::drop(NaiveSequence& sequence) {
  for (; !sequence.table.empty(); sequence.table.pop_back()) release(sequence.table.back());
  sequence.cached = sequence.computed = sequence.registered = 0;
}

std::optional<Room> NaiveSequences::why_not_append(const NaiveSequence& sequence) const {
  return why_not(blocks_for(sequence.tokens.size()) - sequence.table.size(), 0);
}

Result<AppendOutcome, NaiveSequences::Refused> NaiveSequences::may_append(NaiveSequence& sequence) {
  if (sequence.table.empty()) return Refused{Reason::kWrongState};
  if (const auto refused = why_not_append(sequence)) return Refused{Reason::kNoRoom, refused};
  AppendOutcome outcome;
  while (sequence.table.size() < blocks_for(sequence.tokens.size())) {
    sequence.table.push_back(take());
    outcome.new_block = true;
  }
  outcome.block_full = sequence.tokens.size() % options_.block_size == 0;
  if (at_once()) {
    register_up_to(sequence, sequence.tokens.size() / options_.block_size, /*computed=*/false);
  }
  return outcome;
}

Result<std::size_t, NaiveSequences::Refused> NaiveSequences::computed(NaiveSequence& sequence,
                                                                      std::size_t tokens) {
  if (sequence.table.empty()) return Refused{Reason::kWrongState};
  const std::size_t placed = std::min(sequence.tokens.size(), sequence.table.size() * options_.block_size);
  if (tokens > placed || tokens < sequence.computed) return Refused{Reason::kPrefillOverrun};
  sequence.computed = tokens;
  return register_up_to(sequence, tokens / options_.block_size, /*computed=*/true);
}

std::size_t NaiveSequences::register_up_to(NaiveSequence& sequence, std::size_t blocks, bool computed) {
  std::size_t done = 0;
  for (; sequence.registered < blocks; ++sequence.registered, ++done) {
    Id& place = sequence.table[sequence.registered];
    const Tokens content = prefix(sequence, sequence.registered + 1);
    const auto [found, is_new] = primaries_.emplace(content, place);
    const Id primary = found->second;
    if (is_new) {
      blocks_[place] = {State::kPrimary, 1, content, {}};
    } else if (options_.duplicates == DuplicatePolicy::kReject && computed) {
      refer(primary);
      give_back(place);
      place = primary;
    } else if (blocks_[primary].references == 0) {
      cached_.erase(std::find(cached_.begin(), cached_.end(), primary));
      blocks_[place] = {State::kDuplicate, 1, content, {}};
      pass_place(primary, place);
      give_back(primary);
    } else if (computed) {
      blocks_[place] = {State::kDuplicate, 1, content, {}};
      pass_place(primary, place);
      blocks_[primary].state = State::kDuplicate;
      blocks_[place].duplicates.push_front(primary);
    } else {
      blocks_[place] = {State::kDuplicate, 1, content, {}};
      blocks_[primary].duplicates.push_back(place);
    }
  }
  return done;
}

void NaiveSequences::pass_place(Id primary, Id heir) {
  primaries_[blocks_[primary].prefix] = heir;
  blocks_[heir].state = State::kPrimary;
  blocks_[heir].duplicates = std::exchange(blocks_[primary].duplicates, {});
}

void NaiveSequences::give_back(Id id) {
  blocks_[id] = {};
  empty_.push_back(id);
}

Id NaiveSequences::take() {
  std::deque<Id>& from = empty_.empty() ? cached_ : empty_;
  const Id id = from.front();
  from.pop_front();
  if (blocks_[id].state == State::kPrimary) primaries_.erase(blocks_[id].prefix);
  blocks_[id] = {State::kOwned, 1, {}, {}};
  return id;
}

void NaiveSequences::refer(Id id) {
  if (blocks_[id].references++ == 0) cached_.erase(std::find(cached_.begin(), cached_.end(), id));
}

void NaiveSequences::release(Id id) {
  Block& block = blocks_[id];
  if (--block.references != 0) return;
  if (block.state == State::kPrimary) {
    if (block.duplicates.empty()) {
      cached_.push_back(id);
    } else {
      const Id heir = block.duplicates.front();
      block.duplicates.pop_front();
      pass_place(id, heir);
      give_back(id);
    }
    return;
  }
  if (block.state == State::kDuplicate) std::erase(blocks_[primaries_.at(block.prefix)].duplicates, id);
  give_back(id);
}

std::size_t NaiveSequences::reset_cached() {
  const std::size_t count = cached_.size();
  for (const Id id : cached_) {
    primaries_.erase(blocks_[id].prefix);
    blocks_[id] = {};
    empty_.push_back(id);
  }
  cached_.clear();
  return count;
}

std::size_t NaiveSequences::owned() const {
  return static_cast<std::size_t>(std::count_if(
      blocks_.begin(), blocks_.end(), [](const Block& block) { return block.state == State::kOwned; }));
}

std::size_t NaiveSequences::in_use() const {
  return static_cast<std::size_t>(std::count_if(blocks_.begin(), blocks_.end(), [](const Block& block) {
    return block.references != 0 && block.state != State::kOwned;
  }));
}

std::vector<Tokens> NaiveSequences::victims() const {
  std::vector<Tokens> contents;
  for (const Id id : cached_) contents.push_back(blocks_[id].prefix);
  return contents;
}

}  // namespace ashlar::block::sequences
