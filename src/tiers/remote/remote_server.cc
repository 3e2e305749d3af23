#include "tiers/remote/remote_server.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/transfer_plan.h"
#include "base/interleaving.h"
#include "base/start_thread.h"
#include "base/wide.h"

namespace ashlar::tiers {

using block::BlockId;
using tokens::SequenceHash;
using transfer::BlockChecksum;

namespace {

constexpr Clock::Duration kSlowPeer = std::chrono::milliseconds(50);

// Blocks of which parts are missing take no more than half of G2, and no peer more than its share of them.
std::unique_ptr<PushAssembly> assembly_of(const RemoteServer::Options& options, BytePool& g2,
                                          transfer::Executor& executor) {
  if (options.landing == nullptr) return nullptr;
  const RemoteLimits& limits = options.limits;
  const auto half = static_cast<std::uint32_t>(std::max<std::size_t>(1, g2.capacity() / 2));
  const std::uint32_t blocks = std::min(limits.incomplete_blocks, half);
  const std::uint64_t share =
      std::uint64_t{limits.incomplete_blocks_per_peer} * blocks / limits.incomplete_blocks;
  return std::make_unique<PushAssembly>(
      g2, options.landing, executor,
      PushAssembly::Options{.keys = options.names.keys,
                            .blocks_per_peer = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, share)),
                            .blocks = blocks,
                            .duration = options.longest_lease,
                            .clock = options.clock});
}

}  // namespace

RemoteServer::RemoteServer(std::shared_ptr<transfer::RemoteAgent> agent, BytePool& g2,
                           transfer::Executor& executor, Options options)
    : agent_(std::move(agent)),
      g2_(g2),
      executor_(executor),
      options_(std::move(options)),
      clock_(*options_.clock),
      leases_(options_.limits, g2.block_bytes(),
              options_.landing == nullptr ? 0 : options_.landing->block_count(), clock_),
      assembly_(assembly_of(options_, g2, executor)),
      checksums_(g2.capacity()) {
  const MutexLock lock(ends_->mu);
  ends_->server = this;
}

RemoteServer::~RemoteServer() {
  stop();
}

Result<void> RemoteServer::start() {
  ASHLAR_TRY(transfer::RemoteOffer memory, agent_->export_blockset(g2_.blocks(), options_.names, kG2Set));
  offers_.push_back(std::move(memory));
  if (options_.landing != nullptr) {
    ASHLAR_TRY(transfer::RemoteOffer landing,
               agent_->export_blockset(options_.landing, options_.names, kLandingSet,
                                       storage::AccessMode::kReadWrite));
    offers_.push_back(std::move(landing));
  }
  ASHLAR_RETURN_IF_ERROR(start_thread(&thread_, [this] { run(); }));
  using Answer = Result<Bytes> (RemoteServer::*)(const Peer&, std::span<const std::byte>);
  const auto serve = [&](RemoteMethod method, Answer answer) -> Result<void> {
    ASHLAR_TRY(transfer::RemoteOffer offer,
               agent_->serve(static_cast<std::uint16_t>(method),
                             [this, answer](const Peer& peer, std::span<const std::byte> request) {
                               return (this->*answer)(peer, request);
                             }));
    offers_.push_back(std::move(offer));
    return {};
  };
  ASHLAR_RETURN_IF_ERROR(serve(RemoteMethod::kFind, &RemoteServer::find));
  ASHLAR_RETURN_IF_ERROR(serve(RemoteMethod::kRenew, &RemoteServer::renew));
  ASHLAR_RETURN_IF_ERROR(serve(RemoteMethod::kRelease, &RemoteServer::release));
  ASHLAR_RETURN_IF_ERROR(serve(RemoteMethod::kNames, &RemoteServer::names));
  ASHLAR_RETURN_IF_ERROR(serve(RemoteMethod::kSlots, &RemoteServer::find_slots));
  if (options_.landing == nullptr) return {};
  ASHLAR_RETURN_IF_ERROR(serve(RemoteMethod::kReserve, &RemoteServer::reserve));
  ASHLAR_RETURN_IF_ERROR(serve(RemoteMethod::kCommit, &RemoteServer::commit));
  ASHLAR_RETURN_IF_ERROR(serve(RemoteMethod::kCommitPart, &RemoteServer::commit_part));
  return serve(RemoteMethod::kAbort, &RemoteServer::abort);
}

void RemoteServer::stop() {
  offers_.clear();  // waits for running handlers
  {
    const MutexLock lock(ends_->mu);
    ends_->server = nullptr;
  }
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  leases_.end_all();
  if (assembly_ != nullptr) assembly_->end_all();
}

void RemoteServer::wake() {
  const MutexLock lock(mu_);
  woken_ = true;
  changed_.notify_all();
}

// Ends what is over, and tells peers of blocks that left.
void RemoteServer::run() {
  bool slow = false;  // a peer did not take all that it is to be told
  for (;;) {
    std::optional<Clock::TimePoint> next = leases_.expire();
    if (assembly_ != nullptr)
      if (const std::optional<Clock::TimePoint> end = assembly_->expire())
        next = std::min(next.value_or(*end), *end);
    std::vector<std::pair<Peer, std::vector<SequenceHash>>> telling;
    {
      const MutexLock lock(mu_);
      if (stopping_) return;
      for (auto at = told_.begin(); at != told_.end();) {
        const auto here = at++;
        Told& told = here->second;
        Peer peer = told.peer.lock();
        if (peer == nullptr || !peer->alive()) {
          told_.erase(here);
          told_peers_ = told_.size();
          continue;
        }
        if (!told.withdrawn.empty()) telling.emplace_back(std::move(peer), std::exchange(told.withdrawn, {}));
      }
      if ((telling.empty() || slow) && !woken_) {
        if (slow) {
          changed_.wait_until(mu_, Clock::real().now() + kSlowPeer);
        } else if (next) {
          clock_.wait_until(changed_, mu_, *next);
        } else {
          changed_.wait(mu_);
        }
      }
      woken_ = false;
      slow = false;
    }
    for (auto& [peer, hashes] : telling) {
      std::span<const SequenceHash> left = hashes;
      const std::size_t at_once = (peer->max_message_bytes() - kListHeadBytes) / kHashBytes;
      while (!left.empty()) {
        const std::span<const SequenceHash> some = left.first(std::min(left.size(), at_once));
        if (!peer->notify(static_cast<std::uint16_t>(RemoteMethod::kWithdraw), encode_hashes(some))) break;
        left = left.subspan(some.size());
      }
      // A peer that reads slowly is told later; one that is dead finds out when it asks again.
      if (left.empty() || !peer->alive()) continue;
      const MutexLock lock(mu_);
      const auto found = told_.find(peer->identity());
      if (found == told_.end() || found->second.which != peer.get()) continue;
      found->second.withdrawn.insert(found->second.withdrawn.end(), left.begin(), left.end());
      slow = true;
    }
  }
}

Clock::Duration RemoteServer::bounded(std::chrono::milliseconds wanted) const {
  return std::clamp<Clock::Duration>(wanted, std::chrono::milliseconds(1), options_.longest_lease);
}

// ---- reading

Result<BlockChecksum> RemoteServer::checksum(const block::Hold& hold, const TierRecord& record,
                                             const RemotePart& part) {
  const BytePool::Place place = g2_.place(hold.block_id());
  const transfer::BlockSet& set = *g2_.blocks(place.part);
  const transfer::ChecksumKey name{record.hash, options_.names.keys};
  if (part == RemotePart()) {
    if (record.checksum) return *record.checksum;
    ASHLAR_TRY(const BlockChecksum made, transfer::checksum_block(set, place.slot, name));
    g2_.records().learn(hold, made);
    return made;
  }
  PartChecksum known;
  {
    const MutexLock lock(checksums_mu_);
    known = checksums_[hold.block_id().value()];
  }
  if (known.hash == record.hash && known.part == part && known.since == record.since) return known.checksum;
  // A part is trusted only if the whole is.
  if (record.checksum)
    ASHLAR_RETURN_IF_ERROR(
        transfer::verify_block(set, place.slot, name, *record.checksum, events::StorageTier::kHost));
  ASHLAR_TRY(const BlockChecksum made,
             transfer::checksum_part(set, place.slot, name, part.layers, part.heads));
  const MutexLock lock(checksums_mu_);
  checksums_[hold.block_id().value()] = {record.hash, part, record.since, made};
  return made;
}

Result<RemoteServer::Bytes> RemoteServer::find(const Peer& peer, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const FindRequest request, FindRequest::decode(bytes));
  return fitting(peer, look_up(peer, request, {}));
}

// An answer that is too long is never sent, and the peer cannot release what it never heard of.
Result<RemoteServer::Bytes> RemoteServer::fitting(const Peer& peer, const FindAnswer& answer) {
  Bytes bytes = answer.encode();
  const std::size_t most = peer->max_message_bytes();
  if (bytes.size() <= most) return bytes;
  if (answer.lease != 0) leases_.release(peer->identity(), answer.lease);
  return make_error(ErrorCode::kCapacity,
                    "%zu blocks are described by %zu bytes; max_message_bytes of both agents allows %zu: ask "
                    "for fewer at once",
                    answer.blocks.size(), bytes.size(), most);
}

// What is in a slot may change until it is held: the answer has its name, and a miss where it is another by
// then.
Result<RemoteServer::Bytes> RemoteServer::find_slots(const Peer& peer, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const SlotRequest request, SlotRequest::decode(bytes));
  FindRequest found{.lease = true, .duration = request.duration, .part = request.part, .hashes = {}};
  for (const std::uint32_t slot : request.slots)
    found.hashes.push_back(options_.in_slot(slot).value_or(SequenceHash()));
  return fitting(peer, look_up(peer, found, request.slots));
}

FindAnswer RemoteServer::look_up(const Peer& peer, const FindRequest& request,
                                 std::span<const std::uint32_t> slots) {
  FindAnswer answer;
  answer.blocks.resize(request.hashes.size());
  std::vector<block::Hold> holds;
  std::vector<std::size_t> places;
  std::unordered_map<SequenceHash, std::size_t> by_hash;
  std::unordered_map<std::uint32_t, std::size_t> by_slot;
  // Where a block was first asked for; the same place: here.
  const auto first_of = [&](std::size_t i) {
    return slots.empty() ? by_hash.try_emplace(request.hashes[i], i).first->second
                         : by_slot.try_emplace(slots[i], i).first->second;
  };
  std::vector<std::pair<std::size_t, std::size_t>> repeats;  // one hold and one answer for all of them
  for (std::size_t i = 0; i < request.hashes.size(); ++i) {
    FoundBlock& block = answer.blocks[i];
    if (const std::size_t first = first_of(i); first != i) {
      repeats.emplace_back(i, first);
      continue;
    }
    std::optional<block::Hold> hold = g2_.hold(request.hashes[i]);
    // Bytes that are still being written are nobody's.
    if (!hold || g2_.records().precondition(*hold)) {
      block.miss = Miss::kUnknown;
      continue;
    }
    if (!slots.empty() && g2_.place(hold->block_id()).slot != slots[i]) {
      block.miss = Miss::kGone;
      continue;
    }
    block.record = g2_.record(*hold);
    holds.push_back(*std::move(hold));
    places.push_back(i);
  }
  // Told before the holds are dropped: one that is evicted then is withdrawn.
  std::vector<SequenceHash> told;
  told.reserve(places.size());
  for (const std::size_t i : places) told.push_back(request.hashes[i]);
  if (!told.empty()) tell(peer, told);
  const auto repeat = [&] {
    for (const auto& [again, first] : repeats) answer.blocks[again] = answer.blocks[first];
  };
  if (!request.lease) {
    for (const std::size_t i : places) answer.blocks[i].record.checksum.reset();
    repeat();
    answer.load = leases_.leased_bytes();
    return answer;
  }

  const std::size_t room = leases_.room(peer->identity(), holds.size(), &answer.refusal);
  for (std::size_t k = room; k < places.size(); ++k) answer.blocks[places[k]].miss = Miss::kRefused;
  std::vector<block::Hold> leased;
  for (std::size_t k = 0; k < room; ++k) {
    FoundBlock& block = answer.blocks[places[k]];
    const Result<BlockChecksum> made = checksum(holds[k], block.record, request.part);
    if (!made) {
      const bool damaged = made.error().code() == ErrorCode::kCorruption;
      block.miss = damaged ? Miss::kDamaged : Miss::kFailed;
      answer.refusal = made.error().message();
      ASHLAR_LOG(LogLevel::kError, "tiers", "a peer asks for block %s: %s",
                 block.record.hash.to_string().c_str(), made.error().to_string().c_str());
      if (damaged) static_cast<void>(g2_.remove(block.record.hash));
      continue;
    }
    block.record.checksum = *made;
    block.slot = g2_.place(holds[k].block_id()).slot;
    leased.push_back(std::move(holds[k]));
  }
  if (!leased.empty()) {
    const std::uint64_t bytes = leased.size() * g2_.block_bytes();
    const Clock::Duration duration = bounded(request.duration);
    const Result<std::uint64_t> lease = leases_.grant(peer->identity(), std::move(leased), duration);
    if (lease) {
      answer.lease = *lease;
      answer.duration = std::chrono::duration_cast<std::chrono::milliseconds>(duration);
      totals_.add(PeerTotals::label(*peer), PeerTotals::What::kLeases);
      totals_.add(PeerTotals::label(*peer), PeerTotals::What::kServedBytes, bytes);
      wake();
    } else {
      answer.refusal = lease.error().message();
      for (FoundBlock& block : answer.blocks)
        if (block.miss == Miss::kNone) block.miss = Miss::kRefused;
    }
  }
  repeat();
  answer.load = leases_.leased_bytes();
  // A peer that died meanwhile releases nothing; another connection of the same agent does not know of it.
  if (answer.lease != 0 && !peer->alive()) {
    leases_.release(peer->identity(), answer.lease);
    gone(peer->identity(), peer.get());
  }
  return answer;
}

Result<RemoteServer::Bytes> RemoteServer::renew(const Peer& peer, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const std::vector<std::uint64_t> request, decode_numbers(bytes));
  if (request.empty()) return make_error(ErrorCode::kInvalidArgument, "a renewal without a duration");
  const Clock::Duration duration = bounded(
      std::chrono::milliseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(request[0], INT32_MAX))));
  std::vector<std::uint64_t> renewed;
  for (const std::uint64_t lease : std::span(request).subspan(1))
    if (leases_.renew(peer->identity(), lease, duration)) renewed.push_back(lease);
  return encode_numbers(renewed);
}

Result<RemoteServer::Bytes> RemoteServer::release(const Peer& peer, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const std::vector<std::uint64_t> request, decode_numbers(bytes));
  for (const std::uint64_t lease : request) leases_.release(peer->identity(), lease);
  return Bytes();
}

// Names of 64 bits, as engines have them: of each block of G2 with one of these.
Result<RemoteServer::Bytes> RemoteServer::names(const Peer&, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const std::vector<std::uint64_t> request, decode_numbers(bytes));
  const std::unordered_set<std::uint64_t> wanted(request.begin(), request.end());
  std::vector<SequenceHash> found;
  options_.each_block([&](const SequenceHash& hash) {
    if (wanted.contains(hash.chain())) found.push_back(hash);
  });
  return encode_hashes(found);
}

// ---- who knows what

void RemoteServer::tell(const Peer& peer, std::span<const SequenceHash> hashes) {
  bool first = false;
  {
    const MutexLock lock(mu_);
    const auto [at, added] = told_.try_emplace(peer->identity(), Told{peer, peer.get(), {}, {}});
    // The same incarnation on another connection knows nothing of what the last one was told.
    const bool other = !added && at->second.peer.lock() != peer;
    if (other && !peer->alive()) return;
    if (other) at->second = Told{peer, peer.get(), {}, {}};
    first = added || other;
    at->second.hashes.insert(hashes.begin(), hashes.end());
    told_peers_ = told_.size();
  }
  if (!first) return;
  peer->on_closed([ends = ends_, id = peer->identity(), which = peer.get()](const Error&) {
    const MutexLock lock(ends->mu);
    if (ends->server != nullptr) ends->server->gone(id, which);
  });
}

void RemoteServer::gone(const transfer::AgentIdentity& id, const transfer::RemotePeer* peer) {
  {
    const MutexLock lock(mu_);
    const auto found = told_.find(id);
    if (found != told_.end() && found->second.which != peer) return;
  }
  leases_.end_peer(id);
  if (assembly_ != nullptr) assembly_->end_peer(id);
  wake();
}

void RemoteServer::take_back(std::span<const SequenceHash> hashes) {
  const MutexLock lock(mu_);
  for (auto& [id, told] : told_)
    for (const SequenceHash& hash : hashes)
      if (told.hashes.erase(hash) != 0) told.withdrawn.push_back(hash);
  woken_ = true;
  changed_.notify_all();
}

// Without memory a peer is not told; it finds out when it asks.
void RemoteServer::evicted(std::span<const block::EvictedBlock> blocks) noexcept {
  {
    const MutexLock lock(checksums_mu_);
    for (const block::EvictedBlock& block : blocks) checksums_[block.id.value()] = {};
  }
  if (told_peers_.load(std::memory_order_relaxed) == 0) return;
  const auto tell_them = [&] {
    std::vector<SequenceHash> hashes;
    for (const block::EvictedBlock& block : blocks) hashes.push_back(block.hash);
    take_back(hashes);
    return true;
  };
  unless_out_of_memory(tell_them, [] { return false; });
}

void RemoteServer::withdraw(std::span<const SequenceHash> hashes) {
  leases_.end_blocks(hashes);
  watch_.drop(hashes);
  if (assembly_ != nullptr) assembly_->end_blocks(hashes);
  take_back(hashes);
}

void RemoteServer::withdraw_all() {
  leases_.end_all();
  watch_.drop_all();
  if (assembly_ != nullptr) assembly_->end_all();
  const MutexLock lock(mu_);
  for (auto& [id, told] : told_) {
    told.withdrawn.insert(told.withdrawn.end(), told.hashes.begin(), told.hashes.end());
    told.hashes.clear();
  }
  woken_ = true;
  changed_.notify_all();
}

// ---- pushes

Result<RemoteServer::Bytes> RemoteServer::reserve(const Peer& peer, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const std::vector<std::uint64_t> request, decode_numbers(bytes));
  if (request.size() != 2 || request[0] > options_.landing->block_count())
    return make_error(ErrorCode::kCapacity, "a reservation of %llu blocks; the landing has %u",
                      request.empty() ? 0ull : wide(request[0]), options_.landing->block_count());
  tell(peer, {});  // so that its end is heard of
  const Clock::Duration duration = bounded(
      std::chrono::milliseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(request[1], INT32_MAX))));
  ASHLAR_TRY(const LeaseTable::Reserved reserved,
             leases_.reserve(peer->identity(), static_cast<std::size_t>(request[0]), duration));
  wake();
  if (!peer->alive()) gone(peer->identity(), peer.get());
  std::vector<std::uint64_t> answer = {reserved.id};
  answer.insert(answer.end(), reserved.slots.begin(), reserved.slots.end());
  return encode_numbers(answer);
}

Result<RemoteServer::Bytes> RemoteServer::abort(const Peer& peer, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const std::vector<std::uint64_t> request, decode_numbers(bytes));
  for (const std::uint64_t reservation : request)
    if (const auto slots = leases_.take(peer->identity(), reservation)) leases_.give_back(*slots);
  return Bytes();
}

template <class Commit>
Result<RemoteServer::Bytes> RemoteServer::with_slots(const Peer& peer, const CommitRequest& request,
                                                     Commit&& commit) {
  ASHLAR_TRY(const std::vector<std::uint32_t> slots, leases_.take(peer->identity(), request.reservation));
  struct GiveBack {
    LeaseTable& leases;
    std::span<const std::uint32_t> slots;
    ~GiveBack() { leases.give_back(slots); }
  } const give_back{leases_, slots};
  if (request.records.size() > slots.size())
    return make_error(ErrorCode::kInvalidArgument, "%zu blocks were written into a reservation of %zu",
                      request.records.size(), slots.size());
  std::vector<TierRecord> registered;
  CommitAnswer answer;
  ASHLAR_TRY(answer.blocks, commit(slots, registered));
  pushed_.add(registered.size());
  if (!registered.empty() && options_.pushed) options_.pushed(peer->identity(), registered);
  return answer.encode();
}

Result<RemoteServer::Bytes> RemoteServer::commit(const Peer& peer, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const CommitRequest request, CommitRequest::decode(bytes));
  return with_slots(
      peer, request, [&](std::span<const std::uint32_t> slots, std::vector<TierRecord>& registered) {
        return Result<std::vector<Result<Pushed>>>(register_landed(slots, request.records, registered));
      });
}

Result<RemoteServer::Bytes> RemoteServer::commit_part(const Peer& peer, std::span<const std::byte> bytes) {
  ASHLAR_TRY(const CommitRequest request, CommitRequest::decode(bytes, true));
  Result<Bytes> answer = with_slots(
      peer, request, [&](std::span<const std::uint32_t> slots, std::vector<TierRecord>& registered) {
        return assembly_->add(peer->identity(), *request.part, slots, request.records, registered);
      });
  wake();  // what has begun ends in its time
  if (!peer->alive()) gone(peer->identity(), peer.get());
  return answer;
}

// A block is compared where it stays: the landing may still be written by a peer that is late.
std::vector<Result<Pushed>> RemoteServer::register_landed(std::span<const std::uint32_t> slots,
                                                          std::span<const TierRecord> records,
                                                          std::vector<TierRecord>& registered) {
  std::vector<Result<Pushed>> outcomes(records.size(), Pushed::kRegistered);
  std::vector<std::size_t> written;
  PushWatch::Push push(watch_, records);
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].empty()) {
      outcomes[i] = make_error(ErrorCode::kNotFound, "nothing was written");
    } else if (std::optional<Result<Pushed>> known = PushAssembly::in_g2(g2_, records[i])) {
      outcomes[i] = *std::move(known);
      if (!outcomes[i]) push_refused_.add();
    } else {
      written.push_back(i);
    }
  }
  if (written.empty()) return outcomes;
  const auto fail = [&](const Error& error) {
    for (const std::size_t i : written) outcomes[i] = error;
    push_refused_.add(written.size());
    return outcomes;
  };
  Result<std::unique_ptr<Reservation>> reserved = g2_.reserve(written.size());
  if (!reserved) return fail(reserved.error());
  std::vector<std::uint32_t> from;
  std::vector<std::uint32_t> to;
  for (std::size_t k = 0; k < written.size(); ++k) {
    from.push_back(slots[written[k]]);
    to.push_back(g2_.place((*reserved)->ids()[k]).slot);
  }
  Result<transfer::TransferPlan> copy = transfer::plan(options_.landing, from, g2_.blocks(), to);
  if (!copy) return fail(copy.error());
  const Result<transfer::Transfer> transfer = executor_.submit({.plan = *std::move(copy)});
  if (!transfer) return fail(transfer.error());
  const transfer::TransferResult copied = transfer->wait_for_end();
  if (!copied) return fail(copied.error());

  const layout::Shard& shard = g2_.blocks()->planes()[0].shard;
  std::vector<TierRecord> good(written.size());
  for (std::size_t k = 0; k < written.size(); ++k) {
    const TierRecord& record = records[written[k]];
    const Result<BlockChecksum> found = transfer::checksum_part(
        *g2_.blocks(), to[k], {record.hash, options_.names.keys}, shard.layers, shard.heads);
    if (found && *found == *record.checksum) {
      good[k] = record;
      good[k].checksum.reset();  // of a part; that of the whole is computed when it is needed
      continue;
    }
    outcomes[written[k]] =
        found ? make_error(ErrorCode::kCorruption,
                           "the bytes pushed for block %s do not match their checksum; push it again",
                           record.hash.to_string().c_str())
              : found.error();
    push_refused_.add();
  }
  interleaving_point("remote_server.before_publish");
  const Published published = (*reserved)->publish(good, copied->kv_ready());
  reserved->reset();  // a reset from now on finds them in G2; one before is known here
  const std::vector<bool>& dropped = push.end();
  std::vector<SequenceHash> whole;
  for (std::size_t k = 0; k < written.size(); ++k) {
    if (good[k].empty()) continue;
    Result<Pushed>& outcome = outcomes[written[k]];
    if (!published.registered[k]) {
      outcome = published.error.value_or(Error(ErrorCode::kInternal, "it was not registered"));
      push_refused_.add();
    } else if (dropped[written[k]]) {
      outcome = make_error(ErrorCode::kNotReady, "block %s was dropped while it came; push it again",
                           good[k].hash.to_string().c_str());
      static_cast<void>(g2_.remove(good[k].hash));
    } else {
      registered.push_back(good[k]);
      whole.push_back(good[k].hash);
    }
  }
  if (assembly_ != nullptr) assembly_->end_registered(whole);
  return outcomes;
}

void RemoteServer::add_to(RemoteStatus& status) const {
  leases_.add_to(status);
  status.pushed = pushed_.value();
  status.push_refused = push_refused_.value();
  if (assembly_ != nullptr) assembly_->add_to(status);
}

}  // namespace ashlar::tiers
