// Blocks of host memory to objects, and back.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "ashlar/base/log.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/tiers/volume_pool.h"
#include "ashlar/transfer/block_checksum.h"
#include "base/in_parallel.h"
#include "tiers/volume_pool_parts.h"
#include "transfer/canonical_runs.h"

namespace ashlar::tiers {

using block::BlockId;
using events::G4;
using tokens::SequenceHash;
using transfer::BlockSet;

namespace {

// Runs shorter than this go through a buffer: volumes like few long parts.
constexpr std::uint64_t kShortRun = 16384;
constexpr std::size_t kReadThreads = 4;

// Errors: kCancelled, kTimeout: the rest of a move is not to be done.
Result<void> still_wanted(const MoveOptions& options, const Clock& clock, std::size_t blocks) {
  if (options.control != nullptr && options.control->cancelled())
    return make_error(ErrorCode::kCancelled, "the move was cancelled");
  if (options.deadline && clock.now() >= *options.deadline)
    return make_error(ErrorCode::kTimeout, "the deadline came before %zu blocks had moved", blocks);
  return {};
}

}  // namespace

// The bytes of an object: its header, and its block where it lies or in a buffer.
struct VolumePool::Payload {
  Payload(const BlockSet& set, std::uint32_t slot) {
    std::vector<std::span<std::byte>> runs;
    for (std::size_t plane = 0; plane < set.planes().size(); ++plane)
      transfer::for_each_run(set, plane, slot, [&](std::byte* at, std::uint64_t bytes) {
        if (!runs.empty() && runs.back().data() + runs.back().size() == at) {
          runs.back() = {runs.back().data(), runs.back().size() + bytes};
        } else {
          runs.emplace_back(at, bytes);
        }
      });
    parts.emplace_back(header);
    if (set.block_bytes() / runs.size() < kShortRun) {
      staged = std::move(runs);
      buffer.resize(set.block_bytes());
      parts.emplace_back(buffer);
    } else {
      parts.insert(parts.end(), runs.begin(), runs.end());
    }
  }
  void gather() {
    std::byte* at = buffer.data();
    for (const std::span<std::byte> run : staged) {
      std::memcpy(at, run.data(), run.size());
      at += run.size();
    }
  }
  void scatter() const {
    const std::byte* at = buffer.data();
    for (const std::span<std::byte> run : staged) {
      std::memcpy(run.data(), at, run.size());
      at += run.size();
    }
  }
  std::vector<std::span<const std::byte>> to_write() const { return {parts.begin(), parts.end()}; }

  std::array<std::byte, VolumeObject::kHeaderBytes> header = {};
  std::vector<std::span<std::byte>> parts;
  std::vector<std::span<std::byte>> staged;
  std::vector<std::byte> buffer;
};

MoveReport VolumePool::put(BytePool& from, std::vector<block::Hold> holds, const MoveOptions& options) {
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
      report.blocks[i] = Moved::kThere;
      continue;
    }
    const std::optional<Number> number = choose(hash);
    if (!number) {
      fail(make_error(ErrorCode::kUnavailable, "no volume that takes blocks is attached and can be reached"),
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
    if (const Result<void> wanted = still_wanted(options, clock_, members.size()); !wanted) {
      fail(wanted.error(), members, Moved::kStopped);
      continue;
    }
    Result<ReservedBlocks<G4>> taken = take(members.size());
    if (!taken) {
      fail(taken.error(), members, Moved::kFailed);
      continue;
    }
    std::vector<std::unique_ptr<Payload>> payloads;
    std::vector<BlockRecord> records;
    std::vector<std::string> keys;
    std::vector<std::vector<std::span<const std::byte>>> parts;
    std::vector<ObjectWrite> objects;
    for (const std::size_t i : members) {
      const BytePool::Place place = from.place(holds[i].block_id());
      const BlockSet& set = *from.blocks(place.part);
      BlockRecord record = from.record(holds[i]);
      if (!record.checksum) {
        const auto made = transfer::checksum_block(set, place.slot, {record.hash, options_.shape.keys});
        if (made) record.checksum = *made;
        if (made) from.records().learn(holds[i], *made);
      }
      payloads.push_back(std::make_unique<Payload>(set, place.slot));
      payloads.back()->gather();
      payloads.back()->header = object_of(record).encode();
      records.push_back(record);
      keys.push_back(object_of(record).key());
      parts.push_back(payloads.back()->to_write());
    }
    for (std::size_t i = 0; i < members.size(); ++i) objects.push_back({keys[i], parts[i]});
    const std::vector<Result<void>> written = volume->volume->put(objects);
    const std::vector<Number> numbers(members.size(), number);
    for (std::size_t i = 0; i < members.size(); ++i) {
      Result<void> good = written[i];
      if (good && options_.read_back_after_write) good = check_written(*volume->volume, records[i], from);
      if (good) {
        volume->put.add();
        continue;
      }
      note(*volume, good.error());
      if (!report.error) report.error = good.error();
      records[i] = {};
    }
    publish(*taken, records, numbers, report, members);
    report.bytes +=
        block_bytes() * static_cast<std::uint64_t>(std::ranges::count_if(
                            members, [&](std::size_t i) { return report.blocks[i] == Moved::kArrived; }));
  }
  report.copying = clock_.now() - start;
  return report;
}

Result<void> VolumePool::check_written(Volume& volume, const BlockRecord& record,
                                       const BytePool& from) const {
  std::array<std::byte, VolumeObject::kHeaderBytes> header;
  std::vector<std::byte> bytes(from.block_bytes());
  const std::array<std::span<std::byte>, 2> parts = {std::span<std::byte>(header),
                                                     std::span<std::byte>(bytes)};
  const VolumeObject wanted = object_of(record);
  const std::string key = wanted.key();
  const ObjectRead read{key, parts};
  if (const Result<void> got = volume.get(std::span(&read, 1))[0]; !got) return got;
  const Result<VolumeObject> found = VolumeObject::decode(header);
  if (!found) return found.error();
  if (const Result<void> same = wanted.expect(*found); !same) return same;
  // The bytes in canonical form, as a block of their own.
  std::vector<transfer::PlaneShape> shapes;
  for (const transfer::Plane& plane : from.blocks()->planes()) {
    layout::LayoutConfig config = plane.layout.config();
    config.num_blocks = 1;
    config.alignment = 1;
    const Result<layout::Layout> layout = layout::Layout::create(config, layout::order::kFullyContiguousNhd);
    if (!layout) return layout.error();
    shapes.push_back({*layout, plane.shard});
  }
  storage::SystemAllocator memory;
  const Result<std::shared_ptr<const BlockSet>> scratch = BlockSet::allocate(shapes, memory);
  if (!scratch) return scratch.error();
  const std::byte* at = bytes.data();
  for (std::size_t plane = 0; plane < shapes.size(); ++plane)
    transfer::for_each_run(**scratch, plane, 0, [&](std::byte* to, std::uint64_t count) {
      std::memcpy(to, at, count);
      at += count;
    });
  return transfer::verify_block(**scratch, 0, {record.hash, options_.shape.keys}, *record.checksum,
                                storage_tier());
}

// What is read from one volume in one go.
struct VolumePool::Reading {
  Number number;
  const Use& volume;
  std::vector<std::size_t> members;  // of the call
  std::unique_ptr<Reservation> reservation;
  std::vector<std::unique_ptr<Payload>> payloads;
  std::vector<std::string> keys;
  std::vector<ObjectRead> objects;
  std::vector<Result<void>> results;
  std::vector<BlockRecord> records;  // of those that are good
};

MoveReport VolumePool::get(std::span<const SequenceHash> hashes, BytePool& to, const MoveOptions& options) {
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
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (to.has(hashes[i])) {
      report.blocks[i] = Moved::kThere;
      continue;
    }
    std::optional<block::Hold> held = hold(hashes[i]);
    if (!held) continue;
    holds[i] = *std::move(held);
    by_volume[where_[holds[i].block_id().value()]].push_back(i);
  }
  const Clock::TimePoint start = clock_.now();
  for (auto& [number, members] : by_volume) {
    const Use volume = use(number);
    if (!volume) continue;  // gone
    const auto fail = [&](const Error& error, Moved how = Moved::kFailed) {
      if (!report.error) report.error = error;
      for (const std::size_t i : members) report.blocks[i] = how;
    };
    if (const Result<void> wanted = still_wanted(options, clock_, members.size()); !wanted) {
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
                    .reservation = *std::move(reserved),
                    .payloads = {},
                    .keys = {},
                    .objects = {},
                    .results = {},
                    .records = {}};
    read(reading, hashes, holds, to, report);
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
  report.copying = clock_.now() - start;
  return report;
}

void VolumePool::read(Reading& reading, std::span<const SequenceHash> hashes, std::span<block::Hold> holds,
                      BytePool& to, MoveReport& report) {
  const std::size_t count = reading.members.size();
  for (std::size_t i = 0; i < count; ++i) {
    const BytePool::Place place = to.place(reading.reservation->ids()[i]);
    reading.payloads.push_back(std::make_unique<Payload>(*to.blocks(place.part), place.slot));
    reading.keys.push_back(object_of({.hash = hashes[reading.members[i]]}).key());
  }
  for (std::size_t i = 0; i < count; ++i)
    reading.objects.push_back({reading.keys[i], reading.payloads[i]->parts});
  reading.results.resize(count);
  reading.records.resize(count);
  // Each part is read and checked on one thread.
  const std::size_t parts =
      std::min<std::size_t>({count, kReadThreads, std::max(1u, std::thread::hardware_concurrency())});
  in_parallel(parts, parts, [&](std::size_t part) {
    const std::size_t first = count * part / parts;
    const std::size_t end = count * (part + 1) / parts;
    std::vector<Result<void>> got =
        reading.volume->volume->get(std::span(reading.objects).subspan(first, end - first));
    for (std::size_t i = first; i < end; ++i) {
      reading.results[i] = std::move(got[i - first]);
      if (!reading.results[i]) continue;
      reading.payloads[i]->scatter();
      reading.results[i] = inspect(holds[reading.members[i]], reading.payloads[i]->header, to,
                                   reading.reservation->ids()[i], &reading.records[i]);
    }
  });
  for (std::size_t i = 0; i < count; ++i) settle(reading, i, hashes, holds, report);
}

// What has been read is good, gone or damaged.
void VolumePool::settle(Reading& reading, std::size_t i, std::span<const SequenceHash> hashes,
                        std::span<block::Hold> holds, MoveReport& report) {
  const std::size_t member = reading.members[i];
  const Use& volume = reading.volume;
  const Result<void>& good = reading.results[i];
  if (good) {
    volume->got.add();
    return;
  }
  reading.records[i] = {};
  holds[member] = block::Hold();
  const ErrorCode code = good.error().code();
  if (code == ErrorCode::kNotFound) {  // whoever else uses the volume has removed it
    forget(hashes[member], reading.number);
    return;
  }
  note(*volume, good.error());
  report.blocks[member] = code == ErrorCode::kCorruption ? Moved::kDamaged : Moved::kFailed;
  if (!report.error) report.error = good.error();
  if (code != ErrorCode::kCorruption) return;
  ASHLAR_LOG(LogLevel::kError, "tiers", "%s: %s", volume->volume->describe().c_str(),
             good.error().to_string().c_str());
  const std::string_view key = reading.keys[i];
  if (volume->use.write)
    if (const Result<void> removed = volume->volume->remove(std::span(&key, 1))[0]; !removed)
      ASHLAR_LOG(LogLevel::kWarn, "tiers", "a damaged object stays on %s: %s",
                 volume->volume->describe().c_str(), removed.error().to_string().c_str());
  forget(hashes[member], reading.number);
}

// Nothing of an object is believed before its header is the one that was asked for and its bytes agree with it. The checksum
// may be another than when it was written from here: others may have computed the block, and written it again.
Result<void> VolumePool::inspect(const block::Hold& hold, std::span<const std::byte> header, BytePool& to,
                                 BlockId id, BlockRecord* out) const {
  const BlockRecord known = records_.of(hold);
  Result<VolumeObject> found = VolumeObject::decode(header);
  if (!found && found.error().code() == ErrorCode::kUnsupported)
    return found.error();  // a newer program's: not for us, and not damaged
  if (!found) return make_error(ErrorCode::kCorruption, "%s", found.error().message().c_str());
  if (const Result<void> same = object_of({.hash = known.hash}).expect(*found); !same) return same;
  const BytePool::Place place = to.place(id);
  if (const Result<void> same =
          transfer::verify_block(*to.blocks(place.part), place.slot, {known.hash, options_.shape.keys},
                                 found->checksum, storage_tier());
      !same)
    return same;
  *out = {.hash = known.hash, .parent = known.parent, .salt = found->salt, .checksum = found->checksum};
  return {};
}

}  // namespace ashlar::tiers
