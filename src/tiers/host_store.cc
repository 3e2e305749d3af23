#include "ashlar/tiers/host_store.h"

#include <sys/random.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::tiers {

using events::G2;
using events::G3;
using events::G4;
using events::kTierId;
using tokens::PrefixDigest;
using tokens::SequenceHash;

std::string_view to_string(HostAnswer answer) noexcept {
  constexpr std::string_view kNames[] = {"miss", "hit", "pending", "unknown"};
  return kNames[static_cast<std::size_t>(answer)];
}

namespace {

using HostPin = block::ImmutableBlock<G2>;

// A block that arrived and was evicted before it was asked for again is brought up once more, not for ever.
constexpr std::uint8_t kMaxFetches = 2;

// Calls of one request at a time, where each block has its own.
constexpr std::size_t kMaxApart = 64;

// What a request knows of a block that it asked for and that was not in G2.
struct WantedBlock {
  PrefixDigest prefix;
  enum class Stage : std::uint8_t { kAsked, kFetching, kArrived, kMissed } stage = Stage::kAsked;
  bool known = false;  // some tier had it
  std::uint8_t fetches = 0;
};

struct PinnedBlock {
  HostPin pin;
  PrefixDigest prefix;  // as the engine gave it
};

// Blocks that are brought up by one call.
struct HostFetch {
  std::vector<SequenceHash> hashes;
  OnboardHandle handle;
};

struct HostRequest {
  std::unordered_map<SequenceHash, PinnedBlock> pins;
  std::unordered_map<SequenceHash, WantedBlock> wanted;
  std::unordered_map<SequenceHash, events::TierId> sources;
  std::vector<SequenceHash> asked;  // in the order of the look-ups
  std::vector<HostFetch> fetches;
  // It asks for blocks behind a missing one, as for a window from its end: one call for each, all at once.
  bool apart = false;
  std::optional<Clock::TimePoint> deadline = {};  // from its first fetch on
};

struct HostJob {
  bool is_store = false;
  bool abandoned = false;
  std::vector<HostBlock> blocks;
  block::BlockList<block::MutableBlock<G2>> empty;  // of a store
  std::vector<HostPin> pins;                        // of a load
};

// No engine guesses it, and no two stores draw the same.
PrefixDigest draw_epoch() {
  std::uint64_t bits[2] = {};
  while (getrandom(bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
  }
  return PrefixDigest::from_bits(bits[0], bits[1]);
}

// Blocks remember the job that stored them, in files too: the numbers of two processes should differ.
std::uint64_t draw_first_number() {
  return draw_epoch().hi() >> 33;
}

}  // namespace

struct HostStore::State {
  State(KvBlockManager& its_kv, const HostStoreOptions& its_options) : kv(its_kv), options(its_options) {}

  // In the epoch of this store. The first epoch is the one that stores share.
  PrefixDigest digest(const PrefixDigest& prefix) const ASHLAR_REQUIRES(mu) {
    return PrefixDigest::known(prefix.hi() ^ epoch.hi(), prefix.lo() ^ epoch.lo());
  }
  // Names change with the epoch too: a block of an earlier one that somebody still holds is in nobody's way.
  SequenceHash name(const SequenceHash& hash) const ASHLAR_REQUIRES(mu) { return hash.in_group(era); }
  HostBlock named(const HostBlock& block) const ASHLAR_REQUIRES(mu) {
    return {.hash = name(block.hash), .prefix = block.prefix};
  }
  bool pin(HostRequest& request, const SequenceHash& hash, const PrefixDigest& prefix) ASHLAR_REQUIRES(mu);
  HostAnswer want(HostRequest& request, const HostBlock& block) ASHLAR_REQUIRES(mu);
  void collect(HostRequest& request) ASHLAR_REQUIRES(mu);
  void take(HostRequest& request, const HostFetch& fetch) ASHLAR_REQUIRES(mu);
  void give_up(HostRequest& request) ASHLAR_REQUIRES(mu);
  void call(HostRequest& request, std::vector<SequenceHash> hashes) ASHLAR_REQUIRES(mu);
  void fetch(HostRequest& request) ASHLAR_REQUIRES(mu);
  void count_hit(events::TierId tier) ASHLAR_REQUIRES(mu);

  KvBlockManager& kv;
  const HostStoreOptions options;
  mutable Mutex mu;
  PrefixDigest epoch ASHLAR_GUARDED_BY(mu);
  std::uint32_t era ASHLAR_GUARDED_BY(mu) = 0;  // of names
  std::uint64_t last_id ASHLAR_GUARDED_BY(mu) = draw_first_number();
  std::unordered_map<RequestId, HostRequest> requests ASHLAR_GUARDED_BY(mu);
  std::unordered_map<JobId, HostJob> jobs ASHLAR_GUARDED_BY(mu);
  std::unordered_map<SequenceHash, PrefixDigest> storing ASHLAR_GUARDED_BY(mu);
  // Blocks that a load found damaged, and who stored them: others may still pin them in G2.
  std::unordered_map<SequenceHash, std::uint32_t> damaged ASHLAR_GUARDED_BY(mu);
  HostStoreCounters counters ASHLAR_GUARDED_BY(mu);
};

Result<std::unique_ptr<HostStore>> HostStore::create(KvBlockManager& kv, const HostStoreOptions& options) {
  if (kv.g2() == nullptr)
    return make_error(ErrorCode::kInvalidArgument,
                      "the manager has no G2; give KvOptions::g2, the memory that the workers share");
  if (options.fetch_limit <= Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "fetch_limit is not positive");
  if (options.compute_blocks_per_second && !(*options.compute_blocks_per_second > 0))
    return make_error(ErrorCode::kInvalidArgument, "compute_blocks_per_second is not positive");
  if (options.max_jobs == 0) return make_error(ErrorCode::kInvalidArgument, "max_jobs is 0");
  return std::unique_ptr<HostStore>(new HostStore(std::make_unique<State>(kv, options)));
}

HostStore::HostStore(std::unique_ptr<State> state) : state_(std::move(state)) {}

HostStore::~HostStore() {
  const MutexLock lock(state_->mu);
  for (auto& [id, request] : state_->requests)
    for (HostFetch& fetch : request.fetches) fetch.handle.cancel();
}

// ---- requests

HostStore::RequestId HostStore::begin_request() {
  const MutexLock lock(state_->mu);
  const RequestId id(++state_->last_id);
  state_->requests.try_emplace(id);
  return id;
}

void HostStore::drop_pins(RequestId request) {
  const MutexLock lock(state_->mu);
  if (const auto found = state_->requests.find(request); found != state_->requests.end())
    found->second.pins.clear();
}

void HostStore::end_request(RequestId request) {
  const MutexLock lock(state_->mu);
  const auto found = state_->requests.find(request);
  if (found == state_->requests.end()) return;
  for (HostFetch& fetch : found->second.fetches) fetch.handle.cancel();
  state_->requests.erase(found);
}

bool HostStore::State::pin(HostRequest& request, const SequenceHash& hash, const PrefixDigest& prefix) {
  block::BlockList<HostPin> found;
  const PrefixDigest wanted = digest(prefix);
  if (kv.g2()->match_blocks(std::span(&hash, 1), std::span(&wanted, 1), found) == 0) {
    // Gone: the next one of its name is another copy.
    if (!damaged.empty() && !kv.presence(std::span(&hash, 1))[0].in(kTierId<G2>)) damaged.erase(hash);
    return false;
  }
  if (const auto bad = damaged.find(hash); bad != damaged.end()) {
    if (kv.metadata(hash) == bad->second) return false;
    damaged.erase(bad);
  }
  request.pins.emplace(hash, PinnedBlock{std::move(found[0]), prefix});
  return true;
}

void HostStore::State::count_hit(events::TierId tier) {
  if (tier == kTierId<G2>)
    ++counters.hits_host;
  else if (tier == kTierId<G3>)
    ++counters.hits_disk;
  else if (tier == kTierId<G4>)
    ++counters.hits_volume;
  else
    ++counters.hits_peer;
}

HostAnswer HostStore::lookup(RequestId id, const HostBlock& asked) {
  const MutexLock lock(state_->mu);
  const HostBlock block = state_->named(asked);
  const auto found = state_->requests.find(id);
  if (found == state_->requests.end()) return HostAnswer::kMiss;
  HostRequest& request = found->second;
  // A request that has one block of a hash has no other.
  if (const auto pin = request.pins.find(block.hash); pin != request.pins.end())
    return pin->second.prefix == block.prefix ? HostAnswer::kHit : HostAnswer::kMiss;
  state_->collect(request);
  // While a fetch runs, it alone knows where its blocks come from.
  const auto wanted = request.wanted.find(block.hash);
  if (wanted != request.wanted.end() && wanted->second.prefix != block.prefix) return HostAnswer::kMiss;
  if (wanted != request.wanted.end() && wanted->second.stage == WantedBlock::Stage::kFetching)
    return wanted->second.known ? HostAnswer::kPending : HostAnswer::kUnknown;
  if (state_->pin(request, block.hash, block.prefix)) {
    const auto [source, first] = request.sources.try_emplace(block.hash, kTierId<G2>);
    request.wanted.erase(block.hash);
    if (first) state_->count_hit(source->second);
    return HostAnswer::kHit;
  }
  const auto storing = state_->storing.find(block.hash);
  if (storing != state_->storing.end() && storing->second == block.prefix) return HostAnswer::kPending;
  const HostAnswer answer = state_->want(request, block);
  if (answer == HostAnswer::kMiss) ++state_->counters.misses;
  return answer;
}

HostAnswer HostStore::State::want(HostRequest& request, const HostBlock& block) {
  const auto [entry, first] = request.wanted.try_emplace(block.hash, WantedBlock{.prefix = block.prefix});
  WantedBlock& wanted = entry->second;
  if (!first && wanted.stage == WantedBlock::Stage::kArrived) {  // and was evicted since
    if (wanted.fetches >= kMaxFetches) wanted.stage = WantedBlock::Stage::kMissed;
  } else if (!first && wanted.stage != WantedBlock::Stage::kMissed) {
    return wanted.known ? HostAnswer::kPending : HostAnswer::kUnknown;
  }
  if (wanted.stage == WantedBlock::Stage::kMissed) return HostAnswer::kMiss;
  wanted.known = kv.presence(std::span(&block.hash, 1))[0].anywhere();
  if (!wanted.known && !kv.probes()) {
    wanted.stage = WantedBlock::Stage::kMissed;
    return HostAnswer::kMiss;
  }
  wanted.stage = WantedBlock::Stage::kAsked;
  request.asked.push_back(block.hash);
  return wanted.known ? HostAnswer::kPending : HostAnswer::kUnknown;
}

// Takes the outcomes of fetches that have ended. Blocks behind a miss were not looked for: who still wants
// them asks again.
void HostStore::State::collect(HostRequest& request) {
  // The limit of the call first; this is for calls that do not keep it.
  constexpr auto kGrace = std::chrono::seconds(1);
  if (!request.fetches.empty() && Clock::real().now() >= *request.deadline + kGrace) give_up(request);
  std::erase_if(request.fetches, [&](const HostFetch& fetch) ASHLAR_REQUIRES(mu) {
    if (!fetch.handle.done()) return false;
    take(request, fetch);
    return true;
  });
}

void HostStore::State::take(HostRequest& request, const HostFetch& fetch) {
  const std::vector<BlockOutcome> outcomes = fetch.handle.blocks();
  for (std::size_t i = 0; i < fetch.hashes.size(); ++i) {
    const SequenceHash& hash = fetch.hashes[i];
    const auto entry = request.wanted.find(hash);
    if (entry == request.wanted.end()) continue;
    const BlockOutcome& outcome = outcomes[i];
    if (outcome.state == OnboardState::kHit) {
      entry->second.stage = WantedBlock::Stage::kArrived;
      const events::TierId tier = outcome.tier.value_or(kTierId<G2>);
      if (request.sources.try_emplace(hash, tier).second) count_hit(tier);
    } else if (outcome.miss == Miss::kBehind) {
      request.wanted.erase(entry);
      request.apart = true;
    } else {
      entry->second.stage = WantedBlock::Stage::kMissed;
      if (outcome.miss == Miss::kLate) ++counters.late;
    }
  }
}

// Fetches ignore their deadline, as a volume that hangs may make them: the request goes on without them.
void HostStore::State::give_up(HostRequest& request) {
  std::erase_if(request.fetches, [&](HostFetch& fetch) ASHLAR_REQUIRES(mu) {
    if (fetch.handle.done()) return false;
    fetch.handle.cancel();
    for (const SequenceHash& hash : fetch.hashes)
      if (const auto entry = request.wanted.find(hash); entry != request.wanted.end()) {
        entry->second.stage = WantedBlock::Stage::kMissed;
        ++counters.late;
      }
    return true;
  });
}

void HostStore::State::fetch(HostRequest& request) {
  const Clock::TimePoint now = Clock::real().now();
  if (!request.deadline) request.deadline = now + options.fetch_limit;
  const bool late = now >= *request.deadline;
  std::vector<SequenceHash> together;
  std::size_t seen = 0;
  for (; seen < request.asked.size() && request.fetches.size() < kMaxApart; ++seen) {
    const SequenceHash& hash = request.asked[seen];
    const auto entry = request.wanted.find(hash);
    if (entry == request.wanted.end() || entry->second.stage != WantedBlock::Stage::kAsked) continue;
    if (late) {
      entry->second.stage = WantedBlock::Stage::kMissed;
      ++counters.late;
      continue;
    }
    entry->second.stage = WantedBlock::Stage::kFetching;
    ++entry->second.fetches;
    if (request.apart)
      call(request, {hash});
    else
      together.push_back(hash);
  }
  request.asked.erase(request.asked.begin(), request.asked.begin() + static_cast<std::ptrdiff_t>(seen));
  if (!together.empty()) call(request, std::move(together));
}

void HostStore::State::call(HostRequest& request, std::vector<SequenceHash> hashes) {
  OnboardOptions how;
  for (const SequenceHash& hash : hashes) how.prefixes.push_back(digest(request.wanted[hash].prefix));
  how.deadline = request.deadline;
  how.compute_tokens_per_second = options.compute_blocks_per_second;
  Result<OnboardHandle> handle = kv.prefetch(hashes, how);
  if (handle) {
    request.fetches.push_back({.hashes = std::move(hashes), .handle = *std::move(handle)});
    return;
  }
  // Shut down, or no thread.
  for (const SequenceHash& hash : hashes) request.wanted[hash].stage = WantedBlock::Stage::kMissed;
}

void HostStore::fetch_asked() {
  const MutexLock lock(state_->mu);
  for (auto& [id, request] : state_->requests) {
    state_->collect(request);
    if (request.fetches.empty() && !request.asked.empty()) state_->fetch(request);
  }
}

bool HostStore::fetching() const {
  const MutexLock lock(state_->mu);
  return std::ranges::any_of(state_->requests, [](const auto& entry) {
    return !entry.second.fetches.empty() || !entry.second.asked.empty();
  });
}

std::optional<events::TierId> HostStore::source(RequestId id, const SequenceHash& hash) const {
  const MutexLock lock(state_->mu);
  const auto request = state_->requests.find(id);
  if (request == state_->requests.end()) return std::nullopt;
  const auto found = request->second.sources.find(state_->name(hash));
  if (found == request->second.sources.end()) return std::nullopt;
  return found->second;
}

void HostStore::touch(std::span<const SequenceHash> hashes) {
  const MutexLock lock(state_->mu);
  block::BlockList<HostPin> used;
  for (const SequenceHash& hash : hashes) {
    const SequenceHash name = state_->name(hash);
    state_->kv.g2()->match_blocks(std::span(&name, 1), used);
  }
}

SequenceHash HostStore::name(const SequenceHash& hash) const {
  const MutexLock lock(state_->mu);
  return state_->name(hash);
}

// ---- jobs

std::uint32_t HostStore::mark(JobId job, block::BlockId slot) noexcept {
  // The odd factor sends slots that are near each other far apart: jobs that follow each other stay between.
  return static_cast<std::uint32_t>(job.value() + std::uint64_t{0x9E3779B1} * slot.value());
}

Result<HostStore::Job> HostStore::begin_store(std::span<const HostBlock> blocks) {
  State& state = *state_;
  const MutexLock lock(state.mu);
  if (state.jobs.size() >= state.options.max_jobs)
    return make_error(ErrorCode::kCapacity, "%zu jobs are under way; raise max_jobs, or end them first",
                      state.jobs.size());
  Job job;
  std::unordered_set<SequenceHash> chosen;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const SequenceHash hash = state.name(blocks[i].hash);
    if (state.storing.contains(hash) || !chosen.insert(hash).second) continue;
    if (!state.kv.presence(std::span(&hash, 1))[0].in(kTierId<G2>)) job.chosen.push_back(i);
  }
  block::BlockList<block::MutableBlock<G2>> empty;
  const std::size_t wanted = job.chosen.size();
  for (std::size_t n = wanted; n != 0; n /= 2) {
    auto taken = state.kv.g2()->allocate_blocks(n);
    if (!taken) continue;
    empty = *std::move(taken);
    break;
  }
  job.chosen.resize(empty.size());
  state.counters.not_stored += wanted - job.chosen.size();
  if (job.chosen.empty()) return job;
  HostJob under_way{
      .is_store = true, .abandoned = false, .blocks = {}, .empty = std::move(empty), .pins = {}};
  for (std::size_t i = 0; i < job.chosen.size(); ++i) {
    job.slots.push_back(under_way.empty[i].block_id());
    under_way.blocks.push_back(state.named(blocks[job.chosen[i]]));
    state.storing.emplace(under_way.blocks.back().hash, under_way.blocks.back().prefix);
  }
  job.job = JobId(++state.last_id);
  state.jobs.emplace(job.job, std::move(under_way));
  return job;
}

Result<HostStore::Job> HostStore::begin_load(RequestId id, std::span<const HostBlock> blocks) {
  State& state = *state_;
  const MutexLock lock(state.mu);
  const auto found = state.requests.find(id);
  if (found == state.requests.end())
    return make_error(ErrorCode::kNotFound, "request %llu has ended, or never began",
                      static_cast<unsigned long long>(id.value()));
  HostRequest& request = found->second;
  Job job;
  HostJob under_way;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const HostBlock block = state.named(blocks[i]);
    auto pin = request.pins.find(block.hash);
    if (pin == request.pins.end() && state.pin(request, block.hash, block.prefix))
      pin = request.pins.find(block.hash);
    if (pin == request.pins.end() || pin->second.prefix != block.prefix)
      return make_error(ErrorCode::kNotFound, "block %s is not in G2; load only what lookup() called a hit",
                        block.hash.to_string().c_str());
    job.chosen.push_back(i);
    job.slots.push_back(pin->second.pin.block_id());
    job.writers.push_back(state.kv.metadata(block.hash).value_or(0));
    under_way.blocks.push_back(block);
    under_way.pins.push_back(std::move(pin->second.pin));
    request.pins.erase(pin);
  }
  request.pins.clear();
  if (job.chosen.empty()) return job;
  job.job = JobId(++state.last_id);
  state.jobs.emplace(job.job, std::move(under_way));
  return job;
}

Result<void> HostStore::end_job(JobId id, bool done) {
  HostJob job;
  {
    const MutexLock lock(state_->mu);
    const auto found = state_->jobs.find(id);
    if (found == state_->jobs.end())
      return make_error(ErrorCode::kNotFound, "job %llu is not under way",
                        static_cast<unsigned long long>(id.value()));
    job = std::move(found->second);
    state_->jobs.erase(found);
    if (job.abandoned) {
      state_->counters.abandoned += job.blocks.size();
      for (HostPin& pin : job.pins) pin.set_reset_on_release(true);
      return {};
    }
    if (!job.is_store) {
      (done ? state_->counters.loaded : state_->counters.damaged) += job.blocks.size();
      for (std::size_t i = 0; !done && i < job.pins.size(); ++i) {
        state_->damaged.insert_or_assign(job.blocks[i].hash,
                                         state_->kv.metadata(job.blocks[i].hash).value_or(0));
        job.pins[i].set_reset_on_release(true);
      }
      return {};
    }
    for (std::size_t i = 0; i < job.blocks.size(); ++i) {
      const HostBlock& block = job.blocks[i];
      state_->storing.erase(block.hash);
      if (!done) continue;
      block::BlockIdentity identity;
      identity.hash = block.hash;
      identity.prefix = state_->digest(block.prefix);
      identity.metadata = mark(id, job.empty[i].block_id());
      auto registered = state_->kv.g2()->register_block(
          std::move(job.empty[i]).stage(identity, block::KvReady::asserted_by_caller()));
      if (registered)
        ++state_->counters.stored;
      else
        ++state_->counters.collided;
    }
  }
  return {};
}

std::size_t HostStore::jobs() const {
  const MutexLock lock(state_->mu);
  return state_->jobs.size();
}

// ---- all

Result<void> HostStore::forget_all() {
  {
    const MutexLock lock(state_->mu);
    state_->epoch = draw_epoch();
    state_->era = static_cast<std::uint32_t>(draw_epoch().lo()) | 1u << 31;  // no group's number
    state_->storing.clear();
    state_->damaged.clear();
    for (auto& [id, job] : state_->jobs) job.abandoned = true;
    for (auto& [id, request] : state_->requests) {
      for (HostFetch& fetch : request.fetches) fetch.handle.cancel();
      request = HostRequest();
    }
  }
  ASHLAR_RETURN_IF_ERROR(state_->kv.reset(kTierId<G2>));
  if (state_->kv.g3() != nullptr) ASHLAR_RETURN_IF_ERROR(state_->kv.reset(kTierId<G3>));
  return {};
}

HostStoreCounters HostStore::counters() const {
  const MutexLock lock(state_->mu);
  return state_->counters;
}

}  // namespace ashlar::tiers
