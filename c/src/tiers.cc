// Tiers of the C interface: their making, memory and state.
#include "c/src/tiers.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/metrics.h"
#include "ashlar/tiers/kv_options.h"
#include "ashlar/tokens/hash_scheme.h"
#include "c/src/backends.h"
#include "c/src/event_sink.h"

namespace ashlar::c_interface {

Outcome<TiersCall> enter_tiers(ashlar_tiers tiers, PoolUse use) {
  ASHLAR_TRY(auto object, object_of<TiersObject>(tiers.id));
  if (!object->life->enter(use)) return invalid_handle(HandleKind::kTiers, tiers.id);
  PoolTicket ticket(object->life, use);
  return TiersCall{std::move(object), std::move(ticket)};
}

Outcome<tokens::SequenceHasher> TieredPool::bind(const tokens::SequenceHasher* hasher) const {
  if (hasher == nullptr) return kv_->hasher({}, scheme_);
  if (hasher->scheme() != scheme_)
    return invalid_argument(
        "a hasher of scheme \"%.*s\"%s with tiers whose blocks are named by \"%.*s\"%s; set "
        "ashlar_tiers_options.hash_scheme and hash_key",
        static_cast<int>(hasher->scheme().name().size()), hasher->scheme().name().data(),
        hasher->scheme().is_keyed() ? " and its key" : "", static_cast<int>(scheme_.name().size()),
        scheme_.name().data(), scheme_.is_keyed() ? " and their key" : "");
  return kv_->hasher(hasher->salt(), scheme_);
}

Outcome<events::TierId> tier_of(std::int32_t tier) {
  if (tier < ASHLAR_TIER_G1 || tier > ASHLAR_TIER_G4)
    return invalid_argument("tier %d; use ASHLAR_TIER_G1 to ASHLAR_TIER_G4", tier);
  return events::TierId(static_cast<std::uint8_t>(tier));
}

Outcome<std::vector<std::string>> texts_of(const char* const* texts, std::size_t n, const char* name) {
  constexpr std::size_t kMost = 4096;
  if (n > kMost) return invalid_argument("%zu %s; at most %zu", n, name, kMost);
  if (n != 0 && texts == nullptr) return null_pointer(name);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < n; ++i) {
    if (texts[i] == nullptr) return null_pointer(name);
    all.emplace_back(texts[i]);
  }
  return all;
}

namespace {

Outcome<tiers::Trigger> trigger_of(std::int32_t trigger, const char* name) {
  switch (trigger) {
    case ASHLAR_TRIGGER_ON_ARRIVAL:
      return tiers::Trigger::kOnArrival;
    case ASHLAR_TRIGGER_NEAR_EVICTION:
      return tiers::Trigger::kNearEviction;
    case ASHLAR_TRIGGER_ON_CALL:
      return tiers::Trigger::kOnCall;
    default:
      return invalid_argument("%s is %d; it is one of ASHLAR_TRIGGER_...", name, trigger);
  }
}

Outcome<layout::LayoutConfig> shape_of(const ashlar_tiers_options& given, std::uint32_t block_size) {
  layout::LayoutConfig shape;
  shape.num_layers = given.num_layers;
  shape.outer_dim = given.outer_dim == 0 ? 2 : given.outer_dim;
  shape.block_size = block_size;
  shape.num_heads = given.num_heads;
  shape.head_dim = given.head_dim;
  const std::uint64_t inner = std::uint64_t{given.num_heads} * given.head_dim;
  if (inner > std::numeric_limits<std::uint32_t>::max())
    return invalid_argument("%u heads of %u elements are too many", given.num_heads, given.head_dim);
  shape.inner_dim = static_cast<std::uint32_t>(inner);
  if (given.dtype < 0 || static_cast<std::size_t>(given.dtype) >= layout::kDtypes)
    return invalid_argument("dtype is %d; it is one of ASHLAR_DTYPE_...", given.dtype);
  shape.dtype = static_cast<layout::Dtype>(given.dtype);
  return shape;
}

Outcome<layout::AxisOrder> order_of(const char* name) {
  if (name == nullptr) return layout::order::kFullyContiguousNhd;
  for (const layout::order::NamedOrder& known : layout::order::kAll)
    if (known.name == name) return known.order;
  return Refusal(ASHLAR_NOT_FOUND,
                 "no order of axes is called '" + std::string(name) + "'; see docs/layouts.md");
}

Outcome<StorageKind> memory_kind_of(std::int32_t kind) {
  switch (kind) {
    case ASHLAR_MEMORY_SYSTEM:
      return StorageKind::kSystem;
    case ASHLAR_MEMORY_PINNED:
      return StorageKind::kPinned;
    case ASHLAR_MEMORY_DEVICE:
      return StorageKind::kDevice;
    default:
      return invalid_argument("g1_memory_kind is %d; it is one of ASHLAR_MEMORY_...", kind);
  }
}

// The tier of other agents' blocks; empty: none.
Outcome<std::optional<tiers::RemoteShape>> remote_of(const ashlar_tiers_options& given) {
  if (given.remote_listen == nullptr) {
    if (given.remote_advertise != nullptr || given.remote_secret != nullptr || given.remote_name != nullptr ||
        given.remote_peer_count != 0 || given.remote_blocks != 0 || given.remote_no_serve != 0 ||
        given.remote_ucx != nullptr)
      return invalid_argument(
          "options of a remote agent without remote_listen; \"127.0.0.1:0\" takes any port");
    return std::optional<tiers::RemoteShape>();
  }
  transfer::AgentOptions agent;
  agent.listen = given.remote_listen;
  agent.advertise = text_of(given.remote_advertise);
  agent.secret = text_of(given.remote_secret);
  agent.name = text_of(given.remote_name);
  tiers::RemoteShape shape;
  shape.own_agent = std::move(agent);
  ASHLAR_TRY(shape.peers, texts_of(given.remote_peers, given.remote_peer_count, "remote_peers"));
  if (given.remote_blocks != 0) {
    ASHLAR_TRY(shape.block_count, block_count_of(given.remote_blocks, "remote_blocks"));
  }
  shape.serve = given.remote_no_serve == 0;
  return std::optional(std::move(shape));
}

// What would have no effect, though the caller set it.
Outcome<> check_uses(const ashlar_tiers_options& given) {
  if (given.g1_memory_kind == ASHLAR_MEMORY_PINNED && given.g1_region_count == 0)
    return invalid_argument(
        "g1_memory_kind is ASHLAR_MEMORY_PINNED without g1_regions, and what is allocated is not pinned; "
        "give "
        "regions, or ASHLAR_MEMORY_SYSTEM");
  if (given.g1_memory_kind != ASHLAR_MEMORY_DEVICE && given.g1_device != 0)
    return invalid_argument("g1_device is %d, but g1_memory_kind is not ASHLAR_MEMORY_DEVICE",
                            given.g1_device);
  if (given.g3_blocks == 0 && given.g3_path_count != 0)
    return invalid_argument("g3_paths without g3_blocks: how many blocks the files hold");
  if (given.g4_blocks == 0 && given.g4_directory_count != 0)
    return invalid_argument("g4_directories without g4_blocks: how many blocks of volumes are tracked");
  return {};
}

// Copies between the GPU, the host and files; G1 is allocated there unless the caller has memory.
Outcome<> use_device(std::int32_t device, tiers::KvOptions& options) {
  ASHLAR_TRY(auto support, device_support(device));
  options.executor = std::move(support.executor);
  if (options.g1.memory.empty()) options.g1.allocator = std::move(support.memory);
  if (options.g2) options.g2->allocator = std::move(support.host);
  return {};
}

Outcome<tiers::TierShape> g1_of(const ashlar_tiers_options& given) {
  tiers::TierShape g1;
  ASHLAR_TRY(g1.block_count, block_count_of(given.g1_blocks, "g1_blocks"));
  if (given.g1_eviction != nullptr) g1.eviction = given.g1_eviction;
  ASHLAR_TRY(g1.order, order_of(given.g1_order));
  ASHLAR_TRY(const StorageKind kind, memory_kind_of(given.g1_memory_kind));
  constexpr std::size_t kMostRegions = 65536;
  if (given.g1_region_count > kMostRegions)
    return invalid_argument("%zu regions; at most one per layer", given.g1_region_count);
  ASHLAR_TRY(const auto regions,
             elements<const ashlar_region>(given.g1_regions, given.g1_region_count, "g1_regions"));
  if (regions.empty()) return g1;
  tiers::PlaneMemory memory;
  for (const ashlar_region& region : regions) {
    if (region.address == nullptr) return null_pointer("address of a region");
    memory.regions.push_back(
        {.kind = kind,
         .address = static_cast<std::byte*>(region.address),
         .bytes = region.bytes,
         .device = kind == StorageKind::kDevice ? given.g1_device : storage::Storage::kNoDevice});
  }
  g1.memory.push_back(std::move(memory));
  return g1;
}

Outcome<tokens::HashScheme> scheme_of(const ashlar_tiers_options& given) {
  ASHLAR_TRY(const auto key, elements<const std::uint8_t>(given.hash_key, given.hash_key_size, "hash_key"));
  if (key.empty() && given.hash_key != nullptr) return invalid_argument("hash_key without hash_key_size");
  ASHLAR_TRY(const auto scheme, tokens::HashScheme::by_name(
                                    given.hash_scheme == nullptr ? "xxh3_chain" : given.hash_scheme, key));
  return scheme;
}

// The rank and the name of the model. Requires: `options` has the shape of a block and its tiers.
Outcome<> describe_rank(const ashlar_tiers_options& given, tiers::KvOptions& options) {
  constexpr std::size_t kMostDegrees = 64;
  if (given.other_rank_count > kMostDegrees)
    return invalid_argument("%zu other_ranks; at most %zu", given.other_rank_count, kMostDegrees);
  ASHLAR_TRY(const auto others,
             elements<const std::uint32_t>(given.other_ranks, given.other_rank_count, "other_ranks"));
  const tiers::ModelRank rank{.rank = given.rank,
                              .ranks = given.ranks == 0 ? 1 : given.ranks,
                              .model_heads = given.model_heads,
                              .first_layer = given.first_layer,
                              .model_layers = given.model_layers,
                              .other_ranks = {others.begin(), others.end()}};
  ASHLAR_RETURN_IF_ERROR(
      rank.describe(given.model == nullptr ? std::string_view() : std::string_view(given.model), options));
  return {};
}

Outcome<tiers::KvOptions> kv_options(const ashlar_tiers_options& given, const tokens::HashScheme& scheme) {
  tiers::KvOptions options;
  if (given.block_size != 0) options.block_size = given.block_size;
  ASHLAR_TRY(options.model, shape_of(given, options.block_size));
  options.scheme_fingerprint = scheme.fingerprint();
  if (given.prefix_key_size != 0 || given.prefix_key != nullptr) {
    constexpr std::size_t kSize = tokens::PrefixKey::kSize;
    if (given.prefix_key_size != kSize)
      return invalid_argument("prefix_key has %u bytes; it needs %zu", given.prefix_key_size, kSize);
    ASHLAR_TRY(const auto bytes, elements<const std::uint8_t>(given.prefix_key, kSize, "prefix_key"));
    std::array<std::uint8_t, kSize> key{};
    std::ranges::copy(bytes, key.begin());
    options.prefix_key = tokens::PrefixKey(key);
  }
  ASHLAR_TRY(options.g1, g1_of(given));
  ASHLAR_RETURN_IF_ERROR(check_uses(given));
  if (given.g2_blocks != 0) {
    options.g2.emplace();
    ASHLAR_TRY(options.g2->block_count, block_count_of(given.g2_blocks, "g2_blocks"));
    if (given.g2_eviction != nullptr) options.g2->eviction = given.g2_eviction;
  }
  if (given.g3_blocks != 0) {
    options.g3.emplace();
    ASHLAR_TRY(options.g3->block_count, block_count_of(given.g3_blocks, "g3_blocks"));
    ASHLAR_TRY(options.g3->paths, texts_of(given.g3_paths, given.g3_path_count, "g3_paths"));
    if (given.g3_eviction != nullptr) options.g3->eviction = given.g3_eviction;
    options.g3->survive_power_loss = given.g3_no_sync == 0;
  }
  if (given.g4_blocks != 0) {
    options.g4.emplace();
    add_s3_volumes(options.g4->kinds);
    add_redis_volumes(options.g4->kinds);
    ASHLAR_TRY(options.g4->block_count, block_count_of(given.g4_blocks, "g4_blocks"));
    ASHLAR_TRY(const auto directories,
               texts_of(given.g4_directories, given.g4_directory_count, "g4_directories"));
    for (std::size_t i = 0; i < directories.size(); ++i)
      options.g4->volumes.push_back(
          {.name = "volume" + std::to_string(i), .kind = "directory", .location = directories[i]});
  }
  ASHLAR_TRY(options.remote, remote_of(given));
  ASHLAR_RETURN_IF_ERROR(describe_rank(given, options));
  ASHLAR_TRY(options.to_g2.trigger, trigger_of(given.to_g2, "to_g2"));
  ASHLAR_TRY(options.to_g3.trigger, trigger_of(given.to_g3, "to_g3"));
  ASHLAR_TRY(options.to_g4.trigger, trigger_of(given.to_g4, "to_g4"));
  options.read_back_after_write = given.read_back != 0;
  if (given.onboard_threads != 0) options.onboard_threads = given.onboard_threads;
  ASHLAR_TRY(options.event_capacity, event_capacity_of(given.event_capacity));
  options.g1.pool.max_pins = given.max_pins;
  if (options.g2) options.g2->pool.max_pins = given.max_pins;
  if (options.g3) options.g3->pool.max_pins = given.max_pins;
  if (options.g4) options.g4->pool.max_pins = given.max_pins;
  // The last: they start threads, and all else is checked.
  if (given.remote_ucx != nullptr) {
    ASHLAR_TRY(options.remote->own_agent->transport, ucx_transport(given.remote_ucx));
  }
  if (given.g1_memory_kind == ASHLAR_MEMORY_DEVICE)
    ASHLAR_RETURN_IF_ERROR(use_device(given.g1_device, options));
  return options;
}

// Bytes of K or V of one (block, layer) where they are in one piece, else 0.
std::uint64_t piece_bytes(const layout::Layout& layout) {
  const layout::LayoutConfig& shape = layout.config();
  const layout::Strides& strides = layout.strides();
  const std::uint64_t head = shape.head_bytes();
  const bool nhd = strides.head == head && strides.token == head * shape.num_heads;
  const bool hnd = strides.token == head && strides.head == head * shape.block_size;
  return nhd || hnd ? shape.outer_bytes() : 0;
}

void tell_tier(const tiers::TierStatus& tier, const std::optional<tiers::OffloadCounters>& route,
               ashlar_tier_status& told) {
  told.total = tier.pool.total;
  told.reset = tier.pool.reset;
  told.inactive = tier.pool.inactive + tier.pool.pinned_inactive + tier.pool.held_inactive;
  told.active = tier.pool.active;
  told.hits = tier.hits;
  told.onboarded = tier.onboarded;
  told.evictions = tier.evictions;
  told.damaged = tier.damaged;
  told.failed = tier.failed;
  told.arrived = route ? route->arrived : 0;
}

}  // namespace
}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;

ashlar_status ashlar_tiers_create(const ashlar_tiers_options* options, ashlar_tiers* tiers) {
  return waiting_call([&]() -> Outcome<> {
    if (tiers == nullptr) return null_pointer("tiers");
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_tiers_options"));
    ASHLAR_TRY(const auto scheme, scheme_of(given));
    ASHLAR_TRY(auto its, kv_options(given, scheme));
    ASHLAR_TRY(auto kv, ashlar::tiers::KvBlockManager::create(std::move(its)));
    auto life = std::make_shared<TieredPool>(std::move(kv), scheme);
    const std::uint64_t manager = open_handle(std::make_shared<ManagerObject>(life, /*is_of_tiers=*/true));
    try {
      tiers->id = open_handle(std::make_shared<TiersObject>(std::move(life), manager));
    } catch (...) {
      HandleTable::of_process().remove(HandleKind::kManager, manager);
      throw;
    }
    return {};
  });
}

ashlar_status ashlar_tiers_destroy(ashlar_tiers tiers) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<TiersObject>(tiers.id));
    ASHLAR_RETURN_IF_ERROR(destroy_pool(*object->life, "tiers", HandleKind::kTiers, tiers.id));
    HandleTable::of_process().remove(HandleKind::kManager, object->manager);
    return close_handle<TiersObject>(tiers.id);
  });
}

ashlar_status ashlar_tiers_manager(ashlar_tiers tiers, ashlar_manager* manager) {
  return call([&]() -> Outcome<> {
    if (manager == nullptr) return null_pointer("manager");
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    manager->id = entered.object->manager;
    return {};
  });
}

ashlar_status ashlar_tiers_hasher(ashlar_tiers tiers, const ashlar_hasher_options* options,
                                  ashlar_hasher* hasher) {
  return call([&]() -> Outcome<> {
    if (hasher == nullptr) return null_pointer("hasher");
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    const TieredPool& life = *entered.object->life;
    ASHLAR_TRY(const auto plain, make_hasher(options, life.scheme()));
    ASHLAR_TRY(auto bound, life.bind(&plain));
    hasher->id = open_handle(std::make_shared<HasherObject>(std::move(bound)));
    return {};
  });
}

ashlar_status ashlar_tiers_block_memory(ashlar_tiers tiers, uint32_t block, uint32_t layer, uint32_t outer,
                                        void** address, uint64_t* bytes) {
  return call([&]() -> Outcome<> {
    if (address == nullptr) return null_pointer("address");
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    const ashlar::transfer::BlockSet& set = *entered.kv().g1_blocks();
    const ashlar::layout::Layout& layout = set.planes()[0].layout;
    const ashlar::layout::LayoutConfig& shape = layout.config();
    if (block >= shape.block_count || layer >= shape.num_layers || outer >= shape.outer_dim)
      return invalid_argument("block %u, layer %u, outer %u; there are %u, %u and %u", block, layer, outer,
                              shape.block_count, shape.num_layers, shape.outer_dim);
    *address = set.address(0, layout.place({.block = block, .layer = layer, .outer = outer}));
    if (bytes != nullptr) *bytes = piece_bytes(layout);
    return {};
  });
}

ashlar_status ashlar_tiers_remote_address(ashlar_tiers tiers, char* out, size_t capacity, size_t* count) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ashlar::tiers::RemoteNode* const remote = entered.kv().remote();
    if (remote == nullptr)
      return Refusal(ASHLAR_UNSUPPORTED, "these tiers have no remote agent; set remote_listen");
    const std::string address = remote->agent().address();
    return write_list(std::span(address.c_str(), address.size() + 1), out, capacity, count);
  });
}

ashlar_status ashlar_tiers_presence(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                    uint8_t* tiers_of) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::SequenceHash>(hashes, n, "hashes"));
    ASHLAR_TRY(const auto out, elements<std::uint8_t>(tiers_of, n, "tiers_of"));
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    const auto presence = entered.kv().presence(names);
    for (std::size_t i = 0; i < n; ++i) out[i] = presence[i].bits;
    return {};
  });
}

ashlar_status ashlar_tiers_pin(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n, uint64_t ttl_ns,
                               ashlar_pin* pin) {
  return waiting_call([&]() -> Outcome<> {
    if (pin == nullptr) return null_pointer("pin");
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::SequenceHash>(hashes, n, "hashes"));
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ASHLAR_TRY(auto made, entered.kv().pin(names, duration_of(ttl_ns)));
    using KvPin = ashlar::tiers::KvPin;
    auto kept = std::make_shared<KvPin>(std::move(made));
    pin->id = open_handle(std::make_shared<PinObject>(
        std::move(kept), [](void* its) { return static_cast<const KvPin*>(its)->active(); }));
    return {};
  });
}

ashlar_status ashlar_tiers_set_retention(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                         uint8_t priority, uint64_t ttl_ns, size_t* found) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::SequenceHash>(hashes, n, "hashes"));
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ASHLAR_TRY(const auto retention, retention_of(priority, ttl_ns));
    ASHLAR_TRY(const auto count, entered.kv().set_retention(names, retention));
    if (found != nullptr) *found = count;
    return {};
  });
}

ashlar_status ashlar_tiers_reset(ashlar_tiers tiers, int32_t tier, uint64_t timeout_ns, size_t* evicted) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto which, tier_of(tier));
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ASHLAR_TRY(const auto count, entered.kv().reset(which, deadline_of(timeout_ns)));
    if (evicted != nullptr) *evicted = count;
    return {};
  });
}

ashlar_status ashlar_tiers_reset_blocks(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                        uint64_t timeout_ns) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::SequenceHash>(hashes, n, "hashes"));
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ASHLAR_RETURN_IF_ERROR(entered.kv().reset_blocks(names, deadline_of(timeout_ns)));
    return {};
  });
}

ashlar_status ashlar_tiers_shutdown(ashlar_tiers tiers, uint64_t timeout_ns) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ASHLAR_RETURN_IF_ERROR(entered.kv().shutdown(deadline_of(timeout_ns)));
    return {};
  });
}

ashlar_status ashlar_tiers_status(ashlar_tiers tiers, int32_t tier, ashlar_tier_status* status) {
  return call([&]() -> Outcome<> {
    const bool is_remote = tier == ASHLAR_TIER_REMOTE;
    ASHLAR_TRY(const auto which, tier_of(is_remote ? ASHLAR_TIER_G1 : tier));
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    const ashlar::tiers::KvStatus now = entered.kv().status();
    ashlar_tier_status told = {};
    if (is_remote) {
      if (!now.remote)
        return Refusal(ASHLAR_UNSUPPORTED, "these tiers have no remote agent; set remote_listen");
      tell_tier(*now.remote, std::nullopt, told);
      return write_answer(told, status, "ashlar_tier_status");
    }
    const std::optional<ashlar::tiers::TierStatus>* const below[] = {&now.g2, &now.g3, &now.g4};
    const std::optional<ashlar::tiers::OffloadCounters>* const routes[] = {&now.to_g2, &now.to_g3,
                                                                           &now.to_g4};
    if (tier == ASHLAR_TIER_G1) {
      tell_tier(now.g1, std::nullopt, told);
    } else if (const auto& its = *below[which.value() - 1]; its) {
      tell_tier(*its, *routes[which.value() - 1], told);
    } else {
      return Refusal(ASHLAR_UNSUPPORTED, "these tiers have no G" + std::to_string(which.value() + 1));
    }
    return write_answer(told, status, "ashlar_tier_status");
  });
}

ashlar_status ashlar_tiers_drain_events(ashlar_tiers tiers, ashlar_event_callback callback, void* user,
                                        size_t* delivered) {
  return waiting_call([&]() -> Outcome<> {
    if (callback == nullptr) return null_pointer("callback");
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    CallbackSink sink(callback, user);
    const std::size_t count = entered.object->life->drain_events(sink);
    if (delivered != nullptr) *delivered = count;
    return {};
  });
}

ashlar_status ashlar_tiers_list_stored(ashlar_tiers tiers, int32_t tier, ashlar_event_callback callback,
                                       void* user, uint64_t* next) {
  return waiting_call([&]() -> Outcome<> {
    if (callback == nullptr) return null_pointer("callback");
    if (next == nullptr) return null_pointer("next");
    auto which = ashlar::events::kTierId<ashlar::events::Remote>;
    if (tier != ASHLAR_TIER_REMOTE) {
      ASHLAR_TRY(which, tier_of(tier));
    }
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    std::vector<ashlar::events::KvEvent> stored;
    ASHLAR_TRY(*next, entered.kv().list_stored(which, stored));
    if (!stored.empty()) CallbackSink(callback, user).on_events(stored);
    return {};
  });
}

ashlar_status ashlar_tiers_metrics(ashlar_tiers tiers, char* out, size_t capacity, size_t* count) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ashlar::MetricRegistry metrics;
    ASHLAR_TRY(const auto registered, entered.kv().add_metrics(metrics));
    const std::string text = metrics.prometheus_text();
    return write_list(std::span(text.c_str(), text.size() + 1), out, capacity, count);
  });
}
