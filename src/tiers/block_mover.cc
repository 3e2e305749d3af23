#include "ashlar/tiers/block_mover.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ashlar/base/log.h"
#include "ashlar/storage/allocator.h"

namespace ashlar::tiers {

namespace {

// What is checked at a time, while the rest is copied.
constexpr std::uint64_t kChunkBytes = std::uint64_t{2} << 20;

}  // namespace

using block::BlockId;
using tokens::SequenceHash;
using transfer::BlockChecksum;
using transfer::BlockSet;
using transfer::Transfer;
using transfer::TransferDone;
using transfer::TransferResult;

// What a transfer owns until it is done.
struct BlockMover::Batch {
  std::vector<block::Hold> holds;
  std::unique_ptr<Reservation> reservation;
  std::vector<std::size_t> places;   // in the report
  std::vector<BlockRecord> records;  // of those that have arrived so far; empty: it has not
  std::vector<bool> damaged;
};

// Blocks that go from one set to another together.
struct BlockMover::Chunk {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::vector<std::uint32_t> sources;
  std::vector<std::uint32_t> targets;
  std::vector<std::size_t> members;  // in the batch
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
  MoveReport report;
  report.blocks.assign(holds.size(), Moved::kFailed);
  const auto batch = std::make_shared<Batch>();
  for (std::size_t i = 0; i < holds.size(); ++i) {
    if (to.has(holds[i].sequence_hash())) {
      report.blocks[i] = Moved::kThere;
      continue;
    }
    batch->holds.push_back(std::move(holds[i]));
    batch->places.push_back(i);
  }
  holds.clear();
  const std::size_t count = batch->holds.size();
  if (count == 0) return report;
  const auto note = [&](const Error& error) {
    if (!report.error) report.error = error;
  };
  Result<std::unique_ptr<Reservation>> reserved = to.reserve(count);
  if (!reserved) {
    note(reserved.error());
    return report;
  }
  batch->reservation = *std::move(reserved);
  batch->records.resize(count);
  batch->damaged.resize(count);
  if (options.on_reserved) {
    std::vector<std::optional<BlockId>> ids(report.blocks.size());
    for (std::size_t i = 0; i < count; ++i) ids[batch->places[i]] = batch->reservation->ids()[i];
    options.on_reserved(ids);
  }
  const std::optional<TransferDone> proof = copy(from, to, batch, options, report);
  if (!proof) return report;
  if (options_.read_back_after_write && to.storage_tier() == events::StorageTier::kDisk)
    if (const Result<void> good = read_back(to, *batch); !good) note(good.error());
  // Where blocks are computed none is kept: bytes that were computed again may differ, and be as good.
  if (to.storage_tier() == events::StorageTier::kDevice)
    for (BlockRecord& record : batch->records) record.checksum.reset();
  const Published published = batch->reservation->publish(batch->records, proof->kv_ready());
  if (published.error) note(*published.error);
  for (std::size_t i = 0; i < count; ++i) {
    if (published.registered[i]) {
      report.blocks[batch->places[i]] = Moved::kArrived;
      report.bytes += to.block_bytes();
    }
    if (!batch->damaged[i]) continue;
    report.blocks[batch->places[i]] = Moved::kDamaged;
    const SequenceHash hash = batch->holds[i].sequence_hash();
    batch->holds[i] = block::Hold();
    if (const Result<void> removed = from.remove(hash); !removed)
      ASHLAR_LOG(LogLevel::kWarn, "tiers", "a damaged block of %s cannot be removed: %s",
                 std::string(from.name()).c_str(), removed.error().to_string().c_str());
  }
  return report;
}

std::vector<BlockMover::Chunk> BlockMover::chunks_of(BytePool& from, BytePool& to, const Batch& batch,
                                                     bool checked) const {
  const std::size_t most =
      checked ? std::max<std::size_t>(1, kChunkBytes / std::max<std::uint64_t>(1, to.block_bytes()))
              : batch.holds.size();
  std::vector<Chunk> chunks;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> open;
  for (std::size_t i = 0; i < batch.holds.size(); ++i) {
    const BytePool::Place source = from.place(batch.holds[i].block_id());
    const BytePool::Place target = to.place(batch.reservation->ids()[i]);
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
  return chunks;
}

Result<Transfer> BlockMover::start(BytePool& from, BytePool& to, const std::shared_ptr<Batch>& batch,
                                   const Chunk& chunk, const transfer::PlanSelection& selection,
                                   const MoveOptions& options) {
  if (options.control != nullptr && options.control->cancelled())
    return make_error(ErrorCode::kCancelled, "the move was cancelled");
  Result<transfer::TransferPlan> planned =
      transfer::plan(from.blocks(chunk.from), chunk.sources, to.blocks(chunk.to), chunk.targets, selection);
  if (!planned) return planned.error();
  Result<Transfer> transfer =
      executor_.submit({.plan = *std::move(planned), .owned = batch, .deadline = options.deadline});
  if (transfer && options.control != nullptr) options.control->started(*transfer);
  return transfer;
}

Result<TransferDone> BlockMover::copy_layers(BytePool& from, BytePool& to,
                                             const std::shared_ptr<Batch>& batch, const Chunk& chunk,
                                             const MoveOptions& options) {
  const layout::Range layers = to.blocks(chunk.to)->planes()[0].shard.layers;
  Result<TransferDone> done = make_error(ErrorCode::kInvalidArgument, "a model without layers");
  for (std::uint32_t layer = 0; layer < layers.count; ++layer) {
    const Result<Transfer> transfer = start(
        from, to, batch, chunk, {.layers = layout::Range{layers.first + layer, 1}, .heads = {}}, options);
    if (!transfer) return transfer.error();
    done = transfer->wait_for_end();
    if (!done) return done;
    if (options.on_layer) options.on_layer(layer);
  }
  return done;
}

std::optional<TransferDone> BlockMover::copy(BytePool& from, BytePool& to,
                                             const std::shared_ptr<Batch>& batch, const MoveOptions& options,
                                             MoveReport& report) {
  const auto is_disk = [](const BytePool& pool) { return pool.storage_tier() == events::StorageTier::kDisk; };
  const bool check_arrivals =
      is_disk(from) || (options_.checksum_on_arrival && to.storage_tier() == events::StorageTier::kHost);
  const std::vector<Chunk> chunks =
      chunks_of(from, to, *batch, !options.by_layer && (check_arrivals || is_disk(to)));
  const Clock::TimePoint begin = clock_.now();
  std::vector<Result<Transfer>> running;
  if (!options.by_layer)
    for (const Chunk& chunk : chunks) running.push_back(start(from, to, batch, chunk, {}, options));
  if (is_disk(to))
    for (const block::Hold& hold : batch->holds) learn_checksum(from, hold);
  std::optional<TransferDone> proof;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    Result<TransferDone> done = options.by_layer ? copy_layers(from, to, batch, chunks[c], options)
                                : running[c]     ? running[c]->wait_for_end()
                                                 : Result<TransferDone>(running[c].error());
    for (const std::size_t i : chunks[c].members) {
      Result<void> good = done ? Result<void>() : Result<void>(done.error());
      if (good) batch->records[i] = from.record(batch->holds[i]);
      if (good && check_arrivals) good = inspect(from, to, *batch, i);
      if (good && is_disk(to) && !batch->records[i].empty() && !batch->records[i].checksum)
        good = make_error(ErrorCode::kUnsupported, "checksums are made in host memory; %s is not",
                          std::string(from.name()).c_str());
      if (good) continue;
      if (!report.error) report.error = good.error();
      batch->reservation->not_written(i, good.error());
      batch->records[i] = {};
    }
    if (done) proof = *std::move(done);
  }
  if (options.control != nullptr) options.control->ended();
  report.copying = clock_.now() - begin;
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
  BlockRecord& record = batch.records[i];
  const BytePool::Place place = to.place(batch.reservation->ids()[i]);
  const BlockSet& set = *to.blocks(place.part);
  if (!set.host_accessible())
    return make_error(ErrorCode::kUnsupported, "blocks of %s are checked in host memory; %s is not",
                      std::string(from.name()).c_str(), std::string(to.name()).c_str());
  const Result<BlockChecksum> found = transfer::checksum_block(set, place.slot, {record.hash, options_.keys});
  if (!found) return found.error();
  if (record.checksum && *record.checksum != *found) {
    ASHLAR_LOG(LogLevel::kError, "tiers",
               "block %s of %s is damaged: its checksum is %016llx and should be %016llx",
               record.hash.to_string().c_str(), std::string(from.name()).c_str(),
               static_cast<unsigned long long>(found->value()),
               static_cast<unsigned long long>(record.checksum->value()));
    batch.damaged[i] = true;
    record = {};
    return {};
  }
  record.checksum = *found;
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
      BlockRecord& record = batch.records[members[i]];
      if (!scratch) {
        batch.reservation->not_written(members[i], scratch.error());
        record = {};
        continue;
      }
      const Result<void> same =
          transfer::verify_block(**scratch, static_cast<std::uint32_t>(i), {record.hash, options_.keys},
                                 *record.checksum, to.storage_tier());
      if (same) continue;
      ASHLAR_LOG(LogLevel::kError, "tiers", "what was written to %s reads back differently: %s",
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
    config.num_blocks = static_cast<std::uint32_t>(members.size());
    const Result<layout::Layout> layout = layout::Layout::create(config, layout::order::kFullyContiguousNhd);
    if (!layout) return layout.error();
    shapes.push_back({*layout, plane.shard});
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
  Result<transfer::TransferPlan> planned = transfer::plan(set, sources, *scratch, targets);
  if (!planned) return planned.error();
  const Result<Transfer> transfer = executor_.submit({.plan = *std::move(planned)});
  if (!transfer) return transfer.error();
  if (const TransferResult done = transfer->wait_for_end(); !done) return done.error();
  return scratch;
}

}  // namespace ashlar::tiers
