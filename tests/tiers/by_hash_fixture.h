// ByHashTest: a KvBlockManager over four small tiers and a clock of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "ashlar/testing/manual_clock.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"

namespace ashlar::tiers {

class ByHashTest : public ::testing::Test {
 protected:
  // G1, G2, two files and a volume: 8, 12, 40 and 40 blocks, hence 2, 3, 10 and 10 pins.
  KvOptions options() {
    KvOptions made = KvWorkload::options_in(folder_.path());
    made.g3->survive_power_loss = false;  // floods of blocks, each synced, would take long
    made.clock = &clock_;
    return made;
  }
  void open() { kv_ = KvBlockManager::create(options()).value(); }
  static std::vector<tokens::SequenceHash> sequence(std::uint64_t number, std::size_t blocks) {
    return KvWorkload::sequence(number, blocks);
  }
  // Computes what no tier has; right bytes are part of it.
  void use(const std::vector<tokens::SequenceHash>& hashes, const RegisterOptions& how = {}) {
    int wrong = 0;
    {
      const auto table = KvWorkload(*kv_).request(hashes, &wrong, how);
      EXPECT_TRUE(table);
    }
    EXPECT_EQ(wrong, 0);
    kv_->drain();
  }
  // More new blocks than any tier has.
  void flood() {
    for (int i = 0; i < 10; ++i) use(sequence(++last_, 6));
  }
  std::vector<TierPresence> presence(const std::vector<tokens::SequenceHash>& hashes) {
    return kv_->presence(hashes);
  }
  static TierPresence in(std::initializer_list<events::TierId> tiers) {
    TierPresence out;
    for (const events::TierId tier : tiers) out.bits |= static_cast<std::uint8_t>(1u << tier.value());
    return out;
  }
  static constexpr Clock::Duration kHour = std::chrono::hours(1);

  ScratchFolder folder_;
  ashlar::testing::ManualClock clock_;
  std::unique_ptr<KvBlockManager> kv_;
  std::uint64_t last_ = 1000;
};

}  // namespace ashlar::tiers
