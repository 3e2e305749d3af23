// Managers, registries and pins of the C interface.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/block/block_registry.h"
#include "ashlar/block/eviction.h"
#include "c/src/event_sink.h"
#include "c/src/objects.h"

namespace ashlar::c_interface {
namespace {

// A manager of the caller's own memory.
class PlainPool final : public PoolLife {
 public:
  PlainPool(Manager manager, std::shared_ptr<events::EventLog> log)
      : log_(std::move(log)), manager_(std::move(manager)) {}

  Manager& manager() noexcept override { return *manager_; }
  void destroy() noexcept override { manager_.reset(); }
  Outcome<tokens::SequenceHasher> bind(const tokens::SequenceHasher* hasher) const override {
    return hasher == nullptr ? tokens::SequenceHasher() : *hasher;
  }
  std::size_t drain_events(events::EventSink& sink) override {
    return log_ == nullptr ? 0 : log_->drain(sink);
  }

 private:
  const std::shared_ptr<events::EventLog> log_;
  std::optional<Manager> manager_;
};

Outcome<block::BlockRegistry> registry_of(ashlar_registry registry, const char* eviction,
                                          std::uint32_t blocks) {
  if (registry.id == 0) {
    block::RegistryOptions options;
    if (eviction != nullptr && std::string_view(eviction) == "multi_lru")
      options.frequency = block::TinyLfuOptions::for_pool(blocks);
    ASHLAR_TRY(auto own, block::BlockRegistry::create(options));
    return own;
  }
  ASHLAR_TRY(const auto object, object_of<RegistryObject>(registry.id));
  return object->registry;
}

Outcome<std::uint64_t> create_manager(const ashlar_manager_options& given) {
  block::ManagerOptions options;
  ASHLAR_TRY(options.block_count, block_count_of(given.block_count, "block_count"));
  if (given.block_size != 0) options.block_size = given.block_size;
  if (given.duplicates != ASHLAR_DUPLICATES_ALLOW && given.duplicates != ASHLAR_DUPLICATES_REJECT)
    return invalid_argument("duplicates is %d; it is one of ASHLAR_DUPLICATES_...", given.duplicates);
  options.duplicates = given.duplicates == ASHLAR_DUPLICATES_REJECT ? block::DuplicatePolicy::kReject
                                                                    : block::DuplicatePolicy::kAllow;
  if (given.eviction != nullptr) {
    ASHLAR_TRY(options.eviction, block::eviction_by_name(given.eviction));
  }
  ASHLAR_TRY(auto registry, registry_of(given.registry, given.eviction, options.block_count));
  options.registry = std::move(registry);
  options.max_pins = given.max_pins;
  options.block_bytes = given.block_bytes;
  options.keep_tokens = given.keep_tokens != 0;
  options.default_reset_on_release = given.reset_on_release != 0;
  ASHLAR_TRY(const std::size_t events, event_capacity_of(given.event_capacity));
  if (events != 0) options.events = std::make_shared<events::EventLog>(events);
  ASHLAR_TRY(auto manager, Manager::create(options));
  return open_handle(std::make_shared<ManagerObject>(
      std::make_shared<PlainPool>(std::move(manager), options.events), /*is_of_tiers=*/false));
}

}  // namespace

Outcome<PoolTicket> ticket_of(ashlar_manager manager, PoolUse use) {
  ASHLAR_TRY(const auto object, object_of<ManagerObject>(manager.id));
  if (!object->life->enter(use)) return invalid_handle(HandleKind::kManager, manager.id);
  return PoolTicket(object->life, use);
}

Outcome<> destroy_pool(PoolLife& life, const char* what, HandleKind kind, std::uint64_t handle) {
  switch (life.close()) {
    case PoolClosing::kDone:
      life.destroy();
      return {};
    case PoolClosing::kInUse:
      return not_ready(
          "%u lists of blocks or requests of the %s are open, and %u calls use it now; release them first",
          life.guards(), what, life.calls());
    case PoolClosing::kBefore:
      break;
  }
  return invalid_handle(kind, handle);
}

bool PinObject::active() const {
  if (holds_ != nullptr) return holds_(other_.get());
  for (const block::Pin& pin : pins_)
    if (pin.active()) return true;
  return false;
}

Outcome<block::BlockRetention> retention_of(std::uint8_t priority, std::uint64_t ttl_ns) {
  block::BlockRetention retention;
  retention.priority = priority;
  if (const auto until = deadline_of(ttl_ns)) retention.until = *until;
  ASHLAR_RETURN_IF_ERROR(retention.validate());
  return retention;
}

}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;
namespace block = ashlar::block;

ashlar_status ashlar_registry_create(const ashlar_registry_options* options, ashlar_registry* registry) {
  return call([&]() -> Outcome<> {
    if (registry == nullptr) return null_pointer("registry");
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_registry_options"));
    block::RegistryOptions its;
    if (given.frequency_capacity != 0)
      its.frequency = block::TinyLfuOptions{.capacity = given.frequency_capacity};
    ASHLAR_TRY(auto made, block::BlockRegistry::create(its));
    registry->id = open_handle(std::make_shared<RegistryObject>(std::move(made)));
    return {};
  });
}

ashlar_status ashlar_registry_destroy(ashlar_registry registry) {
  return call([&] { return close_handle<RegistryObject>(registry.id); });
}

ashlar_status ashlar_registry_count(ashlar_registry registry, size_t* count) {
  return call([&]() -> Outcome<> {
    if (count == nullptr) return null_pointer("count");
    ASHLAR_TRY(const auto object, object_of<RegistryObject>(registry.id));
    *count = object->registry.registered_count();
    return {};
  });
}

ashlar_status ashlar_manager_create(const ashlar_manager_options* options, ashlar_manager* manager) {
  return call([&]() -> Outcome<> {
    if (manager == nullptr) return null_pointer("manager");
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_manager_options"));
    ASHLAR_TRY(manager->id, create_manager(given));
    return {};
  });
}

ashlar_status ashlar_manager_destroy(ashlar_manager manager) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<ManagerObject>(manager.id));
    if (object->of_tiers)
      return invalid_argument("this manager is part of tiers; ashlar_tiers_destroy() destroys it");
    ASHLAR_RETURN_IF_ERROR(destroy_pool(*object->life, "manager", HandleKind::kManager, manager.id));
    return close_handle<ManagerObject>(manager.id);
  });
}

ashlar_status ashlar_manager_status(ashlar_manager manager, ashlar_pool_status* status) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    const block::PoolStatus now = entered.life().manager().status();
    ashlar_pool_status told = {};
    told.block_size = entered.life().manager().block_size();
    told.total = now.total;
    told.reset = now.reset;
    told.inactive = now.inactive;
    told.pinned_inactive = now.pinned_inactive;
    told.held_inactive = now.held_inactive;
    told.active = now.active;
    told.owned = now.owned;
    told.quarantined = now.quarantined;
    told.waiters = now.waiters;
    told.guards = entered.life().guards();
    return write_answer(told, status, "ashlar_pool_status");
  });
}

ashlar_status ashlar_manager_get_counters(ashlar_manager manager, ashlar_manager_counters* counters) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    const block::ManagerCounters now = entered.life().manager().counters();
    ashlar_manager_counters told = {};
    told.allocations = now.allocations;
    told.evictions = now.evictions;
    told.registrations = now.registrations;
    told.duplicates = now.duplicates;
    told.collisions = now.collisions;
    told.match_hashes_requested = now.match_hashes_requested;
    told.match_blocks_returned = now.match_blocks_returned;
    return write_answer(told, counters, "ashlar_manager_counters");
  });
}

ashlar_status ashlar_manager_allocate(ashlar_manager manager, size_t n, ashlar_blocks* blocks) {
  return call([&]() -> Outcome<> {
    if (blocks == nullptr) return null_pointer("blocks");
    ASHLAR_TRY(auto ticket, ticket_of(manager));
    ASHLAR_TRY(auto got, ticket.life().manager().allocate_blocks(n));
    ASHLAR_TRY(blocks->id, open_blocks(std::move(ticket), std::move(got)));
    return {};
  });
}

ashlar_status ashlar_manager_allocate_within(ashlar_manager manager, size_t n, uint64_t timeout_ns,
                                             ashlar_blocks* blocks) {
  return waiting_call([&]() -> Outcome<> {
    if (blocks == nullptr) return null_pointer("blocks");
    ASHLAR_TRY(auto ticket, ticket_of(manager));
    const auto until = ashlar::Clock::real().now() + duration_of(timeout_ns);
    ASHLAR_TRY(auto got, ticket.life().manager().try_allocate_until(n, until));
    ASHLAR_TRY(blocks->id, open_blocks(std::move(ticket), std::move(got)));
    return {};
  });
}

ashlar_status ashlar_manager_can_allocate(ashlar_manager manager, size_t n) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    ASHLAR_RETURN_IF_ERROR(entered.life().manager().can_allocate(n));
    return {};
  });
}

ashlar_status ashlar_manager_match(ashlar_manager manager, const ashlar_hash* hashes,
                                   const ashlar_digest* prefixes, size_t n, ashlar_blocks* blocks) {
  return call([&]() -> Outcome<> {
    if (blocks == nullptr) return null_pointer("blocks");
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::SequenceHash>(hashes, n, "hashes"));
    ASHLAR_TRY(auto ticket, ticket_of(manager));
    RegisteredBlocks found;
    if (prefixes == nullptr) {
      ticket.life().manager().match_blocks(names, found);
    } else {
      ASHLAR_TRY(const auto digests, elements<const ashlar::tokens::PrefixDigest>(prefixes, n, "prefixes"));
      ticket.life().manager().match_blocks(names, digests, found);
    }
    ASHLAR_TRY(blocks->id, open_blocks(std::move(ticket), std::move(found)));
    return {};
  });
}

ashlar_status ashlar_manager_match_tokens(ashlar_manager manager, ashlar_hasher hasher,
                                          const uint32_t* tokens, size_t token_count, ashlar_blocks* blocks) {
  return call([&]() -> Outcome<> {
    if (blocks == nullptr) return null_pointer("blocks");
    ASHLAR_TRY(const auto all, elements<const ashlar::tokens::Token>(tokens, token_count, "tokens"));
    ASHLAR_TRY(auto ticket, ticket_of(manager));
    ASHLAR_TRY(const auto its, hasher_of(hasher, ticket.life()));
    Manager& pool = ticket.life().manager();
    std::vector<ashlar::tokens::BlockHashes> hashed(token_count / pool.block_size());
    ASHLAR_RETURN_IF_ERROR(its.hash_blocks(std::nullopt, all, pool.block_size(), hashed));
    std::vector<ashlar::tokens::SequenceHash> names;
    std::vector<ashlar::tokens::PrefixDigest> digests;
    names.reserve(hashed.size());
    digests.reserve(hashed.size());
    for (const ashlar::tokens::BlockHashes& one : hashed) {
      names.push_back(one.sequence);
      digests.push_back(one.prefix);
    }
    RegisteredBlocks found;
    pool.match_blocks(names, digests, found);
    ASHLAR_TRY(blocks->id, open_blocks(std::move(ticket), std::move(found)));
    return {};
  });
}

ashlar_status ashlar_manager_presence(ashlar_manager manager, const ashlar_hash* hashes, size_t n,
                                      uint8_t* present) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::SequenceHash>(hashes, n, "hashes"));
    ASHLAR_TRY(const auto out, elements<std::uint8_t>(present, n, "present"));
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    // The registry knows tiers, and not which of its managers has a block.
    const Manager& pool = entered.life().manager();
    std::vector<std::uint8_t> has(n);  // a refused call writes nothing
    for (std::size_t i = 0; i < n; ++i) has[i] = pool.describe(names[i]).has_value() ? 1 : 0;
    std::ranges::copy(has, out.begin());
    return {};
  });
}

ashlar_status ashlar_manager_pin(ashlar_manager manager, const ashlar_hash* hash, uint64_t ttl_ns,
                                 ashlar_pin* pin) {
  return call([&]() -> Outcome<> {
    if (hash == nullptr) return null_pointer("hash");
    if (pin == nullptr) return null_pointer("pin");
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    std::vector<block::Pin> pins;
    pins.reserve(1);
    ASHLAR_TRY(auto one, entered.life().manager().pin(hash_in(*hash), duration_of(ttl_ns)));
    pins.push_back(std::move(one));
    pin->id = open_handle(std::make_shared<PinObject>(std::move(pins)));
    return {};
  });
}

ashlar_status ashlar_manager_set_retention(ashlar_manager manager, const ashlar_hash* hash, uint8_t priority,
                                           uint64_t ttl_ns) {
  return call([&]() -> Outcome<> {
    if (hash == nullptr) return null_pointer("hash");
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    ASHLAR_TRY(const auto retention, retention_of(priority, ttl_ns));
    ASHLAR_RETURN_IF_ERROR(entered.life().manager().set_retention(hash_in(*hash), retention));
    return {};
  });
}

ashlar_status ashlar_manager_reset(ashlar_manager manager, size_t* evicted) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    const std::size_t count = entered.life().manager().reset_inactive_pool();
    if (evicted != nullptr) *evicted = count;
    return {};
  });
}

ashlar_status ashlar_manager_tokens_of(ashlar_manager manager, const ashlar_hash* hash, uint32_t* out,
                                       size_t capacity, size_t* count) {
  return call([&]() -> Outcome<> {
    if (hash == nullptr) return null_pointer("hash");
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    const auto tokens = entered.life().manager().tokens_of(hash_in(*hash));
    if (!tokens)
      return Refusal(ASHLAR_NOT_FOUND,
                     "no block of this name whose tokens are kept; create the manager with keep_tokens, and "
                     "complete blocks by their tokens");
    return write_list(std::span<const ashlar::tokens::Token>(*tokens), out, capacity, count);
  });
}

ashlar_status ashlar_manager_eviction_candidates(ashlar_manager manager, ashlar_hash* out, size_t capacity,
                                                 size_t* count) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    Manager& pool = entered.life().manager();
    const auto next = pool.eviction_candidates(std::min(capacity, pool.total_blocks()));
    return write_list(std::span<const ashlar::tokens::SequenceHash>(next), out, capacity, count);
  });
}

ashlar_status ashlar_manager_drain_events(ashlar_manager manager, ashlar_event_callback callback, void* user,
                                          size_t* delivered) {
  return waiting_call([&]() -> Outcome<> {
    if (callback == nullptr) return null_pointer("callback");
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    CallbackSink sink(callback, user);
    const std::size_t count = entered.life().drain_events(sink);
    if (delivered != nullptr) *delivered = count;
    return {};
  });
}

ashlar_status ashlar_manager_list_stored(ashlar_manager manager, ashlar_event_callback callback, void* user,
                                         uint64_t* next) {
  return waiting_call([&]() -> Outcome<> {
    if (callback == nullptr) return null_pointer("callback");
    if (next == nullptr) return null_pointer("next");
    ASHLAR_TRY(const auto entered, ticket_of(manager, PoolUse::kCall));
    const Manager& pool = entered.life().manager();
    if (pool.event_log() == nullptr)
      return not_ready("the manager makes no events; create it with event_capacity");
    std::vector<ashlar::events::KvEvent> stored;
    *next = pool.list_stored(stored);
    if (!stored.empty()) CallbackSink(callback, user).on_events(stored);
    return {};
  });
}

ashlar_status ashlar_pin_active(ashlar_pin pin, int* active) {
  return call([&]() -> Outcome<> {
    if (active == nullptr) return null_pointer("active");
    ASHLAR_TRY(const auto object, object_of<PinObject>(pin.id));
    *active = object->active() ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_pin_release(ashlar_pin pin) {
  return call([&] { return close_handle<PinObject>(pin.id); });
}
