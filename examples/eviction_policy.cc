// Two user-defined eviction policies: one that asks which tiers hold a block, one that reads an attachment.
//
//   LowerTierFirst    (lower_tier_first.h) evicts from G1 the blocks that G2 also holds
//   LightTenantsFirst (below) evicts the blocks of the tenant with the least weight; the code that registers
//                     a block attaches its tenant to the hash
#include <compare>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/block/block_orders.h"
#include "lower_tier_first.h"

namespace {

using namespace ashlar;
using block::BlockId;
using block::BlockManager;
using block::BlockRegistry;
using block::G1;
using block::G2;
using block::ImmutableBlock;
using block::KvReady;
using tokens::SequenceHash;

// The weight of a tenant's blocks; attached to their hashes.
struct TenantWeight {
  std::uint32_t value = 0;
};

// Lowest first.
struct TenantKey {
  std::uint32_t weight = 0;
  std::uint64_t tick = 0;
  friend auto operator<=>(const TenantKey&, const TenantKey&) = default;
};

// The least weight first, of equals the block released longest ago. The weight is the one attached when the
// block is released. The visit happens under the manager's lock, so a visitor of TenantWeight elsewhere must
// only read: if it called a manager, or touched a hash, the two threads could deadlock.
class LightTenantsFirst {
 public:
  explicit LightTenantsFirst(const block::EvictionContext& context)
      : registry_(context.registry), heap_(context.block_count) {}

  void insert(BlockId id, const SequenceHash& hash) { heap_.push(id, {weight_of(hash), ++tick_}); }
  void remove(BlockId id) { heap_.remove(id); }
  void touch(BlockId id) { heap_.update(id, {heap_.key_of(id).weight, ++tick_}); }
  std::optional<BlockId> next() { return heap_.pop(); }
  std::size_t peek(std::span<BlockId> out) const { return heap_.peek(out); }
  std::size_t size() const { return heap_.size(); }

 private:
  std::uint32_t weight_of(const SequenceHash& hash) const {
    std::uint32_t weight = 0;
    if (const auto handle = registry_.match_sequence_hash(hash, /*touch=*/false)) {
      handle->get<TenantWeight>().with_unique([&](const TenantWeight& own) { weight = own.value; });
    }
    return weight;
  }

  BlockRegistry registry_;
  block::IndexedHeap<TenantKey> heap_;
  std::uint64_t tick_ = 0;
};
static_assert(block::ReusePolicy<LightTenantsFirst>);

template <class Policy, class Tier>
BlockManager<Tier> manager_with(const BlockRegistry& registry, std::uint32_t blocks) {
  return BlockManager<Tier>::builder()
      .block_count(blocks)
      .registry(registry)
      .template with_hashmap_backend<Policy>()
      .build()
      .value();
}

// A registered block of this name, in use while the guard lives.
template <class Tier>
ImmutableBlock<Tier> store(BlockManager<Tier>& manager, const SequenceHash& hash) {
  auto empty = manager.allocate_blocks(1).value().take_back();
  return manager.register_block(std::move(empty).stage(hash, KvReady::asserted_by_caller())).value();
}

// "0 1 2 3" for the hashes with these chain numbers.
std::string list(std::span<const SequenceHash> hashes) {
  std::string text;
  for (const SequenceHash& hash : hashes) text += (text.empty() ? "" : " ") + std::to_string(hash.chain());
  return text;
}

void evict_what_a_lower_tier_holds() {
  const auto registry = BlockRegistry::create().value();
  auto device = manager_with<examples::LowerTierFirst, G1>(registry, 6);
  auto host = manager_with<block::LruReuse, G2>(registry, 6);
  for (std::uint64_t name = 0; name < 6; ++name) (void)store(device, SequenceHash::root(name));
  for (const std::uint64_t name : {4, 2}) (void)store(host, SequenceHash::root(name));

  std::printf("G1 holds 0 to 5, oldest first; G2 holds 2 and 4\n");
  std::printf("next victims of G1: %s\n", list(device.eviction_candidates(6)).c_str());
  const auto allocation = device.allocate_blocks_with_evictions(3).value();
  std::printf("evicted from G1 for three blocks: %s\n\n", list(allocation.evicted).c_str());
}

void evict_what_belongs_to_light_tenants() {
  const auto registry = BlockRegistry::create().value();
  auto manager = manager_with<LightTenantsFirst, G1>(registry, 6);
  const std::uint32_t weights[] = {50, 10, 50, 10, 30, 10};
  for (std::uint64_t name = 0; name < 6; ++name) {
    const auto block = store(manager, SequenceHash::root(name));
    (void)block.registration_handle().attach_unique(TenantWeight{weights[name]}).value();
  }

  std::printf("tenants of blocks 0 to 5 have weights 50 10 50 10 30 10\n");
  const auto allocation = manager.allocate_blocks_with_evictions(5).value();
  std::printf("evicted for five blocks: %s\n", list(allocation.evicted).c_str());
}

}  // namespace

int main() {
  evict_what_a_lower_tier_holds();
  evict_what_belongs_to_light_tenants();
  return 0;
}
