#include "ashlar/layout/shard.h"

namespace ashlar::layout {

namespace {

std::string range_text(const char* what, const Range& range) {
  if (range.count == 0) return std::string("no ") + what;
  return std::string(what) + " " + std::to_string(range.first) + " to " + std::to_string(range.end() - 1);
}

}  // namespace

Result<void> Shard::validate() const {
  if (rank < ranks) return {};
  return make_error(ErrorCode::kInvalidArgument, "rank %u of %u; ranks are counted from 0", rank, ranks);
}

std::string Shard::to_string() const {
  return "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " (" +
         range_text("layers", layers) + ", " + range_text("heads", heads) + ")";
}

Result<Shard> Shard::tensor_rank(std::uint32_t rank, std::uint32_t ranks, std::uint32_t total_heads,
                                 Range layers) {
  Shard shard{.layers = layers, .rank = rank, .ranks = ranks};
  ASHLAR_RETURN_IF_ERROR(shard.validate());
  if (total_heads == 0) return make_error(ErrorCode::kInvalidArgument, "a model has at least one KV head");
  if (ranks <= total_heads) {
    if (total_heads % ranks != 0)
      return make_error(ErrorCode::kInvalidArgument, "%u KV heads cannot be shared evenly by %u ranks",
                        total_heads, ranks);
    const std::uint32_t heads = total_heads / ranks;
    shard.heads = {rank * heads, heads};
    return shard;
  }
  if (ranks % total_heads != 0)
    return make_error(ErrorCode::kInvalidArgument, "%u KV heads cannot be replicated evenly on %u ranks",
                      total_heads, ranks);
  shard.heads = {rank / (ranks / total_heads), 1};
  return shard;
}

Result<std::vector<Shard>> Shard::tensor_ranks(std::uint32_t ranks, std::uint32_t total_heads, Range layers) {
  if (ranks == 0) return make_error(ErrorCode::kInvalidArgument, "a model is divided by at least one rank");
  std::vector<Shard> out;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    ASHLAR_TRY(const Shard shard, tensor_rank(rank, ranks, total_heads, layers));
    out.push_back(shard);
  }
  return out;
}

}  // namespace ashlar::layout
