#include "tiers/disk/disk_pool.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"

namespace ashlar::tiers {

using block::BlockId;
using events::G3;
using tokens::SequenceHash;

namespace {

// The content of a file when it was opened.
struct Found {
  std::uint32_t part;
  G3File::Entry entry;
};

// Keeps the order, except that a parent moves before its children.
std::vector<Found> parents_first(std::vector<Found> found) {
  std::unordered_map<SequenceHash, std::size_t> places;
  for (std::size_t i = 0; i < found.size(); ++i) places.emplace(found[i].entry.header.hash, i);
  std::vector<Found> ordered;
  ordered.reserve(found.size());
  std::vector<bool> done(found.size());
  std::vector<std::size_t> chain;
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (std::size_t at = i; !done[at];) {
      done[at] = true;
      chain.push_back(at);
      const G3Header& header = found[at].entry.header;
      if (!header.has_parent) break;
      const auto parent = places.find(header.parent);
      if (parent == places.end()) break;
      at = parent->second;
    }
    for (; !chain.empty(); chain.pop_back()) ordered.push_back(found[chain.back()]);
  }
  ASHLAR_DCHECK(ordered.size() == found.size(), "%zu of %zu restored blocks were ordered", ordered.size(),
                found.size());
  return ordered;
}

// The header of a block as it is written.
G3File::Entry entry_of(std::uint32_t slot, const TierRecord& record, std::uint64_t generation) {
  G3Header header{.checksum = record.checksum.value_or(transfer::BlockChecksum()),
                  .generation = generation,
                  .has_parent = record.parent != SequenceHash()};
  record.write_to(header);
  return {slot, header};
}

// A number unique to this opening of the files.
std::uint64_t new_session() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

// Merges the logs of all files and applies to each the removals it missed. A file that cannot be updated is
// left out: it would bring back removed blocks.
Result<RemovalLog> reconcile(std::vector<std::unique_ptr<G3File>>& files, std::uint64_t session) {
  std::vector<RemovalLog> logs;
  for (const std::unique_ptr<G3File>& file : files)
    if (file != nullptr) logs.push_back(file->removals());
  RemovalLog log = RemovalLog::merge(logs, session);
  std::size_t left = logs.size();
  for (std::unique_ptr<G3File>& file : files) {
    if (file == nullptr || file->removals() == log) continue;
    const Result<void> told = file->catch_up(log);
    if (told) continue;
    if (--left == 0) return told.error();
    ASHLAR_LOG(LogLevel::kError, "tiers",
               "G3 continues without %s, whose missed removals cannot be applied: %s", file->path().c_str(),
               told.error().to_string().c_str());
    file = nullptr;
  }
  return log;
}

}  // namespace

class DiskPool::Reserved final : public Reservation {
 public:
  Reserved(DiskPool& pool, Blocks taken) : pool_(pool), taken_(std::move(taken)) {
    for (const std::unique_ptr<G3File>& file : pool_.files_)
      before_.push_back(file == nullptr ? 0 : file->failed_syncs());
  }
  std::span<const BlockId> ids() const noexcept override { return taken_.ids(); }

  // Headers reach the disk before their blocks can be found, and a hash has one block: a second header would
  // outlive a remove(). A file that fails takes only its own blocks out.
  Published publish(std::span<const TierRecord> records, const block::KvReady& ready) override {
    std::vector<TierRecord> left = pool_.claim(records);
    const std::vector<TierRecord> claimed = left;
    std::vector<std::vector<G3File::Entry>> entries(pool_.files_.size());
    std::vector<std::vector<std::size_t>> places(pool_.files_.size());
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (left[i].empty()) continue;
      const Place place = pool_.place(taken_.ids()[i]);
      entries[place.part].push_back(entry_of(place.slot, left[i], ++pool_.generation_));
      places[place.part].push_back(i);
    }
    std::optional<Error> error;
    for (std::size_t part = 0; part < entries.size(); ++part) {
      if (entries[part].empty()) continue;
      const Result<void> committed = pool_.files_[part]->commit(entries[part], before_[part]);
      if (committed) continue;
      if (!error) error = committed.error();
      pool_.rest(static_cast<std::uint32_t>(part), committed.error());
      for (const std::size_t i : places[part]) {
        pool_.set_aside(left[i].hash, taken_.give(i));
        left[i] = {};
      }
    }
    if (error) static_cast<void>(pool_.clear_stale({}));  // the device may have recovered
    Published published = taken_.publish(pool_.manager_, pool_.records_, left, ready, [this](std::size_t i) {
      return EventLocation::file(pool_.place(taken_.ids()[i]).part);
    });
    if (!published.error) published.error = std::move(error);
    pool_.release(claimed);
    for (std::size_t i = 0; i < records.size(); ++i)
      if (claimed[i].empty() && !records[i].empty()) {
        published.registered[i] = pool_.has(records[i].hash);
        if (!published.registered[i] && !published.error)
          published.error = make_error(ErrorCode::kNotReady, "another call is storing block %s",
                                       records[i].hash.to_string().c_str());
      }
    return published;
  }
  // A cancelled or late move says nothing about the device.
  void not_written(std::size_t i, const Error& error) override {
    if (error.code() == ErrorCode::kIo || error.code() == ErrorCode::kCapacity)
      pool_.rest(pool_.place(taken_.ids()[i]).part, error);
  }

 private:
  DiskPool& pool_;
  ReservedBlocks<G3> taken_;
  std::vector<std::uint64_t> before_;  // by file: failed syncs before the blocks were written
};

DiskPool::DiskPool(block::BlockManager<G3>& manager, std::vector<std::unique_ptr<G3File>> files,
                   const Options& options)
    : ManagedPool(manager, options.clock == nullptr ? Clock::real() : *options.clock),
      options_(options),
      clock_(options.clock == nullptr ? Clock::real() : *options.clock),
      files_(std::move(files)),
      resting_(files_.size()) {
  for (const std::unique_ptr<G3File>& file : files_)
    if (file != nullptr) block_bytes_ = file->blocks()->block_bytes();
}

Result<std::unique_ptr<DiskPool>> DiskPool::create(block::BlockManager<G3>& manager,
                                                   std::unique_ptr<G3File> file) {
  std::vector<std::unique_ptr<G3File>> files;
  files.push_back(std::move(file));
  return create(manager, std::move(files), Options{});
}

Result<std::unique_ptr<DiskPool>> DiskPool::create(block::BlockManager<G3>& manager,
                                                   std::vector<std::unique_ptr<G3File>> files,
                                                   const Options& options) {
  const auto total = static_cast<std::uint32_t>(manager.total_blocks());
  if (std::ranges::all_of(files, [](const auto& file) { return file == nullptr; }))
    return make_error(ErrorCode::kInvalidArgument, "G3 has no file that can be used");
  if (manager.status().reset != total)
    return make_error(ErrorCode::kInvalidArgument, "the manager of G3 has %u blocks, of which %zu are empty",
                      total, manager.status().reset);
  for (std::size_t part = 0; part < files.size(); ++part)
    if (files[part] != nullptr && files[part]->capacity() != share(total, part, files.size()))
      return make_error(ErrorCode::kInvalidArgument,
                        "%s has room for %u blocks; its share of %u over %zu files is %u",
                        files[part]->path().c_str(), files[part]->capacity(), total, files.size(),
                        share(total, part, files.size()));
  const std::uint64_t session = new_session();
  ASHLAR_TRY(RemovalLog removals, reconcile(files, session));
  std::unique_ptr<DiskPool> pool(new DiskPool(manager, std::move(files), options));
  pool->session_ = session;
  {
    const MutexLock lock(pool->removals_mu_);
    pool->removals_ = std::move(removals);
  }
  ASHLAR_RETURN_IF_ERROR(pool->restore());
  return pool;
}

// Takes all blocks for a moment, so that each entry gets the block it lies in. Older entries are registered
// first, hence evicted first, but a parent precedes its children even if it was stored again after them.
// Blocks of absent files stay taken.
Result<void> DiskPool::restore() {
  std::vector<Found> found;
  for (std::uint32_t part = 0; part < files_.size(); ++part) {
    if (files_[part] == nullptr) continue;
    for (const G3File::Entry& entry : files_[part]->restored()) found.push_back({part, entry});
    files_[part]->forget_restored();
  }
  std::ranges::sort(found, {}, [](const Found& one) {
    return std::tuple(one.entry.header.generation, one.part, one.entry.slot);
  });
  if (!found.empty()) generation_ = found.back().entry.header.generation;
  found = parents_first(std::move(found));
  ASHLAR_CHECK(found.size() <= manager_.total_blocks(), "the files restored %zu blocks; there are %zu",
               found.size(), manager_.total_blocks());
  auto all = manager_.allocate_blocks(manager_.total_blocks());
  if (!all) return all.error().to_error();
  std::vector<block::MutableBlock<G3>*> by_id(manager_.total_blocks());
  for (block::MutableBlock<G3>& block : *all) by_id[block.block_id().value()] = &block;
  std::vector<std::vector<std::uint32_t>> refused(files_.size());
  for (const auto& [part, entry] : found) {
    const BlockId id(static_cast<std::uint32_t>(entry.slot * files_.size() + part));
    TierRecord record = TierRecord::read_from(entry.header);
    if (!entry.header.has_parent) record.parent = {};
    record.checksum = entry.header.checksum;
    records_.write(id, record.checksum);
    auto complete = std::move(*by_id[id.value()])
                        .stage(record.identity(EventLocation::file(part)),
                               block::KvReady::asserted_by_caller());  // the header says so
    const auto registered =
        manager_.register_block(std::move(complete), {.retention = record.retention, .copied = true});
    if (registered && registered->block_id() == id) {
      ++restored_;
    } else {
      refused[part].push_back(entry.slot);  // another file holds it too
    }
  }
  const MutexLock lock(mu_);
  for (block::MutableBlock<G3>& block : *all) {
    if (!block) continue;
    const std::uint32_t part = place(block.block_id()).part;
    if (files_[part] != nullptr) continue;
    resting_[part].until = Clock::TimePoint::max();
    resting_[part].blocks.push_back(std::move(block));
  }
  for (std::size_t part = 0; part < files_.size(); ++part)
    if (!refused[part].empty()) ASHLAR_RETURN_IF_ERROR(files_[part]->invalidate(refused[part]));
  return {};
}

std::vector<TierRecord> DiskPool::claim(std::span<const TierRecord> records) {
  std::vector<TierRecord> mine(records.begin(), records.end());
  {
    const MutexLock lock(mu_);
    for (TierRecord& record : mine)
      if (!record.empty() && !arriving_.insert(record.hash).second) record = {};
  }
  // Another thread that claimed a hash before has registered it by now, or failed to.
  std::vector<TierRecord> there;
  for (TierRecord& record : mine)
    if (!record.empty() && has(record.hash)) there.push_back(std::exchange(record, {}));
  release(there);
  return mine;
}

bool DiskPool::is_arriving(const SequenceHash& hash) const {
  const MutexLock lock(mu_);
  return arriving_.contains(hash);
}

void DiskPool::release(std::span<const TierRecord> claimed) {
  const MutexLock lock(mu_);
  for (const TierRecord& record : claimed) arriving_.erase(record.hash);
}

void DiskPool::wake_rested() {
  std::vector<Blocks> rested;  // returned outside the lock
  const MutexLock lock(mu_);
  for (Resting& resting : resting_)
    if (!resting.blocks.empty() && clock_.now() >= resting.until)
      rested.push_back(std::exchange(resting.blocks, Blocks()));
}

void DiskPool::rest(std::uint32_t part, const Error& why) {
  if (files_.size() == 1) return;  // there is no other device
  {
    const MutexLock lock(mu_);
    const bool rests = clock_.now() < resting_[part].until;
    resting_[part].until = clock_.now() + options_.rest;
    if (rests) return;
  }
  ASHLAR_LOG(LogLevel::kError, "tiers", "%s cannot be written to, its blocks rest: %s",
             files_[part]->path().c_str(), why.to_string().c_str());
}

Result<void> DiskPool::clear(Blocks& taken) {
  std::vector<std::vector<std::uint32_t>> slots(files_.size());
  for (const block::MutableBlock<G3>& block : taken) {
    const Place at = place(block.block_id());
    slots[at.part].push_back(at.slot);
  }
  std::vector<bool> failed(files_.size());
  std::optional<Error> error;
  for (std::size_t part = 0; part < files_.size(); ++part) {
    if (slots[part].empty()) continue;
    const bool rests = is_resting(part);
    const Result<void> gone = rests ? make_error(ErrorCode::kIo, "%s could not be written to and rests",
                                                 files_[part]->path().c_str())
                                    : files_[part]->invalidate(slots[part]);
    if (gone) continue;
    failed[part] = true;
    if (!error) error = gone.error();
    if (!rests) rest(static_cast<std::uint32_t>(part), gone.error());
  }
  if (!error) return {};
  Blocks good;
  for (block::MutableBlock<G3>& block : taken) {
    const Place at = place(block.block_id());
    if (!failed[at.part]) {
      good.push_back(std::move(block));
    } else if (files_[at.part]->may_be_valid(at.slot)) {
      const SequenceHash hash = records_.last(block.block_id());
      set_aside(hash, std::move(block));
    } else {
      const MutexLock lock(mu_);
      resting_[at.part].blocks.push_back(std::move(block));
    }
  }
  taken = std::move(good);
  return taken.empty() ? Result<void>(*error) : Result<void>();
}

void DiskPool::set_aside(const SequenceHash& hash, block::MutableBlock<G3> block) {
  const MutexLock lock(stale_mu_);
  stale_.push_back({hash, std::move(block)});
}

Result<void> DiskPool::clear_stale(std::span<const SequenceHash> hashes) {
  const MutexLock lock(stale_mu_);
  if (stale_.empty()) return {};
  const std::unordered_set<SequenceHash> wanted(hashes.begin(), hashes.end());
  std::optional<Error> error;
  std::erase_if(stale_, [&](Stale& stale) {
    if (!wanted.empty() && !wanted.contains(stale.hash)) return false;
    const Place at = place(stale.block.block_id());
    if (wanted.empty() && is_resting(at.part)) return false;
    const Result<void> gone = files_[at.part]->invalidate(std::span(&at.slot, 1));
    if (!gone && !error) error = gone.error();
    return gone.has_value();
  });
  return error ? Result<void>(*error) : Result<void>();
}

// The old headers are durably cleared before a writer overwrites the blocks.
Result<std::unique_ptr<Reservation>> DiskPool::reserve(std::size_t n) {
  wake_rested();
  static_cast<void>(clear_stale({}));
  Blocks reserved;
  std::optional<Error> failure;
  while (reserved.size() < n) {
    const MutexLock lock(evict_mu_);
    auto taken = manager_.allocate_blocks(n - reserved.size());
    if (!taken) return failure ? *failure : taken.error().to_error();
    const Result<void> cleared = clear(*taken);
    if (!cleared) {
      if (files_.size() == 1) return cleared.error();
      failure = cleared.error();  // other files may succeed
    }
    for (block::MutableBlock<G3>& block : *taken)
      if (block) {
        records_.forget(block.block_id());
        reserved.push_back(std::move(block));
      }
  }
  // Adjacent blocks are written together.
  std::ranges::sort(reserved, {}, [](const block::MutableBlock<G3>& block) { return block.block_id(); });
  return std::unique_ptr<Reservation>(std::make_unique<Reserved>(*this, std::move(reserved)));
}

Result<void> DiskPool::remove(const SequenceHash& hash) {
  if (!has(hash)) return not_here(hash);
  return remove_all(std::span(&hash, 1));
}

Result<void> DiskPool::remove_all(std::span<const SequenceHash> hashes) {
  return hashes.empty() ? Result<void>() : remove_from_files(hashes, false);
}

// The header of a block that was evicted when its last hold ended stays valid until its slot is reserved: a
// restart would find it. A single file has no absent peer to log removals for.
Result<void> DiskPool::remove_from_files(std::span<const SequenceHash> hashes, bool everything) {
  std::vector<std::vector<block::ImmutableBlock<G3>>> blocks(files_.size());
  std::vector<std::vector<std::uint32_t>> slots(files_.size());
  const MutexLock evictions(evict_mu_);
  std::unordered_set<SequenceHash> absent;
  for (const SequenceHash& hash : hashes) {
    auto block = find(hash);
    if (!block) {
      absent.insert(hash);
      continue;
    }
    const Place at = place(block->block_id());
    slots[at.part].push_back(at.slot);
    blocks[at.part].push_back(*std::move(block));
  }
  for (std::uint32_t i = 0; (everything || !absent.empty()) && i < manager_.total_blocks(); ++i) {
    const SequenceHash last = records_.last(BlockId(i));
    const Place at = place(BlockId(i));
    if (last == SequenceHash() || files_[at.part] == nullptr || !files_[at.part]->may_be_valid(at.slot))
      continue;
    if (absent.contains(last) || (everything && !has(last) && !is_arriving(last)))
      slots[at.part].push_back(at.slot);
  }
  std::optional<Error> error;
  std::vector<SequenceHash> removed;
  {
    const MutexLock lock(removals_mu_);
    if (everything) {
      removals_.add_everything(session_);
    } else {
      removals_.add(hashes, session_);
    }
    for (std::size_t part = 0; part < files_.size(); ++part) {
      if (files_[part] == nullptr) continue;
      const Result<void> gone =
          files_[part]->invalidate(slots[part], files_.size() == 1 ? nullptr : &removals_);
      if (!gone && !error) error = gone.error();
      if (!gone) continue;
      for (block::ImmutableBlock<G3>& block : blocks[part]) {
        block.set_reset_on_release(true);
        removed.push_back(block.sequence_hash());
      }
    }
  }
  records_.removed(removed);
  const Result<void> cleared = hashes.empty() ? Result<void>() : clear_stale(hashes);
  return error ? Result<void>(*error) : cleared;
}

// A sector is written whole: after a failure at any moment the header is the old or the new one. The lock
// keeps a removed block from getting a header again.
Result<void> DiskPool::save_values(std::span<const SequenceHash> hashes) {
  const MutexLock evictions(evict_mu_);
  std::vector<block::Hold> holds;
  std::vector<std::vector<G3File::Entry>> entries(files_.size());
  for (const SequenceHash& hash : hashes) {
    std::optional<block::Hold> held = hold(hash);
    if (!held) continue;
    const Place at = place(held->block_id());
    if (!files_[at.part]->may_be_valid(at.slot)) continue;
    entries[at.part].push_back(entry_of(at.slot, record(*held), ++generation_));
    holds.push_back(*std::move(held));
  }
  Result<void> all;
  for (std::size_t part = 0; part < files_.size(); ++part) {
    if (entries[part].empty()) continue;
    const Result<void> saved = files_[part]->commit(entries[part], files_[part]->failed_syncs());
    if (!saved && all) all = saved;
  }
  return all;
}

Result<std::size_t> DiskPool::remove_everything() {
  std::vector<SequenceHash> hashes;
  manager_.for_each_registered([&](const SequenceHash& hash, BlockId) { hashes.push_back(hash); });
  const std::size_t count = hashes.size();
  {
    const MutexLock lock(stale_mu_);
    for (const Stale& stale : stale_) hashes.push_back(stale.hash);
  }
  ASHLAR_RETURN_IF_ERROR(remove_from_files(hashes, true));
  return count;
}

void DiskPool::check_invariants() const {
  std::unordered_set<std::uint32_t> registered;
  manager_.for_each_registered([&](const SequenceHash& hash, BlockId id) {
    registered.insert(id.value());
    const Place at = place(id);
    ASHLAR_CHECK(files_[at.part] != nullptr, "block %u is registered, and its file %u is absent", id.value(),
                 at.part);
    ASHLAR_CHECK(files_[at.part]->may_be_valid(at.slot),
                 "block %u is registered; its file says slot %u is empty", id.value(), at.slot);
    ASHLAR_CHECK(records_.last(id) == hash, "block %u is registered as %s and recorded as %s", id.value(),
                 hash.to_string().c_str(), records_.last(id).to_string().c_str());
  });
  const MutexLock stale_lock(stale_mu_);
  const MutexLock lock(mu_);
  ASHLAR_CHECK(arriving_.empty(), "%zu hashes are claimed by no writer", arriving_.size());
  std::size_t set_aside = stale_.size();
  for (std::size_t part = 0; part < files_.size(); ++part) {
    ASHLAR_CHECK(files_[part] != nullptr || resting_[part].until == Clock::TimePoint::max(),
                 "file %zu is absent, and its blocks do not rest permanently", part);
    for (const block::MutableBlock<G3>& block : resting_[part].blocks)
      ASHLAR_CHECK(place(block.block_id()).part == part && !registered.contains(block.block_id().value()),
                   "block %u rests with file %zu, but belongs to another file or is registered",
                   block.block_id().value(), part);
    set_aside += resting_[part].blocks.size();
  }
  for (const Stale& stale : stale_)
    ASHLAR_CHECK(files_[place(stale.block.block_id()).part] != nullptr &&
                     !registered.contains(stale.block.block_id().value()),
                 "block %u has a stale header, but its file is absent or it is registered",
                 stale.block.block_id().value());
  ASHLAR_CHECK(registered.size() + set_aside <= manager_.total_blocks(),
               "%zu blocks are registered and %zu set aside; there are %zu", registered.size(), set_aside,
               manager_.total_blocks());
}

bool DiskPool::is_resting(std::size_t part) const {
  const MutexLock lock(mu_);
  return clock_.now() < resting_[part].until;
}

std::size_t DiskPool::resting() const {
  const MutexLock stale_lock(stale_mu_);
  const MutexLock lock(mu_);
  std::size_t sum = stale_.size();
  for (const Resting& resting : resting_) sum += resting.blocks.size();
  return sum;
}

}  // namespace ashlar::tiers
