// Remote memory between two processes of this machine, each transport beside its limit in the same run.
//
//   remote_bench                            all of it
//   remote_bench ucx:tcp                    one transport; also ucx:tcp,shm, loopback:mapped, loopback:kernel
//   remote_bench ucx:tcp latency            one part of it; also bandwidth
//
// UCX stands beside ucx_perftest with the same transports, segments, message sizes and number of operations
// in flight: ucp_get and ucp_put_bw for bandwidth, ucp_put_lat for one block. ucx_perftest moves one buffer,
// which the caches keep; so do the rows "cached", which have the targets. The others move blocks at random
// places of 64 MiB, as an engine does. Loopback stands beside memcpy of the same blocks. Shares are medians
// of interleaved runs. Exit status 1 when a target was missed.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/storage/allocator.h"
#include "far_side.h"
#include "transfer_measure.h"
#include "ucx_perftest.h"

namespace {

using namespace ashlar;
using namespace ashlar::bench;
using backend::ucx::UcxOptions;
using backend::ucx::UcxTransport;
using transfer::BlockSet;

constexpr std::uint64_t kRegion = std::uint64_t{64} << 20;
constexpr std::uint64_t kMoved = std::uint64_t{256} << 20;
constexpr std::uint64_t kPiece = std::uint64_t{32} << 10;
constexpr std::uint64_t kOne = std::uint64_t{64} << 10;
constexpr std::uint64_t kCached = std::uint64_t{1} << 20;
constexpr std::size_t kInFlight = 8;
constexpr std::uint32_t kTimes = 1000;  // for latencies
constexpr double kBandwidthTarget = 0.9;
constexpr double kScatterTarget = 0.8;
constexpr double kLoopbackTarget = 0.75;
constexpr double kLatencyTarget = 1.3;

// A kind is "ucx:" with a list of UCX transports, or "loopback:" with the way that memory is reached.
bool is_ucx(const std::string& kind) {
  return kind.starts_with("ucx:");
}

std::shared_ptr<transfer::RemoteTransport> make_transport(const std::string& kind) {
  if (!is_ucx(kind)) return transfer::LoopbackTransport::create().value();
  auto made = UcxTransport::create({.transports = kind.substr(4)});
  if (!made) give_up(made.error());
  return *std::move(made);
}

// As each transport likes it best: memory of UCX itself where peers map it.
std::shared_ptr<storage::Storage> make_memory(const std::string& kind,
                                              transfer::RemoteTransport* transport = nullptr) {
  std::shared_ptr<storage::Allocator> allocator =
      std::make_shared<storage::SystemAllocator>(storage::MemoryOptions{.touch_pages = true});
  if (kind == "loopback:mapped") allocator = std::make_shared<storage::SharedAllocator>();
  if (kind == "ucx:tcp,shm") allocator = static_cast<UcxTransport&>(*transport).allocator();
  auto memory = allocator->allocate(kRegion, 4096).value();
  std::memset(memory->address(), 1, kRegion);
  return memory;
}

double seconds_of(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Both in turns. The functions return GB/s.
bool print_bandwidth(const std::string& name, const std::function<double()>& ours,
                     const std::function<double()>& limit, double target) {
  std::vector<double> speeds[2];
  std::vector<double> ratios;
  ours();
  for (std::size_t pair = 0; pair < kTransferPairs; ++pair) {
    const bool first = pair % 2 == 0;
    if (first) speeds[0].push_back(ours());
    speeds[1].push_back(limit());
    if (!first) speeds[0].push_back(ours());
    ratios.push_back(speeds[0].back() / speeds[1].back());
  }
  const Spread ratio = spread_of(ratios);
  const bool met = target == 0 || ratio.median >= target;
  std::printf("  %-26s ours %6.2f GB/s   limit %6.2f GB/s   share %.2f (%.2f..%.2f)%s\n", name.c_str(),
              spread_of(speeds[0]).median, spread_of(speeds[1]).median, ratio.median, ratio.min, ratio.max,
              target == 0 ? ""
              : met       ? "  ok"
                          : "  MISSED");
  std::fflush(stdout);
  return met;
}

bool print_latency(const std::string& name, const std::function<double()>& ours,
                   const std::function<double()>& limit, double target) {
  std::vector<double> times[2];
  std::vector<double> ratios;
  for (std::size_t pair = 0; pair < kTransferPairs; ++pair) {
    const bool first = pair % 2 == 0;
    if (first) times[0].push_back(ours());
    times[1].push_back(limit());
    if (!first) times[0].push_back(ours());
    ratios.push_back(times[0].back() / times[1].back());
  }
  const Spread ratio = spread_of(ratios);
  const bool met = target == 0 || ratio.median <= target;
  std::printf("  %-26s ours %6.1f us     limit %6.1f us     times %.2f (%.2f..%.2f)%s\n", name.c_str(),
              spread_of(times[0]).median, spread_of(times[1]).median, ratio.median, ratio.min, ratio.max,
              target == 0 ? ""
              : met       ? "  ok"
                          : "  MISSED");
  std::fflush(stdout);
  return met;
}

// GB/s of moving the whole region, again and again.
double speed_of(transfer::Executor& executor, const std::shared_ptr<const BlockSet>& from,
                const std::shared_ptr<const BlockSet>& to) {
  const std::vector<std::uint32_t> here = shuffled(from->block_count(), 1);
  const std::vector<std::uint32_t> there = shuffled(to->block_count(), 2);
  const double seconds = seconds_of([&] {
    for (std::uint64_t moved = 0; moved < kMoved; moved += kRegion) move(executor, from, here, to, there);
  });
  return static_cast<double>(kMoved) / seconds / 1e9;
}

// The same over the first blocks alone, which the caches keep, with transfers in flight as for a window.
double cached_speed_of(transfer::Executor& executor, const std::shared_ptr<const BlockSet>& from,
                       const std::shared_ptr<const BlockSet>& to) {
  const std::uint64_t block_bytes = kRegion / from->block_count();
  std::vector<std::uint32_t> blocks(std::max<std::uint64_t>(1, kCached / block_bytes));
  std::iota(blocks.begin(), blocks.end(), 0u);
  const double seconds = seconds_of([&] {
    std::deque<transfer::Transfer> running;
    const auto end_first = [&] {
      const auto done = running.front().wait();
      if (!done) give_up(done.error());
      running.pop_front();
    };
    for (std::uint64_t moved = 0; moved < kMoved; moved += blocks.size() * block_bytes) {
      running.push_back(executor.submit({.plan = plan(from, blocks, to, blocks).value()}).value());
      if (running.size() == kInFlight) end_first();
    }
    while (!running.empty()) end_first();
  });
  return static_cast<double>(kMoved) / seconds / 1e9;
}

// Microseconds of one block, the median of many.
double latency_of(transfer::Executor& executor, const std::shared_ptr<const BlockSet>& from,
                  const std::shared_ptr<const BlockSet>& to) {
  std::vector<double> times;
  for (std::uint32_t i = 0; i < kTimes; ++i) {
    const std::vector<std::uint32_t> block = {i % 16};
    times.push_back(seconds_of([&] { move(executor, from, block, to, block); }) * 1e6);
  }
  return spread_of(times).median;
}

// A block is 32 layers of 32 KiB: together here, apart there.
layout::LayoutConfig scattered_config() {
  return {.block_count = static_cast<std::uint32_t>(kRegion / kPiece / 32),
          .num_layers = 32,
          .outer_dim = 1,
          .block_size = 16,
          .num_heads = 1,
          .head_dim = kPiece / 16,
          .inner_dim = kPiece / 16,
          .dtype = layout::Dtype::kU8};
}

// What the limit does with messages of a size: GB/s, and microseconds of one.
struct Limit {
  std::function<double(bool puts, std::uint64_t bytes)> speed;
  std::function<double(std::uint64_t bytes)> latency;
  bool cached = false;  // it moves one buffer, which the caches keep
};

bool run(const std::string& kind, const Limit& limit, const std::string& part) {
  FarSide remote(make_transport(kind), {"--own", kind}, {.bytes = kRegion});
  const std::shared_ptr<storage::Storage> local = make_memory("local");
  transfer::Executor& executor = remote.executor();
  // Over shared memory ucx_perftest copies within a cache, which is no limit for blocks in memory.
  const bool comparable = kind != "ucx:tcp,shm";
  bool met = true;
  const auto both = [&](const std::string& what, const layout::Layout& there, const layout::Layout& here,
                        std::uint64_t bytes, double wanted) {
    const auto theirs = set_over(there, remote.memory());
    const auto mine = set_over(here, local);
    const auto row = [&](const std::string& name, bool puts, const auto& speed, double target) {
      met &= print_bandwidth(
          name, [&] { return puts ? speed(executor, mine, theirs) : speed(executor, theirs, mine); },
          [&] { return limit.speed(puts, bytes); }, comparable ? target : 0);
    };
    // The target is for what the limit does too.
    if (limit.cached) {
      row("get " + what + ", cached", false, cached_speed_of, wanted);
      row("put " + what + ", cached", true, cached_speed_of, wanted);
    }
    row("get " + what, false, speed_of, limit.cached ? 0 : kLoopbackTarget);
    row("put " + what, true, speed_of, limit.cached ? 0 : kLoopbackTarget);
  };
  if (part != "latency") {
    for (const std::uint64_t bytes : {std::uint64_t{64} << 10, std::uint64_t{256} << 10,
                                      std::uint64_t{1} << 20, std::uint64_t{4} << 20}) {
      const layout::Layout layout = block_pieces(bytes, static_cast<std::uint32_t>(kRegion / bytes));
      both(size_text(bytes), layout, layout, bytes,
           bytes >= (std::uint64_t{256} << 10) ? kBandwidthTarget : 0);
    }
    both("pieces of 32 KiB", layout::Layout::create(scattered_config(), layout::order::kLbhnc).value(),
         layout::Layout::create(scattered_config(), layout::order::kFullyContiguousNhd).value(), kPiece,
         kScatterTarget);
  }
  if (part != "bandwidth") {
    const layout::Layout layout = block_pieces(kOne, static_cast<std::uint32_t>(kRegion / kOne));
    const auto theirs = set_over(layout, remote.memory());
    const auto mine = set_over(layout, local);
    const auto one = [&] { return limit.latency(kOne); };
    met &= print_latency(
        "get one 64 KiB block", [&] { return latency_of(executor, theirs, mine); }, one,
        kind == "ucx:tcp" ? kLatencyTarget : 0);
    met &= print_latency(
        "put one 64 KiB block", [&] { return latency_of(executor, mine, theirs); }, one,
        kind == "ucx:tcp" ? kLatencyTarget : 0);
  }
  return met;
}

bool run_ucx(const std::string& kind, const std::string& part) {
  const UcxOptions defaults;
  const UcxPerftest perftest(kind.substr(4), defaults.segment_bytes);
  const auto result = [&](const char* test, std::uint64_t bytes, std::uint64_t messages,
                          std::uint32_t window) {
    const auto out = perftest.run(test, bytes, messages, window);
    if (!out) std::exit(1);
    return *out;
  };
  std::printf("%s; the limit is ucx_perftest, one buffer, %u in flight\n", kind.c_str(), defaults.window);
  return run(
      kind,
      {[&](bool puts, std::uint64_t bytes) {
         return result(puts ? "ucp_put_bw" : "ucp_get", bytes, kMoved / bytes, defaults.window)
             .gigabytes_per_second;
       },
       [&](std::uint64_t bytes) { return result("ucp_put_lat", bytes, 2 * kTimes, 1).microseconds; }, true},
      part);
}

bool run_loopback(const std::string& kind, const std::string& part) {
  const std::shared_ptr<storage::Storage> from = make_memory("local");
  const std::shared_ptr<storage::Storage> to = make_memory("local");
  const std::uint32_t threads = transfer::LoopbackOptions{}.copies.threads;
  std::printf("%s; the limit is memcpy on %u threads, for one block on one\n", kind.c_str(), threads);
  const auto copy = [&](std::uint64_t bytes, const std::vector<std::uint32_t>& here,
                        const std::vector<std::uint32_t>& there, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i)
      std::memcpy(to->address() + there[i] * bytes, from->address() + here[i] * bytes, bytes);
  };
  return run(kind,
             {[&](bool, std::uint64_t bytes) {
                const auto blocks = static_cast<std::uint32_t>(kRegion / bytes);
                const std::vector<std::uint32_t> here = shuffled(blocks, 1);
                const std::vector<std::uint32_t> there = shuffled(blocks, 2);
                const double seconds = seconds_of([&] {
                  for (std::uint64_t moved = 0; moved < kMoved; moved += kRegion) {
                    std::vector<std::thread> running;
                    for (std::size_t t = 0; t < threads; ++t)
                      running.emplace_back([&, t] {
                        copy(bytes, here, there, blocks * t / threads, blocks * (t + 1) / threads);
                      });
                    for (std::thread& thread : running) thread.join();
                  }
                });
                return static_cast<double>(kMoved) / seconds / 1e9;
              },
              [&](std::uint64_t bytes) {
                std::vector<double> times;
                for (std::uint32_t i = 0; i < kTimes; ++i) {
                  const std::vector<std::uint32_t> block = {i % 16};
                  times.push_back(seconds_of([&] { copy(bytes, block, block, 0, 1); }) * 1e6);
                }
                return spread_of(times).median;
              }},
             part);
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> words(values + 1, values + count);
  if (words.size() == 2 && words[0] == "--own") {
    const auto transport = make_transport(words[1]);
    return own_memory(*transport, make_memory(words[1], transport.get()));
  }
  const std::string wanted = words.empty() ? "" : words[0];
  const std::string part = words.size() < 2 ? "" : words[1];
  bool known = wanted.empty();
  bool met = true;
  for (const std::string kind : {"ucx:tcp", "ucx:tcp,shm", "loopback:mapped", "loopback:kernel"}) {
    if (!wanted.empty() && wanted != kind) continue;
    known = true;
    if (!is_ucx(kind)) {
      met &= run_loopback(kind, part);
    } else if (UcxPerftest::present()) {
      met &= run_ucx(kind, part);
    } else {
      std::printf("%s: ucx_perftest is not installed (Debian package ucx-utils)\n", kind.c_str());
    }
  }
  if (known) return met ? 0 : 1;
  std::fprintf(stderr,
               "usage: remote_bench [ucx:tcp|ucx:tcp,shm|loopback:mapped|loopback:kernel "
               "[bandwidth|latency]]\n");
  return 2;
}
