#include "replay/plan/capacity_curve.h"

#include <algorithm>
#include <cmath>

#include "ashlar/base/check.h"
#include "replay/plan/stack_distance.h"

namespace ashlar::replay {
namespace {

// Spreads names that may count up from 0 (splitmix64).
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

constexpr std::uint64_t kHashRange = std::uint64_t{1} << 24;
constexpr std::uint64_t kLeastSample = 100;  // blocks
constexpr double kLeastError = 0.005;
constexpr double kStandardErrors = 3;

}  // namespace

CapacityCurve::Hits CapacityCurve::sorted(std::vector<std::uint64_t> distances, double rate, double total) {
  Hits hits;
  hits.scale = 1 / rate;
  hits.total = total;
  std::ranges::sort(distances);
  for (std::size_t i = 0; i < distances.size(); ++i) {
    if (distances[i] == StackDistances::kCold) break;
    if (i + 1 < distances.size() && distances[i + 1] == distances[i]) continue;
    hits.distances.push_back(distances[i]);
    hits.up_to.push_back(i + 1);
  }
  return hits;
}

double CapacityCurve::share(const Hits& hits, double blocks) {
  if (hits.total <= 0 || blocks < 1) return 0;
  const auto size = static_cast<std::uint64_t>(std::min(blocks / hits.scale, 1e18));
  const auto beyond = std::ranges::upper_bound(hits.distances, size);
  const auto at = static_cast<std::size_t>(beyond - hits.distances.begin());
  const double found = at == 0 ? 0 : static_cast<double>(hits.up_to[at - 1]);
  ASHLAR_DCHECK(hits.scale >= 1, "a sample of more than everything: %f", hits.scale);
  return std::clamp((found + hits.bonus) / hits.total, 0.0, 1.0);
}

Result<CapacityCurve> CapacityCurve::build(TraceSource& source, const Options& options,
                                           const TraceTable::Progress& progress) {
  if (!(options.rate > 0) || options.rate > 1)
    return make_error(ErrorCode::kInvalidArgument, "a sample of %g of the blocks; give a rate from 0 to 1",
                      options.rate);
  ASHLAR_TRY(const TraceTable trace, TraceTable::load(source, progress));
  CapacityCurve curve;
  curve.rate_ = options.rate;
  const auto threshold = std::max<std::uint64_t>(
      static_cast<std::uint64_t>(std::llround(options.rate * static_cast<double>(kHashRange))), kParts);
  const bool is_exact = options.rate >= 1;
  if (!is_exact) curve.rate_ = static_cast<double>(threshold) / static_cast<double>(kHashRange);
  StackDistances stack;
  std::array<StackDistances, kParts> part_stacks;
  std::vector<std::uint64_t> block_distances;
  std::vector<std::uint64_t> prefix_distances;
  std::array<std::vector<std::uint64_t>, kParts> part_distances;
  std::array<std::uint64_t, kParts> part_accesses{};
  struct Followed {
    std::uint32_t block = 0;
    std::uint32_t part = 0;
  };
  std::vector<Followed> followed;  // of one prompt
  constexpr std::uint64_t kStep = 64;
  for (const TraceTable::Request& request : trace.requests()) {
    if (progress && curve.requests_ % kStep == 0 && !progress(curve.requests_))
      return Error(ErrorCode::kCancelled, "stopped before the end of the trace");
    ++curve.requests_;
    followed.clear();
    std::uint64_t longest = 0;  // of the prompt so far: a prefix hits where its last block to come back does
    for (const std::uint32_t block : trace.blocks_of(request)) {
      const std::uint64_t hash = is_exact ? 0 : mixed(block) % kHashRange;
      if (!is_exact && hash >= threshold) continue;
      followed.push_back({.block = block, .part = static_cast<std::uint32_t>(hash % kParts)});
      const std::uint64_t distance = stack.distance_of(block);
      longest = std::max(longest, distance);
      block_distances.push_back(distance);
      prefix_distances.push_back(longest);
      if (is_exact) continue;
      const std::size_t part = followed.back().part;
      part_distances[part].push_back(part_stacks[part].distance_of(block));
      ++part_accesses[part];
    }
    for (std::size_t i = followed.size(); i-- > 0;) {
      stack.access(followed[i].block);
      if (!is_exact) part_stacks[followed[i].part].access(followed[i].block);
    }
  }
  curve.input_tokens_ = trace.input_tokens();
  curve.accesses_ = trace.named();
  curve.block_size_ = trace.facts().block_size;
  curve.span_ms_ = trace.span_ms();
  if (curve.accesses_ == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "the trace names no blocks, so nothing is known of reuse; take one with hash_ids");
  // Fewer say nothing, and their parts cannot say how wrong it is.
  if (!is_exact && stack.distinct() < kLeastSample)
    return make_error(ErrorCode::kInvalidArgument, "the sample has %llu blocks; give a larger --sample",
                      static_cast<unsigned long long>(stack.distinct()));
  curve.distinct_ = static_cast<double>(stack.distinct()) / curve.rate_;
  const double sampled = static_cast<double>(block_distances.size());
  // The sample may have more or fewer accesses than its rate: the difference is given to the shortest
  // distances, which is where popular blocks make it (SHARDS-adj).
  const double expected = is_exact ? sampled : static_cast<double>(curve.accesses_) * curve.rate_;
  ASHLAR_DCHECK(!is_exact || block_distances.size() == curve.accesses_, "an exact curve leaves nothing out");
  curve.block_ = sorted(std::move(block_distances), curve.rate_, expected);
  curve.block_.bonus = expected - sampled;
  curve.prefix_ = sorted(std::move(prefix_distances), curve.rate_, expected);
  curve.prefix_.bonus = expected - sampled;
  for (std::size_t part = 0; part < kParts; ++part) {
    const double part_expected = expected / kParts;
    curve.parts_[part] = sorted(std::move(part_distances[part]), curve.rate_ / kParts, part_expected);
    curve.parts_[part].bonus = part_expected - static_cast<double>(part_accesses[part]);
  }
  return curve;
}

double CapacityCurve::error(double blocks) const {
  if (is_exact()) return 0;
  double sum = 0;
  double squares = 0;
  for (const Hits& part : parts_) {
    const double hits = share(part, blocks);
    sum += hits;
    squares += hits * hits;
  }
  const double mean = sum / kParts;
  const double variance = std::max(0.0, squares / kParts - mean * mean) * kParts / (kParts - 1);
  return std::max(kLeastError, kStandardErrors * std::sqrt(variance / kParts));
}

double CapacityCurve::blocks_for(double share_of_most) const {
  const double most = prefix_hits(1e18);
  if (most <= 0) return 0;
  for (const std::uint64_t distance : prefix_.distances)
    if (const double blocks = std::ceil(static_cast<double>(distance) * prefix_.scale);
        prefix_hits(blocks) >= share_of_most * most)
      return blocks;
  return std::ceil(distinct_);
}

}  // namespace ashlar::replay
