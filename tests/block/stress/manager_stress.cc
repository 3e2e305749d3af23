#include "block/stress/manager_stress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <thread>

#include "ashlar/testing/managers.h"
#include "ashlar/testing/sequence_builder.h"

namespace ashlar::block::stress {
namespace {

constexpr KvReady kReady = KvReady::asserted_by_caller();
constexpr std::uint32_t kBlockSize = 2;

// Takes a random element out.
template <class T>
T take(std::vector<T>& from, Random& random) {
  std::swap(from[random.below(from.size())], from.back());
  T taken = std::move(from.back());
  from.pop_back();
  return taken;
}

BlockManager<events::G1> make(const StressOptions& options, std::shared_ptr<events::EventLog> log) {
  ManagerOptions manager = testing::manager_options(options.blocks, kBlockSize, options.backend);
  manager.registry = testing::make_counting_registry();
  manager.duplicates = options.duplicates;
  manager.events = std::move(log);
  manager.watermarks = {options.blocks / 4, options.blocks / 2};
  manager.on_pressure = [](Pressure, std::size_t) {};
  return testing::make_manager<events::G1>(manager);
}

}  // namespace

ManagerStress::ManagerStress(const StressOptions& options)
    : options_(options),
      log_(testing::make_event_log(std::size_t{1} << 20)),
      manager_(make(options, log_)),
      cells_(options.blocks) {
  // Names in pairs of one position, so that prefixes, batches and shards all have something to do.
  for (std::uint32_t i = 0; i < options.hashes; ++i) names_.push_back(testing::numbered_hash(i, i / 2));
  Random random(options.seed);
  for (std::size_t i = 0; i < options.threads; ++i)
    workers_.push_back(std::make_unique<Worker>(random.fork()));
}

ManagerStress::~ManagerStress() {
  for (FenceSignal& signal : signals_) std::move(signal).signal();
}

void ManagerStress::fail(const std::string& what) {
  const std::lock_guard lock(mu_);
  if (problem_.empty()) problem_ = what;
}

std::string ManagerStress::problem() const {
  const std::lock_guard lock(mu_);
  return problem_;
}

void ManagerStress::run_round(std::size_t operations) {
  std::atomic<bool> over = false;
  std::jthread listener([&] {
    while (!over.load()) {
      log_->drain(mirror_);
      std::this_thread::yield();
    }
  });
  {
    std::vector<std::jthread> threads;
    for (auto& worker : workers_)
      threads.emplace_back([this, &worker, operations] { work(*worker, operations); });
  }
  over.store(true);
}

void ManagerStress::work(Worker& worker, std::size_t operations) {
  for (std::size_t i = 0; i < operations; ++i) step(worker);
  operations_.fetch_add(operations);
}

void ManagerStress::step(Worker& worker) {
  switch (worker.random.below(16)) {
    case 0:
    case 1:
      return allocate(worker);
    case 2:
    case 3:
      return complete(worker);
    case 4:
    case 5:
      return register_some(worker);
    case 6:
    case 7:
    case 8:
    case 9:
      return match(worker);
    case 10:
    case 11:
      return share(worker);
    case 12:
    case 13:
      return drop(worker);
    case 14:
      return fly(worker);
    default:
      return pin(worker);
  }
}

// ---- what a thread does

void ManagerStress::read(const Shared& guard) {
  // Plain memory: the guard is what makes this read safe.
  if (cells_[guard.block_id().value()] != guard.sequence_hash())
    fail("a block does not hold what its guard names");
  if (guard.use_count() == 0) fail("a guard's block is referred to by nobody");
}

// Who holds a guard of a hash finds the hash, by every way of asking, whatever the others do.
void ManagerStress::must_hit(Worker& worker, const Shared& guard) {
  const Hash held = guard.sequence_hash();
  const Hash wanted[] = {held, names_[worker.random.below(names_.size())], held};
  switch (worker.random.below(3)) {
    case 0: {
      const auto found = manager_.match_blocks(wanted);
      worker.counted.match_hashes_requested += std::size(wanted);
      worker.counted.match_blocks_returned += found.size();
      if (found.empty()) return fail("a match misses a hash that the thread holds");
      if (found[0].sequence_hash() != held) fail("a match of one hash found another");
      return read(found[0]);
    }
    case 1: {
      const std::vector<Shared> found = manager_.match_blocks_scattered(wanted);
      worker.counted.match_hashes_requested += std::size(wanted);
      for (const Shared& hit : found) worker.counted.match_blocks_returned += hit ? 1u : 0u;
      if (!found[0] || !found[2]) return fail("a scattered match misses a hash that the thread holds");
      if (found[0].sequence_hash() != held) fail("a match of one hash found another");
      return read(found[2]);
    }
    default: {
      if (!manager_.block_registry().is_registered(held)) fail("a hash is held and not registered");
      const RegistrationHandle handle = guard.registration_handle();
      if (handle.sequence_hash() != held) fail("a handle of another hash");
      if (!handle.has_block<Tier>()) fail("a block is held and not present");
      return;
    }
  }
}

void ManagerStress::hold(Worker& worker, Shared guard) {
  read(guard);
  if (worker.random.chance(0.25)) must_hit(worker, guard);
  worker.shared.push_back(std::move(guard));
  // A few each: more would leave nothing to evict.
  while (worker.shared.size() > options_.blocks / options_.threads) drop(worker);
}

void ManagerStress::allocate(Worker& worker) {
  if (worker.mutables.size() + worker.completes.size() > 4) return;
  const std::size_t n = 1 + worker.random.below(2);
  auto blocks = manager_.allocate_blocks_with_evictions(n);
  if (!blocks) {
    if (blocks.error().requested != n) fail("a refusal names another request");
    return;
  }
  worker.counted.allocations += n;
  worker.counted.evictions += blocks->evicted.size();
  for (auto& block : blocks->blocks) {
    cells_[block.block_id().value()] = Hash();  // it is ours alone
    worker.mutables.push_back(std::move(block));
  }
}

void ManagerStress::complete(Worker& worker) {
  if (worker.mutables.empty()) return;
  auto block = take(worker.mutables, worker.random);
  if (worker.random.chance(0.1)) return;  // dropped unused
  const Hash& name = names_[worker.random.below(names_.size())];
  cells_[block.block_id().value()] = name;
  auto done = std::move(block).stage(name, kReady);
  ++worker.counted.stagings;
  if (worker.random.chance(0.05)) {
    worker.mutables.push_back(std::move(done).reset());
  } else {
    worker.completes.push_back(std::move(done));
  }
}

void ManagerStress::register_some(Worker& worker) {
  if (worker.completes.empty()) return;
  if (worker.random.chance(0.5)) {
    auto block = take(worker.completes, worker.random);
    const Hash name = block.sequence_hash();
    auto registered = manager_.register_block(std::move(block));
    if (!registered) return fail("a registration was refused");
    if (registered->sequence_hash() != name) fail("a block was registered under another name");
    ++worker.counted.registrations;
    return hold(worker, *std::move(registered));
  }
  BlockList<CompleteBlock<Tier>> batch;
  while (!worker.completes.empty()) batch.push_back(take(worker.completes, worker.random));
  worker.counted.registrations += batch.size();
  auto registered = manager_.register_blocks(std::move(batch));
  if (!registered) return fail("a registration was refused");
  while (!registered->empty()) hold(worker, registered->take_back());
}

void ManagerStress::match(Worker& worker) {
  std::vector<Hash> wanted;
  const std::size_t first = worker.random.below(names_.size());
  const std::size_t count = std::min<std::size_t>(1 + worker.random.below(4), names_.size() - first);
  for (std::size_t i = 0; i < count; ++i) wanted.push_back(names_[first + i]);
  const std::uint64_t form = worker.random.below(3);
  if (form == 0) {
    auto found = manager_.match_blocks(wanted);
    worker.counted.match_hashes_requested += wanted.size();
    worker.counted.match_blocks_returned += found.size();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].sequence_hash() != wanted[i]) fail("a match of one hash found another");
      read(found[i]);
    }
    if (!found.empty()) must_hit(worker, found.back());
    if (worker.random.chance(0.5)) return;  // dropped in bulk
    while (!found.empty()) hold(worker, found.take_back());
  } else if (form == 1) {
    std::vector<Shared> found = manager_.match_blocks_scattered(wanted);
    worker.counted.match_hashes_requested += wanted.size();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i]) continue;
      ++worker.counted.match_blocks_returned;
      if (found[i].sequence_hash() != wanted[i]) fail("a match of one hash found another");
      hold(worker, std::move(found[i]));
    }
  } else {
    auto found = manager_.scan_matches(wanted, worker.random.chance(0.5));
    for (auto& [hash, guard] : found) {
      if (guard.sequence_hash() != hash) fail("a scan of one hash found another");
      read(guard);
    }
  }
}

void ManagerStress::share(Worker& worker) {
  if (worker.random.chance(0.5) && !worker.weaks.empty()) {
    const WeakBlock<Tier> weak = take(worker.weaks, worker.random);
    auto guard = weak.upgrade();
    if (!guard) return;
    if (guard->sequence_hash() != weak.sequence_hash()) fail("an upgrade found another hash");
    return hold(worker, *std::move(guard));
  }
  if (worker.shared.empty()) return;
  Shared guard = worker.shared[worker.random.below(worker.shared.size())];
  read(guard);
  must_hit(worker, guard);
  switch (worker.random.below(3)) {
    case 0:
      worker.weaks.push_back(guard.downgrade());
      break;
    case 1:
      guard.set_reset_on_release(worker.random.chance(0.3));
      break;
    default:
      hold(worker, std::move(guard));
      break;
  }
  if (worker.weaks.size() > 8) worker.weaks.erase(worker.weaks.begin());
}

void ManagerStress::drop(Worker& worker) {
  if (worker.shared.empty()) return;
  if (worker.random.chance(0.7)) {
    const Shared gone = take(worker.shared, worker.random);
    return read(gone);
  }
  std::vector<Shared> many;
  for (std::size_t n = 1 + worker.random.below(worker.shared.size()); n > 0; --n) {
    many.push_back(take(worker.shared, worker.random));
  }
  Shared::release(many);
}

void ManagerStress::signal_one(Random& random) {
  std::optional<FenceSignal> signal;
  {
    const std::lock_guard lock(mu_);
    if (signals_.empty()) return;
    signal.emplace(take(signals_, random));
  }
  std::move(*signal).signal();
}

// A computation in flight: dropped, finished, or read by a kernel after its guard is gone.
void ManagerStress::fly(Worker& worker) {
  signal_one(worker.random);
  auto [fence, signal] = Fence::create();
  if (!worker.shared.empty() && worker.random.chance(0.3)) {
    take(worker.shared, worker.random).release_after(fence);
  } else if (!worker.mutables.empty()) {
    auto partial = take(worker.mutables, worker.random).init_sequence({});
    if (!partial->add_token(tokens::Token(1))) fail("a token was refused");
    auto scheduled = std::move(*partial).schedule();
    const InflightBlock<Tier> dropped = std::move(*scheduled).launch(fence);
    ++worker.counted.quarantines;
  } else {
    return;
  }
  {
    const std::lock_guard lock(mu_);
    signals_.push_back(std::move(signal));
    if (signals_.size() <= 3) return;
  }
  signal_one(worker.random);
}

void ManagerStress::pin(Worker& worker) {
  const Hash& name = names_[worker.random.below(names_.size())];
  switch (worker.random.below(12)) {
    case 0:
      manager_.reset_inactive_pool();
      break;
    case 1:
      for (const Hash& hash : manager_.eviction_candidates(4)) {
        if (std::find(names_.begin(), names_.end(), hash) == names_.end())
          fail("a candidate that nobody registered");
      }
      break;
    case 2: {
      const PoolStatus status = manager_.status();
      if (status.total != options_.blocks || status.active > status.total) fail("a status that cannot be");
      break;
    }
    case 3:
      manager_.block_registry().touch(name);
      break;
    case 4:
    case 5:
      if (!worker.pins.empty()) const Pin ended = take(worker.pins, worker.random);
      break;
    default:
      if (auto pin = manager_.pin(name, std::chrono::microseconds(1 + worker.random.below(200)))) {
        worker.pins.push_back(*std::move(pin));
      }
      if (worker.pins.size() > 2) worker.pins.erase(worker.pins.begin());
      break;
  }
}

// ---- the oracle

void ManagerStress::check() {
  for (FenceSignal& signal : std::exchange(signals_, {})) std::move(signal).signal();
  log_->drain(mirror_);
  EXPECT_EQ(problem(), "");
  EXPECT_EQ(mirror_.problem(), "");
  EXPECT_EQ(mirror_.resyncs(), 0u);
  manager_.check_invariants();

  std::map<Hash, std::uint32_t> primaries;
  manager_.for_each_registered([&](const Hash& hash, BlockId id) {
    EXPECT_TRUE(primaries.emplace(hash, id.value()).second) << "two primaries of " << hash;
    EXPECT_EQ(cells_[id.value()], hash);
    EXPECT_TRUE(mirror_.contains(events::kTierId<Tier>, hash));
  });
  EXPECT_EQ(mirror_.present().size(), primaries.size());
  const std::vector<bool> present = manager_.block_registry().check_presence<Tier>(names_);
  for (std::size_t i = 0; i < names_.size(); ++i) EXPECT_EQ(bool{present[i]}, primaries.contains(names_[i]));

  std::size_t owned = 0;
  std::set<std::uint32_t> owned_ids;
  std::map<std::uint32_t, std::uint32_t> references;
  ManagerCounters counted;
  for (const auto& worker : workers_) {
    owned += worker->mutables.size() + worker->completes.size();
    for (const auto& block : worker->mutables) owned_ids.insert(block.block_id().value());
    for (const auto& block : worker->completes) owned_ids.insert(block.block_id().value());
    for (const Shared& guard : worker->shared) {
      ++references[guard.block_id().value()];
      const std::uint32_t primary = primaries.at(guard.sequence_hash());
      EXPECT_EQ(guard.is_duplicate(), primary != guard.block_id().value());
    }
    counted.allocations += worker->counted.allocations;
    counted.evictions += worker->counted.evictions;
    counted.stagings += worker->counted.stagings;
    counted.registrations += worker->counted.registrations;
    counted.match_hashes_requested += worker->counted.match_hashes_requested;
    counted.match_blocks_returned += worker->counted.match_blocks_returned;
    counted.quarantines += worker->counted.quarantines;
  }
  for (const auto& worker : workers_) {
    for (const Shared& guard : worker->shared)
      EXPECT_EQ(guard.use_count(), references[guard.block_id().value()]);
  }
  const PoolStatus status = manager_.status();
  EXPECT_EQ(owned_ids.size(), owned) << "two guards own one block";
  EXPECT_EQ(status.owned, owned);
  EXPECT_EQ(status.active, references.size());
  EXPECT_EQ(status.quarantined, 0u);
  EXPECT_EQ(status.waiters, 0u);

  const ManagerCounters counters = manager_.counters();
  EXPECT_EQ(counters.allocations, counted.allocations);
  EXPECT_EQ(counters.evictions, counted.evictions);
  EXPECT_EQ(counters.allocations_from_reset, counted.allocations - counted.evictions);
  EXPECT_EQ(counters.stagings, counted.stagings);
  EXPECT_EQ(counters.registrations, counted.registrations);
  EXPECT_EQ(counters.match_hashes_requested, counted.match_hashes_requested);
  EXPECT_EQ(counters.match_blocks_returned, counted.match_blocks_returned);
  EXPECT_EQ(counters.quarantines, counted.quarantines);
}

void ManagerStress::finish() {
  for (auto& worker : workers_) {
    worker->mutables.clear();
    worker->completes.clear();
    worker->shared.clear();
    worker->pins.clear();
  }
  check();
  EXPECT_EQ(manager_.available_blocks(), options_.blocks);
  manager_.reset_inactive_pool();
  EXPECT_EQ(manager_.status().reset, options_.blocks);
  EXPECT_EQ(manager_.block_registry().registered_count(), 0u);
  for (const auto& worker : workers_) {
    for (const auto& weak : worker->weaks) EXPECT_FALSE(weak.upgrade().has_value());
  }
  check();
}

}  // namespace ashlar::block::stress
