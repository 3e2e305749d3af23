// Hit rates of the eviction policies on Mooncake's conversation trace, beside those of a reference simulator,
// and how fast the simulator is.
//
//   replay_bench mooncake_conversation.jsonl
//
// A rate is the share of blocks found as an unbroken prefix, in a cache of that many blocks, requests in the
// order of the file. The reference evicts after each request, so a request may use more blocks than there
// are for a while; a manager must make room first. Policies that keep prefixes whole and the newest longest
// (LRU) lose nothing by it; the others find a little less, or more, and the optimum a little less in a small
// cache.
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/replay/generate.h"
#include "ashlar/replay/simulate.h"

namespace ashlar::bench {
namespace {

constexpr std::array<std::uint32_t, 5> kCapacities = {1'000, 5'000, 10'000, 20'000, 50'000};
constexpr double kWantedPerMinute = 1e6;

struct ReferenceRates {
  const char* policy;
  std::array<double, kCapacities.size()> rates;
};
constexpr ReferenceRates kReference[] = {
    {"fifo", {.0434, .1053, .1813, .2566, .3335}},    {"lru", {.0445, .1118, .2116, .2878, .3546}},
    {"lfu", {.0823, .1424, .1879, .2492, .3430}},     {"s3_fifo", {.0564, .1448, .2019, .2517, .3435}},
    {"optimum", {.1907, .3412, .3664, .3664, .3664}},
};

void print_rates(const replay::TraceTable& trace) {
  std::printf("hit rate (reference) at     ");
  for (const std::uint32_t capacity : kCapacities) std::printf("%16u", capacity);
  std::printf("\n");
  for (const ReferenceRates& reference : kReference) {
    const std::string name = reference.policy;
    std::printf("  %-26s", name.c_str());
    for (std::size_t i = 0; i < kCapacities.size(); ++i) {
      const auto run = replay::simulate(trace, {.tier_blocks = {kCapacities[i], 0, 0},
                                                .policy = name == "optimum" ? "lru" : name,
                                                .has_bound = name == "optimum"})
                           .value();
      const double rate = name == "optimum" ? run.bound_rate() : run.total.hit_rate();
      std::printf("   %.4f (%.4f)", rate, reference.rates[i]);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

// Of processor time, which a busy machine does not change much; the making of the pools is included.
bool print_speed(const char* what, const replay::TraceTable& trace, const replay::ReplayConfig& config) {
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t began = std::clock();
    const auto run = replay::simulate(trace, config).value();
    const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    best = std::max(best, 60 * static_cast<double>(run.total.requests) / seconds);
  }
  std::printf("  %-58s %8.2f million requests per minute\n", what, best / 1e6);
  return best >= kWantedPerMinute;
}

int run_bench(int count, char** arguments) {
  if (count > 2) {
    std::fprintf(stderr, "usage: replay_bench [TRACE]\n");
    return 1;
  }
  std::unique_ptr<replay::TraceSource> source;
  if (count == 2) {
    auto opened = replay::open_trace(arguments[1]);
    if (!opened) {
      std::fprintf(stderr, "replay_bench: %s\n", opened.error().message().c_str());
      return 1;
    }
    source = *std::move(opened);
  } else {
    std::printf("no trace is given: hit rates are left out, and the speed is that of a generated workload\n");
    source = replay::generate_trace({.requests = 12'000, .block_size = 512});
  }
  const auto trace = replay::TraceTable::load(*source).value();
  std::printf("%zu requests, %zu blocks, %zu distinct\n\n", trace.requests().size(), trace.named(),
              trace.distinct());
  if (count == 2) print_rates(trace);
  std::printf("\nspeed (wanted in one tier: %.0f million requests per minute), the best of three runs\n",
              kWantedPerMinute / 1e6);
  bool is_fast = print_speed("1 worker, 10,000 blocks, lru", trace, {.has_bound = false});
  is_fast &=
      print_speed("1 worker, 10,000 blocks, s3_fifo", trace, {.policy = "s3_fifo", .has_bound = false});
  is_fast &= print_speed("8 workers by prefix, 5,000 blocks, lru", trace,
                         {.workers = 8, .tier_blocks = {5'000, 0, 0}, .has_bound = false});
  print_speed("8 workers by prefix, 1,000 / 5,000 / 20,000 blocks, lru", trace,
              {.workers = 8, .tier_blocks = {1'000, 5'000, 20'000}, .has_bound = false});
  return is_fast ? 0 : 1;
}

}  // namespace
}  // namespace ashlar::bench

int main(int count, char** arguments) {
  return ashlar::bench::run_bench(count, arguments);
}
