// The memory tower alone: blocks over two tiers, evicted from G1 and brought back from G2; a file volume,
// provisioned and attached; lent memory.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "ashlar/storage/external_storage.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/tiers/volume_registry.h"
#include "ashlar/tokens/token_sequence.h"

namespace {

using namespace ashlar;  // NOLINT(google-build-using-namespace)
constexpr std::uint32_t kBlockSize = 16;

bool store(tiers::KvBlockManager& kv, const tokens::TokenSequence& prompt) {
  auto fresh = kv.get_mutable_blocks(prompt.blocks().size());
  if (!fresh) return false;
  block::BlockList<block::CompleteBlock<events::G1>> complete;
  for (std::size_t i = 0; i < fresh->size(); ++i)
    complete.push_back(
        std::move((*fresh)[i]).complete(prompt.blocks()[i], block::KvReady::asserted_by_caller()).value());
  return kv.register_blocks(std::move(complete)).has_value() && kv.drain();
}

bool attach_file_volume() {
  const std::string path = "consumer.volume";
  std::FILE* made = std::fopen(path.c_str(), "wb");
  if (made == nullptr) return false;
  std::fclose(made);
  std::filesystem::resize_file(path, 1 << 20);
  const auto shape = tiers::provision_file_volume(path, {.slot_bytes = 4096});
  const bool attached =
      shape && shape->slots > 0 &&
      tiers::VolumeRegistry::with_builtin().attach({.name = "cold", .kind = "file", .location = path});
  std::filesystem::remove(path);
  return attached;
}

// Memory of the caller as storage: neither copied nor owned.
bool lends_memory() {
  std::vector<std::byte> tensor(4096);
  const auto storage =
      storage::ExternalStorage::create({.address = tensor.data(), .bytes = tensor.size()}).value();
  return storage->address() == tensor.data() && storage->size() == tensor.size();
}

}  // namespace

int main() {
  if (!lends_memory()) return 1;
  const layout::LayoutConfig model{.block_count = 1,
                                   .num_layers = 2,
                                   .outer_dim = 2,
                                   .block_size = kBlockSize,
                                   .num_heads = 1,
                                   .head_dim = 16,
                                   .inner_dim = 16,
                                   .dtype = layout::Dtype::kBF16,
                                   .alignment = 64};
  auto kv = tiers::KvBlockManager::create(
                {.model = model,
                 .block_size = kBlockSize,
                 .keys = tokens::NamespaceFingerprint(tokens::NamespaceFields{
                     .model = "consumer", .dtype = "bf16", .layout = "nhd", .block_size = kBlockSize}),
                 .g1 = {.block_count = 2},
                 .g2 = tiers::TierShape{.block_count = 8}})
                .value();
  const auto first = tokens::TokenSequence::create(std::vector<std::uint32_t>(32, 7), kBlockSize).value();
  const auto second = tokens::TokenSequence::create(std::vector<std::uint32_t>(32, 8), kBlockSize).value();
  if (!store(*kv, first) || !store(*kv, second)) return 1;
  if (kv->g1().match_blocks(first.blocks()).size() != 0) return 1;  // evicted by the second prompt
  if (kv->onboard(first.sequence_hashes()).size() != 2) return 1;
  return attach_file_volume() ? 0 : 1;
}
