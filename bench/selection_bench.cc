// Selections over the API: POST /query to `ashlar serve` at a steady rate, while engines publish blocks.
//
//   selection_bench                                  20,000 queries and 100,000 blocks per second, 10 s
//   selection_bench --rate 5000 --blocks 20000       less, for a small machine
//   selection_bench --threads 8 --clients 4          threads of ashlar serve, and of the clients
//
// Engines are processes' worth of publishers in one process of its own: each stores chains of 32 blocks and
// removes them again some seconds later, in messages as vLLM sends them, over ZeroMQ on loopback. They are
// registered for queries, as a client of an indexer does. Queries name 512 tokens, half of them a chain that
// is, was or will be there, half of them an unknown one. Their times are from when each was due.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "ashlar/events/engine_codec.h"
#include "http_load.h"
#include "processes.h"

namespace ashlar::bench {
namespace {

using namespace std::chrono_literals;
using backend::zmq::EnginePublisher;

constexpr std::uint32_t kBlockSize = 16;
constexpr std::uint32_t kChain = 32;  // blocks of a message
constexpr double kWanted = 5000;      // us

struct SelectionOptions {
  std::size_t rate = 20'000;
  std::size_t blocks = 100'000;  // stored per second, and as many removed
  std::size_t engines = 8;
  std::size_t threads = std::max(2U, std::thread::hardware_concurrency() / 2);
  std::size_t clients = std::max(1U, std::thread::hardware_concurrency() / 4);
  std::size_t connections = 16;  // of a client
  std::size_t seconds = 10;
  std::size_t kept = 1'000'000;  // blocks of all engines, before old ones are removed
};

std::uint32_t token_of(std::uint64_t chain, std::uint32_t index) {
  std::uint64_t x = (chain << 20) + index + 0x9E37'79B9'7F4A'7C15u;
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9u;
  return static_cast<std::uint32_t>((x >> 33) % 120'000);
}

std::uint64_t name_of(std::uint64_t chain, std::uint32_t block) {
  return (chain * kChain + block + 1) * 0x9E37'79B9'7F4A'7C15u;
}

// ---- engines

// Stores one chain, and removes an old one where there is one.
void fill_message(events::EngineBatch& batch, std::uint64_t chain, const std::uint64_t* old) {
  batch.clear();
  batch.timestamp =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (old != nullptr) {
    events::EngineEvent removed;
    removed.kind = events::EngineEventKind::kRemoved;
    removed.names = {0, kChain};
    removed.medium = "GPU";
    // A leaf first, as caches evict.
    for (std::uint32_t i = kChain; i-- > 0;) batch.names.emplace_back(name_of(*old, i));
    batch.events.push_back(removed);
  }
  events::EngineEvent stored;
  stored.kind = events::EngineEventKind::kStored;
  stored.names = {static_cast<std::uint32_t>(batch.names.size()), kChain};
  stored.tokens = {0, kChain * kBlockSize};
  stored.block_size = kBlockSize;
  stored.medium = "GPU";
  for (std::uint32_t i = 0; i < kChain; ++i) batch.names.emplace_back(name_of(chain, i));
  for (std::uint32_t i = 0; i < kChain * kBlockSize; ++i) batch.tokens.emplace_back(token_of(chain, i));
  batch.events.push_back(stored);
}

// Publishes for ever. Tells its endpoints through `out`, then waits for a byte from `in`.
void publish_events(const SelectionOptions& options, int out, int in) {
  std::vector<std::unique_ptr<EnginePublisher>> engines;
  std::string endpoints;
  for (std::size_t i = 0; i < options.engines; ++i) {
    auto made = EnginePublisher::create(
        {.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = "tcp://127.0.0.1:*", .buffer_steps = 1000});
    if (!made) fail("a publisher: " + made.error().to_string());
    engines.push_back(*std::move(made));
    endpoints += engines.back()->endpoint() + " " + engines.back()->replay_endpoint() + "\n";
  }
  if (write(out, endpoints.data(), endpoints.size()) < 0) return;
  char go = 0;
  if (read(in, &go, 1) != 1) return;
  const std::uint64_t lag = options.kept / kChain;
  const double per_second = static_cast<double>(options.blocks) / kChain;
  events::EngineBatch batch;
  std::vector<std::byte> bytes;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t chain = 0;; ++chain) {
    const auto due = start + std::chrono::duration<double>(static_cast<double>(chain) / per_second);
    if (const auto left = due - std::chrono::steady_clock::now(); left > 200us)
      std::this_thread::sleep_until(std::chrono::time_point_cast<std::chrono::steady_clock::duration>(due));
    // An engine removes what it stored itself.
    const std::uint64_t old = chain - lag / options.engines * options.engines;
    fill_message(batch, chain, chain >= lag ? &old : nullptr);
    encode_engine_batch(batch, bytes);
    if (!engines[chain % options.engines]->publish("kv-events", bytes)) fail("the publisher's queue is full");
  }
}

// ---- queries

RequestSet queries_of(std::uint64_t first_chain, std::uint64_t chains) {
  RequestSet set;
  for (std::uint64_t i = 0; i < 2048; ++i) {
    const std::uint64_t chain = i % 2 == 0 ? first_chain + i * chains / 2048 : (std::uint64_t{1} << 40) + i;
    std::string body = R"({"model_name":"bench","token_ids":[)";
    for (std::uint32_t t = 0; t < kChain * kBlockSize; ++t)
      body += (t == 0 ? "" : ",") + std::to_string(token_of(chain, t));
    set.requests.push_back(http_post("/query", body + "]}"));
  }
  return set;
}

void report(const char* what, const std::vector<MeasuredLoad>& all, double seconds, double wanted_rate) {
  std::vector<float> times;
  std::uint64_t wrong = 0;
  for (const MeasuredLoad& one : all) {
    times.insert(times.end(), one.whole.begin(), one.whole.end());
    wrong += one.wrong;
  }
  const double p99 = quantile_of(times, 0.99);
  std::printf(
      "%s: %.0f queries/s (%.0f wanted), mean %.0f us, p50 %.0f, p99 %.0f, p99.9 %.0f; %llu not answered "
      "with 200; p99 below %.0f us: %s\n",
      what, static_cast<double>(times.size()) / seconds, wanted_rate, mean_of(times), quantile_of(times, 0.5),
      p99, quantile_of(times, 0.999), static_cast<unsigned long long>(wrong), kWanted,
      p99 < kWanted && wrong == 0 ? "ok" : "MISS");
  std::fflush(stdout);
}

// `stored` chains were published so far; those that are there now or will be are asked for.
std::vector<MeasuredLoad> query(const SelectionOptions& options, std::uint16_t port, std::uint64_t stored) {
  const std::uint64_t kept = options.kept / kChain;
  const std::uint64_t first = stored - std::min(stored, kept);
  const std::uint64_t chains = kept + options.blocks * options.seconds / kChain;
  std::vector<MeasuredLoad> all(options.clients);
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < options.clients; ++i)
    clients.emplace_back([&, i] {
      RequestSet set = queries_of(first, chains);
      const HttpLoad load{.port = port,
                          .connections = options.connections,
                          .rate = static_cast<double>(options.rate) / static_cast<double>(options.clients),
                          .seconds = static_cast<double>(options.seconds),
                          .warm_seconds = 0.5,
                          .first_turn = i * 997};
      all[i] = run_load(load, set, [] {}, [] {});
    });
  for (std::thread& client : clients) client.join();
  return all;
}

std::uint64_t messages_of(std::uint16_t port) {
  const std::string fleet = HttpSession(port).get("/fleet").body();
  std::uint64_t sum = 0;
  constexpr std::string_view kName = R"("messages":)";
  for (std::size_t at = fleet.find(kName); at != std::string::npos; at = fleet.find(kName, at + 1))
    sum += static_cast<std::uint64_t>(std::atoll(fleet.c_str() + at + kName.size()));
  return sum;
}

// Whether a chain that was just stored is found.
void check_answer(std::uint16_t port, std::uint64_t chain) {
  const std::string request = queries_of(chain, 0).requests[0];
  const std::string body =
      HttpSession(port).post("/query", request.substr(request.find("\r\n\r\n") + 4)).body();
  if (body.find(R"("longest_matched":512)") == std::string::npos)
    fail("a chain that was stored is not found: " + body.substr(0, 200));
}

SelectionOptions parse(int count, char** words) {
  SelectionOptions options;
  const std::map<std::string, std::size_t*> numbers = {
      {"--rate", &options.rate},       {"--blocks", &options.blocks},
      {"--engines", &options.engines}, {"--threads", &options.threads},
      {"--clients", &options.clients}, {"--connections", &options.connections},
      {"--seconds", &options.seconds}, {"--kept", &options.kept}};
  for (int i = 1; i < count; i += 2) {
    const auto number = numbers.find(words[i]);
    if (i + 1 == count || number == numbers.end() || std::atoll(words[i + 1]) <= 0)
      fail(
          "usage: selection_bench [--rate N] [--blocks N] [--engines N] [--threads N] [--clients N]\n"
          "                       [--connections N] [--seconds N] [--kept BLOCKS]");
    *number->second = static_cast<std::size_t>(std::atoll(words[i + 1]));
  }
  return options;
}

void run(const SelectionOptions& options) {
  int from_engines[2];
  int to_engines[2];
  if (pipe(from_engines) != 0 || pipe(to_engines) != 0) fail("no pipe");
  const Program engines = Program::run([&] { publish_events(options, from_engines[1], to_engines[0]); });
  std::string endpoints;
  while (static_cast<std::size_t>(std::count(endpoints.begin(), endpoints.end(), '\n')) < options.engines) {
    char part[4096];
    const ssize_t got = read(from_engines[0], part, sizeof part);
    if (got <= 0) fail("the engines ended");
    endpoints.append(part, static_cast<std::size_t>(got));
  }
  Program serve = Program::start(
      {program_folder() + "/ashlar", "serve", "--port", "0", "--threads", std::to_string(options.threads),
       "--log-level", "error", "--worker", "http://127.0.0.1:9,model=other"},
      "/dev/stderr");
  std::uint16_t port = 0;
  while (port == 0) {
    const auto line = serve.read_line();
    if (!line) fail("ashlar serve does not start");
    if (const std::size_t at = line->find("://127.0.0.1:"); at != std::string::npos)
      port = static_cast<std::uint16_t>(std::atoi(line->c_str() + at + 13));
  }
  HttpSession session(port);
  std::size_t at = 0;
  for (std::size_t i = 0; i < options.engines; ++i) {
    const std::size_t space = endpoints.find(' ', at);
    const std::size_t end = endpoints.find('\n', at);
    const std::string body = R"({"instance_id":)" + std::to_string(100 + i) +
                             R"(,"model_name":"bench","block_size":16,"endpoint":")" +
                             endpoints.substr(at, space - at) + R"(","replay_endpoint":")" +
                             endpoints.substr(space + 1, end - space - 1) + "\"}";
    if (session.post("/register", body).status() != 201) fail("an engine could not be registered");
    at = end + 1;
  }
  std::printf("%zu engines, %zu threads of ashlar serve, %zu clients of %zu connections, %u cores\n",
              options.engines, options.threads, options.clients, options.connections,
              std::thread::hardware_concurrency());
  report("no events  ", query(options, port, 0), static_cast<double>(options.seconds),
         static_cast<double>(options.rate));
  if (write(to_engines[1], "g", 1) != 1) fail("the engines ended");
  // Until old blocks are removed as new ones come.
  const auto filled = std::chrono::seconds(1 + options.kept / options.blocks);
  std::this_thread::sleep_for(filled);
  const std::uint64_t chain = messages_of(port);
  check_answer(port, chain - chain / 8);
  const CpuTime cpu = serve.cpu();
  const auto start = std::chrono::steady_clock::now();
  const std::vector<MeasuredLoad> all = query(options, port, chain);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double messages = static_cast<double>(messages_of(port) - chain);
  report("with events", all, static_cast<double>(options.seconds), static_cast<double>(options.rate));
  std::printf(
      "events: %.0f blocks/s stored and as many removed (%.0f wanted); ashlar serve used %.1f cores\n",
      messages * kChain / seconds, static_cast<double>(options.blocks),
      std::chrono::duration<double>(serve.cpu() - cpu).count() / seconds);
}

}  // namespace
}  // namespace ashlar::bench

int main(int count, char** words) {
  using namespace ashlar::bench;
  run(parse(count, words));
  return 0;
}
