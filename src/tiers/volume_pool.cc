#include "ashlar/tiers/volume_pool.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include "ashlar/base/log.h"
#include "tiers/volume_pool_parts.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {

using block::BlockId;
using events::G4;
using tokens::SequenceHash;

namespace {

// Names asked for at a time.
constexpr std::size_t kProbe = 64;

}  // namespace

VolumePool::VolumePool(block::BlockManager<G4>& manager, const Options& options)
    : ManagedPool(manager, options.clock == nullptr ? Clock::real() : *options.clock),
      options_(options),
      clock_(options.clock == nullptr ? Clock::real() : *options.clock),
      where_(manager.total_blocks()) {}

VolumePool::~VolumePool() = default;

// ---- volumes

Result<void> VolumePool::attach(std::string name, std::unique_ptr<Volume> volume, const VolumeUse& use) {
  if (name.empty())
    return make_error(ErrorCode::kInvalidArgument, "a volume needs a name, by which it is detached");
  const MutexLock lock(mu_);
  for (const std::shared_ptr<Attached>& other : volumes_)
    if (other != nullptr && other->name == name)
      return make_error(ErrorCode::kAlreadyExists, "a volume '%s' is attached: %s", name.c_str(),
                        other->volume->describe().c_str());
  if (volumes_.size() > std::numeric_limits<Number>::max())
    return make_error(ErrorCode::kCapacity, "%zu volumes have been attached; restart to attach more",
                      volumes_.size());
  auto attached = std::make_shared<Attached>();
  attached->salt = XXH3_64bits(name.data(), name.size());
  attached->name = std::move(name);
  attached->volume = std::move(volume);
  attached->use = use;
  volumes_.push_back(std::move(attached));
  return {};
}

Result<std::size_t> VolumePool::detach(std::string_view name) {
  Number number = 0;
  std::shared_ptr<Attached> gone;  // destroyed outside the lock
  {
    const MutexLock lock(mu_);
    const auto found = std::ranges::find_if(volumes_, [&](const std::shared_ptr<Attached>& one) {
      return one != nullptr && one->name == name && !one->leaving;
    });
    if (found == volumes_.end())
      return make_error(ErrorCode::kNotFound, "no volume '%s' is attached", std::string(name).c_str());
    number = static_cast<Number>(found - volumes_.begin());
    (*found)->leaving = true;
    while (volumes_[number]->users != 0) unused_.wait(mu_);
    gone = std::move(volumes_[number]);
  }
  std::vector<SequenceHash> hashes;
  manager_.for_each_registered([&](const SequenceHash& hash, BlockId) { hashes.push_back(hash); });
  std::size_t forgotten = 0;
  for (const SequenceHash& hash : hashes) {
    auto block = find(hash);
    if (!block || where_[block->block_id().value()] != number) continue;
    block->set_reset_on_release(true);
    ++forgotten;
  }
  return forgotten;
}

VolumePool::Use VolumePool::use(Number number) {
  const MutexLock lock(mu_);
  if (number >= volumes_.size() || volumes_[number] == nullptr || volumes_[number]->leaving) return {};
  ++volumes_[number]->users;
  return Use(*this, volumes_[number]);
}

// Each volume rates the hash; the highest has it. So a volume that leaves or comes moves no other's blocks.
std::optional<VolumePool::Number> VolumePool::choose(const SequenceHash& hash) const {
  std::optional<Number> best;
  std::uint64_t best_rate = 0;
  const MutexLock lock(mu_);
  for (std::size_t i = 0; i < volumes_.size(); ++i) {
    if (volumes_[i] == nullptr || volumes_[i]->leaving || !volumes_[i]->use.write) continue;
    const std::array<std::uint8_t, 16> bytes = hash.to_bytes();
    const std::uint64_t rate = XXH3_64bits_withSeed(bytes.data(), bytes.size(), volumes_[i]->salt);
    if (best && rate <= best_rate) continue;
    best = static_cast<Number>(i);
    best_rate = rate;
  }
  return best;
}

std::vector<VolumeStatus> VolumePool::volumes() const {
  std::map<Number, std::size_t> blocks;
  manager_.for_each_registered([&](const SequenceHash&, BlockId id) { ++blocks[where_[id.value()]]; });
  std::vector<VolumeStatus> out;
  const MutexLock lock(mu_);
  for (std::size_t i = 0; i < volumes_.size(); ++i)
    if (const Attached* one = volumes_[i].get(); one != nullptr)
      out.push_back({one->name, one->volume->describe(), one->use.write, blocks[static_cast<Number>(i)],
                     one->put.value(), one->got.value(), one->failed.value()});
  return out;
}

// ---- what is known

VolumeObject VolumePool::object_of(const BlockRecord& record) const {
  VolumeObject object = options_.shape;
  object.hash = record.hash;
  object.salt = record.salt;
  if (record.checksum) object.checksum = *record.checksum;
  return object;
}

Result<ReservedBlocks<G4>> VolumePool::take(std::size_t n) {
  auto taken = manager_.allocate_blocks_with_evictions(n);
  if (!taken) return taken.error().to_error();
  if (options_.remove_evicted && !taken->evicted.empty()) {
    std::map<Number, std::vector<std::string>> gone;
    const std::unordered_set<SequenceHash> evicted(taken->evicted.begin(), taken->evicted.end());
    for (const auto& block : taken->blocks) {
      const SequenceHash hash = records_.last(block.block_id());
      if (evicted.contains(hash))
        gone[where_[block.block_id().value()]].push_back(object_of({.hash = hash}).key());
    }
    for (const auto& [number, keys] : gone) {
      const Use volume = use(number);
      if (!volume) continue;
      const std::vector<std::string_view> views(keys.begin(), keys.end());
      for (const Result<void>& removed : volume->volume->remove(views))
        if (!removed)
          ASHLAR_LOG(LogLevel::kWarn, "tiers", "an evicted object stays on %s: %s",
                     volume->volume->describe().c_str(), removed.error().to_string().c_str());
    }
  }
  records_.handed_out(taken->blocks, taken->evicted);
  return ReservedBlocks<G4>(std::move(taken->blocks));
}

void VolumePool::forget(const SequenceHash& hash) {
  if (auto block = find(hash)) block->set_reset_on_release(true);
}

Result<void> VolumePool::remove(const SequenceHash& hash) {
  if (!has(hash)) return not_here(hash);
  return remove_all(std::span(&hash, 1));
}

Result<void> VolumePool::remove_all(std::span<const SequenceHash> hashes) {
  std::vector<std::string> keys;
  keys.reserve(hashes.size());
  for (const SequenceHash& hash : hashes) keys.push_back(object_of({.hash = hash}).key());
  std::map<Number, std::vector<std::size_t>> by_volume;
  const std::vector<Number> writable = writable_volumes();
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    // Also where it is not known to be: somebody may ask the volume later.
    for (const Number number : writable) by_volume[number].push_back(i);
    const auto block = find(hashes[i]);
    if (!block) continue;
    const Number number = where_[block->block_id().value()];
    if (!std::ranges::binary_search(writable, number)) by_volume[number].push_back(i);
  }
  std::optional<Error> error;
  std::vector<bool> stays(hashes.size());
  for (const auto& [number, members] : by_volume) {
    const Use volume = use(number);
    if (!volume) continue;  // its blocks are being forgotten
    std::vector<std::string_view> views;
    for (const std::size_t i : members) views.push_back(keys[i]);
    const std::vector<Result<void>> removed = volume->volume->remove(views);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (removed[i]) continue;
      stays[members[i]] = true;
      if (!error) error = removed[i].error();
    }
  }
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (!stays[i]) forget(hashes[i]);
  return error ? Result<void>(*error) : Result<void>();
}

std::vector<VolumePool::Number> VolumePool::writable_volumes() const {
  std::vector<Number> out;
  const MutexLock lock(mu_);
  for (std::size_t i = 0; i < volumes_.size(); ++i)
    if (volumes_[i] != nullptr && !volumes_[i]->leaving && volumes_[i]->use.write)
      out.push_back(static_cast<Number>(i));
  return out;
}

std::size_t VolumePool::probe(std::span<const SequenceHash> hashes) {
  std::size_t known = 0;
  while (known < hashes.size()) {
    if (has(hashes[known])) {
      ++known;
      continue;
    }
    std::vector<SequenceHash> asked;
    for (std::size_t i = known; i < hashes.size() && asked.size() < kProbe; ++i)
      if (!has(hashes[i])) asked.push_back(hashes[i]);
    std::vector<std::string> keys;
    for (const SequenceHash& hash : asked) keys.push_back(object_of({.hash = hash}).key());
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<std::optional<Number>> found(asked.size());
    std::size_t volumes = 0;
    {
      const MutexLock lock(mu_);
      volumes = volumes_.size();
    }
    std::vector<Use> uses;  // until what was found is registered
    for (std::size_t number = 0; number < volumes; ++number) {
      Use volume = use(static_cast<Number>(number));
      if (!volume) continue;
      const std::vector<Result<bool>> answers = volume->volume->contains(views);
      for (std::size_t i = 0; i < asked.size(); ++i) {
        if (!answers[i]) volume->failed.add();
        if (answers[i] && *answers[i] && !found[i]) found[i] = static_cast<Number>(number);
      }
      uses.push_back(std::move(volume));
    }
    const auto first_missing = std::ranges::find_if(found, [](const auto& one) { return !one; });
    found.erase(first_missing, found.end());
    const bool all = found.size() == asked.size();
    asked.resize(found.size());
    if (!asked.empty()) {
      Result<ReservedBlocks<G4>> taken = take(asked.size());
      if (!taken) return known;  // no room to remember them
      std::vector<BlockRecord> records;
      std::vector<Number> numbers;
      for (std::size_t i = 0; i < asked.size(); ++i) {
        records.push_back({.hash = asked[i]});
        numbers.push_back(*found[i]);
      }
      MoveReport report;
      report.blocks.resize(asked.size());
      std::vector<std::size_t> places(asked.size());
      publish(*taken, records, numbers, report, places);
    }
    while (known < hashes.size() && has(hashes[known])) ++known;
    if (!all) break;
  }
  return known;
}

// A volume that was detached meanwhile has nothing any more; whoever comes later finds its number unknown.
void VolumePool::publish(ReservedBlocks<G4>& taken, std::span<const BlockRecord> records,
                         std::span<const Number> numbers, MoveReport& report,
                         std::span<const std::size_t> places) {
  for (std::size_t i = 0; i < records.size(); ++i)
    if (!records[i].empty()) where_[taken.ids()[i].value()] = numbers[i];
  // The volume has answered for every byte.
  const Published published =
      taken.publish(manager_, records_, records, block::KvReady::asserted_by_caller());
  if (published.error && !report.error) report.error = published.error;
  for (std::size_t i = 0; i < records.size(); ++i)
    if (published.registered[i]) report.blocks[places[i]] = Moved::kArrived;
}

}  // namespace ashlar::tiers
