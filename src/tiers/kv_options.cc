#include "ashlar/tiers/kv_options.h"

#include <set>
#include <string_view>

namespace ashlar::tiers {

namespace {

// `tier` is its field, `number` that of its name.
Result<void> check_pool(const char* tier, int number, const EvictionChoice& eviction,
                        const PoolOptions& pool) {
  if (const std::string* name = std::get_if<std::string>(&eviction)) {
    if (const auto found = block::eviction_by_name(*name); !found)
      return make_error(ErrorCode::kInvalidArgument, "%s.eviction: %s", tier,
                        found.error().message().c_str());
  } else if (!std::get<block::EvictionFactory>(eviction)) {
    return make_error(ErrorCode::kInvalidArgument, "%s.eviction is an empty factory", tier);
  }
  if (number > 2 && pool.duplicates != block::DuplicatePolicy::kReject)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s.pool.duplicates is kAllow; a hash has one block in G%d, leave it kReject", tier,
                      number);
  if (number > 1 && pool.keep_tokens)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s.pool.keep_tokens is set; blocks arrive in G%d without tokens, set it in g1.pool",
                      tier, number);
  if (number > 1 && pool.default_reset_on_release)
    return make_error(
        ErrorCode::kInvalidArgument,
        "%s.pool.default_reset_on_release is set; G%d would keep no block, leave %s out instead", tier,
        number, tier);
  if (pool.on_pressure && pool.watermarks.low == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s.pool.on_pressure would never be called; set %s.pool.watermarks", tier, tier);
  return {};
}

}  // namespace

Result<void> KvOptions::validate() const {
  const auto bad = [](const char* what) { return make_error(ErrorCode::kInvalidArgument, "%s", what); };
  if (g1.block_count == 0 && g1.blocks == nullptr)
    return bad("g1.block_count is 0; blocks are computed in G1");
  if (g2 && g2->block_count == 0 && g2->blocks == nullptr)
    return bad("g2.block_count is 0; leave g2 out to have none");
  for (const TierShape* shape : {&g1, g2 ? &*g2 : nullptr}) {
    if (shape == nullptr) continue;
    const int sources = (shape->allocator != nullptr) + !shape->memory.empty() + (shape->blocks != nullptr);
    if (sources > 1)
      return make_error(ErrorCode::kInvalidArgument,
                        "%s has its memory from %d of allocator, memory and blocks; give one of them",
                        shape == &g1 ? "g1" : "g2", sources);
  }
  ASHLAR_RETURN_IF_ERROR(check_pool("g1", 1, g1.eviction, g1.pool));
  if (g2) ASHLAR_RETURN_IF_ERROR(check_pool("g2", 2, g2->eviction, g2->pool));
  if (g3) ASHLAR_RETURN_IF_ERROR(check_pool("g3", 3, g3->eviction, g3->pool));
  if (g4) ASHLAR_RETURN_IF_ERROR(check_pool("g4", 4, g4->eviction, g4->pool));
  if (g3 && (g3->block_count == 0 || g3->paths.empty()))
    return make_error(
        ErrorCode::kInvalidArgument,
        "g3 needs blocks and a path; it has block_count %u and %zu paths; leave it out to have none",
        g3->block_count, g3->paths.size());
  if (g3 && g3->block_count < g3->paths.size())
    return make_error(ErrorCode::kInvalidArgument, "g3 has more files than blocks: %zu paths, block_count %u",
                      g3->paths.size(), g3->block_count);
  if (g3) {
    std::set<std::string_view> seen;
    for (const std::string& path : g3->paths)
      if (!seen.insert(path).second)
        return make_error(ErrorCode::kInvalidArgument, "g3.paths names %s twice", path.c_str());
  }
  if (g3 && !g3->faults.empty() && g3->faults.size() != g3->paths.size())
    return make_error(ErrorCode::kInvalidArgument,
                      "g3.faults is empty or has one for each file; it has %zu for %zu paths",
                      g3->faults.size(), g3->paths.size());
  if (g4 && g4->block_count == 0)
    return bad("g4.block_count is 0; it is the number of volume blocks to track");
  if ((g3 || g4) && !g2)
    return make_error(ErrorCode::kInvalidArgument,
                      "g3 and g4 need g2: onboarded blocks are checked in host memory; %s is set",
                      g3 ? "g3" : "g4");
  if (remote) {
    ASHLAR_RETURN_IF_ERROR(remote->validate());
    if (!g2) return bad("remote needs g2: blocks of peers arrive there, and theirs are read from there");
    if (keys == tokens::NamespaceFingerprint())
      return bad("keys is not set; remote needs it to tell the blocks of other models from these");
  }
  if ((g3 || g4) && keys == tokens::NamespaceFingerprint())
    return bad("keys is not set; g3 and g4 need it to tell the blocks of other models from these");
  if (model.block_size != block_size)
    return make_error(ErrorCode::kInvalidArgument,
                      "model.block_size and block_size are both the tokens of a block, and differ: %u and %u",
                      model.block_size, block_size);
  for (std::size_t i = 0; i < scales.size(); ++i)
    if (scales[i].block_size != block_size || scales[i].num_layers != model.num_layers)
      return make_error(
          ErrorCode::kInvalidArgument,
          "scales have the tokens and layers of model; scales[%zu] has %u and %u, model %u and %u", i,
          scales[i].block_size, scales[i].num_layers, block_size, model.num_layers);
  ASHLAR_RETURN_IF_ERROR(shard.validate());
  if (shard != layout::Shard{} &&
      (shard.layers.count != model.num_layers || shard.heads.count != model.num_heads))
    return make_error(ErrorCode::kInvalidArgument,
                      "shard is %s, and model has %u layers and %u heads; both say what this rank holds",
                      shard.to_string().c_str(), model.num_layers, model.num_heads);
  for (const layout::Shard& other : g4 ? g4->other_shards : std::vector<layout::Shard>()) {
    ASHLAR_RETURN_IF_ERROR(other.validate());
    if (other.layers.count == 0 || other.heads.count == 0)
      return make_error(ErrorCode::kInvalidArgument,
                        "g4.other_shards has %s; name the layers and heads that this rank holds",
                        other.to_string().c_str());
  }
  for (const OffloadRoute* route : {&to_g2, &to_g3, &to_g4}) {
    ASHLAR_RETURN_IF_ERROR(route->worker.validate());
    if (route->trigger == Trigger::kNearEviction && route->look_ahead == 0)
      return make_error(ErrorCode::kInvalidArgument,
                        "%s.look_ahead is 0: no block would ever be near eviction",
                        route == &to_g2   ? "to_g2"
                        : route == &to_g3 ? "to_g3"
                                          : "to_g4");
  }
  return {};
}

}  // namespace ashlar::tiers
