// Hit rates of the eviction policies on Mooncake's conversation trace, beside those of a reference simulator,
// and how fast the simulator is.
//
//   replay_bench mooncake_conversation.jsonl
//
// A rate is the share of blocks found as an unbroken prefix, in a cache of that many blocks, requests in the
// order of the file. The reference evicts after each request, so a request may use more blocks than there
// are for a while; a manager must make room first. A naive simulator does both: with its room made after, it
// has to find what the reference says, and with its room made before, what the simulator of managers finds,
// digit for digit but for the named cells. Otherwise the status is 1.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/replay/generate.h"
#include "ashlar/replay/simulate.h"
#include "naive_policies.h"
#include "replay/plan/capacity_curve.h"

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

// The trace that the reference rates are of.
bool is_reference(const replay::TraceTable& trace) {
  return trace.named() == 288'500 && trace.distinct() == 182'790;
}

bool is_same_digits(double one, double other) {
  return std::llround(one * 10'000) == std::llround(other * 10'000);
}

// S3-FIFO's backend has its ghosts in buckets, and counts those that came back too: in the middle sizes it
// remembers less than as many names as it has blocks.
bool may_lose_ghosts(const std::string& policy, std::uint32_t capacity) {
  return policy == "s3_fifo" && (capacity == 5'000 || capacity == 10'000 || capacity == 20'000);
}

bool is_near_enough(double ours, double naive, bool loses_ghosts) {
  constexpr double kGhostLoss = 0.003;
  if (loses_ghosts) return ours <= naive && naive - ours < kGhostLoss;
  return is_same_digits(ours, naive);
}

// Whether all rates are as they should be; of another trace only those of the naive simulator are known.
bool print_rates(const replay::TraceTable& trace) {
  const bool has_reference = is_reference(trace);
  std::printf("hit rate, naive with room made before | after (reference)\n%-10s", "at");
  for (const std::uint32_t capacity : kCapacities) std::printf("%35u", capacity);
  std::printf("\n");
  std::vector<std::string> faults;
  for (const ReferenceRates& reference : kReference) {
    const std::string name = reference.policy;
    std::printf("%-10s", name.c_str());
    for (std::size_t i = 0; i < kCapacities.size(); ++i) {
      const auto run = replay::simulate(trace, {.tier_blocks = {kCapacities[i], 0, 0},
                                                .policy = name == "optimum" ? "lru" : name,
                                                .has_bound = name == "optimum"})
                           .value();
      const double rate = name == "optimum" ? run.bound_rate() : run.total.hit_rate();
      const double before = naive_hit_rate(trace, name, kCapacities[i], RoomMade::kBefore);
      const double after = naive_hit_rate(trace, name, kCapacities[i], RoomMade::kAfter);
      std::printf("  %.4f %c %.4f | %.4f", rate, is_same_digits(rate, before) ? '=' : '~', before, after);
      if (has_reference) std::printf(" (%.4f)", reference.rates[i]);
      std::fflush(stdout);
      const std::string cell = name + " at " + std::to_string(kCapacities[i]);
      if (!is_near_enough(rate, before, may_lose_ghosts(name, kCapacities[i])))
        faults.push_back(cell + " differs from the naive simulator");
      if (has_reference && !is_same_digits(after, reference.rates[i]))
        faults.push_back(cell + ": the naive simulator differs from the reference");
    }
    std::printf("\n");
  }
  for (const std::string& fault : faults) std::printf("FAILED: %s\n", fault.c_str());
  return faults.empty();
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

// Reading included.
template <class Open>
void print_plan_speed(const char* what, const Open& open, double rate) {
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t began = std::clock();
    const auto source = open();
    const auto curve = replay::CapacityCurve::build(*source, {.rate = rate}).value();
    const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    best = std::max(best, 60 * static_cast<double>(curve.requests()) / seconds);
  }
  std::printf("  %-58s %8.2f million requests per minute\n", what, best / 1e6);
}

int run_bench(int count, char** arguments) {
  if (count > 2) {
    std::fprintf(stderr, "usage: replay_bench [TRACE]\n");
    return 1;
  }
  if (count == 2) {
    const auto opened = replay::open_trace(arguments[1]);
    if (!opened) {
      std::fprintf(stderr, "replay_bench: %s\n", opened.error().message().c_str());
      return 1;
    }
  } else {
    std::printf("no trace is given: hit rates are left out, and the speed is that of a generated workload\n");
  }
  const auto open = [&] {
    return count == 2 ? replay::open_trace(arguments[1]).value()
                      : replay::generate_trace({.requests = 12'000, .block_size = 512});
  };
  const std::unique_ptr<replay::TraceSource> source = open();
  const auto trace = replay::TraceTable::load(*source).value();
  std::printf("%zu requests, %zu blocks, %zu distinct\n\n", trace.requests().size(), trace.named(),
              trace.distinct());
  const bool is_right = count != 2 || print_rates(trace);
  std::printf("\nspeed (wanted in one tier: %.0f million requests per minute), the best of three runs\n",
              kWantedPerMinute / 1e6);
  bool is_fast = print_speed("1 worker, 10,000 blocks, lru", trace, {.has_bound = false});
  is_fast &=
      print_speed("1 worker, 10,000 blocks, s3_fifo", trace, {.policy = "s3_fifo", .has_bound = false});
  is_fast &= print_speed("8 workers by prefix, 5,000 blocks, lru", trace,
                         {.workers = 8, .tier_blocks = {5'000, 0, 0}, .has_bound = false});
  print_speed("8 workers by prefix, 1,000 / 5,000 / 20,000 blocks, lru", trace,
              {.workers = 8, .tier_blocks = {1'000, 5'000, 20'000}, .has_bound = false});
  std::printf("\ncapacity curves of ashlar plan, with reading the trace\n");
  print_plan_speed("exact", open, 1);
  print_plan_speed("a tenth of the blocks", open, 0.1);
  print_plan_speed("a hundredth of the blocks", open, 0.01);
  return is_fast && is_right ? 0 : 1;
}

}  // namespace
}  // namespace ashlar::bench

int main(int count, char** arguments) {
  return ashlar::bench::run_bench(count, arguments);
}
