// UcxTest: a transport of this process, over one list of transports after the other, and plain block sets.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/layout/layout.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/block_set.h"
#include "backend/ucx/owner_process.h"

namespace ashlar::backend::ucx {

inline std::string transports_name(const ::testing::TestParamInfo<const char*>& test) {
  std::string out = test.param;
  std::erase(out, ',');
  return out;
}

class UcxTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Blocks of 256 KiB, contiguous: 2 layers, K and V, 16 tokens, 8 heads of 256 elements of 2 bytes.
  static constexpr std::uint32_t kBlocks = 16;
  static constexpr std::uint64_t kBlockBytes = 2 * 2 * 16 * 8 * 256 * 2;
  static constexpr std::uint64_t kBytes = kBlocks * kBlockBytes;
  static constexpr transfer::AgentIdentity kOwner = {0xA1, 0x51};

  std::shared_ptr<UcxTransport> make(UcxOptions options = {}) {
    options.transports = GetParam();
    // A busy machine takes longer, and fails nothing.
    if (options.connect_limit == UcxOptions{}.connect_limit) options.connect_limit = std::chrono::minutes(2);
    return UcxTransport::create(options).value();
  }
  static layout::Layout layout() {
    return layout::Layout::create({.block_count = kBlocks,
                                   .num_layers = 2,
                                   .outer_dim = 2,
                                   .block_size = 16,
                                   .num_heads = 8,
                                   .head_dim = 256,
                                   .inner_dim = 8 * 256,
                                   .dtype = layout::Dtype::kF16},
                                  layout::order::kFullyContiguousNhd)
        .value();
  }
  std::shared_ptr<transfer::RemotePath> connect(const OwnerProcess& owner) {
    return transport_->connect(owner.identity(), owner.address(), {}).value();
  }
  static std::shared_ptr<const transfer::BlockSet> set_over(std::shared_ptr<storage::Storage> memory) {
    std::vector<transfer::Plane> planes;
    planes.push_back({layout(), layout::Shard::whole(layout().config()), {{std::move(memory), 0}}});
    return transfer::BlockSet::create(std::move(planes)).value();
  }
  static std::shared_ptr<const transfer::BlockSet> remote_set(transfer::RemotePath& path,
                                                              const OwnerProcess& owner) {
    return set_over(path.open(owner.memory()).value());
  }
  std::shared_ptr<const transfer::BlockSet> local_set() {
    return transfer::BlockSet::allocate(layout(), allocator_).value();
  }
  static std::span<std::byte> bytes_of(const std::shared_ptr<const transfer::BlockSet>& set) {
    return {set->address(0, {}), kBytes};
  }
  static std::vector<std::uint32_t> all_blocks() {
    std::vector<std::uint32_t> out(kBlocks);
    std::iota(out.begin(), out.end(), 0u);
    return out;
  }
  static transfer::TransferPlan plan_all(const std::shared_ptr<const transfer::BlockSet>& from,
                                         const std::shared_ptr<const transfer::BlockSet>& to) {
    return transfer::plan(from, all_blocks(), to, all_blocks()).value();
  }
  void move(const std::shared_ptr<const transfer::BlockSet>& from,
            const std::shared_ptr<const transfer::BlockSet>& to) {
    const auto transfer = transport_->executor().submit({.plan = plan_all(from, to)});
    ASSERT_TRUE(transfer) << transfer.error();
    const auto done = transfer->wait();
    ASSERT_TRUE(done) << done.error();
    EXPECT_EQ(done->stats.bytes, kBytes);
  }

  storage::SystemAllocator allocator_;
  std::shared_ptr<UcxTransport> transport_ = make();
};

}  // namespace ashlar::backend::ucx
