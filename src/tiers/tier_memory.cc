#include "tiers/tier_memory.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/wide.h"
#include "transfer/copy/region_extent.h"

namespace ashlar::tiers {

using layout::LayoutConfig;
using transfer::BlockSet;

namespace {

// The model, then the further planes.
std::vector<LayoutConfig> configs_of(const KvOptions& options) {
  std::vector<LayoutConfig> configs = {options.model};
  configs.insert(configs.end(), options.scales.begin(), options.scales.end());
  return configs;
}

layout::Shard shard_of(const KvOptions& options, const LayoutConfig& plane) {
  layout::Shard shard =
      options.shard == layout::Shard{} ? layout::Shard::whole(options.model) : options.shard;
  shard.heads.count = plane.num_heads;  // one for all, or as many
  return shard;
}

// "model", "scales[0]".
std::string plane_name(std::size_t plane) {
  return plane == 0 ? "model" : "scales[" + std::to_string(plane - 1) + "]";
}

Error about(const std::string& field, const Error& error) {
  return Error(error.code(), field + ": " + error.message());
}

// Regions per layer have no stride between layers, so the axis may stand anywhere in the caller's order.
layout::AxisOrder layer_first(const layout::AxisOrder& order) {
  layout::AxisOrder out = order;
  const auto layer = std::ranges::find(out, layout::Axis::kLayer);
  if (layer != out.end()) std::rotate(out.begin(), layer, layer + 1);
  return out;
}

Result<layout::Layout> layout_of(const LayoutConfig& config, const PlaneMemory& memory,
                                 const layout::AxisOrder& order, layout::Regions regions) {
  if (memory.strides) return layout::Layout::create(config, *memory.strides, regions);
  const layout::AxisOrder& axes = memory.order ? *memory.order : order;
  return layout::Layout::create(config, regions == layout::Regions::kOne ? axes : layer_first(axes), regions);
}

Result<transfer::Plane> plane_of(const LayoutConfig& config, const layout::Shard& shard,
                                 const PlaneMemory& memory, const layout::AxisOrder& order,
                                 const std::string& field) {
  if (memory.order && memory.strides)
    return make_error(ErrorCode::kInvalidArgument, "%s has an order and strides; give one of them",
                      field.c_str());
  if (memory.regions.size() != 1 && memory.regions.size() != config.num_layers)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s has %zu regions; it needs one for all layers, or one for each of the %u layers",
                      field.c_str(), memory.regions.size(), config.num_layers);
  const layout::Regions regions =
      memory.regions.size() == 1 ? layout::Regions::kOne : layout::Regions::kPerLayer;
  const Result<layout::Layout> layout = layout_of(config, memory, order, regions);
  if (!layout) return about(field, layout.error());
  transfer::Plane plane{*layout, shard, {}};
  for (std::size_t i = 0; i < memory.regions.size(); ++i) {
    const storage::ExternalMemory& region = memory.regions[i];
    const std::string where = field + ".regions[" + std::to_string(i) + "]";
    auto storage = storage::ExternalStorage::create(region);
    if (!storage) return about(where, storage.error());
    // A packed region of another size has its blocks or its values elsewhere than the order says.
    const std::uint64_t needed = layout->region_bytes();
    if (memory.strides ? region.bytes < needed : region.bytes != needed)
      return make_error(ErrorCode::kInvalidArgument,
                        "%s has %llu bytes; %u blocks need %s %llu, with %llu from one block to the next%s",
                        where.c_str(), wide(region.bytes), config.block_count,
                        memory.strides ? "at least" : "exactly", wide(needed), wide(layout->strides().block),
                        memory.strides ? "" : "; give strides where the memory has gaps or more blocks");
    if (reinterpret_cast<std::uintptr_t>(region.address) % config.alignment != 0)
      return make_error(ErrorCode::kInvalidArgument,
                        "%s starts at %p, which is not a multiple of the alignment %llu", where.c_str(),
                        static_cast<const void*>(region.address), wide(config.alignment));
    plane.regions.push_back({*std::move(storage), 0});
  }
  return plane;
}

Result<std::shared_ptr<const BlockSet>> set_of(const KvOptions& options, const TierShape& shape,
                                               const std::string& tier) {
  std::vector<LayoutConfig> configs = configs_of(options);
  if (shape.memory.size() != configs.size())
    return make_error(ErrorCode::kInvalidArgument,
                      "%s.memory has %zu planes; it needs %zu: one for model and one for each of scales",
                      tier.c_str(), shape.memory.size(), configs.size());
  std::vector<transfer::Plane> planes;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    configs[i].block_count = shape.block_count;
    ASHLAR_TRY(transfer::Plane plane, plane_of(configs[i], shard_of(options, configs[i]), shape.memory[i],
                                               shape.order, tier + ".memory[" + std::to_string(i) + "]"));
    planes.push_back(std::move(plane));
  }
  Result<std::shared_ptr<const BlockSet>> set = BlockSet::create(std::move(planes));
  if (!set) return about(tier + ".memory", set.error());
  return set;
}

// Every tier copies planes of one shape; only order, padding and alignment are a tier's own.
Result<void> check_plane(const transfer::Plane& plane, const LayoutConfig& wanted, const layout::Shard& shard,
                         const std::string& field, const std::string& model) {
  const LayoutConfig& has = plane.layout.config();
  const auto differs = [&](const char* what, std::uint64_t its, std::uint64_t should) {
    return make_error(ErrorCode::kInvalidArgument, "%s has %s %llu; %s has %llu", field.c_str(), what,
                      wide(its), model.c_str(), wide(should));
  };
  if (has.num_layers != wanted.num_layers) return differs("num_layers", has.num_layers, wanted.num_layers);
  if (has.outer_dim != wanted.outer_dim) return differs("outer_dim", has.outer_dim, wanted.outer_dim);
  if (has.block_size != wanted.block_size) return differs("block_size", has.block_size, wanted.block_size);
  if (has.num_heads != wanted.num_heads) return differs("num_heads", has.num_heads, wanted.num_heads);
  if (has.head_dim != wanted.head_dim) return differs("head_dim", has.head_dim, wanted.head_dim);
  if (has.opaque != wanted.opaque) return differs("opaque", has.opaque, wanted.opaque);
  if (has.dtype != wanted.dtype)
    return make_error(ErrorCode::kInvalidArgument, "%s has dtype %s; %s has %s", field.c_str(),
                      std::string(to_string(has.dtype)).c_str(), model.c_str(),
                      std::string(to_string(wanted.dtype)).c_str());
  // BlockSet gives planes with one head for all the first head of plane 0.
  if (plane.shard != shard)
    return make_error(ErrorCode::kInvalidArgument, "%s belongs to %s; KvOptions::shard is %s", field.c_str(),
                      plane.shard.to_string().c_str(), shard.to_string().c_str());
  return {};
}

Result<std::shared_ptr<const BlockSet>> checked_set(const KvOptions& options, const TierShape& shape,
                                                    const std::string& tier) {
  const BlockSet& set = *shape.blocks;
  const std::string field = tier + ".blocks";
  if (set.kind() != StorageKind::kSystem && set.kind() != StorageKind::kPinned &&
      set.kind() != StorageKind::kDevice)
    return make_error(ErrorCode::kInvalidArgument, "%s is in %s storage; this tier is in memory",
                      field.c_str(), std::string(to_string(set.kind())).c_str());
  if (set.block_count() != shape.block_count)
    return make_error(ErrorCode::kInvalidArgument, "%s has %u blocks; %s.block_count is %u", field.c_str(),
                      set.block_count(), tier.c_str(), shape.block_count);
  const std::vector<LayoutConfig> configs = configs_of(options);
  if (set.planes().size() != configs.size())
    return make_error(ErrorCode::kInvalidArgument,
                      "%s has %zu planes; it needs %zu: one for model and one for each of scales",
                      field.c_str(), set.planes().size(), configs.size());
  for (std::size_t i = 0; i < configs.size(); ++i)
    ASHLAR_RETURN_IF_ERROR(check_plane(set.planes()[i], configs[i], shard_of(options, configs[i]),
                                       "plane " + std::to_string(i) + " of " + field, plane_name(i)));
  return shape.blocks;
}

}  // namespace

Result<std::vector<transfer::PlaneShape>> planes_of(const KvOptions& options, std::uint32_t blocks,
                                                    const layout::AxisOrder& order, std::uint64_t alignment) {
  std::vector<transfer::PlaneShape> planes;
  for (LayoutConfig& config : configs_of(options)) {
    config.block_count = blocks;
    config.alignment = std::max(config.alignment, alignment);
    ASHLAR_TRY(const layout::Layout layout, layout::Layout::create(config, order));
    planes.push_back({layout, shard_of(options, config)});
  }
  return planes;
}

Result<std::shared_ptr<const BlockSet>> memory_of(const KvOptions& options, const TierShape& shape,
                                                  const char* tier) {
  if (shape.blocks != nullptr) return checked_set(options, shape, tier);
  if (!shape.memory.empty()) return set_of(options, shape, tier);
  ASHLAR_TRY(const std::vector<transfer::PlaneShape> planes,
             planes_of(options, shape.block_count, shape.order));
  storage::SystemAllocator plain;
  return BlockSet::allocate(planes, shape.allocator == nullptr ? plain : *shape.allocator);
}

Result<void> check_copies(const transfer::Executor& executor, const std::shared_ptr<const BlockSet>& g1,
                          const std::shared_ptr<const BlockSet>& g2) {
  std::vector<transfer::RegionExtent> extents = transfer::extents_of(*g1);
  std::ranges::copy(transfer::extents_of(*g2), std::back_inserter(extents));
  if (const std::optional<std::string> shared = transfer::find_overlap(std::move(extents)))
    return make_error(ErrorCode::kInvalidArgument, "g1 and g2 share memory (%s); each needs its own",
                      shared->c_str());
  if (executor.handles(*g1, *g2) && executor.handles(*g2, *g1)) return {};
  return make_error(ErrorCode::kUnsupported,
                    "executor '%s' does not copy between %s memory (g1) and %s memory (g2); set "
                    "KvOptions::executor to one that does: for a GPU, a TransferEngine with a CudaExecutor",
                    std::string(executor.name()).c_str(), std::string(to_string(g1->kind())).c_str(),
                    std::string(to_string(g2->kind())).c_str());
}

}  // namespace ashlar::tiers
