#include "ashlar/layout/shard.h"

namespace ashlar::layout {

Result<Shard> Shard::tensor_rank(std::uint32_t rank, std::uint32_t ranks, std::uint32_t total_heads,
                                 Range layers) {
  if (rank >= ranks) return make_error(ErrorCode::kInvalidArgument, "rank %u of %u", rank, ranks);
  if (total_heads == 0) return make_error(ErrorCode::kInvalidArgument, "a model has at least one KV head");
  if (ranks <= total_heads) {
    if (total_heads % ranks != 0)
      return make_error(ErrorCode::kInvalidArgument, "%u KV heads cannot be shared evenly by %u ranks",
                        total_heads, ranks);
    const std::uint32_t heads = total_heads / ranks;
    return Shard{layers, {rank * heads, heads}};
  }
  if (ranks % total_heads != 0)
    return make_error(ErrorCode::kInvalidArgument, "%u KV heads cannot be replicated evenly on %u ranks",
                      total_heads, ranks);
  return Shard{layers, {rank / (ranks / total_heads), 1}};
}

}  // namespace ashlar::layout
