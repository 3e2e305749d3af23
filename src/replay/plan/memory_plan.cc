#include "replay/plan/memory_plan.h"

#include <algorithm>
#include <cmath>

#include "ashlar/base/check.h"
#include "replay/plan/plan_text.h"

namespace ashlar::replay {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kHoursPerMonth = 730;
constexpr double kDaysPerMonth = kHoursPerMonth / 24;
constexpr double kWorthIt = 0.01;   // gain of prefix hits from which a tier is recommended
constexpr double kNearlyAll = 0.9;  // of what an endless cache finds
constexpr double kShortLife = 3;    // years
constexpr std::size_t kCurvePoints = 10;

std::uint64_t whole(double value) {
  return value <= 0 ? 0 : static_cast<std::uint64_t>(std::min(value, 9e18));
}

double blocks_in(double bytes, const MemoryPlan& plan) {
  return bytes / (static_cast<double>(plan.all_token_bytes) * plan.trace_block_size);
}

void add_tier(MemoryPlan& plan, std::string_view name, double bytes) {
  if (bytes <= 0) return;
  TierPlan tier;
  tier.name = name;
  tier.bytes = bytes;
  tier.tokens = whole(bytes / static_cast<double>(plan.all_token_bytes));
  tier.blocks = tier.tokens / plan.block_size;
  plan.tiers.push_back(tier);
}

// Shares of the accesses that write a block to G3, where this is the largest tier: those that no tier has.
// They are computed, enter G1, and are copied to G2 and G3.
double share_written(const MemoryPlan& plan, const CapacityCurve& curve, double bytes) {
  return 1 - curve.block_hits(blocks_in(bytes, plan));
}

// 0: the trace has no times.
double written_per_day(const MemoryPlan& plan, const CapacityCurve& curve, double bytes) {
  if (plan.days == 0) return 0;
  const double blocks = share_written(plan, curve, bytes) * static_cast<double>(plan.accesses);
  return blocks * static_cast<double>(plan.all_token_bytes) * plan.trace_block_size / plan.days;
}

// Of a drive that is written at this rate; nothing: no limit is known, or nothing is written.
std::optional<double> years_of(const MemoryPlan& plan, const TierPlan& drive, double bytes_per_day) {
  if (bytes_per_day <= 0) return std::nullopt;
  const MachineShape& machine = plan.machine;
  std::optional<double> years;
  if (machine.ssd_tbw > 0) years = machine.ssd_tbw * 1e12 / bytes_per_day / 365;
  // A rating of writes per day is for five years.
  if (machine.ssd_dwpd > 0) {
    const double rated = 5 * machine.ssd_dwpd / (bytes_per_day / drive.bytes);
    years = years ? std::min(*years, rated) : rated;
  }
  return years;
}

// A million tokens that the tier finds with this gain; nothing: no price, or nothing found.
std::optional<double> cost_of_hits(const MemoryPlan& plan, const TierPlan& tier, double gain) {
  if (!tier.cost_per_month || gain <= 0 || plan.days == 0) return std::nullopt;
  const double accesses_per_day = static_cast<double>(plan.accesses) / plan.days;
  const double tokens_per_month = accesses_per_day * kDaysPerMonth * plan.trace_block_size;
  return *tier.cost_per_month / (gain * tokens_per_month) * 1e6;
}

void follow_trace(MemoryPlan& plan, const CapacityCurve& curve) {
  plan.has_trace = true;
  plan.requests = curve.requests();
  plan.accesses = curve.accesses();
  plan.distinct_blocks = curve.distinct();
  plan.trace_block_size = curve.block_size();
  plan.days = static_cast<double>(curve.span_ms()) / 86'400'000;
  plan.rate = curve.rate();
  plan.has_prefix_error = curve.has_prefix_error();
  plan.most_hits = curve.prefix_hits(1e18);
  const double block_bytes = static_cast<double>(plan.all_token_bytes) * plan.trace_block_size;
  plan.bytes_for_most = curve.blocks_for(kNearlyAll) * block_bytes;
  for (std::size_t i = kCurvePoints; i-- > 0;) {
    CurvePoint point;
    point.blocks = std::max(1.0, std::ceil(curve.distinct() / std::pow(2.0, static_cast<double>(i))));
    if (!plan.curve.empty() && plan.curve.back().blocks == point.blocks) continue;  // of few blocks
    point.bytes = point.blocks * block_bytes;
    point.block_hits = curve.block_hits(point.blocks);
    point.prefix_hits = curve.prefix_hits(point.blocks);
    point.error = curve.error(point.blocks);
    plan.curve.push_back(point);
  }
  double bytes = 0;
  double before = 0;
  for (TierPlan& tier : plan.tiers) {
    bytes = std::max(bytes, tier.bytes);
    tier.block_hits = curve.block_hits(blocks_in(bytes, plan));
    tier.prefix_hits = curve.prefix_hits(blocks_in(bytes, plan));
    tier.error = curve.error(blocks_in(bytes, plan));
    tier.gain = tier.prefix_hits - before;
    before = tier.prefix_hits;
    ASHLAR_DCHECK(tier.gain >= -1e-9, "more memory finds less: %f", tier.gain);
    tier.cost_per_million_hits = cost_of_hits(plan, tier, tier.gain);
    if (tier.name != "G3") continue;
    if (tier.gain > 0) plan.ssd_bytes_per_hit = share_written(plan, curve, bytes) / tier.gain;
    if (plan.days == 0) continue;
    const double written = written_per_day(plan, curve, bytes);
    plan.ssd_bytes_per_day = written;
    plan.ssd_writes_per_day = written / tier.bytes;
    plan.ssd_years = years_of(plan, tier, written);
  }
}

// What a sampled recommendation rests on; nothing where the curve is exact.
std::string sample_note(const MemoryPlan& plan) {
  if (plan.rate >= 1) return "";
  double error = 0;
  for (const TierPlan& tier : plan.tiers) error = std::max(error, tier.error);
  const std::string sample =
      " These prefix hits are of a sample of " + percent_text(plan.rate) + " of the blocks and ";
  if (plan.has_prefix_error) return sample + "within " + percent_text(error) + ".";
  return sample + "have no stated error; block hits are within " + percent_text(error) + ".";
}

// Each tier is weighed beside those that were taken.
std::string recommend(const MemoryPlan& plan, const CapacityCurve* curve) {
  ASHLAR_CHECK(!plan.tiers.empty() && plan.tiers.front().name == "G1", "a machine has GPU memory");
  const TierPlan& first = plan.tiers.front();
  if (curve == nullptr)
    return "G1 holds " + count_text(first.tokens) + " tokens of " + plan.model.name +
           "; give --trace to learn what more memory would gain.";
  const double reachable = plan.most_hits - first.prefix_hits;
  if (reachable < kWorthIt)
    return "Add nothing: G1 finds " + percent_text(first.prefix_hits) +
           " of the blocks that requests name, "
           "and an endless cache would find " +
           percent_text(plan.most_hits) + ".";
  std::string out;
  double reached = first.prefix_hits;
  double taken = first.bytes;
  bool has_g2 = false;
  for (std::size_t i = 1; i < plan.tiers.size(); ++i) {
    const TierPlan& tier = plan.tiers[i];
    const std::string what = std::string(tier.name) + " of " + bytes_text(tier.bytes);
    out += out.empty() ? "" : "; ";
    const double hits = curve->prefix_hits(blocks_in(std::max(taken, tier.bytes), plan));
    const double gain = hits - reached;
    const std::optional<double> cost = cost_of_hits(plan, tier, gain);
    const bool is_dear = plan.cost_of_computing && cost && *cost > *plan.cost_of_computing;
    if (gain < kWorthIt || is_dear) {
      out += "leave out " + what + ", which would gain " + (is_dear ? "" : "only ") + percent_text(gain) +
             (is_dear ? " for more than computing it costs" : "");
      continue;
    }
    double years = kShortLife;  // where nothing says that it is less
    if (tier.name == "G3")
      years =
          years_of(plan, tier, written_per_day(plan, *curve, std::max(taken, tier.bytes))).value_or(years);
    const bool wears_out = years < kShortLife;
    out += (wears_out ? "do not take " + what + " as it is: prefix hits would rise from "
                      : "take " + what + ": prefix hits rise from ") +
           percent_text(reached) + " to " + percent_text(hits);
    if (wears_out) {
      out += ", but its drive would last " + life_text(years);
      continue;
    }
    reached = hits;
    taken = std::max(taken, tier.bytes);
    has_g2 |= tier.name == "G2";
    if (tier.name == "G3" && !has_g2) out += ", through a G2 of a few blocks, without which none reaches it";
    if (cost && plan.cost_of_computing && *cost < *plan.cost_of_computing)
      out += ", for less than computing them costs";
  }
  if (reached < kNearlyAll * plan.most_hits) {
    out += out.empty() ? "" : "; ";
    out += bytes_text(plan.bytes_for_most) + " in all would find " +
           percent_text(kNearlyAll * plan.most_hits) + ", nine tenths of what an endless cache finds (" +
           percent_text(plan.most_hits) + ")";
    if (plan.tiers.size() == 1) out += "; G1 alone finds " + percent_text(first.prefix_hits);
  }
  if (out.empty())
    out = "G1 alone finds " + percent_text(first.prefix_hits) + " of " + percent_text(plan.most_hits) +
          " that an endless cache finds; name --host-mem to see what more would gain";
  out[0] = out[0] >= 'a' && out[0] <= 'z' ? static_cast<char>(out[0] - 'a' + 'A') : out[0];
  return out + ".";
}

}  // namespace

Result<void> MachineShape::validate() const {
  if (tp == 0 || tp > 1024)
    return make_error(ErrorCode::kInvalidArgument, "--tp %u; a model is shared by 1 to 1024 GPUs", tp);
  if (gpu_gib == 0) return make_error(ErrorCode::kInvalidArgument, "--gpu-mem is needed: the GiB of one GPU");
  if (!(gpu_gib > 0))
    return make_error(ErrorCode::kInvalidArgument, "--gpu-mem %g; give the GiB of one GPU", gpu_gib);
  if (!(utilization > 0) || utilization > 1)
    return make_error(ErrorCode::kInvalidArgument, "--gpu-utilization %g; give a share above 0, up to 1",
                      utilization);
  if (ssd_gib > 0 && !(host_gib > 0))
    return make_error(ErrorCode::kInvalidArgument,
                      "--ssd %g without --host-mem; blocks reach G3 through G2: give it host memory too, a "
                      "little if it is only passed through",
                      ssd_gib);
  return {};
}

Result<MemoryPlan> plan_memory(const ModelShape& model, const MachineShape& machine, std::uint32_t block_size,
                               const CapacityCurve* curve) {
  ASHLAR_CHECK(block_size > 0, "a block has tokens, not %u", block_size);
  ASHLAR_RETURN_IF_ERROR(model.validate());
  ASHLAR_RETURN_IF_ERROR(machine.validate());
  MemoryPlan plan;
  plan.model = model;
  plan.machine = machine;
  plan.block_size = block_size;
  plan.token_bytes = model.bytes_per_token(machine.tp);
  plan.far_token_bytes = model.bytes_per_far_token(machine.tp);
  plan.all_token_bytes = plan.token_bytes * machine.tp;
  const double weights = machine.weights_gb.value_or(model.weights_gb) * 1e9;
  const double room = machine.gpu_gib * kGib * machine.utilization * machine.tp - weights;
  if (room < static_cast<double>(plan.all_token_bytes) * block_size)
    return make_error(
        ErrorCode::kInvalidArgument,
        "the weights of %s take %.1f GB, and %u GPUs of %g GiB offer %.1f GB at a utilization of "
        "%g: no block fits; give more --tp or --gpu-mem, or other --weights",
        model.name.c_str(), weights / 1e9, machine.tp, machine.gpu_gib, (room + weights) / 1e9,
        machine.utilization);
  add_tier(plan, "G1", room);
  add_tier(plan, "G2", machine.host_gib * kGib);
  add_tier(plan, "G3", machine.ssd_gib * kGib);
  for (TierPlan& tier : plan.tiers) {
    if (tier.name == "G2" && machine.host_price) tier.cost_per_month = machine.host_gib * *machine.host_price;
    if (tier.name == "G3" && machine.ssd_price) tier.cost_per_month = machine.ssd_gib * *machine.ssd_price;
  }
  if (machine.gpu_price && machine.prefill_rate > 0)
    plan.cost_of_computing = *machine.gpu_price * machine.tp / 3600 / machine.prefill_rate * 1e6;
  if (curve != nullptr) follow_trace(plan, *curve);
  plan.recommendation = recommend(plan, curve) + (curve == nullptr ? "" : sample_note(plan));
  return plan;
}

}  // namespace ashlar::replay
