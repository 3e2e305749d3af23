// Throughput between the tiers of a KvBlockManager, each direction beside the raw transfer of the same bytes
// in the same run.
//
//   tier_bench                     host memory, a file, a folder
//   tier_bench --folder PATH       files go there (the current folder unless given)
//   tier_bench --restart BLOCKS    only: how long a restart takes with so many blocks in G3
//   tier_bench --memory            only: memory per tracked block
//   tier_bench --shards            only: blocks made from objects of other ranks, beside objects of their own
//   tier_bench --gpu               only: G1 in the memory of a GPU
//
// Raw means: one transfer of the executor that the manager uses, with a sync at the end for a file; for a
// folder, a plain loop of write, sync and rename, or of read. The manager adds names, checksums, headers and
// registration. Shares are medians of interleaved runs. Exit status 1 when a target was missed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "ashlar/storage/disk_storage.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/transfer_engine.h"
#include "counting_allocator.h"
#include "tier_gpu.h"
#include "tier_setup.h"
#include "tiers/disk/g3_file.h"
#include "transfer_measure.h"

namespace {

using namespace ashlar;
using namespace ashlar::bench;
using tiers::KvBlockManager;
using transfer::BlockSet;

constexpr std::uint64_t kTotal = std::uint64_t{256} << 20;
constexpr double kTarget = 0.85;

std::shared_ptr<transfer::Executor> host_engine() {
  transfer::TransferEngineOptions options;
  options.executors = {transfer::MemcpyExecutor::create().value(), transfer::FileExecutor::create().value()};
  return transfer::TransferEngine::create(std::move(options)).value();
}

std::shared_ptr<const BlockSet> in_memory(std::uint64_t bytes, std::uint32_t blocks) {
  storage::SystemAllocator allocator({.touch_pages = true});
  return BlockSet::allocate(block_pieces(bytes, blocks), allocator).value();
}

// A file of the same blocks, without headers.
struct RawFile {
  RawFile(const std::string& path, std::uint64_t bytes, std::uint32_t blocks) {
    const layout::Layout layout = block_pieces(bytes, blocks);
    storage = storage::DiskStorage::create({.path = path, .bytes = layout.region_bytes()}).value();
    set = BlockSet::create({{layout, layout::Shard::whole(layout.config()), {{storage, 0}}}}).value();
  }
  std::shared_ptr<storage::DiskStorage> storage;
  std::shared_ptr<const BlockSet> set;
};

void write_file(const std::string& path, const std::byte* bytes, std::uint64_t count) {
  const std::string temporary = path + ".new";
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  std::uint64_t done = 0;
  while (done < count) {
    const ssize_t written = write(file, bytes + done, count - done);
    ASHLAR_CHECK(written > 0, "%s cannot be written", path.c_str());
    done += static_cast<std::uint64_t>(written);
  }
  ASHLAR_CHECK(fdatasync(file) == 0 && close(file) == 0 && rename(temporary.c_str(), path.c_str()) == 0,
               "%s cannot be written", path.c_str());
}

void read_file(const std::string& path, std::byte* bytes, std::uint64_t count) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::uint64_t done = 0;
  while (done < count) {
    const ssize_t read_now = read(file, bytes + done, count - done);
    ASHLAR_CHECK(read_now > 0, "%s cannot be read", path.c_str());
    done += static_cast<std::uint64_t>(read_now);
  }
  close(file);
}

void sync_folder(const std::string& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASHLAR_CHECK(fsync(file) == 0, "%s cannot be synced", folder.c_str());
  close(file);
}

bool run_tiers(const std::string& folder, std::uint64_t bytes) {
  const auto blocks = static_cast<std::uint32_t>(kTotal / bytes);
  std::printf("%u blocks of %s\n", blocks, size_text(bytes).c_str());
  const std::shared_ptr<transfer::Executor> engine = host_engine();
  TierSetup setup({.bytes = bytes, .blocks = blocks, .folder = folder, .executor = engine});
  const auto above = in_memory(bytes, blocks);
  const auto below = in_memory(bytes, blocks);
  RawFile file(folder + "/raw", bytes, blocks);
  const std::vector<std::uint32_t> here = shuffled(blocks, 1);
  const std::vector<std::uint32_t> there = shuffled(blocks, 2);
  std::vector<std::uint32_t> in_order(blocks);
  for (std::uint32_t i = 0; i < blocks; ++i) in_order[i] = i;
  const auto nothing = [] {};
  bool met = true;

  met &= print_duel("G1 to G2, offload",
                    duel_prepared(
                        kTotal, [&] { setup.clear(1); }, [&] { setup.offload(1); }, nothing,
                        [&] { move(*engine, above, here, below, there); }),
                    kTarget);
  met &= print_duel("G2 to G1, onboard",
                    duel_prepared(
                        kTotal, [&] { setup.clear(0); }, [&] { setup.onboard(); }, nothing,
                        [&] { move(*engine, below, there, above, here); }),
                    kTarget);
  // Into G2 anew, so that checksums are not known yet.
  const auto fresh_in_g2 = [&](int tier) {
    setup.clear(tier);
    setup.clear(1);
    setup.offload(1);
  };
  met &= print_duel("G2 to G3, offload, synced",
                    duel_prepared(
                        kTotal, [&] { fresh_in_g2(2); }, [&] { setup.offload(2); }, nothing,
                        [&] {
                          move(*engine, below, there, file.set, in_order);
                          ASHLAR_CHECK(file.storage->sync(), "the file cannot be synced");
                        }),
                    kTarget);
  met &= print_duel(
      "G3 to G2, prefetch",
      duel_prepared(
          kTotal,
          [&] {
            setup.clear(0);
            setup.clear(1);
          },
          [&] { setup.prefetch(); }, nothing, [&] { move(*engine, file.set, in_order, below, there); }),
      kTarget);
  met &= print_duel("G3 to G1, onboard",
                    duel_prepared(
                        kTotal,
                        [&] {
                          setup.clear(0);
                          setup.clear(1);
                        },
                        [&] { setup.onboard(); }, nothing,
                        [&] {
                          move(*engine, file.set, in_order, below, there);
                          move(*engine, below, there, above, here);
                        }),
                    0);
  setup.clear(2);
  const std::string plain = folder + "/plain";
  std::filesystem::create_directory(plain);
  const auto name = [&](std::uint32_t i) { return plain + "/" + std::to_string(i); };
  met &= print_duel("G2 to G4, a folder, synced",
                    duel_prepared(
                        kTotal, [&] { fresh_in_g2(3); }, [&] { setup.offload(3); },
                        [&] {
                          for (std::uint32_t i = 0; i < blocks; ++i) std::filesystem::remove(name(i));
                        },
                        [&] {
                          for (std::uint32_t i = 0; i < blocks; ++i)
                            write_file(name(i), below->address(0, {0, there[i] * bytes}), bytes);
                          sync_folder(plain);
                        },
                        5),
                    kTarget);
  met &= print_duel("G4 to G2, prefetch",
                    duel_prepared(
                        kTotal,
                        [&] {
                          setup.clear(0);
                          setup.clear(1);
                        },
                        [&] { setup.prefetch(); }, nothing,
                        [&] {
                          for (std::uint32_t i = 0; i < blocks; ++i)
                            read_file(name(i), below->address(0, {0, there[i] * bytes}), bytes);
                        }),
                    kTarget);
  std::filesystem::remove_all(plain);
  std::filesystem::remove(folder + "/raw");
  return met;
}

// Small blocks: what is left is what each block costs beyond its bytes.
void run_overhead(const std::string& folder) {
  constexpr std::uint32_t kBlocks = 8192;
  constexpr std::uint64_t kBytes = 4096;
  std::printf("overhead, %u blocks of 4 KiB\n", kBlocks);
  const std::shared_ptr<transfer::Executor> engine = host_engine();
  TierSetup setup({.bytes = kBytes, .blocks = kBlocks, .folder = folder, .sync = false, .executor = engine});
  const auto above = in_memory(kBytes, kBlocks);
  const auto below = in_memory(kBytes, kBlocks);
  RawFile file(folder + "/raw", kBytes, kBlocks);
  const std::vector<std::uint32_t> here = shuffled(kBlocks, 1);
  const std::vector<std::uint32_t> there = shuffled(kBlocks, 2);
  const auto print = [&](const char* way, const Duel& d) {
    const double total = static_cast<double>(kBlocks) * kBytes;
    const auto micros = [&](const Measured& side) {
      return total / side.gigabytes_per_second.median / 1e3 / kBlocks;
    };
    std::printf("  %-34s %6.2f us per block, raw %6.2f us, overhead %6.2f us\n", way, micros(d.ours),
                micros(d.rival), micros(d.ours) - micros(d.rival));
  };
  const std::uint64_t total = kBlocks * kBytes;
  const auto nothing = [] {};
  print("G1 to G2", duel_prepared(
                        total, [&] { setup.clear(1); }, [&] { setup.offload(1); }, nothing,
                        [&] { move(*engine, above, here, below, there); }));
  print("G2 to G1", duel_prepared(
                        total, [&] { setup.clear(0); }, [&] { setup.onboard(); }, nothing,
                        [&] { move(*engine, below, there, above, here); }));
  print("G2 to G3, not synced",
        duel_prepared(
            total,
            [&] {
              setup.clear(2);
              setup.clear(1);
              setup.offload(1);
            },
            [&] { setup.offload(2); }, nothing, [&] { move(*engine, below, there, file.set, here); }));
  print("G3 to G2",
        duel_prepared(
            total,
            [&] {
              setup.clear(0);
              setup.clear(1);
            },
            [&] { setup.prefetch(); }, nothing, [&] { move(*engine, file.set, here, below, there); }));
  std::filesystem::remove(folder + "/raw");
}

void run_restart(const std::string& folder, std::uint32_t blocks) {
  const std::string path = folder + "/restart";
  const layout::Layout layout = block_pieces(4096, blocks);
  const tokens::NamespaceFingerprint keys = tier_keys();
  const auto open_file = [&] {
    return tiers::G3File::open({.path = path,
                                .planes = {transfer::PlaneShape::whole(layout)},
                                .keys = keys,
                                .survive_power_loss = false})
        .value();
  };
  {
    // Headers as if every block were there; a restart reads nothing else.
    const auto file = open_file();
    std::vector<tiers::G3File::Entry> entries;
    const std::vector<tokens::SequenceHash> names = tier_names(blocks);
    for (std::uint32_t i = 0; i < blocks; ++i)
      entries.push_back({i, {.hash = names[i], .checksum = transfer::BlockChecksum(i + 1)}});
    ASHLAR_CHECK(file->commit(entries, file->failed_syncs()), "headers cannot be written");
  }
  std::vector<double> seconds;
  std::size_t found = 0;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    auto kv =
        KvBlockManager::create(
            {.model = block_pieces(4096, 1).config(),
             .block_size = 16,
             .keys = keys,
             .g1 = {.block_count = 1},
             .g2 = tiers::TierShape{.block_count = 1},
             .g3 = tiers::DiskShape{.block_count = blocks, .paths = {path}, .survive_power_loss = false}})
            .value();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    found = kv->g3()->status().inactive;
  }
  const Spread spread = spread_of(seconds);
  std::printf("restart with %u blocks in G3: %.2f s (%.2f..%.2f), %.2f s per million; %zu found\n", blocks,
              spread.median, spread.min, spread.max, spread.median * 1e6 / blocks, found);
  std::filesystem::remove(path);
}

// Blocks of 64 bytes, so that what is counted is what tracks them; bytes of tiers are mapped, not counted.
void run_memory(const std::string& folder) {
  constexpr std::uint32_t kBlocks = 100'000;
  std::int64_t before = 0;
  start_counting_bytes();
  before = live_bytes();
  TierSetup setup({.bytes = 64, .blocks = kBlocks, .folder = folder, .sync = false, .volume = false});
  setup.offload(1);
  setup.offload(2);
  const double each = static_cast<double>(live_bytes() - before - setup.own_bytes()) / (3.0 * kBlocks);
  std::printf("memory: %.0f bytes of heap per tracked block and tier (%u blocks, each in G1, G2 and G3)\n",
              each, kBlocks);
}

// One rank of a model of 8 KV heads: a block of two ranks has 1 MiB. Its objects are in a folder.
class ShardedRank {
 public:
  static constexpr std::uint32_t kHeads = 8;
  static constexpr std::uint32_t kLayers = 32;

  ShardedRank(const std::string& folder, const layout::Shard& shard, std::uint32_t blocks,
              std::vector<layout::Shard> others = {})
      : names_(tier_names(blocks)) {
    std::filesystem::create_directories(folder);
    tiers::KvOptions options{
        .model = {.num_layers = kLayers,
                  .block_size = 16,
                  .num_heads = shard.heads.count,
                  .head_dim = 128,
                  .inner_dim = shard.heads.count * 128},
        .shard = shard,
        .block_size = 16,
        .keys = tier_keys(),
        .g1 = {.block_count = blocks},
        .g2 = tiers::TierShape{.block_count = blocks + blocks / 4 + 64},
        .g4 = tiers::VolumeShape{
            .block_count = blocks + 64,
            .other_shards = std::move(others),
            .volumes = {
                {.name = "v", .kind = "directory", .location = folder, .options = {{"sync", "false"}}}}}};
    bytes_ = options.model.block_bytes() * blocks;
    kv_ = KvBlockManager::create(std::move(options)).value();
  }
  // Puts all blocks into the folder.
  void store() {
    auto fresh = kv_->get_mutable_blocks(names_.size()).value();
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    for (std::size_t i = 0; i < names_.size(); ++i)
      complete.push_back(std::move(fresh[i]).stage(names_[i], block::KvReady::asserted_by_caller()));
    kv_->register_blocks(std::move(complete)).value();
    kv_->drain();
    clear();
    ASHLAR_CHECK(kv_->reset(events::kTierId<events::G1>).has_value(), "G1 is in use");
  }
  void clear() { ASHLAR_CHECK(kv_->reset(events::kTierId<events::G2>).has_value(), "G2 is in use"); }
  void prefetch() {
    const tiers::OnboardHandle handle = kv_->prefetch(names_).value();
    ASHLAR_CHECK(handle.wait().has_value(), "the prefetch was cancelled");
    for (const tiers::BlockOutcome& block : handle.blocks())
      ASHLAR_CHECK(block.state == tiers::OnboardState::kHit, "a block did not arrive: %s",
                   std::string(to_string(block.miss)).c_str());
  }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::vector<tokens::SequenceHash> names_;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<KvBlockManager> kv_;
};

void run_shards(const std::string& folder) {
  constexpr std::uint32_t kBlocks = 192;
  const auto fleet = [](std::uint32_t ranks) {
    return layout::Shard::tensor_ranks(ranks, ShardedRank::kHeads, {0, ShardedRank::kLayers}).value();
  };
  std::printf("%u blocks of 32 layers, 8 KV heads of 128 elements, 16 tokens; prefetch into G2\n", kBlocks);
  for (const auto& [writers, readers] : {std::pair(2u, 4u), std::pair(1u, 4u), std::pair(4u, 2u)}) {
    const std::string theirs = folder + "/theirs" + std::to_string(writers);
    const std::string own = folder + "/own" + std::to_string(readers);
    for (const layout::Shard& shard : fleet(writers)) ShardedRank(theirs, shard, kBlocks).store();
    ShardedRank rank(own, fleet(readers)[0], kBlocks);
    rank.store();
    ShardedRank other(theirs, fleet(readers)[0], kBlocks, fleet(writers));
    print_duel("TP=" + std::to_string(readers) + " from TP=" + std::to_string(writers),
               duel_prepared(
                   rank.bytes(), [&] { other.clear(); }, [&] { other.prefetch(); }, [&] { rank.clear(); },
                   [&] { rank.prefetch(); }),
               0);
    std::filesystem::remove_all(theirs);
    std::filesystem::remove_all(own);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = std::filesystem::current_path().string();
  std::uint32_t restart = 0;
  bool memory = false;
  bool shards = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--gpu") return run_gpu_tiers();
    if (argument == "--memory") {
      memory = true;
    } else if (argument == "--shards") {
      shards = true;
    } else if (argument == "--folder" && i + 1 < argc) {
      folder = argv[++i];
    } else if (argument == "--restart" && i + 1 < argc) {
      const std::string_view number = argv[++i];
      const auto read = std::from_chars(number.data(), number.data() + number.size(), restart);
      if (read.ec != std::errc() || read.ptr != number.data() + number.size() || restart == 0) {
        std::fprintf(stderr, "--restart takes a number of blocks from 1 on, not '%s'\n", argv[i]);
        return 2;
      }
    } else {
      std::fprintf(stderr, "tier_bench [--folder PATH] [--restart BLOCKS] [--memory] [--shards] [--gpu]\n");
      return 2;
    }
  }
  folder += "/ashlar_tier_bench_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::fprintf(stderr, "no folder can be made at %s\n", folder.c_str());
    return 2;
  }
  bool met = true;
  if (memory) {
    run_memory(folder);
  } else if (shards) {
    run_shards(folder);
  } else if (restart != 0) {
    run_restart(folder, restart);
  } else {
    met &= run_tiers(folder, std::uint64_t{256} << 10);
    met &= run_tiers(folder, std::uint64_t{1} << 20);
    run_overhead(folder);
  }
  std::filesystem::remove_all(folder);
  return met ? 0 : 1;
}
