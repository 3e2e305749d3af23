// ashlar replay: a trace, or a generated workload, through workers, tiers, policies and routers.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/page_server.h"
#include "apps/ashlar/report_page.h"
#include "apps/ashlar/run_journals.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/block/eviction.h"
#include "ashlar/replay/generate.h"
#include "ashlar/replay/real.h"
#include "ashlar/replay/report.h"
#include "replay/plan/model_shape.h"
#include "replay/trace/replaced_file.h"
#include "service/gateway/json_text.h"

namespace ashlar::apps {
namespace {

constexpr double kGiga = 1e9;
constexpr std::uint32_t kMostBlocks = UINT32_MAX - 3;     // of a tier
constexpr std::size_t kPageBytes = std::size_t{1} << 30;  // of the pages of all runs

struct ReplaySettings {
  std::string trace;
  std::string generate;
  std::string format = "detect";
  replay::TraceOptions reading;
  std::string write;
  std::vector<std::uint32_t> workers = {1};
  std::array<std::vector<std::string>, replay::kReplayTiers> sizes = {{{"10000"}, {"0"}, {"0"}}};
  std::string model;
  std::vector<std::string> policies = {"lru"};
  std::vector<std::string> routers = {"prefix"};
  bool simulates = false;
  bool is_real = false;
  replay::RealOptions real;
  bool no_bound = false;
  bool has_seed = false;  // was given, as were speeds
  std::array<bool, replay::kReplayTiers> has_speed = {};
  double g2_gb = 40;
  double g3_gb = 5;
  replay::ReplayConfig config;
  std::string report;
  bool page = false;
  std::uint16_t port = 8090;
  bool json = false;
  bool quiet = false;
};

// One line on a terminal that is written over; nothing elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(bool is_shown) : is_shown_(is_shown && isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& what, std::uint64_t done, std::uint64_t all) {
    const auto now = std::chrono::steady_clock::now();
    if (!is_shown_ || now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    constexpr std::uint64_t kWidth = 32;
    std::string bar;
    if (all > 0) {
      bar = " [" + std::string(kWidth * done / all, '#') + std::string(kWidth - kWidth * done / all, ' ') +
            "] " + std::to_string(100 * done / all) + " %";
    } else {
      bar = " " + std::to_string(done) + " requests";
    }
    std::fprintf(stderr, "\r\x1B[K%s%s", what.c_str(), bar.c_str());
    std::fflush(stderr);
    is_dirty_ = true;
  }
  void clear() {
    if (is_dirty_) std::fprintf(stderr, "\r\x1B[K");
    is_dirty_ = false;
  }

 private:
  const bool is_shown_;
  bool is_dirty_ = false;
  std::chrono::steady_clock::time_point last_;
};

int replay_failed(const Error& error) {
  say("ashlar replay: " + error.message());
  return kExitFailed;
}

Result<void> check_policy(const std::string& name) {
  const std::vector<std::string> known = block::eviction_names();
  if (std::ranges::find(known, name) != known.end()) return {};
  std::string names;
  for (const std::string& one : known) names += (names.empty() ? "" : ", ") + one;
  return Error(ErrorCode::kNotFound, "takes a policy: " + names);
}

// A number of blocks, or bytes: "5000", "57GiB".
struct TierSize {
  std::uint64_t blocks = 0;
  double bytes = 0;  // 0: blocks are said
};

Result<TierSize> parse_tier_size(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                                                            {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  const Error refused =
      make_error(ErrorCode::kInvalidArgument,
                 "takes blocks, 0 to %u, or bytes as 57GiB (MiB, GiB, TiB, MB, GB, TB)", kMostBlocks);
  TierSize size;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (read.ec != std::errc() || number < 0) return refused;
  const std::string_view unit(read.ptr, static_cast<std::size_t>(end - read.ptr));
  for (const auto& [name, bytes] : kUnits)
    if (unit == name && number > 0) return TierSize{.blocks = 0, .bytes = number * bytes};
  if (!unit.empty() || number != std::floor(number) || number > kMostBlocks) return refused;
  size.blocks = static_cast<std::uint64_t>(number);
  return size;
}

// `block_bytes`: of a block of the trace; 0: not known yet, and any size in bytes is taken for one block.
Result<std::vector<std::uint32_t>> blocks_of(const ReplaySettings& settings, std::size_t tier,
                                             std::uint64_t block_bytes) {
  std::vector<std::uint32_t> all;
  for (const std::string& text : settings.sizes[tier]) {
    ASHLAR_TRY(const TierSize size, parse_tier_size(text));
    double blocks = static_cast<double>(size.blocks);
    if (size.bytes > 0)
      blocks = block_bytes == 0 ? 1 : std::floor(size.bytes / static_cast<double>(block_bytes));
    if (blocks > kMostBlocks || (size.bytes > 0 && blocks < 1))
      return make_error(ErrorCode::kInvalidArgument,
                        "--g%zu %s is %.0f blocks of %llu bytes; a tier has 1 to %u", tier + 1, text.c_str(),
                        blocks, static_cast<unsigned long long>(block_bytes), kMostBlocks);
    all.push_back(static_cast<std::uint32_t>(blocks));
  }
  return all;
}

bool is_absent(const ReplaySettings& settings, std::size_t tier) {
  const std::vector<std::string>& sizes = settings.sizes[tier];
  return std::ranges::all_of(sizes, [](const std::string& text) {
    const auto size = parse_tier_size(text);
    return size && size->blocks == 0 && size->bytes == 0;
  });
}

// Every combination of the lists. `block_size`: tokens of a block of the trace; 0: not known yet.
Result<std::vector<replay::ReplayConfig>> configs_of(const ReplaySettings& settings,
                                                     std::uint32_t block_size = 0) {
  std::vector<std::string> policies = settings.policies;
  if (std::ranges::find(policies, "all") != policies.end()) {
    if (policies.size() > 1)
      return Error(ErrorCode::kInvalidArgument,
                   "--policy all takes every policy; leave out the others, or all");
    policies = block::eviction_names();
  }
  std::array<std::vector<std::uint32_t>, replay::kReplayTiers> blocks;
  for (std::size_t tier = 0; tier < replay::kReplayTiers; ++tier) {
    ASHLAR_TRY(blocks[tier], blocks_of(settings, tier, block_size * settings.config.bytes_per_token));
  }
  std::vector<replay::ReplayConfig> configs;
  for (const std::uint32_t workers : settings.workers)
    for (const std::uint32_t g1 : blocks[0])
      for (const std::uint32_t g2 : blocks[1])
        for (const std::uint32_t g3 : blocks[2])
          for (const std::string& router : settings.routers)
            for (const std::string& policy : policies) {
              replay::ReplayConfig config = settings.config;
              config.workers = workers;
              config.tier_blocks = {g1, g2, g3};
              config.policy = policy;
              ASHLAR_TRY(config.routing, replay::parse_routing(router));
              config.has_bound = !settings.no_bound;
              config.tier_bytes_per_second = {0, settings.g2_gb * kGiga, settings.g3_gb * kGiga};
              ASHLAR_RETURN_IF_ERROR(config.validate());
              configs.push_back(std::move(config));
            }
  return configs;
}

template <class T>
Result<void> check_list(const char* option, const std::vector<T>& list) {
  for (auto one = list.begin(); one != list.end(); ++one) {
    if (std::find(list.begin(), one, *one) == one) continue;
    std::ostringstream name;
    name << *one;
    return make_error(ErrorCode::kInvalidArgument, "%s has %s twice: there is one run for each", option,
                      name.str().c_str());
  }
  return {};
}

// No run is made twice, and no option is of what no run has.
Result<void> check_lists(const ReplaySettings& settings) {
  ASHLAR_RETURN_IF_ERROR(check_list("--policy", settings.policies));
  ASHLAR_RETURN_IF_ERROR(check_list("--router", settings.routers));
  ASHLAR_RETURN_IF_ERROR(check_list("--workers", settings.workers));
  for (std::size_t i = 0; i < replay::kReplayTiers; ++i) {
    const std::string tier = "--g" + std::to_string(i + 1);
    ASHLAR_RETURN_IF_ERROR(check_list(tier.c_str(), settings.sizes[i]));
    if (settings.has_speed[i] && is_absent(settings, i))
      return make_error(ErrorCode::kInvalidArgument, "%s-gb is of a tier without blocks; give %s",
                        tier.c_str(), tier.c_str());
  }
  if (settings.has_seed && std::ranges::find(settings.routers, "random") == settings.routers.end())
    return Error(ErrorCode::kInvalidArgument,
                 "--seed is of random routing; give --router random (a workload has its own: "
                 "--generate KIND,seed=N)");
  return {};
}

// Whether the arguments go together. Nothing is read.
Result<void> check_arguments(const ReplaySettings& settings) {
  if (settings.trace.empty() && settings.generate.empty())
    return Error(ErrorCode::kInvalidArgument, "a trace is needed, or --generate");
  if (!settings.trace.empty() && !settings.generate.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "a trace is replayed, or a workload that is generated: leave out the trace or --generate");
  for (std::size_t i = 1; i < replay::kReplayTiers; ++i)
    if (!settings.config.tier_policy[i].empty() && is_absent(settings, i))
      return make_error(ErrorCode::kInvalidArgument, "--g%zu-policy is of a tier without blocks; give --g%zu",
                        i + 1, i + 1);
  ASHLAR_RETURN_IF_ERROR(check_lists(settings));
  if (settings.is_real) ASHLAR_RETURN_IF_ERROR(settings.real.validate());
  const auto configs = configs_of(settings);
  return configs ? Result<void>() : configs.error();
}

// Requires: check_arguments().
Result<std::unique_ptr<replay::TraceSource>> open_workload(const ReplaySettings& settings) {
  if (!settings.generate.empty()) {
    ASHLAR_TRY(const replay::GeneratorOptions options, replay::parse_generator(settings.generate));
    return replay::generate_trace(options);
  }
  replay::TraceOptions options = settings.reading;
  ASHLAR_TRY(options.format, replay::parse_trace_format(settings.format));
  return replay::open_trace(settings.trace, options);
}

Error report_failed(const std::string& path) {
  return make_error(ErrorCode::kIo, "cannot write the report %s: %s", path.c_str(),
                    std::generic_category().message(errno).c_str());
}

int write_workload(const ReplaySettings& settings, replay::TraceSource& source) {
  ProgressLine progress(!settings.quiet);
  const auto written = replay::write_trace(source, settings.write, [&](std::uint64_t requests) {
    progress.show("writing", requests, 0);
    return !StopSignal::received();
  });
  progress.clear();
  if (!written) return replay_failed(written.error());
  const replay::TraceFacts& read = source.facts();
  const bool is_whole = read.skipped_lines == 0 && read.unfinished_bytes == 0;
  std::vector<std::string> notes;
  if (!is_whole || read.other_size != 0 || read.contradicting != 0) {
    replay::ReplaySubject subject;
    subject.facts = read;
    notes = replay::notes_of(subject);
  }
  if (settings.json) {
    service::JsonText out;
    out.object([&] {
      out.field("written", settings.write);
      out.field("requests", *written);
      out.field("notes", [&] {
        out.array([&] {
          for (const std::string& note : notes) out.value(note);
        });
      });
    });
    std::printf("%s\n", out.text().c_str());
  } else if (!settings.quiet) {
    say(settings.write + ": " + std::to_string(*written) + " requests");
  }
  for (const std::string& note : notes) say("ashlar replay: " + note);
  return is_whole ? kExitDone : kExitIncomplete;
}

int run_replay(const ReplaySettings& settings) {
  std::error_code absent;
  if (!settings.report.empty() && std::filesystem::equivalent(settings.report, settings.trace, absent))
    return replay_failed(
        Error(ErrorCode::kInvalidArgument, "--report names the trace itself, which it would replace"));
  auto source = open_workload(settings);
  if (!source) return replay_failed(source.error());
  if (!settings.write.empty()) return write_workload(settings, **source);
  // Before the runs, which may take long.
  std::optional<replay::ReplacedFile> report;
  if (!settings.report.empty() && !report.emplace(settings.report).is_open())
    return replay_failed(report_failed(settings.report));
  std::optional<RunJournals> journals;  // outlive the pages that read them
  ReportPage page;
  std::unique_ptr<PageServer> server;
  if (settings.page) {
    auto made = RunJournals::create();
    if (!made) return replay_failed(made.error());
    journals.emplace(*std::move(made));
    auto started = PageServer::start(page, settings.port, settings.json ? stderr : stdout);
    if (!started) return replay_failed(started.error());
    server = *std::move(started);
  }
  ProgressLine progress(!settings.quiet);
  const auto trace = replay::TraceTable::load(**source, [&](std::uint64_t requests) {
    progress.show("reading", requests, 0);
    return !StopSignal::received();
  });
  if (!trace) {
    progress.clear();
    return replay_failed(trace.error());
  }
  // A trace without blocks fills none.
  const auto configs = configs_of(settings, std::max<std::uint32_t>(1, trace->facts().block_size));
  if (!configs) {
    progress.clear();
    return replay_failed(configs.error());
  }
  const replay::ReplaySubject subject =
      replay::subject_of(settings.generate.empty() ? settings.trace : settings.generate, *trace);
  std::vector<replay::ReplayOutcome> runs;
  for (const replay::ReplayConfig& config : *configs) {
    const std::string what = std::to_string(runs.size() + 1) + "/" + std::to_string(configs->size()) + " " +
                             config.policy + ", " + std::string(to_string(config.routing));
    const replay::ReplayProgress each = [&](std::uint64_t done, std::uint64_t all) {
      progress.show(what, done, all);
      if (journals) journals->keep_up();
      return !StopSignal::received();
    };
    service::RouteLog* log = nullptr;
    if (journals) {
      if (const auto begun = journals->begin(config); !begun) return replay_failed(begun.error());
      log = journals->log();
    }
    auto run = settings.is_real ? replay::replay_real(*trace, config, settings.real, each, log)
                                : replay::simulate(*trace, config, each, log);
    if (!run) {
      progress.clear();
      return replay_failed(run.error());
    }
    runs.push_back(*std::move(run));
    if (server) {
      auto shown = journals->finish(title_of(config), kPageBytes / configs->size());
      if (!shown) say("ashlar replay: the page has the report of this run only: " + shown.error().message());
      page.add_run(title_of(config), shown ? *std::move(shown) : nullptr);
      page.show(replay::replay_html(subject, runs), replay::replay_json(subject, runs),
                runs.size() == configs->size());
    }
  }
  progress.clear();
  const std::string text =
      settings.json ? replay::replay_json(subject, runs) : replay::replay_table(subject, runs);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (report) {
    std::fflush(stdout);  // the report may go there too
    if (!report->put(replay::replay_html(subject, runs)) || !report->finish())
      return replay_failed(report_failed(settings.report));
    if (!settings.quiet) say("report: " + settings.report);
  }
  if (server && flush_output()) server->wait();
  const replay::TraceFacts& facts = subject.facts;
  if (facts.skipped_lines == 0 && facts.unfinished_bytes == 0) return kExitDone;
  if (settings.json)
    for (const std::string& note : replay::notes_of(subject)) say("ashlar replay: " + note);
  return kExitIncomplete;
}

}  // namespace

void add_replay_command(CLI::App& program, Run& run) {
  auto settings = std::make_shared<ReplaySettings>();
  CLI::App* command = program.add_subcommand(
      "replay",
      "Replay a trace through workers, tiers, eviction policies and routers: what would hit, and where");
  end_help(command, {"ashlar replay trace.jsonl --g1 5000,20000 --policy lru,lfu,s3_fifo",
                     "ashlar replay trace.jsonl --model Llama-3.1-8B --g1 57GiB --g2 512GiB",
                     "ashlar replay trace.jsonl --workers 8 --g1 2000 --g2 10000 --g3 100000 \\",
                     "    --router prefix,round_robin --report report.html",
                     "ashlar replay --generate agents,seed=7,requests=20000 --policy all --json",
                     "ashlar replay --generate chat --write chat.jsonl",
                     "ashlar replay trace.jsonl --real --g1 2000 --g2 4000 --g3 20000 --folder /nvme0/kv",
                     "ashlar replay /var/lib/ashlar/journal --g1 4096"});
  command->add_option("trace", settings->trace, "trace: a file, a folder, or - for standard input");
  CLI::Option* generates =
      command
          ->add_option("--generate", settings->generate,
                       "a workload instead: chat, prompts, agents, documents or mix, then "
                       ",seed=N,requests=N,block=N,rate=N")
          ->check(read_by(replay::parse_generator));
  command->add_option("--format", settings->format, "form of the trace (default: as it looks)")
      ->check(read_by(replay::parse_trace_format, replay::trace_format_names()))
      ->excludes(generates);
  command
      ->add_option("--block-size", settings->reading.block_size,
                   "tokens per block, where the trace does not say")
      ->check(whole_number(1, 1 << 20))
      ->excludes(generates);
  command
      ->add_flag("--lenient", settings->reading.is_lenient, "skip lines that cannot be read, and count them")
      ->excludes(generates);
  command
      ->add_option("--session-interval", settings->reading.session_interval_ms,
                   "ms between the starts of Weka sessions")
      ->check(whole_number(0, 1'000'000'000))
      ->capture_default_str()
      ->excludes(generates);
  command
      ->add_option("--key", settings->reading.journal_key,
                   "file of a journal's key (default: `key` beside it)")
      ->excludes(generates);
  command->add_option("--write", settings->write, "write the trace in Mooncake's form to FILE, and end");
  CLI::Option* simulates = command->add_flag("--simulate", settings->simulates,
                                             "policies and routing only, without bytes (the default)");
  CLI::Option* with_bytes =
      command->add_flag("--real", settings->is_real, "managers with bytes; every hit is compared")
          ->excludes(simulates);
  command
      ->add_option("--folder", settings->real.folder,
                   "with --real: folder for the files of G3 (default: a temporary one)")
      ->needs(with_bytes);
  command->add_option("--block-bytes", settings->real.block_bytes, "with --real: bytes of a block")
      ->check(whole_number(4'096, 1 << 30))
      ->capture_default_str()
      ->needs(with_bytes);
  command->add_option("--workers", settings->workers, "workers; several: one run each")
      ->delimiter(',')
      ->check(whole_number(1, 4'096))
      ->capture_default_str();
  const char* const tiers[] = {"G1 at each worker: blocks, or bytes as 57GiB; several: one run each",
                               "G2: blocks or bytes; 0: none", "G3: blocks or bytes; 0: none"};
  for (std::size_t i = 0; i < replay::kReplayTiers; ++i)
    command->add_option("--g" + std::to_string(i + 1), settings->sizes[i], tiers[i])
        ->delimiter(',')
        ->check(read_by(parse_tier_size))
        ->type_name("SIZE")
        ->capture_default_str();
  std::vector<std::string> policies = block::eviction_names();
  policies.emplace_back("all");
  std::vector<std::string> routers;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(replay::Routing::kSticky); ++i)
    routers.emplace_back(to_string(static_cast<replay::Routing>(i)));
  command
      ->add_option("--policy", settings->policies,
                   "eviction policies by name, or all (docs/eviction.md); several: one run each")
      ->delimiter(',')
      ->check(
          read_by([](const std::string& text) { return text == "all" ? Result<void>() : check_policy(text); },
                  policies))
      ->capture_default_str();
  for (std::size_t i = 1; i < replay::kReplayTiers; ++i)
    command
        ->add_option("--g" + std::to_string(i + 1) + "-policy", settings->config.tier_policy[i],
                     "eviction policy of this tier (default: as --policy)")
        ->check(read_by(check_policy, block::eviction_names()));
  command->add_option("--router", settings->routers, "routers by name; several: one run each")
      ->delimiter(',')
      ->check(read_by(replay::parse_routing, routers))
      ->capture_default_str();
  command->add_option("--seed", settings->config.seed, "of random routing")
      ->check(whole_number())
      ->capture_default_str();
  command->add_flag("--no-bound", settings->no_bound,
                    "leave out what a cache that knows the future would find");
  CLI::Option* bytes =
      command->add_option("--bytes-per-token", settings->config.bytes_per_token, "for bytes and times")
          ->check(whole_number(1, std::uint64_t{1} << 32))
          ->capture_default_str();
  command
      ->add_option("--model", settings->model,
                   "model whose bytes per token these are, by name (ashlar plan --models)")
      ->check(read_by(replay::find_model))
      ->type_name("NAME")
      ->excludes(bytes);
  command
      ->add_option("--prefill-rate", settings->config.prefill_tokens_per_second,
                   "prompt tokens that a worker computes per second")
      ->check(real_number(1e-3, 1e12))
      ->capture_default_str();
  command->add_option("--decode-ms", settings->config.decode_ms_per_token, "ms per token of an answer")
      ->check(real_number(0, 1e9))
      ->capture_default_str();
  command->add_option("--g2-gb", settings->g2_gb, "GB/s from G2 up; 0: at once")
      ->check(real_number(0, 1e6))
      ->capture_default_str();
  command->add_option("--g3-gb", settings->g3_gb, "GB/s from G3 up; 0: at once")
      ->check(real_number(0, 1e6))
      ->capture_default_str();
  CLI::Option* shows = command
                           ->add_flag("--page", settings->page,
                                      "show the runs in a browser: the live page over each, and the report")
                           ->excludes("--write");
  command->add_option("--port", settings->port, "port of the page, on loopback; 0: any (default 8090)")
      ->check(whole_number(0, 65'535))
      ->needs(shows);
  command->add_option("--report", settings->report, "write an HTML report with charts to FILE")
      ->excludes("--write");
  command->add_flag("--json", settings->json, "JSON on standard output instead of the table");
  command->add_flag("--quiet", settings->quiet, "no progress on standard error");
  command->callback([settings, command, &run] {
    settings->has_seed = command->count("--seed") != 0;
    if (!settings->model.empty())
      settings->config.bytes_per_token = replay::find_model(settings->model).value().bytes_per_token();
    settings->has_speed = {false, command->count("--g2-gb") != 0, command->count("--g3-gb") != 0};
    if (const auto fits = check_arguments(*settings); !fits) refuse_arguments(fits.error());
    run = [settings] { return run_replay(*settings); };
  });
}

}  // namespace ashlar::apps
