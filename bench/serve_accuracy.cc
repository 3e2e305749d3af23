// What `ashlar serve` claims beside what the engines find: conversations over tiny engines whose caches are
// smaller than the conversations, while engines restart, are cleared and lose event messages.
//
//   serve_accuracy                       10,000 requests, 16 clients, 4 engines; then other policies
//   serve_accuracy --requests 20000 --policies prefix --keep FOLDER
//
// Every client has conversations with one of a few system prompts, which go on for some turns and end; which
// one goes on next is drawn, so some come back after a long pause. For each answer the header
// x-ashlar-cached-tokens is compared with the engine's usage.prompt_tokens_details.cached_tokens; of each
// difference the receipt says why. Requests without an answer are counted apart, and others are asked in
// their place. Afterwards `ashlar explain` makes every choice of the journal again. The exit status is 1 if
// fewer claims hold than wanted, or if a difference is not explained.
//
// The same conversations then run with --policy round_robin, and through vllm-router (cache_aware) where it
// is installed below build/peers: what counts there is the tokens that were found cached.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "http_load.h"
#include "processes.h"

namespace ashlar::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kEngines = 4;
constexpr std::size_t kSystems = 8;        // distinct system prompts
constexpr std::size_t kSystemBytes = 192;  // a token each
constexpr double kWanted = 0.999;

struct AccuracyOptions {
  std::size_t requests = 10'000;
  std::size_t clients = 16;
  std::size_t blocks = 8000;      // of an engine, eight tokens each
  std::size_t open = 80;          // conversations of a client at a time
  std::size_t step_tokens = 64;   // that an engine computes between two looks at its queue
  std::size_t drop_every = 100;   // event messages
  std::size_t faults = 10;        // restarts and clears, spread over the run
  std::string patience = "20ms";  // of ashlar serve, for events (event_patience)
  std::string policies = "prefix,round_robin,vllm-router";
  std::string rivals;
  std::string keep;  // the journal stays here
};

// The number behind a name in JSON; `missing` where there is none.
std::int64_t number_after(std::string_view json, std::string_view name, std::int64_t missing = -1) {
  const std::size_t at = json.find(name);
  return at == std::string_view::npos ? missing : std::atoll(json.data() + at + name.size());
}

// The text behind a name in JSON, escaped as it stands there.
std::string_view text_after(std::string_view json, std::string_view name) {
  const std::size_t at = json.find(name);
  if (at == std::string_view::npos) return {};
  const std::size_t begin = at + name.size();
  std::size_t end = begin;
  while (end < json.size() && json[end] != '"') end += json[end] == '\\' ? 2 : 1;
  return json.substr(begin, end - begin);
}

// ---- engines

class TinyEngine {
 public:
  explicit TinyEngine(const AccuracyOptions& options) : options_(options) {
    for (int& port : ports_) port = free_port();
    start();
  }
  void start() {
    program_ = Program::start(
        {program_folder() + "/tiny_server", "--port", std::to_string(ports_[0]), "--events",
         std::to_string(ports_[1]), "--replay", std::to_string(ports_[2]), "--g1",
         std::to_string(options_.blocks), "--step-tokens", std::to_string(options_.step_tokens),
         "--drop-event-every", std::to_string(options_.drop_every)},
        "/dev/stderr");
    if (!program_.read_line()) fail("tiny_server does not start");
  }
  void restart() {
    program_.kill();
    start();
  }
  std::uint16_t port() const { return static_cast<std::uint16_t>(ports_[0]); }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(ports_[0]); }
  std::string worker() const {
    return url() + ",events=tcp://127.0.0.1:" + std::to_string(ports_[1]) +
           ",replay=tcp://127.0.0.1:" + std::to_string(ports_[2]) + ",block_size=8";
  }

 private:
  const AccuracyOptions& options_;
  int ports_[3] = {};
  Program program_;
};

// ---- conversations

struct Conversation {
  std::string messages;  // JSON, without brackets
  std::size_t turns_left = 0;
};

std::string words_of(Random& random, std::size_t bytes) {
  static constexpr std::string_view kWords[] = {"arch ",   "stone ",  "mortar ", "level ", "wall ", "lintel ",
                                                "hammer ", "chisel ", "quarry ", "block ", "joint "};
  std::string text;
  while (text.size() < bytes) text += kWords[random.below(std::size(kWords))];
  text.resize(bytes);
  return text;
}

std::string system_prompt(std::size_t number) {
  Random random(1000 + number);
  return words_of(random, kSystemBytes);
}

Conversation begin_conversation(Random& random) {
  return {.messages = R"({"role":"system","content":")" + system_prompt(random.below(kSystems)) + "\"}",
          .turns_left = 3 + random.below(5)};
}

// ---- a run

struct Tally {
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;     // no answer of 200
  std::uint64_t unclaimed = 0;  // answers without a claim
  std::uint64_t equal = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t cached_tokens = 0;
  std::map<std::string, std::uint64_t> others;  // by reason
  std::map<std::string, std::uint64_t> states;
  std::vector<std::string> receipts;  // of the differences

  void add(const Tally& more) {
    answered += more.answered;
    failed += more.failed;
    unclaimed += more.unclaimed;
    equal += more.equal;
    prompt_tokens += more.prompt_tokens;
    cached_tokens += more.cached_tokens;
    for (const auto& [reason, count] : more.others) others[reason] += count;
    for (const auto& [state, count] : more.states) states[state] += count;
    receipts.insert(receipts.end(), more.receipts.begin(), more.receipts.end());
  }
};

class Talk {
 public:
  Talk(std::uint16_t port, const AccuracyOptions& options) : port_(port), options_(options) {}

  // Calls `fault` as the requests go on, from this thread.
  template <class Fault>
  Tally run(const Fault& fault) {
    std::vector<std::thread> clients;
    for (std::size_t i = 0; i < options_.clients; ++i) clients.emplace_back([this, i] { talk(i); });
    for (std::size_t i = 1; i <= options_.faults; ++i) {
      while (asked_ < options_.requests * i / (options_.faults + 1)) std::this_thread::sleep_for(2ms);
      fault(i);
    }
    for (std::thread& client : clients) client.join();
    return std::move(tally_);
  }

 private:
  void talk(std::size_t number) {
    Random random(number + 1);
    HttpSession session(port_);
    HttpSession asking(port_);
    std::vector<Conversation> open;
    Tally tally;
    for (bool is_answered = true; !is_answered || asked_.fetch_add(1) < options_.requests;) {
      while (open.size() < options_.open) open.push_back(begin_conversation(random));
      const std::size_t chosen = random.below(open.size());
      Conversation& one = open[chosen];
      std::string messages =
          one.messages + R"(,{"role":"user","content":")" + words_of(random, 24 + random.below(64)) + "\"}";
      const std::string body = R"({"model":"tiny","max_tokens":)" + std::to_string(8 + random.below(16)) +
                               R"(,"messages":[)" + messages + "]}";
      const AnswerScan& answer = session.post("/v1/chat/completions", body);
      is_answered = answer.status() == 200;
      if (!is_answered) {  // another is asked in its place
        if (++tally.failed > options_.requests)
          fail("there are more requests without an answer than with one");
        continue;
      }
      ++tally.answered;
      compare(answer, asking, tally);
      one.messages = messages + R"(,{"role":"assistant","content":")" +
                     std::string(text_after(answer.body(), R"("content":")")) + "\"}";
      if (--one.turns_left == 0) open.erase(open.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    const std::lock_guard lock(mu_);
    tally_.add(tally);
  }

  static void compare(const AnswerScan& answer, HttpSession& asking, Tally& tally) {
    const std::int64_t found = number_after(answer.body(), R"("cached_tokens":)", 0);
    tally.prompt_tokens += static_cast<std::uint64_t>(number_after(answer.body(), R"("prompt_tokens":)", 0));
    tally.cached_tokens += static_cast<std::uint64_t>(found);
    const std::string claim(answer.header("x-ashlar-cached-tokens"));
    if (claim.empty()) {
      ++tally.unclaimed;
      return;
    }
    ++tally.states[std::string(answer.header("x-ashlar-state"))];
    if (std::atoll(claim.c_str()) == found) {
      ++tally.equal;
      return;
    }
    const std::string id(answer.header("x-ashlar-decision-id"));
    // The client may see the end of a request before the router has noted it, and events may be late.
    std::string receipt;
    for (int i = 0; i < 10'000; ++i) {
      receipt = asking.get("/decisions/" + id).body();
      if (receipt.find(R"("misroute":)") != std::string::npos) break;
      std::this_thread::sleep_for(1ms);
    }
    const std::string reason(text_after(receipt, R"("misroute":")"));
    ++tally.others[reason.empty() ? "no receipt" : reason];
    tally.receipts.push_back(std::to_string(found) + " found: " + receipt);
  }

  const std::uint16_t port_;
  const AccuracyOptions& options_;
  std::atomic<std::size_t> asked_{0};
  std::mutex mu_;
  Tally tally_;
};

std::uint16_t port_in(const std::string& line) {
  const std::size_t at = line.find("://127.0.0.1:");
  return at == std::string::npos ? 0 : static_cast<std::uint16_t>(std::atoi(line.c_str() + at + 13));
}

// Until every worker is up and EXACT.
void wait_until_exact(std::uint16_t port) {
  HttpSession session(port);
  for (int i = 0; i < 3000; ++i) {
    const std::string fleet = session.get("/fleet").body();
    std::size_t exact = 0;
    for (std::size_t at = fleet.find(R"("EXACT")"); at != std::string::npos;
         at = fleet.find(R"("EXACT")", at + 1))
      ++exact;
    if (exact == kEngines && fleet.find(R"("up":false)") == std::string::npos) return;
    std::this_thread::sleep_for(10ms);
  }
  fail("the engines are not up within 30 s");
}

Program start_rival(const std::string& program, const std::vector<std::unique_ptr<TinyEngine>>& engines,
                    std::uint16_t port) {
  std::vector<std::string> command = {program,
                                      "--host",
                                      "127.0.0.1",
                                      "--port",
                                      std::to_string(port),
                                      "--policy",
                                      "cache_aware",
                                      "--prometheus-port",
                                      std::to_string(free_port()),
                                      "--log-level",
                                      "error",
                                      "--worker-urls"};
  for (const auto& engine : engines) command.push_back(engine->url());
  Program router = Program::start(command);
  HttpSession session(port);
  for (int i = 0; i < 600; ++i) {
    if (session
            .post("/v1/chat/completions",
                  R"({"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"a"}]})")
            .status() == 200)
      return router;
    std::this_thread::sleep_for(100ms);
  }
  fail("vllm-router does not answer within a minute");
}

void print_tally(const std::string& policy, const Tally& tally, double seconds) {
  std::printf("\n%s: %llu answers in %.0f s, %llu requests without one\n", policy.c_str(),
              static_cast<unsigned long long>(tally.answered), seconds,
              static_cast<unsigned long long>(tally.failed));
  std::printf("  prompt tokens %llu, found cached %llu: %.1f %%\n",
              static_cast<unsigned long long>(tally.prompt_tokens),
              static_cast<unsigned long long>(tally.cached_tokens),
              100.0 * static_cast<double>(tally.cached_tokens) /
                  static_cast<double>(std::max<std::uint64_t>(1, tally.prompt_tokens)));
}

// Where cached tokens are lost: at the best worker, at the chosen one, found there.
void print_tokens(std::uint16_t port) {
  const std::string metrics = HttpSession(port).get("/metrics").body();
  for (const char* name : {"available", "captured", "delivered"}) {
    const std::string line = "\nashlar_serve_" + std::string(name) + "_tokens_total ";
    std::printf("  %s %lld%s", name, static_cast<long long>(number_after(metrics, line)),
                name[0] == 'd' ? " tokens\n" : ",");
  }
}

// Whether enough claims held, and all others are explained.
bool print_claims(const Tally& tally, const std::string& folder, const std::string& policy) {
  const std::uint64_t claims = tally.answered - tally.unclaimed;
  const double share =
      static_cast<double>(tally.equal) / static_cast<double>(std::max<std::uint64_t>(1, claims));
  std::printf("  claims equal to what was found: %llu of %llu, %.3f %%, at least %.1f %% wanted: %s\n",
              static_cast<unsigned long long>(tally.equal), static_cast<unsigned long long>(claims),
              share * 100, kWanted * 100, share >= kWanted ? "ok" : "MISS");
  for (const auto& [state, count] : tally.states)
    std::printf("  %-18s %llu claims\n", state.c_str(), static_cast<unsigned long long>(count));
  for (const auto& [reason, count] : tally.others)
    std::printf("  %-18s %llu\n", reason.c_str(), static_cast<unsigned long long>(count));
  std::FILE* out = std::fopen((folder + "/differences-" + policy + ".txt").c_str(), "w");
  for (const std::string& receipt : tally.receipts) std::fprintf(out, "%s\n", receipt.c_str());
  std::fclose(out);
  std::uint64_t unexplained = 0;
  for (const std::string reason : {"unexplained", "forgotten", "no receipt"})
    if (const auto found = tally.others.find(reason); found != tally.others.end())
      unexplained += found->second;
  if (unexplained != 0)
    std::printf("  %llu differences are not explained: MISS\n", static_cast<unsigned long long>(unexplained));
  return share >= kWanted && unexplained == 0;
}

// False: its claims missed what is wanted.
bool run_policy(const AccuracyOptions& options, const std::string& policy, const std::string& folder) {
  std::vector<std::unique_ptr<TinyEngine>> engines;
  for (std::size_t i = 0; i < kEngines; ++i) engines.push_back(std::make_unique<TinyEngine>(options));
  Program router;
  std::uint16_t port = free_port();
  const bool is_ours = policy != "vllm-router";
  if (is_ours) {
    std::vector<std::string> command = {program_folder() + "/ashlar",
                                        "serve",
                                        "--port",
                                        "0",
                                        "--log-level",
                                        "error",
                                        "--policy",
                                        policy,
                                        "--health-interval",
                                        "100ms",
                                        "--event-patience",
                                        options.patience,
                                        "--journal",
                                        folder + "/journal-" + policy};
    for (const auto& engine : engines) command.insert(command.end(), {"--worker", engine->worker()});
    router = Program::start(command, "/dev/stderr");
    port = 0;
    while (port == 0) {
      const auto line = router.read_line();
      if (!line) fail("ashlar serve does not start");
      port = port_in(*line);
    }
    wait_until_exact(port);
  } else {
    const std::string program = find_program({options.rivals + "/vllm-router-venv/bin/vllm-router"});
    if (program.empty()) {
      std::printf("\nvllm-router is not installed (bench/peers/run_proxy installs it)\n");
      return true;
    }
    router = start_rival(program, engines, port);
  }
  const auto start = std::chrono::steady_clock::now();
  const Tally tally = Talk(port, options).run([&](std::size_t number) {
    TinyEngine& engine = *engines[number % kEngines];
    if (number % 2 == 0) {
      engine.restart();
    } else {
      HttpSession(engine.port()).post("/reset_prefix_cache", "");
    }
  });
  print_tally(policy, tally, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (!is_ours) return true;
  print_tokens(port);
  const bool holds = print_claims(tally, folder, policy);
  if (router.terminate() != 0) fail("ashlar serve did not stop in order");
  std::printf("  ashlar explain: ");
  std::fflush(stdout);
  if (std::system((program_folder() + "/ashlar explain " + folder + "/journal-" + policy).c_str()) != 0)
    fail("ashlar explain: the journal does not give the same choices");
  return holds;
}

AccuracyOptions parse(int count, char** words) {
  AccuracyOptions options;
  options.rivals = program_folder() + "/../../peers";
  const std::map<std::string, std::size_t*> numbers = {
      {"--requests", &options.requests},      {"--clients", &options.clients}, {"--blocks", &options.blocks},
      {"--drop-every", &options.drop_every},  {"--faults", &options.faults},   {"--open", &options.open},
      {"--step-tokens", &options.step_tokens}};
  const std::map<std::string, std::string*> texts = {{"--policies", &options.policies},
                                                     {"--rivals", &options.rivals},
                                                     {"--keep", &options.keep},
                                                     {"--patience", &options.patience}};
  for (int i = 1; i < count; i += 2) {
    const auto number = numbers.find(words[i]);
    const auto text = texts.find(words[i]);
    if (i + 1 < count && number != numbers.end()) {
      *number->second = static_cast<std::size_t>(std::atoll(words[i + 1]));
    } else if (i + 1 < count && text != texts.end()) {
      *text->second = words[i + 1];
    } else {
      fail(
          "usage: serve_accuracy [--requests N] [--clients N] [--blocks N] [--drop-every N] [--faults N]\n"
          "                      [--open N] [--step-tokens N] [--patience TIME]\n"
          "                      [--policies LIST] [--rivals FOLDER] [--keep FOLDER]");
    }
  }
  return options;
}

}  // namespace
}  // namespace ashlar::bench

int main(int count, char** words) {
  using namespace ashlar::bench;
  const AccuracyOptions options = parse(count, words);
  std::string folder = options.keep;
  if (folder.empty()) {
    folder = std::filesystem::temp_directory_path() / "serve_accuracy.XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) fail("cannot make a folder " + folder);
  }
  std::filesystem::create_directories(folder);
  std::printf(
      "%zu requests, %zu clients, %zu engines of %zu blocks; every %zu-th event message is lost, %zu "
      "restarts and clears\n",
      options.requests, options.clients, kEngines, options.blocks, options.drop_every, options.faults);
  bool holds = true;
  for (std::size_t at = 0; at < options.policies.size();) {
    const std::size_t end = std::min(options.policies.find(',', at), options.policies.size());
    holds &= run_policy(options, options.policies.substr(at, end - at), folder);
    at = end + 1;
  }
  if (options.keep.empty()) std::filesystem::remove_all(folder);
  return holds ? 0 : 1;
}
