// What a proxy adds: `ashlar serve` beside nginx and routers of the field, over loopback, before the same two
// dummy workers.
//
//   proxy_bench                        all loads, five rounds, with the rivals that are found
//   proxy_bench --rounds 9 --cases c1  nine rounds of the cases with "c1" in their name
//   proxy_bench --idle 5000            memory of so many silent streams
//   taskset -c 4-15 proxy_bench --cores 0,2    proxies on two cores, client and workers on others
//
// A round measures every target once (the workers without a proxy, ours, the rivals, in turn), so a busy
// machine disturbs all. "Added" is what a target measured less what the workers alone did in the same round.
// Runs in which other programs used more than --busy of the machine (15 %) are left out where at least three
// others remain. Ratios are rival / ours, round by round; for requests per second ours / rival.
//
// `ashlar serve` runs twice: as it comes, where text prompts that it has not seen are tokenised by a worker,
// and with --tokenize false, where they are routed by load. The rivals route by characters.
//
// Workers have no events, but in the cases "sibling" and "follow-up": there they publish what they store, and
// ours knows it (EXACT). Siblings are new questions behind one of 8 long system messages; follow-ups are the
// turns of 64 conversations side by side, each with what its worker answered.
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dummy_worker.h"
#include "http_load.h"
#include "processes.h"
#include "proxy_cases.h"
#include "ratio.h"

namespace ashlar::bench {
namespace {

using namespace std::chrono_literals;

constexpr double kLatencyTarget = 2;  // times ours
constexpr double kLeastAdded = 0.5;   // us; less is not told from noise
constexpr double kThroughputTarget = 2.5;
constexpr double kAddedTarget = 60;  // us, 2 KiB, one at a time
constexpr std::string_view kOurs = "ashlar serve";
constexpr const char* kQuestion = "direct, /tokenize";
constexpr std::string_view kOursByLoad = "ashlar, by load";

constexpr const char* kTaskset = "/usr/bin/taskset";

struct ProxyBenchOptions {
  std::size_t rounds = 5;
  double seconds = 0.6;
  double busy = 0.15;
  std::size_t idle = 0;
  std::string cases;
  std::string rivals;  // folder of the virtual environments
  std::string cores;   // of each proxy, as taskset takes them; empty: those of this process
};

struct Target {
  std::string name;
  std::uint16_t port = 0;
  Program program = {};
};

// One target, one round.
struct Sample {
  double mean = 0;
  double p50 = 0;
  double p99 = 0;
  double first = 0;
  double cpu = 0;  // us per request
  double per_second = 0;
  double others = 0;  // share of the machine
};

// ---- targets

class Field {
 public:
  explicit Field(const ProxyBenchOptions& options, bool has_events = false)
      : folder_(make_folder()), cores_(options.cores) {
    for (int i = 0; i < 2; ++i) workers_.push_back(DummyWorker::start(has_events));
    targets_.push_back({.name = "direct", .port = workers_[0].port()});
    targets_.push_back(start_ours(std::string(kOurs), "true"));
    if (options.idle == 0) targets_.push_back(start_ours(std::string(kOursByLoad), "false"));
    add_nginx(find_program({options.rivals + "/nginx/usr/sbin/nginx", "/usr/sbin/nginx", "/usr/bin/nginx",
                            "/usr/local/bin/nginx"}));
    add_router("vllm-router", find_program({options.rivals + "/vllm-router-venv/bin/vllm-router"}), {},
               "warning");
    add_router("smg", find_program({options.rivals + "/smg-venv/bin/smg"}), "launch", "warn");
    add_router("sglang-router", find_program({options.rivals + "/sglang-router-venv/bin/sglang-router"}),
               "launch", "warn");
    for (Target& target : targets_) wait_until_ready(target);
  }
  ~Field() { std::filesystem::remove_all(folder_); }

  std::vector<Target>& targets() noexcept { return targets_; }
  bool has(std::string_view name) const {
    return std::ranges::any_of(targets_, [&](const Target& target) { return target.name == name; });
  }
  CpuTime worker_cpu() const {
    CpuTime sum{};
    for (const DummyWorker& worker : workers_) sum += worker.program().cpu();
    return sum;
  }

 private:
  static std::string make_folder() {
    std::string name = std::filesystem::temp_directory_path() / "proxy_bench.XXXXXX";
    if (mkdtemp(name.data()) == nullptr) fail("cannot make a folder " + name);
    return name;
  }
  std::string url(std::size_t worker) const {
    return "http://127.0.0.1:" + std::to_string(workers_[worker].port());
  }
  Program start(std::vector<std::string> command, const std::string& log = "/dev/null") const {
    if (!cores_.empty()) command.insert(command.begin(), {kTaskset, "-c", cores_});
    return Program::start(std::move(command), log);
  }
  Target start_ours(std::string name, const std::string& tokenize) const {
    const std::string program = program_folder() + "/ashlar";
    if (find_program({program}).empty()) fail(program + " is not there: build ashlar_program first");
    std::vector<std::string> command = {program,      "serve",  "--port",        "0",
                                        "--threads",  "2",      "--log-level",   "error",
                                        "--tokenize", tokenize, "--max-running", "16384"};
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      command.emplace_back("--worker");
      command.push_back(url(i) + ",block_size=16" + workers_[i].events());
    }
    Target target{.name = std::move(name), .program = start(command, folder_ + "/ours.log")};
    while (const auto line = target.program.read_line()) {
      const std::size_t at = line->find("://127.0.0.1:");
      if (at == std::string::npos) continue;
      target.port = static_cast<std::uint16_t>(std::atoi(line->c_str() + at + 13));
      return target;
    }
    fail("ashlar serve does not start");
  }
  void add_nginx(const std::string& program) {
    if (program.empty()) return;
    const std::uint16_t port = free_port();
    std::ofstream(folder_ + "/nginx.conf")
        << "daemon off; pid " << folder_ << "/nginx.pid; error_log /dev/null;\n"
        << "worker_processes 2; worker_rlimit_nofile 65536;\n"
        << "events { worker_connections 20480; }\nhttp {\n  access_log off;\n"
        << "  client_body_temp_path " << folder_ << "/body; proxy_temp_path " << folder_ << "/proxy;\n"
        << "  fastcgi_temp_path " << folder_ << "/f; uwsgi_temp_path " << folder_ << "/u; scgi_temp_path "
        << folder_ << "/s;\n"
        << "  client_body_buffer_size 64k; keepalive_requests 1000000000; tcp_nodelay on;\n"
        << "  upstream workers { server 127.0.0.1:" << workers_[0].port()
        << "; server 127.0.0.1:" << workers_[1].port()
        << "; keepalive 512; keepalive_requests 1000000000; }\n"
        << "  server { listen 127.0.0.1:" << port << " reuseport;\n    location / {\n"
        << "      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection \"\";\n"
        << "      proxy_buffering off; proxy_read_timeout 600s; } }\n}\n";
    targets_.push_back({.name = "nginx",
                        .port = port,
                        .program = start({program, "-p", folder_, "-c", folder_ + "/nginx.conf"})});
  }
  void add_router(const std::string& name, const std::string& program, const std::string& verb,
                  const std::string& level) {
    if (program.empty()) return;
    const std::uint16_t port = free_port();
    std::vector<std::string> command = {program};
    if (!verb.empty()) command.push_back(verb);
    command.insert(command.end(), {"--host", "127.0.0.1", "--port", std::to_string(port), "--worker-urls",
                                   url(0), url(1), "--policy", "cache_aware", "--prometheus-port",
                                   std::to_string(free_port()), "--log-level", level});
    targets_.push_back({.name = name, .port = port, .program = start(command)});
  }
  static void wait_until_ready(Target& target) {
    RequestSet set = requests_of({.name = {}, .body = 200});
    for (int i = 0; i < 600; ++i) {
      const int fd = connect_to_loopback(target.port);
      if (fd >= 0) {
        close(fd);
        HttpSession session(target.port);
        const std::string& request = set.requests[0];
        if (session.post("/v1/chat/completions", request.substr(request.find("\r\n\r\n") + 4)).status() ==
            200)
          return;
      }
      std::this_thread::sleep_for(100ms);
    }
    fail(target.name + " does not answer within a minute");
  }

  const std::string folder_;
  const std::string cores_;
  std::vector<DummyWorker> workers_;
  std::vector<Target> targets_;
};

// ---- measurements

Sample measure(const Field& field, Target& target, const Case& one, RequestSet& set,
               const ProxyBenchOptions& options, std::uint64_t& turn) {
  const double cores = static_cast<double>(std::thread::hardware_concurrency());
  CpuTime target_cpu{};
  CpuTime ours{};
  CpuTime machine{};
  const auto note = [&](int sign) {
    const CpuTime used = target.program.cpu();
    target_cpu += sign * used;
    ours += sign * (used + field.worker_cpu() + own_cpu());
    machine += sign * machine_cpu();
  };
  const HttpLoad load{.port = target.port,
                      .connections = one.connections,
                      .rate = one.rate,
                      .seconds = options.seconds,
                      .first_turn = set.aligned(turn)};
  const MeasuredLoad got = run_load(load, set, [&] { note(-1); }, [&] { note(1); });
  turn = set.aligned(turn) + 2 * got.whole.size() + 10'000;  // never a number twice
  if (got.wrong > 0)
    fail(target.name + ", " + one.name + ": " + std::to_string(got.wrong) + " answers were not as expected");
  const double count = std::max<double>(1, static_cast<double>(got.whole.size()));
  const auto seconds_of = [](CpuTime time) { return std::chrono::duration<double>(time).count(); };
  return {.mean = mean_of(got.whole),
          .p50 = quantile_of(got.whole, 0.5),
          .p99 = quantile_of(got.whole, 0.99),
          .first = mean_of(got.first),
          .cpu = seconds_of(target_cpu) * 1e6 / count,
          .per_second = count / got.seconds,
          .others = std::max(0.0, seconds_of(machine - ours)) / (got.seconds * cores)};
}

using Rounds = std::vector<std::map<std::string, Sample>>;  // by target

bool is_quiet(const std::map<std::string, Sample>& round, double busy) {
  return std::ranges::all_of(round, [&](const auto& one) { return one.second.others < busy; });
}

// Those in which the machine was quiet for all targets, or all.
Rounds quiet_rounds(const Rounds& all, double busy) {
  Rounds quiet;
  for (const auto& round : all)
    if (is_quiet(round, busy)) quiet.push_back(round);
  return quiet.size() >= 3 ? quiet : all;
}

template <class Value>
Spread over(const Rounds& rounds, Value value) {
  std::vector<double> values;
  for (const auto& round : rounds) values.push_back(value(round));
  return spread_of(values);
}

using Member = double Sample::*;

Spread added(const Rounds& rounds, const std::string& name, Member member) {
  return over(rounds, [&](const auto& round) { return round.at(name).*member - round.at("direct").*member; });
}

// Rival / ours of what they add. A question that ours asks of a worker is added to the rival: it costs what
// that worker takes, and decision 0038 says why it is asked first.
Spread added_ratio(const Rounds& rounds, const std::string& rival, const std::string& ours, Member member) {
  return over(rounds, [&](const auto& round) {
    const double base = round.at("direct").*member;
    const auto question = round.find(kQuestion);
    const double asked = question == round.end() ? 0 : question->second.*member;
    return (round.at(rival).*member + asked - base) / std::max(kLeastAdded, round.at(ours).*member - base);
  });
}

void print_details(const Case& one, const Rounds& rounds, const std::vector<Target>& targets) {
  const double others = over(rounds, [](const auto& round) {
                          double most = 0;
                          for (const auto& [name, sample] : round) most = std::max(most, sample.others);
                          return most;
                        }).median;
  std::printf("\n%s (%zu rounds, other programs used up to %.0f %%)\n", one.name.c_str(), rounds.size(),
              others * 100);
  for (const Target& target : targets) {
    const auto of = [&](Member member) {
      return over(rounds, [&](const auto& round) { return round.at(target.name).*member; });
    };
    if (target.name == "direct") {
      std::printf("  %-16s mean %.0f, p50 %.0f, p99 %.0f us; %.0f/s\n", "direct", of(&Sample::mean).median,
                  of(&Sample::p50).median, of(&Sample::p99).median, of(&Sample::per_second).median);
      if (!one.asks_first()) continue;
      const auto asked = [](Member member) {
        return [member](const auto& round) { return round.at(kQuestion).*member; };
      };
      std::printf("  %-16s mean %.0f, p50 %.0f us\n", kQuestion, over(rounds, asked(&Sample::mean)).median,
                  over(rounds, asked(&Sample::p50)).median);
      continue;
    }
    const Spread mean = added(rounds, target.name, &Sample::mean);
    std::printf(
        "  %-16s adds mean %.0f (%.0f..%.0f), p50 %.0f, p99 %.0f, first %.0f us; CPU %.1f us; %.0f/s\n",
        target.name.c_str(), mean.median, mean.min, mean.max, added(rounds, target.name, &Sample::p50).median,
        added(rounds, target.name, &Sample::p99).median, added(rounds, target.name, &Sample::first).median,
        of(&Sample::cpu).median, of(&Sample::per_second).median);
  }
  std::fflush(stdout);
}

std::string cell_of(const Spread& ratio) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f (%.2f..%.2f)", ratio.median, ratio.min, ratio.max);
  return text;
}

struct ProxyVerdict {
  int judged = 0;
  int reached = 0;
  std::string note(bool is_reached) {
    ++judged;
    reached += is_reached ? 1 : 0;
    return is_reached ? " ok" : " MISS";
  }
};

void print_ratios(const std::vector<Case>& cases, const std::vector<Rounds>& results, const Field& field,
                  double busy) {
  std::printf(
      "\nrival / ours, median (min..max); for requests per second ours / rival. Judged by the mean, on a "
      "busy "
      "machine by p50\n");
  std::printf("%-32s  %-24s  %-24s  %-24s  %-24s  %s\n", "", "vllm-router: mean added", "p50 added",
              "CPU per request", "requests/s", "nginx: mean added");
  ProxyVerdict verdict;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Rounds& rounds = results[i];
    const std::string ours(kOurs);
    std::string line;
    char text[64];
    const auto cell = [&](const std::string& content) {
      std::snprintf(text, sizeof text, "  %-24s", content.c_str());
      line += text;
    };
    if (field.has("vllm-router")) {
      const bool by_mean =
          std::ranges::all_of(rounds, [&](const auto& round) { return is_quiet(round, busy); });
      for (const bool is_mean : {true, false}) {
        const Member member = is_mean ? &Sample::mean : &Sample::p50;
        // Where ours adds less than can be told from noise, a ratio says nothing, and is not judged.
        if (added(rounds, ours, member).median <= kLeastAdded) {
          cell("(ours within noise)");
          continue;
        }
        const Spread ratio = added_ratio(rounds, "vllm-router", ours, member);
        cell(cell_of(ratio) + (is_mean == by_mean ? verdict.note(ratio.median >= kLatencyTarget) : ""));
      }
      cell(cell_of(over(rounds, [&](const auto& round) {
        return round.at("vllm-router").cpu / std::max(0.1, round.at(ours).cpu);
      })));
      if (cases[i].is_saturated()) {
        const Spread speed = over(rounds, [&](const auto& round) {
          return round.at(ours).per_second / round.at("vllm-router").per_second;
        });
        cell(cell_of(speed) + verdict.note(speed.median >= kThroughputTarget));
      } else {
        cell("");
      }
    }
    if (field.has("nginx")) cell(cell_of(added_ratio(rounds, "nginx", ours, &Sample::mean)));
    std::printf("%-32s%s\n", cases[i].name.c_str(), line.c_str());
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    if (one.body != 2048 || one.connections != 1 || one.is_stream || one.is_new ||
        one.events != Case::Events::kNone)
      continue;
    const double mean = added(results[i], std::string(kOurs), &Sample::mean).median;
    std::printf("%s: %.1f us added, at most %.0f wanted:%s\n", one.name.c_str(), mean, kAddedTarget,
                verdict.note(mean <= kAddedTarget).c_str());
  }
  std::printf("%d of %d targets reached\n", verdict.reached, verdict.judged);
}

// Whether what ours said of the workers' caches was so.
void print_claims(Field& field) {
  for (const Target& target : field.targets()) {
    if (target.name != kOurs) continue;
    const std::string metrics = HttpSession(target.port).get("/metrics").body();
    const auto sum_of = [&](std::string_view name) {
      double sum = 0;
      for (std::size_t at = metrics.find(name); at != std::string::npos; at = metrics.find(name, at + 1))
        if (at > 0 && metrics[at - 1] == '\n') sum += std::atof(metrics.c_str() + metrics.find(' ', at));
      return sum;
    };
    std::printf(
        "\nwith events: %.0f requests found what was expected, %.0f something else, %.0f unexplained\n",
        sum_of("ashlar_serve_predictions_right_total"), sum_of("ashlar_serve_misroute_total"),
        sum_of(R"(ashlar_serve_misroute_total{reason="unexplained"})"));
  }
}

void run_cases(const ProxyBenchOptions& options) {
  std::vector<Case> cases;
  for (const Case& one : all_cases())
    if (one.name.find(options.cases) != std::string::npos) cases.push_back(one);
  if (cases.empty()) fail("no case has '" + options.cases + "' in its name");
  const auto has_events = [](const Case& one) { return one.events != Case::Events::kNone; };
  std::array<std::unique_ptr<Field>, 2> fields;  // without events, with them
  for (const Case& one : cases)
    if (std::unique_ptr<Field>& field = fields[has_events(one)]; field == nullptr)
      field = std::make_unique<Field>(options, has_events(one));
  std::printf("%zu rounds of %.1f s per target; 2 workers, %u cores\n", options.rounds, options.seconds,
              std::thread::hardware_concurrency());
  std::vector<Rounds> results(cases.size());
  std::uint64_t turn = 0;
  for (std::size_t round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      RequestSet set = requests_of(cases[i]);
      std::map<std::string, Sample> samples;
      Field& field = *fields[has_events(cases[i])];
      for (Target& target : field.targets())
        samples[target.name] = measure(field, target, cases[i], set, options, turn);
      if (cases[i].asks_first()) {
        RequestSet questions = questions_of(cases[i]);
        samples[kQuestion] = measure(field, field.targets()[0], cases[i], questions, options, turn);
      }
      results[i].push_back(std::move(samples));
    }
    std::fprintf(stderr, "round %zu of %zu done\n", round + 1, options.rounds);
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    results[i] = quiet_rounds(results[i], options.busy);
    print_details(cases[i], results[i], fields[has_events(cases[i])]->targets());
  }
  if (fields[1] != nullptr) print_claims(*fields[1]);
  print_ratios(cases, results, *fields[fields[0] == nullptr], options.busy);
}

// ---- idle streams

void hold_idle(const ProxyBenchOptions& options) {
  Field field(options);
  RequestSet set = requests_of({.name = {}, .is_stream = true}, DummyWorker::kSilentTokens);
  for (const Target& target : field.targets()) {
    if (target.name == "direct") continue;
    // One stream first: what is made once is not the streams'.
    std::vector<int> held;
    std::size_t silent = 0;
    std::uint64_t before = 0;
    for (std::size_t i = 0; i <= options.idle; ++i) {
      if (i == 1) before = target.program.rss_bytes();
      const int fd = connect_to_loopback(target.port);
      if (fd < 0) break;
      held.push_back(fd);
      const std::string_view request = set.next(i);
      if (write(fd, request.data(), request.size()) != static_cast<ssize_t>(request.size())) continue;
      const timeval patience{.tv_sec = 10, .tv_usec = 0};
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      AnswerScan scan;
      char buffer[4096];
      while (scan.body_bytes() == 0) {
        const ssize_t got = read(fd, buffer, sizeof buffer);
        if (got <= 0 || scan.feed({buffer, static_cast<std::size_t>(got)})) break;
      }
      silent += scan.status() == 200 && scan.body_bytes() > 0;
    }
    const std::uint64_t after = target.program.rss_bytes();
    const double grown = static_cast<double>(after) - static_cast<double>(before);
    std::printf("%-16s %zu silent streams of %zu: %.1f MiB, grown by %.1f MiB, %.1f KiB each\n",
                target.name.c_str(), silent, options.idle + 1, static_cast<double>(after) / 1048576,
                grown / 1048576, grown / 1024 / static_cast<double>(std::max<std::size_t>(1, silent)));
    std::fflush(stdout);
    for (const int fd : held) close(fd);
  }
}

ProxyBenchOptions parse(int count, char** words) {
  ProxyBenchOptions options;
  options.rivals = program_folder() + "/../../peers";
  for (int i = 1; i < count; i += 2) {
    const std::string word = words[i];
    const char* value = i + 1 < count ? words[i + 1] : nullptr;
    const auto number = [&] { return value == nullptr ? 0.0 : std::atof(value); };
    if (word == "--rounds" && number() >= 1) {
      options.rounds = static_cast<std::size_t>(number());
    } else if (word == "--seconds" && number() > 0) {
      options.seconds = number();
    } else if (word == "--busy" && number() > 0) {
      options.busy = number();
    } else if (word == "--idle" && number() >= 1) {
      options.idle = static_cast<std::size_t>(number());
    } else if (word == "--cases" && value != nullptr) {
      options.cases = value;
    } else if (word == "--rivals" && value != nullptr) {
      options.rivals = value;
    } else if (word == "--cores" && value != nullptr) {
      options.cores = value;
    } else {
      fail(
          "usage: proxy_bench [--rounds N] [--seconds S] [--busy SHARE] [--cases TEXT] [--rivals FOLDER] "
          "[--idle STREAMS] [--cores LIST]");
    }
  }
  return options;
}

}  // namespace
}  // namespace ashlar::bench

int main(int count, char** words) {
  using namespace ashlar::bench;
  const ProxyBenchOptions options = parse(count, words);
  if (!options.cores.empty() && !Program::start({kTaskset, "-c", options.cores, "/bin/echo"}).read_line())
    fail("--cores '" + options.cores + "' names no cores of this machine; taskset takes lists such as 0,2-3");
  raise_file_limit();
  if (options.idle > 0) {
    hold_idle(options);
  } else {
    run_cases(options);
  }
  return 0;
}
