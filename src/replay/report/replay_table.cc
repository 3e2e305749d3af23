#include <algorithm>
#include <utility>

#include "ashlar/replay/report.h"
#include "ashlar/service/journal.h"
#include "replay/report/number_text.h"

namespace ashlar::replay {
namespace {

// Columns of texts, each as wide as it must be.
class TextTable {
 public:
  void add(std::string head, bool is_left = false) { columns_.push_back({{std::move(head)}, is_left}); }
  void put(std::string cell) {
    columns_[at_].cells.push_back(std::move(cell));
    at_ = (at_ + 1) % columns_.size();
  }
  std::string text() const {
    std::string out;
    for (std::size_t row = 0; row < columns_.front().cells.size(); ++row) {
      std::string line;
      for (const Column& column : columns_) {
        std::size_t width = 0;
        for (const std::string& cell : column.cells) width = std::max(width, cell.size());
        const std::string& cell = column.cells[row];
        const std::string space(width - cell.size(), ' ');
        if (!line.empty()) line += "  ";
        line += column.is_left ? cell + space : space + cell;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  struct Column {
    std::vector<std::string> cells;
    bool is_left;
  };
  std::vector<Column> columns_;
  std::size_t at_ = 0;
};

}  // namespace

ReplaySubject subject_of(std::string name, const TraceTable& trace) {
  return {.name = std::move(name),
          .facts = trace.facts(),
          .requests = trace.requests().size(),
          .named = trace.named(),
          .distinct = trace.distinct(),
          .input_tokens = trace.input_tokens(),
          .span_ms = trace.span_ms(),
          .with_session = static_cast<std::uint64_t>(std::ranges::count_if(
              trace.requests(), [](const TraceTable::Request& one) { return one.session != 0; })),
          .misplaced = trace.misplaced()};
}

std::vector<std::string> notes_of(const ReplaySubject& subject) {
  std::vector<std::string> notes;
  const TraceFacts& facts = subject.facts;
  if (!facts.has_reuse)
    notes.push_back("A trace of the form " + std::string(to_string(facts.format)) +
                    " names no blocks: it carries no reuse, and nothing in it can hit.");
  if (facts.has_reuse && facts.without_blocks > 0)
    notes.push_back(grouped(facts.without_blocks) + " of " + grouped(facts.requests) +
                    " requests name no blocks and cannot hit.");
  if (facts.other_size > 0)
    notes.push_back(grouped(facts.other_size) + " of them name blocks of another size than " +
                    std::to_string(facts.block_size) + " tokens, which were left out.");
  if (facts.contradicting > 0)
    notes.push_back(grouped(facts.contradicting) +
                    " requests have more or fewer blocks than their lengths in blocks of " +
                    std::to_string(facts.block_size) + " tokens: is this the size of a block?");
  if (subject.misplaced > 0)
    notes.push_back(grouped(subject.misplaced) +
                    " requests name a block behind another one than before: a name should stand for all that "
                    "is before it, and the bound may be too low.");
  if (facts.from_text > 0)
    notes.push_back(grouped(facts.from_text) +
                    " requests are given as text: their tokens are estimated, at 4 "
                    "bytes per token.");
  if (facts.skipped_lines > 0)
    notes.push_back(grouped(facts.skipped_lines) + " lines were skipped; the first: " + facts.first_skipped);
  if (facts.unfinished_bytes > 0) notes.push_back(service::unfinished_note(facts.unfinished_bytes));
  return notes;
}

std::string replay_table(const ReplaySubject& subject, std::span<const ReplayOutcome> runs) {
  std::string out = subject.name + ": " + grouped(subject.requests) + " requests over " +
                    duration(static_cast<double>(subject.span_ms)) + ", " +
                    brief(static_cast<double>(subject.input_tokens)) + " prompt tokens";
  if (subject.facts.has_reuse)
    out += ", " + grouped(subject.named) + " blocks of " + std::to_string(subject.facts.block_size) +
           " tokens, " + grouped(subject.distinct) + " of them distinct";
  out += "\n";
  for (const std::string& note : notes_of(subject)) out += note + "\n";
  if (runs.empty()) return out;
  std::array<bool, kReplayTiers> has_tier = {};
  bool has_fleet = false;
  bool has_bound = false;
  bool is_cut = false;
  bool is_real = false;
  bool is_late = false;
  bool is_sticky = false;
  for (const ReplayOutcome& run : runs) {
    for (std::size_t i = 0; i < kReplayTiers; ++i) has_tier[i] |= run.config.tier_blocks[i] != 0;
    has_fleet |= run.config.workers > 1;
    has_bound |= run.config.has_bound;
    is_cut |= run.refused > 0;
    is_real |= run.is_real;
    is_late |= subject.span_ms > 0 && run.busiest() > 1;
    is_sticky |= run.config.workers > 1 && run.config.routing == Routing::kSticky;
  }
  TextTable table;
  table.add("policy", true);
  if (has_fleet) table.add("router", true);
  if (has_fleet) table.add("workers");
  for (std::size_t i = 0; i < kReplayTiers; ++i)
    if (has_tier[i]) table.add("G" + std::to_string(i + 1));
  table.add("hits");
  if (has_bound) table.add("bound");
  for (std::size_t i = 0; i < kReplayTiers && has_tier[1]; ++i)
    if (has_tier[i]) table.add("in G" + std::to_string(i + 1));
  for (const char* head : {"new", "evicted"}) table.add(head);
  if (has_fleet) table.add("elsewhere");
  table.add("broken");
  table.add("evictions");
  if (has_tier[2]) table.add("SSD/hit");
  for (const char* head : {"busiest", "TTFT p50", "p99"}) table.add(head);
  if (is_cut) table.add("cut");
  if (is_real) table.add("verified");
  for (const ReplayOutcome& run : runs) {
    const auto share = [&](std::uint64_t blocks) {
      return percent(
          run.total.blocks == 0 ? 0 : static_cast<double>(blocks) / static_cast<double>(run.total.blocks));
    };
    table.put(run.config.policy);
    if (has_fleet) table.put(run.config.workers == 1 ? "-" : std::string(to_string(run.config.routing)));
    if (has_fleet) table.put(std::to_string(run.config.workers));
    for (std::size_t i = 0; i < kReplayTiers; ++i)
      if (has_tier[i]) table.put(run.config.tier_blocks[i] == 0 ? "-" : grouped(run.config.tier_blocks[i]));
    table.put(percent(run.total.hit_rate()));
    if (has_bound) table.put(run.config.has_bound ? percent(run.bound_rate()) : "-");
    for (std::size_t i = 0; i < kReplayTiers && has_tier[1]; ++i)
      if (has_tier[i]) table.put(share(run.total.hits[i]));
    table.put(share(run.total.misses[0]));
    table.put(share(run.total.misses[1]));
    if (has_fleet) table.put(share(run.total.misses[2]));
    table.put(share(run.total.misses[3]));
    table.put(grouped(run.total.evictions[0] + run.total.evictions[1] + run.total.evictions[2]));
    if (has_tier[2]) table.put(run.total.hits[2] == 0 ? "-" : formatted("%.2f", run.written_per_hit()));
    table.put(subject.span_ms == 0 ? "-" : percent(run.busiest()));
    table.put(duration(run.latency.p50));
    table.put(duration(run.latency.p99));
    if (is_cut) table.put(grouped(run.refused));
    if (is_real) table.put(grouped(run.verified));
  }
  out += "\n" + table.text() + "\n";
  if (has_bound)
    out += "bound: what a cache that knows the requests to come would find at the same workers\n";
  if (has_tier[2]) out += "SSD/hit: bytes written to G3 for each byte found there\n";
  out += formatted("TTFT: an estimate, at %s prompt tokens per second and worker\n",
                   brief(runs.front().config.prefill_tokens_per_second).c_str());
  if (is_late)
    out += "busiest above 100 %: a worker gets more than it computes, and its prompts wait ever longer\n";
  if (is_sticky && subject.with_session == 0)
    out += "sticky: the trace names no sessions, so requests go round\n";
  return out;
}

}  // namespace ashlar::replay
