#include <algorithm>
#include <cmath>
#include <utility>

#include "ashlar/replay/report.h"
#include "replay/report/number_text.h"
#include "replay/report/svg_chart.h"

namespace ashlar::replay {
namespace {

constexpr std::size_t kMostCharts = 24;  // runs with charts

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;
--s0:#0969da;--s1:#1a7f37;--s2:#bf8700;--s3:#cf222e;--s4:#8250df;--s5:#57606a;--mark:#1b1f24}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#9198a1;--line:#3d444d;
--card:#151b23;--s0:#58a6ff;--s1:#3fb950;--s2:#e3b341;--s3:#ff7b72;--s4:#bc8cff;--s5:#8b949e;--mark:#e6edf3}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px 16px 48px;max-width:1360px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:19px;margin:36px 0 8px}
p{margin:6px 0;max-width:80ch}.soft,small{color:var(--soft);font-weight:400}a{color:var(--s0)}
.note{border-left:4px solid var(--s2);padding:4px 12px;background:var(--card)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}
th.t,td.t{text-align:left;position:sticky;left:0;background:var(--bg)}td b{font-weight:650}
.facts{display:flex;flex-wrap:wrap;gap:8px;margin:12px 0}
.facts div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 14px}
.facts b{display:block;font-size:19px}.facts span{color:var(--soft);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px}
figure{margin:0;padding:12px;background:var(--card);border:1px solid var(--line);border-radius:8px}
figcaption{font-weight:600}.legend{display:flex;flex-wrap:wrap;gap:12px;font-size:13px;min-height:20px;
color:var(--soft)}.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
.legend i.dash{height:0;border-top:2px dashed var(--mark);border-radius:0;vertical-align:middle;width:16px}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:12px}
.cut{fill:var(--mark);stroke:var(--card)}polyline{fill:none}
.grid{stroke:var(--line);stroke-width:1}.mark{stroke:var(--mark);stroke-width:1.5;stroke-dasharray:5 4}
.s0{fill:var(--s0)}.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}
.s4{fill:var(--s4)}.s5{fill:var(--s5)}
.k0{background:var(--s0)}.k1{background:var(--s1)}.k2{background:var(--s2)}.k3{background:var(--s3)}
.k4{background:var(--s4)}.k5{background:var(--s5)}
rect:hover{opacity:.75}
)";

// What tells runs apart, beside the policy.
struct RunNames {
  explicit RunNames(std::span<const ReplayOutcome> runs) {
    for (const ReplayOutcome& run : runs) {
      has_workers |= run.config.workers != runs.front().config.workers;
      for (std::size_t i = 0; i < kReplayTiers; ++i)
        has_tier[i] |= run.config.tier_blocks[i] != runs.front().config.tier_blocks[i];
    }
  }
  std::string operator()(const ReplayOutcome& run) const {
    std::string name = run.config.policy;
    // One worker has nothing to choose from.
    if (run.config.workers > 1) name += ", " + std::string(to_string(run.config.routing));
    if (has_workers)
      name += ", " + grouped(run.config.workers) + (run.config.workers == 1 ? " worker" : " workers");
    for (std::size_t i = 0; i < kReplayTiers; ++i)
      if (has_tier[i]) name += ", G" + std::to_string(i + 1) + " " + grouped(run.config.tier_blocks[i]);
    return name;
  }

  bool has_workers = false;
  std::array<bool, kReplayTiers> has_tier = {};
};

// Everything of one run.
std::string shape_of(const ReplayOutcome& run) {
  std::string shape =
      std::to_string(run.config.workers) + (run.config.workers == 1 ? " worker" : " workers, each");
  shape += " with";
  for (std::size_t i = 0; i < kReplayTiers; ++i)
    if (run.config.tier_blocks[i] != 0)
      shape +=
          (i == 0 ? " " : ", ") + grouped(run.config.tier_blocks[i]) + " blocks in G" + std::to_string(i + 1);
  return shape;
}

std::size_t tiers_of(const ReplayOutcome& run) {
  std::size_t tiers = 1;
  while (tiers < kReplayTiers && run.config.tier_blocks[tiers] != 0) ++tiers;
  return tiers;
}

double share_of(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// A value of each window.
template <class Value>
ChartSeries over_time(const ReplayOutcome& run, std::string name, Value value) {
  ChartSeries series{.name = std::move(name), .values = {}};
  for (const ReplayCounts& window : run.windows) series.values.push_back(value(window));
  return series;
}

std::string hit_chart(const ReplayOutcome& run, const ChartText& time) {
  std::vector<ChartSeries> series;
  for (std::size_t tier = 0; tier < tiers_of(run); ++tier)
    series.push_back(over_time(run, "G" + std::to_string(tier + 1), [tier](const ReplayCounts& window) {
      return share_of(window.hits[tier], window.blocks);
    }));
  ChartText text = time;
  text.title = "Hit rate by tier over time";
  text.unit = "share of the blocks asked for";
  text.number = [](double value) { return formatted("%.0f %%", 100 * value); };
  text.most = 1;
  if (run.config.has_bound) {
    text.marks_name = "bound, " + percent(run.bound_rate()) + " over all";
    for (const ReplayCounts& window : run.windows)
      text.marks.push_back(share_of(window.bound_hits, window.blocks));
  }
  return column_chart(text, series);
}

std::string miss_chart(const ReplayOutcome& run, const ChartText& time) {
  std::vector<ChartSeries> series;
  constexpr std::array<const char*, kMissReasons> kNames = {"never seen", "evicted", "elsewhere",
                                                            "broken prefix"};
  for (std::size_t reason = 0; reason < kMissReasons; ++reason)
    series.push_back(over_time(run, kNames[reason], [reason](const ReplayCounts& window) {
      return share_of(window.misses[reason], window.blocks);
    }));
  ChartText text = time;
  text.title = "Misses by reason";
  text.unit = "share of the blocks asked for";
  text.number = [](double value) { return formatted("%.0f %%", 100 * value); };
  text.most = 1;
  return column_chart(text, series);
}

std::string eviction_chart(const ReplayOutcome& run, const ChartText& time) {
  std::vector<ChartSeries> series;
  for (std::size_t tier = 0; tier < tiers_of(run); ++tier)
    series.push_back(over_time(run, "from G" + std::to_string(tier + 1), [tier](const ReplayCounts& window) {
      return static_cast<double>(window.evictions[tier]);
    }));
  ChartText text = time;
  text.title = "Evictions";
  text.unit = "blocks per column";
  text.number = brief;
  return column_chart(text, series);
}

std::string ssd_chart(const ReplayOutcome& run, const ChartText& time) {
  if (run.config.tier_blocks[2] == 0)
    return "<figure><figcaption>Bytes written to SSD per hit gained</figcaption><p class=\"soft\">This run "
           "has "
           "no G3.</p></figure>\n";
  ChartText text = time;
  text.title = "Bytes written to SSD per hit gained";
  text.unit = "bytes written for each byte found in G3, up to then; " +
              bytes(static_cast<double>(run.total.written[2] * run.block_bytes)) + " written in all";
  text.number = brief;
  // Before the first hits the ratio is without bounds; columns that go on above the axis say so.
  if (run.total.hits[2] != 0) text.most = std::ceil(4 * run.written_per_hit());
  std::uint64_t written = 0;
  std::uint64_t found = 0;
  return column_chart(text, {over_time(run, "written per hit", [&](const ReplayCounts& window) {
                        written += window.written[2];
                        found += window.hits[2];
                        return share_of(written, found);
                      })});
}

std::string load_chart(const ReplayOutcome& run) {
  ChartText text;
  text.title = "Load by worker";
  text.unit = "prompt tokens";
  text.number = brief;
  text.label = [](std::size_t worker) { return "worker " + std::to_string(worker); };
  ChartSeries computed{.name = "computed", .values = {}};
  ChartSeries found{.name = "found in the cache", .values = {}};
  for (const WorkerTotals& one : run.workers) {
    computed.values.push_back(static_cast<double>(one.input_tokens - one.hit_tokens));
    found.values.push_back(static_cast<double>(one.hit_tokens));
  }
  return row_chart(text, {std::move(computed), std::move(found)});
}

std::string latency_chart(const ReplayOutcome& run, const ChartText& time) {
  ChartText text = time;
  text.title = "Time to first token, estimated";
  text.unit = "mean of each column; over all p50 " + duration(run.latency.p50) + ", p90 " +
              duration(run.latency.p90) + ", p99 " + duration(run.latency.p99);
  text.number = duration;
  text.mark = {"p50 over all", run.latency.p50};
  return column_chart(
      text, {over_time(run, "mean", [](const ReplayCounts& window) {
        return window.requests == 0 ? 0 : window.latency_ms / static_cast<double>(window.requests);
      })});
}

void put_fact(std::string& out, const std::string& value, const char* name) {
  out += "<div><b>" + escaped(value) + "</b><span>" + name + "</span></div>";
}

void put_rows(std::string& out, std::span<const ReplayOutcome> runs, const RunNames& name_of_run,
              bool has_times) {
  out +=
      "<div class=\"wide\"><table><thead><tr><th class=\"t\">run</th><th>hits</th><th>bound</th>"
      "<th>in G1</th><th>in G2</th><th>in G3</th><th>never seen</th><th>evicted</th><th>elsewhere</th>"
      "<th>broken</th><th>evictions</th><th>SSD/hit</th><th>busiest</th><th>TTFT "
      "p50</th><th>p99</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ReplayOutcome& run = runs[i];
    const auto cell = [&](const std::string& text) { out += "<td>" + escaped(text) + "</td>"; };
    const auto share = [&](std::uint64_t blocks) { cell(percent(share_of(blocks, run.total.blocks))); };
    const std::string name = escaped(name_of_run(run));
    out += "<tr><td class=\"t\">";
    out += i < kMostCharts ? "<a href=\"#run" + std::to_string(i) + "\">" + name + "</a>" : name;
    out += "</td><td><b>" + percent(run.total.hit_rate()) + "</b></td>";
    cell(run.config.has_bound ? percent(run.bound_rate()) : "-");
    for (std::size_t tier = 0; tier < kReplayTiers; ++tier) {
      if (run.config.tier_blocks[tier] == 0) {
        cell("-");
      } else {
        share(run.total.hits[tier]);
      }
    }
    for (const std::uint64_t misses : run.total.misses) share(misses);
    cell(grouped(run.total.evictions[0] + run.total.evictions[1] + run.total.evictions[2]));
    cell(run.total.hits[2] == 0 ? "-" : formatted("%.2f", run.written_per_hit()));
    cell(has_times ? percent(run.busiest()) : "-");
    cell(duration(run.latency.p50));
    cell(duration(run.latency.p99));
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
}

void put_run_charts(std::string& out, const ReplayOutcome& run, const std::string& name, std::size_t number) {
  out += "<h2 id=\"run" + std::to_string(number) + "\">" + escaped(name) + "</h2>\n<p class=\"soft\">" +
         shape_of(run) + ". " +
         (run.is_real ? "Real managers with bytes; " + grouped(run.verified) + " blocks were compared. "
                      : std::string("Simulated, without bytes. "));
  if (run.refused > 0)
    out += grouped(run.refused) + " requests are longer than G1: only their beginning was kept. ";
  out += "A column is " + duration(run.window_ms) + " of the trace.</p>\n<div class=\"charts\">\n";
  ChartText time;
  time.label = [ms = run.window_ms](std::size_t window) {
    return duration(ms * static_cast<double>(window));
  };
  out += hit_chart(run, time) + miss_chart(run, time) + eviction_chart(run, time) + ssd_chart(run, time) +
         load_chart(run) + latency_chart(run, time) + "</div>\n";
}

// "G2 at 48.0 GB/s"; a tier of no speed answers at once.
std::string speed(int tier, double bytes_per_second) {
  const std::string name = "G" + std::to_string(tier);
  return bytes_per_second > 0 ? name + " at " + bytes(bytes_per_second) + "/s" : name + " at once";
}

}  // namespace

std::string replay_html(const ReplaySubject& subject, std::span<const ReplayOutcome> runs) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>ashlar replay: " +
      escaped(subject.name) + "</title><style>" + kStyle + "</style></head><body>\n<h1>Replay of " +
      escaped(subject.name) + "</h1>\n<div class=\"facts\">";
  put_fact(out, grouped(subject.requests), "requests");
  put_fact(out, duration(static_cast<double>(subject.span_ms)), "from first to last");
  put_fact(out, brief(static_cast<double>(subject.input_tokens)), "prompt tokens");
  if (subject.facts.has_reuse) {
    put_fact(out, grouped(subject.named), "blocks asked for");
    put_fact(out, grouped(subject.distinct), "of them distinct");
    put_fact(out, percent(subject.named == 0 ? 0 : 1 - share_of(subject.distinct, subject.named)),
             "hits of an endless cache");
    put_fact(out, std::to_string(subject.facts.block_size), "tokens per block");
  }
  out += "</div>\n";
  for (const std::string& note : notes_of(subject)) out += "<p class=\"note\">" + escaped(note) + "</p>\n";
  const RunNames names(runs);
  if (!runs.empty()) {
    const ReplayConfig& config = runs.front().config;
    put_rows(out, runs, names, subject.span_ms > 0);
    out +=
        "<p class=\"soft\">Bound: what a cache that knows the requests to come would find at the same "
        "workers, "
        "with as many blocks as all tiers together. Room is made before blocks are stored, as a manager "
        "must. "
        "TTFT is an estimate: " +
        brief(config.prefill_tokens_per_second) +
        " prompt tokens per second and worker, one prompt at a time; " +
        speed(2, config.tier_bytes_per_second[1]) + ", " + speed(3, config.tier_bytes_per_second[2]) + "; " +
        grouped(config.bytes_per_token) + " bytes per token.</p>\n";
  }
  for (std::size_t i = 0; i < std::min(runs.size(), kMostCharts); ++i)
    put_run_charts(out, runs[i], names(runs[i]), i);
  if (runs.size() > kMostCharts)
    out += "<p class=\"soft\">The first " + std::to_string(kMostCharts) + " of " +
           std::to_string(runs.size()) + " runs have charts.</p>\n";
  return out + "</body></html>\n";
}

}  // namespace ashlar::replay
