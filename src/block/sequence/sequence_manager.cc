// Sequences of the simple interface: one table, no steps.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/result.h"
#include "ashlar/block/sequence_manager.h"
#include "block/sequence/block_tables.h"
#include "block/sequence/sequence_text.h"
#include "block/store/thread_scratch.h"

namespace ashlar::block::detail {

using Reason = SequenceError::Reason;

namespace {
constexpr std::string_view kAllocated = "allocated";
constexpr std::string_view kNotAllocated = "not allocated";
constexpr std::string_view kOnboarding = "onboarding";
}  // namespace

class UntypedSequence {
 public:
  UntypedSequence(SequenceText given, BlockTables empty) : text(std::move(given)), tables(std::move(empty)) {}
  ~UntypedSequence() { step_lost(); }
  UntypedSequence(const UntypedSequence&) = delete;
  UntypedSequence& operator=(const UntypedSequence&) = delete;

  std::size_t block_size() const noexcept { return text.rules->block_size; }
  std::size_t block_count() const noexcept { return (text.tokens.size() + block_size() - 1) / block_size(); }
  bool allocated() const noexcept { return arriving == nullptr && tables.size() != 0; }
  std::string_view state() const noexcept {
    return arriving != nullptr ? kOnboarding : allocated() ? kAllocated : kNotAllocated;
  }
  SequenceError refusal(Reason reason, std::size_t asked = 0, std::size_t limit = 0) const {
    return {reason, state(), asked, limit, std::nullopt};
  }
  SequenceError wrong_state(std::string_view needed) const {
    SequenceError error = refusal(Reason::kWrongState);
    error.needed = needed;
    return error;
  }
  SequenceError no_room(const AllocationRefusal& refused) const {
    SequenceError error = refusal(Reason::kNoRoom, refused.requested, refused.status.available());
    error.refusal = refused;
    return error;
  }
  SequenceError overrun(std::size_t tokens, std::size_t limit) const {
    SequenceError error = refusal(Reason::kPrefillOverrun, tokens, limit);
    error.computed_before = computed;
    return error;
  }
  // Also what is on its way.
  void give_back() noexcept {
    step_lost();
    arriving.reset();
    tables.release();
    cached = computed = 0;
  }
  // Registers the full blocks of the first `tokens` tokens. Returns how many it registered. Throws
  // std::bad_alloc without changing anything.
  std::size_t publish(std::size_t tokens, BlockTables::OnTwin on_twin) {
    ThreadScratch<BlockTables::Publication> publications;
    try {
      tables.collect(text, tokens / block_size(), *publications);
      return BlockTables::publish(*publications, on_twin).registered;
    } catch (...) {
      BlockTables::uncollect(*publications);
      throw;
    }
  }
  // The same for all tokens, before their KV exists. The sequence will write the KV, so it keeps its own
  // blocks: another sequence may read its registered block, or still be computing it.
  void publish_at_once() {
    step_done();
    if (!tables.store().is_observed()) {
      publish(text.tokens.size(), BlockTables::OnTwin::kKeepOwn);
      return;
    }
    auto [fence, signal] = Fence::create();
    tables.set_written_after(fence);
    writes = std::move(signal);
    publish(text.tokens.size(), BlockTables::OnTwin::kKeepOwn);
  }
  // The step that wrote the blocks published at once has ended.
  void step_done() {
    if (writes) std::move(*std::exchange(writes, std::nullopt)).signal();
  }
  // The sequence ends before that step, and nobody vouches for what it was to write.
  void step_lost() noexcept {
    if (writes) std::move(*std::exchange(writes, std::nullopt)).fail();
  }

  SequenceText text;
  BlockTables tables;
  std::optional<FenceSignal> writes;  // published at once, for observers
  BlockTables::Arrival arriving;      // between begin_allocate() and finish_allocate()
  std::size_t cached = 0;
  std::size_t computed = 0;
};

void UntypedSequenceDelete::operator()(UntypedSequence* sequence) const noexcept {
  delete sequence;
}

void SequenceView::append(UntypedSequence& sequence, tokens::Token token) {
  sequence.text.tokens.push_back(token);
}
std::span<const tokens::Token> SequenceView::tokens(const UntypedSequence& sequence) noexcept {
  return sequence.text.tokens;
}
std::span<const BlockId> SequenceView::table(const UntypedSequence& sequence) noexcept {
  return sequence.tables.ids(0);
}
std::size_t SequenceView::cached(const UntypedSequence& sequence) noexcept {
  return sequence.cached;
}
std::size_t SequenceView::computed(const UntypedSequence& sequence) noexcept {
  return sequence.computed;
}
std::uint32_t SequenceView::block_size(const UntypedSequence& sequence) noexcept {
  return sequence.text.rules->block_size;
}

bool SequenceView::arrived(const UntypedSequence& sequence) {
  return sequence.arriving == nullptr || sequence.arriving->done();
}
Result<std::vector<BlockId>> SequenceView::wait_layer(UntypedSequence& sequence, std::uint32_t layer,
                                                      std::optional<Clock::TimePoint> until) {
  if (sequence.arriving == nullptr)
    return make_error(ErrorCode::kNotReady,
                      "the sequence is %s; layers arrive between begin_allocate() and finish_allocate()",
                      std::string(sequence.state()).c_str());
  return sequence.arriving->wait_layer(layer, until);
}
std::span<const tokens::SequenceHash> SequenceView::hashes(UntypedSequence& sequence) {
  return sequence.text.names(sequence.text.full_blocks());
}
SequenceBlock SequenceView::block(UntypedSequence& sequence, std::size_t i) {
  return sequence.tables.block(sequence.text, 0, i);
}
std::size_t SequenceView::use_count(const UntypedSequence& sequence, std::size_t i) noexcept {
  return sequence.tables.use_count(0, i);
}

UntypedSequenceManager::UntypedSequenceManager(std::shared_ptr<BlockStore> store,
                                               SequenceManagerOptions options)
    : store_(std::move(store)),
      rules_(std::make_shared<const TextRules>(
          TextRules{bind_hasher(options.hasher, store_->options().prefix_key).value_or(options.hasher),
                    {},
                    store_->options().block_size,
                    options.metadata})),
      register_blocks_(options.register_blocks),
      reuse_last_token_(options.reuse_last_token),
      retention_(std::move(options.retention)),
      onboard_(options.onboard) {
  if (const auto bound = bind_hasher(rules_->hasher, store_->options().prefix_key); !bound)
    invalid_ = bound.error();
  if (const auto valid = retention_.validate(); !valid) invalid_ = valid.error();
}

Result<UntypedSequencePtr> UntypedSequenceManager::make(std::vector<tokens::Token> tokens,
                                                        std::vector<tokens::SequenceHash> hashes) const {
  return unless_out_of_memory([&]() -> Result<UntypedSequencePtr> {
    if (invalid_) return *invalid_;
    std::shared_ptr<const BlockWorth> worth;
    if (!retention_.empty())
      worth = std::make_shared<const BlockWorth>(BlockWorth{retention_, tokens.size()});
    ASHLAR_TRY(auto text, SequenceText::create(std::move(tokens), std::move(hashes), rules_));
    return UntypedSequencePtr(
        new UntypedSequence(std::move(text), BlockTables(store_, {}, std::move(worth))));
  });
}

// Blocks that a hit may cover.
std::size_t UntypedSequenceManager::match_limit(const UntypedSequence& sequence) const {
  const std::size_t size = sequence.text.tokens.size();
  return (reuse_last_token_ || size == 0 ? size : size - 1) / sequence.block_size();
}

AllocationRefusal UntypedSequenceManager::other_manager(const UntypedSequence& sequence) const {
  return {AllocationRefusal::Reason::kOtherManager, sequence.block_count(), store_->status()};
}

Result<void, AllocationRefusal> UntypedSequenceManager::can_allocate(UntypedSequence& sequence) const {
  if (&sequence.tables.store() != store_.get()) return other_manager(sequence);
  return unless_out_of_memory(
      [&] {
        const auto names = sequence.text.names(match_limit(sequence));
        return store_->can_allocate_after_match(names, std::span(sequence.text.prefixes).first(names.size()),
                                                sequence.block_count());
      },
      [&] {
        return AllocationRefusal{AllocationRefusal::Reason::kOutOfMemory, sequence.block_count(),
                                 store_->status()};
      });
}

Result<void, SequenceError> UntypedSequenceManager::may_allocate(UntypedSequence& sequence) const {
  if (&sequence.tables.store() != store_.get()) return sequence.refusal(Reason::kOtherManager);
  if (sequence.allocated() || sequence.arriving != nullptr) return sequence.wrong_state(kNotAllocated);
  if (sequence.text.tokens.empty()) return sequence.refusal(Reason::kNothingToCompute);
  // A hit followed by a refusal would reorder the cached blocks, so check first where a refusal is possible.
  if (!store_->can_allocate(sequence.block_count())) {
    if (auto room = can_allocate(sequence); !room) return sequence.no_room(std::move(room).error());
  }
  return {};
}

Result<std::size_t, SequenceError> UntypedSequenceManager::allocate_rest(UntypedSequence& sequence,
                                                                         std::size_t hits) const {
  if (auto taken = sequence.tables.extend(0, sequence.block_count()); !taken) {
    sequence.give_back();
    return sequence.no_room(std::move(taken).error());
  }
  if (register_blocks_ == RegisterBlocks::kAtOnce) sequence.publish_at_once();
  return sequence.cached = sequence.computed = hits * sequence.block_size();
}

Result<std::size_t, SequenceError> UntypedSequenceManager::allocate(UntypedSequence& sequence) const {
  ASHLAR_RETURN_IF_ERROR(may_allocate(sequence));
  try {
    return allocate_rest(sequence,
                         sequence.tables.match_with_source(sequence.text, match_limit(sequence), onboard_));
  } catch (const std::bad_alloc&) {
    sequence.give_back();
    return sequence.refusal(Reason::kOutOfMemory);
  }
}

Result<MatchStart, SequenceError> UntypedSequenceManager::begin_allocate(
    UntypedSequence& sequence, std::function<void()> on_ready) const {
  ASHLAR_RETURN_IF_ERROR(may_allocate(sequence));
  try {
    const std::size_t limit = match_limit(sequence);
    const std::size_t hits = sequence.tables.match(sequence.text, limit);
    sequence.arriving = sequence.tables.bring(sequence.text, hits, limit, onboard_, std::move(on_ready));
    if (sequence.arriving == nullptr) {
      ASHLAR_TRY(const std::size_t cached, allocate_rest(sequence, hits));
      return MatchStart{cached, false};
    }
    sequence.cached = sequence.computed = hits * sequence.block_size();
    return MatchStart{sequence.cached, true};
  } catch (const std::bad_alloc&) {
    sequence.give_back();
    return sequence.refusal(Reason::kOutOfMemory);
  }
}

Result<std::size_t, SequenceError> UntypedSequenceManager::finish_allocate(UntypedSequence& sequence) const {
  if (&sequence.tables.store() != store_.get()) return sequence.refusal(Reason::kOtherManager);
  if (sequence.arriving == nullptr) return sequence.wrong_state(kOnboarding);
  try {
    std::size_t hits = sequence.cached / sequence.block_size();
    if (sequence.arriving->wait() != 0)
      hits = sequence.tables.match_further(sequence.text, hits, match_limit(sequence));
    sequence.arriving.reset();
    return allocate_rest(sequence, hits);
  } catch (const std::bad_alloc&) {
    sequence.give_back();
    return sequence.refusal(Reason::kOutOfMemory);
  }
}

Result<void, SequenceError> UntypedSequenceManager::deallocate(UntypedSequence& sequence) const {
  if (&sequence.tables.store() != store_.get()) return sequence.refusal(Reason::kOtherManager);
  if (!sequence.allocated() && sequence.arriving == nullptr) return sequence.wrong_state(kAllocated);
  sequence.step_done();
  sequence.give_back();
  return {};
}

Result<void, AllocationRefusal> UntypedSequenceManager::can_append(const UntypedSequence& sequence) const {
  if (&sequence.tables.store() != store_.get()) return other_manager(sequence);
  return store_->can_allocate(sequence.block_count() -
                              std::min(sequence.block_count(), sequence.tables.size()));
}

Result<AppendOutcome, SequenceError> UntypedSequenceManager::may_append(UntypedSequence& sequence) const {
  if (&sequence.tables.store() != store_.get()) return sequence.refusal(Reason::kOtherManager);
  if (!sequence.allocated()) return sequence.wrong_state(kAllocated);
  const std::size_t before = sequence.tables.size();
  try {
    sequence.step_done();
    auto taken = sequence.tables.extend(0, sequence.block_count());
    if (!taken) return sequence.no_room(std::move(taken).error());
    const bool full = sequence.text.tokens.size() % sequence.block_size() == 0;
    if (register_blocks_ == RegisterBlocks::kAtOnce) {
      if (full || *taken != 0) sequence.publish_at_once();
    }
    return AppendOutcome{*taken != 0, full};
  } catch (const std::bad_alloc&) {
    sequence.tables.truncate(before);
    return sequence.refusal(Reason::kOutOfMemory);
  }
}

Result<std::size_t, SequenceError> UntypedSequenceManager::computed(UntypedSequence& sequence,
                                                                    std::size_t tokens,
                                                                    std::optional<Fence> after) const {
  if (&sequence.tables.store() != store_.get()) return sequence.refusal(Reason::kOtherManager);
  if (!sequence.allocated()) return sequence.wrong_state(kAllocated);
  const std::size_t limit =
      std::min(sequence.text.tokens.size(), sequence.tables.size() * sequence.block_size());
  if (tokens > limit || tokens < sequence.computed) return sequence.overrun(tokens, limit);
  return unless_out_of_memory(
      [&]() -> Result<std::size_t, SequenceError> {
        sequence.step_done();
        sequence.tables.set_written_after(std::move(after));
        const std::size_t registered = sequence.publish(tokens, BlockTables::OnTwin::kFollowPolicy);
        sequence.computed = tokens;
        return registered;
      },
      [&] { return sequence.refusal(Reason::kOutOfMemory); });
}

}  // namespace ashlar::block::detail
