// Blocks that go to a volume and come back in another process's place, all through the C interface.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "ashlar_c.h"

namespace ashlar::testing {

class CVolumeRoundTrip {
 public:
  CVolumeRoundTrip(std::string kind, std::string location, std::map<std::string, std::string> options)
      : kind_(std::move(kind)), location_(std::move(location)), options_(std::move(options)) {}

  void run() {
    ashlar_tiers writer = open();
    const std::vector<ashlar_hash> names = store(writer);
    expect(ashlar_tiers_offload(writer, ASHLAR_TIER_G4, names.data(), kCount, nullptr, nullptr));
    expect(ashlar_tiers_drain(writer, ASHLAR_FOREVER));
    expect(ashlar_tiers_destroy(writer));

    ashlar_tiers reader = open();
    ashlar_blocks blocks = {};
    expect(ashlar_tiers_onboard(reader, names.data(), kCount, nullptr, &blocks));
    uint32_t ids[kCount] = {};
    std::size_t count = 0;
    expect(ashlar_blocks_ids(blocks, ids, kCount, &count));
    ASSERT_EQ(count, kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      for_each_piece(reader, ids[i], [&](unsigned char* memory, std::size_t bytes, int mark) {
        for (std::size_t at = 0; at < bytes; ++at)
          ASSERT_EQ(memory[at], static_cast<unsigned char>(i * 100 + mark)) << i << " " << mark;
      });
    expect(ashlar_blocks_release(blocks));
    expect(ashlar_tiers_unregister_volume(reader, "shared", ASHLAR_FOREVER, &count));
    EXPECT_EQ(count, kCount);
    expect(ashlar_tiers_destroy(reader));
  }

 private:
  static constexpr std::size_t kCount = 2;
  static constexpr std::uint32_t kTokens = 4;
  static constexpr std::uint32_t kLayers = 2;

  static void expect(ashlar_status status) { ASSERT_EQ(status, ASHLAR_OK) << ashlar_last_error(); }

  ashlar_tiers open() {
    ashlar_tiers_options options = {};
    options.struct_size = sizeof options;
    options.num_layers = kLayers;
    options.num_heads = 2;
    options.head_dim = 8;
    options.block_size = kTokens;
    options.dtype = ASHLAR_DTYPE_BF16;
    options.model = "round-trip";
    options.g1_blocks = options.g2_blocks = options.g4_blocks = 4;
    options.to_g4 = ASHLAR_TRIGGER_ON_CALL;
    ashlar_tiers tiers = {};
    expect(ashlar_tiers_create(&options, &tiers));
    std::vector<const char*> names;
    std::vector<const char*> values;
    for (const auto& [name, value] : options_) {
      names.push_back(name.c_str());
      values.push_back(value.c_str());
    }
    ashlar_volume_options volume = {};
    volume.struct_size = sizeof volume;
    volume.name = "shared";
    volume.kind = kind_.c_str();
    volume.location = location_.c_str();
    volume.option_names = names.data();
    volume.option_values = values.data();
    volume.option_count = names.size();
    expect(ashlar_tiers_register_volume(tiers, &volume));
    return tiers;
  }

  // Calls fn(memory, bytes, mark) with K and V of every layer.
  template <class F>
  static void for_each_piece(ashlar_tiers tiers, std::uint32_t block, F&& fn) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer)
      for (std::uint32_t outer = 0; outer < 2; ++outer) {
        void* memory = nullptr;
        std::uint64_t bytes = 0;
        expect(ashlar_tiers_block_memory(tiers, block, layer, outer, &memory, &bytes));
        ASSERT_GT(bytes, 0u);
        fn(static_cast<unsigned char*>(memory), static_cast<std::size_t>(bytes),
           static_cast<int>(1 + 2 * layer + outer));
      }
  }

  static std::vector<ashlar_hash> store(ashlar_tiers tiers) {
    ashlar_manager manager = {};
    ashlar_hasher hasher = {};
    ashlar_blocks blocks = {};
    ashlar_block_hashes hashes[kCount] = {};
    std::uint32_t tokens[kCount * kTokens] = {};
    for (std::uint32_t i = 0; i < kCount * kTokens; ++i) tokens[i] = i * 7;
    std::uint32_t ids[kCount] = {};
    std::size_t count = 0;
    expect(ashlar_tiers_manager(tiers, &manager));
    expect(ashlar_tiers_hasher(tiers, nullptr, &hasher));
    expect(ashlar_hash_blocks(hasher, nullptr, tokens, kCount * kTokens, kTokens, hashes, kCount, &count));
    expect(ashlar_manager_allocate(manager, kCount, &blocks));
    expect(ashlar_blocks_ids(blocks, ids, kCount, &count));
    for (std::size_t i = 0; i < kCount; ++i)
      for_each_piece(tiers, ids[i], [&](unsigned char* memory, std::size_t bytes, int mark) {
        std::memset(memory, static_cast<int>(i * 100) + mark, bytes);
      });
    expect(ashlar_blocks_stage(blocks, hashes, kCount, nullptr, nullptr, &blocks));
    expect(ashlar_blocks_register(blocks, nullptr, &blocks));
    expect(ashlar_blocks_release(blocks));
    expect(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
    expect(ashlar_hasher_destroy(hasher));
    return {hashes[0].sequence, hashes[1].sequence};
  }

  const std::string kind_;
  const std::string location_;
  const std::map<std::string, std::string> options_;
};

}  // namespace ashlar::testing
