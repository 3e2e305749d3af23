// Transfer throughput, each direction beside its limit in the same run.
//
//   transfer_bench                 host memory, checksums, disk
//   transfer_bench --folder PATH   files for the disk part go there (the current folder unless given)
//   transfer_bench --gpu           between GPU and host memory
//
// Host copies stand beside as many threads that only call memcpy; disk transfers beside a bare loop over
// io_uring, and the portable executor beside as many threads with pread and pwrite; checksums beside one call
// of XXH3 over the same bytes. Shares are medians of interleaved runs. Exit status 1 when a target was
// missed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/host_executors.h"
#include "tokens/xxhash_inline.h"
#include "transfer_gpu.h"
#include "transfer_measure.h"
#include "transfer_parts.h"

namespace {

using namespace ashlar;
using namespace ashlar::bench;
using transfer::BlockSet;

constexpr std::uint64_t kTotal = std::uint64_t{256} << 20;
constexpr double kTarget = 0.9;

std::uint32_t thread_count() {
  return std::max(1u, std::min(4u, std::thread::hardware_concurrency()));
}

std::shared_ptr<const BlockSet> in_memory(const layout::Layout& layout) {
  storage::SystemAllocator allocator({.touch_pages = true});
  return BlockSet::allocate(layout, allocator).value();
}

// fn(first, end) on each of `threads` threads, over an equal part of `count`.
template <class F>
void in_parallel(std::uint32_t threads, std::size_t count, F&& fn) {
  std::vector<std::thread> running;
  for (std::uint32_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] { fn(count * t / threads, count * (t + 1) / threads); });
  for (std::thread& thread : running) thread.join();
}

bool run_host() {
  const std::uint32_t threads = thread_count();
  std::printf(
      "host, %llu MiB in blocks at random places, %u threads; the limit is memcpy on as many threads\n",
      static_cast<unsigned long long>(kTotal >> 20), threads);
  bool met = true;
  const auto executor = transfer::MemcpyExecutor::create({.threads = threads}).value();
  for (const std::uint64_t bytes :
       {std::uint64_t{16} << 10, std::uint64_t{64} << 10, std::uint64_t{256} << 10, std::uint64_t{1} << 20,
        std::uint64_t{4} << 20}) {
    const auto blocks = static_cast<std::uint32_t>(kTotal / bytes);
    const auto from = in_memory(block_pieces(bytes, blocks));
    const auto to = in_memory(block_pieces(bytes, blocks));
    const std::vector<std::uint32_t> here = shuffled(blocks, 1);
    const std::vector<std::uint32_t> there = shuffled(blocks, 2);
    const auto rival = [&] {
      in_parallel(threads, blocks, [&](std::size_t first, std::size_t end) {
        for (std::size_t i = first; i < end; ++i)
          std::memcpy(to->address(0, {0, there[i] * bytes}), from->address(0, {0, here[i] * bytes}), bytes);
      });
    };
    met &= print_duel("copy " + size_text(bytes),
                      duel(
                          kTotal, [&] { move(*executor, from, here, to, there); }, rival),
                      bytes >= (std::uint64_t{256} << 10) ? kTarget : 0);
  }
  return met;
}

// A transposition of heads and tokens: no plain copy does that, so the limit is memcpy of the same bytes in
// one piece.
void run_transform() {
  const std::uint32_t threads = thread_count();
  const layout::LayoutConfig config = {.block_count = 256,
                                       .num_layers = 8,
                                       .outer_dim = 2,
                                       .block_size = 16,
                                       .num_heads = 8,
                                       .head_dim = 128,
                                       .inner_dim = 1024,
                                       .dtype = layout::Dtype::kBF16};
  const auto nhd = in_memory(layout::Layout::create(config, layout::order::kBlockFirstNhd).value());
  const auto hnd = in_memory(layout::Layout::create(config, layout::order::kFullyContiguousHnd).value());
  const auto executor = transfer::MemcpyExecutor::create({.threads = threads}).value();
  const std::vector<std::uint32_t> blocks = shuffled(256, 1);
  const std::uint64_t total = config.block_bytes() * 256;
  const auto rival = [&] {
    in_parallel(threads, total, [&](std::size_t first, std::size_t end) {
      std::memcpy(hnd->address(0, {0, first}), nhd->address(0, {0, first}), end - first);
    });
  };
  print_duel("NHD to HND, 256 bytes per head",
             duel(total, [&] { move(*executor, nhd, blocks, hnd, blocks); }, rival), 0);
}

void run_checksum() {
  std::printf("checksum of a block of 1 MiB, one thread; the limit is one XXH3 over the same bytes\n");
  const layout::LayoutConfig config = {.block_count = 64,
                                       .num_layers = 16,
                                       .outer_dim = 2,
                                       .block_size = 16,
                                       .num_heads = 8,
                                       .head_dim = 128,
                                       .inner_dim = 1024,
                                       .dtype = layout::Dtype::kBF16};
  for (const auto& [name, order] : {std::pair{"in canonical order", layout::order::kFullyContiguousNhd},
                                    {"as HND", layout::order::kFullyContiguousHnd},
                                    {"as block_second_nhd", layout::order::kBlockSecondNhd}}) {
    const auto set = in_memory(layout::Layout::create(config, order).value());
    std::uint64_t sum = 0;
    const auto ours = [&] {
      for (std::uint32_t block = 0; block < 64; ++block) sum += checksum_block(*set, block, {})->value();
    };
    const auto rival = [&] {
      for (std::uint64_t block = 0; block < 64; ++block)
        sum += XXH3_64bits(set->address(0, {0, block * config.block_bytes()}), config.block_bytes());
    };
    print_duel(name, duel(config.block_bytes() * 64, ours, rival), 0);
    if (sum == 1) std::printf("\n");  // keeps the sums
  }
}

bool run_files(const std::string& folder) {
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 20;
  constexpr std::uint32_t kThreads = 4;
  const auto blocks = static_cast<std::uint32_t>(kTotal / kBytes);
  std::printf(
      "disk, %llu MiB in blocks of 1 MiB, %u threads; the limit is pread and pwrite on as many threads\n",
      static_cast<unsigned long long>(kTotal >> 20), kThreads);
  storage::DiskAllocator allocator({.path = folder + "/transfer_bench", .remove = true});
  const auto disk = BlockSet::allocate(block_pieces(kBytes, blocks), allocator);
  if (!disk) {
    std::fprintf(stderr, "%s\n", disk.error().to_string().c_str());
    return false;
  }
  const auto memory = in_memory(block_pieces(kBytes, blocks));
  const auto executor = transfer::FileExecutor::create({.threads = kThreads}).value();
  const std::vector<std::uint32_t> here = shuffled(blocks, 1);
  const std::vector<std::uint32_t> there = shuffled(blocks, 2);
  const storage::FileAccess& file = *(*disk)->planes()[0].regions[0].storage->file();
  const int descriptor = file.direct >= 0 ? file.direct : file.buffered;
  bool met = true;
  for (const bool writes : {true, false}) {
    const auto rival = [&] {
      in_parallel(kThreads, blocks, [&](std::size_t first, std::size_t end) {
        for (std::size_t i = first; i < end; ++i) {
          std::byte* at = memory->address(0, {0, here[i] * kBytes});
          const auto offset = static_cast<off_t>(there[i] * kBytes);
          const ssize_t moved =
              writes ? pwrite(descriptor, at, kBytes, offset) : pread(descriptor, at, kBytes, offset);
          if (moved != static_cast<ssize_t>(kBytes)) std::exit(1);
        }
      });
    };
    const auto ours = [&] {
      writes ? move(*executor, memory, here, *disk, there) : move(*executor, *disk, there, memory, here);
    };
    met &= print_duel(writes ? "write 1 MiB" : "read 1 MiB", duel(kTotal, ours, rival), kTarget);
  }
  return met;
}

int usage(const char* program) {
  std::fprintf(stderr, "usage: %s [--folder PATH] | --gpu [options of the GPU part]\n", program);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = ".";
  if (argc > 1 && std::string_view(argv[1]) == "--gpu") return run_gpu_transfers(argc - 1, argv + 1);
  if (argc == 3 && std::string_view(argv[1]) == "--folder") {
    folder = argv[2];
  } else if (argc != 1) {
    return usage(argv[0]);
  }
  if (!std::filesystem::is_directory(folder)) {
    std::fprintf(stderr, "%s is no folder; the disk part makes a file there\n", folder.c_str());
    return 2;
  }
  bool met = run_host();
  run_transform();
  run_checksum();
  met &= run_files(folder);
  met &= run_uring_transfers(folder);
  return met ? 0 : 1;
}
