// G1 of one process, read and written by another: the suite of transports over CUDA IPC. Skips itself where
// there is no GPU.
#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_ipc.h"
#include "ashlar/backend/cuda/device.h"
#include "ashlar/backend/cuda/device_storage.h"
#include "ashlar/storage/external_storage.h"
#include "backend/cuda/block_model.h"
#include "backend/cuda/device_image.h"
#include "transfer/remote/transport_conformance.h"

namespace ashlar::transfer {

std::vector<TransportCase> transport_cases() {
  return {{.name = "CudaIpc",
           .transport = [](const ExecutorSettings& settings) -> std::shared_ptr<RemoteTransport> {
             if (!backend::cuda::device_count()) return nullptr;
             return LoopbackTransport::create(
                        {.copies = {.limits = settings.limits, .clock = settings.clock},
                         .devices = backend::cuda::CudaIpc::create().value(),
                         .device_executor = backend::cuda::CudaExecutor::create(
                                                {.limits = settings.limits, .clock = settings.clock})
                                                .value()})
                 .value();
           },
           .memory = [] { return std::make_unique<backend::cuda::DeviceAllocator>(); },
           .store = store_on_device,
           .load = load_from_device}};
}

namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, TransportTest, ::testing::ValuesIn(transport_cases()),
                         [](const ::testing::TestParamInfo<TransportCase>& test) { return test.param.name; });

class CudaIpcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Result<int> count = backend::cuda::device_count(); !count) GTEST_SKIP() << count.error();
  }
};

TEST_F(CudaIpcTest, BlocksGoFromDeviceToDeviceBetweenProcesses) {
  const TransportCase one = transport_cases()[0];
  const std::shared_ptr<RemoteTransport> transport = one.transport({});
  PeerProcess peer(one.name);
  const auto path = transport->connect(peer.identity(), peer.address(), {}).value();
  const PeerSet theirs = peer.share(kLargeShape);
  const auto remote = PeerProcess::open(*path, theirs).value();
  peer.fill(theirs, 9);
  backend::cuda::DeviceAllocator device;
  const auto local = BlockSet::allocate(theirs.shapes, device).value();
  BlockImage source(*remote, 0);
  source.scramble(9);
  BlockImage expected(*local, 0xEE);
  one.store(*local, expected);
  const std::vector<std::uint32_t> there = {4, 0, 30};
  const std::vector<std::uint32_t> here = {1, 31, 5};
  copy_naively(*remote, source, there, *local, expected, here);
  const TransferResult got =
      transport->executor().submit({.plan = plan(remote, there, local, here).value()}).value().wait();
  ASSERT_TRUE(got) << got.error();
  BlockImage seen(*local, 0);
  one.load(*local, seen);
  EXPECT_TRUE(seen == expected);
  copy_naively(*local, expected, here, *remote, source, here);
  const TransferResult put =
      transport->executor().submit({.plan = plan(local, here, remote, here).value()}).value().wait();
  ASSERT_TRUE(put) << put.error();
  EXPECT_TRUE(peer.show(theirs, *remote) == source);
}

TEST_F(CudaIpcTest, APartOfAnAllocationIsSharedAndOpenedInTheSameProcess) {
  const auto ipc = backend::cuda::CudaIpc::create().value();
  const auto whole = backend::cuda::DeviceStorage::create(0, 1 << 20).value();
  const auto part = storage::ExternalStorage::create({.kind = StorageKind::kDevice,
                                                      .address = whole->address() + 4096,
                                                      .bytes = 8192,
                                                      .device = 0,
                                                      .owner = whole})
                        .value();
  const std::vector<std::byte> handle = ipc->share(*part).value();
  const auto opened = ipc->open(handle, 8192, 0);
  ASSERT_TRUE(opened) << opened.error();
  EXPECT_EQ((*opened)->address(), part->address());
  EXPECT_EQ(ipc->open(handle, 8193, 0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ipc->open(std::span(handle).first(20), 1, 0).error().code(), ErrorCode::kInvalidArgument);
  storage::SystemAllocator host;
  EXPECT_EQ(ipc->share(*host.allocate(4096, 1).value()).error().code(), ErrorCode::kUnsupported);
}

// Every child exits with CUDA's state in it; the parent reads what is left of the memory.
TEST_F(CudaIpcTest, AnOpenedAllocationOutlivesTheHandleOfADeadProcess) {
  const TransportCase one = transport_cases()[0];
  const std::shared_ptr<RemoteTransport> transport = one.transport({});
  for (int i = 0; i < 3; ++i) {
    PeerProcess peer(one.name);
    FailureBox failures;
    const auto path = transport->connect(peer.identity(), peer.address(), failures.callback()).value();
    const PeerSet theirs = peer.share(0);
    const auto remote = PeerProcess::open(*path, theirs);
    ASSERT_TRUE(remote) << remote.error();
    peer.kill();
    ASSERT_TRUE(failures.wait());
    EXPECT_FALSE(path->open(theirs.memory[0]));
  }
}

TEST(NoDevice, IpcSaysThatThereIsNone) {
  const Result<int> count = backend::cuda::device_count();
  if (count) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(backend::cuda::CudaIpc::create().error(), count.error());
}

}  // namespace
}  // namespace ashlar::transfer

int main(int argc, char** argv) {
  return ashlar::testing::run_tests(argc, argv, {{"remote_peer", ashlar::transfer::play_peer}});
}
