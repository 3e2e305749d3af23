// Conversations over four tiers with real bytes: a small G1 where blocks are computed, G2 in host memory, G3
// in a file, G4 in a folder.
//
// Users return at random. A turn's prompt is the whole conversation so far and some more, so most of its
// blocks were computed in earlier turns; the cache decides which tier holds them by now. Every block that
// onboard() finds is compared with a checksum from when it was computed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <unordered_map>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/tokens/token_sequence.h"
#include "ashlar/transfer/block_checksum.h"

using namespace ashlar;
using block::G1;

namespace {

constexpr std::uint32_t kBlockSize = 16;
constexpr int kUsers = 24;
constexpr int kTurns = 400;

// 4 layers, 2 heads of 64 bf16: 32 KiB a block.
layout::LayoutConfig model() {
  return {.block_count = 1,
          .num_layers = 4,
          .outer_dim = 2,
          .block_size = kBlockSize,
          .num_heads = 2,
          .head_dim = 64,
          .inner_dim = 128,
          .dtype = layout::Dtype::kBF16,
          .alignment = 4096};
}

// Stands for the model: bytes derived from the block's name.
void compute(const transfer::BlockSet& memory, std::uint32_t slot, const tokens::SequenceHash& hash) {
  Random random(hash.chain());
  const layout::Layout& layout = memory.planes()[0].layout;
  for (std::uint32_t layer = 0; layer < 4; ++layer)
    for (std::uint32_t outer = 0; outer < 2; ++outer)
      for (std::uint32_t token = 0; token < kBlockSize; ++token)
        for (std::uint32_t head = 0; head < 2; ++head) {
          std::byte* at = memory.address(0, layout.place({slot, layer, outer, token, head}));
          const std::uint64_t bits = random.next();
          for (std::size_t i = 0; i < 128; i += sizeof bits) std::memcpy(at + i, &bits, sizeof bits);
        }
}

}  // namespace

int main() {
  std::string folder = (std::filesystem::temp_directory_path() / "ashlar_tiered_chat_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::fprintf(stderr, "no folder for G3 can be made at %s\n", folder.c_str());
    return 1;
  }
  std::filesystem::create_directory(folder + "/volume");
  const tokens::NamespaceFingerprint keys(tokens::NamespaceFields{
      .model = "example", .dtype = "bf16", .layout = "nhd", .block_size = kBlockSize});
  auto made = tiers::KvBlockManager::create(
      {.model = model(),
       .block_size = kBlockSize,
       .keys = keys,
       .g1 = {.block_count = 96, .order = layout::order::kBlockSecondNhd},
       .g2 = tiers::TierShape{.block_count = 192},
       .g3 = tiers::DiskShape{.block_count = 384, .paths = {folder + "/g3"}},
       .g4 = tiers::VolumeShape{
           .block_count = 4096,
           .volumes = {{.name = "shared", .kind = "directory", .location = folder + "/volume"}}}});
  if (!made) {
    std::fprintf(stderr, "%s\n", made.error().to_string().c_str());
    return 1;
  }
  tiers::KvBlockManager& kv = **made;

  Random random(1);
  std::vector<std::vector<std::uint32_t>> said(kUsers);
  std::unordered_map<tokens::SequenceHash, transfer::BlockChecksum> computed;
  std::uint64_t blocks_asked = 0;
  std::uint64_t blocks_found = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<std::uint32_t>& history = said[random.below(kUsers)];
    if (history.size() > 1000) history.clear();  // a new conversation
    for (std::uint64_t n = 20 + random.below(60); n > 0; --n)
      history.push_back(static_cast<std::uint32_t>(random.below(50'000)));
    const auto prompt = tokens::TokenSequence::create(history, kBlockSize, kv.hasher()).value();
    std::vector<tokens::SequenceHash> hashes;
    for (const tokens::TokenBlock& block : prompt.blocks()) hashes.push_back(block.sequence_hash());

    auto table = kv.onboard(hashes);
    blocks_asked += hashes.size();
    blocks_found += table.size();
    for (const auto& block : table) {
      const auto& hash = block.sequence_hash();
      const auto right = transfer::verify_block(*kv.g1_blocks(), block.block_id().value(), {hash, keys},
                                                computed.at(hash), events::StorageTier::kDevice);
      if (!right) {
        std::fprintf(stderr, "%s\n", right.error().to_string().c_str());
        return 1;
      }
    }
    auto fresh = kv.get_mutable_blocks(hashes.size() - table.size());
    if (!fresh) continue;  // more than G1 holds: a real engine would compute it in chunks
    block::BlockList<block::CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < fresh->size(); ++i) {
      const tokens::TokenBlock& block = prompt.blocks()[table.size() + i];
      const std::uint32_t slot = (*fresh)[i].block_id().value();
      compute(*kv.g1_blocks(), slot, block.sequence_hash());
      computed[block.sequence_hash()] =
          transfer::checksum_block(*kv.g1_blocks(), slot, {block.sequence_hash(), keys}).value();
      complete.push_back(
          std::move((*fresh)[i]).complete(block, block::KvReady::asserted_by_caller()).value());
    }
    const auto registered = kv.register_blocks(std::move(complete)).value();
  }
  kv.drain();

  const tiers::KvStatus status = kv.status();
  const auto line = [](const char* tier, const tiers::TierStatus& counters) {
    std::printf("  %-4s %5zu of %5zu blocks full   %6llu hits   %6llu brought up   %6llu evicted\n", tier,
                counters.pool.total - counters.pool.reset, counters.pool.total,
                static_cast<unsigned long long>(counters.hits),
                static_cast<unsigned long long>(counters.onboarded),
                static_cast<unsigned long long>(counters.evictions));
  };
  const auto mib = [](const std::optional<tiers::OffloadCounters>& worker) {
    return static_cast<double>(worker->bytes) / (1 << 20);
  };
  std::printf("%d turns of %d users, every hit compared with its checksum\n", kTurns, kUsers);
  line("G1", status.g1);
  line("G2", *status.g2);
  line("G3", *status.g3);
  line("G4", *status.g4);
  const std::uint64_t failed = status.to_g2->failed + status.to_g3->failed + status.to_g4->failed;
  const std::uint64_t damaged = status.g3->damaged + status.g4->damaged;
  std::printf("  moved down: %.1f MiB to G2, %.1f MiB to G3, %.1f MiB to G4; failed: %llu, damaged: %llu\n",
              mib(status.to_g2), mib(status.to_g3), mib(status.to_g4),
              static_cast<unsigned long long>(failed), static_cast<unsigned long long>(damaged));
  const std::uint64_t tokens_found = blocks_found * kBlockSize;
  const std::uint64_t tokens_asked = blocks_asked * kBlockSize;
  std::printf("  tokens not recomputed: %llu of %llu (%.0f %%)\n",
              static_cast<unsigned long long>(tokens_found), static_cast<unsigned long long>(tokens_asked),
              100.0 * static_cast<double>(blocks_found) / static_cast<double>(blocks_asked));
  made->reset();
  std::filesystem::remove_all(folder);
}
