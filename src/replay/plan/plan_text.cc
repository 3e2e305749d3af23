#include "replay/plan/plan_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string_view>
#include <vector>

#include "replay/plan/memory_plan.h"
#include "service/gateway/json_text.h"

namespace ashlar::replay {
namespace {

using TableRow = std::vector<std::string>;

// Columns to the right, as wide as their widest cell.
std::string table_text(const std::vector<TableRow>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const TableRow& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string out;
  for (const TableRow& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      out += (i == 0 ? "  " : "   ") + std::string(widths[i] - row[i].size(), ' ') + row[i];
    out += "\n";
  }
  return out;
}

void add_line(std::string& out, const std::string& name, const std::string& value) {
  out += "  " + name + std::string(name.size() < 26 ? 26 - name.size() : 1, ' ') + value + "\n";
}

std::string groups_text(const ModelShape& model) {
  std::string out;
  for (const LayerGroup& group : model.groups) {
    out += (out.empty() ? "" : ", ") + std::to_string(group.layers) + " layers ";
    out += group.kv_heads == 0
               ? "of latent vectors with " + std::to_string(group.head_dim) + " elements"
               : "with " + std::to_string(group.kv_heads) + " KV heads of " + std::to_string(group.head_dim);
    if (group.window != 0) out += " in a window of " + count_text(group.window) + " tokens";
  }
  return out;
}

std::string hits_text(double share, double error) {
  return percent_text(share) + (error > 0 ? " +- " + percent_text(error) : "");
}

// null: not known.
void put_known(service::JsonText& out, std::string_view name, const std::optional<double>& value) {
  out.field(name, [&] { out.raw(value ? json_number(*value) : "null"); });
}

void write_tier(service::JsonText& out, const TierPlan& tier, bool has_trace, bool has_prefix_error) {
  out.object([&] {
    out.field("tier", tier.name);
    out.field("bytes", [&] { out.raw(json_number(tier.bytes)); });
    out.field("tokens", tier.tokens);
    out.field("blocks", tier.blocks);
    if (has_trace) {
      out.field("block_hits", [&] { out.raw(json_number(tier.block_hits)); });
      out.field("prefix_hits", [&] { out.raw(json_number(tier.prefix_hits)); });
      out.field("gain", [&] { out.raw(json_number(tier.gain)); });
      out.field("block_hits_error", [&] { out.raw(json_number(tier.error)); });
      put_known(out, "prefix_hits_error", has_prefix_error ? std::optional(tier.error) : std::nullopt);
    }
    if (tier.cost_per_month) out.field("cost_per_month", [&] { out.raw(json_number(*tier.cost_per_month)); });
    if (tier.cost_per_million_hits)
      out.field("cost_per_million_hit_tokens", [&] { out.raw(json_number(*tier.cost_per_million_hits)); });
  });
}

void write_trace(service::JsonText& out, const MemoryPlan& plan) {
  out.object([&] {
    out.field("requests", plan.requests);
    out.field("blocks_named", plan.accesses);
    out.field("distinct_blocks", [&] { out.raw(json_number(plan.distinct_blocks)); });
    out.field("block_size", plan.trace_block_size);
    if (plan.days > 0) out.field("days", [&] { out.raw(json_number(plan.days)); });
    out.field("sample_rate", [&] { out.raw(json_number(plan.rate)); });
    out.field("most_prefix_hits", [&] { out.raw(json_number(plan.most_hits)); });
    const std::optional<double> enough =
        plan.bytes_for_most > 0 ? std::optional(plan.bytes_for_most) : std::nullopt;
    put_known(out, "bytes_for_nine_tenths", enough);
    put_known(out, "ssd_bytes_written_per_hit_byte", plan.ssd_bytes_per_hit);
    if (plan.days > 0) {
      put_known(out, "ssd_bytes_written_per_day", plan.ssd_bytes_per_day);
      put_known(out, "ssd_drive_writes_per_day", plan.ssd_writes_per_day);
      put_known(out, "ssd_years", plan.ssd_years);
    }
    out.field("curve", [&] {
      out.array([&] {
        for (const CurvePoint& point : plan.curve)
          out.object([&] {
            out.field("bytes", [&] { out.raw(json_number(point.bytes)); });
            out.field("blocks", [&] { out.raw(json_number(point.blocks)); });
            out.field("block_hits", [&] { out.raw(json_number(point.block_hits)); });
            out.field("prefix_hits", [&] { out.raw(json_number(point.prefix_hits)); });
            out.field("block_hits_error", [&] { out.raw(json_number(point.error)); });
            put_known(out, "prefix_hits_error",
                      plan.has_prefix_error ? std::optional(point.error) : std::nullopt);
          });
      });
    });
  });
}

}  // namespace

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text.data();
}

std::string percent_text(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f%%", share * 100);
  return text.data();
}

std::string count_text(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string number_text(double number) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.4g", number);
  return text.data();
}

std::string json_number(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.10g", value);
  return text.data();
}

std::string life_text(double years) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), years < 1 ? "%.0f days" : "%.1f years",
                years < 1 ? years * 365 : years);
  return text.data();
}

std::string MemoryPlan::to_text() const {
  std::string out = model.name + ": " + groups_text(model) + "\n";
  const std::string ranks = machine.tp == 1 ? "" : " of each of " + std::to_string(machine.tp) + " ranks";
  add_line(out, "KV bytes per token", count_text(token_bytes) + ranks);
  if (token_bytes != far_token_bytes)
    add_line(out, "beyond the windows",
             count_text(far_token_bytes) + ranks + "; tiers are counted as if all layers were kept");
  add_line(out, "KV bytes per block",
           count_text(token_bytes * block_size) + ranks + ", " + std::to_string(block_size) + " tokens");
  std::vector<TableRow> table = {{"tier", "bytes", "tokens", "blocks"}};
  if (has_trace) table.front().insert(table.front().end(), {"prefix hits", "gain", "block hits"});
  for (const TierPlan& tier : tiers) {
    table.push_back(
        {std::string(tier.name), bytes_text(tier.bytes), count_text(tier.tokens), count_text(tier.blocks)});
    if (has_trace)
      table.back().insert(table.back().end(),
                          {hits_text(tier.prefix_hits, has_prefix_error ? tier.error : 0),
                           percent_text(tier.gain), hits_text(tier.block_hits, tier.error)});
  }
  out += table_text(table);
  if (has_trace) {
    add_line(out, "requests",
             count_text(requests) + (days > 0 ? " in " + number_text(days * 24) + " hours"
                                              : ", all at once: nothing can be said per day"));
    add_line(out, "blocks",
             count_text(accesses) + " named, " + count_text(static_cast<std::uint64_t>(distinct_blocks)) +
                 " different" + (rate < 1 ? " (sampled: " + percent_text(rate) + ")" : "") + ", of " +
                 std::to_string(trace_block_size) + " tokens");
    table = {{"one LRU cache of", "prefix hits", "block hits"}};
    for (const CurvePoint& point : curve)
      table.push_back({bytes_text(point.bytes),
                       hits_text(point.prefix_hits, has_prefix_error ? point.error : 0),
                       hits_text(point.block_hits, point.error)});
    out += table_text(table);
    if (ssd_bytes_per_day.value_or(0) > 0) {
      add_line(out, "written to G3 per day",
               bytes_text(*ssd_bytes_per_day) + ", " + number_text(*ssd_writes_per_day) + " times its size");
      if (ssd_years) add_line(out, "its life", life_text(*ssd_years) + " at that rate");
    }
    if (ssd_bytes_per_hit)
      add_line(out, "written to G3 per hit",
               number_text(*ssd_bytes_per_hit) + " bytes for each byte that it finds");
  }
  for (const TierPlan& tier : tiers) {
    if (!tier.cost_per_month) continue;
    add_line(out, std::string(tier.name) + " costs",
             number_text(*tier.cost_per_month) + " per month" +
                 (tier.cost_per_million_hits
                      ? ", " + number_text(*tier.cost_per_million_hits) + " per million tokens that it finds"
                      : ""));
  }
  if (cost_of_computing)
    add_line(out, "computing costs", number_text(*cost_of_computing) + " per million tokens");
  return out + recommendation + "\n";
}

std::string MemoryPlan::to_json() const {
  service::JsonText out;
  out.object([&] {
    out.field("model", model.name);
    out.field("layers", model.layers());
    out.field("tp", machine.tp);
    out.field("block_size", block_size);
    out.field("bytes_per_token", token_bytes);
    out.field("bytes_per_far_token", far_token_bytes);
    out.field("bytes_per_block", token_bytes * block_size);
    out.field("tiers", [&] {
      out.array([&] {
        for (const TierPlan& tier : tiers) write_tier(out, tier, has_trace, has_prefix_error);
      });
    });
    if (has_trace) out.field("trace", [&] { write_trace(out, *this); });
    if (cost_of_computing)
      out.field("computing_cost_per_million_tokens", [&] { out.raw(json_number(*cost_of_computing)); });
    out.field("recommendation", recommendation);
  });
  return out.text() + "\n";
}

}  // namespace ashlar::replay
