// The kernel's arithmetic, run by the host: needs no GPU.
#include "backend/cuda/job_cursor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/storage/allocator.h"
#include "backend/cuda/block_model.h"
#include "backend/cuda/copy_kernel.h"

namespace ashlar::backend::cuda {
namespace {

namespace order = layout::order;
using layout::Regions;

void run_on_host(const LargeCopyJob& job) {
  for (std::uint32_t i = 0; i < job.shape.pieces; ++i) {
    const PieceAddresses at = locate(job, job.shape.first_piece + i);
    ASSERT_EQ(at.from % job.shape.width, 0u);
    ASSERT_EQ(at.to % job.shape.width, 0u);
    std::memcpy(reinterpret_cast<void*>(at.to), reinterpret_cast<const void*>(at.from),
                job.shape.piece_bytes);
  }
}

// Moves a plan job by job, also through a buffer, and compares with the model.
void expect_same(const layout::Layout& from_layout, const layout::Layout& to_layout, std::uint32_t count,
                 std::uint64_t job_bytes, bool through_buffer) {
  storage::SystemAllocator system;
  const auto from = allocate(from_layout, system);
  const auto to = allocate(to_layout, system);
  std::vector<std::uint32_t> from_blocks(from->block_count());
  std::vector<std::uint32_t> to_blocks(to->block_count());
  std::iota(from_blocks.begin(), from_blocks.end(), 0);
  std::iota(to_blocks.begin(), to_blocks.end(), 0);
  Random random(count);
  for (auto* list : {&from_blocks, &to_blocks}) {
    for (std::size_t i = list->size(); i > 1; --i) std::swap((*list)[i - 1], (*list)[random.next() % i]);
    list->resize(count);
  }
  Mirror source(from);
  Mirror expected(to);
  Mirror seen(to);
  source.scramble(7);
  source.put_on_host();
  expected.put_on_host();
  copy_elements(source, from_blocks, expected, to_blocks);
  const auto plan = transfer::plan(from, from_blocks, to, to_blocks);
  ASSERT_TRUE(plan) << plan.error();
  JobCursor cursor(plan->copies()[0], *from, *to, 0);
  auto job = std::make_unique<LargeCopyJob>();
  std::uint64_t bytes = 0;
  std::vector<std::byte> buffer(std::max<std::uint64_t>(job_bytes, plan->copies()[0].piece_bytes()));
  while (!cursor.done()) {
    cursor.next(job_bytes, job.get());
    ASSERT_GT(job->shape.pieces, 0u);
    ASSERT_LE(job->used_words(), kLargeWords);
    bytes += job->shape.pieces * job->shape.piece_bytes;
    if (through_buffer) {
      auto second = std::make_unique<LargeCopyJob>(*job);
      make_destination_linear(buffer.data(), job.get());
      make_source_linear(buffer.data(), second.get());
      run_on_host(*job);
      run_on_host(*second);
    } else {
      run_on_host(*job);
    }
  }
  EXPECT_EQ(bytes, plan->bytes());
  seen.fetch_on_host();
  EXPECT_TRUE(seen == expected);
}

TEST(Divisor, DividesLikeTheLanguage) {
  Random random(1);
  const auto check = [](std::uint32_t number, std::uint32_t value) {
    ASSERT_EQ(Divisor(value).divide(number), number / value) << number << " / " << value;
  };
  for (const std::uint32_t value : {1u, 2u, 3u, 7u, 641u, 65536u, kMaxJobNumber - 1, kMaxJobNumber})
    for (const std::uint32_t number :
         {0u, 1u, value - 1, value, 2 * (value / 2), kMaxJobNumber - 1, kMaxJobNumber})
      if (number <= kMaxJobNumber) check(number, value);
  for (int i = 0; i < 100000; ++i)
    check(static_cast<std::uint32_t>(random.next()) & kMaxJobNumber,
          ((static_cast<std::uint32_t>(random.next()) & kMaxJobNumber) >> (random.next() % 31)) | 1u);
}

TEST(JobCursor, EveryPairOfLayoutsMovesAsTheModelDoes) {
  for (const auto& from : order::kAll)
    for (const auto& to : order::kAll)
      for (const std::uint64_t alignment : {1, 256}) {
        SCOPED_TRACE(std::string(from.name) + " to " + std::string(to.name));
        const Shape shape{.alignment = alignment};
        expect_same(layout_of(shape, from.order), layout_of(shape, to.order), 4, 1 << 20, false);
        expect_same(layout_of(shape, from.order), layout_of(shape, to.order), 4, 100, true);
      }
}

TEST(JobCursor, OddSizesMoveByteByByte) {
  const Shape shape{.tokens = 3, .heads = 3, .head_dim = 3, .dtype = layout::Dtype::kU8};
  expect_same(layout_of(shape, order::kBlockFirstNhd), layout_of(shape, order::kUniversalTp), 5, 64, false);
  expect_same(layout_of(shape, order::kBlockFirstNhd), layout_of(shape, order::kUniversalTp), 5, 64, true);
}

TEST(JobCursor, MorePairsThanAJobHoldsAreSeveralJobs) {
  const Shape shape{
      .blocks = 9000, .layers = 1, .tokens = 1, .heads = 1, .head_dim = 1, .dtype = layout::Dtype::kU8};
  expect_same(layout_of(shape, order::kBlockSecondNhd), layout_of(shape, order::kBlockFirstNhd), 8500,
              1 << 20, false);
  expect_same(layout_of(shape, order::kBlockSecondNhd), layout_of(shape, order::kBlockFirstNhd), 8500, 333,
              true);
}

TEST(JobCursor, MorePatternsThanAJobHoldsAreSeveralJobs) {
  const Shape shape{.blocks = 3, .layers = 1100, .tokens = 1, .heads = 1, .head_dim = 1};
  expect_same(layout_of(shape, order::kBlockFirstNhd, Regions::kPerLayer),
              layout_of(shape, order::kFullyContiguousNhd), 3, 1 << 20, false);
}

TEST(JobCursor, RunsOfTheHostAreSeen) {
  storage::SystemAllocator system;
  const Shape shape;  // 16 bytes a head, 2 heads, 4 tokens, K and V, 3 layers
  const std::vector<std::uint32_t> blocks = {0, 1};
  const auto run = [&](const layout::AxisOrder& from_axes, const layout::AxisOrder& to_axes,
                       bool at_destination) {
    const auto from = allocate(layout_of(shape, from_axes), system);
    const auto to = allocate(layout_of(shape, to_axes), system);
    const auto plan = *transfer::plan(from, blocks, to, blocks);
    return JobCursor(plan.copies()[0], *from, *to, 0, !at_destination).host_run_bytes(at_destination);
  };
  EXPECT_EQ(run(order::kBlockFirstNhd, order::kFullyContiguousNhd, true), 768u);
  EXPECT_EQ(run(order::kBlockFirstNhd, order::kFullyContiguousHnd, true), 768u);
  EXPECT_EQ(run(order::kFullyContiguousHnd, order::kBlockFirstNhd, false), 768u);
  EXPECT_EQ(run(order::kFullyContiguousHnd, order::kBlockFirstNhd, true), 256u);   // a layer of a block
  EXPECT_EQ(run(order::kFullyContiguousHnd, order::kBlockSecondHnd, true), 128u);  // K or V of it
}

TEST(JobCursor, UnitsOfAPieceCoverIt) {
  EXPECT_EQ(units_per_piece(16, 16), 1u);
  EXPECT_EQ(units_per_piece(1008, 16), 63u);  // vectors
  EXPECT_EQ(units_per_piece(1024, 16), 1u);   // chunks of 2048 bytes
  EXPECT_EQ(units_per_piece(4096, 16), 2u);
  EXPECT_EQ(units_per_piece(4112, 16), 3u);
  EXPECT_EQ(units_per_piece(300, 1), 2u);  // chunks of 256
}

}  // namespace
}  // namespace ashlar::backend::cuda
