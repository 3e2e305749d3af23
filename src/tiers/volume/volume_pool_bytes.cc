// Moves blocks of host memory to objects, and back.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/block_checksum.h"
#include "base/in_parallel.h"
#include "base/interleaving.h"
#include "tiers/volume/volume_pool.h"
#include "tiers/volume/volume_pool_parts.h"

namespace ashlar::tiers {

using block::BlockId;
using events::G4;
using tokens::SequenceHash;
using transfer::BlockSet;

namespace {

CallLimits limits_of(const MoveOptions& options) {
  return {.deadline = options.deadline,
          .stop = options.control == nullptr ? std::stop_token() : options.control->stop_token()};
}

}  // namespace

MoveReport VolumePool::put(BytePool& from, std::vector<block::Hold> holds, const MoveOptions& options) {
  const CallLimits limits = limits_of(options);
  MoveReport report;
  report.blocks.assign(holds.size(), Moved::kFailed);
  const auto fail = [&](const Error& error, std::span<const std::size_t> members, Moved how) {
    if (!report.error) report.error = error;
    for (const std::size_t i : members) report.blocks[i] = how;
  };
  std::map<Number, std::vector<std::size_t>> by_volume;
  for (std::size_t i = 0; i < holds.size(); ++i) {
    const SequenceHash& hash = holds[i].sequence_hash();
    if (has(hash)) {
      report.blocks[i] = Moved::kPresent;
      continue;
    }
    const std::optional<Number> number = choose(hash);
    if (!number) {
      fail(make_error(ErrorCode::kUnavailable, "no writable volume is attached and reachable"),
           std::span(&i, 1), Moved::kFailed);
      continue;
    }
    by_volume[*number].push_back(i);
  }
  const Clock::TimePoint start = clock_.now();
  for (const auto& [number, members] : by_volume) {
    const Use volume = use(number);
    if (!volume) {
      fail(make_error(ErrorCode::kUnavailable, "the volume of %zu blocks was detached", members.size()),
           members, Moved::kFailed);
      continue;
    }
    std::vector<ObjectClaims::Object> objects;
    for (const std::size_t i : members) objects.emplace_back(number, holds[i].sequence_hash());
    const UseLimits while_used(limits, volume);
    interleaving_point("volume_pool.before_claim");
    // Waits for removals of these objects.
    const std::shared_ptr<const ObjectClaims::Claim> claim =
        claims_->take(std::move(objects), ObjectClaims::Kind::kShared, bounded(while_used.get()), clock_);
    if (const Result<void> wanted = still_wanted(limits, clock_, members.size()); !wanted) {
      fail(wanted.error(), members, Moved::kStopped);
      continue;
    }
    if (claim == nullptr) {
      fail(volume->stop.stop_requested()
               ? why_left(*volume, limits)
               : make_error(ErrorCode::kUnavailable, "%s: the objects to put are still being removed",
                            volume->volume->describe().c_str()),
           members, Moved::kFailed);
      continue;
    }
    Result<ReservedBlocks<G4>> taken = take(members.size(), while_used.get());
    if (!taken) {
      fail(taken.error(), members, Moved::kFailed);
      continue;
    }
    std::vector<TierRecord> records;
    std::vector<std::string> keys;
    for (const std::size_t i : members) keys.push_back(object_of({.hash = holds[i].sequence_hash()}).key());
    const auto images = std::make_shared<const Images>(std::move(keys), block_bytes());
    for (std::size_t at = 0; at < members.size(); ++at) {
      const std::size_t i = members[at];
      const BytePool::Place place = from.place(holds[i].block_id());
      const BlockSet& set = *from.blocks(place.part);
      TierRecord record = from.record(holds[i]);
      if (!record.checksum) {
        const auto made = transfer::checksum_block(set, place.slot, {record.hash, options_.shape.keys});
        if (made) record.checksum = *made;
        if (made) from.records().learn(holds[i], *made);
      }
      images->gather(at, set, place.slot);
      std::ranges::copy(object_of(record).encode(), images->header(at).begin());
      records.push_back(record);
    }
    const std::vector<Result<void>> written = call<Result<void>>(
        volume, members.size(), limits,
        [images, claim](Volume& its, const CallLimits& how) { return its.put(images->writes, how); });
    const std::vector<Place> places(members.size(), number);
    for (std::size_t i = 0; i < members.size(); ++i) {
      Result<void> good = written[i];
      if (good && options_.read_back_after_write) good = check_written(volume, records[i], from, limits);
      if (good) {
        volume->put.add();
        continue;
      }
      if (is_stop(good.error(), limits)) {
        report.blocks[members[i]] = Moved::kStopped;
      } else {
        note(*volume, good.error());
      }
      if (!report.error) report.error = good.error();
      records[i] = {};
    }
    publish(*taken, records, places, report, members);
    report.bytes +=
        block_bytes() * static_cast<std::uint64_t>(std::ranges::count_if(
                            members, [&](std::size_t i) { return report.blocks[i] == Moved::kArrived; }));
  }
  report.copying = clock_.now() - start;
  return report;
}

Result<void> VolumePool::check_written(const Use& volume, const TierRecord& record, const BytePool& from,
                                       const CallLimits& limits) {
  const VolumeObject wanted = object_of(record);
  const auto images = std::make_shared<const Images>(std::vector{wanted.key()}, block_bytes());
  const auto get = [images](Volume& its, const CallLimits& how) { return its.get(images->reads, how); };
  ASHLAR_RETURN_IF_ERROR(call<Result<void>>(volume, 1, limits, get)[0]);
  ASHLAR_TRY(const VolumeObject found, VolumeObject::decode(images->header(0)));
  ASHLAR_RETURN_IF_ERROR(wanted.expect(found));
  // The bytes in canonical form, as a separate block.
  std::vector<transfer::PlaneShape> shapes;
  for (const transfer::Plane& plane : from.blocks()->planes()) {
    layout::LayoutConfig config = plane.layout.config();
    config.block_count = 1;
    config.alignment = 1;
    ASHLAR_TRY(const layout::Layout layout,
               layout::Layout::create(config, layout::order::kFullyContiguousNhd));
    shapes.push_back({layout, plane.shard});
  }
  storage::SystemAllocator memory;
  ASHLAR_TRY(const std::shared_ptr<const BlockSet> scratch, BlockSet::allocate(shapes, memory));
  images->scatter(0, *scratch, 0);
  return transfer::verify_block(*scratch, 0, {record.hash, options_.shape.keys}, *record.checksum,
                                storage_tier());
}

// One batched read from one volume.
struct VolumePool::Reading {
  Number number;
  const Use& volume;
  std::vector<std::size_t> members;  // of the call
  std::unique_ptr<Reservation> reservation;
  std::vector<std::string> keys = {};
  std::vector<Result<void>> results = {};
  std::vector<TierRecord> records = {};  // of the valid ones
};

MoveReport VolumePool::get(std::span<const SequenceHash> hashes, BytePool& to, const MoveOptions& options) {
  const CallLimits limits = limits_of(options);
  MoveReport report;
  report.blocks.assign(hashes.size(), Moved::kGone);
  if (!to.blocks()->host_accessible()) {
    report.blocks.assign(hashes.size(), Moved::kFailed);
    report.error =
        make_error(ErrorCode::kUnsupported, "blocks of volumes are checked in host memory; %s is not",
                   std::string(to.name()).c_str());
    return report;
  }
  std::vector<block::Hold> holds(hashes.size());
  std::map<Number, std::vector<std::size_t>> by_volume;
  std::map<Place, std::vector<std::size_t>> by_origin;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (to.has(hashes[i])) {
      report.blocks[i] = Moved::kPresent;
      continue;
    }
    std::optional<block::Hold> held = hold(hashes[i]);
    if (!held) continue;
    holds[i] = *std::move(held);
    const Place place = where_[holds[i].block_id().value()];
    if (place < kFirstOrigin) {
      by_volume[static_cast<Number>(place)].push_back(i);
    } else {
      by_origin[place].push_back(i);
    }
  }
  const Clock::TimePoint start = clock_.now();
  for (auto& [number, members] : by_volume) {
    const Use volume = use(number);
    if (!volume) continue;  // detached
    const auto fail = [&](const Error& error, Moved how = Moved::kFailed) {
      if (!report.error) report.error = error;
      for (const std::size_t i : members) report.blocks[i] = how;
    };
    if (const Result<void> wanted = still_wanted(limits, clock_, members.size()); !wanted) {
      fail(wanted.error(), Moved::kStopped);
      continue;
    }
    if (rests(*volume)) {
      fail(make_error(ErrorCode::kUnavailable, "%s could not be reached and is left alone for a while",
                      volume->volume->describe().c_str()));
      continue;
    }
    Result<std::unique_ptr<Reservation>> reserved = to.reserve(members.size());
    if (!reserved) {
      fail(reserved.error());
      continue;
    }
    Reading reading{.number = number,
                    .volume = volume,
                    .members = std::move(members),
                    .reservation = *std::move(reserved)};
    read(reading, hashes, holds, to, report, limits);
    const Published published =
        reading.reservation->publish(reading.records, block::KvReady::asserted_by_caller());
    if (published.error && !report.error) report.error = published.error;
    for (std::size_t i = 0; i < reading.members.size(); ++i) {
      if (published.registered[i]) {
        report.blocks[reading.members[i]] = Moved::kArrived;
        report.bytes += block_bytes();
      } else if (!reading.records[i].empty()) {
        report.blocks[reading.members[i]] = Moved::kFailed;
      }
    }
  }
  for (const auto& [place, members] : by_origin)
    get_others(place, members, hashes, holds, to, report, limits);
  report.copying = clock_.now() - start;
  return report;
}

void VolumePool::read(Reading& reading, std::span<const SequenceHash> hashes, std::span<block::Hold> holds,
                      BytePool& to, MoveReport& report, const CallLimits& limits) {
  const std::size_t count = reading.members.size();
  for (const std::size_t member : reading.members)
    reading.keys.push_back(object_of({.hash = hashes[member]}).key());
  reading.results.resize(count);
  reading.records.resize(count);
  // Each part is read and checked on one thread.
  const std::size_t parts =
      std::min<std::size_t>({count, kReadThreads, std::max(1u, std::thread::hardware_concurrency())});
  in_parallel(parts, parts, [&](std::size_t part) {
    const std::size_t first = count * part / parts;
    const std::size_t end = count * (part + 1) / parts;
    const auto from = reading.keys.begin() + static_cast<std::ptrdiff_t>(first);
    const auto images = std::make_shared<const Images>(
        std::vector<std::string>(from, from + static_cast<std::ptrdiff_t>(end - first)), block_bytes());
    std::vector<Result<void>> got = call<Result<void>>(
        reading.volume, end - first, limits,
        [images](Volume& its, const CallLimits& how) { return its.get(images->reads, how); });
    for (std::size_t i = first; i < end; ++i) {
      reading.results[i] = std::move(got[i - first]);
      if (!reading.results[i]) continue;
      const BlockId id = reading.reservation->ids()[i];
      const BytePool::Place place = to.place(id);
      images->scatter(i - first, *to.blocks(place.part), place.slot);
      reading.results[i] =
          inspect(holds[reading.members[i]], images->header(i - first), to, id, &reading.records[i]);
    }
  });
  for (std::size_t i = 0; i < count; ++i) settle(reading, i, hashes, holds, report, limits);
}

// An object read is valid, missing or damaged.
void VolumePool::settle(Reading& reading, std::size_t i, std::span<const SequenceHash> hashes,
                        std::span<block::Hold> holds, MoveReport& report, const CallLimits& limits) {
  const std::size_t member = reading.members[i];
  const Use& volume = reading.volume;
  const Result<void>& good = reading.results[i];
  if (good) {
    volume->got.add();
    return;
  }
  reading.records[i] = {};
  block::Hold held = std::move(holds[member]);
  const ErrorCode code = good.error().code();
  if (code == ErrorCode::kNotFound) {  // another user of the volume has removed it
    held = {};
    forget(hashes[member], reading.number);
    return;
  }
  if (!report.error) report.error = good.error();
  if (is_stop(good.error(), limits)) {
    report.blocks[member] = Moved::kStopped;
    return;
  }
  note(*volume, good.error());
  report.blocks[member] = code == ErrorCode::kCorruption ? Moved::kDamaged : Moved::kFailed;
  if (code != ErrorCode::kCorruption) return;
  ASHLAR_LOG(LogLevel::kError, "tiers", "%s: %s", volume->volume->describe().c_str(),
             good.error().to_string().c_str());
  // While it is held, its hash has no other block: the object is the damaged one, unless another call is
  // putting or removing it.
  const std::shared_ptr<const ObjectClaims::Claim> claim =
      claims_->take_free({{reading.number, hashes[member]}}, ObjectClaims::Kind::kAlone);
  if (volume->use.write && claim->has({reading.number, hashes[member]}))
    if (const Result<void> removed = remove_keys(volume, {reading.keys[i]}, limits, claim)[0]; !removed)
      ASHLAR_LOG(LogLevel::kWarn, "tiers", "a damaged object stays on %s: %s",
                 volume->volume->describe().c_str(), removed.error().to_string().c_str());
  held = {};
  forget(hashes[member], reading.number);
}

// An object is trusted only once its header matches the request and its bytes match the header. The checksum
// may differ from the one written here: another process may have computed the block and written it again.
Result<void> VolumePool::inspect(const block::Hold& hold, std::span<const std::byte> header, BytePool& to,
                                 BlockId id, TierRecord* out) const {
  const TierRecord known = record(hold);
  Result<VolumeObject> found = VolumeObject::decode(header);
  if (!found && found.error().code() == ErrorCode::kUnsupported)
    return found.error();  // from a newer program: unusable, but not damaged
  if (!found) return make_error(ErrorCode::kCorruption, "%s", found.error().message().c_str());
  if (const Result<void> same = object_of({.hash = known.hash}).expect(*found); !same) return same;
  const BytePool::Place place = to.place(id);
  if (const Result<void> same =
          transfer::verify_block(*to.blocks(place.part), place.slot, {known.hash, options_.shape.keys},
                                 found->checksum, storage_tier());
      !same)
    return same;
  *out = TierRecord::read_from(*found);
  out->checksum = found->checksum;
  keep_values(hold, *out);
  return {};
}

}  // namespace ashlar::tiers
