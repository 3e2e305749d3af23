#include "ashlar/feed/engine_session.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "feed/engine_rank.h"

namespace ashlar::feed {

Result<void> EngineIngestOptions::validate() const {
  if (block_size != 0) {
    if (auto valid = tokens::validate_block_size(block_size); !valid) return valid;
  }
  for (const std::uint32_t rank : ranks)
    if (rank > EngineIngest::kRankMask)
      return make_error(ErrorCode::kInvalidArgument, "rank %u is too large; ranks are below 2^31", rank);
  if (max_ranks == 0)
    return make_error(ErrorCode::kInvalidArgument, "max_ranks is 0; an engine has at least one rank");
  if (max_groups == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "max_groups is 0; a rank has at least one group of layers");
  if (expected_blocks > kMaxExpected)
    return make_error(ErrorCode::kInvalidArgument, "expected_blocks is %zu; at most %zu, or 0 for no guess",
                      expected_blocks, kMaxExpected);
  return {};
}

EngineIngest::EngineIngest(EngineIngestOptions options)
    : options_(std::move(options)), budget_(std::make_unique<ByteBudget>(options_.max_waiting_bytes)) {
  if (options_.expected_blocks == 0) return;
  ready_ = std::make_unique<EngineRank>(0, options_, *budget_);
  ready_->reserve(options_.expected_blocks);
}
EngineIngest::EngineIngest(EngineIngest&&) noexcept = default;
EngineIngest& EngineIngest::operator=(EngineIngest&&) noexcept = default;
EngineIngest::~EngineIngest() = default;

Result<EngineIngest> EngineIngest::create(EngineIngestOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return EngineIngest(std::move(options));
}

void EngineIngest::apply(const events::EngineBatch& batch, ChangeOutput out) {
  ++counters_.batches;
  counters_.events += batch.events.size();
  const std::uint32_t rank = batch.rank.value_or(0);
  auto at = std::ranges::find(ranks_, rank, [](const auto& state) { return state->rank(); });
  if (at == ranks_.end()) {
    const bool wanted =
        options_.ranks.empty() || std::ranges::find(options_.ranks, rank) != options_.ranks.end();
    if (!wanted || rank > kRankMask || ranks_.size() >= options_.max_ranks) {
      ++counters_.other_ranks;
      return;
    }
    if (ready_ != nullptr) {
      ready_->set_rank(rank);
      ranks_.push_back(std::move(ready_));
    } else {
      ranks_.push_back(std::make_unique<EngineRank>(rank, options_, *budget_));
    }
    at = ranks_.end() - 1;
    if (lost_) (*at)->doubt();
  }
  (*at)->apply(batch, counters_, last_refusal_, out);
}

void EngineIngest::clear(std::uint32_t rank, ChangeOutput out) {
  for (const auto& state : ranks_) {
    if (state->rank() != rank) continue;
    state->clear(counters_, out);
    state->doubt();
  }
}

void EngineIngest::resync(ChangeOutput out) {
  lost_ = true;
  for (const auto& state : ranks_) {
    state->clear(counters_, out);
    state->doubt();
  }
}

void EngineIngest::reset(ChangeOutput out) {
  lost_ = false;
  for (const auto& state : ranks_) {
    state->clear(counters_, out);
    state->forget();
  }
}

namespace {

constexpr std::uint32_t kStateVersion = 2;

}  // namespace

Result<std::vector<std::byte>> EngineIngest::save() const {
  ByteWriter state;
  state.put(kStateVersion);
  state.put(static_cast<std::uint8_t>(options_.scheme.kind()));
  state.put(options_.salt.seed());
  state.put(static_cast<std::uint8_t>(lost_));
  state.put(static_cast<std::uint32_t>(ranks_.size()));
  for (const auto& rank : ranks_) {
    state.put(rank->rank());
    ASHLAR_RETURN_IF_ERROR(rank->save(state));
  }
  return std::move(state.bytes());
}

Result<void> EngineIngest::load(std::span<const std::byte> bytes, ChangeOutput out) {
  ByteReader state(bytes);
  if (state.get<std::uint32_t>() != kStateVersion)
    return Error(ErrorCode::kCorruption, "the state of an engine has another version");
  if (state.get<std::uint8_t>() != static_cast<std::uint8_t>(options_.scheme.kind()) ||
      state.get<std::uint64_t>() != options_.salt.seed())
    return Error(ErrorCode::kInvalidArgument, "its blocks are hashed by another scheme or salt");
  const bool lost = state.get<std::uint8_t>() != 0;
  std::vector<std::unique_ptr<EngineRank>> ranks;
  for (auto left = state.get<std::uint32_t>(); left > 0; --left) {
    const auto rank = state.get<std::uint32_t>();
    if (!state.ok() || rank > kRankMask || ranks.size() >= options_.max_ranks)
      return Error(ErrorCode::kCorruption, "the state of an engine cannot be read");
    ranks.push_back(std::make_unique<EngineRank>(rank, options_, *budget_));
    if (ranks.size() == 1) ranks.back()->reserve(options_.expected_blocks);
    ASHLAR_RETURN_IF_ERROR(ranks.back()->load(state));
  }
  if (!state.ok() || state.left() != 0)
    return Error(ErrorCode::kCorruption, "the state of an engine cannot be read");
  for (const auto& old : ranks_) old->clear(counters_, out);
  for (const auto& rank : ranks) {
    const auto old = std::ranges::find(ranks_, rank->rank(), [](const auto& held) { return held->rank(); });
    rank->tell_all(old == ranks_.end() ? nullptr : old->get(), counters_, out);
  }
  ranks_ = std::move(ranks);
  if (!ranks_.empty()) ready_.reset();
  lost_ = lost;
  return {};
}

std::uint32_t EngineIngest::block_size() const noexcept {
  if (options_.block_size != 0) return options_.block_size;
  for (const std::unique_ptr<EngineRank>& rank : ranks_)
    if (const std::uint32_t size = rank->block_size(); size != 0) return size;
  return 0;
}

std::size_t EngineIngest::present() const noexcept {
  std::size_t count = 0;
  for (const auto& state : ranks_) count += state->present();
  return count;
}

std::size_t EngineIngest::waiting() const noexcept {
  std::size_t count = 0;
  for (const auto& state : ranks_) count += state->waiting();
  return count;
}

void EngineIngest::check_invariants() const {
  ASHLAR_CHECK(ranks_.size() <= options_.max_ranks, "%zu ranks are followed, %u may be", ranks_.size(),
               options_.max_ranks);
  for (const auto& state : ranks_) state->check_invariants();
}

}  // namespace ashlar::feed
