// Creates a manager's store from its options, and closes it when the manager is destroyed.
#include "ashlar/block/detail/untyped_manager.h"

#include <memory>
#include <utility>

#include "block/store/block_store.h"

namespace ashlar::block::detail {
namespace {

Result<std::shared_ptr<BlockStore>> make_store(const ManagerOptions& given, TierId tier,
                                               std::string_view tier_name) {
  ASHLAR_RETURN_IF_ERROR(given.validate());
  ManagerOptions options = given;
  if (!options.eviction) options.eviction = lru_eviction();
  if (!options.reset_allocator) {
    options.reset_allocator = [](std::uint32_t n) { return std::make_unique<FifoResetAllocator>(n); };
  }
  auto facts = std::make_shared<BlockFacts>(options.block_count);
  ASHLAR_TRY(
      std::unique_ptr<InactivePool> inactive,
      options.eviction(EvictionContext(options.block_count, *options.registry, *options.clock, facts)));
  auto reset = options.reset_allocator(options.block_count);
  if (inactive == nullptr || reset == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "the %s factory returned null",
                      reset == nullptr ? "reset allocator" : "eviction backend");
  }
  const std::shared_ptr<events::EventLog> log = options.events;
  if (log && !log->claim()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the event log belongs to another manager; give each manager its own log");
  }
  try {
    auto store = std::make_shared<BlockStore>(std::move(options), tier, std::string(tier_name),
                                              std::move(facts), std::move(inactive), std::move(reset));
    store->registry().attach(store);
    return store;
  } catch (...) {
    if (log) log->release_claim();
    throw;
  }
}

}  // namespace

Result<std::shared_ptr<BlockStore>> UntypedManager::create(const ManagerOptions& options, TierId tier,
                                                           std::string_view tier_name) {
  const auto refusal = [&]() -> Result<std::shared_ptr<BlockStore>> {
    return make_error(ErrorCode::kCapacity,
                      "out of memory for the %u blocks of a %s manager; lower block_count",
                      options.block_count, std::string(tier_name).c_str());
  };
  return unless_out_of_memory([&] { return make_store(options, tier, tier_name); },
                              [&] { return unless_out_of_memory(refusal); });
}

StoreOwner::StoreOwner(std::shared_ptr<BlockStore> store) noexcept
    : store_(std::move(store)), calls_(store_.get()) {}

StoreOwner::StoreOwner(StoreOwner&& other) noexcept
    : store_(std::move(other.store_)), calls_(std::exchange(other.calls_, nullptr)) {}

StoreOwner& StoreOwner::operator=(StoreOwner&& other) noexcept {
  if (this != &other) {
    if (store_) store_->close();
    store_ = std::move(other.store_);
    calls_ = std::exchange(other.calls_, nullptr);
  }
  return *this;
}

StoreOwner::~StoreOwner() {
  if (store_) store_->close();
}

}  // namespace ashlar::block::detail
