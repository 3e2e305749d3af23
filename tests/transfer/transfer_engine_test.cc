#include "ashlar/transfer/transfer_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>

#include "ashlar/transfer/host_executors.h"
#include "transfer/executor_conformance.h"

namespace ashlar::transfer {
namespace {

using layout::Layout;
using layout::LayoutConfig;
namespace order = layout::order;
using ::testing::HasSubstr;

std::unique_ptr<Executor> engine(const ExecutorSettings& settings, std::uint64_t staging_bytes) {
  TransferEngineOptions options{
      .executors = {MemcpyExecutor::create().value(), FileExecutor::create().value()},
      .staging = std::make_shared<storage::PinnedAllocator>(),
      .staging_bytes = staging_bytes,
      .limits = settings.limits,
      .clock = settings.clock};
  return TransferEngine::create(std::move(options)).value();
}
// Small, so that a move takes several batches.
std::unique_ptr<Executor> small_engine(const ExecutorSettings& settings) {
  return engine(settings, std::uint64_t{2} << 20);
}

template <int kNumber>
std::unique_ptr<storage::Allocator> files(const ScratchFolder& folder,
                                          std::shared_ptr<storage::IoFaults> faults) {
  return std::make_unique<storage::DiskAllocator>(storage::DiskOptions{
      .path = folder.file("file" + std::to_string(kNumber)), .remove = true, .faults = std::move(faults)});
}

// From file to file: two hops, everything else as with one.
INSTANTIATE_TEST_SUITE_P(TwoHops, ExecutorTest,
                         ::testing::Values(ExecutorCase{
                             "DiskToDisk", small_engine,
                             [](const ScratchFolder& folder) { return files<1>(folder, nullptr); },
                             files<2>}),
                         [](const ::testing::TestParamInfo<ExecutorCase>& test) { return test.param.name; });

class TransferEngineTest : public ::testing::Test {
 protected:
  // Moves blocks and compares every byte of the destination with the model.
  void expect_move(Executor& engine, const std::shared_ptr<const BlockSet>& a,
                   const std::shared_ptr<const BlockSet>& b) {
    BlockImage source(*a, 0x11);
    source.number(*a);
    source.store(*a);
    BlockImage expected(*b, 0xEE);
    expected.store(*b);
    copy_naively(*a, source, from_, *b, expected, to_);
    const TransferResult done = engine.submit({.plan = plan(a, from_, b, to_).value()}).value().wait();
    ASSERT_TRUE(done) << done.error();
    EXPECT_TRUE(BlockImage::of(*b) == expected);
  }

  Layout layout_ = Layout::create(small_shape(6, 3, 4), order::kFullyContiguousNhd).value();
  std::vector<std::uint32_t> from_ = {4, 0, 3};
  std::vector<std::uint32_t> to_ = {1, 2, 5};
  ScratchFolder folder_;
  storage::SystemAllocator memory_;
};

TEST_F(TransferEngineTest, SaysWhichWayATransferGoes) {
  const auto disk_a = BlockSet::allocate(layout_, *files<1>(folder_, nullptr)).value();
  const auto disk_b = BlockSet::allocate(layout_, *files<2>(folder_, nullptr)).value();
  const auto memory = BlockSet::allocate(layout_, memory_).value();
  const auto other = BlockSet::allocate(layout_, memory_).value();
  const std::unique_ptr<Executor> made = engine({}, 1 << 20);
  const auto& engine = static_cast<const TransferEngine&>(*made);
  EXPECT_EQ(engine.path(*memory, *other), "memcpy");
  EXPECT_EQ(engine.path(*memory, *disk_a), "file");
  EXPECT_EQ(engine.path(*disk_a, *memory), "file");
  EXPECT_EQ(engine.path(*disk_a, *disk_b), "file, then file");
  EXPECT_TRUE(engine.handles(*disk_a, *disk_b));
  ASSERT_TRUE(made->submit({.plan = plan(memory, from_, other, to_).value()}).value().wait());
  ASSERT_TRUE(made->submit({.plan = plan(disk_a, from_, disk_b, to_).value()}).value().wait());
  EXPECT_EQ(made->counters().completed, 1u) << "of two hops";
}

TEST_F(TransferEngineTest, WithoutMemoryInBetweenThereIsNoSecondHop) {
  const auto engine = TransferEngine::create({.executors = {FileExecutor::create().value()}}).value();
  const auto a = BlockSet::allocate(layout_, *files<1>(folder_, nullptr)).value();
  const auto b = BlockSet::allocate(layout_, *files<2>(folder_, nullptr)).value();
  EXPECT_EQ(engine->path(*a, *b), "none");
  EXPECT_FALSE(engine->handles(*a, *b));
  const Result<Transfer> refused = engine->submit({.plan = plan(a, from_, b, to_).value()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message(), HasSubstr("no way from disk to disk storage"));
}

TEST_F(TransferEngineTest, TooLittleMemoryInBetweenIsAnErrorWithNumbers) {
  LayoutConfig config = small_shape(6, 3, 4);
  config.head_dim = 4096;
  config.inner_dim = 4 * 4096;
  const Layout large = Layout::create(config, order::kFullyContiguousNhd).value();
  const std::unique_ptr<Executor> engine = transfer::engine({}, 65536);
  const auto a = BlockSet::allocate(large, *files<1>(folder_, nullptr)).value();
  const auto b = BlockSet::allocate(large, *files<2>(folder_, nullptr)).value();
  const Result<Transfer> refused = engine->submit({.plan = plan(a, from_, b, to_).value()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("staging memory of 65536 bytes is too small: a block takes 589824"));
}

// Ranks that overlap in part: only what both have moves, also when the destination is the smaller side.
TEST_F(TransferEngineTest, MovesWhatBothSidesHaveAndNothingElse) {
  const std::unique_ptr<Executor> engine = transfer::engine({}, 1 << 16);
  for (const auto& [from_heads, to_heads] :
       {std::pair{layout::Range{0, 8}, layout::Range{6, 4}}, {layout::Range{6, 4}, layout::Range{0, 8}}}) {
    const auto set = [&](layout::Range heads, storage::Allocator& allocator) {
      const PlaneShape shape{Layout::create(small_shape(6, 3, heads.count), order::kBlockSecondHnd).value(),
                             {{0, 3}, heads}};
      return BlockSet::allocate(std::span(&shape, 1), allocator).value();
    };
    const auto a = set(from_heads, *files<1>(folder_, nullptr));
    const auto b = set(to_heads, *files<2>(folder_, nullptr));
    expect_move(*engine, a, b);
  }
}

TEST_F(TransferEngineTest, OpaqueContentWithGapsAndLargeAlignmentsPass) {
  const std::unique_ptr<Executor> engine = transfer::engine({}, 1 << 20);
  LayoutConfig opaque = small_shape(6, 3, 4);
  opaque.opaque = true;
  layout::Strides strides = Layout::create(opaque, order::kFullyContiguousNhd).value().strides();
  strides.outer += 32;
  strides.layer = strides.outer * 2 + 16;
  strides.block = strides.layer * 3 + 64;
  LayoutConfig aligned = small_shape(6, 3, 4);
  aligned.alignment = 65536;
  for (const Layout& layout : {Layout::create(opaque, strides).value(),
                               Layout::create(aligned, order::kFullyContiguousNhd).value()}) {
    const auto a = BlockSet::allocate(layout, *files<1>(folder_, nullptr)).value();
    const auto b = BlockSet::allocate(layout, *files<2>(folder_, nullptr)).value();
    expect_move(*engine, a, b);
  }
}

TEST_F(TransferEngineTest, CancelReachesTheHopThatRuns) {
  LayoutConfig config = small_shape(200, 3, 4);
  config.head_dim = 1024;
  config.inner_dim = 4096;
  const Layout layout = Layout::create(config, order::kFullyContiguousNhd).value();
  const auto engine = TransferEngine::create({.executors = {FileExecutor::create({.threads = 1}).value()},
                                              .staging = std::make_shared<storage::PinnedAllocator>()})
                          .value();
  std::vector<std::uint32_t> all(200);
  std::iota(all.begin(), all.end(), 0u);
  std::vector<std::uint32_t> turned(all.rbegin(), all.rend());
  // The engine may be kept from its processor between starting a hop and remembering it; then the hop ends
  // first.
  int seen_least = 200;
  for (int attempt = 0; attempt < 100 && seen_least >= 100; ++attempt) {
    std::atomic<int> seen{0};
    std::optional<Transfer> transfer;
    Gate ready;
    const auto faults = std::make_shared<ScriptedFaults>([&](auto...) {
      if (seen++ == 3) {
        ready.pass();
        transfer->cancel();
      }
      return storage::IoVerdict{};
    });
    const ScratchFolder folder;
    const auto a = BlockSet::allocate(layout, *files<1>(folder, faults)).value();
    const auto b = BlockSet::allocate(layout, *files<2>(folder, nullptr)).value();
    transfer = engine->submit({.plan = plan(a, all, b, turned).value()}).value();
    ready.open();
    const TransferResult result = transfer->wait_for_end();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kCancelled);
    seen_least = std::min(seen_least, seen.load());
  }
  EXPECT_LT(seen_least, 100) << "of 200 operations of the first hop";
}

TEST_F(TransferEngineTest, AFailingHopFailsTheTransfer) {
  for (const bool first_hop : {true, false}) {
    std::atomic<int> seen{0};
    const auto faults = std::make_shared<ScriptedFaults>([&](storage::IoDirection direction, auto...) {
      const bool reads = direction == storage::IoDirection::kRead;
      return storage::IoVerdict{.error = reads == first_hop && seen++ == 1 ? EIO : 0};
    });
    const std::unique_ptr<Executor> engine = small_engine({});
    const auto a = BlockSet::allocate(layout_, *files<1>(folder_, first_hop ? faults : nullptr)).value();
    const auto b = BlockSet::allocate(layout_, *files<2>(folder_, first_hop ? nullptr : faults)).value();
    const TransferResult result = engine->submit({.plan = plan(a, from_, b, to_).value()}).value().wait();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kIo);
    EXPECT_EQ(engine->counters().failed, 1u);
  }
}

TEST_F(TransferEngineTest, OptionsAreChecked) {
  EXPECT_FALSE(TransferEngine::create({}));
  EXPECT_FALSE(TransferEngine::create({.executors = {nullptr}}));
  EXPECT_FALSE(TransferEngine::create({.executors = {FileExecutor::create().value()},
                                       .staging = std::make_shared<storage::SystemAllocator>(),
                                       .staging_bytes = 0}));
}

}  // namespace
}  // namespace ashlar::transfer
