// simulate(): a trace through workers with tiers of blocks, an eviction policy and a router, without bytes.
//
// Workers are made of the library's own block managers (one per tier, one registry per worker) and of the
// service's own router; nothing of either is imitated. A request
//
//   1. is routed by what the workers hold and do then,
//   2. finds its longest prefix over all tiers; blocks of G2 come up to G1, those of G3 through G2,
//   3. gets room for the rest, all at once and before any of it is stored, as a manager must make it,
//   4. stores it in G1, from where it is copied to G2 and from there to G3 (write-through), a batch of at
//      most a sixteenth of both tiers at a time,
//   5. releases its blocks from the last to the first.
//
// Steps 2 to 5 happen at the time of arrival and as one: blocks of other requests are never in use, whatever
// their answers take. A block that is cached behind a gap is kept, not stored twice. Of a request longer than
// G1 the head is kept.
//
// The bound is what a cache that knows all requests to come would find at the same workers with as many
// blocks as the tiers have together: the block needed last goes first, of those needed at the same time, or
// never again, the one furthest from the start. So what it keeps is always made of whole prefixes.
//
// Latency is an estimate: one prompt at a time at each worker, at `prefill_tokens_per_second`; blocks of
// lower tiers come up at the bandwidth of their tier; a token of an answer takes `decode_ms_per_token`.
//
// Thread safety: functions.
// Complexity:    O(blocks) and a policy's own cost; O(blocks log blocks) for the bound.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/replay/trace_table.h"
#include "ashlar/service/miss_reason.h"

namespace ashlar::service {
class RouteLog;
}  // namespace ashlar::service

namespace ashlar::replay {

enum class Routing : std::uint8_t { kRoundRobin, kRandom, kPrefix, kLeastLoaded, kSticky };
// "round_robin", "random", "prefix", "least_loaded", "sticky".
std::string_view to_string(Routing routing) noexcept;
// Errors: kInvalidArgument, with the names.
Result<Routing> parse_routing(std::string_view name);

inline constexpr std::size_t kReplayTiers = 3;  // G1, G2, G3

struct ReplayConfig {
  std::uint32_t workers = 1;
  std::array<std::uint32_t, kReplayTiers> tier_blocks = {10'000, 0, 0};  // of each worker; 0: no such tier
  std::string policy = "lru";                                            // a name of block::eviction_names()
  std::array<std::string, kReplayTiers> tier_policy = {};                // empty: `policy`
  Routing routing = Routing::kPrefix;
  std::uint64_t seed = 1;  // of random routing
  bool has_bound = true;

  // For bytes and times.
  std::uint64_t bytes_per_token = 131'072;  // an 8-billion model with 8 KV heads of 128 in bf16, 32 layers
  double prefill_tokens_per_second = 20'000;
  double decode_ms_per_token = 25;
  std::array<double, kReplayTiers> tier_bytes_per_second = {0, 40e9, 5e9};  // upwards; 0: at once

  std::uint32_t windows = 48;  // into which the time of the trace is divided

  // Errors: kInvalidArgument, with the field; kNotFound: a policy.
  Result<void> validate() const;
};

using service::kMissReasons;
using service::MissReason;

// What happened in a part of the time, in blocks.
struct ReplayCounts {
  std::uint64_t requests = 0;
  std::uint64_t blocks = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t hit_tokens = 0;
  std::array<std::uint64_t, kReplayTiers> hits = {};       // by the fastest tier that had them
  std::array<std::uint64_t, kMissReasons> misses = {};     // by reason
  std::array<std::uint64_t, kReplayTiers> evictions = {};  // from each tier
  std::array<std::uint64_t, kReplayTiers> written = {};    // into each tier
  std::uint64_t bound_hits = 0;                            // of the bound; 0 without one
  double latency_ms = 0;                                   // estimates of time to first token, summed up

  std::uint64_t hit_blocks() const noexcept { return hits[0] + hits[1] + hits[2]; }
  double hit_rate() const noexcept {
    return blocks == 0 ? 0 : static_cast<double>(hit_blocks()) / static_cast<double>(blocks);
  }
};

struct WorkerTotals {
  std::uint64_t requests = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t hit_tokens = 0;
  double busy_ms = 0;  // computing prompts and bringing blocks up, estimated
};

// Estimated time to first token, ms.
struct LatencyEstimate {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};

struct ReplayOutcome {
  ReplayConfig config;
  bool is_real = false;  // with bytes
  ReplayCounts total;
  std::array<std::uint64_t, kReplayTiers> hit_tokens = {};
  std::vector<ReplayCounts> windows;  // of equal length, window_ms each
  double window_ms = 0;
  std::vector<WorkerTotals> workers;
  LatencyEstimate latency;
  std::uint64_t bound_hits = 0;   // blocks; 0 without a bound
  std::uint64_t refused = 0;      // requests longer than G1, of which the head was kept
  std::uint64_t verified = 0;     // blocks whose bytes were compared; real
  std::uint64_t block_bytes = 0;  // as bytes are counted
  double seconds = 0;             // that the run took, the bound left out

  double bound_rate() const noexcept {
    return total.blocks == 0 ? 0 : static_cast<double>(bound_hits) / static_cast<double>(total.blocks);
  }
  // Share of the trace's time that the busiest worker computes, by the estimate. Above 1 its prompts wait
  // ever longer.
  double busiest() const noexcept {
    double most = 0;
    for (const WorkerTotals& one : workers) most = most < one.busy_ms ? one.busy_ms : most;
    const double span = window_ms * static_cast<double>(windows.size());
    return span > 0 ? most / span : 0;
  }
  // Bytes written to G3 for each byte that was found there; 0 where nothing was.
  double written_per_hit() const noexcept {
    return total.hits[2] == 0 ? 0
                              : static_cast<double>(total.written[2]) / static_cast<double>(total.hits[2]);
  }
};

// Hears how many requests are done; false stops the run.
using ReplayProgress = std::function<bool(std::uint64_t done, std::uint64_t all)>;

// `log` hears what the router of the run hears and decides, at the times of the trace: a JournalWriter (with
// the run's seed in its router options) makes it a journal that can be looked at. It does not change the run.
// Errors: those of the config; kCapacity: no memory for the pools; kCancelled.
Result<ReplayOutcome> simulate(const TraceTable& trace, const ReplayConfig& config,
                               const ReplayProgress& progress = {}, service::RouteLog* log = nullptr);

}  // namespace ashlar::replay
