#include "index/positional/positional_tables.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/interleaving.h"

namespace ashlar::index {

Result<void> PositionalOptions::validate() const {
  if (jump_size == 0)
    return make_error(ErrorCode::kInvalidArgument, "jump_size is 0; it must be at least 1 (every block)");
  if (shards == 0 || shards > kMaxShards)
    return make_error(ErrorCode::kInvalidArgument, "shards is %u; it must be 1 to %u", shards, kMaxShards);
  return {};
}

Result<PositionalIndexer> PositionalIndexer::create(const PositionalOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return unless_out_of_memory([&]() -> Result<PositionalIndexer> { return PositionalIndexer(options); });
}
PositionalIndexer::PositionalIndexer() : PositionalIndexer(PositionalOptions{}) {}
PositionalIndexer::PositionalIndexer(const PositionalOptions& options)
    : tables_(std::make_unique<detail::PositionalTables>(options)) {}
PositionalIndexer::~PositionalIndexer() = default;
PositionalIndexer::PositionalIndexer(PositionalIndexer&& other) noexcept = default;
PositionalIndexer& PositionalIndexer::operator=(PositionalIndexer&& other) noexcept = default;

StoreVerdict PositionalIndexer::store(const BlocksStored& event) {
  return tables_->store(event);
}
std::size_t PositionalIndexer::remove(const Worker& worker, StorageTier tier,
                                      std::span<const BlockName> names) {
  return tables_->remove(worker, tier, names);
}
void PositionalIndexer::clear(const Worker& worker) {
  tables_->clear(worker);
}
void PositionalIndexer::remove_worker(WorkerId worker) {
  tables_->remove_worker(worker);
}
void PositionalIndexer::find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                                     const FindOptions& options) const {
  tables_->find_matches(locals, scores, options);
}
std::size_t PositionalIndexer::lookups_of_last_find() noexcept {
  return detail::PositionalTables::lookups_of_last_find();
}
bool PositionalIndexer::presence(const Worker& worker, std::span<const BlockName> names,
                                 std::span<BlockPresence> out) const {
  tables_->presence(worker, names, out);
  return true;
}
bool PositionalIndexer::list(const Worker& worker, std::vector<BlockPresence>& out) const {
  tables_->list(worker, out);
  return true;
}
void PositionalIndexer::dump(IndexSink& sink) const {
  tables_->dump(sink);
}
IndexSizes PositionalIndexer::sizes() const {
  return tables_->sizes();
}
IndexCounters PositionalIndexer::counters() const {
  return tables_->counters();
}

namespace detail {
namespace {

PositionalOptions checked(const PositionalOptions& options) {
  if (const Result<void> valid = options.validate(); !valid)
    ASHLAR_CHECK(false, "%s", valid.error().message().c_str());
  return options;
}

}  // namespace

PositionalTables::PositionalTables(const PositionalOptions& options)
    : jump_size_(checked(options).jump_size),
      shard_mask_(std::bit_ceil(options.shards) - 1),
      shards_(std::make_unique<Shard[]>(shard_mask_ + 1)) {}

void PositionalTables::add_worker(const Worker& worker) {
  const ExclusiveHold hold(gate_);
  if (slots_.find(worker)) return;
  const std::uint32_t slot = slots_.assign(worker);
  try {
    board_.resize(slots_.capacity());
    if (workers_.size() < slots_.capacity()) workers_.resize(slots_.capacity());
    workers_[slot] = std::make_unique<WorkerBlocks>(slot);
  } catch (...) {
    free_slot(slot);
    throw;
  }
}

void PositionalTables::drop_worker_if_empty(const Worker& worker) noexcept {
  std::unique_ptr<WorkerBlocks> dropped;
  const ExclusiveHold hold(gate_);
  const std::optional<std::uint32_t> slot = slots_.find(worker);
  if (!slot) return;
  {
    const MutexLock held(workers_[*slot]->lock);
    if (!workers_[*slot]->empty()) return;
  }
  dropped = retire(*slot);
  free_slot(*slot);
}

std::unique_ptr<WorkerBlocks> PositionalTables::retire(std::uint32_t slot) noexcept {
  if (board_.is_posted(slot)) board_.take_down(slot);
  slots_.retire(slot);
  return std::move(workers_[slot]);
}

void PositionalTables::free_slot(std::uint32_t slot) noexcept {
  slots_.release(slot);
  // workers_ may be shorter if creating its worker failed.
  if (workers_.size() > slots_.capacity()) workers_.resize(slots_.capacity());
  if (workers_.size() * 4 <= workers_.capacity()) workers_.shrink_to_fit();
  board_.resize(slots_.capacity());
}

void PositionalTables::sweep(const RetiredWorkers<WorkerBlocks>& retired) {
  interleaving_point("index.retired");
  for (const WorkerBlocks* one = retired.first(); one != nullptr; one = retired.next(*one))
    withdraw_all(*one);
  for (const WorkerBlocks* one = retired.first(); one != nullptr;) {
    const ExclusiveHold hold(gate_);
    for (std::size_t i = 0; i < kRanksPerHold && one != nullptr; ++i, one = retired.next(*one))
      free_slot(one->slot());
  }
}

void PositionalTables::clear(const Worker& worker) {
  count(counters_.clears);
  RetiredWorkers<WorkerBlocks> retired;
  {
    const ExclusiveHold hold(gate_);
    const std::optional<std::uint32_t> slot = slots_.find(worker);
    if (!slot) return;
    retired.add(retire(*slot));
  }
  sweep(retired);
}

void PositionalTables::remove_worker(WorkerId id) {
  count(counters_.clears);
  RetiredWorkers<WorkerBlocks> retired;
  for (bool more = true; more;) {
    const ExclusiveHold hold(gate_);
    const auto take = [&](std::uint32_t slot) ASHLAR_NO_THREAD_SAFETY_ANALYSIS { retired.add(retire(slot)); };
    more = slots_.for_each_slot_of(id, kRanksPerHold, take) == kRanksPerHold;
  }
  sweep(retired);
}

IndexSizes PositionalTables::sizes() const {
  IndexSizes sizes;
  sizes.bytes = sizeof(PositionalTables) + (shard_mask_ + 1) * sizeof(Shard);
  const StripeHold hold(gate_);
  for (const std::unique_ptr<WorkerBlocks>& blocks : workers_) {
    if (blocks == nullptr) continue;
    const MutexLock held(blocks->lock);
    sizes.workers += blocks->empty() ? 0 : 1;
    sizes.blocks += blocks->blocks();
    sizes.bytes += sizeof(WorkerBlocks) + blocks->bytes();
  }
  for (std::uint64_t i = 0; i <= shard_mask_; ++i) {
    Shard& shard = shards_[i];
    const SharedHold shared(shard.lock);
    sizes.nodes += shard.map.entries();
    sizes.contents += shard.map.contents();
    sizes.bytes += shard.map.bytes();
  }
  sizes.bytes += slots_.bytes() + board_.bytes() + workers_.capacity() * sizeof(workers_[0]);
  return sizes;
}

IndexCounters PositionalTables::counters() const {
  // relaxed: pairs with nothing; each counter is exact once its writers are done.
  const auto read = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {.stored = read(counters_.stored),
          .repeated = read(counters_.repeated),
          .removed = read(counters_.removed),
          .unknown_removals = read(counters_.unknown_removals),
          .unknown_parents = read(counters_.unknown_parents),
          .wrong_positions = read(counters_.wrong_positions),
          .names_in_use = read(counters_.names_in_use),
          .empty_stores = read(counters_.empty_stores),
          .unknown_tiers = read(counters_.unknown_tiers),
          .full = read(counters_.full),
          .clears = read(counters_.clears)};
}

}  // namespace detail
}  // namespace ashlar::index
