// ratio: how fast one piece of code is beside another, measured so that a busy machine does not decide the
// answer.
//
// compare() runs both in turns, pair by pair, and swaps which goes first. Each run repeats its callable until
// it fills about kRunTime, which is shorter than a scheduler's time slice: most runs are whole even on a busy
// machine, and those that are interrupted show in the spread, not in the median. The ratio of a pair is rival
// time / our time, so above 1 means ours is faster; the result is the median over the pairs, with the
// smallest and the largest beside it.
//
//   const Comparison c = compare([&] { ours(); }, [&] { theirs(); });
//   print("hash 128k tokens", c);   // hash 128k tokens: ours 40.1 ns, rival 52.0 ns, ratio 1.30 (1.27..1.32)
//
// Thread safety: free functions; measure from one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace ashlar::bench {

inline constexpr std::chrono::nanoseconds kRunTime = std::chrono::milliseconds(1);
inline constexpr std::size_t kDefaultPairs = 51;

// The middle value and the ends of a list of measurements.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

// Requires: values not empty.
inline Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

struct Comparison {
  Spread ours;   // nanoseconds per call
  Spread rival;  // nanoseconds per call
  Spread ratio;  // rival / ours, pair by pair
};

// Nanoseconds per call over `calls` calls.
template <class F>
double time_calls(F&& f, std::uint64_t calls) {
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < calls; ++i) f();
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / static_cast<double>(calls);
}

// How many calls fill kRunTime; also warms up.
template <class F>
std::uint64_t calls_per_run(F&& f) {
  for (std::uint64_t calls = 1;; calls *= 2) {
    const double nanoseconds = time_calls(f, calls) * static_cast<double>(calls);
    if (nanoseconds * 4 >= static_cast<double>(kRunTime.count())) {
      const double wanted = static_cast<double>(kRunTime.count()) * static_cast<double>(calls) / nanoseconds;
      return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
    }
  }
}

// The callables take no arguments and must do the same work on every call; keep their results alive, with
// benchmark::DoNotOptimize() or by comparing them.
template <class Ours, class Rival>
Comparison compare(Ours&& ours, Rival&& rival, std::size_t pairs = kDefaultPairs) {
  const std::uint64_t our_calls = calls_per_run(ours);
  const std::uint64_t rival_calls = calls_per_run(rival);
  std::vector<double> our_times;
  std::vector<double> rival_times;
  std::vector<double> ratios;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    double our_time = 0;
    double rival_time = 0;
    if (pair % 2 == 0) {
      our_time = time_calls(ours, our_calls);
      rival_time = time_calls(rival, rival_calls);
    } else {
      rival_time = time_calls(rival, rival_calls);
      our_time = time_calls(ours, our_calls);
    }
    our_times.push_back(our_time);
    rival_times.push_back(rival_time);
    ratios.push_back(rival_time / our_time);
  }
  return {spread_of(our_times), spread_of(rival_times), spread_of(ratios)};
}

// One line on stdout.
inline void print(const std::string& name, const Comparison& c) {
  std::printf("%s: ours %.1f ns, rival %.1f ns, ratio %.2f (%.2f..%.2f)\n", name.c_str(), c.ours.median,
              c.rival.median, c.ratio.median, c.ratio.min, c.ratio.max);
}

}  // namespace ashlar::bench
