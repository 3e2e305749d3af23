// TierCalls: one thread's random calls over tiers. Every block has bytes that follow from its name, so that a
// block with the bytes of another shows.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ashlar_c.h"

namespace ashlar::testing {

inline constexpr std::uint32_t kTierBlockSize = 4;
inline constexpr std::size_t kTierSequences = 6;
inline constexpr std::size_t kTierLength = 4;  // blocks of a sequence

// Tiers with G1, G2, and G3 in the file; and the hashes of the sequences.
struct TierWorld {
  explicit TierWorld(const std::string& file) {
    const char* const path = file.c_str();
    ashlar_tiers_options options = {};
    options.struct_size = sizeof options;
    options.num_layers = 2;
    options.num_heads = 1;
    options.head_dim = 8;
    options.block_size = kTierBlockSize;
    options.model = "tier calls";
    options.g1_blocks = 16;
    options.g2_blocks = 12;
    options.g3_blocks = 16;
    options.g3_paths = &path;
    options.g3_path_count = 1;
    options.g3_no_sync = 1;
    options.event_capacity = 64;
    options.max_pins = 64;
    EXPECT_EQ(ashlar_tiers_create(&options, &tiers), ASHLAR_OK) << ashlar_last_error();
    EXPECT_EQ(ashlar_tiers_manager(tiers, &manager), ASHLAR_OK);
    ashlar_hasher hasher = {};
    EXPECT_EQ(ashlar_tiers_hasher(tiers, nullptr, &hasher), ASHLAR_OK);
    for (std::uint32_t s = 0; s < kTierSequences; ++s) {
      std::vector<std::uint32_t> tokens(kTierLength * kTierBlockSize, s);
      std::vector<ashlar_block_hashes> hashes(kTierLength);
      std::size_t count = 0;
      EXPECT_EQ(ashlar_hash_blocks(hasher, nullptr, tokens.data(), tokens.size(), kTierBlockSize,
                                   hashes.data(), kTierLength, &count),
                ASHLAR_OK);
      std::vector<ashlar_hash> its;
      for (const ashlar_block_hashes& one : hashes) its.push_back(one.sequence);
      sequences.push_back(std::move(hashes));
      names.push_back(std::move(its));
    }
    EXPECT_EQ(ashlar_hasher_destroy(hasher), ASHLAR_OK);
  }

  // Nothing holds a block, and the tiers can go.
  void end() {
    EXPECT_EQ(ashlar_tiers_drain(tiers, ASHLAR_FOREVER), ASHLAR_OK);
    ashlar_pool_status status = {};
    status.struct_size = sizeof status;
    EXPECT_EQ(ashlar_manager_status(manager, &status), ASHLAR_OK);
    EXPECT_EQ(status.guards, 0u);
    EXPECT_EQ(ashlar_tiers_destroy(tiers), ASHLAR_OK) << ashlar_last_error();
    EXPECT_EQ(ashlar_tiers_drain(tiers, 0), ASHLAR_INVALID_HANDLE);
  }

  ashlar_tiers tiers = {};
  ashlar_manager manager = {};
  std::vector<std::vector<ashlar_block_hashes>> sequences;
  std::vector<std::vector<ashlar_hash>> names;
};

class TierCalls {
 public:
  TierCalls(const TierWorld& world, std::uint64_t seed) : world_(world), random_(seed) {}
  ~TierCalls() {
    for (const std::uint64_t id : fences_) {
      (void)ashlar_fence_signal({id});
      (void)ashlar_fence_destroy({id});
    }
    for (const std::uint64_t id : pins_) (void)ashlar_pin_release({id});
    for (const std::uint64_t id : offloads_) (void)ashlar_offload_destroy({id});
    for (const std::uint64_t id : onboards_) (void)ashlar_onboard_destroy({id});
  }

  void step() {
    const std::size_t s = random_() % kTierSequences;
    const std::size_t n = 1 + random_() % kTierLength;
    const ashlar_hash* const names = world_.names[s].data();
    switch (random_() % 15) {
      case 0:
      case 1:
      case 2:
        return store(s);
      case 3: {
        ashlar_blocks found = {};
        if (good(ashlar_tiers_onboard(world_.tiers, names, n, nullptr, &found))) verify(found, s);
        return;
      }
      case 4: {
        ashlar_onboard made = {};
        const bool ahead = random_() % 2 == 0;
        const ashlar_status started =
            ahead ? ashlar_tiers_prefetch(world_.tiers, names, n, nullptr, &made)
                  : ashlar_tiers_onboard_async(world_.tiers, names, n, nullptr, &made);
        if (good(started)) onboards_.push_back(made.id);
        return;
      }
      case 5:
        return end_onboard(s);
      case 6:
        return offload(names, n);
      case 7: {
        const std::uint64_t id = take(offloads_);
        good(random_() % 2 == 0 ? ashlar_offload_cancel({id})
                                : ashlar_offload_wait({id}, 1'000'000, nullptr));
        good(ashlar_offload_destroy({id}));
        return;
      }
      case 8: {
        ashlar_pin made = {};
        if (good(ashlar_tiers_pin(world_.tiers, names, n, 50'000'000, &made))) pins_.push_back(made.id);
        good(ashlar_pin_release({take(pins_)}));
        return;
      }
      case 9: {
        const std::uint64_t id = take(fences_);
        good(ashlar_fence_signal({id}));
        good(ashlar_fence_destroy({id}));
        return;
      }
      case 10:
        good(ashlar_tiers_reset(world_.tiers, static_cast<std::int32_t>(random_() % 3), 10'000'000, nullptr));
        return;
      case 11:
        good(ashlar_tiers_reset_blocks(world_.tiers, names, n, 10'000'000));
        return;
      case 12:
        return stale();
      case 13: {
        std::uint8_t bits[kTierLength];
        EXPECT_EQ(ashlar_tiers_presence(world_.tiers, names, n, bits), ASHLAR_OK);
        good(ashlar_tiers_set_retention(world_.tiers, names, n, 40, ASHLAR_FOREVER, nullptr));
        return;
      }
      default:
        good(ashlar_tiers_drain_events(
            world_.tiers, [](void*, const ashlar_event*, std::size_t) {}, nullptr, nullptr));
    }
  }

  // Every sequence, as far as G1 has room.
  void store_all() {
    for (std::size_t s = 0; s < kTierSequences; ++s) store(s);
  }
  std::size_t verified() const { return verified_; }

 private:
  // Any answer but a bug.
  static bool good(ashlar_status status) {
    EXPECT_NE(status, ASHLAR_INTERNAL) << ashlar_last_error();
    EXPECT_NE(status, ASHLAR_CORRUPTION) << ashlar_last_error();
    return status == ASHLAR_OK;
  }
  static int value_of(std::size_t sequence, std::size_t block) {
    return static_cast<int>(16 * (sequence + 1) + block);
  }
  std::uint64_t take(std::vector<std::uint64_t>& from) {
    if (from.empty()) return 0;
    std::swap(from[random_() % from.size()], from.back());
    const std::uint64_t id = from.back();
    from.pop_back();
    if (gone_.size() < 64) gone_.push_back(id);  // every caller ends it
    return id;
  }
  // A handle that was ended stays so, whatever has its place now.
  void stale() {
    if (gone_.empty()) return;
    const std::uint64_t id = gone_[random_() % gone_.size()];
    ashlar_blocks found = {};
    int flag = 0;
    EXPECT_EQ(ashlar_fence_signal({id}), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_pin_active({id}, &flag), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_pin_release({id}), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_offload_wait({id}, 0, nullptr), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_offload_destroy({id}), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_onboard_wait({id}, 0, &found), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_onboard_destroy({id}), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_blocks_release({id}), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_tiers_drain({id}, 0), ASHLAR_INVALID_HANDLE);
  }
  template <class F>
  void each_piece(std::uint32_t block, F&& f) {
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      for (std::uint32_t outer = 0; outer < 2; ++outer) {
        void* address = nullptr;
        std::uint64_t bytes = 0;
        ASSERT_EQ(ashlar_tiers_block_memory(world_.tiers, block, layer, outer, &address, &bytes), ASHLAR_OK);
        f(static_cast<unsigned char*>(address), bytes);
      }
    }
  }

  // Computes what is not in G1 yet, as an engine does.
  void store(std::size_t s) {
    ashlar_blocks found = {}, empty = {};
    std::size_t have = 0;
    if (!good(ashlar_manager_match(world_.manager, world_.names[s].data(), nullptr, kTierLength, &found)))
      return;
    EXPECT_EQ(ashlar_blocks_info(found, &have, nullptr), ASHLAR_OK);
    verify(found, s);
    const std::size_t rest = kTierLength - have;
    if (rest == 0 || !good(ashlar_manager_allocate(world_.manager, rest, &empty))) return;
    std::uint32_t ids[kTierLength];
    std::size_t count = 0;
    EXPECT_EQ(ashlar_blocks_ids(empty, ids, kTierLength, &count), ASHLAR_OK);
    for (std::size_t i = 0; i < rest; ++i)
      each_piece(ids[i], [&](unsigned char* at, std::uint64_t bytes) {
        std::memset(at, value_of(s, have + i), bytes);
      });
    ashlar_register_options options = {};
    options.struct_size = sizeof options;
    ashlar_fence fence = {};
    if (random_() % 3 == 0 && fences_.size() < 8 && good(ashlar_fence_create(&fence))) {
      fences_.push_back(fence.id);
      options.after = &fence;
      options.after_count = 1;
    }
    const ashlar_hash* const parent = have == 0 ? nullptr : &world_.names[s][have - 1];
    EXPECT_EQ(ashlar_blocks_stage(empty, world_.sequences[s].data() + have, rest, parent,
                                  world_.names[s].data(), &empty),
              ASHLAR_OK);
    EXPECT_EQ(ashlar_blocks_register(empty, &options, &empty), ASHLAR_OK) << ashlar_last_error();
    if (fence.id != 0 && random_() % 2 == 0) {
      EXPECT_EQ(ashlar_blocks_release_after(empty, fence), ASHLAR_OK);
    } else {
      EXPECT_EQ(ashlar_blocks_release(empty), ASHLAR_OK);
    }
  }

  // Every block of the list has the bytes of its name. Releases it.
  void verify(ashlar_blocks list, std::size_t s) {
    std::uint32_t ids[kTierLength];
    std::size_t count = 0;
    EXPECT_EQ(ashlar_blocks_ids(list, ids, kTierLength, &count), ASHLAR_OK);
    for (std::size_t i = 0; i < count; ++i)
      each_piece(ids[i], [&](const unsigned char* at, std::uint64_t bytes) {
        EXPECT_EQ(at[0], value_of(s, i));
        EXPECT_EQ(at[bytes - 1], value_of(s, i));
      });
    verified_ += count;
    EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK);
  }

  void end_onboard(std::size_t) {
    const std::uint64_t id = take(onboards_);
    ashlar_blocks found = {};
    int done = 0;
    good(ashlar_onboard_done({id}, &done));
    if (random_() % 3 == 0) good(ashlar_onboard_cancel({id}));
    if (good(ashlar_onboard_wait({id}, 1'000'000, &found))) {
      EXPECT_EQ(ashlar_blocks_release(found), ASHLAR_OK);
    }
    good(ashlar_onboard_destroy({id}));
  }

  void offload(const ashlar_hash* names, std::size_t n) {
    ashlar_offload_options options = {};
    options.struct_size = sizeof options;
    ashlar_fence fence = {};
    if (!fences_.empty() && random_() % 2 == 0) {
      fence.id = fences_.back();
      options.after = &fence;
      options.after_count = 1;
    }
    ashlar_offload made = {};
    const std::int32_t tier = random_() % 2 == 0 ? ASHLAR_TIER_G2 : ASHLAR_TIER_G3;
    if (good(ashlar_tiers_offload(world_.tiers, tier, names, n, &options, &made)))
      offloads_.push_back(made.id);
  }

  const TierWorld& world_;
  std::mt19937_64 random_;
  std::vector<std::uint64_t> fences_, pins_, offloads_, onboards_, gone_;
  std::size_t verified_ = 0;
};

}  // namespace ashlar::testing
