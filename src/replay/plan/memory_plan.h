// MemoryPlan: what a model's cache takes, what each tier of a machine would hold of it, and what it would
// gain on a trace.
//
// Tiers do not add up: the managers copy blocks downwards, so that a tier has what those above it have, and
// the hits of G1 to Gn are those of one LRU cache as large as the largest of them. A tier's own gain is the
// difference to those above it. A block is written to G3 on its way in, when no tier has it, as managers with
// write-through do, their default.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "replay/plan/capacity_curve.h"
#include "replay/plan/model_shape.h"

namespace ashlar::replay {

struct MachineShape {
  std::uint32_t tp = 1;                   // GPUs that share the model
  double gpu_gib = 0;                     // of one GPU
  double utilization = 0.9;               // of it that the engine takes
  std::optional<double> weights_gb = {};  // of the model; default: as its shape says
  double host_gib = 0;                    // for blocks, of all ranks together
  double ssd_gib = 0;
  double ssd_tbw = 0;   // 1e12 bytes that it may be written in its life; 0: not said
  double ssd_dwpd = 0;  // times its size per day that it may be written; 0: not said
  // Of money, any: per GiB and month, per GPU and hour; 0: free.
  std::optional<double> host_price = {};
  std::optional<double> ssd_price = {};
  std::optional<double> gpu_price = {};
  double prefill_rate = 0;  // tokens that the GPUs compute per second together; 0: not said

  // Errors: kInvalidArgument, with the value.
  Result<void> validate() const;
};

struct TierPlan {
  std::string_view name;
  double bytes = 0;
  std::uint64_t tokens = 0;
  std::uint64_t blocks = 0;
  // With a trace: shares of the blocks that requests name, for this tier and those above it.
  double block_hits = 0;
  double prefix_hits = 0;
  double gain = 0;                                   // of prefix hits, by this tier
  double error = 0;                                  // of block_hits, MemoryPlan::has_prefix_error; 0: exact
  std::optional<double> cost_per_month = {};         // nothing: no price
  std::optional<double> cost_per_million_hits = {};  // tokens that this tier finds; nothing: or it finds none
};

struct CurvePoint {
  double bytes = 0;
  double blocks = 0;  // of the trace
  double block_hits = 0;
  double prefix_hits = 0;
  double error = 0;
};

struct MemoryPlan {
  ModelShape model;
  MachineShape machine;
  std::uint32_t block_size = 0;       // tokens, as asked for
  std::uint64_t token_bytes = 0;      // of one rank
  std::uint64_t far_token_bytes = 0;  // beyond windows
  std::uint64_t all_token_bytes = 0;  // of all ranks together
  std::vector<TierPlan> tiers;
  // With a trace.
  bool has_trace = false;
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;
  double distinct_blocks = 0;
  std::uint32_t trace_block_size = 0;
  double days = 0;                // 0: all requests arrive at once, and nothing can be said per day
  double rate = 1;                // of the sample
  bool has_prefix_error = true;   // errors are of prefix hits as well
  double most_hits = 0;           // prefix hits of an endless cache
  double bytes_for_most = 0;      // that reach nine tenths of them; 0: there are none
  std::vector<CurvePoint> curve;  // sizes ascend
  // With G3. Bytes written for each byte that it finds and those above do not; nothing: it gains nothing.
  std::optional<double> ssd_bytes_per_hit = {};
  // With days too.
  std::optional<double> ssd_bytes_per_day = {};
  std::optional<double> ssd_writes_per_day = {};  // of its size
  std::optional<double> ssd_years = {};  // until its limit is written; nothing: no limit, or no writes
  std::optional<double> cost_of_computing = {};  // a million tokens; nothing: no price
  std::string recommendation;

  std::string to_text() const;
  std::string to_json() const;
};

// `curve` may be null. Errors: kInvalidArgument: those of the shapes; weights that leave no room on the GPUs.
Result<MemoryPlan> plan_memory(const ModelShape& model, const MachineShape& machine, std::uint32_t block_size,
                               const CapacityCurve* curve);

}  // namespace ashlar::replay
