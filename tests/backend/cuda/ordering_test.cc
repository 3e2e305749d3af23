// When transfers start and end: streams and events of the caller, limits, cancels, deadlines, shutdown, a
// broken device.
#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>

#include "ashlar/storage/external_storage.h"
#include "ashlar/testing/interleaving.h"
#include "backend/cuda/gpu_fixture.h"

namespace ashlar::backend::cuda {
namespace {

namespace order = layout::order;
using transfer::BlockSet;
using transfer::Transfer;
using transfer::TransferResult;

// An event that passes when the gate is opened. While it is closed nothing may be freed: CUDA waits for the
// device then.
class Gate {
 public:
  Gate() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream_, [](void* self) { static_cast<Gate*>(self)->opened_.get_future().wait(); }, this),
              cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  }
  ~Gate() {
    open();
    cudaStreamSynchronize(stream_);
    cudaEventDestroy(event_);
    cudaStreamDestroy(stream_);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() {
    if (!is_open_.exchange(true)) opened_.set_value();
  }
  cudaEvent_t event() const { return event_; }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  std::promise<void> opened_;
  std::atomic<bool> is_open_{false};
};

class Ordering : public GpuTest {
 protected:
  // Eight slices of 64 MiB: more than are on a stream at once.
  transfer::TransferPlan large_plan() {
    const Shape shape{
        .blocks = 64, .layers = 16, .tokens = 64, .heads = 4, .head_dim = 512};  // 8 MiB a block
    const auto from = allocate(layout_of(shape, order::kBlockFirstNhd), device_);
    const auto to = allocate(layout_of(shape, order::kFullyContiguousHnd), *pinned_);
    std::vector<std::uint32_t> blocks(64);
    for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    return *transfer::plan(from, blocks, to, blocks);
  }
  transfer::TransferPlan small_plan() {
    const auto from = allocate(layout_of(Shape{}, order::kBlockFirstNhd), device_);
    const auto to = allocate(layout_of(Shape{}, order::kFullyContiguousHnd), *pinned_);
    return *transfer::plan(from, kFrom, to, kTo);
  }
};

TEST_F(Ordering, WaitsForTheCallersEvent) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  const auto from = allocate(layout_of(Shape{}, order::kBlockFirstNhd), device_);
  const auto to = allocate(layout_of(Shape{}, order::kFullyContiguousHnd), *pinned_);
  Mirror source(from);
  Mirror expected(to);
  Mirror seen(to);
  expected.put();
  const auto other = small_plan();
  Gate gate;
  const auto running =
      executor->submit({.plan = *transfer::plan(from, kFrom, to, kTo)}, {.wait_before = gate.event()});
  ASSERT_TRUE(running) << running.error();
  // Written after the submission and before the gate opens: the transfer must see it. Others are not held up.
  source.scramble(5);
  source.put();
  ASSERT_TRUE(executor->submit({.plan = other})->wait());
  EXPECT_FALSE(running->done());
  seen.fetch();
  EXPECT_TRUE(seen == expected) << "it did not wait";
  gate.open();
  const TransferResult result = running->wait();
  ASSERT_TRUE(result) << result.error();
  copy_elements(source, kFrom, expected, kTo);
  seen.fetch();
  EXPECT_TRUE(seen == expected);
}

TEST_F(Ordering, RunsOnTheCallersStream) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const auto from = allocate(layout_of(Shape{}, order::kFullyContiguousNhd), device_);
  const auto to = allocate(layout_of(Shape{}, order::kBlockSecondHnd), *pinned_);
  Mirror source(from);
  Mirror expected(to);
  Mirror seen(to);
  source.scramble(9);
  expected.put();
  {
    Gate gate;
    // The stream is held; what is written on it before the transfer is what the transfer sees.
    ASSERT_EQ(cudaStreamWaitEvent(stream, gate.event(), 0), cudaSuccess);
    Bytes filled(from->planes()[0].layout.region_bytes(), 0x5a);
    ASSERT_EQ(cudaMemsetAsync(from->address(0, {0, 0}), 0x5a, filled.size(), stream), cudaSuccess);
    const auto running =
        executor->submit({.plan = *transfer::plan(from, kFrom, to, kTo)}, {.stream = stream});
    ASSERT_TRUE(running) << running.error();
    // And after it on the stream comes this, which the transfer must not see.
    ASSERT_EQ(cudaMemsetAsync(from->address(0, {0, 0}), 0x11, filled.size(), stream), cudaSuccess);
    EXPECT_FALSE(running->done());
    gate.open();
    ASSERT_TRUE(running->wait());
  }
  Mirror content(from, 0x5a);
  copy_elements(content, kFrom, expected, kTo);
  seen.fetch();
  EXPECT_TRUE(seen == expected);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaStreamDestroy(stream);
}

TEST_F(Ordering, LayersArriveOneByOne) {
  for (const SwitchPoints& points : {kAlwaysKernel, kAlwaysEngines}) {
    const auto executor = make({.switch_points = points});
    const Shape shape{.layers = 5};
    const layout::Range layers{1, 3};
    const auto from = allocate(layout_of(shape, order::kFullyContiguousHnd), *pinned_);
    const auto to = allocate(layout_of(shape, order::kBlockFirstNhd, layout::Regions::kPerLayer), device_);
    Mirror source(from);
    Mirror expected(to);
    source.scramble(3);
    source.put();
    expected.put();
    const transfer::PlanSelection selection{.layers = layers, .heads = {}};
    copy_elements(source, kFrom, expected, kTo, selection);
    cudaStream_t reader = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking), cudaSuccess);
    std::vector<cudaEvent_t> events(layers.count);
    for (cudaEvent_t& event : events)
      ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    const std::uint64_t bytes = to->planes()[0].layout.region_bytes();
    std::vector<Bytes> read(layers.count, Bytes(bytes));
    {
      Gate gate;
      const auto running = executor->submit({.plan = *transfer::plan(from, kFrom, to, kTo, selection)},
                                            {.wait_before = gate.event(), .layer_events = events});
      ASSERT_TRUE(running) << running.error();
      for (const cudaEvent_t event : events) EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
      // A reader that waits for the event of a layer finds the layer.
      for (std::uint32_t i = 0; i < layers.count; ++i) {
        ASSERT_EQ(cudaStreamWaitEvent(reader, events[i], 0), cudaSuccess);
        gate.open();
        ASSERT_EQ(cudaMemcpyAsync(read[i].data(), to->address(0, {layers.first + i, 0}), bytes,
                                  cudaMemcpyDefault, reader),
                  cudaSuccess);
      }
      const TransferResult result = running->wait();
      ASSERT_TRUE(result) << result.error();
      EXPECT_GE(result->stats.operations, layers.count);
    }
    ASSERT_EQ(cudaStreamSynchronize(reader), cudaSuccess);
    for (std::uint32_t i = 0; i < layers.count; ++i)
      EXPECT_EQ(std::memcmp(read[i].data(), expected.at(0, {layers.first + i, 0}), bytes), 0)
          << "layer " << i;
    Mirror seen(to);
    seen.fetch();
    EXPECT_TRUE(seen == expected);
    for (const cudaEvent_t event : events) {
      EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
      cudaEventDestroy(event);
    }
    cudaStreamDestroy(reader);
  }
}

TEST_F(Ordering, WrongEventsAreRefused) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  const std::vector<cudaEvent_t> two(2, event);
  const auto count = executor->submit({.plan = small_plan()}, {.layer_events = two});
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(count.error().message(), "2 events for 3 selected layers");
  const std::vector<cudaEvent_t> null = {event, nullptr, event};
  EXPECT_EQ(executor->submit({.plan = small_plan()}, {.layer_events = null}).error().message(),
            "the event of selected layer 1 is null");
  const auto from = allocate(layout_of(Shape{}, order::kBlockFirstNhd), system_);
  const auto to = allocate(layout_of(Shape{}, order::kBlockFirstNhd), device_);
  EXPECT_EQ(executor->submit({.plan = *transfer::plan(from, kFrom, to, kTo)}, {.wait_before = event})
                .error()
                .code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(executor->counters().submitted, 0u);
  cudaEventDestroy(event);
}

TEST_F(Ordering, ManyThreadsInBothDirections) {
  const auto executor = make({.limits = {.transfers = 8}});
  const Shape shape{.blocks = 16, .layers = 4, .tokens = 16, .heads = 4, .head_dim = 64};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      const auto on_device = allocate(layout_of(shape, order::kAll[t].order), device_);
      storage::Allocator& host_memory = t == 5 ? static_cast<storage::Allocator&>(system_) : *pinned_;
      const auto there = allocate(layout_of(shape, order::kAll[13 - t].order), host_memory);
      const auto back = allocate(layout_of(shape, order::kAll[t].order), host_memory);
      Mirror source(on_device);
      source.scramble(t);
      source.put();
      std::vector<std::uint32_t> blocks(shape.blocks);
      for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = (i * 7 + t) % shape.blocks;
      for (int round = 0; round < 50; ++round) {
        // Out to the host and back into the device, then compare.
        const auto out = executor->submit({.plan = *transfer::plan(on_device, blocks, there, blocks)});
        ASSERT_TRUE(out && out->wait());
        const auto in = executor->submit({.plan = *transfer::plan(there, blocks, on_device, blocks)});
        ASSERT_TRUE(in && in->wait());
      }
      const auto last = executor->submit({.plan = *transfer::plan(on_device, blocks, back, blocks)});
      ASSERT_TRUE(last && last->wait());
      Mirror seen(back);
      seen.fetch();
      EXPECT_TRUE(seen == source);
    });
  for (std::thread& thread : threads) thread.join();
  const transfer::ExecutorCounters counters = executor->counters();
  EXPECT_EQ(counters.completed, 6u * 101);
  EXPECT_EQ(counters.in_flight, 0u);
}

TEST_F(Ordering, CancelStopsWhatWasNotIssued) {
  testing::Interleaving order;
  const auto executor = make({.switch_points = kAlwaysKernel});
  order.pause_at("cuda.slice_done");  // the slices behind the first ones are not issued
  const auto running = executor->submit({.plan = large_plan()});
  const auto behind = executor->submit({.plan = large_plan()});
  ASSERT_TRUE(running && behind);
  running->cancel();
  behind->cancel();
  order.resume("cuda.slice_done");
  const TransferResult first = running->wait_for_end();
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code(), ErrorCode::kCancelled);
  const TransferResult second = behind->wait_for_end();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().message(), "cancelled after 0 of 536870912 bytes");
  EXPECT_LT(running->bytes_done(), running->bytes_total());
  EXPECT_EQ(executor->counters().cancelled, 2u);
  ASSERT_TRUE(executor->submit({.plan = small_plan()})->wait());
}

TEST_F(Ordering, DeadlineStopsWhatWasNotIssued) {
  testing::Interleaving order;
  ManualClock clock;
  const auto executor = make({.switch_points = kAlwaysKernel, .clock = &clock});
  order.pause_at("cuda.slice_done");
  const auto deadline = clock.now() + std::chrono::seconds(1);
  const auto running = executor->submit({.plan = large_plan(), .deadline = deadline});
  ASSERT_TRUE(running) << running.error();
  clock.advance(std::chrono::seconds(2));
  const TransferResult early = running->wait();
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), ErrorCode::kTimeout);
  order.resume("cuda.slice_done");
  const TransferResult end = running->wait_for_end();
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), ErrorCode::kTimeout);
  EXPECT_LT(running->bytes_done(), running->bytes_total());
  EXPECT_EQ(executor->submit({.plan = small_plan(), .deadline = deadline}).error().code(),
            ErrorCode::kTimeout);
}

TEST_F(Ordering, CancelStopsPageableTransfers) {
  testing::Interleaving order;
  const auto executor = make({.switch_points = kAlwaysKernel});
  const Shape shape{.blocks = 64, .layers = 16, .tokens = 64, .heads = 4, .head_dim = 512};
  const auto from = allocate(layout_of(shape, order::kBlockFirstNhd), device_);
  const auto to = allocate(layout_of(shape, order::kFullyContiguousHnd), system_);
  std::vector<std::uint32_t> blocks(64);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  const auto plan = *transfer::plan(from, blocks, to, blocks);
  order.pause_at("cuda.staged_turn");
  const auto running = executor->submit({.plan = plan});
  const auto behind = executor->submit({.plan = plan});
  ASSERT_TRUE(running && behind);
  running->cancel();
  behind->cancel();
  order.resume("cuda.staged_turn");
  EXPECT_EQ(running->wait_for_end().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(behind->wait_for_end().error().message(), "cancelled after 0 of 536870912 bytes");
}

TEST_F(Ordering, AFullQueueRefusesOrWaits) {
  const auto executor = make({.switch_points = kAlwaysKernel, .limits = {.transfers = 1}});
  const auto plan = small_plan();
  Gate gate;
  const auto running = executor->submit({.plan = plan}, {.wait_before = gate.event()});
  ASSERT_TRUE(running);
  const auto refused = executor->submit({.plan = plan, .wait_for_room = false});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  EXPECT_EQ(executor->counters().refused, 1u);
  std::atomic<bool> entered{false};
  std::thread waiter([&] {
    const auto second = executor->submit({.plan = plan});
    entered = true;
    ASSERT_TRUE(second) << second.error();
    EXPECT_TRUE(running->done()) << "it came in before the first had left";
    EXPECT_TRUE(second->wait());
  });
  EXPECT_FALSE(entered);
  gate.open();
  waiter.join();
  EXPECT_EQ(executor->counters().completed, 2u);
}

TEST_F(Ordering, MemoryIsHeldUntilTheEnd) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owned;
  auto from = allocate(layout_of(Shape{}, order::kBlockFirstNhd), device_);
  const std::weak_ptr<const BlockSet> watched_set = from;
  const auto to = allocate(layout_of(Shape{}, order::kFullyContiguousHnd), *pinned_);
  Gate gate;
  std::atomic<int> called{0};
  const auto running = executor->submit({.plan = *transfer::plan(from, kFrom, to, kTo),
                                         .owned = std::move(owned),
                                         .on_done =
                                             [&](const TransferResult& result) {
                                               EXPECT_TRUE(result);
                                               EXPECT_TRUE(watched.expired());
                                               ++called;
                                             }},
                                        {.wait_before = gate.event()});
  from.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_FALSE(watched_set.expired());
  EXPECT_FALSE(running->fence().passed());
  gate.open();
  ASSERT_TRUE(running->wait());
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(watched_set.expired());
  while (called == 0) std::this_thread::yield();
  EXPECT_EQ(called, 1);
}

TEST_F(Ordering, DestructionEndsEveryTransfer) {
  testing::Interleaving order;
  auto executor = make({.switch_points = kAlwaysKernel, .limits = {.bytes = std::uint64_t{8} << 30}});
  order.pause_at("cuda.slice_done");
  std::vector<Transfer> transfers;
  const auto large = large_plan();
  for (int i = 0; i < 4; ++i) transfers.push_back(*executor->submit({.plan = large}));
  const auto on_host = allocate(layout_of(Shape{}, order::kBlockFirstNhd), system_);
  const auto on_device = allocate(layout_of(Shape{}, order::kBlockFirstNhd), device_);
  for (int i = 0; i < 4; ++i)
    transfers.push_back(*executor->submit({.plan = *transfer::plan(on_host, kFrom, on_device, kTo)}));
  std::thread destroyer([&] { executor.reset(); });
  order.wait_until_passed("cuda.stream_stopping", 1);  // the stream to the host goes first
  order.resume("cuda.slice_done");
  destroyer.join();
  for (const Transfer& transfer : transfers) {
    ASSERT_TRUE(transfer.done());
    if (const TransferResult result = transfer.wait(); !result) {
      EXPECT_EQ(result.error().code(), ErrorCode::kCancelled);
    }
  }
  EXPECT_FALSE(transfers[3].wait()) << "the window was full of the first one";
}

// Runs in a process of its own: after an illegal access the device is lost to the process.
void break_the_device() {
  auto executor = *CudaExecutor::create({.switch_points = kAlwaysKernel});
  DeviceAllocator device;
  const layout::Layout layout =
      layout_of(Shape{.blocks = 64, .tokens = 64, .heads = 16, .head_dim = 64}, order::kFullyContiguousNhd);
  void* memory = nullptr;
  if (cudaMalloc(&memory, layout.region_bytes()) != cudaSuccess) std::_Exit(10);
  const auto external = *storage::ExternalStorage::create({.kind = StorageKind::kDevice,
                                                           .address = static_cast<std::byte*>(memory),
                                                           .bytes = layout.region_bytes(),
                                                           .device = 0});
  const auto from = *BlockSet::create({{layout, layout::Shard::whole(layout.config()), {{external, 0}}}});
  const auto to = allocate(layout, device);
  const auto plan = *transfer::plan(from, kFrom, to, kTo);
  if (!executor->submit({.plan = plan})->wait()) std::_Exit(11);
  if (cudaFree(memory) != cudaSuccess) std::_Exit(12);
  const auto lost = executor->submit({.plan = plan});
  if (!lost || lost->wait()) std::_Exit(13);
  if (lost->wait().error().code() != ErrorCode::kIo) std::_Exit(14);
  const auto after = executor->submit({.plan = plan});
  if (after && after->wait()) std::_Exit(15);
  executor.reset();
  std::_Exit(0);
}

TEST_F(Ordering, ABrokenDeviceFailsEveryTransferAndHangsNone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(break_the_device(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ashlar::backend::cuda
