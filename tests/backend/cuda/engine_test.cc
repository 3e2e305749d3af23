// Ways of two hops that begin or end on a GPU.
#include "ashlar/transfer/transfer_engine.h"

#include "ashlar/storage/external_storage.h"
#include "ashlar/transfer/host_executors.h"
#include "backend/cuda/gpu_fixture.h"
#include "support/block_images.h"
#include "support/scratch_folder.h"

namespace ashlar::backend::cuda {
namespace {

using transfer::BlockSet;

class EngineTest : public GpuTest {
 protected:
  // The same blocks, whatever the storage: what the host sees of them.
  static Mirror mirror_of(const std::shared_ptr<const BlockSet>& set) {
    Mirror mirror(set);
    mirror.fetch();
    return mirror;
  }
};

TEST_F(EngineTest, BlocksGoFromTheGpuToAFileAndBack) {
  const auto locker = CudaPageLocker::create();
  ASSERT_TRUE(locker);
  const auto engine =
      transfer::TransferEngine::create(
          {.executors = {CudaExecutor::create({}).value(), transfer::FileExecutor::create().value(),
                         transfer::MemcpyExecutor::create().value()},
           .staging = std::make_shared<storage::PinnedAllocator>(*locker),
           .staging_bytes = 1 << 20})
          .value();
  const ScratchFolder folder;
  storage::DiskAllocator files({.path = folder.file("g3"), .remove = true});
  DeviceAllocator device;
  layout::LayoutConfig config = transfer::small_shape(64, 3, 4);
  config.head_dim = 256;
  config.inner_dim = 1024;
  const auto gpu_layout = layout::Layout::create(config, layout::order::kBlockSecondNhd).value();
  config.alignment = 4096;
  const auto file_layout = layout::Layout::create(config, layout::order::kFullyContiguousHnd).value();
  const auto gpu = BlockSet::allocate(gpu_layout, device).value();
  const auto back = BlockSet::allocate(gpu_layout, device).value();
  const auto file = BlockSet::allocate(file_layout, files).value();
  EXPECT_EQ(engine->path(*gpu, *file), "cuda, then file");
  EXPECT_EQ(engine->path(*file, *gpu), "file, then cuda");
  Mirror source(gpu);
  source.scramble(5);
  source.put();
  Mirror expected(back);
  expected.put();
  std::vector<std::uint32_t> here;
  std::vector<std::uint32_t> there;
  for (std::uint32_t i = 0; i < 50; ++i) {
    here.push_back(i);
    there.push_back(63 - i);
  }
  copy_elements(source, here, expected, here);
  const auto down = engine->submit({.plan = transfer::plan(gpu, here, file, there).value()}).value().wait();
  ASSERT_TRUE(down) << down.error();
  EXPECT_EQ(down->stats.staged_bytes, down->stats.bytes);
  const auto up = engine->submit({.plan = transfer::plan(file, there, back, here).value()}).value().wait();
  ASSERT_TRUE(up) << up.error();
  EXPECT_TRUE(mirror_of(back) == expected);
}

// Tensors of a framework: memory on the GPU that somebody else owns.
TEST_F(EngineTest, ForeignDeviceMemoryIsRead) {
  const auto executor = make({});
  DeviceAllocator device;
  const layout::LayoutConfig config = transfer::small_shape(6, 3, 4);
  for (const layout::order::NamedOrder& named : layout::order::kAll) {
    const auto layout = layout::Layout::create(config, named.order).value();
    const std::shared_ptr<storage::Storage> owned = device.allocate(layout.region_bytes(), 256).value();
    const std::shared_ptr<storage::Storage> foreign =
        storage::ExternalStorage::create({.kind = StorageKind::kDevice,
                                          .address = owned->address(),
                                          .bytes = owned->size(),
                                          .device = 0,
                                          .owner = owned})
            .value();
    const auto from = BlockSet::create({{layout, layout::Shard::whole(config), {{foreign, 0}}}}).value();
    const auto to = BlockSet::allocate(
                        layout::Layout::create(config, layout::order::kFullyContiguousNhd).value(), *pinned_)
                        .value();
    move(*executor, from, {4, 0, 3}, to, {1, 2, 5});
    move(*executor, to, {1, 2, 5}, from, {4, 0, 3});
  }
}

}  // namespace
}  // namespace ashlar::backend::cuda
