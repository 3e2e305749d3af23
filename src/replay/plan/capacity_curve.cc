#include "replay/plan/capacity_curve.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "ashlar/base/check.h"
#include "replay/plan/stack_distance.h"
#include "replay/trace/trace_forms.h"

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
constexpr std::uint64_t kStep = 64;  // requests between calls of progress

// Which blocks are followed.
class BlockFilter {
 public:
  explicit BlockFilter(double rate)
      : threshold_(rate >= 1
                       ? kHashRange
                       : std::max<std::uint64_t>(
                             static_cast<std::uint64_t>(std::llround(rate * static_cast<double>(kHashRange))),
                             kLeastThreshold)) {}
  static std::uint64_t hash(std::uint64_t name) { return mixed(name) % kHashRange; }
  bool takes(std::uint64_t name) const { return takes_all() || hash(name) < threshold_; }
  bool takes_all() const { return threshold_ == kHashRange; }
  double rate() const { return static_cast<double>(threshold_) / static_cast<double>(kHashRange); }

 private:
  static constexpr std::uint64_t kLeastThreshold = 8;
  const std::uint64_t threshold_;
};

// The followed blocks of a trace, request by request, in the order of arrival.
class FollowedBlocks {
 public:
  struct Request {
    std::uint64_t arrival_ms = 0;
    std::uint64_t first = 0;
    std::uint32_t count = 0;
  };

  static Result<FollowedBlocks> load(TraceSource& source, const BlockFilter& filter,
                                     const TraceTable::Progress& progress) {
    FollowedBlocks out;
    TraceRequest request;
    for (;;) {
      ASHLAR_TRY(const bool more, source.next(request));
      if (!more) break;
      const std::uint64_t first = out.names_.size();
      for (std::size_t i = 0; i < request.blocks.size(); ++i) {
        if (!filter.takes(request.blocks[i])) continue;
        out.names_.push_back(request.blocks[i]);
        if (!filter.takes_all()) out.place(request.blocks, i);
      }
      out.requests_.push_back({.arrival_ms = request.arrival_ms,
                               .first = first,
                               .count = static_cast<std::uint32_t>(out.names_.size() - first)});
      out.named_ += request.blocks.size();
      out.input_tokens_ += request.input_tokens;
      if (progress && out.requests_.size() % kStep == 0 && !progress(out.requests_.size()))
        return Error(ErrorCode::kCancelled, "stopped while the trace was read");
    }
    if (out.requests_.empty()) return no_requests(source.facts());
    // Of equal times the earlier line comes first.
    std::ranges::sort(out.requests_, {},
                      [](const Request& one) { return std::tuple(one.arrival_ms, one.first); });
    return out;
  }

  std::span<const Request> requests() const { return requests_; }
  std::span<const std::uint64_t> blocks_of(const Request& request) const {
    return std::span(names_).subspan(request.first, request.count);
  }
  std::uint64_t named() const { return named_; }
  std::uint64_t input_tokens() const { return input_tokens_; }
  std::uint64_t span_ms() const { return requests_.back().arrival_ms - requests_.front().arrival_ms; }
  // A sampled block stood elsewhere before: its name does not stand for everything before it.
  bool has_misplaced() const { return has_misplaced_; }

 private:
  void place(const std::vector<std::uint64_t>& blocks, std::size_t i) {
    const std::pair<std::uint64_t, std::uint64_t> here(i, i == 0 ? 0 : blocks[i - 1]);
    const auto [known, is_new] = places_.try_emplace(blocks[i], here);
    has_misplaced_ |= known->second != here;
  }

  std::vector<Request> requests_;
  std::vector<std::uint64_t> names_;
  std::unordered_map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> places_;  // and the block before
  std::uint64_t named_ = 0;
  std::uint64_t input_tokens_ = 0;
  bool has_misplaced_ = false;
};

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
  const BlockFilter filter(options.rate);
  const bool is_exact = filter.takes_all();
  ASHLAR_TRY(const FollowedBlocks trace, FollowedBlocks::load(source, filter, progress));
  CapacityCurve curve;
  curve.rate_ = filter.rate();
  curve.has_prefix_error_ = is_exact || !trace.has_misplaced();
  StackDistances stack;
  std::array<StackDistances, kParts> part_stacks;
  std::vector<std::uint64_t> block_distances;
  std::vector<std::uint64_t> prefix_distances;
  std::array<std::vector<std::uint64_t>, kParts> part_distances;
  std::array<std::uint64_t, kParts> part_accesses{};
  const auto part_of = [](std::uint64_t name) {
    return static_cast<std::size_t>(BlockFilter::hash(name) % kParts);
  };
  for (const FollowedBlocks::Request& request : trace.requests()) {
    if (progress && curve.requests_ % kStep == 0 && !progress(curve.requests_))
      return Error(ErrorCode::kCancelled, "stopped before the end of the trace");
    ++curve.requests_;
    const std::span<const std::uint64_t> blocks = trace.blocks_of(request);
    std::uint64_t longest = 0;  // of the prompt so far: a prefix hits where its last block to come back does
    for (const std::uint64_t block : blocks) {
      const std::uint64_t distance = stack.distance_of(block);
      longest = std::max(longest, distance);
      block_distances.push_back(distance);
      prefix_distances.push_back(longest);
      if (is_exact) continue;
      const std::size_t part = part_of(block);
      part_distances[part].push_back(part_stacks[part].distance_of(block));
      ++part_accesses[part];
    }
    for (std::size_t i = blocks.size(); i-- > 0;) {
      stack.access(blocks[i]);
      if (!is_exact) part_stacks[part_of(blocks[i])].access(blocks[i]);
    }
  }
  curve.input_tokens_ = trace.input_tokens();
  curve.accesses_ = trace.named();
  curve.block_size_ = source.facts().block_size;
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
