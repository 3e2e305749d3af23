// ModelRank.
#include <limits>
#include <string>

#include "ashlar/tiers/kv_options.h"

namespace ashlar::tiers {

Result<void> ModelRank::describe(std::string_view model_name, KvOptions& options) const {
  const layout::LayoutConfig& part = options.model;
  if (ranks == 0) return make_error(ErrorCode::kInvalidArgument, "a model is divided by at least one rank");
  const std::uint64_t product = std::uint64_t{part.num_heads} * ranks;
  const std::uint64_t heads = model_heads == 0 ? product : model_heads;
  if (heads > std::numeric_limits<std::uint32_t>::max())
    return make_error(ErrorCode::kInvalidArgument, "%u KV heads on each of %u ranks are too many",
                      part.num_heads, ranks);
  if (model_layers == 0 && first_layer != 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "first_layer is %u without model_layers: the layers of the whole model", first_layer);
  const std::uint32_t layers = model_layers == 0 ? part.num_layers : model_layers;
  if (std::uint64_t{first_layer} + part.num_layers > layers)
    return make_error(ErrorCode::kInvalidArgument,
                      "%u layers from layer %u on are beyond model_layers, which is %u", part.num_layers,
                      first_layer, layers);
  const auto whole = static_cast<std::uint32_t>(heads);
  ASHLAR_TRY(const layout::Shard mine,
             layout::Shard::tensor_rank(rank, ranks, whole, {first_layer, part.num_layers}));
  if (mine.heads.count != part.num_heads)
    return make_error(ErrorCode::kInvalidArgument,
                      "each of %u ranks of a model with %u KV heads holds %u of them, and this one has %u",
                      ranks, whole, mine.heads.count, part.num_heads);
  std::vector<layout::Shard> others;
  for (const std::uint32_t degree : other_ranks) {
    ASHLAR_TRY(const auto shards, layout::Shard::tensor_ranks(degree, whole, {0, layers}));
    for (const layout::Shard& shard : shards)
      if (shard != mine) others.push_back(shard);
  }
  if (!other_ranks.empty() && !options.g4)
    return make_error(ErrorCode::kInvalidArgument,
                      "other_ranks without G4: their blocks are found on volumes");
  options.shard = mine;
  if (options.g4) options.g4->other_shards = std::move(others);
  const std::string shape = std::to_string(layers) + "x" + std::to_string(part.outer_dim) + "x" +
                            std::to_string(whole) + "x" + std::to_string(part.head_dim);
  options.keys = tokens::NamespaceFingerprint({.model = model_name,
                                               .dtype = layout::to_string(part.dtype),
                                               .layout = shape,
                                               .block_size = options.block_size});
  return {};
}

}  // namespace ashlar::tiers
