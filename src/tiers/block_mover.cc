#include "ashlar/tiers/block_mover.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/log.h"

namespace ashlar::tiers {

using tokens::SequenceHash;
using transfer::BlockChecksum;
using transfer::TransferResult;

// What a transfer owns until it is done.
struct BlockMover::Batch {
  std::vector<block::Hold> holds;
  std::unique_ptr<Reservation> reservation;
  std::vector<std::size_t> places;  // in the report
};

std::size_t MoveReport::count(Moved what) const noexcept {
  return static_cast<std::size_t>(std::ranges::count(blocks, what));
}

MoveReport BlockMover::move(TierPool& from, TierPool& to, std::span<const SequenceHash> hashes,
                            std::optional<Clock::TimePoint> deadline) {
  MoveReport report;
  report.blocks.assign(hashes.size(), Moved::kGone);
  std::vector<block::Hold> holds;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (std::optional<block::Hold> hold = from.hold(hashes[i])) {
      holds.push_back(*std::move(hold));
      places.push_back(i);
    }
  MoveReport part = move(from, to, std::move(holds), deadline);
  for (std::size_t i = 0; i < places.size(); ++i) report.blocks[places[i]] = part.blocks[i];
  report.error = std::move(part.error);
  report.bytes = part.bytes;
  return report;
}

MoveReport BlockMover::move(TierPool& from, TierPool& to, std::vector<block::Hold> holds,
                            std::optional<Clock::TimePoint> deadline) {
  MoveReport report;
  report.blocks.assign(holds.size(), Moved::kFailed);
  const auto batch = std::make_shared<Batch>();
  std::vector<std::uint32_t> sources;
  for (std::size_t i = 0; i < holds.size(); ++i) {
    if (to.has(holds[i].sequence_hash())) {
      report.blocks[i] = Moved::kThere;
      continue;
    }
    sources.push_back(holds[i].block_id().value());
    batch->holds.push_back(std::move(holds[i]));
    batch->places.push_back(i);
  }
  holds.clear();
  if (sources.empty()) return report;
  const auto fail = [&](Error error) {
    report.error = std::move(error);
    return std::move(report);
  };
  Result<std::unique_ptr<Reservation>> reserved = to.reserve(sources.size());
  if (!reserved) return fail(reserved.error());
  batch->reservation = *std::move(reserved);
  Result<transfer::TransferPlan> planned =
      transfer::plan(from.blocks(), sources, to.blocks(), batch->reservation->slots());
  if (!planned) return fail(planned.error());
  const Result<transfer::Transfer> transfer =
      executor_.submit({.plan = *std::move(planned), .owned = batch, .deadline = deadline});
  if (!transfer) return fail(transfer.error());
  const TransferResult done = transfer->wait_for_end();
  if (!done) return fail(done.error());

  Result<std::vector<Arrival>> arrivals = inspect(from, to, *batch);
  if (!arrivals) return fail(arrivals.error());
  if (const Result<void> published = batch->reservation->publish(*arrivals, *done); !published)
    return fail(published.error());
  for (std::size_t i = 0; i < arrivals->size(); ++i) {
    const bool damaged = (*arrivals)[i].hash == SequenceHash();
    report.blocks[batch->places[i]] = damaged ? Moved::kDamaged : Moved::kArrived;
    if (!damaged) report.bytes += to.blocks()->block_bytes();
    if (!damaged) continue;
    const SequenceHash hash = batch->holds[i].sequence_hash();
    batch->holds[i] = block::Hold();
    if (const Result<void> removed = from.remove(hash); !removed)
      ASHLAR_LOG(LogLevel::kWarn, "tiers", "a damaged block of %s cannot be removed: %s",
                 std::string(from.name()).c_str(), removed.error().to_string().c_str());
  }
  return report;
}

Result<std::vector<Arrival>> BlockMover::inspect(TierPool& from, TierPool& to, const Batch& batch) {
  std::vector<Arrival> arrivals(batch.holds.size());
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const SequenceHash hash = batch.holds[i].sequence_hash();
    const std::optional<BlockChecksum> known = from.checksum(batch.holds[i].block_id().value());
    const std::uint32_t slot = batch.reservation->slots()[i];
    arrivals[i].hash = hash;
    if (known && from.storage_tier() != events::StorageTier::kDisk) {
      arrivals[i].checksum = *known;  // it was right when it came into memory
      continue;
    }
    if (!to.blocks()->host_accessible()) {
      if (!known) continue;  // neither end can be read by the host, and neither keeps checksums
      return make_error(ErrorCode::kUnsupported, "blocks of %s are checked in host memory; %s is not",
                        std::string(from.name()).c_str(), std::string(to.name()).c_str());
    }
    const Result<BlockChecksum> found = transfer::checksum_block(*to.blocks(), slot, {hash, keys_});
    if (!found) return found.error();
    arrivals[i].checksum = *found;
    if (!known || *known == *found) continue;
    ASHLAR_LOG(
        LogLevel::kError, "tiers", "block %s of %s is damaged: its checksum is %016llx and should be %016llx",
        hash.to_string().c_str(), std::string(from.name()).c_str(),
        static_cast<unsigned long long>(found->value()), static_cast<unsigned long long>(known->value()));
    arrivals[i].hash = SequenceHash();
  }
  return arrivals;
}

}  // namespace ashlar::tiers
