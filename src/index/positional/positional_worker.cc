#include "index/positional/positional_worker.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::index::detail {

using events::BlockName;
using events::StorageTier;
using tokens::LocalHash;

void RecordChunks::add_chunk() {
  if (chunks_.size() == chunks_.capacity()) chunks_.reserve(std::max<std::size_t>(1, 2 * chunks_.size()));
  open_.reserve(chunks_.capacity());
  open_.push_back(static_cast<std::uint32_t>(chunks_.size()));
  chunks_.emplace_back();
}

std::uint32_t RecordChunks::create(const HeldBlock& record) {
  if (open_.empty()) add_chunk();
  const std::uint32_t number = open_.back();
  Chunk& chunk = chunks_[number];
  if (chunk.records == nullptr) {
    chunk.records = std::make_unique_for_overwrite<HeldBlock[]>(kChunk);
    ++with_memory_;
  }
  const auto at = static_cast<std::uint32_t>(std::countr_one(chunk.used));
  chunk.records[at] = record;
  chunk.used |= std::uint64_t{1} << at;
  if (~chunk.used == 0) open_.pop_back();
  ++size_;
  return number * kChunk + at;
}

void RecordChunks::destroy(std::uint32_t number) noexcept {
  Chunk& chunk = chunks_[number / kChunk];
  ASHLAR_DCHECK((chunk.used >> (number % kChunk) & 1) != 0, "record %u is destroyed twice", number);
  if (~chunk.used == 0) open_.push_back(number / kChunk);
  chunk.used &= ~(std::uint64_t{1} << (number % kChunk));
  --size_;
  if (chunk.used != 0) return;
  chunk.records.reset();
  --with_memory_;
  if (size_ == 0) clear();
}

std::size_t RecordChunks::bytes() const noexcept {
  return chunks_.capacity() * sizeof(Chunk) + open_.capacity() * sizeof(std::uint32_t) +
         with_memory_ * kChunk * sizeof(HeldBlock);
}

void RecordChunks::clear() noexcept {
  std::vector<Chunk>().swap(chunks_);
  std::vector<std::uint32_t>().swap(open_);
  with_memory_ = 0;
  size_ = 0;
}

std::size_t WorkerBlocks::bytes() const noexcept {
  return records_.bytes() + names_.bytes() + chains_.bytes() + counts_.bytes();
}

std::uint32_t WorkerBlocks::find_record(const Chain& chain) const noexcept {
  const std::uint32_t bits = bits_of(chain);
  const ChainEntry* entry = chains_.find_hashed(ChainEntry::hash(bits), [&](const ChainEntry& one) {
    return one.bits == bits && records_[one.record_and_one - 1].chain == chain;
  });
  return entry == nullptr ? kNoRecord : entry->record_and_one - 1;
}

std::uint32_t WorkerBlocks::add_record(const Chain& chain, LocalHash local, std::uint32_t parent) {
  HeldBlock record{.chain = chain, .local = local, .parent = parent};
  if (parent != kNoRecord) record.position = records_[parent].position + 1;
  const std::uint32_t number = records_.create(record);
  try {
    chains_.insert({bits_of(chain), number + 1});
  } catch (...) {
    records_.destroy(number);
    throw;
  }
  if (parent != kNoRecord) ++records_[parent].children;
  return number;
}

void WorkerBlocks::gain_presence(HeldBlock& record, StorageTier tier) noexcept {
  if ((record.tiers & mask_of(tier)) != 0) return;
  record.tiers = (record.tiers | mask_of(tier)) & kEveryTier;
  ++blocks_;
  lower_ += tier == StorageTier::kDevice ? 0 : 1;
}

void WorkerBlocks::count_first_names(std::uint32_t number) {
  NameCounts counts{.record_and_one = number + 1};
  for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier)
    counts.in_tier[tier] = records_[number].tiers >> tier & 1;
  counts_.insert(counts);
}

void WorkerBlocks::add_name(BlockName name, std::uint32_t number, StorageTier tier) {
  HeldBlock& record = records_[number];
  if (record.names == 1) count_first_names(number);
  try {
    names_.insert({name.value(), number + 1, mask_of(tier)});
  } catch (...) {
    if (record.names == 1) counts_.erase(counts_.find(number + 1));
    throw;
  }
  if (record.names == 0 && record.children != 0) --ghosts_;
  if (record.names != 0) ++counts_.find(number + 1)->in_tier[static_cast<std::size_t>(tier)];
  ++record.names;
  gain_presence(record, tier);
}

void WorkerBlocks::add_tier(NameEntry& name, StorageTier tier) noexcept {
  HeldBlock& record = records_[name.record()];
  if (record.names > 1) ++counts_.find(name.record_and_one)->in_tier[static_cast<std::size_t>(tier)];
  gain_presence(record, tier);
  name.tiers |= mask_of(tier);
}

bool WorkerBlocks::is_last_in_tier(const NameEntry& name, StorageTier tier) const noexcept {
  return records_[name.record()].names == 1 ||
         counts_.find(name.record_and_one)->in_tier[static_cast<std::size_t>(tier)] == 1;
}

void WorkerBlocks::remove_name(NameEntry& name, StorageTier tier) noexcept {
  const std::uint32_t number = name.record();
  HeldBlock& record = records_[number];
  ASHLAR_DCHECK((name.tiers & mask_of(tier)) != 0, "a name is removed from tier %u, which it is not in",
                unsigned(tier));
  if (is_last_in_tier(name, tier)) {
    record.tiers = record.tiers & ~std::uint32_t{mask_of(tier)} & kEveryTier;
    --blocks_;
    lower_ -= tier == StorageTier::kDevice ? 0 : 1;
  }
  if (record.names > 1) --counts_.find(number + 1)->in_tier[static_cast<std::size_t>(tier)];
  name.tiers &= static_cast<TierMask>(~mask_of(tier));
  if (name.tiers != 0) return;
  names_.erase(&name);
  --record.names;
  if (record.names == 1) {
    counts_.erase(counts_.find(number + 1));
  } else if (record.names == 0) {
    if (record.children != 0)
      ++ghosts_;
    else
      free_records_from(number);
  }
}

// Frees an unneeded record, and the ghosts that only it needed.
void WorkerBlocks::free_records_from(std::uint32_t number) noexcept {
  for (;;) {
    const HeldBlock record = records_[number];
    ASHLAR_DCHECK(record.names == 0 && record.children == 0, "record %u is still needed", number);
    chains_.erase(chains_.find({bits_of(record.chain), number + 1}));
    records_.destroy(number);
    if (record.parent == kNoRecord) return;
    HeldBlock& parent = records_[record.parent];
    --parent.children;
    if (parent.children != 0 || parent.names != 0) return;
    --ghosts_;
    number = record.parent;
  }
}

}  // namespace ashlar::index::detail
