// Block sets of an agent: those that it exports, and those of peers.
#include <algorithm>
#include <cinttypes>
#include <iterator>

#include "ashlar/base/check.h"
#include "base/byte_io.h"
#include "base/table_seed.h"
#include "base/wide.h"
#include "transfer/remote/agent_core.h"

namespace ashlar::transfer {
namespace {

// Of a list of sets in one answer, besides the sets.
constexpr std::size_t kListHead = 64;
// Withdrawals of one peer that are kept while its sets are imported. More than any peer can have meant.
constexpr std::size_t kMostWithdrawn = 4096;

Result<std::uint64_t> only_number(std::span<const std::byte> request) {
  ByteReader in(request);
  const auto number = in.get<std::uint64_t>();
  if (!in.ok() || in.left() != 0)
    return make_error(ErrorCode::kInvalidArgument, "a request of %zu bytes; it has 8", request.size());
  return number;
}

// A set that is withdrawn, and up to which generation. Agents without generations send the set alone.
Result<std::pair<std::uint64_t, std::uint64_t>> withdrawal(std::span<const std::byte> notice) {
  ByteReader in(notice);
  const auto id = in.get<std::uint64_t>();
  const std::uint64_t generation = in.left() == 0 ? UINT64_MAX : in.get<std::uint64_t>();
  if (!in.ok() || in.left() != 0)
    return make_error(ErrorCode::kInvalidArgument, "a withdrawal of %zu bytes; it has 16", notice.size());
  return std::pair(id, generation);
}

std::vector<std::byte> bytes_of_number(std::uint64_t number) {
  ByteWriter out;
  out.put(number);
  return std::move(out.bytes());
}

}  // namespace

Result<RemoteOffer> AgentCore::export_blockset(std::shared_ptr<const BlockSet> set,
                                               const BlockSetNames& names, std::uint64_t id,
                                               storage::AccessMode mode) {
  if (set == nullptr) return make_error(ErrorCode::kInvalidArgument, "export_blockset() needs a set");
  if (set->kind() != StorageKind::kSystem && set->kind() != StorageKind::kPinned &&
      set->kind() != StorageKind::kDevice)
    return make_error(ErrorCode::kUnsupported,
                      "a set on %s storage cannot be shared; peers reach memory only",
                      std::string(to_string(set->kind())).c_str());
  const auto exported = std::make_shared<Exported>();
  exported->set = set;
  {
    MutexLock lock(sets_mu_);
    while (id == 0 || (id != 0 && exports_.contains(id))) {
      if (id != 0)
        return make_error(ErrorCode::kAlreadyExists, "block set %llu is exported already", wide(id));
      id = random_word();
      if (exports_.contains(id)) id = 0;
    }
    exported->generation = ++generations_;
    exports_.emplace(id, exported);  // without bytes: taken, and not on offer yet
  }
  RemoteOffer offer = make_remote_offer([weak = weak_from_this(), id] {
    if (const std::shared_ptr<AgentCore> core = weak.lock()) core->withdraw_export(id);
  });
  BlockSetRecord record{.owner = card_.identity,
                        .name = card_.name,
                        .address = card_.address,
                        .transport = card_.transport,
                        .transport_address = card_.transport_address,
                        .id = id,
                        .names = names,
                        .generation = exported->generation};
  std::map<const storage::Storage*, std::uint32_t> known;
  for (std::size_t p = 0; p < set->planes().size(); ++p) {
    BlockSetRecord::RecordPlane plane{set->describe(p, id, names.keys, names.scheme_fingerprint), {}};
    for (const RegionMemory& region : set->planes()[p].regions) {
      const auto [at, is_new] =
          known.emplace(region.storage.get(), static_cast<std::uint32_t>(record.memories.size()));
      plane.memories.push_back(at->second);
      if (!is_new) continue;
      ASHLAR_TRY(auto registration, transport_->register_memory(region.storage, mode));
      const std::span<const std::byte> key = registration->key();
      record.memories.push_back({reinterpret_cast<std::uintptr_t>(region.storage->address()),
                                 region.storage->size(),
                                 {key.begin(), key.end()},
                                 mode});
      exported->registrations.push_back(std::move(registration));
    }
    record.planes.push_back(std::move(plane));
  }
  ASHLAR_RETURN_IF_ERROR(record.validate());
  std::vector<std::byte> bytes = record.serialize();
  if (bytes.size() > std::min<std::size_t>(options_.max_message_bytes - kListHead, BlockSetRecord::kMaxBytes))
    return make_error(
        ErrorCode::kCapacity,
        "block set %llu is described by %zu bytes, more than max_message_bytes (%u) or %zu allow", wide(id),
        bytes.size(), options_.max_message_bytes, BlockSetRecord::kMaxBytes);
  MutexLock lock(sets_mu_);
  exported->bytes = std::move(bytes);
  return offer;
}

void AgentCore::withdraw_export(std::uint64_t id) {
  std::shared_ptr<Exported> withdrawn;
  bool offered = false;
  {
    MutexLock lock(sets_mu_);
    const auto found = exports_.find(id);
    if (found == exports_.end()) return;
    withdrawn = std::move(found->second);
    offered = !withdrawn->bytes.empty();
    exports_.erase(found);
  }
  if (!offered) return;
  ByteWriter notice;
  notice.put(id);
  notice.put(withdrawn->generation);
  // A peer that cannot be told would use the set for ever. Without its connection it has none of these sets.
  for (const std::shared_ptr<RemotePeer>& peer : peers())
    if (const Result<void> told = peer->notify(kWithdrawSet, notice.bytes()); !told)
      peer->close(make_error(ErrorCode::kCapacity, "it cannot be told that block set %llu is withdrawn: %s",
                             wide(id), told.error().message().c_str()));
}

std::vector<std::vector<std::byte>> AgentCore::exports() const {
  std::vector<std::vector<std::byte>> out;
  MutexLock lock(sets_mu_);
  for (const auto& [id, exported] : exports_)
    if (!exported->bytes.empty()) out.push_back(exported->bytes);
  return out;
}

Result<std::vector<std::byte>> AgentCore::list_sets(std::span<const std::byte> request) const {
  ASHLAR_TRY(const std::uint64_t after, only_number(request));
  std::uint32_t count = 0;
  bool more = false;
  ByteWriter body;
  std::uint64_t complete = 0;  // up to which generation the list has all sets
  {
    MutexLock lock(sets_mu_);
    complete = generations_;
    for (const auto& [id, exported] : exports_)
      if (exported->bytes.empty()) complete = std::min(complete, exported->generation - 1);
    for (auto at = exports_.upper_bound(after); at != exports_.end() && !more; ++at) {
      const std::vector<std::byte>& bytes = at->second->bytes;
      if (bytes.empty()) continue;
      // At least one, and no more than a peer with smaller messages takes at once.
      more = count > 0 && body.bytes().size() + bytes.size() + kListHead > options_.max_message_bytes / 4;
      if (more) break;
      body.put(static_cast<std::uint32_t>(bytes.size()));
      body.put_bytes(bytes);
      ++count;
    }
  }
  ByteWriter out;
  out.put(count);
  out.put(std::uint32_t{more ? 1u : 0u});
  out.put_bytes(body.bytes());
  out.put(complete);
  return std::move(out.bytes());
}

Result<std::vector<std::byte>> AgentCore::own_method(const PeerLink::Job& job) {
  if (job.frame.method == kListSets) return list_sets(job.frame.body);
  if (job.frame.method == kWithdrawSet) {
    ASHLAR_TRY(const auto notice, withdrawal(job.frame.body));
    forget_set({job.peer->identity(), notice.first}, notice.second);
    return std::vector<std::byte>();
  }
  return make_error(ErrorCode::kUnsupported, "agent %s has no method %u of its own", card_.name.c_str(),
                    job.frame.method);
}

// Registers an Importing with the core.
class AgentCore::ImportScope {
 public:
  ImportScope(AgentCore& core, const AgentIdentity& owner) : core_(core), importing{owner} {
    MutexLock lock(core_.sets_mu_);
    core_.importing_.push_back(&importing);
  }
  ~ImportScope() {
    MutexLock lock(core_.sets_mu_);
    std::erase(core_.importing_, &importing);
  }
  ImportScope(const ImportScope&) = delete;
  ImportScope& operator=(const ImportScope&) = delete;

 private:
  AgentCore& core_;

 public:
  Importing importing;
};

std::shared_ptr<const RemoteBlockSet> AgentCore::find_import(const BlockSetOwner& key) const {
  MutexLock lock(sets_mu_);
  const auto found = imports_.find(key);
  return found != imports_.end() && found->second->peer()->alive() ? found->second : nullptr;
}

Result<std::shared_ptr<const RemoteBlockSet>> AgentCore::import(std::span<const std::byte> bytes,
                                                                const RemoteCallLimits& limits) {
  ASHLAR_TRY(const BlockSetRecord record, BlockSetRecord::deserialize(bytes));
  if (record.owner == card_.identity)
    return make_error(ErrorCode::kAlreadyExists, "block set %llu is this agent's own", wide(record.id));
  if (record.transport != card_.transport)
    return make_error(ErrorCode::kUnsupported,
                      "block set %llu is reached through the transport '%s'; this agent has '%s'",
                      wide(record.id), record.transport.c_str(), card_.transport.c_str());
  if (const auto known = find_import({record.owner, record.id});
      known != nullptr && known->generation() >= record.generation)
    return make_error(ErrorCode::kAlreadyExists, "block set %llu of agent %s was imported before",
                      wide(record.id), record.owner.to_string().c_str());
  if (record.address == card_.address)
    return make_error(ErrorCode::kUnavailable,
                      "block set %llu is of incarnation %s, whose address %s is this agent's now",
                      wide(record.id), record.owner.to_string().c_str(), record.address.c_str());
  const ImportScope scope(*this, record.owner);
  ASHLAR_TRY(const std::shared_ptr<RemotePeer> peer, connect(record.address, limits, &record.owner));
  return import_record(record, peer, true, scope.importing);
}

Result<std::shared_ptr<const RemoteBlockSet>> AgentCore::import_record(
    const BlockSetRecord& record, const std::shared_ptr<RemotePeer>& peer, bool again,
    const Importing& importing) {
  if (record.owner != peer->identity())
    return make_error(ErrorCode::kUnavailable,
                      "block set %llu is of incarnation %s; at %s answers %s. Exchange sets again",
                      wide(record.id), record.owner.to_string().c_str(), record.address.c_str(),
                      peer->identity().to_string().c_str());
  const AgentCard& owner = peer->link_->card();
  if (record.transport != owner.transport || record.transport_address != owner.transport_address)
    return make_error(ErrorCode::kInvalidArgument,
                      "block set %llu names a transport address that is not its owner's", wide(record.id));
  std::vector<std::shared_ptr<storage::RemoteStorage>> opened;
  for (std::size_t i = 0; i < record.memories.size(); ++i) {
    ASHLAR_TRY(auto storage, peer->path()->open(record.memory(i)));
    opened.push_back(std::move(storage));
  }
  ASHLAR_TRY(std::shared_ptr<const BlockSet> blocks, record.build(opened));
  const auto set = std::make_shared<const RemoteBlockSet>(peer, record.id, record.names, std::move(blocks),
                                                          record.generation);
  const BlockSetOwner key{record.owner, record.id};
  std::shared_ptr<const RemoteBlockSet> dead;
  {
    MutexLock lock(sets_mu_);
    const auto withdrawn = importing.withdrawn.find(record.id);
    if (importing.overflow ||
        (withdrawn != importing.withdrawn.end() && withdrawn->second >= record.generation))
      return make_error(ErrorCode::kNotFound, "block set %llu of agent %s is withdrawn", wide(record.id),
                        record.owner.to_string().c_str());
    const auto found = imports_.find(key);
    if (found != imports_.end() && found->second->peer()->alive() &&
        found->second->generation() >= record.generation)
      return make_error(ErrorCode::kAlreadyExists, "block set %llu of agent %s was imported before",
                        wide(record.id), record.owner.to_string().c_str());
    if (!again && dropped_.contains(key))
      return make_error(ErrorCode::kAlreadyExists, "block set %llu of agent %s was dropped here; import it",
                        wide(record.id), record.owner.to_string().c_str());
    const auto its = std::distance(imports_.lower_bound({record.owner, 0}),
                                   imports_.upper_bound({record.owner, UINT64_MAX}));
    if (found == imports_.end() && its >= static_cast<std::ptrdiff_t>(RemoteAgent::kMaxSetsPerPeer))
      return make_error(ErrorCode::kCapacity,
                        "agent %s shares more than %zu block sets, the most that are taken of one agent; "
                        "let it offer fewer, or drop some",
                        record.owner.to_string().c_str(), RemoteAgent::kMaxSetsPerPeer);
    dropped_.erase(key);
    dead = std::exchange(imports_[key], set);
  }
  if (peer->alive()) return set;
  // It died meanwhile, and its sets may have been removed before this one was there.
  forget_set(key);
  return make_error(ErrorCode::kUnavailable, "agent %s is gone: %s", record.owner.to_string().c_str(),
                    peer->failure()->message().c_str());
}

Result<AgentCore::SetList> AgentCore::exchange(const std::shared_ptr<RemotePeer>& peer,
                                               const RemoteCallLimits& limits, bool again,
                                               const LateAnswer& late) {
  if (peer == nullptr) return make_error(ErrorCode::kInvalidArgument, "exchange() needs a peer");
  const ImportScope scope(*this, peer->identity());
  std::uint64_t after = 0;
  std::map<std::uint64_t, std::uint64_t> listed;  // generation by set
  std::optional<std::uint64_t> complete;          // of the first part of the list, if the peer says so
  for (bool more = true; more;) {
    ASHLAR_TRY(const std::vector<std::byte> answer,
               peer->call(kListSets, bytes_of_number(after), limits, late));
    ByteReader in(answer);
    const auto count = in.get<std::uint32_t>();
    more = in.get<std::uint32_t>() != 0;
    if (more && count == 0)
      return make_error(ErrorCode::kCorruption, "agent %s lists no set, and says that there are more",
                        peer->identity().to_string().c_str());
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::span<const std::byte> bytes = in.get_bytes(in.get<std::uint32_t>());
      if (!in.ok())
        return make_error(ErrorCode::kCorruption, "agent %s lists %u sets in %zu bytes",
                          peer->identity().to_string().c_str(), count, answer.size());
      ASHLAR_TRY(const BlockSetRecord record, BlockSetRecord::deserialize(bytes));
      if (record.id <= after)
        return make_error(ErrorCode::kCorruption, "agent %s lists its sets out of order",
                          peer->identity().to_string().c_str());
      after = record.id;
      listed[record.id] = record.generation;
      const auto known = find_import({record.owner, record.id});
      if (known != nullptr && known->generation() >= record.generation) continue;
      if (!again && is_dropped({record.owner, record.id})) continue;
      const Result<std::shared_ptr<const RemoteBlockSet>> imported =
          import_record(record, peer, again, scope.importing);
      // Another thread may have been faster, to import it or to drop it; or its owner, to withdraw it.
      if (!imported && imported.error().code() != ErrorCode::kAlreadyExists &&
          imported.error().code() != ErrorCode::kNotFound)
        return Unexpected(imported.error());
    }
    if (!complete && in.left() >= sizeof(std::uint64_t)) complete = in.get<std::uint64_t>();
  }
  if (complete) forget_unlisted(peer->identity(), listed, *complete);
  SetList all = remote_blocksets();
  std::erase_if(all, [&](const std::shared_ptr<const RemoteBlockSet>& set) {
    return set->peer()->identity() != peer->identity();
  });
  return all;
}

AgentCore::SetList AgentCore::remote_blocksets() const {
  SetList out;
  MutexLock lock(sets_mu_);
  for (const auto& [key, set] : imports_)
    if (set->peer()->alive()) out.push_back(set);
  return out;
}

bool AgentCore::drop(const BlockSetOwner& set) {
  std::shared_ptr<const RemoteBlockSet> dropped;  // after the lock
  MutexLock lock(sets_mu_);
  const auto found = imports_.find(set);
  if (found == imports_.end()) return false;
  dropped = std::move(found->second);
  imports_.erase(found);
  dropped_[set] = ++drops_;
  if (dropped_.size() > kMaxDropped)
    dropped_.erase(std::ranges::min_element(dropped_, {}, [](const auto& one) { return one.second; }));
  return true;
}

bool AgentCore::is_dropped(const BlockSetOwner& set) const {
  MutexLock lock(sets_mu_);
  return dropped_.contains(set);
}

void AgentCore::forget_set(const BlockSetOwner& key, std::uint64_t generation) {
  std::shared_ptr<const RemoteBlockSet> gone;  // after the lock
  MutexLock lock(sets_mu_);
  for (Importing* const one : importing_) {
    if (one->owner != key.owner) continue;
    if (one->withdrawn.size() >= kMostWithdrawn) one->overflow = true;
    if (one->overflow) continue;
    std::uint64_t& latest = one->withdrawn[key.id];
    latest = std::max(latest, generation);
  }
  const auto found = imports_.find(key);
  if (found != imports_.end() && found->second->generation() > generation) return;
  dropped_.erase(key);
  if (found == imports_.end()) return;
  gone = std::move(found->second);
  imports_.erase(found);
}

void AgentCore::forget_unlisted(const AgentIdentity& owner,
                                const std::map<std::uint64_t, std::uint64_t>& listed,
                                std::uint64_t complete) {
  SetList gone;  // after the lock
  MutexLock lock(sets_mu_);
  const auto end = imports_.upper_bound({owner, UINT64_MAX});
  for (auto next = imports_.lower_bound({owner, 0}); next != end;) {
    const auto at = next++;
    const auto offered = listed.find(at->first.id);
    const std::uint64_t generation = at->second->generation();
    if (generation > complete || (offered != listed.end() && generation >= offered->second)) continue;
    gone.push_back(std::move(at->second));
    imports_.erase(at);
  }
}

}  // namespace ashlar::transfer
