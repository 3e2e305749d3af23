#include "block/eviction/multi_lru_backend.h"

#include "block/registry/tiny_lfu.h"

namespace ashlar::block {

Result<void> MultiLruThresholds::validate() const {
  if (warm >= 1 && warm < hot && hot < very_hot && very_hot <= TinyLfu::kMaxCount) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "the thresholds of the multi-LRU tiers are %u, %u and %u; they must ascend, the first be at "
      "least 1 and the last at most %u",
      warm, hot, very_hot, TinyLfu::kMaxCount);
}

Result<MultiLruBackend> MultiLruBackend::create(const EvictionContext& context,
                                                const MultiLruThresholds& thresholds) {
  ASHLAR_RETURN_IF_ERROR(thresholds.validate());
  if (context.registry.frequency_tracker() == nullptr) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "the multi-LRU backend needs a registry that counts uses, and this one has no frequency "
        "tracker; set RegistryOptions::frequency to TinyLfuOptions::for_pool(blocks)");
  }
  return MultiLruBackend(context, thresholds);
}

std::uint32_t MultiLruBackend::tier_of(const tokens::SequenceHash& hash) const {
  const unsigned count = registry_.count(hash);
  return std::uint32_t{count >= thresholds_.warm} + std::uint32_t{count >= thresholds_.hot} +
         std::uint32_t{count >= thresholds_.very_hot};
}

std::optional<BlockId> MultiLruBackend::pop() {
  for (std::uint32_t tier = 0; tier < kTiers; ++tier) {
    if (const auto victim = tiers_.pop_front(tier)) return victim;
  }
  return std::nullopt;
}

std::size_t MultiLruBackend::peek(std::span<BlockId> out) const {
  std::size_t count = 0;
  for (std::uint32_t tier = 0; tier < kTiers; ++tier) count += tiers_.peek(tier, out.subspan(count));
  return count;
}

}  // namespace ashlar::block
