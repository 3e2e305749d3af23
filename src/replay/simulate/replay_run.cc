#include "replay/simulate/replay_run.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "ashlar/base/check.h"
#include "replay/simulate/offline_bound.h"
#include "replay/simulate/pool_cache.h"

namespace ashlar::replay {
namespace {

// Tokens of the first `count` blocks; the last of a prompt may be part-filled.
std::uint64_t tokens_in(const TraceTable::Request& request, std::uint64_t count) {
  return std::min(count * request.block_size, request.input_tokens);
}

void add(ReplayCounts& to, const ReplayCounts& one) {
  to.requests += one.requests;
  to.blocks += one.blocks;
  to.input_tokens += one.input_tokens;
  to.hit_tokens += one.hit_tokens;
  for (std::size_t i = 0; i < kReplayTiers; ++i) {
    to.hits[i] += one.hits[i];
    to.evictions[i] += one.evictions[i];
    to.written[i] += one.written[i];
  }
  for (std::size_t i = 0; i < kMissReasons; ++i) to.misses[i] += one.misses[i];
  to.latency_ms += one.latency_ms;
}

double quantile(std::vector<float>& values, double share) {
  if (values.empty()) return 0;
  const auto at =
      std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())));
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(at));
  return static_cast<double>(values[at]);
}

}  // namespace

ReplayRun::ReplayRun(const TraceTable& trace, const ReplayConfig& config, service::RouteLog* log)
    : trace_(trace),
      config_(config),
      presence_(config.workers, trace.distinct()),
      router_(trace, config, log),
      free_at_ms_(config.workers),
      served_by_(config.workers) {
  outcome_.config = config;
  outcome_.workers.resize(config.workers);
  outcome_.windows.resize(config.windows);
  outcome_.window_ms = static_cast<double>(trace.span_ms() + 1) / config.windows;
  outcome_.block_bytes = std::uint64_t{trace.facts().block_size} * config.bytes_per_token;
}

Result<ReplayOutcome> ReplayRun::run(const ReplayProgress& progress, const ServedHearer& each) {
  ASHLAR_CHECK(caches_.size() == config_.workers, "%zu caches of %u workers", caches_.size(),
               config_.workers);
  constexpr std::uint32_t kRequestsPerCall = 64;
  const auto began = std::chrono::steady_clock::now();
  const auto all = static_cast<std::uint32_t>(trace_.requests().size());
  latencies_.reserve(all);
  for (std::uint32_t number = 0; number < all; ++number) {
    ASHLAR_RETURN_IF_ERROR(serve(number, each));
    if (progress && number % kRequestsPerCall == kRequestsPerCall - 1 && !progress(number + 1, all))
      return Error(ErrorCode::kCancelled, "stopped before the end of the trace");
  }
  outcome_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  finish();
  return std::move(outcome_);
}

ReplayCounts& ReplayRun::window_of(const TraceTable::Request& request) {
  const auto window = static_cast<std::size_t>(static_cast<double>(request.arrival_ms) / outcome_.window_ms);
  return outcome_.windows[std::min(window, outcome_.windows.size() - 1)];
}

Result<void> ReplayRun::serve(std::uint32_t number, const ServedHearer& each) {
  const TraceTable::Request& request = trace_.requests()[number];
  const std::span<const std::uint32_t> blocks = trace_.blocks_of(request);
  const std::uint32_t worker = router_.choose(request);
  served_by_[worker].push_back(number);
  reasons_.clear();
  for (const std::uint32_t block : blocks) reasons_.push_back(presence_.reason(worker, block));
  ASHLAR_RETURN_IF_ERROR(caches_[worker]->serve(blocks, change_));
  ReplayCounts& counts = window_of(request);
  const std::uint64_t hit_tokens = count(request, counts);
  estimate(request, worker, hit_tokens, counts);
  if (each) each(worker, change_);
  return {};
}

std::uint64_t ReplayRun::count(const TraceTable::Request& request, ReplayCounts& into) {
  ++into.requests;
  into.blocks += request.count;
  into.input_tokens += request.input_tokens;
  outcome_.refused += change_.is_cut;
  std::uint64_t found = 0;
  std::uint64_t tokens = 0;
  // Runs of tiers may alternate; tokens differ in the last block only, so their order does not matter.
  for (std::size_t tier = 0; tier < kReplayTiers; ++tier) {
    into.hits[tier] += change_.hits[tier];
    found += change_.hits[tier];
    const std::uint64_t upto = tokens_in(request, found);
    outcome_.hit_tokens[tier] += upto - tokens;
    tokens = upto;
  }
  into.hit_tokens += tokens;
  ASHLAR_CHECK(found <= reasons_.size(), "more blocks were found than asked for");
  for (std::size_t i = found; i < reasons_.size(); ++i) ++into.misses[static_cast<std::size_t>(reasons_[i])];
  for (const BlockMove& move : change_.moves) ++(move.is_stored ? into.written : into.evictions)[move.tier];
  return tokens;
}

void ReplayRun::estimate(const TraceTable::Request& request, std::uint32_t worker, std::uint64_t hit_tokens,
                         ReplayCounts& window) {
  double load_s = 0;
  const double block_bytes =
      static_cast<double>(request.block_size) * static_cast<double>(config_.bytes_per_token);
  for (std::size_t tier = 1; tier < kReplayTiers; ++tier)
    if (config_.tier_bytes_per_second[tier] > 0)
      load_s += change_.hits[tier] * block_bytes / config_.tier_bytes_per_second[tier];
  const double prefill_s =
      static_cast<double>(request.input_tokens - hit_tokens) / config_.prefill_tokens_per_second;
  const double busy_ms = 1'000 * (load_s + prefill_s);
  const auto arrival = static_cast<double>(request.arrival_ms);
  const double first_token = std::max(arrival, free_at_ms_[worker]) + busy_ms;
  free_at_ms_[worker] = first_token;
  latencies_.push_back(static_cast<float>(first_token - arrival));
  window.latency_ms += first_token - arrival;
  WorkerTotals& totals = outcome_.workers[worker];
  ++totals.requests;
  totals.input_tokens += request.input_tokens;
  totals.hit_tokens += hit_tokens;
  totals.busy_ms += busy_ms;
  router_.served(request, change_, first_token,
                 first_token + static_cast<double>(request.output_tokens) * config_.decode_ms_per_token);
}

void ReplayRun::finish() {
  for (const ReplayCounts& window : outcome_.windows) add(outcome_.total, window);
  const ReplayCounts& total = outcome_.total;
  ASHLAR_CHECK(
      total.hit_blocks() + std::accumulate(total.misses.begin(), total.misses.end(), std::uint64_t{0}) ==
          total.blocks,
      "every block is a hit or has a reason");
  if (!latencies_.empty()) {
    outcome_.latency.mean = total.latency_ms / static_cast<double>(latencies_.size());
    outcome_.latency.p50 = quantile(latencies_, 0.5);
    outcome_.latency.p90 = quantile(latencies_, 0.9);
    outcome_.latency.p99 = quantile(latencies_, 0.99);
  }
  if (!config_.has_bound) return;
  std::uint64_t capacity = 0;
  for (const std::uint32_t blocks : config_.tier_blocks) capacity += blocks;
  for (const std::vector<std::uint32_t>& requests : served_by_)
    outcome_.bound_hits +=
        offline_hits(trace_, requests, capacity, [this](std::uint32_t number, std::uint64_t hits) {
          window_of(trace_.requests()[number]).bound_hits += hits;
        });
  outcome_.total.bound_hits = outcome_.bound_hits;
}

Result<ReplayOutcome> simulate(const TraceTable& trace, const ReplayConfig& config,
                               const ReplayProgress& progress, service::RouteLog* log) {
  ASHLAR_RETURN_IF_ERROR(config.validate());
  ReplayRun run(trace, config, log);
  for (std::uint32_t worker = 0; worker < config.workers; ++worker) {
    ASHLAR_TRY(auto cache, make_pool_cache(trace, config, run.presence(), worker));
    run.add_cache(std::move(cache));
  }
  return run.run(progress);
}

}  // namespace ashlar::replay
