// Sequences of blocks whose bytes follow from their names and their rank, computed, registered and compared
// through a KvBlockManager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/tiers/kv_block_manager.h"
#include "support/block_images.h"

namespace ashlar::tiers {

class KvWorkload {
 public:
  static layout::LayoutConfig model() {
    layout::LayoutConfig config = transfer::small_shape(1, 2, 2);
    config.block_size = 4;
    config.head_dim = 64;
    config.inner_dim = 128;
    config.alignment = 4096;
    return config;
  }
  // 8, 12 and 40 blocks.
  static KvOptions options(const std::string& g3_path, std::shared_ptr<storage::IoFaults> faults = {}) {
    return {.model = model(),
            .block_size = 4,
            .keys = tokens::NamespaceFingerprint::from_bits(7, 8),
            .g1 = {.block_count = 8, .order = layout::order::kBlockSecondNhd},
            .g2 = TierShape{.block_count = 12, .order = layout::order::kUniversalTp},
            .g3 = DiskShape{.block_count = 40, .paths = {g3_path}, .faults = {std::move(faults)}}};
  }

  // The same with two files and a volume, all in a folder.
  static KvOptions options_in(const std::string& folder) {
    KvOptions made = options(folder + "/g3");
    made.g3->paths = {folder + "/g3.0", folder + "/g3.1"};
    made.g3->faults.clear();
    std::filesystem::create_directories(folder + "/volume");
    made.g4 = VolumeShape{.block_count = 40,
                          .volumes = {{.name = "v", .kind = "directory", .location = folder + "/volume"}}};
    return made;
  }

  explicit KvWorkload(KvBlockManager& kv) : kv_(kv) {}

  // Names of a sequence: each depends on those before it.
  static std::vector<tokens::SequenceHash> sequence(std::uint64_t number, std::size_t blocks) {
    std::vector<tokens::SequenceHash> hashes = {tokens::SequenceHash::root(number * 1000 + 1)};
    while (hashes.size() < blocks)
      hashes.push_back(hashes.back().child(number * 1000 + 1 + hashes.size()).value());
    return hashes;
  }

  using Table = block::BlockList<block::ImmutableBlock<events::G1>>;
  // Whether every block of a table is the one that its place asks for, with its bytes.
  bool right(const Table& table, const std::vector<tokens::SequenceHash>& hashes) {
    bool good = true;
    for (std::size_t i = 0; i < table.size(); ++i) {
      good &= table[i].sequence_hash() == hashes[i];
      good &= has_bytes(table[i].block_id(), hashes[i]);
    }
    return good;
  }
  // Writes the bytes of a block, as its computation would; and whether it has them.
  void compute(block::BlockId id, const tokens::SequenceHash& hash) {
    const std::uint64_t first = first_of(hash);
    each_byte(id.value(), [&](std::byte& byte, std::uint64_t at) { byte = byte_of(first, at); });
  }
  bool has_bytes(block::BlockId id, const tokens::SequenceHash& hash) {
    const std::uint64_t first = first_of(hash);
    bool good = true;
    each_byte(id.value(),
              [&](const std::byte& byte, std::uint64_t at) { good &= byte == byte_of(first, at); });
    return good;
  }
  // Whether blocks of G1 have the bytes of one layer.
  bool layer_right(const std::vector<block::BlockId>& ids, const std::vector<tokens::SequenceHash>& hashes,
                   std::uint32_t layer) {
    const std::uint64_t layer_bytes = kv_.g1_blocks()->planes()[0].layout.config().layer_bytes();
    bool good = true;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint64_t first = first_of(hashes[i]);
      each_byte(ids[i].value(), [&](const std::byte& byte, std::uint64_t at) {
        if (at / layer_bytes == layer) good &= byte == byte_of(first, at);
      });
    }
    return good;
  }
  // Onboards what there is, computes what is missing and registers it. Nothing when there is no room; `wrong`
  // counts tables that were not right.
  std::optional<Table> request(const std::vector<tokens::SequenceHash>& hashes, int* wrong,
                               const RegisterOptions& how = {}) {
    Table table = kv_.onboard(hashes);
    if (!right(table, hashes)) ++*wrong;
    const std::size_t missing = hashes.size() - table.size();
    if (missing == 0) return table;
    auto fresh = kv_.get_mutable_blocks(missing);
    if (!fresh) return std::nullopt;
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    for (std::size_t i = 0; i < missing; ++i) {
      const tokens::SequenceHash& hash = hashes[table.size() + i];
      compute((*fresh)[i].block_id(), hash);
      complete.push_back(std::move((*fresh)[i]).stage(hash, block::KvReady::asserted_by_caller()));
    }
    auto registered = kv_.register_blocks(std::move(complete), how).value();
    for (auto& block : registered) table.push_back(std::move(block));
    return table;
  }

 private:
  // What the bytes of a block begin with.
  std::uint64_t first_of(const tokens::SequenceHash& hash) const {
    return hash.chain() * 131 + std::uint64_t{kv_.g1_blocks()->planes()[0].shard.rank} * 59;
  }
  static std::byte byte_of(std::uint64_t first, std::uint64_t i) {
    return static_cast<std::byte>(first + i * 7 + (i >> 8));
  }
  template <class F>
  void each_byte(std::uint32_t slot, F&& fn) {
    std::uint64_t i = 0;
    const transfer::BlockSet& set = *kv_.g1_blocks();
    for (std::size_t p = 0; p < set.planes().size(); ++p) {
      const layout::Layout& layout = set.planes()[p].layout;
      const layout::LayoutConfig& config = layout.config();
      const std::uint64_t head_bytes = config.head_bytes();
      for (std::uint32_t l = 0; l < config.num_layers; ++l)
        for (std::uint32_t o = 0; o < config.outer_dim; ++o)
          for (std::uint32_t t = 0; t < config.block_size; ++t)
            for (std::uint32_t h = 0; h < config.num_heads; ++h) {
              std::byte* const bytes = set.address(p, layout.place({slot, l, o, t, h}));
              for (std::uint64_t b = 0; b < head_bytes; ++b) fn(bytes[b], i++);
            }
    }
  }

  KvBlockManager& kv_;
};

}  // namespace ashlar::tiers
