#include "ashlar/block/detail/manager_core.h"

#include <array>

#include "ashlar/base/check.h"
#include "ashlar/base/out_of_memory.h"
#include "block/store/block_store.h"

namespace ashlar::block::detail {

Result<ManagerCore> ManagerCore::create(const ManagerOptions& given, events::TierId tier,
                                        std::string_view tier_name) {
  return unless_out_of_memory([&] { return make(given, tier, tier_name); });
}

Result<ManagerCore> ManagerCore::make(const ManagerOptions& given, events::TierId tier,
                                      std::string_view tier_name) {
  if (auto valid = given.validate(); !valid) return std::move(valid).error();
  ManagerOptions options = given;
  if (!options.eviction) options.eviction = *eviction_by_name("lru");
  if (!options.reset_allocator) {
    options.reset_allocator = [](std::uint32_t n) { return std::make_unique<FifoResetAllocator>(n); };
  }
  auto facts = std::make_shared<BlockFacts>(options.block_count);
  auto inactive =
      options.eviction(EvictionContext(options.block_count, *options.registry, *options.clock, facts));
  if (!inactive) return std::move(inactive).error();
  auto reset = options.reset_allocator(options.block_count);
  if (*inactive == nullptr || reset == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "the %s factory made nothing",
                      reset == nullptr ? "reset allocator" : "eviction backend");
  }
  const std::shared_ptr<events::EventLog> log = options.events;
  if (log && !log->claim()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the event log belongs to another manager; give each manager a log of its own");
  }
  try {
    auto store = std::make_shared<BlockStore>(std::move(options), tier, std::string(tier_name),
                                              std::move(facts), *std::move(inactive), std::move(reset));
    store->registry().attach(store);
    return ManagerCore(std::move(store));
  } catch (...) {
    if (log) log->release_claim();
    throw;
  }
}

ManagerCore::ManagerCore(std::shared_ptr<BlockStore> store) : store_(std::move(store)) {}
ManagerCore::ManagerCore(ManagerCore&&) noexcept = default;
ManagerCore& ManagerCore::operator=(ManagerCore&& other) noexcept {
  if (this != &other) {
    if (store_) store_->close();
    store_ = std::move(other.store_);
  }
  return *this;
}
ManagerCore::~ManagerCore() {
  if (store_) store_->close();
}

const ManagerOptions& ManagerCore::options() const noexcept {
  return store_->options();
}

std::optional<AllocationRefusal> ManagerCore::allocate_chunks(std::size_t n,
                                                              std::vector<tokens::SequenceHash>* evicted,
                                                              Emitter emit) {
  return store_->allocate(n, evicted, emit);
}
std::optional<AllocationRefusal> ManagerCore::allocate_until_chunks(std::size_t n, Clock::TimePoint deadline,
                                                                    Emitter emit) {
  return store_->allocate_until(n, deadline, emit);
}
AllocationRefusal ManagerCore::out_of_memory(std::size_t n) const noexcept {
  return {AllocationRefusal::Reason::kOutOfMemory, n, store_->status()};
}
std::optional<AllocationRefusal> ManagerCore::why_not(std::size_t n) const {
  return store_->why_not(n);
}

Result<SlotRef> ManagerCore::register_one(const SlotRef& slot) {
  SlotRef registered;
  const auto fill = [&](std::size_t, std::span<SlotRef> out) { out[0] = slot; };
  const auto emit = [&](std::size_t, std::span<const SlotRef> slots) { registered = slots[0]; };
  return unless_out_of_memory([&]() -> Result<SlotRef> {
    if (auto refused = store_->register_slots(1, fill, emit)) return *std::move(refused);
    return registered;
  });
}

std::optional<Error> ManagerCore::register_chunks(std::size_t n, std::size_t room, Filler fill,
                                                  Emitter emit) {
  ASHLAR_CHECK(n == room, "%zu blocks to register, room for %zu", n, room);
  return unless_out_of_memory([&] { return store_->register_slots(n, fill, emit); });
}

std::size_t ManagerCore::match_prefix_chunks(std::span<const tokens::SequenceHash> hashes, Emitter emit) {
  return store_->match_prefix(hashes, {}, emit);
}
std::size_t ManagerCore::match_prefix_chunks(std::span<const tokens::TokenBlock> blocks, Emitter emit) {
  return store_->match_prefix(blocks, emit);
}
std::size_t ManagerCore::match_scattered_each(std::span<const tokens::SequenceHash> hashes, Emitter emit) {
  return store_->match_scattered(hashes, emit);
}
void ManagerCore::scan_each(std::span<const tokens::SequenceHash> hashes, bool touch, Emitter emit) {
  store_->scan(hashes, touch, emit);
}

Result<PinRef> ManagerCore::pin(const tokens::SequenceHash& hash, Clock::Duration ttl) {
  return unless_out_of_memory([&] { return store_->pin(hash, ttl); });
}

Result<HoldRef> ManagerCore::hold(const tokens::SequenceHash& hash) {
  return unless_out_of_memory([&] { return store_->hold(hash); });
}
Result<void> ManagerCore::set_retention(const tokens::SequenceHash& hash, const BlockRetention& retention) {
  return unless_out_of_memory([&] { return store_->set_retention(hash, retention); });
}
std::size_t ManagerCore::reset_inactive() {
  return store_->reset_inactive();
}
std::vector<tokens::SequenceHash> ManagerCore::candidates(std::size_t n) const {
  return store_->candidates(n);
}
void ManagerCore::for_each_registered(
    const std::function<void(const tokens::SequenceHash&, BlockId)>& visit) const {
  store_->for_each_registered(visit);
}

PoolStatus ManagerCore::status() const {
  return store_->status();
}
Pressure ManagerCore::pressure() const noexcept {
  return store_->pressure();
}
std::optional<std::vector<tokens::Token>> ManagerCore::tokens_of(const tokens::SequenceHash& hash) const {
  return store_->tokens_of(hash);
}
std::uint64_t ManagerCore::list_stored(std::vector<events::KvEvent>& out) const {
  return store_->list_stored(out);
}

ManagerCounters ManagerCore::counters() const {
  return store_->counters();
}
void ManagerCore::check_invariants() const {
  store_->check_invariants();
}

}  // namespace ashlar::block::detail
