// Recipes come from transfer::cover(), which divides a rectangle of (layer, head) among others, and from
// transfer::plan(), which knows what can be cut: per plane, between two blocks in canonical form.
#include "tiers/volume/other_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/storage/external_storage.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::tiers {

using layout::LayoutConfig;
using layout::Shard;
using transfer::BlockSet;

namespace {

constexpr std::uint64_t kStripBytes = std::uint64_t{1} << 20;
// Sets of present objects for which a recipe is kept.
constexpr std::size_t kMostRecipes = 1024;
// Planes of which this rank cannot tell whether they are per head: each doubles the shapes of a source.
constexpr std::size_t kMostUnclear = 8;

std::uint64_t common_cells(const Shard& a, const Shard& b) {
  return std::uint64_t{intersect(a.layers, b.layers).count} * intersect(a.heads, b.heads).count;
}

// The planes of `own` as a rank with `shard` has them. `one_for_all`: whether plane i, which has one head at
// this rank as the first plane has, has one for all heads of the source.
std::vector<LayoutConfig> configs_at(const std::vector<LayoutConfig>& own, const Shard& shard,
                                     const std::vector<bool>& one_for_all) {
  std::vector<LayoutConfig> configs = own;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const bool per_head = own[i].num_heads == own[0].num_heads && !one_for_all[i];
    configs[i].num_layers = shard.layers.count;
    configs[i].num_heads = per_head ? shard.heads.count : 1;
    configs[i].inner_dim = configs[i].num_heads * configs[i].head_dim;
  }
  return configs;
}

// One shape, or two for each plane of which this rank cannot tell whether it is per head.
Result<std::vector<std::vector<bool>>> kinds_of_planes(const std::vector<LayoutConfig>& own,
                                                       const Shard& shard) {
  std::vector<std::vector<bool>> kinds = {std::vector<bool>(own.size(), false)};
  if (own[0].num_heads > 1 || shard.heads.count == 1) return kinds;
  if (own.size() - 1 > kMostUnclear)
    return make_error(
        ErrorCode::kUnsupported,
        "%zu planes of scales in objects of %s; a rank with one head can tell at most %zu apart",
        own.size() - 1, shard.to_string().c_str(), kMostUnclear);
  for (std::size_t plane = 1; plane < own.size(); ++plane)
    for (std::size_t i = 0, before = kinds.size(); i < before; ++i) {
      kinds.push_back(kinds[i]);
      kinds.back()[plane] = true;
    }
  return kinds;
}

}  // namespace

Result<OtherShards::Shape> OtherShards::shape_of(const VolumeObject& like,
                                                 const std::vector<LayoutConfig>& configs,
                                                 const Shard& shard) {
  Shape shape;
  std::uint64_t bytes = 0;
  for (LayoutConfig config : configs) {
    config.block_count = 1;
    config.alignment = config.layer_alignment = 1;
    ASHLAR_TRY(const layout::Layout layout,
               layout::Layout::create(config, layout::order::kFullyContiguousNhd));
    shape.planes.push_back({layout, shard});
    shape.planes.back().shard.heads.count = config.num_heads;
    shape.offsets.push_back(bytes);
    bytes += config.block_bytes();
  }
  ASHLAR_TRY(const std::shared_ptr<const BlockSet> set, set_of(shape));
  shape.object = VolumeObject::describe(*set, like.keys, like.scheme_fingerprint, like.prefix_key);
  ASHLAR_CHECK(shape.object.payload_bytes == bytes, "a block in canonical form has %llu bytes, not %llu",
               static_cast<unsigned long long>(shape.object.payload_bytes),
               static_cast<unsigned long long>(bytes));
  return shape;
}

Result<std::shared_ptr<const BlockSet>> OtherShards::set_of(const Shape& shape, std::span<std::byte> memory) {
  if (memory.empty()) {
    storage::SystemAllocator allocator;
    return BlockSet::allocate(shape.planes, allocator);
  }
  ASHLAR_TRY(const std::shared_ptr<storage::ExternalStorage> storage,
             storage::ExternalStorage::create({.address = memory.data(), .bytes = memory.size()}));
  std::vector<transfer::Plane> planes;
  planes.reserve(shape.planes.size());
  for (std::size_t i = 0; i < shape.planes.size(); ++i)
    planes.push_back({shape.planes[i].layout, shape.planes[i].shard, {{storage, shape.offsets[i]}}});
  return BlockSet::create(std::move(planes));
}

Result<std::shared_ptr<const OtherShards>> OtherShards::create(const BlockSet& blocks,
                                                               const VolumeObject& own,
                                                               std::span<const Shard> shards) {
  std::vector<LayoutConfig> configs;
  for (const transfer::Plane& plane : blocks.planes()) configs.push_back(plane.layout.config());
  std::vector<Source> sources;
  for (const Shard& shard : shards) {
    ASHLAR_RETURN_IF_ERROR(shard.validate());
    if (shard.layers.count == 0 || shard.heads.count == 0)
      return make_error(ErrorCode::kInvalidArgument, "%s holds nothing; name its layers and heads",
                        shard.to_string().c_str());
    if (shard == own.shard || common_cells(shard, own.shard) == 0) continue;
    if (std::ranges::find(sources, shard, &Source::shard) != sources.end()) continue;
    Source source{.shard = shard, .shapes = {}, .sizes = {}};
    ASHLAR_TRY(const std::vector<std::vector<bool>> kinds, kinds_of_planes(configs, shard));
    for (const std::vector<bool>& one_for_all : kinds) {
      ASHLAR_TRY(Shape shape, shape_of(own, configs_at(configs, shard, one_for_all), shard));
      if (std::ranges::find(source.sizes, shape.object.payload_bytes) == source.sizes.end())
        source.sizes.push_back(shape.object.payload_bytes);
      source.shapes.push_back(std::move(shape));
    }
    // Largest common part first, then as given.
    const auto place =
        std::ranges::upper_bound(sources, common_cells(shard, own.shard), std::ranges::greater(),
                                 [&](const Source& other) { return common_cells(other.shard, own.shard); });
    sources.insert(place, std::move(source));
  }
  if (sources.empty()) return std::shared_ptr<const OtherShards>();
  ASHLAR_TRY(Shape mine, shape_of(own, configs, own.shard));
  ASHLAR_CHECK(mine.object == own, "the objects of %s are not described as its blocks",
               own.shard.to_string().c_str());
  return std::shared_ptr<const OtherShards>(new OtherShards(std::move(mine), std::move(sources)));
}

std::string OtherShards::key(std::size_t source, const tokens::SequenceHash& hash) const {
  VolumeObject object = sources_[source].shapes[0].object;
  object.hash = hash;
  return object.key();
}

Result<std::shared_ptr<const OtherShards::Recipe>> OtherShards::recipe(
    const std::vector<bool>& present) const {
  {
    const MutexLock lock(mu_);
    if (const auto known = recipes_.find(present); known != recipes_.end()) return known->second;
  }
  Result<std::shared_ptr<const Recipe>> made = make_recipe(present);
  const MutexLock lock(mu_);
  if (recipes_.size() >= kMostRecipes || (!made && made.error().code() == ErrorCode::kCapacity)) return made;
  return recipes_.try_emplace(present, std::move(made)).first->second;
}

Result<std::shared_ptr<const OtherShards::Recipe>> OtherShards::make_recipe(
    const std::vector<bool>& present) const {
  std::vector<std::size_t> numbers;
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (!present[i]) continue;
    numbers.push_back(i);
    shards.push_back(sources_[i].shard);
  }
  const auto among = [&] {
    std::string text;
    for (const Shard& shard : shards) text += (text.empty() ? "" : ", ") + shard.to_string();
    return text;
  };
  Result<std::vector<transfer::ShardSource>> cover = transfer::cover(own_.object.shard, shards);
  if (!cover)
    return make_error(cover.error().code(), "%s cannot be made from the objects of %s: %s",
                      own_.object.shard.to_string().c_str(), among().c_str(),
                      cover.error().message().c_str());
  std::map<std::size_t, std::vector<transfer::ShardSource>> by_source;
  for (const transfer::ShardSource& rectangle : *cover)
    by_source[numbers[rectangle.source]].push_back(rectangle);
  auto recipe = std::make_shared<Recipe>();
  for (const auto& [source, rectangles] : by_source) {
    Part& part = recipe->parts.emplace_back(Part{.source = source, .copies = {}});
    for (const Shape& shape : sources_[source].shapes) {
      Result<std::vector<Copy>> copies = copies_from(shape, rectangles);
      if (!copies)
        return make_error(
            copies.error().code() == ErrorCode::kCapacity ? ErrorCode::kCapacity : ErrorCode::kUnsupported,
            "%s cannot be made from the objects of %s: %s", own_.object.shard.to_string().c_str(),
            among().c_str(), copies.error().message().c_str());
      part.copies.push_back(*std::move(copies));
    }
  }
  std::uint64_t bytes = 0;
  for (const Part& part : recipe->parts)
    for (const Copy& copy : part.copies[0]) bytes += copy.plan.bytes();
  ASHLAR_CHECK(bytes == own_.object.payload_bytes, "a recipe writes %llu bytes of a block of %llu",
               static_cast<unsigned long long>(bytes),
               static_cast<unsigned long long>(own_.object.payload_bytes));
  return std::shared_ptr<const Recipe>(std::move(recipe));
}

Result<std::vector<OtherShards::Copy>> OtherShards::copies_from(
    const Shape& shape, std::span<const transfer::ShardSource> rectangles) const {
  ASHLAR_TRY(const std::shared_ptr<const BlockSet> from, set_of(shape));
  ASHLAR_TRY(const std::shared_ptr<const BlockSet> to, set_of(own_));
  const std::uint32_t first = 0;
  std::vector<Copy> copies;
  for (const transfer::ShardSource& rectangle : rectangles) {
    ASHLAR_TRY(const transfer::TransferPlan plan,
               transfer::plan(from, std::span(&first, 1), to, std::span(&first, 1),
                              {.layers = rectangle.layers, .heads = rectangle.heads}));
    for (std::size_t plane = 0; plane < plan.copies().size(); ++plane)
      copies.push_back({plane, plan.copies()[plane]});
  }
  return copies;
}

Result<VolumeObject> OtherShards::take(const Part& part, const tokens::SequenceHash& hash,
                                       std::span<std::byte> object, std::span<std::byte> block) const {
  const Source& source = sources_[part.source];
  const std::span<std::byte> payload = object.subspan(VolumeObject::kHeaderBytes);
  Result<VolumeObject> found = VolumeObject::decode(object.first(VolumeObject::kHeaderBytes));
  if (!found && found.error().code() == ErrorCode::kUnsupported) return found.error();
  if (!found) return make_error(ErrorCode::kCorruption, "%s", found.error().message().c_str());
  const auto shape = std::ranges::find_if(source.shapes, [&](const Shape& one) {
    const VolumeObject& its = one.object;
    return its.payload_bytes == payload.size() && its.payload_bytes == found->payload_bytes &&
           its.shapes == found->shapes && its.planes == found->planes && its.dtype == found->dtype &&
           its.block_size == found->block_size;
  });
  if (shape == source.shapes.end())
    return make_error(ErrorCode::kInvalidArgument,
                      "the object of block %s of %s has another shape: %u tokens, %u planes, %s, %llu bytes; "
                      "it needs those of this rank: %u tokens, %u planes, %s, with its heads and layers",
                      hash.to_string().c_str(), found->shard.to_string().c_str(), found->block_size,
                      found->planes, std::string(to_string(found->dtype)).c_str(),
                      static_cast<unsigned long long>(found->payload_bytes), own_.object.block_size,
                      own_.object.planes, std::string(to_string(own_.object.dtype)).c_str());
  VolumeObject expected = shape->object;
  expected.hash = hash;
  ASHLAR_RETURN_IF_ERROR(expected.expect(*found));
  ASHLAR_TRY(const std::shared_ptr<const BlockSet> set, set_of(*shape, payload));
  ASHLAR_RETURN_IF_ERROR(transfer::verify_block(*set, 0, {hash, expected.keys}, found->checksum,
                                                events::StorageTier::kExternal));
  ASHLAR_CHECK(block.size() == own_.object.payload_bytes, "a block of %zu bytes for an object of %llu",
               block.size(), static_cast<unsigned long long>(own_.object.payload_bytes));
  for (const Copy& copy : part.copies[static_cast<std::size_t>(shape - source.shapes.begin())]) {
    const std::byte* const from = payload.data() + shape->offsets[copy.plane];
    std::byte* const to = block.data() + own_.offsets[copy.plane];
    transfer::CopyCursor cursor(copy.plan, kStripBytes, 0,
                                transfer::CopyCursor::units(copy.plan, kStripBytes));
    transfer::CopyRow row;
    while (cursor.next_row(&row))
      for (std::uint64_t i = 0; i < row.count; ++i)
        std::memcpy(to + row.to.offset + i * row.to_stride, from + row.from.offset + i * row.from_stride,
                    row.bytes);
  }
  return *std::move(found);
}

}  // namespace ashlar::tiers
