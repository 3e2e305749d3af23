// What the parts of transfer_bench share: block sets to move, timing in turns, and one form of output.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/executor.h"
#include "cpu_seconds.h"
#include "ratio.h"

namespace ashlar::bench {

// Runs are long and few; the median of these is told.
inline constexpr std::size_t kTransferPairs = 9;

// Blocks that are one contiguous piece each, aligned as files want it.
inline layout::Layout block_pieces(std::uint64_t block_bytes, std::uint32_t blocks) {
  return layout::Layout::create({.block_count = blocks,
                                 .num_layers = 1,
                                 .outer_dim = 1,
                                 .block_size = 16,
                                 .num_heads = 1,
                                 .head_dim = static_cast<std::uint32_t>(block_bytes / 16),
                                 .inner_dim = static_cast<std::uint32_t>(block_bytes / 16),
                                 .dtype = layout::Dtype::kU8,
                                 .alignment = 4096},
                                layout::order::kFullyContiguousNhd)
      .value();
}

inline std::vector<std::uint32_t> shuffled(std::uint32_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), 0u);
  Random random(seed);
  for (std::uint32_t i = count; i > 1; --i) std::swap(blocks[i - 1], blocks[random.below(i)]);
  return blocks;
}

// One transfer, waited for. A failure ends the program with its reason.
inline void move(transfer::Executor& executor, const std::shared_ptr<const transfer::BlockSet>& from,
                 const std::vector<std::uint32_t>& from_blocks,
                 const std::shared_ptr<const transfer::BlockSet>& to,
                 const std::vector<std::uint32_t>& to_blocks) {
  const auto done = executor.submit({.plan = plan(from, from_blocks, to, to_blocks).value()}).value().wait();
  if (done) return;
  std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  std::exit(1);
}

struct Measured {
  Spread gigabytes_per_second;
  double cpu_seconds_per_gib = 0;
};

struct Duel {
  Measured ours;
  Measured rival;
  Spread ratio;  // ours / rival, pair by pair
};

// Both in turns, each run once per pair, after one run to warm up.
inline Duel duel(std::uint64_t bytes, const std::function<void()>& ours, const std::function<void()>& rival,
                 std::size_t pairs = kTransferPairs) {
  std::vector<double> speeds[2];
  std::vector<double> ratios;
  double cpu[2] = {0, 0};
  const std::function<void()>* sides[2] = {&ours, &rival};
  const auto timed = [&](int side) {
    const double cpu_before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    (*sides[side])();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    cpu[side] += cpu_seconds() - cpu_before;
    speeds[side].push_back(static_cast<double>(bytes) / elapsed.count() / 1e9);
  };
  ours();
  rival();
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    timed(pair % 2 == 0 ? 0 : 1);
    timed(pair % 2 == 0 ? 1 : 0);
    ratios.push_back(speeds[0].back() / speeds[1].back());
  }
  const double gib = static_cast<double>(bytes) * static_cast<double>(pairs) / static_cast<double>(1 << 30);
  return {{spread_of(speeds[0]), cpu[0] / gib}, {spread_of(speeds[1]), cpu[1] / gib}, spread_of(ratios)};
}

// `target` 0: none.
inline bool print_duel(const std::string& name, const Duel& d, double target) {
  const bool met = d.ratio.median >= target;
  std::printf(
      "  %-34s ours %6.2f GB/s %5.2f cpu-s/GiB   limit %6.2f GB/s %5.2f   share %.2f (%.2f..%.2f)%s\n",
      name.c_str(), d.ours.gigabytes_per_second.median, d.ours.cpu_seconds_per_gib,
      d.rival.gigabytes_per_second.median, d.rival.cpu_seconds_per_gib, d.ratio.median, d.ratio.min,
      d.ratio.max,
      target == 0 ? ""
      : met       ? "  ok"
                  : "  MISSED");
  return met;
}

inline std::string size_text(std::uint64_t bytes) {
  return bytes >= (1 << 20) ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes >> 10) + " KiB";
}

}  // namespace ashlar::bench
