#include "inspect/canonical_block.h"

#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/storage/external_storage.h"
#include "base/checked_math.h"
#include "base/wide.h"

namespace ashlar::inspect {

Result<CanonicalBlock> CanonicalBlock::create(std::span<const PlanePart> planes) {
  ASHLAR_CHECK(!planes.empty(), "a block has a plane");
  std::vector<layout::Layout> layouts;
  std::uint64_t total = 0;
  for (const PlanePart& plane : planes) {
    layout::LayoutConfig config = plane.config;
    config.block_count = 1;
    config.alignment = 1;
    config.layer_alignment = 1;
    ASHLAR_TRY(const layout::Layout layout,
               layout::Layout::create(config, layout::order::kFullyContiguousNhd));
    total += layout.region_bytes();
    if (total > kMostBytes)
      return make_error(ErrorCode::kUnsupported, "blocks of more than %llu bytes are not verified",
                        wide(kMostBytes));
    layouts.push_back(layout);
  }
  CanonicalBlock block;
  block.bytes_ = std::make_shared<std::vector<std::byte>>(total);
  ASHLAR_TRY(const std::shared_ptr<storage::ExternalStorage> memory,
             storage::ExternalStorage::create(
                 {.address = block.bytes_->data(), .bytes = total, .owner = block.bytes_}));
  std::vector<transfer::Plane> parts;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < planes.size(); ++i) {
    parts.push_back({layouts[i], planes[i].shard, {{memory, at}}});
    at += layouts[i].region_bytes();
  }
  ASHLAR_DCHECK(at == total, "the planes take %llu bytes of %llu", wide(at), wide(total));
  ASHLAR_TRY(block.set_, transfer::BlockSet::create(std::move(parts)));
  return block;
}

}  // namespace ashlar::inspect
