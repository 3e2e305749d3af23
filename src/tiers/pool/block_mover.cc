#include "tiers/pool/block_mover.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/storage/allocator.h"

namespace ashlar::tiers {

namespace {

// Bytes checked at a time, while the rest is copied.
constexpr std::uint64_t kChunkBytes = std::uint64_t{2} << 20;

bool is_disk(const BytePool& pool) {
  return pool.storage_tier() == events::StorageTier::kDisk;
}

Error cancelled() {
  return make_error(ErrorCode::kCancelled, "the move was cancelled");
}

// True when the error comes from a cancelled or late copy.
bool stopped(const MoveOptions& options, const Error& error, const Clock& clock) {
  if (error.code() == ErrorCode::kCancelled)
    return options.control != nullptr && options.control->cancelled();
  return error.code() == ErrorCode::kTimeout && options.deadline && clock.now() >= *options.deadline;
}

}  // namespace

using block::BlockId;
using tokens::SequenceHash;
using transfer::BlockChecksum;
using transfer::BlockSet;
using transfer::Transfer;
using transfer::TransferDone;
using transfer::TransferResult;

// State that a transfer owns until it is done.
struct BlockMover::Batch {
  std::vector<block::Hold> holds;
  std::unique_ptr<Reservation> reservation;
  std::vector<std::size_t> places;  // indices into the report
  std::vector<TierRecord> records;  // of the arrived blocks; empty: not arrived
  std::vector<bool> damaged;
};

// Blocks that move from one set to another together.
struct BlockMover::Chunk {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::vector<std::uint32_t> sources;
  std::vector<std::uint32_t> targets;
  std::vector<std::size_t> members;  // indices into the batch
};

std::size_t MoveReport::count(Moved what) const noexcept {
  return static_cast<std::size_t>(std::ranges::count(blocks, what));
}

BlockMover::BlockMover(transfer::Executor& executor, const Options& options)
    : executor_(executor),
      options_(options),
      clock_(options.clock == nullptr ? Clock::real() : *options.clock) {}

MoveReport BlockMover::move(BytePool& from, BytePool& to, std::span<const SequenceHash> hashes,
                            const MoveOptions& options) {
  MoveReport report;
  report.blocks.assign(hashes.size(), Moved::kGone);
  std::vector<block::Hold> holds;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (std::optional<block::Hold> hold = from.hold(hashes[i])) {
      holds.push_back(*std::move(hold));
      places.push_back(i);
    }
  MoveReport part = move(from, to, std::move(holds), options);
  for (std::size_t i = 0; i < places.size(); ++i) report.blocks[places[i]] = part.blocks[i];
  report.error = std::move(part.error);
  report.bytes = part.bytes;
  report.copying = part.copying;
  return report;
}

MoveReport BlockMover::move(BytePool& from, BytePool& to, std::vector<block::Hold> holds,
                            const MoveOptions& options) {
  return begin(from, to, std::move(holds), options)->finish();
}

BlockMover::Running::Running(BlockMover& mover, BytePool& from, BytePool& to, const MoveOptions& options)
    : mover_(mover),
      from_(from),
      to_(to),
      options_(options),
      check_arrivals_(is_disk(from) || (mover.options_.checksum_on_arrival &&
                                        to.storage_tier() == events::StorageTier::kHost)),
      batch_(std::make_shared<Batch>()) {}

BlockMover::Running::~Running() {
  finish();
  ASHLAR_DCHECK(transfers_.empty(), "a move ends while %zu of its copies may still run", transfers_.size());
}

const MoveReport& BlockMover::Running::finish() {
  if (!std::exchange(finished_, true)) mover_.finish(*this);
  return report_;
}

std::unique_ptr<BlockMover::Running> BlockMover::begin(BytePool& from, BytePool& to,
                                                       std::vector<block::Hold> holds,
                                                       const MoveOptions& options) {
  const Clock::TimePoint now = clock_.now();
  auto move = std::make_unique<Running>(*this, from, to, options);
  move->begun_ = now;
  MoveReport& report = move->report_;
  Batch& batch = *move->batch_;
  report.blocks.assign(holds.size(), Moved::kFailed);
  for (std::size_t i = 0; i < holds.size(); ++i) {
    if (to.has(holds[i].sequence_hash())) {
      report.blocks[i] = Moved::kPresent;
      continue;
    }
    if (from.records().precondition(holds[i])) {
      report.blocks[i] = Moved::kUnwritten;
      continue;
    }
    batch.holds.push_back(std::move(holds[i]));
    batch.places.push_back(i);
  }
  holds.clear();
  const std::size_t count = batch.holds.size();
  if (count == 0) return move;
  if (options.control != nullptr && options.control->cancelled()) {
    report.error = cancelled();
    for (const std::size_t place : batch.places) report.blocks[place] = Moved::kStopped;
    batch.holds.clear();
    return move;
  }
  Result<std::unique_ptr<Reservation>> reserved = to.reserve(count);
  if (!reserved) {
    report.error = reserved.error();
    batch.holds.clear();
    return move;
  }
  batch.reservation = *std::move(reserved);
  ASHLAR_CHECK(batch.reservation->ids().size() == count, "%zu blocks of %s were reserved; %zu were asked for",
               batch.reservation->ids().size(), std::string(to.name()).c_str(), count);
  batch.records.resize(count);
  batch.damaged.resize(count);
  if (options.on_reserved) {
    std::vector<std::optional<BlockId>> ids(report.blocks.size());
    for (std::size_t i = 0; i < count; ++i) ids[batch.places[i]] = batch.reservation->ids()[i];
    options.on_reserved(ids);
  }
  move->chunks_ = chunks_of(*move, !options.by_layer && (move->check_arrivals_ || is_disk(to)));
  if (!options.by_layer)
    for (const Chunk& chunk : move->chunks_) move->transfers_.push_back(start(*move, chunk, {}));
  report.copying = clock_.now() - now;
  return move;
}

void BlockMover::finish(Running& move) {
  Batch& batch = *move.batch_;
  if (batch.reservation == nullptr) return;
  const Clock::TimePoint now = clock_.now();
  const LateValues::Before before =
      options_.values != nullptr ? options_.values->before() : LateValues::Before();
  if (is_disk(move.to_))
    for (const block::Hold& hold : batch.holds) learn_checksum(move.from_, hold);
  const std::optional<TransferDone> proof = wait(move);
  // Time spent waiting, or time the copies ran while the caller waited for others.
  move.report_.copying = std::max(move.report_.copying + (clock_.now() - now),
                                  std::min(move.copied_, clock_.now() - move.begun_));
  const std::shared_ptr<Batch> owned = std::exchange(move.batch_, nullptr);  // returns blocks at scope end
  if (!proof) return;
  const auto note = [&](const Error& error) {
    if (!move.report_.error) move.report_.error = error;
  };
  if (options_.read_back_after_write && is_disk(move.to_))
    if (const Result<void> good = read_back(move.to_, batch); !good) note(good.error());
  // The device tier keeps no checksum: recomputed bytes may differ and still be valid.
  if (move.to_.storage_tier() == events::StorageTier::kDevice)
    for (TierRecord& record : batch.records) record.checksum.reset();
  const Published published = batch.reservation->publish(batch.records, proof->kv_ready());
  ASHLAR_CHECK(published.registered.size() == batch.records.size(), "%s answers for %zu of %zu blocks",
               std::string(move.to_.name()).c_str(), published.registered.size(), batch.records.size());
  if (move.options_.keep) move.kept_ = std::move(batch.reservation);
  if (published.error) note(*published.error);
  if (options_.values != nullptr) {
    std::vector<SequenceHash> arrived;
    for (std::size_t i = 0; i < batch.records.size(); ++i)
      if (published.registered[i]) arrived.push_back(batch.holds[i].sequence_hash());
    options_.values->arrived(before, move.from_, move.to_, arrived);
  }
  for (std::size_t i = 0; i < batch.records.size(); ++i) {
    ASHLAR_DCHECK(!published.registered[i] || !batch.damaged[i],
                  "block %zu of a move is registered and damaged", i);
    if (published.registered[i]) {
      move.report_.blocks[batch.places[i]] = Moved::kArrived;
      move.report_.bytes += move.to_.block_bytes();
    }
    if (!batch.damaged[i]) continue;
    move.report_.blocks[batch.places[i]] = Moved::kDamaged;
    const SequenceHash hash = batch.holds[i].sequence_hash();
    batch.holds[i] = block::Hold();
    if (const Result<void> removed = move.from_.remove(hash); !removed)
      ASHLAR_LOG(LogLevel::kWarn, "tiers", "a damaged block of %s cannot be removed: %s",
                 std::string(move.from_.name()).c_str(), removed.error().to_string().c_str());
  }
}

std::vector<BlockMover::Chunk> BlockMover::chunks_of(const Running& move, bool checked) const {
  const Batch& batch = *move.batch_;
  const std::size_t most =
      checked ? std::max<std::size_t>(1, kChunkBytes / std::max<std::uint64_t>(1, move.to_.block_bytes()))
              : batch.holds.size();
  std::vector<Chunk> chunks;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> open;
  for (std::size_t i = 0; i < batch.holds.size(); ++i) {
    const BytePool::Place source = move.from_.place(batch.holds[i].block_id());
    const BytePool::Place target = move.to_.place(batch.reservation->ids()[i]);
    const auto [found, fresh] = open.try_emplace({source.part, target.part}, chunks.size());
    if (fresh || chunks[found->second].members.size() >= most) {
      found->second = chunks.size();
      chunks.push_back({.from = source.part, .to = target.part, .sources = {}, .targets = {}, .members = {}});
    }
    Chunk& chunk = chunks[found->second];
    chunk.sources.push_back(source.slot);
    chunk.targets.push_back(target.slot);
    chunk.members.push_back(i);
  }
  ASHLAR_DCHECK(chunks.size() <= batch.holds.size(), "%zu blocks move in %zu chunks", batch.holds.size(),
                chunks.size());
  return chunks;
}

Result<Transfer> BlockMover::start(const Running& move, const Chunk& chunk,
                                   const transfer::PlanSelection& selection) {
  MoveControl* const control = move.options_.control;
  if (control != nullptr && control->cancelled()) return cancelled();
  ASHLAR_TRY(transfer::TransferPlan planned,
             transfer::plan(move.from_.blocks(chunk.from), chunk.sources, move.to_.blocks(chunk.to),
                            chunk.targets, selection));
  Result<Transfer> transfer = executor_.submit(
      {.plan = std::move(planned), .owned = move.batch_, .deadline = move.options_.deadline});
  if (transfer && control != nullptr) control->started(&move, *transfer);
  return transfer;
}

Result<TransferDone> BlockMover::copy_layers(const Running& move, const Chunk& chunk) {
  const layout::Range layers = move.to_.blocks(chunk.to)->planes()[0].shard.layers;
  Result<TransferDone> done = make_error(ErrorCode::kInvalidArgument, "a model without layers");
  for (std::uint32_t layer = 0; layer < layers.count; ++layer) {
    ASHLAR_TRY(const Transfer transfer,
               start(move, chunk, {.layers = layout::Range{layers.first + layer, 1}, .heads = {}}));
    done = transfer.wait_for_end();
    if (!done) return done;
    if (move.options_.on_layer) move.options_.on_layer(layer);
  }
  return done;
}

std::optional<TransferDone> BlockMover::wait(Running& move) {
  Batch& batch = *move.batch_;
  std::optional<TransferDone> proof;
  for (std::size_t c = 0; c < move.chunks_.size(); ++c) {
    const Chunk& chunk = move.chunks_[c];
    Result<TransferDone> done = move.options_.by_layer ? copy_layers(move, chunk)
                                : move.transfers_[c]   ? move.transfers_[c]->wait_for_end()
                                                       : Result<TransferDone>(move.transfers_[c].error());
    for (const std::size_t i : chunk.members) {
      Result<void> good = done ? Result<void>() : Result<void>(done.error());
      if (good) batch.records[i] = move.from_.record(batch.holds[i]);
      if (good && move.check_arrivals_) good = inspect(move.from_, move.to_, batch, i);
      if (good && is_disk(move.to_) && !batch.records[i].empty() && !batch.records[i].checksum)
        good = make_error(ErrorCode::kUnsupported, "checksums are made in host memory; %s is not",
                          std::string(move.from_.name()).c_str());
      if (good) continue;
      if (!move.report_.error) move.report_.error = good.error();
      if (stopped(move.options_, good.error(), clock_))
        move.report_.blocks[batch.places[i]] = Moved::kStopped;
      batch.reservation->not_written(i, good.error());
      batch.records[i] = {};
    }
    if (done) move.copied_ += done->stats.running;
    if (done) proof = *std::move(done);
  }
  move.transfers_.clear();
  if (move.options_.control != nullptr) move.options_.control->ended(&move);
  return proof;
}

void BlockMover::learn_checksum(BytePool& from, const block::Hold& hold) const {
  if (from.record(hold).checksum) return;
  const BytePool::Place place = from.place(hold.block_id());
  const Result<BlockChecksum> made =
      transfer::checksum_block(*from.blocks(place.part), place.slot, {hold.sequence_hash(), options_.keys});
  if (made) from.records().learn(hold, *made);
}

Result<void> BlockMover::inspect(BytePool& from, BytePool& to, Batch& batch, std::size_t i) const {
  TierRecord& record = batch.records[i];
  const BytePool::Place place = to.place(batch.reservation->ids()[i]);
  const BlockSet& set = *to.blocks(place.part);
  if (!set.host_accessible())
    return make_error(ErrorCode::kUnsupported, "blocks of %s are checked in host memory; %s is not",
                      std::string(from.name()).c_str(), std::string(to.name()).c_str());
  ASHLAR_TRY(const BlockChecksum found,
             transfer::checksum_block(set, place.slot, {record.hash, options_.keys}));
  if (record.checksum && *record.checksum != found) {
    ASHLAR_LOG(LogLevel::kError, "tiers",
               "block %s of %s is damaged: its checksum is %016llx and should be %016llx",
               record.hash.to_string().c_str(), std::string(from.name()).c_str(),
               static_cast<unsigned long long>(found.value()),
               static_cast<unsigned long long>(record.checksum->value()));
    batch.damaged[i] = true;
    record = {};
    return {};
  }
  record.checksum = found;
  return {};
}

Result<void> BlockMover::read_back(BytePool& to, Batch& batch) const {
  std::map<std::uint32_t, std::vector<std::size_t>> by_part;
  for (std::size_t i = 0; i < batch.records.size(); ++i)
    if (!batch.records[i].empty()) by_part[to.place(batch.reservation->ids()[i]).part].push_back(i);
  Result<void> all;
  for (const auto& [part, members] : by_part) {
    const Result<std::shared_ptr<const BlockSet>> scratch = read_part(to, part, batch, members);
    if (!scratch && all) all = scratch.error();
    for (std::size_t i = 0; i < members.size(); ++i) {
      TierRecord& record = batch.records[members[i]];
      if (!scratch) {
        batch.reservation->not_written(members[i], scratch.error());
        record = {};
        continue;
      }
      const Result<void> same =
          transfer::verify_block(**scratch, static_cast<std::uint32_t>(i), {record.hash, options_.keys},
                                 *record.checksum, to.storage_tier());
      if (same) continue;
      ASHLAR_LOG(LogLevel::kError, "tiers", "a block written to %s reads back differently: %s",
                 std::string(to.name()).c_str(), same.error().to_string().c_str());
      if (all) all = same;
      record = {};
    }
  }
  return all;
}

Result<std::shared_ptr<const BlockSet>> BlockMover::read_part(BytePool& to, std::uint32_t part,
                                                              const Batch& batch,
                                                              std::span<const std::size_t> members) const {
  const std::shared_ptr<const BlockSet>& set = to.blocks(part);
  std::vector<transfer::PlaneShape> shapes;
  for (const transfer::Plane& plane : set->planes()) {
    layout::LayoutConfig config = plane.layout.config();
    config.block_count = static_cast<std::uint32_t>(members.size());
    ASHLAR_TRY(const layout::Layout layout,
               layout::Layout::create(config, layout::order::kFullyContiguousNhd));
    shapes.push_back({layout, plane.shard});
  }
  storage::SystemAllocator memory;
  Result<std::shared_ptr<const BlockSet>> scratch = BlockSet::allocate(shapes, memory);
  if (!scratch) return scratch;
  std::vector<std::uint32_t> sources;
  std::vector<std::uint32_t> targets;
  for (std::size_t i = 0; i < members.size(); ++i) {
    sources.push_back(to.place(batch.reservation->ids()[members[i]]).slot);
    targets.push_back(static_cast<std::uint32_t>(i));
  }
  ASHLAR_TRY(transfer::TransferPlan planned, transfer::plan(set, sources, *scratch, targets));
  ASHLAR_TRY(const Transfer transfer, executor_.submit({.plan = std::move(planned)}));
  ASHLAR_RETURN_IF_ERROR(transfer.wait_for_end());
  return scratch;
}

}  // namespace ashlar::tiers
