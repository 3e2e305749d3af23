// NaiveSequences: what a SequenceManager does to its manager, written for obviousness. One thread, standard
// containers, a prefix named by its tokens.
//
// A block is empty, owned by one sequence, or registered; a registered one nobody refers to is cached. Two
// queues hold what can be handed out: the empty blocks in the order in which they came, then the cached ones
// in the order in which they were released.
//
// Thread safety: confined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/block/sequence_error.h"
#include "ashlar/block/sequence_manager.h"

namespace ashlar::block::sequences {

using Id = std::uint32_t;
using Tokens = std::vector<std::uint32_t>;

struct NaiveOptions {
  Id block_count = 0;
  std::uint32_t block_size = 1;
  DuplicatePolicy duplicates = DuplicatePolicy::kAllow;
  RegisterBlocks register_blocks = RegisterBlocks::kWhenComputed;
  bool reuse_last_token = false;
};

struct NaiveSequence {
  Tokens tokens;
  std::vector<Id> table;
  std::size_t cached = 0;
  std::size_t computed = 0;
  std::size_t registered = 0;  // leading blocks of the table
};

class NaiveSequences {
 public:
  struct Refused {
    SequenceError::Reason reason;
    std::optional<AllocationRefusal::Reason> room = std::nullopt;
  };

  explicit NaiveSequences(const NaiveOptions& options);

  std::optional<AllocationRefusal::Reason> why_not_allocate(const NaiveSequence& sequence) const;
  Result<std::size_t, Refused> allocate(NaiveSequence& sequence);
  Result<void, Refused> deallocate(NaiveSequence& sequence);
  std::optional<AllocationRefusal::Reason> why_not_append(const NaiveSequence& sequence) const;
  Result<AppendOutcome, Refused> may_append(NaiveSequence& sequence);
  Result<std::size_t, Refused> computed(NaiveSequence& sequence, std::size_t tokens);
  // Whatever blocks it has go back.
  void drop(NaiveSequence& sequence);
  // All cached blocks become empty. Returns how many.
  std::size_t reset_cached();

  // Where the blocks are.
  std::size_t empty() const { return empty_.size(); }
  std::size_t cached() const { return cached_.size(); }
  std::size_t owned() const;
  std::size_t in_use() const;  // registered, and somebody refers to them
  // What the cached blocks hold, the next victim first.
  std::vector<Tokens> victims() const;
  // The block that a prefix is found at.
  const std::map<Tokens, Id>& primaries() const { return primaries_; }

 private:
  enum class State : std::uint8_t { kEmpty, kOwned, kPrimary, kDuplicate };
  struct Block {
    State state = State::kEmpty;
    unsigned references = 0;
    Tokens prefix;              // of a registered one: all tokens to its end
    std::deque<Id> duplicates;  // of a primary, the next heir first
  };

  std::size_t blocks_for(std::size_t tokens) const;
  Tokens prefix(const NaiveSequence& sequence, std::size_t blocks) const;
  std::vector<Id> hits(const NaiveSequence& sequence) const;
  std::optional<AllocationRefusal::Reason> why_not(std::size_t wanted, std::size_t revived) const;
  // How many of these nobody refers to.
  std::size_t cached_among(const std::vector<Id>& ids) const;
  Id take();
  void refer(Id id);
  void release(Id id);
  void give_back(Id id);
  // The full blocks of the sequence up to the given one. Returns how many were not registered before.
  std::size_t register_up_to(NaiveSequence& sequence, std::size_t blocks, bool computed);
  // The heir becomes what the prefix of the primary is found at.
  void pass_place(Id primary, Id heir);
  bool at_once() const { return options_.register_blocks == RegisterBlocks::kAtOnce; }

  NaiveOptions options_;
  std::vector<Block> blocks_;
  std::deque<Id> empty_;
  std::deque<Id> cached_;
  std::map<Tokens, Id> primaries_;
};

}  // namespace ashlar::block::sequences
