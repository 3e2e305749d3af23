// RequestSequence<Tier>: one request as a scheduler sees it, from its prompt to its last token.
//
//   schedule_prefill(n) … apply_prefill(token?)             n prompt tokens; the last chunk yields a token
//   schedule_decode() … apply_decode(token)                 one token
//   schedule_speculative(k) … apply_speculative(accepted)   one token and k drafts, a prefix accepted
//
// A step is scheduled (blocks are taken), computed by the engine, then applied (KV exists now) or reverted
// (its blocks are returned, the last first). Between steps the request may be preempted and resumed, forked,
// or released.
//
//        match_prefix            schedule_…                  preempt                       release
//   Idle ───────────▶ Idle   Idle ─────────▶ …Scheduled   Idle ─────▶ Preempted   any state ─────▶ Released
//                                 ◀─────────                   ◀─────
//                               apply_…, revert                resume
//
// **A block is registered only when its KV is computed**: when apply_…() has seen all its tokens computed.
// The token that a step yields has no KV yet; a block that it fills is registered by the step that computes
// it, and never if there is none. A chunk that ends inside a block leaves that block unregistered. resume()
// starts from the prefix that is still cached, and computes the rest again.
//
// fork() shares everything. The last block, partly filled, stays shared until one of the sharers writes to
// it: its next schedule_…() takes a block and asks the engine for a copy (StepPlan::copies); the source is
// kept until the step is applied. A hash collision ends only the request's sharing: its later blocks stay its
// own.
//
// A refused call changes nothing and says why (SequenceError).
//
// Thread safety: thread-compatible; different requests may be used by different threads, forks included.
// Complexity:    a decode step is O(1) and allocates nothing from the heap when max_tokens is given (memory
//                is reserved for up to 2^20 tokens) and the thread has registered a block before. The blocks
//                of a step cost what the manager's observers do with them (block_manager.h).
// Invariant:     between steps block_table() has exactly the blocks that hold computed_tokens().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
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
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block {

// The state of a request; the diagram above has the transitions.
enum class RequestState : std::uint8_t {
  kIdle,
  kPrefillScheduled,
  kDecodeScheduled,
  kSpeculativeScheduled,
  kOnboarding,  // begin_match(): blocks are on their way from below
  kPreempted,
  kReleased,
};
std::string_view to_string(RequestState state) noexcept;

// Layers of a model that keep their KV in the same way. Models with one kind of attention have one group.
//
// Each group of a request has its own block table; all take their blocks from one pool and have one block
// size. A group's blocks are named by SequenceHash::in_group(), so equal tokens of two groups never share a
// name; group 0 has the plain name.
struct CacheGroup {
  // How many tokens a token attends to, itself included. nullopt: all of them.
  std::optional<std::uint32_t> window;

  static constexpr CacheGroup full_attention() noexcept { return {}; }
  static constexpr CacheGroup sliding_window(std::uint32_t tokens) noexcept { return {tokens}; }

  // Leading tokens outside the window when `computed` tokens have their KV.
  std::size_t tokens_outside(std::size_t computed) const noexcept {
    return !window || computed + 1 <= *window ? 0 : computed + 1 - *window;
  }
  // The number of blocks at the end of a prefix of `blocks` blocks that a hit of that length needs.
  std::size_t blocks_needed(std::size_t blocks, std::uint32_t block_size) const noexcept {
    return blocks - tokens_outside(blocks * block_size) / block_size;
  }

  friend bool operator==(const CacheGroup&, const CacheGroup&) = default;
};

// The naming, limits and retention of a request.
struct RequestOptions {
  // Scheme and salt, which name the request's blocks. Requests share blocks only if these are equal.
  tokens::SequenceHasher hasher{};
  // Multimodal items in the prompt, by position, without overlap.
  std::vector<tokens::MultimodalRun> runs{};
  // Prompt and generated tokens together; 0: no limit. With a limit, decode steps allocate nothing.
  std::size_t max_tokens = 0;
  // A hit may cover the whole prompt. For callers that need no logits.
  bool reuse_last_token = false;
  // One table of blocks per group; empty: one group of full attention.
  std::vector<CacheGroup> groups{};
  // The retention of its blocks, and so their place in offload queues.
  RetentionPlan retention{};
  // The caller's own number in the events of its blocks, and with them in every tier.
  std::uint32_t metadata = 0;
  // What match_prefix(), begin_match() and resume() may bring from the tiers below the manager.
  PrefixBudget onboard{};
};

// A copy that the engine must make before it computes the step: all bytes of a block.
struct BlockCopy {
  std::size_t group;
  BlockId source;
  BlockId destination;
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// The blocks and copies of a scheduled step.
struct StepPlan {
  std::size_t new_blocks = 0;
  std::span<const BlockCopy> copies;  // valid until the step is applied or reverted
};

// The outcome of applying a step.
struct StepOutcome {
  std::size_t registered = 0;  // blocks that others can find now
  // Blocks replaced by those that others had registered before (DuplicatePolicy::kReject): block_table() has
  // the new ids.
  std::size_t replaced = 0;
  bool at_limit = false;  // max_tokens is reached
};

namespace detail {
class UntypedRequest;
struct UntypedRequestDelete {
  void operator()(UntypedRequest* request) const noexcept;
};
using UntypedRequestPtr = std::unique_ptr<UntypedRequest, UntypedRequestDelete>;

// The untyped calls behind RequestSequence; documented there.
struct RequestCalls {
  static Result<UntypedRequestPtr> create(std::shared_ptr<BlockStore> store,
                                          std::vector<tokens::Token> prompt,
                                          std::vector<tokens::SequenceHash> hashes, RequestOptions options);
  static RequestState state(const UntypedRequest& request) noexcept;
  static std::span<const tokens::Token> tokens(const UntypedRequest& request) noexcept;
  static std::size_t prompt_size(const UntypedRequest& request) noexcept;
  static std::size_t computed(const UntypedRequest& request) noexcept;
  static std::size_t cached(const UntypedRequest& request) noexcept;
  static std::size_t max_tokens(const UntypedRequest& request) noexcept;
  static std::size_t group_count(const UntypedRequest& request) noexcept;
  static std::span<const BlockId> table(const UntypedRequest& request, std::size_t group);
  static std::span<const tokens::SequenceHash> hashes(UntypedRequest& request);
  static SequenceBlock block(UntypedRequest& request, std::size_t i, std::size_t group);
  static std::size_t use_count(const UntypedRequest& request, std::size_t i, std::size_t group);
  static std::span<const BlockCopy> copies(const UntypedRequest& request) noexcept;

  static Result<std::size_t, SequenceError> match_prefix(UntypedRequest& request);
  static Result<MatchStart, SequenceError> begin_match(UntypedRequest& request,
                                                       std::function<void()> on_ready);
  static Result<std::size_t, SequenceError> finish_match(UntypedRequest& request);
  static bool match_ready(const UntypedRequest& request);
  static Result<std::vector<BlockId>> wait_layer(UntypedRequest& request, std::uint32_t layer,
                                                 std::optional<Clock::TimePoint> until);
  static Result<StepPlan, SequenceError> schedule_prefill(UntypedRequest& request, std::size_t tokens);
  static Result<StepOutcome, SequenceError> apply_prefill(UntypedRequest& request,
                                                          std::optional<tokens::Token> next);
  static Result<StepPlan, SequenceError> schedule_decode(UntypedRequest& request);
  static Result<StepOutcome, SequenceError> apply_decode(UntypedRequest& request, tokens::Token next);
  static Result<StepPlan, SequenceError> schedule_speculative(UntypedRequest& request, std::size_t drafts);
  static Result<StepOutcome, SequenceError> apply_speculative(UntypedRequest& request,
                                                              std::span<const tokens::Token> accepted);
  static void set_written_after(UntypedRequest& request, Fence fence);
  static Result<void, SequenceError> revert(UntypedRequest& request);
  static Result<void, SequenceError> preempt(UntypedRequest& request);
  static Result<std::size_t, SequenceError> resume(UntypedRequest& request);
  static Result<UntypedRequestPtr, SequenceError> fork(UntypedRequest& request,
                                                       std::optional<tokens::Token> last);
  static void release(UntypedRequest& request) noexcept;
  static void release_after(UntypedRequest& request, const Fence& fence);

 private:
  static Result<UntypedRequestPtr> make(std::shared_ptr<BlockStore> store, std::vector<tokens::Token> prompt,
                                        std::vector<tokens::SequenceHash> hashes, RequestOptions options);
};
}  // namespace detail

template <events::Tier Tier>
class SequenceBatch;

template <events::Tier Tier>
class [[nodiscard]] RequestSequence {
  using Calls = detail::RequestCalls;

 public:
  // The manager must outlive the request.
  // Every call that returns a Result may also be refused for lack of memory, with kCapacity here and
  // kOutOfMemory below; it has then changed nothing.
  // Errors: kInvalidArgument for an empty prompt, a prompt above max_tokens, more blocks than positions,
  // hashes that do not belong to the prompt's blocks, runs that validate_runs() refuses, a window of 0, and
  // what RetentionPlan refuses.
  static Result<RequestSequence> create(BlockManager<Tier>& manager, std::vector<tokens::Token> prompt,
                                        RequestOptions options = {}) {
    return create(manager, std::move(prompt), {}, std::move(options));
  }
  // With the names of the prompt's first full blocks, which are trusted; the rest, and all prefix digests,
  // are computed on demand.
  static Result<RequestSequence> create(BlockManager<Tier>& manager, std::vector<tokens::Token> prompt,
                                        std::vector<tokens::SequenceHash> hashes, RequestOptions options) {
    ASHLAR_TRY(auto request, Calls::create(manager.store_.store(), std::move(prompt), std::move(hashes),
                                           std::move(options)));
    return RequestSequence(std::move(request));
  }

  RequestState state() const noexcept { return Calls::state(untyped()); }
  // Prompt and generated. Valid until the request changes, as are the other spans.
  std::span<const tokens::Token> tokens() const noexcept { return Calls::tokens(untyped()); }
  std::size_t size() const noexcept { return tokens().size(); }
  std::size_t prompt_size() const noexcept { return Calls::prompt_size(untyped()); }
  // Leading tokens whose KV exists.
  std::size_t computed_tokens() const noexcept { return Calls::computed(untyped()); }
  // The rest: the tokens left to prefill, or the one token that decode computes.
  std::size_t tokens_to_compute() const noexcept { return size() - computed_tokens(); }
  // Leading tokens that match_prefix() or resume() found in the cache.
  std::size_t cached_tokens() const noexcept { return Calls::cached(untyped()); }
  // How many tokens may still be generated; nullopt without a limit.
  std::optional<std::size_t> tokens_left() const noexcept {
    const std::size_t max = Calls::max_tokens(untyped());
    return max == 0 ? std::nullopt : std::optional(max - size());
  }
  std::size_t group_count() const noexcept { return Calls::group_count(untyped()); }
  // The blocks of a group in order; kNoBlock for those outside its window. Requires: group < group_count().
  std::span<const BlockId> block_table(std::size_t group = 0) const { return Calls::table(untyped(), group); }
  // The names of all full blocks, in group 0. Computes missing ones: not for two threads at once.
  std::span<const tokens::SequenceHash> sequence_hashes() const { return Calls::hashes(untyped()); }
  // Block `i` of a group: its id, tokens, name and whether others can find it. Computes missing names: not
  // for two threads at once. Requires: the tokens reach block `i`; group < group_count().
  SequenceBlock block(std::size_t i, std::size_t group = 0) const {
    return Calls::block(untyped(), i, group);
  }
  // References to block `i`, this request's and its forks' included; 0: none is allocated. A hint under
  // concurrency. Requires: group < group_count().
  std::size_t use_count(std::size_t i, std::size_t group = 0) const {
    return Calls::use_count(untyped(), i, group);
  }

  // The copies that the scheduled step needs first.
  std::span<const BlockCopy> copies() const noexcept { return Calls::copies(untyped()); }

  // Shares the longest cached prefix that is valid for all groups, with prefix digests compared: a hit was
  // computed for the same tokens from position 0 on. O(blocks * groups). Returns its tokens; at most size() -
  // 1, unless reuse_last_token. Errors: kWrongState unless Idle and without blocks.
  Result<std::size_t, SequenceError> match_prefix() { return Calls::match_prefix(untyped()); }
  // The same without waiting for tiers below, also in place of resume(). While blocks are on their way, or
  // are being looked for, the request is Onboarding until finish_match(), and `on_ready` is called once, on a
  // thread of the source, perhaps before this returns or after the request has gone; it must not use the
  // request. release() and preempt() cancel what is on its way. Errors: kWrongState unless Idle and without
  // blocks, or Preempted.
  Result<MatchStart, SequenceError> begin_match(std::function<void()> on_ready) {
    return Calls::begin_match(untyped(), std::move(on_ready));
  }
  // True when finish_match() will not wait.
  bool match_ready() const { return Calls::match_ready(untyped()); }
  // Takes the references. Returns the cached tokens. Errors: kWrongState unless Onboarding.
  Result<std::size_t, SequenceError> finish_match() { return Calls::finish_match(untyped()); }
  // Waits until a layer of every arriving block is in the manager's memory; see OnboardOptions::by_layer.
  // Returns the arriving blocks, which follow those of block_table(). Errors: kNotReady unless Onboarding;
  // kInvalidArgument without PrefixBudget::by_layer; kTimeout: `until` passed first, the copies go on; those
  // of the copies.
  Result<std::vector<BlockId>> wait_layer(std::uint32_t layer, std::optional<Clock::TimePoint> until = {}) {
    return Calls::wait_layer(untyped(), layer, until);
  }

  // Errors: kWrongState unless Idle; kNothingToCompute for 0 tokens; kPrefillOverrun for more than
  // tokens_to_compute(); kTooLong when the chunk is the last and there is no room for the token it yields;
  // kNoRoom.
  Result<StepPlan, SequenceError> schedule_prefill(std::size_t tokens) {
    return Calls::schedule_prefill(untyped(), tokens);
  }
  // `next` is the token that the last chunk yields. Errors: kWrongState; kTokenMissing, kTokenNotExpected.
  Result<StepOutcome, SequenceError> apply_prefill(std::optional<tokens::Token> next = std::nullopt) {
    return Calls::apply_prefill(untyped(), next);
  }

  // Errors: kWrongState unless Idle; kPrefillIncomplete unless exactly one token is left to compute; kTooLong
  // when max_tokens is reached; kNoRoom.
  Result<StepPlan, SequenceError> schedule_decode() { return Calls::schedule_decode(untyped()); }
  Result<StepOutcome, SequenceError> apply_decode(tokens::Token next) {
    return Calls::apply_decode(untyped(), next);
  }

  // One token and `drafts` guesses after it. Errors: as schedule_decode().
  Result<StepPlan, SequenceError> schedule_speculative(std::size_t drafts) {
    return Calls::schedule_speculative(untyped(), drafts);
  }
  // The accepted drafts and the token after them: 1 to drafts + 1 tokens. Blocks for the rest are returned.
  // Errors: kWrongState; kTooManyAccepted; kTooLong when max_tokens would be exceeded.
  Result<StepOutcome, SequenceError> apply_speculative(std::span<const tokens::Token> accepted) {
    return Calls::apply_speculative(untyped(), accepted);
  }

  // The fence of the step that is about to be applied, for engines that apply a step when they launch it.
  // What that step registers is found at once; tiers copy none of it before the fence has passed, and no
  // block that the request has now is handed out again before, however it is returned: release(), preempt(),
  // windows, refused drafts. Fences of later steps pass later. If the fence fails or is abandoned, blocks
  // that were registered after it lose their names (fence.h). Without memory it throws std::bad_alloc.
  void set_written_after(Fence fence) { Calls::set_written_after(untyped(), std::move(fence)); }

  // Drops the scheduled step: its blocks may be allocated again at once, so nothing may still write to them.
  // Errors: kWrongState when none is scheduled.
  Result<void, SequenceError> revert() { return Calls::revert(untyped()); }

  // Returns all blocks and keeps the tokens. Errors: kWrongState unless Idle.
  Result<void, SequenceError> preempt() { return Calls::preempt(untyped()); }
  // Restarts from the cached prefix: returns the cached tokens, at most size() - 1 once tokens were
  // generated; the rest is prefilled again. Errors: kWrongState unless Preempted.
  Result<std::size_t, SequenceError> resume() { return Calls::resume(untyped()); }

  // A second request with the same tokens and blocks. `last` replaces its last token (beam search). Errors:
  // kWrongState unless Idle; with `last`, kPrefillIncomplete unless exactly one token is left to compute.
  Result<RequestSequence, SequenceError> fork(std::optional<tokens::Token> last = std::nullopt) {
    ASHLAR_TRY(auto forked, Calls::fork(untyped(), last));
    return RequestSequence(std::move(forked));
  }

  // Returns all blocks, the last first: at once, or after the fence of set_written_after(). The tokens stay
  // readable. Dropping the request does the same. While another step is in flight, use release_after().
  void release() noexcept { Calls::release(untyped()); }
  // The same once the fence has passed or failed, too: for a step that runs and was not applied. Without
  // memory it throws std::bad_alloc, and the request keeps its blocks.
  void release_after(const Fence& fence) { Calls::release_after(untyped(), fence); }

 private:
  friend class SequenceBatch<Tier>;
  explicit RequestSequence(detail::UntypedRequestPtr request) : request_(std::move(request)) {}
  detail::UntypedRequest& untyped() const noexcept {
    ASHLAR_CHECK(request_ != nullptr, "this request was moved from");
    return *request_;
  }
  detail::UntypedRequestPtr request_;
};

}  // namespace ashlar::block
