// SequenceManager<Tier>: block tables for whole sequences, with prefix caching. The simple interface: a
// sequence gets all its blocks at once, grows by one token at a time, and returns everything.
//
//   SequenceManager<G1> sequences(manager);
//   auto sequence = sequences.make_sequence(prompt).value();
//   sequences.allocate(sequence).value();                 // cached prefix shared, the rest new
//   … compute the prompt …
//   sequences.computed(sequence, prompt.size()).value();  // now others can find the blocks
//   sequence.append(token);
//   sequences.may_append(sequence).value();               // a block for it, if one is needed
//   sequences.deallocate(sequence).value();               // the last block first
//
// begin_allocate() … finish_allocate() is allocate() without waiting for the tiers below the manager.
//
// A hit never covers the last token of a sequence: the engine must compute it to get logits, so the last full
// block of a prompt that ends on a block boundary is computed again, unless reuse_last_token is set. Prefix
// digests are compared on every hit: a matched block has the sequence's tokens from position 0 on.
// RequestSequence (request_sequence.h) is the full interface: chunks, speculation, forks, preemption.
//
// Thread safety: SequenceManager is thread-safe, a Sequence thread-compatible. The manager must outlive both.
// Complexity:    allocate() and deallocate() are O(blocks), the rest O(1) or O(block size); nothing allocates
//                from the heap once a sequence has had as many blocks before, but for what the manager's
//                observers do with its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/prefix_source.h"
#include "ashlar/block/sequence_error.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block {

// When the full blocks of a sequence become findable.
enum class RegisterBlocks : std::uint8_t {
  // When computed() says that their KV exists.
  kWhenComputed,
  // When they are allocated, or filled by may_append(). With this option the caller vouches that the KV of a
  // block is written before it is read, as in an engine that runs each step to its end before the next
  // begins. A sequence keeps the blocks that it still has to compute, under either DuplicatePolicy: one whose
  // hash has a block becomes its duplicate, or replaces it. Tiers below copy the blocks after the step: at
  // the next may_append(), computed() or deallocate() of the sequence. With tiers, or another observer, a
  // sequence that is dropped before takes the names of the blocks of its last step along.
  kAtOnce,
};

// Options for all sequences of a SequenceManager.
struct SequenceManagerOptions {
  // Scheme and salt, which name the blocks. Sequences share blocks only if these are equal.
  tokens::SequenceHasher hasher{};
  RegisterBlocks register_blocks = RegisterBlocks::kWhenComputed;
  // A hit may cover the whole sequence. For callers that need no logits.
  bool reuse_last_token = false;
  // The retention of their blocks, and so their place in offload queues; the prompt is what make_sequence()
  // got. Errors: what RetentionPlan refuses, at make_sequence().
  RetentionPlan retention{};
  // The caller's own number in the events of their blocks, and with them in every tier.
  std::uint32_t metadata = 0;
  // What allocate() and begin_allocate() may bring from the tiers below the manager.
  PrefixBudget onboard{};
};

namespace detail {
class UntypedSequence;
struct TextRules;
struct UntypedSequenceDelete {
  void operator()(UntypedSequence* sequence) const noexcept;
};
using UntypedSequencePtr = std::unique_ptr<UntypedSequence, UntypedSequenceDelete>;

// The outcome of may_append().
struct AppendOutcome {
  bool new_block = false;   // the token is in a newly allocated block
  bool block_full = false;  // the token fills its block
};

// The untyped calls behind the two types.
class UntypedSequenceManager {
 public:
  UntypedSequenceManager(std::shared_ptr<BlockStore> store, SequenceManagerOptions options);
  Result<UntypedSequencePtr> make(std::vector<tokens::Token> tokens,
                                  std::vector<tokens::SequenceHash> hashes) const;
  Result<void, AllocationRefusal> can_allocate(UntypedSequence& sequence) const;
  Result<std::size_t, SequenceError> allocate(UntypedSequence& sequence) const;
  Result<MatchStart, SequenceError> begin_allocate(UntypedSequence& sequence,
                                                   std::function<void()> on_ready) const;
  Result<std::size_t, SequenceError> finish_allocate(UntypedSequence& sequence) const;
  Result<void, SequenceError> deallocate(UntypedSequence& sequence) const;
  Result<void, AllocationRefusal> can_append(const UntypedSequence& sequence) const;
  Result<AppendOutcome, SequenceError> may_append(UntypedSequence& sequence) const;
  Result<std::size_t, SequenceError> computed(UntypedSequence& sequence, std::size_t tokens,
                                              std::optional<Fence> after) const;

 private:
  std::size_t match_limit(const UntypedSequence& sequence) const;
  // Why allocate() and begin_allocate() would refuse the sequence.
  Result<void, SequenceError> may_allocate(UntypedSequence& sequence) const;
  // Blocks for what is left behind `hits` cached ones. On an error the sequence has none.
  Result<std::size_t, SequenceError> allocate_rest(UntypedSequence& sequence, std::size_t hits) const;
  AllocationRefusal other_manager(const UntypedSequence& sequence) const;

  std::shared_ptr<BlockStore> store_;
  std::shared_ptr<const TextRules> rules_;
  RegisterBlocks register_blocks_;
  bool reuse_last_token_;
  RetentionPlan retention_;
  PrefixBudget onboard_;
  std::optional<Error> invalid_;  // what is wrong with the options
};

// What a Sequence reads of its untyped part.
struct SequenceView {
  static void append(UntypedSequence& sequence, tokens::Token token);
  static std::span<const tokens::Token> tokens(const UntypedSequence& sequence) noexcept;
  static std::span<const BlockId> table(const UntypedSequence& sequence) noexcept;
  static std::size_t cached(const UntypedSequence& sequence) noexcept;
  static std::size_t computed(const UntypedSequence& sequence) noexcept;
  static std::uint32_t block_size(const UntypedSequence& sequence) noexcept;
  static bool arrived(const UntypedSequence& sequence);
  static Result<std::vector<BlockId>> wait_layer(UntypedSequence& sequence, std::uint32_t layer,
                                                 std::optional<Clock::TimePoint> until);
  static std::span<const tokens::SequenceHash> hashes(UntypedSequence& sequence);
  static SequenceBlock block(UntypedSequence& sequence, std::size_t i);
  static std::size_t use_count(const UntypedSequence& sequence, std::size_t i) noexcept;
};
}  // namespace detail

using AppendOutcome = detail::AppendOutcome;

template <events::Tier Tier>
class SequenceManager;

// The tokens of one request and its block table. Dropping it returns its blocks.
template <events::Tier Tier>
class [[nodiscard]] Sequence {
 public:
  // Adds a token; may_append() then assigns it a block.
  void append(tokens::Token token) { detail::SequenceView::append(untyped(), token); }

  std::span<const tokens::Token> tokens() const noexcept { return detail::SequenceView::tokens(untyped()); }
  std::size_t size() const noexcept { return tokens().size(); }
  // Blocks that the tokens fill or begin.
  std::size_t block_count() const noexcept {
    const std::uint32_t block_size = detail::SequenceView::block_size(untyped());
    return (size() + block_size - 1) / block_size;
  }
  // The blocks in order; empty while nothing is allocated, and until finish_allocate() the cached prefix of
  // begin_allocate(). Valid until the sequence changes.
  std::span<const BlockId> block_table() const noexcept { return detail::SequenceView::table(untyped()); }
  // The names of all full blocks. Computes missing ones: not for two threads at once. Valid until the
  // sequence changes.
  std::span<const tokens::SequenceHash> sequence_hashes() const {
    return detail::SequenceView::hashes(untyped());
  }
  // Block `i`: its id, tokens, name and whether others can find it. Computes missing names: not for two
  // threads at once. Requires: i < block_count().
  SequenceBlock block(std::size_t i) const { return detail::SequenceView::block(untyped(), i); }
  // References to block `i`, this sequence's included; 0: none is allocated. A hint under concurrency.
  std::size_t use_count(std::size_t i) const noexcept {
    return detail::SequenceView::use_count(untyped(), i);
  }
  // True when finish_allocate() will not wait.
  bool arrived() const { return detail::SequenceView::arrived(untyped()); }
  // Between begin_allocate() and finish_allocate(): waits until a layer of every arriving block is in the
  // manager's memory. Returns the arriving blocks, which follow those of block_table(). Errors: as
  // RequestSequence::wait_layer().
  Result<std::vector<BlockId>> wait_layer(std::uint32_t layer, std::optional<Clock::TimePoint> until = {}) {
    return detail::SequenceView::wait_layer(untyped(), layer, until);
  }
  // Leading tokens that allocate() found in the cache.
  std::size_t cached_tokens() const noexcept { return detail::SequenceView::cached(untyped()); }
  // Leading tokens whose KV exists.
  std::size_t computed_tokens() const noexcept { return detail::SequenceView::computed(untyped()); }

 private:
  friend class SequenceManager<Tier>;
  explicit Sequence(detail::UntypedSequencePtr sequence) : sequence_(std::move(sequence)) {}
  detail::UntypedSequence& untyped() const noexcept {
    ASHLAR_CHECK(sequence_ != nullptr, "this sequence was moved from");
    return *sequence_;
  }
  detail::UntypedSequencePtr sequence_;
};

template <events::Tier Tier>
class SequenceManager {
 public:
  // The manager must outlive this and every sequence made here. Several may share one manager.
  explicit SequenceManager(BlockManager<Tier>& manager, SequenceManagerOptions options = {})
      : manager_(manager.store_.store(), std::move(options)) {}

  // Errors: kInvalidArgument for more blocks than positions, and for hashes that do not belong to the tokens'
  // blocks.
  Result<Sequence<Tier>> make_sequence(std::vector<tokens::Token> tokens) const {
    return make_sequence(std::move(tokens), {});
  }
  // With the names of its first full blocks, which are trusted. Other names, and all prefix digests, are
  // computed on demand.
  Result<Sequence<Tier>> make_sequence(std::vector<tokens::Token> tokens,
                                       std::vector<tokens::SequenceHash> hashes) const {
    ASHLAR_TRY(auto made, manager_.make(std::move(tokens), std::move(hashes)));
    return Sequence<Tier>(std::move(made));
  }

  // Whether allocate() would find room now, or why it would be refused. Blocks in use cost nothing; inactive
  // cached blocks cost their place. Computes missing names: not for two threads at once. Errors: as
  // BlockManager::can_allocate(); kOtherManager.
  Result<void, AllocationRefusal> can_allocate(const Sequence<Tier>& sequence) const {
    return manager_.can_allocate(sequence.untyped());
  }
  // Shares the cached prefix and takes blocks for the rest. Returns the cached tokens.
  // Errors: kWrongState when it has blocks; kNothingToCompute for an empty sequence; kNoRoom.
  Result<std::size_t, SequenceError> allocate(Sequence<Tier>& sequence) const {
    return manager_.allocate(sequence.untyped());
  }
  // The same without waiting for the tiers below. If nothing is on its way it has allocated. Else the
  // sequence is onboarding until finish_allocate(), and `on_ready` is called once, on a thread of the source,
  // perhaps before this returns or after the sequence has gone; it must not use the sequence. deallocate(),
  // and dropping the sequence, cancel what is on its way. Errors: as allocate().
  Result<MatchStart, SequenceError> begin_allocate(Sequence<Tier>& sequence,
                                                   std::function<void()> on_ready) const {
    return manager_.begin_allocate(sequence.untyped(), std::move(on_ready));
  }
  // Takes what has arrived, and blocks for the rest; waits unless Sequence::arrived(). Returns the cached
  // tokens. Errors: kWrongState unless onboarding; kNoRoom: the sequence has no blocks, as before.
  Result<std::size_t, SequenceError> finish_allocate(Sequence<Tier>& sequence) const {
    return manager_.finish_allocate(sequence.untyped());
  }
  // Returns the blocks, the last first, so that the head of a prefix is evicted last. Errors: kWrongState
  // when it has none.
  Result<void, SequenceError> deallocate(Sequence<Tier>& sequence) const {
    return manager_.deallocate(sequence.untyped());
  }

  // Whether may_append() would find room now for the tokens that have no block, or why it would be refused.
  // Errors: as can_allocate().
  Result<void, AllocationRefusal> can_append(const Sequence<Tier>& sequence) const {
    return manager_.can_append(sequence.untyped());
  }
  // Call it after append(). Three cases: the token begins a block, which is allocated; the token fills a
  // block, which is named (and registered, with RegisterBlocks::kAtOnce); or there is nothing to do. Errors:
  // kWrongState when nothing is allocated; kNoRoom.
  Result<AppendOutcome, SequenceError> may_append(Sequence<Tier>& sequence) const {
    return manager_.may_append(sequence.untyped());
  }
  // The KV of the first `tokens` tokens exists: registers the full blocks among them. Returns how many it
  // registered. Errors: kWrongState when nothing is allocated; kPrefillOverrun for more tokens than have
  // blocks, or fewer than were computed before.
  // `after`: the fence of the step that writes them, if it is still running; as set_written_after() of
  // RequestSequence.
  Result<std::size_t, SequenceError> computed(Sequence<Tier>& sequence, std::size_t tokens,
                                              std::optional<Fence> after = {}) const {
    return manager_.computed(sequence.untyped(), tokens, std::move(after));
  }

 private:
  detail::UntypedSequenceManager manager_;
};

}  // namespace ashlar::block
