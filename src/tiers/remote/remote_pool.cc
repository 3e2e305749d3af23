#include "tiers/remote/remote_pool.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/transfer/copy_plan.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::tiers {

using events::Remote;
using tokens::SequenceHash;
using transfer::RemoteBlockSet;
using transfer::RemotePeer;

namespace {

constexpr std::size_t kMostDropped = 4096;  // peers whose drop is remembered

}  // namespace

struct RemotePool::Ends {
  Mutex mu;  // before the pool's
  RemotePool* pool ASHLAR_GUARDED_BY(mu) = nullptr;
};

RemotePool::RemotePool(block::BlockManager<Remote>& manager, std::shared_ptr<transfer::RemoteAgent> agent,
                       std::shared_ptr<const transfer::BlockSet> blocks, const Options& options)
    : ManagedPool<Remote, TierPool>(manager, *options.clock),
      agent_(std::move(agent)),
      blocks_(std::move(blocks)),
      options_(options),
      clock_(*options.clock),
      keeper_(clock_, options.lease, options.renew, options.call_limit),
      finder_(options.finder ? std::make_unique<PeerFinder>(agent_, *options.finder) : nullptr),
      answers_(options.call_limit),
      reacher_(agent_, {.call_limit = options.call_limit, .rest = options.rest, .clock = options.clock}),
      ends_(std::make_shared<Ends>()),
      known_(manager.total_blocks()) {
  const MutexLock lock(ends_->mu);
  ends_->pool = this;
}

RemotePool::~RemotePool() {
  stop();
}

Result<void> RemotePool::start() {
  Result<transfer::RemoteOffer> offer =
      agent_->serve(static_cast<std::uint16_t>(RemoteMethod::kWithdraw),
                    [ends = ends_](const std::shared_ptr<RemotePeer>& peer,
                                   std::span<const std::byte> bytes) -> Result<std::vector<std::byte>> {
                      ASHLAR_TRY(const std::vector<SequenceHash> hashes, decode_hashes(bytes));
                      const MutexLock lock(ends->mu);
                      if (ends->pool != nullptr) ends->pool->withdrawn(peer->identity(), hashes);
                      return std::vector<std::byte>();
                    });
  if (!offer && offer.error().code() == ErrorCode::kAlreadyExists)
    return make_error(
        ErrorCode::kAlreadyExists,
        "agent %s at %s serves another KvBlockManager; give each manager an agent (own_agent, or "
        "another one that listens on a port of its own)",
        agent_->identity().to_string().c_str(), agent_->address().c_str());
  ASHLAR_RETURN_IF_ERROR(offer);
  offers_.push_back(*std::move(offer));
  return {};
}

// A transfer in flight owns blocks of G2: it must end before they go. Closing its path ends it soon.
void RemotePool::stop() {
  if (finder_ != nullptr) finder_->stop();
  reacher_.stop();
  offers_.clear();
  {
    const MutexLock lock(ends_->mu);
    ends_->pool = nullptr;
  }
  keeper_.stop();
  decltype(transfers_) running;
  {
    const MutexLock lock(transfers_mu_);
    running.swap(transfers_);
  }
  for (const auto& [number, one] : running) one.second.cancel();
  const Clock::TimePoint patience = Clock::real().now() + std::chrono::milliseconds(100);
  for (const auto& [number, one] : running) {
    if (!one.second.done()) static_cast<void>(one.second.wait_until(patience));
    if (!one.second.done())
      one.first->close(
          make_error(ErrorCode::kCancelled, "the tier that read from this peer is being closed"));
    static_cast<void>(one.second.wait_for_end());
  }
}

// ---- peers

Result<void> RemotePool::check_fits(const RemoteBlockSet& set) const {
  const auto refuse = [&](const char* what) {
    return make_error(ErrorCode::kUnsupported,
                      "the blocks of agent %s at %s are of another %s; they are left alone",
                      set.peer()->identity().to_string().c_str(), set.peer()->address().c_str(), what);
  };
  if (set.names().keys != options_.names.keys) return refuse("model (namespace fingerprint)");
  if (set.names().scheme_fingerprint != options_.names.scheme_fingerprint) return refuse("hash scheme");
  if (set.names().prefix_key_fingerprint != options_.names.prefix_key_fingerprint)
    return refuse("prefix key");
  const layout::Shard& mine = blocks_->planes()[0].shard;
  const transfer::PlanSelection common{.layers = intersect(mine.layers, set.shard().layers),
                                       .heads = intersect(mine.heads, set.shard().heads),
                                       .shared = transfer::SharedHeads::kMove};
  if (common.layers->count == 0 || common.heads->count == 0)
    return make_error(ErrorCode::kUnsupported, "%s has no layer or head in common with %s",
                      set.shard().to_string().c_str(), mine.to_string().c_str());
  const std::uint32_t block = 0;
  const auto trial =
      transfer::plan(set.blocks(), std::span(&block, 1), blocks_, std::span(&block, 1), common);
  if (!trial)
    return make_error(ErrorCode::kUnsupported, "the blocks of agent %s do not fit those here: %s",
                      set.peer()->identity().to_string().c_str(), trial.error().message().c_str());
  return {};
}

std::shared_ptr<RemotePool::Source> RemotePool::source_of(const transfer::AgentIdentity& peer) const {
  const MutexLock lock(mu_);
  const auto found =
      std::ranges::find_if(sources_, [&](const auto& source) { return source->peer->identity() == peer; });
  return found == sources_.end() ? nullptr : *found;
}

Result<void> RemotePool::adopt(const std::shared_ptr<RemotePeer>& peer, const Result<Sets>& sets,
                               std::uint64_t since) {
  auto made = std::make_shared<Source>();
  made->peer = peer;
  made->unanswered = !sets;
  for (const auto& set : sets ? *sets : Sets()) {
    if (set->id() == kG2Set) made->set = set;
    if (set->id() == kLandingSet) made->landing = set;
  }
  Result<void> fits;
  if (!sets) {
    fits = sets.error();
  } else if (made->set == nullptr) {
    fits = make_error(ErrorCode::kNotFound, "agent %s at %s shares no blocks",
                      peer->identity().to_string().c_str(), peer->address().c_str());
  } else {
    fits = check_fits(*made->set);
  }
  const Sets listed = agent_->remote_blocksets();
  std::shared_ptr<Source> old;  // of an earlier connection, or the same peer before
  {
    const MutexLock lock(mu_);
    const auto dropped = dropped_.find(peer->identity());
    if (dropped != dropped_.end() && (made->set == nullptr || dropped->second > since)) {
      made->set = nullptr;
      made->landing = nullptr;
      fits = make_error(ErrorCode::kNotFound,
                        "the blocks of agent %s at %s were dropped here; connect to it, or import its set",
                        peer->identity().to_string().c_str(), peer->address().c_str());
    } else if (dropped != dropped_.end()) {
      dropped_.erase(dropped);
    }
    if (!fits) made->refusal = fits.error().message();
    const auto found = std::ranges::find_if(
        sources_, [&](const auto& source) { return source->peer->identity() == peer->identity(); });
    if (found != sources_.end()) {
      old = *found;
      // What is known of a peer stays while nothing has changed. A list without sets may have been asked for
      // before one that another call took over.
      const bool same = old->set == made->set && old->landing == made->landing &&
                        old->refusal == made->refusal && made->set != nullptr;
      const bool earlier = sets && made->set == nullptr && old->set != nullptr &&
                           std::ranges::find(listed, old->set) != listed.end();
      if (old->peer == peer && (same || earlier)) return same ? fits : Result<void>();
      sources_.erase(found);
    }
    if (old != nullptr && old->peer == peer) {
      made->number = old->number;
      made->got.add(old->got.value());
      made->failed.add(old->failed.value());
      made->cost = old->cost;
    } else {
      do {
        made->number = next_++ % EventLocation::kFirstPeer;
      } while (
          std::ranges::any_of(sources_, [&](const auto& source) { return source->number == made->number; }));
    }
    sources_.push_back(made);
  }
  if (made->set == nullptr) made->rests_until = clock_.now() + options_.rest;
  // Of another set nothing is known yet.
  if (old != nullptr && old->set != nullptr && old->set != made->set) forget_blocks(*old);
  if (old != nullptr && old->peer == peer) return fits;
  if (options_.named) options_.named(made->number, PeerTotals::label(*peer));
  // The end of this connection, not of one that follows it.
  peer->on_closed([ends = ends_, closed = std::weak_ptr<RemotePeer>(peer)](const Error&) {
    const MutexLock lock(ends->mu);
    const std::shared_ptr<RemotePeer> its = closed.lock();
    if (ends->pool == nullptr || its == nullptr) return;
    const std::shared_ptr<Source> source = ends->pool->source_of(its->identity());
    if (source != nullptr && source->peer == its) ends->pool->died(its->identity());
  });
  return fits;
}

std::shared_ptr<RemotePool::Source> RemotePool::meet(const std::shared_ptr<RemotePeer>& peer,
                                                     const Limits& limits, bool* silent) {
  std::shared_ptr<Source> known = source_of(peer->identity());
  const bool is_new = known == nullptr || known->peer != peer;
  // One that shares nothing may have been met while it started, and a set may have been withdrawn for a new
  // one: it is asked again.
  if (is_new || (known->set == nullptr ? !rests(*known) : !is_offered(known->set))) {
    const std::uint64_t since = drops();
    const AnswerWatch::Question question = answers_.ask(peer->identity());
    const Result<Sets> sets = agent_->exchange(peer, call_limits(limits), false, question.late());
    *silent = !sets && is_no_answer(sets.error());
    if (*silent) {
      if (is_its_fault(sets.error(), question)) static_cast<void>(adopt(peer, sets, since));  // it rests
      return nullptr;
    }
    question.answered();
    const Result<void> fits = adopt(peer, sets, since);
    known = source_of(peer->identity());
    if (!fits && is_new) {
      // A rank of a fleet meets others that hold what it has no use for.
      const layout::Shard& mine = blocks_->planes()[0].shard;
      const bool is_other_rank = known != nullptr && known->set != nullptr &&
                                 (intersect(mine.layers, known->set->shard().layers).count == 0 ||
                                  intersect(mine.heads, known->set->shard().heads).count == 0);
      ASHLAR_LOG(is_other_rank ? LogLevel::kInfo : LogLevel::kWarn, "tiers", "%s",
                 fits.error().to_string().c_str());
    }
  }
  if (known != nullptr && known->unanswered) *silent = true;
  return known == nullptr || !known->refusal.empty() ? nullptr : known;
}

bool RemotePool::is_offered(const std::shared_ptr<const RemoteBlockSet>& set) const {
  const Sets listed = agent_->remote_blocksets();
  return std::ranges::find(listed, set) != listed.end();
}

void RemotePool::follow(const std::shared_ptr<RemotePeer>& peer, const transfer::Transfer& transfer) {
  const MutexLock lock(transfers_mu_);
  std::erase_if(transfers_, [](const auto& one) { return one.second.second.done(); });
  transfers_.emplace(next_transfer_++, std::pair(peer, transfer));
}

Result<std::shared_ptr<RemotePeer>> RemotePool::connect(std::string_view address,
                                                        const transfer::RemoteCallLimits& limits,
                                                        bool again) {
  ASHLAR_TRY(std::shared_ptr<RemotePeer> peer, agent_->connect(address, limits));
  const std::uint64_t since = drops();
  ASHLAR_TRY(Sets sets, agent_->exchange(peer, limits, again));
  ASHLAR_RETURN_IF_ERROR(adopt(peer, std::move(sets), since));
  return peer;
}

Result<std::shared_ptr<RemotePeer>> RemotePool::reach(const std::string& address, const Limits& limits) {
  struct Reaching {
    Mutex mu;  // a leaf
    CondVar changed;
    std::optional<PeerReacher::Outcome> outcome ASHLAR_GUARDED_BY(mu);
  };
  const auto reaching = std::make_shared<Reaching>();
  reacher_.reach(address, [reaching](const PeerReacher::Outcome& outcome) {
    const MutexLock lock(reaching->mu);
    reaching->outcome.emplace(outcome);
    reaching->changed.notify_all();
  });
  const transfer::RemoteCallLimits until = call_limits(limits);
  std::shared_ptr<RemotePeer> peer;
  {
    const MutexLock lock(reaching->mu);
    while (!reaching->outcome) {
      if (Clock::real().now() >= *until.deadline)
        return make_error(ErrorCode::kUnavailable, "the agent at %s did not answer in time", address.c_str());
      Clock::real().wait_until(reaching->changed, reaching->mu, *until.deadline);
    }
    ASHLAR_RETURN_IF_ERROR(*reaching->outcome);
    peer = **reaching->outcome;
  }
  bool silent = false;
  if (meet(peer, limits, &silent) != nullptr) return peer;
  if (silent)
    return make_error(ErrorCode::kUnavailable, "the agent at %s does not say what it shares",
                      address.c_str());
  const std::shared_ptr<Source> source = source_of(peer->identity());
  return make_error(ErrorCode::kUnsupported, "%s",
                    source == nullptr ? "its blocks are not part of this tier" : source->refusal.c_str());
}

std::uint64_t RemotePool::drops() const {
  const MutexLock lock(mu_);
  return drops_;
}

bool RemotePool::drop(const transfer::AgentIdentity& peer) {
  const std::shared_ptr<Source> source = source_of(peer);
  if (source == nullptr || (source->set == nullptr && source->landing == nullptr)) return false;
  // First the agent: who asks it after this drop is counted does not get them.
  for (const std::uint64_t id : {kG2Set, kLandingSet}) agent_->drop_remote_blockset(peer, id);
  {
    const MutexLock lock(mu_);
    if (dropped_.size() >= kMostDropped) dropped_.erase(dropped_.begin());
    dropped_[peer] = ++drops_;
  }
  died(peer);
  return true;
}

std::shared_ptr<const RemoteBlockSet> RemotePool::set_of(const transfer::AgentIdentity& peer,
                                                         std::uint64_t id) const {
  const std::shared_ptr<Source> source = source_of(peer);
  if (source == nullptr || !source->refusal.empty()) return nullptr;
  return id == kG2Set ? source->set : source->landing;
}

bool RemotePool::rests(const Source& source) const {
  return clock_.now() < source.rests_until.load();
}

bool RemotePool::is_no_answer(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout ||
         error.code() == ErrorCode::kCancelled;
}

bool RemotePool::is_its_fault(const Error& error, const AnswerWatch::Question& question) {
  if (error.code() == ErrorCode::kUnavailable) return true;  // it is dead
  if (is_no_answer(error)) return answers_.left(question);
  question.answered();
  return false;
}

transfer::RemoteCallLimits RemotePool::call_limits(const Limits& limits) const {
  Clock::Duration left = options_.call_limit;
  if (limits.deadline)
    left = std::clamp<Clock::Duration>(*limits.deadline - clock_.now(), Clock::Duration(0), left);
  return {.deadline = Clock::real().now() + left, .stop = limits.stop};
}

// ---- who has what

TierRecord RemotePool::record(const block::Hold& hold) const {
  TierRecord record = ManagedPool<Remote, TierPool>::record(hold);
  const MutexLock lock(mu_);
  record.learn_text(known_[hold.block_id().value()].text);
  return record;
}

std::vector<RemotePool::Number> RemotePool::numbers_of(const SequenceHash& hash) {
  const std::optional<block::Hold> held = hold(hash);
  if (!held) return {};
  const MutexLock lock(mu_);
  return known_[held->block_id().value()].holders;
}

RemotePool::Sources RemotePool::sources_of(std::span<const Number> numbers) const {
  Sources out;
  const MutexLock lock(mu_);
  for (const auto& source : sources_)
    if (source->peer->alive() && source->set != nullptr && source->refusal.empty() &&
        std::ranges::find(numbers, source->number) != numbers.end())
      out.push_back(source);
  return out;
}

RemotePool::Sources RemotePool::holders(const SequenceHash& hash) {
  return sources_of(numbers_of(hash));
}

Result<std::vector<RemotePool::Part>> RemotePool::recipe(const Sources& sources) const {
  const layout::Shard& mine = blocks_->planes()[0].shard;
  const auto has_all = [&](const Source& source) {
    const layout::Shard& its = source.set->shard();
    return intersect(its.layers, mine.layers) == mine.layers &&
           intersect(its.heads, mine.heads) == mine.heads;
  };
  for (const auto& source : sources)
    if (has_all(*source))
      return std::vector<Part>{{source, {mine.layers, mine.heads}, source->set->shard() == mine}};
  std::vector<layout::Shard> shards;
  for (const auto& source : sources) shards.push_back(source->set->shard());
  ASHLAR_TRY(const std::vector<transfer::ShardSource> rectangles, transfer::cover(mine, shards));
  std::vector<Part> parts;
  for (const transfer::ShardSource& one : rectangles)
    parts.push_back({sources[one.source], {one.layers, one.heads}, false});
  return parts;
}

// Returns whether the block is still known.
bool RemotePool::drop_holder(const SequenceHash& hash, Number number) {
  const std::optional<block::Hold> held = hold(hash);
  if (!held) return false;
  const MutexLock lock(mu_);
  return std::erase(known_[held->block_id().value()].holders, number) != 0;
}

void RemotePool::not_there(const SequenceHash& hash, const Source& source) {
  if (!drop_holder(hash, source.number)) return;
  if (!recipe(holders(hash))) static_cast<void>(remove(hash));
}

void RemotePool::withdrawn(const transfer::AgentIdentity& peer, std::span<const SequenceHash> hashes) {
  const std::shared_ptr<Source> source = source_of(peer);
  if (source == nullptr) return;
  {
    const MutexLock lock(mu_);
    ++withdrawals_;
    if (!asking_.empty())
      for (const SequenceHash& hash : hashes) withdrawn_[{source->number, hash}] = withdrawals_;
  }
  for (const SequenceHash& hash : hashes) not_there(hash, *source);
}

void RemotePool::died(const transfer::AgentIdentity& peer) {
  const std::shared_ptr<Source> source = source_of(peer);
  if (source == nullptr) return;
  {
    const MutexLock lock(mu_);
    std::erase(sources_, source);
  }
  answers_.forget(peer);
  forget_blocks(*source);
}

void RemotePool::forget_blocks(const Source& source) {
  std::vector<SequenceHash> hashes;
  manager_.for_each_registered([&](const SequenceHash& hash, block::BlockId) { hashes.push_back(hash); });
  for (const SequenceHash& hash : hashes) not_there(hash, source);
}

Result<void> RemotePool::remove(const SequenceHash& hash) {
  auto found = find(hash);
  if (!found) return not_here(hash);
  found->set_reset_on_release(true);
  records_.removed(std::span(&hash, 1));
  return {};
}

std::size_t RemotePool::forget_all() {
  std::vector<SequenceHash> hashes;
  manager_.for_each_registered([&](const SequenceHash& hash, block::BlockId) { hashes.push_back(hash); });
  std::size_t removed = 0;
  for (const SequenceHash& hash : hashes) removed += remove(hash) ? 1 : 0;
  return removed;
}

// ---- observe

RemotePool::Sets RemotePool::sets() const {
  Sets out;
  const MutexLock lock(mu_);
  for (const auto& source : sources_) {
    if (!source->refusal.empty() || !source->peer->alive()) continue;
    for (const auto& set : {source->set, source->landing})
      if (set != nullptr) out.push_back(set);
  }
  return out;
}

void RemotePool::failed(Source& source, std::size_t blocks) {
  source.failed.add(blocks);
  totals_.add(PeerTotals::label(*source.peer), PeerTotals::What::kFailedBlocks, blocks);
}

void RemotePool::add_to(RemoteStatus& status) const {
  if (finder_ != nullptr) finder_->add_to(status);
  std::map<Number, std::uint64_t> known;
  manager_.for_each_registered([&](const SequenceHash&, block::BlockId id) {
    const MutexLock lock(mu_);
    for (const Number number : known_[id.value()].holders) ++known[number];
  });
  const MutexLock lock(mu_);
  for (const auto& source : sources_)
    status.peers.push_back({.identity = source->peer->identity(),
                            .name = source->peer->name(),
                            .address = source->peer->address(),
                            .shard = source->set == nullptr ? layout::Shard() : source->set->shard(),
                            .got = source->got.value(),
                            .failed = source->failed.value(),
                            .known = known[source->number],
                            .load = source->load.load(),
                            .block_seconds = source->cost.seconds(block_bytes()),
                            .refusal = source->refusal});
}

std::vector<std::pair<std::uint16_t, std::string>> RemotePool::peer_names() const {
  std::vector<std::pair<std::uint16_t, std::string>> out;
  const MutexLock lock(mu_);
  for (const auto& source : sources_) out.emplace_back(source->number, PeerTotals::label(*source->peer));
  return out;
}

std::string RemotePool::peer_name(std::uint16_t number) const {
  for (auto& [its, name] : peer_names())
    if (its == number) return name;
  return {};
}

void RemotePool::check_invariants() const {
  const MutexLock ends(ends_->mu);  // peers may withdraw blocks at any time
  manager_.check_invariants();
  std::size_t blocks = 0;
  manager_.for_each_registered([&](const SequenceHash& hash, block::BlockId id) {
    const MutexLock lock(mu_);
    ++blocks;
    ASHLAR_CHECK(!known_[id.value()].holders.empty(), "block %s of the remote tier has no peer",
                 hash.to_string().c_str());
  });
  ASHLAR_CHECK(blocks <= manager_.total_blocks(), "%zu blocks in a tier of %zu", blocks,
               manager_.total_blocks());
}

}  // namespace ashlar::tiers
