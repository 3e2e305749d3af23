// Transfers with the guards of real managers: what a failed, cancelled or running one means for blocks.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <vector>

#include "ashlar/testing/managers.h"
#include "ashlar/tokens/token_sequence.h"
#include "ashlar/transfer/host_executors.h"
#include "support/block_images.h"
#include "support/gates.h"
#include "support/scratch_folder.h"

namespace ashlar::transfer {
namespace {

using block::ImmutableBlock;
using block::KvReady;
using block::MutableBlock;
using events::G2;
using events::G3;

class RegistrationTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlocks = 4;

  RegistrationTest() {
    const layout::Layout layout =
        layout::Layout::create(small_shape(kBlocks, 3, 4), layout::order::kFullyContiguousNhd).value();
    faults_ = std::make_shared<ScriptedFaults>([this](auto...) {
      if (gate_ != nullptr) gate_->pass();
      return storage::IoVerdict{.error = error_.load()};
    });
    storage::SystemAllocator memory;
    storage::DiskAllocator files({.path = folder_.file("g3"), .remove = true, .faults = faults_});
    host_bytes_ = BlockSet::allocate(layout, memory).value();
    disk_bytes_ = BlockSet::allocate(layout, files).value();
    const std::vector<std::uint32_t> prompt(4, 7);
    const auto sequence = tokens::TokenSequence::create(prompt, 4).value();
    auto fresh = host_.allocate_blocks(1).value();
    source_ = std::make_shared<ImmutableBlock<G2>>(
        host_
            .register_block(
                std::move(fresh[0]).complete(sequence.blocks()[0], KvReady::asserted_by_caller()).value())
            .value());
    BlockImage image(*host_bytes_, 0);
    image.number(*host_bytes_);
    image.store(*host_bytes_);
  }

  struct Guards {
    std::shared_ptr<ImmutableBlock<G2>> source;
    MutableBlock<G3> target;
  };
  // Submits source -> a new block of the disk. The transfer owns both guards; so does the caller while it
  // keeps them.
  std::pair<Transfer, std::shared_ptr<Guards>> offload() {
    auto targets = disk_.allocate_blocks(1).value();
    const std::vector<std::uint32_t> from = {source_->block_id().value()};
    const std::vector<std::uint32_t> to = {targets[0].block_id().value()};
    auto guards = std::make_shared<Guards>(Guards{source_, std::move(targets[0])});
    Transfer transfer =
        executor_->submit({.plan = plan(host_bytes_, from, disk_bytes_, to).value(), .owned = guards})
            .value();
    return {transfer, guards};
  }

  ScratchFolder folder_;
  std::shared_ptr<ScriptedFaults> faults_;
  std::atomic<int> error_{0};
  std::shared_ptr<Gate> gate_;
  std::shared_ptr<const BlockSet> host_bytes_;
  std::shared_ptr<const BlockSet> disk_bytes_;
  block::BlockManager<G2> host_ = testing::make_manager<G2>(kBlocks);
  block::BlockManager<G3> disk_ = testing::make_manager<G3>(kBlocks);
  std::shared_ptr<ImmutableBlock<G2>> source_;
  std::unique_ptr<FileExecutor> executor_ = FileExecutor::create({.threads = 1}).value();
};

TEST_F(RegistrationTest, ABlockIsRegisteredWithTheProofOfItsTransfer) {
  auto [transfer, guards] = offload();
  const TransferResult done = transfer.wait();
  ASSERT_TRUE(done);
  auto registered =
      disk_.register_block(std::move(guards->target).stage(source_->sequence_hash(), done->kv_ready()));
  ASSERT_TRUE(registered);
  EXPECT_EQ(disk_.match_blocks(std::vector{source_->sequence_hash()}).size(), 1u);
}

TEST_F(RegistrationTest, AFailedTransferLeavesTheDestinationUnregisteredAndTheSourceWhereItWas) {
  error_ = EIO;
  const BlockImage before = BlockImage::of(*host_bytes_);
  {
    auto [transfer, guards] = offload();
    guards.reset();
    ASSERT_FALSE(transfer.wait());
  }
  EXPECT_EQ(disk_.available_blocks(), kBlocks) << "the destination went back to its pool";
  EXPECT_TRUE(disk_.match_blocks(std::vector{source_->sequence_hash()}).empty());
  EXPECT_EQ(host_.match_blocks(std::vector{source_->sequence_hash()}).size(), 1u);
  EXPECT_TRUE(BlockImage::of(*host_bytes_) == before);
}

TEST_F(RegistrationTest, BlocksOfARunningTransferAreNotHandedOut) {
  gate_ = std::make_shared<Gate>();
  auto [transfer, guards] = offload();
  guards.reset();
  gate_->wait_for_somebody();
  transfer.cancel();
  source_.reset();
  EXPECT_FALSE(transfer.done());
  EXPECT_EQ(disk_.available_blocks(), kBlocks - 1);
  EXPECT_EQ(host_.available_blocks(), kBlocks - 1) << "the kernel may still read the source";
  EXPECT_FALSE(disk_.allocate_blocks(kBlocks));
  gate_->open();
  const TransferResult result =
      transfer.wait_for_end();  // its only operation was on its way, so it went through
  EXPECT_TRUE(result);
  EXPECT_EQ(disk_.available_blocks(), kBlocks);
  EXPECT_EQ(host_.available_blocks(), kBlocks);
  EXPECT_TRUE(disk_.allocate_blocks(kBlocks));
}

}  // namespace
}  // namespace ashlar::transfer
