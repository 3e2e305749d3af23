// ashlar run: the whole thing on this machine, for a look. Starts tiny engines with tiers, routes a generated
// workload to them, shows the page, and compares: no cache, round robin, and routing by what engines hold.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/completion_client.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/engine_process.h"
#include "apps/ashlar/engine_sources.h"
#include "apps/ashlar/run_phase.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/backend/http/http_proxy.h"
#include "ashlar/base/log.h"
#include "ashlar/base/random.h"
#include "ashlar/client/service_client.h"
#include "ashlar/replay/generate.h"
#include "ashlar/service/service.h"
#include "base/temporary_folder.h"

namespace ashlar::apps {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct RunSettings {
  std::uint32_t workers = 4;
  std::uint32_t seconds = 60;
  std::uint32_t requests = 0;  // 0: as many as fit
  std::uint32_t clients = 0;   // 0: two for each worker
  std::uint32_t seed = 1;
  std::uint32_t hidden = 4096;
  std::uint16_t port = 0;
  std::string engine;
  bool stays = false;
  bool prints_json = false;
};

// The requests of a client, in order: whole conversations.
using RunQueue = std::vector<CompletionRequest>;

// A block of the workload stands for one of 256 tokens of a large model and is 32 letters here, a token each.
std::string letters_of(std::uint64_t block) {
  Random random(block);
  std::string letters(32, ' ');
  for (char& letter : letters) letter = static_cast<char>('a' + random.below(26));
  return letters;
}

std::vector<RunQueue> make_queues(const RunSettings& settings, std::size_t requests) {
  const auto trace = replay::generate_trace({.kind = replay::WorkloadKind::kChat,
                                             .seed = settings.seed,
                                             .requests = requests,
                                             .block_size = 256,
                                             .rate = 2});
  std::vector<RunQueue> queues(settings.clients);
  replay::TraceRequest request;
  while (trace->next(request).value_or(false)) {
    std::string prompt;
    for (const std::uint64_t block : request.blocks) prompt += letters_of(block);
    queues[request.session % queues.size()].push_back(
        {.prompt = std::move(prompt),
         .new_tokens = std::clamp<std::uint64_t>(request.output_tokens / 32, 2, 12)});
  }
  return queues;
}

// Blocks of an engine's tiers: each holds less than an engine computes in a run, so that the next one is
// needed. G1 has room for the longest prompt of the workload.
constexpr std::uint32_t kEngineG1 = 256;
constexpr std::uint32_t kEngineG2 = 320;
constexpr std::uint32_t kEngineG3 = 384;

// Engines and the router in front of them.
struct RunFleet {
  std::string blocks;  // the folder of their blocks
  std::vector<EngineProcess> engines;
  std::unique_ptr<service::Service> service;
  std::unique_ptr<backend::http::HttpProxy> proxy;

  ~RunFleet() {
    if (proxy) proxy->drain(Clock::real().now() + std::chrono::seconds(2));
    proxy.reset();
    service.reset();
    engines.clear();
    std::error_code ignored;
    std::filesystem::remove_all(blocks, ignored);
  }
  // Of all engines, since they began.
  Result<TierCounts> hits() const {
    TierCounts sum = {};
    for (const EngineProcess& engine : engines) {
      ASHLAR_TRY(const auto client, client::ServiceClient::create({.url = engine.url()}));
      ASHLAR_TRY(const std::string metrics, client.get("/metrics"));
      const TierCounts own = tier_hits_of(metrics);
      for (std::size_t tier = 0; tier < sum.size(); ++tier) sum[tier] += own[tier];
    }
    return sum;
  }
};

// A way of routing that is compared.
struct RunWay {
  const char* name;
  const char* title;  // of its page
  service::Policy policy;
  bool caches;
};
constexpr RunWay kRunWays[] = {{"no cache", "1 of 3: no cache", service::Policy::kRoundRobin, false},
                               {"round robin", "2 of 3: round robin", service::Policy::kRoundRobin, true},
                               {"prefix", "3 of 3: by prefix", service::Policy::kPrefix, true}};

// A folder for the file of each engine, which is G3; its volume, G4, makes its own. Errors: kIo.
Result<void> make_folders(const RunSettings& settings, const std::string& blocks) {
  std::error_code failed;
  for (std::uint32_t i = 0; i < settings.workers && !failed; ++i)
    std::filesystem::create_directories(blocks + "/engine" + std::to_string(i), failed);
  if (failed) return Error(ErrorCode::kIo, blocks + ": " + failed.message());
  return {};
}

// `before` goes when everything else of the new one is there: the page loses contact for a moment only.
Result<std::unique_ptr<RunFleet>> start_fleet(const RunSettings& settings, const std::string& folder,
                                              const RunWay& way, std::uint16_t port,
                                              std::unique_ptr<RunFleet> before) {
  auto fleet = std::make_unique<RunFleet>();
  service::ServeOptions options;
  options.policy = way.policy;
  options.title = way.title;
  options.port = port;
  options.log_level = "error";
  options.journal = folder + "/journal";
  fleet->blocks = folder + "/blocks" + std::to_string(&way - kRunWays);
  ASHLAR_RETURN_IF_ERROR(make_folders(settings, fleet->blocks));
  for (std::uint32_t i = 0; i < settings.workers; ++i) {
    std::vector<std::string> arguments = {"--port",        "0",
                                          "--events",      "0",
                                          "--replay",      "0",
                                          "--g1",          std::to_string(kEngineG1),
                                          "--g2",          std::to_string(kEngineG2),
                                          "--max-running", "16",
                                          "--step-tokens", "128",
                                          "--layers",      "2",
                                          "--hidden",      std::to_string(settings.hidden)};
    if (way.caches) {
      arguments.insert(arguments.end(), {"--g3", std::to_string(kEngineG3), "--folder",
                                         fleet->blocks + "/engine" + std::to_string(i), "--volume",
                                         fleet->blocks + "/volume" + std::to_string(i)});
    } else {
      arguments.push_back("--no-prefix-caching");
    }
    ASHLAR_TRY(EngineProcess engine, EngineProcess::start(settings.engine, std::move(arguments)));
    ASHLAR_TRY(service::WorkerOptions worker, service::parse_worker(engine.worker()));
    worker.name = "engine" + std::to_string(i);
    worker.g1 = kEngineG1;
    worker.g2 = kEngineG2;
    worker.g3 = way.caches ? kEngineG3 : 0;
    options.workers.push_back(std::move(worker));
    fleet->engines.push_back(std::move(engine));
  }
  ASHLAR_TRY(fleet->service, service::Service::create(options, engine_sources()));
  backend::http::HttpProxyOptions proxy;
  proxy.address = options.address;
  proxy.port = options.port;
  before.reset();  // its port is taken again
  ASHLAR_TRY(fleet->proxy, backend::http::HttpProxy::create(proxy, *fleet->service));
  // The router learns what its workers serve; until then it refuses.
  const auto last = SteadyClock::now() + std::chrono::minutes(2);
  for (;;) {
    const auto answer = complete(fleet->proxy->port(), {.prompt = "hello", .new_tokens = 1});
    if (answer) return fleet;
    if (SteadyClock::now() >= last || StopSignal::received()) return answer.error();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Sends the first `counts[i]` requests of every queue i, each by a thread, until `until`.
RunPhase send_all(const std::vector<RunQueue>& queues, const std::vector<std::size_t>& counts,
                  std::uint16_t port, SteadyClock::time_point until, std::atomic<std::size_t>& done) {
  RunPhase all;
  std::vector<RunPhase> parts(queues.size());
  {
    std::vector<std::jthread> clients;
    for (std::size_t i = 0; i < queues.size(); ++i) {
      clients.emplace_back(
          [queue = std::span(queues[i]).first(counts[i]), &part = parts[i], port, until, &done] {
            std::vector<std::string>& texts = part.texts.emplace_back();
            for (const CompletionRequest& request : queue) {
              if (SteadyClock::now() >= until || StopSignal::received()) return;
              const auto answer = complete(port, request);
              if (!answer) {
                part.problem = answer.error().message();
                return;
              }
              ++part.requests;
              part.prompt_tokens += answer->prompt_tokens;
              part.cached_tokens += answer->cached_tokens;
              part.first_ms.push_back(answer->first_token.count());
              texts.push_back(answer->text);
              ++done;
            }
          });
    }
  }
  for (RunPhase& part : parts) {
    all.requests += part.requests;
    all.prompt_tokens += part.prompt_tokens;
    all.cached_tokens += part.cached_tokens;
    all.first_ms.insert(all.first_ms.end(), part.first_ms.begin(), part.first_ms.end());
    all.texts.push_back(std::move(part.texts.at(0)));
    if (all.problem.empty()) all.problem = part.problem;
  }
  std::ranges::sort(all.first_ms);
  return all;
}

// How many answers of the second differ from those of the first, where both have one.
std::size_t differing(const RunPhase& a, const RunPhase& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(a.texts.size(), b.texts.size()); ++i)
    for (std::size_t k = 0; k < std::min(a.texts[i].size(), b.texts[i].size()); ++k)
      count += a.texts[i][k] != b.texts[i][k] ? 1 : 0;
  return count;
}

int run_failed(const std::string& why) {
  say("ashlar run: " + why);
  return kExitFailed;
}

int run_everything(RunSettings settings) {
  if (settings.clients == 0) settings.clients = 2 * settings.workers;
  set_log_level(LogLevel::kError);
  if (settings.engine.empty()) {
    auto found = EngineProcess::find_program();
    if (!found) return run_failed(found.error().message());
    settings.engine = *std::move(found);
  }
  const auto folder = TemporaryFolder::create("ashlar_run");
  if (!folder) return run_failed(folder.error().message() + "; TMPDIR must name a writable one");
  const std::vector<RunQueue> queues =
      make_queues(settings, settings.requests != 0 ? settings.requests : std::size_t{settings.seconds} * 100);
  std::vector<RunPhase> phases;
  std::vector<std::size_t> counts;  // of each queue, that every way of routing is given
  for (const RunQueue& queue : queues) counts.push_back(queue.size());
  std::unique_ptr<RunFleet> fleet;
  std::uint16_t port = settings.port;
  for (const RunWay& way : kRunWays) {
    auto started = start_fleet(settings, folder->path(), way, port, std::move(fleet));
    if (!started) return run_failed(started.error().message());
    fleet = *std::move(started);
    port = fleet->proxy->port();
    if (!settings.prints_json && phases.empty()) {
      std::printf(
          "%u engines, each with G1, G2 and a file (G3), and a volume (G4); %u clients in "
          "conversations\n",
          settings.workers, settings.clients);
      std::printf("the page: http://127.0.0.1:%u/\n\n", port);
    }
    if (!settings.prints_json) std::printf("  %-12s ...", way.name), std::fflush(stdout);
    const bool is_first = phases.empty();
    const auto began = SteadyClock::now();
    // The first, which is the slowest, says how many requests fit into a third of the time.
    const auto until = is_first && settings.requests == 0 ? began + std::chrono::seconds(settings.seconds) / 3
                                                          : SteadyClock::time_point::max();
    std::atomic<std::size_t> done = 0;
    RunPhase phase = send_all(queues, counts, port, until, done);
    phase.seconds = std::chrono::duration<double>(SteadyClock::now() - began).count();
    phase.name = way.name;
    if (!phase.problem.empty()) return run_failed(phase.problem);
    if (StopSignal::received()) return run_failed("stopped before its end");
    const auto hits = fleet->hits();
    if (!hits) return run_failed(hits.error().message());
    phase.hits = *hits;
    if (is_first)
      for (std::size_t i = 0; i < queues.size(); ++i) counts[i] = phase.texts[i].size();
    else
      phase.wrong = differing(phases[0], phase);
    if (!settings.prints_json) std::printf(" %zu requests in %.1f s\n", phase.requests, phase.seconds);
    phases.push_back(std::move(phase));
  }
  std::size_t wrong = 0;
  for (const RunPhase& phase : phases) wrong += phase.wrong;
  if (settings.prints_json) {
    std::printf("{\"port\":%u,\"workers\":%u,\"clients\":%u,\"phases\":%s}\n", port, settings.workers,
                settings.clients, phases_json(phases).c_str());
  } else {
    print_phases(phases);
    std::printf("\n%zu of %zu answers from cached blocks are those of the model without a cache\n",
                phases[1].requests + phases[2].requests - wrong, phases[1].requests + phases[2].requests);
    if (phases[2].first_at(0.5) > 0)
      std::printf("time to first token (p50): without a cache %.1f times as long, round robin %.1f times\n",
                  phases[0].first_at(0.5) / phases[2].first_at(0.5),
                  phases[1].first_at(0.5) / phases[2].first_at(0.5));
  }
  if (!settings.stays && !settings.prints_json)
    std::printf("\nthe page ends here; with --stay (make run STAY=1) it goes on, with traffic\n");
  if (settings.stays && !StopSignal::received()) {
    if (!settings.prints_json)
      std::printf("\nthe page stays at http://127.0.0.1:%u/ with traffic; Ctrl-C ends it\n", port);
    std::fflush(stdout);
    std::atomic<std::size_t> done = 0;
    for (std::size_t i = 0; i < queues.size(); ++i) counts[i] = queues[i].size();
    while (!StopSignal::received()) {
      const RunPhase more = send_all(queues, counts, port, SteadyClock::time_point::max(), done);
      if (!more.problem.empty()) return run_failed(more.problem);
    }
  }
  return wrong == 0 ? kExitDone : kExitFailed;
}

}  // namespace

void add_run_command(CLI::App& program, Run& run) {
  auto settings = std::make_shared<RunSettings>();
  CLI::App* command = program.add_subcommand(
      "run", "Show it all on this machine: tiny engines, tiers, the router, its page, and what it gains");
  command->add_option("--workers", settings->workers, "Engines (default 4)")
      ->check(whole_number(1, 64))
      ->type_name("N");
  command->add_option("--duration", settings->seconds, "About so long (default 60)")
      ->check(whole_number(3, 3'600))
      ->type_name("SECONDS");
  command->add_option("--requests", settings->requests, "So many with each routing, however long that takes")
      ->check(whole_number(1, 1'000'000))
      ->type_name("N");
  command->add_option("--clients", settings->clients, "Clients at a time (default: two for each engine)")
      ->check(whole_number(1, 1'024))
      ->type_name("N");
  command->add_option("--seed", settings->seed, "Of the conversations (default 1)")
      ->check(whole_number(0, UINT32_MAX))
      ->type_name("N");
  command
      ->add_option("--hidden", settings->hidden,
                   "Width of the engines' model: a larger one computes longer "
                   "(default 4096)")
      ->check(whole_number(32, 65'536))
      ->type_name("N");
  command->add_option("--port", settings->port, "Of the router and its page (default: any)")
      ->check(whole_number(0, 65'535))
      ->type_name("PORT");
  command->add_option("--engine", settings->engine, "The program tiny_server (default: the one beside this)")
      ->type_name("FILE");
  command->add_flag("--stay", settings->stays, "Go on with traffic until Ctrl-C, for the page");
  command->add_flag("--json", settings->prints_json, "The result as JSON");
  end_help(command, {"ashlar run                               # four engines, about a minute",
                     "ashlar run --duration 10 --workers 2",
                     "ashlar run --stay --port 8080            # then open http://127.0.0.1:8080/"});
  command->callback([settings, &run] { run = [settings] { return run_everything(*settings); }; });
}

}  // namespace ashlar::apps
