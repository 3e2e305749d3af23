// Moves blocks from host memory to a file and back: plan, transfer, prove, register, check.
//
// The two pools divide the work as tiers do. Bytes arrive first, then the block is registered; the transfer
// supplies the proof in between, and without it registration does not compile.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/host_executors.h"

using namespace ashlar;
using block::G2;
using block::KvReady;
using events::G3;

namespace {

constexpr std::uint32_t kBlocks = 8;

// 4 layers, 16 tokens, 2 heads of 64 bf16: 32 KiB a block. Memory has heads outermost, the file tokens.
layout::Layout shape(const layout::AxisOrder& order) {
  return layout::Layout::create({.block_count = kBlocks,
                                 .num_layers = 4,
                                 .outer_dim = 2,
                                 .block_size = 16,
                                 .num_heads = 2,
                                 .head_dim = 64,
                                 .inner_dim = 128,
                                 .dtype = layout::Dtype::kBF16,
                                 .alignment = 4096},
                                order)
      .value();
}

}  // namespace

int main() {
  const auto registry = block::BlockRegistry::create().value();
  auto host = block::BlockManager<G2>::builder()
                  .block_count(kBlocks)
                  .block_size(16)
                  .registry(registry)
                  .build()
                  .value();
  auto disk = block::BlockManager<G3>::builder()
                  .block_count(kBlocks)
                  .block_size(16)
                  .registry(registry)
                  .build()
                  .value();

  storage::PinnedAllocator memory;
  storage::DiskAllocator files(
      {.path = (std::filesystem::temp_directory_path() / "ashlar_move_blocks").string(), .remove = true});
  const auto host_bytes = transfer::BlockSet::allocate(shape(layout::order::kUniversalTp), memory).value();
  const auto disk_bytes =
      transfer::BlockSet::allocate(shape(layout::order::kFullyContiguousNhd), files).value();
  const auto executor = transfer::FileExecutor::create().value();

  // A block is computed in host memory, and named by its tokens.
  const std::vector<std::uint32_t> prompt(16, 42);
  const auto sequence = tokens::TokenSequence::create(prompt, 16).value();
  auto fresh = host.allocate_blocks(1).value();
  const std::uint32_t at = fresh[0].block_id().value();
  std::memset(host_bytes->address(0, host_bytes->planes()[0].layout.place({.block = at})), 0x2A, 64);
  auto source = std::make_shared<block::ImmutableBlock<G2>>(
      host.register_block(
              std::move(fresh[0]).complete(sequence.blocks()[0], KvReady::asserted_by_caller()).value())
          .value());
  const transfer::ChecksumKey name = {source->sequence_hash(), {}};
  const auto checksum = transfer::checksum_block(*host_bytes, at, name).value();

  // Offload: the transfer owns the source until the kernel reports the end; its result is the proof that
  // registration requires.
  auto targets = disk.allocate_blocks(1).value();
  const std::uint32_t to = targets[0].block_id().value();
  const std::vector<std::uint32_t> from_blocks = {at};
  const std::vector<std::uint32_t> to_blocks = {to};
  const auto down =
      executor
          ->submit({.plan = transfer::plan(host_bytes, from_blocks, disk_bytes, to_blocks).value(),
                    .owned = source})
          .value()
          .wait()
          .value();
  auto stored = disk.register_block(std::move(targets[0]).stage(name.hash, down.kv_ready())).value();
  std::printf("down: %llu bytes in %llu writes, %llu of them past the page cache\n",
              static_cast<unsigned long long>(down.stats.bytes),
              static_cast<unsigned long long>(down.stats.operations),
              static_cast<unsigned long long>(down.stats.direct_bytes));

  // The host evicts the block; it is found on disk, onboarded into another slot and another layout, and
  // checked.
  source.reset();
  auto place = host.allocate_blocks(kBlocks).value();  // all of them: the old block is evicted
  const std::vector<tokens::SequenceHash> wanted = {name.hash};
  std::printf("host has it: %s, disk has it: %s\n", registry.check_presence<G2>(wanted)[0] ? "yes" : "no",
              registry.check_presence<G3>(wanted)[0] ? "yes" : "no");
  const std::vector<std::uint32_t> back_blocks = {place[5].block_id().value()};
  const auto up =
      executor->submit({.plan = transfer::plan(disk_bytes, to_blocks, host_bytes, back_blocks).value()})
          .value()
          .wait()
          .value();
  if (auto intact =
          transfer::verify_block(*host_bytes, back_blocks[0], name, checksum, events::StorageTier::kDisk);
      !intact) {
    std::printf("%s\n", intact.error().to_string().c_str());
    return 1;
  }
  auto onboarded = host.register_block(std::move(place[5]).stage(name.hash, up.kv_ready())).value();
  std::printf("up: %llu bytes, checksum %016llx holds; host has it: %s\n",
              static_cast<unsigned long long>(up.stats.bytes),
              static_cast<unsigned long long>(checksum.value()),
              registry.check_presence<G2>(wanted)[0] ? "yes" : "no");
}
