// ashlar explain: why a request went where it went, out of a journal.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/page_server.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/base/log.h"
#include "ashlar/service/journal.h"
#include "ashlar/service/journal_page.h"
#include "service/gateway/json_text.h"

namespace ashlar::apps {
namespace {

using service::Candidate;
using service::Decision;
using service::ReplayVerdict;

struct ExplainSettings {
  std::string journal;
  std::string decision;
  std::string key;
  bool page = false;
  std::string run;  // of the page; empty: the last
  std::uint16_t port = 8090;
  bool json = false;
};

int explain_failed(const Error& error) {
  say("ashlar explain: " + error.message());
  return kExitFailed;
}

double blocks(std::int64_t thousandths) {
  return static_cast<double>(thousandths) / 1000;
}

using WorkerNames = std::map<events::WorkerId, std::string>;

std::string name_in(const WorkerNames& names, events::WorkerId worker) {
  const auto found = names.find(worker);
  return found == names.end() ? std::string() : found->second;
}

void print(const Decision& decision, const std::string& group, std::uint64_t run, ReplayVerdict verdict,
           const WorkerNames& names) {
  std::printf("decision %s: model %s, %llu prompt tokens%s, blocks of %u tokens, policy %s\n",
              service::decision_name(run, decision.id).c_str(), group.c_str(),
              static_cast<unsigned long long>(decision.prompt_tokens),
              decision.is_estimate ? " (estimated)" : "", decision.block_size,
              std::string(to_string(decision.policy)).c_str());
  std::printf("  expected in the cache: %llu tokens; at the best worker: %llu\n",
              static_cast<unsigned long long>(decision.cached_tokens),
              static_cast<unsigned long long>(decision.available_tokens));
  if (decision.draw != 0)
    std::printf("  decided by chance: drew %llu\n", static_cast<unsigned long long>(decision.draw));
  std::printf("  %-14s %-9s %7s %9s %9s %9s | %10s %10s %10s %10s %10s\n", "worker.rank", "state", "blocks",
              "expected", "requests", "prefill", "prefill", "decode", "requests", "session", "cost");
  for (std::size_t i = 0; i < decision.candidates.size(); ++i) {
    const Candidate& candidate = decision.candidates[i];
    const std::string name =
        std::to_string(candidate.worker.id.value()) + "." + std::to_string(candidate.worker.rank);
    std::string note;
    if (const std::string called = name_in(names, candidate.worker.id); !called.empty())
      note = "  " + printable(called);
    if (candidate.exclusion != service::Exclusion::kNone)
      note += "  " + std::string(to_string(candidate.exclusion));
    std::printf("%s %-14s %-9s %7u %9u %9u %9llu | %10.3f %10.3f %10.3f %10.3f %10.3f%s\n",
                i == decision.chosen ? ">" : " ", name.c_str(),
                std::string(to_string(candidate.state)).c_str(), candidate.depth, candidate.predicted,
                candidate.requests, static_cast<unsigned long long>(candidate.prefill_tokens),
                blocks(candidate.prefill_cost), blocks(candidate.decode_cost), blocks(candidate.request_cost),
                blocks(candidate.session_cost), blocks(candidate.cost), note.c_str());
  }
  std::printf("  replayed: %s\n", verdict == ReplayVerdict::kSame ? "the same, byte for byte"
                                  : verdict == ReplayVerdict::kDifferent
                                      ? "NOT the same"
                                      : "no, this is what was written: the "
                                        "checkpoint at the start of the file is not whole");
}

const char* verdict_name(ReplayVerdict verdict) {
  return verdict == ReplayVerdict::kSame        ? "same"
         : verdict == ReplayVerdict::kDifferent ? "different"
                                                : "not_replayed";
}

// Costs are in thousandths of a block.
void print_json(const Decision& decision, const std::string& group, std::uint64_t run, ReplayVerdict verdict,
                const WorkerNames& names) {
  service::JsonText out;
  out.object([&] {
    out.field("decision", service::decision_name(run, decision.id));
    out.field("model", group);
    out.field("policy", to_string(decision.policy));
    out.field("prompt_tokens", decision.prompt_tokens);
    out.field("is_estimate", decision.is_estimate);
    out.field("block_size", decision.block_size);
    out.field("cached_tokens", decision.cached_tokens);
    out.field("available_tokens", decision.available_tokens);
    out.field("draw", decision.draw);
    out.field("chosen", decision.chosen);
    out.field("replayed", verdict_name(verdict));
    out.field("candidates", [&] {
      out.array([&] {
        for (const Candidate& candidate : decision.candidates)
          out.object([&] {
            out.field("worker", candidate.worker.id.value());
            out.field("name", name_in(names, candidate.worker.id));
            out.field("rank", candidate.worker.rank);
            out.field("state", to_string(candidate.state));
            out.field("exclusion", to_string(candidate.exclusion));
            out.field("blocks", candidate.depth);
            out.field("expected_blocks", candidate.predicted);
            out.field("requests", candidate.requests);
            out.field("prefill_tokens", candidate.prefill_tokens);
            out.field("prefill_cost", candidate.prefill_cost);
            out.field("decode_cost", candidate.decode_cost);
            out.field("request_cost", candidate.request_cost);
            out.field("session_cost", candidate.session_cost);
            out.field("cost", candidate.cost);
          });
      });
    });
  });
  std::printf("%s\n", out.text().c_str());
}

void tell_json(const service::JournalRun& journal, const service::ReplayReport& report) {
  service::JsonText out;
  out.object([&] {
    out.field("run", journal.name);
    out.field("file", journal.files.front());
    out.field("files", report.files);
    out.field("removed_files", report.removed_files);
    out.field("replayed", report.is_replayed);
    out.field("records", report.records);
    out.field("decisions", report.decisions);
    out.field("put_off", report.put_off);
    out.field("differences", report.differences);
    out.field("unfinished_bytes", report.unfinished_bytes);
  });
  std::printf("%s\n", out.text().c_str());
}

void tell(const service::JournalRun& journal, const service::ReplayReport& report) {
  const std::string more =
      report.files > 1 ? " and " + std::to_string(report.files - 1) + " files that follow" : std::string();
  const std::string put_off =
      report.put_off > 0 ? " (" + std::to_string(report.put_off) + " more put off)" : std::string();
  std::printf("%s%s: %llu records, %llu decisions%s, ", journal.files.front().c_str(), more.c_str(),
              static_cast<unsigned long long>(report.records),
              static_cast<unsigned long long>(report.decisions), put_off.c_str());
  if (report.is_replayed) {
    std::printf("%llu not the same\n", static_cast<unsigned long long>(report.differences));
    if (report.removed_files != 0)
      say("ashlar explain: the " + std::to_string(report.removed_files) + " files before " +
          journal.files.front() + " are not here: the replay begins with its checkpoint");
    return;
  }
  std::printf("not replayed\n");
  say("ashlar explain: " + journal.files.front() + ": the " + std::to_string(report.removed_files) +
      " files before it are not here, and its checkpoint is not whole: --decision shows what was written");
}

// As `ashlar replay` says it.
void tell_unfinished(const service::ReplayReport& report) {
  if (report.unfinished_bytes != 0)
    say("ashlar explain: " + service::unfinished_note(report.unfinished_bytes));
}

// The run that was written to last.
const service::JournalRun& last_run(const std::vector<service::JournalRun>& runs) {
  const auto written = [](const service::JournalRun& run) {
    std::error_code failed;
    return std::filesystem::last_write_time(run.files.back(), failed);
  };
  return *std::ranges::max_element(runs, {}, written);
}

int show_page(const std::vector<service::JournalRun>& runs, const service::JournalKey& key,
              const ExplainSettings& settings) {
  const auto named = std::ranges::find(runs, settings.run, &service::JournalRun::name);
  if (!settings.run.empty() && named == runs.end())
    return explain_failed(Error(ErrorCode::kNotFound,
                                "no journal there is of that run; `ashlar explain --json` lists the names"));
  const service::JournalRun& run = settings.run.empty() ? last_run(runs) : *named;
  auto page = service::JournalPage::open(run.files, key);
  if (!page) return explain_failed(page.error());
  if (runs.size() > 1 && settings.run.empty())
    say("ashlar explain: " + std::to_string(runs.size()) + " runs are here; the page shows the last, " +
        run.files.front() + "; --run chooses another");
  const service::ReplayReport& report = (*page)->report();
  if (report.differences != 0)
    say("ashlar explain: " + std::to_string(report.differences) + " decisions did not replay as written");
  tell_unfinished(report);
  StopSignal::install();
  const auto server = PageServer::start(**page, settings.port);
  if (!server) return explain_failed(server.error());
  (*server)->wait();
  return report.differences != 0 || !report.is_replayed || report.unfinished_bytes != 0 ? kExitIncomplete
                                                                                        : kExitDone;
}

int explain(const ExplainSettings& settings) {
  StopSignal::end_at_once();
  std::optional<service::DecisionName> wanted;
  if (!settings.decision.empty()) {
    const auto parsed = service::parse_decision_name(settings.decision);
    if (!parsed) return explain_failed(parsed.error());
    wanted = *parsed;
  }
  const auto runs = service::find_journals(settings.journal);
  if (!runs) return explain_failed(runs.error());
  std::string key_path = settings.key;
  if (key_path.empty())
    key_path = (std::filesystem::path(runs->front().files.front()).parent_path() / "key").string();
  const auto key = service::load_journal_key(key_path, false);
  if (!key) return explain_failed(key.error());
  if (settings.page) return show_page(*runs, *key, settings);
  bool is_found = false;
  bool is_incomplete = false;
  for (const service::JournalRun& journal : *runs) {
    std::uint64_t run = 0;
    if (wanted) {
      const std::string run_name = service::decision_name(wanted->run, wanted->decision).substr(0, 16);
      if (runs->size() > 1 && journal.name != run_name) continue;
      run = wanted->run;
    }
    std::vector<std::string> files = journal.files;
    if (wanted) {
      // From the last checkpoint before it.
      const auto file = service::file_of_decision(files, *key, wanted->decision);
      if (!file) return explain_failed(file.error());
      files = {*file};
    }
    struct Found {
      Decision decision;
      std::string group;
      ReplayVerdict verdict;
    };
    std::optional<Found> found;
    const auto report = service::replay_journal(
        files, *key, [&](const Decision& decision, const std::string& group, ReplayVerdict verdict) {
          if (wanted && decision.id == wanted->decision) found = Found{decision, group, verdict};
        });
    if (!report) return explain_failed(report.error());
    if (found) {
      (settings.json ? print_json : print)(found->decision, found->group, run, found->verdict,
                                           report->worker_names);
      is_found = report->run == wanted->run;
    }
    if (!wanted) settings.json ? tell_json(journal, *report) : tell(journal, *report);
    tell_unfinished(*report);
    is_incomplete |=
        report->differences != 0 || report->unfinished_bytes != 0 || (!wanted && !report->is_replayed);
  }
  if (wanted && !is_found)
    return explain_failed(
        Error(ErrorCode::kNotFound, "no journal there has the decision " + settings.decision));
  return is_incomplete ? kExitIncomplete : kExitDone;
}

}  // namespace

void add_explain_command(CLI::App& program, Run& run) {
  auto settings = std::make_shared<ExplainSettings>();
  CLI::App* command = program.add_subcommand(
      "explain", "Replay the journal of ashlar serve: every choice again, or the reasons of one");
  command->add_option("journal", settings->journal, "Folder or file of the journal")->required();
  command->add_option("--decision", settings->decision, "The decision, as in x-ashlar-decision-id");
  command->add_option("--key", settings->key, "File of the journal's key (default: `key` beside it)");
  command->add_flag("--page", settings->page, "Show the last run in a browser, with a slider for the time")
      ->excludes("--decision");
  command->add_option("--port", settings->port, "Port of the page, on loopback; 0: any (default 8090)")
      ->check(whole_number(0, 65'535))
      ->needs("--page");
  command->add_option("--run", settings->run, "Run of the page, as --json names it (default: the last)")
      ->needs("--page");
  command->add_flag("--json", settings->json, "One JSON object per run, or per decision, each on a line");
  end_help(command, {"ashlar explain journal/", "ashlar explain journal/ --decision 0123456789abcdef-42",
                     "ashlar explain --json journal/ | jq .differences"});
  command->callback([settings, &run] { run = [settings] { return explain(*settings); }; });
}

}  // namespace ashlar::apps
