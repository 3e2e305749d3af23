// docs/formats/events.md describes the file. A worker's parts are encoded as they fill up; how many there are
// is known at the end, and written into them then.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/events/event_codec.h"
#include "events/dump_check.h"

namespace ashlar::events {
namespace {

constexpr std::string_view kDumpMagic = "ASHLFEED";  // that of a file of batches, which a dump is
constexpr std::uint32_t kDumpVersion = 1;
constexpr std::size_t kDumpHeader = 16;

std::string name_of(const Worker& worker) {
  return std::to_string(worker.id.value()) + "/" + std::to_string(worker.rank);
}

Error fault(const Worker& worker, BlockName name, const char* what) {
  return make_error(ErrorCode::kCorruption, "block %llu of worker %s %s",
                    static_cast<unsigned long long>(name.value()), name_of(worker).c_str(), what);
}

}  // namespace

// --- What both forms share. ---

Result<void> DumpCheck::store(const BlocksStored& event) {
  if (event.blocks.empty())
    return make_error(ErrorCode::kCorruption, "a store of worker %s has no blocks",
                      name_of(event.worker).c_str());
  if (!is_known(event.tier))
    return make_error(ErrorCode::kUnsupported, "a store of worker %s is for tier %u, which is not known",
                      name_of(event.worker).c_str(), static_cast<unsigned>(event.tier));
  EntryMap<Name>& names = workers_[event.worker];
  std::uint32_t position = 0;
  if (event.parent) {
    const Name* const parent = names.find(event.parent->value());
    if (parent == nullptr)
      return fault(event.worker, event.blocks.front().name, "has a parent that the dump has not stored");
    position = parent->position + 1;
  }
  if (event.start_position.value_or(position) != position)
    return fault(event.worker, event.blocks.front().name, "is not at the position behind its parent");
  const auto bit = std::uint32_t{1} << static_cast<unsigned>(event.tier);
  for (const StoredBlock& block : event.blocks) {
    const auto [entry, is_new] = names.insert({block.name.value(), block.local.value(), position, bit});
    if (!is_new && (entry->tiers & bit) != 0)
      return fault(event.worker, block.name, "is stored twice in one tier");
    if (entry->position != position || entry->local != block.local.value())
      return fault(event.worker, block.name, "means two contents");
    entry->tiers |= bit;
    ++position;
    ++stored_;
  }
  return {};
}

Result<void> DumpCheck::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  if (!is_known(tier))
    return make_error(ErrorCode::kUnsupported, "a removal of worker %s is from tier %u, which is not known",
                      name_of(worker).c_str(), static_cast<unsigned>(tier));
  EntryMap<Name>& known = workers_[worker];
  const auto bit = std::uint32_t{1} << static_cast<unsigned>(tier);
  for (const BlockName name : names) {
    Name* const entry = known.find(name.value());
    if (entry == nullptr || (entry->tiers & bit) == 0)
      return fault(worker, name, "is removed and was not stored");
    if (entry->tiers == bit) {
      known.erase(entry);
    } else {
      entry->tiers &= ~bit;
    }
    ++removed_;
  }
  return {};
}

Result<void> DumpCheck::clear(const Worker& worker) {
  workers_.erase(worker);
  return {};
}

DumpCounts DumpCheck::counts() const noexcept {
  return {.workers = workers_.size(), .stored = stored_, .removed = removed_};
}

Result<void> DumpCheck::confirm(const IndexSink& index) const {
  constexpr std::size_t kAtOnce = 1024;
  std::vector<BlockName> names;
  std::vector<BlockPresence> wanted;
  std::vector<BlockPresence> held;
  std::optional<BlockName> missing;
  bool tells = true;
  for (const auto& [worker, entries] : workers_) {
    const auto ask = [&, &whose = worker] {
      held.resize(names.size());
      tells = tells && index.presence(whose, names, held);
      if (tells && !missing)
        if (const auto [has, wants] = std::ranges::mismatch(held, wanted); wants != wanted.end())
          missing = wants->name;
      names.clear();
      wanted.clear();
    };
    entries.for_each([&](const Name& entry) {
      names.emplace_back(entry.name);
      wanted.push_back({.name = BlockName(entry.name),
                        .local = tokens::LocalHash(entry.local),
                        .position = entry.position,
                        .tiers = static_cast<std::uint8_t>(entry.tiers)});
      if (names.size() == kAtOnce) ask();
    });
    ask();
    if (!tells) return {};
    if (missing)
      return make_error(ErrorCode::kCapacity,
                        "the index accepted block %llu of worker %s and refused it later, as its counters "
                        "say: give it more room; the dump's workers were cleared",
                        static_cast<unsigned long long>(missing->value()), name_of(worker).c_str());
  }
  return {};
}

Result<void> DumpApply::store(const BlocksStored& event) {
  ++workers_[event.worker];
  const StoreVerdict verdict = into_.store(event);
  if (verdict == StoreVerdict::kApplied) return {};
  return make_error(ErrorCode::kCapacity,
                    "the index refused a run of %zu blocks of worker %s: %s; the dump's workers were cleared",
                    event.blocks.size(), name_of(event.worker).c_str(),
                    std::string(to_string(verdict)).c_str());
}

Result<void> DumpApply::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  into_.remove(worker, tier, names);
  return {};
}

Result<void> DumpApply::clear(const Worker& worker) {
  into_.clear(worker);
  return {};
}

void DumpApply::undo() {
  for (const auto& [worker, stores] : workers_) into_.clear(worker);
}

// --- Writing. ---

struct DumpWriter::Snapshot {
  std::vector<KvEvent> events;
  std::vector<std::vector<std::byte>> parts;
};

DumpWriter::DumpWriter() : DumpWriter(Options{}) {}
DumpWriter::DumpWriter(Options options) : options_(std::move(options)) {
  ASHLAR_CHECK(options_.batch_events > 0, "batches of a dump need at least one event");
  options_.batch_events =
      std::min(options_.batch_events, most_events_within(std::min(options_.batch_bytes, kMaxDecodedBytes)));
}
DumpWriter::~DumpWriter() = default;

DumpWriter::Snapshot& DumpWriter::snapshot_of(const Worker& worker) {
  std::unique_ptr<Snapshot>& place = snapshots_[worker];
  if (place == nullptr) place = std::make_unique<Snapshot>();
  Snapshot& snapshot = *place;
  if (snapshot.events.size() >= options_.batch_events) flush(worker, snapshot);
  return snapshot;
}

void DumpWriter::flush(const Worker& worker, Snapshot& snapshot) {
  const StreamPosition at = options_.position ? options_.position(worker) : StreamPosition{};
  const EventBatch batch{.stream = {worker, at.incarnation},
                         .keys = options_.keys,
                         .kind = BatchKind::kSnapshot,
                         .first = at.next,
                         .events = snapshot.events};
  encode_batch(batch, snapshot.parts.emplace_back());
  snapshot.parts.back().shrink_to_fit();
  snapshot.events.clear();
}

StoreVerdict DumpWriter::store(const BlocksStored& event) {
  if (error_) return StoreVerdict::kFull;
  KvEvent record;
  record.tier = TierId(static_cast<std::uint8_t>(event.tier));
  std::uint64_t position = event.start_position.value_or(0);
  if (event.parent) {
    const Result<tokens::SequenceHash> parent =
        position == 0 ? make_error(ErrorCode::kUnsupported, "a parent without a position")
                      : tokens::SequenceHash::make(position - 1, event.parent->value(), 0);
    if (!parent) {
      error_ = parent.error();
      return StoreVerdict::kFull;
    }
    record.set_parent(*parent);
  }
  for (const StoredBlock& block : event.blocks) {
    const Result<tokens::SequenceHash> hash = tokens::SequenceHash::make(position++, block.name.value(), 0);
    if (!hash) {
      error_ = make_error(ErrorCode::kUnsupported, "no dump of such a long sequence: %s",
                          hash.error().message().c_str());
      return StoreVerdict::kFull;
    }
    record.hash = *hash;
    record.set_local(block.local);
    snapshot_of(event.worker).events.push_back(record);
    record.set_parent(*hash);
  }
  return StoreVerdict::kApplied;
}

std::size_t DumpWriter::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  KvEvent record;
  record.kind = KvEventKind::kRemoved;
  record.tier = TierId(static_cast<std::uint8_t>(tier));
  for (const BlockName name : names) {
    record.hash = tokens::SequenceHash::root(name.value());
    snapshot_of(worker).events.push_back(record);
  }
  return names.size();
}

void DumpWriter::clear(const Worker& worker) {
  KvEvent record;
  record.kind = KvEventKind::kCleared;
  record.tier = kAllTiers;
  snapshot_of(worker).events.push_back(record);
}

void DumpWriter::remove_worker(WorkerId worker) {
  if (!error_)
    error_ = make_error(ErrorCode::kUnsupported, "a dump removes no workers; this one removes worker %llu",
                        static_cast<unsigned long long>(worker.value()));
}

Result<std::vector<std::byte>> DumpWriter::finish() && {
  if (error_) return *error_;
  std::uint32_t batches = 0;
  std::size_t size = kDumpHeader;
  for (auto& [worker, place] : snapshots_) {
    Snapshot& snapshot = *place;
    if (!snapshot.events.empty()) flush(worker, snapshot);
    if (snapshot.parts.size() > kMaxSnapshotParts)
      return make_error(
          ErrorCode::kUnsupported,
          "worker %s needs %zu batches of %zu events, at most %u are allowed: raise batch_events or "
          "batch_bytes",
          name_of(worker).c_str(), snapshot.parts.size(), options_.batch_events,
          static_cast<unsigned>(kMaxSnapshotParts));
    batches += static_cast<std::uint32_t>(snapshot.parts.size());
    for (const std::vector<std::byte>& part : snapshot.parts) size += sizeof(std::uint32_t) + part.size();
  }
  std::vector<std::byte> out;
  out.reserve(size);
  const auto put = [&](const void* data, std::size_t count) {
    const auto* const bytes = static_cast<const std::byte*>(data);
    out.insert(out.end(), bytes, bytes + count);
  };
  put(kDumpMagic.data(), kDumpMagic.size());
  put(&kDumpVersion, sizeof kDumpVersion);
  put(&batches, sizeof batches);
  for (auto& [worker, place] : snapshots_) {
    Snapshot& snapshot = *place;
    const auto parts = static_cast<std::uint32_t>(snapshot.parts.size());
    for (std::uint32_t part = 0; part < parts; ++part) {
      std::vector<std::byte>& bytes = snapshot.parts[part];
      set_parts(bytes, part, parts);
      const auto length = static_cast<std::uint32_t>(bytes.size());
      put(&length, sizeof length);
      put(bytes.data(), bytes.size());
      std::vector<std::byte>().swap(bytes);
    }
  }
  return out;
}

// --- Reading. ---

namespace {

Error at_byte(std::size_t at, const Error& error) {
  return make_error(error.code(), "the batch at byte %zu of the dump: %s", at, error.message().c_str());
}

// Calls visit(batch) for each batch, after checking that the frames make a dump.
template <class Visit>
Result<void> for_each_batch(std::span<const std::byte> bytes, Visit&& visit) {
  if (bytes.size() < kDumpHeader || std::memcmp(bytes.data(), kDumpMagic.data(), kDumpMagic.size()) != 0)
    return make_error(ErrorCode::kCorruption, "%zu bytes that do not begin as a dump does", bytes.size());
  std::uint32_t version = 0;
  std::uint32_t batches = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof version);
  std::memcpy(&batches, bytes.data() + 12, sizeof batches);
  if (version != kDumpVersion)
    return make_error(ErrorCode::kUnsupported,
                      "a dump of version %u; this library reads version %u: update the older side", version,
                      kDumpVersion);
  if (batches == 0 && bytes.size() > kDumpHeader)
    return make_error(ErrorCode::kUnsupported,
                      "a recording of events, not a dump: read it with a FileSource and a StreamReceiver");
  struct Parts {
    std::uint32_t next = 0;
    std::uint32_t all = 0;
  };
  std::map<Worker, Parts> workers;
  OwnedBatch batch;
  std::size_t at = kDumpHeader;
  for (std::uint32_t i = 0; i < batches; ++i) {
    std::uint32_t length = 0;
    if (bytes.size() - at < sizeof length)
      return make_error(ErrorCode::kCorruption, "the dump is truncated: it ends after %u of %u batches", i,
                        batches);
    std::memcpy(&length, bytes.data() + at, sizeof length);
    at += sizeof length;
    if (bytes.size() - at < length)
      return make_error(ErrorCode::kCorruption,
                        "the dump is truncated: %zu bytes are left of the %u of batch %u of %u",
                        bytes.size() - at, length, i, batches);
    if (const Result<void> decoded = decode_batch(bytes.subspan(at, length), batch); !decoded)
      return at_byte(at, decoded.error());
    if (batch.head.kind != BatchKind::kSnapshot)
      return at_byte(at, make_error(ErrorCode::kUnsupported, "events, where a dump has snapshots"));
    Parts& parts = workers[batch.head.stream.worker];
    if (parts.all == 0) parts.all = batch.head.parts;
    if (batch.head.parts != parts.all || batch.head.part != parts.next)
      return at_byte(
          at, make_error(ErrorCode::kCorruption, "part %u of %u of worker %s, where part %u of %u should be",
                         batch.head.part, batch.head.parts, name_of(batch.head.stream.worker).c_str(),
                         parts.next, parts.all));
    ++parts.next;
    if (const Result<void> visited = visit(batch.view()); !visited) return at_byte(at, visited.error());
    at += length;
  }
  if (at != bytes.size())
    return make_error(ErrorCode::kCorruption, "%zu bytes after the last batch of the dump",
                      bytes.size() - at);
  for (const auto& [worker, parts] : workers)
    if (parts.next != parts.all)
      return make_error(ErrorCode::kCorruption, "the dump has %u of %u parts of worker %s", parts.next,
                        parts.all, name_of(worker).c_str());
  return {};
}

// Makes the calls that the events of a batch stand for.
template <class Calls>
Result<void> make_calls(const EventBatch& batch, Calls& calls) {
  const Worker& worker = batch.stream.worker;
  std::vector<StoredBlock> blocks;
  std::vector<BlockName> names;
  for (std::span<const KvEvent> left = batch.events; !left.empty();) {
    const std::span<const KvEvent> run = left.first(run_length(left));
    left = left.subspan(run.size());
    const KvEvent& first = run.front();
    const bool stored = first.kind == KvEventKind::kStored;
    if (first.kind == KvEventKind::kCleared && first.tier == kAllTiers) {
      ASHLAR_RETURN_IF_ERROR(calls.clear(worker));
      continue;
    }
    if ((!stored && first.kind != KvEventKind::kRemoved) || first.has_name || first.group != 0 ||
        first.tier.value() >= kStorageTiers || (stored && !first.has_local))
      return make_error(ErrorCode::kUnsupported,
                        "an event that no dump has (%s): deliver this snapshot to a StreamReceiver",
                        std::string(to_string(first.kind)).c_str());
    const auto tier = static_cast<StorageTier>(first.tier.value());
    if (!stored) {
      names.clear();
      for (const KvEvent& event : run) names.push_back(event.name());
      ASHLAR_RETURN_IF_ERROR(calls.remove(worker, tier, names));
      continue;
    }
    blocks.clear();
    for (const KvEvent& event : run) blocks.push_back({*event.local(), event.name()});
    const BlocksStored event{
        .worker = worker,
        .tier = tier,
        .parent = first.has_parent ? std::optional(BlockName(first.parent_bits.chain())) : std::nullopt,
        .start_position = first.hash.position(),
        .blocks = blocks};
    ASHLAR_RETURN_IF_ERROR(calls.store(event));
  }
  return {};
}

Result<DumpCounts> check_dump(std::span<const std::byte> bytes, DumpCheck& check) {
  std::uint32_t block_size = 0;
  ASHLAR_RETURN_IF_ERROR(for_each_batch(bytes, [&](const EventBatch& batch) {
    block_size = batch.keys.block_size;
    return make_calls(batch, check);
  }));
  DumpCounts counts = check.counts();
  counts.block_size = block_size;
  return counts;
}

}  // namespace

Result<DumpCounts> read_dump(std::span<const std::byte> bytes, IndexSink& into) {
  DumpCheck check;
  ASHLAR_TRY(const DumpCounts counts, check_dump(bytes, check));
  DumpApply apply(into);
  Result<void> made =
      for_each_batch(bytes, [&](const EventBatch& batch) { return make_calls(batch, apply); });
  if (made) made = check.confirm(into);
  if (made) return counts;
  apply.undo();
  return made.error();
}

Result<DumpCounts> read_dump(std::span<const std::byte> bytes,
                             const std::function<void(const EventBatch&)>& deliver) {
  DumpCheck check;
  ASHLAR_TRY(const DumpCounts counts, check_dump(bytes, check));
  ASHLAR_RETURN_IF_ERROR(for_each_batch(bytes, [&](const EventBatch& batch) -> Result<void> {
    deliver(batch);
    return {};
  }));
  return counts;
}

}  // namespace ashlar::events
