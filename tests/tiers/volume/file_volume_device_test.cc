// FileVolume on a block device: the same slots, and the device is ours alone. Needs the right to make loop
// devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "support/loop_device.h"
#include "tiers/volume/file_volume_fixture.h"

namespace ashlar::tiers {
namespace {

using ::testing::HasSubstr;

class FileVolumeDeviceTest : public FileVolumeFixture {
 protected:
  void SetUp() override {
    make_file();
    device_ = LoopDevice::over(path_);
    if (device_ == nullptr) GTEST_SKIP() << "no loop device to be had";
  }
  Result<FileVolumeShape> provision_device() const {
    return provision_file_volume(device_->path(), {.slot_bytes = kSlotBytes});
  }
  std::unique_ptr<FileVolume> open_device() const {
    return FileVolume::open({.path = device_->path()}).value();
  }

  std::unique_ptr<LoopDevice> device_;
};

TEST_F(FileVolumeDeviceTest, ObjectsAreThereAfterARestart) {
  const Result<FileVolumeShape> shape = provision_device();
  ASSERT_TRUE(shape) << shape.error();
  EXPECT_EQ(shape->slots, kSlots) << "the whole device";
  for (std::uint64_t life = 0; life < 3; ++life) {
    const auto volume = open_device();
    EXPECT_EQ(volume->free_slots(), kSlots - 2 * life);
    for (std::uint64_t before = 0; before < life; ++before)
      for (const std::uint64_t bytes : {std::uint64_t{5001}, kSlotBytes})
        EXPECT_TRUE(get_one(*volume, std::to_string(before) + "/" + std::to_string(bytes), bytes).value() ==
                    make_bytes(bytes, before));
    for (const std::uint64_t bytes : {std::uint64_t{5001}, kSlotBytes})
      ASSERT_TRUE(
          put_one(*volume, std::to_string(life) + "/" + std::to_string(bytes), make_bytes(bytes, life)));
  }
}

TEST_F(FileVolumeDeviceTest, OnlyOneMayHaveItAtATime) {
  ASSERT_TRUE(provision_device());
  const auto volume = open_device();
  const auto second = FileVolume::open({.path = device_->path()});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kNotReady) << second.error();
  EXPECT_TRUE(put_one(*volume, "k", make_bytes(100, 1)));
}

TEST_F(FileVolumeDeviceTest, ADeviceThatHoldsSomethingElseIsRefusedAndLeftAlone) {
  {
    std::fstream bytes(device_->path(), std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(1080);  // where a file system has its mark
    bytes.put('\x53');
  }
  const Result<FileVolumeShape> shape = provision_device();
  ASSERT_FALSE(shape);
  EXPECT_EQ(shape.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(shape.error().message(), HasSubstr("byte 1080 is not zero"));
  EXPECT_FALSE(FileVolume::open({.path = device_->path()}));
}

TEST_F(FileVolumeDeviceTest, AFullDeviceIsCapacityUntilSomethingIsRemoved) {
  ASSERT_TRUE(provision_device());
  const auto volume = open_device();
  for (std::uint64_t i = 0; i < kSlots; ++i)
    ASSERT_TRUE(put_one(*volume, std::to_string(i), make_bytes(kSlotBytes, i)));
  EXPECT_EQ(code_of(put_one(*volume, "more", make_bytes(1, 1))), ErrorCode::kCapacity);
  const std::string_view key = "3";
  ASSERT_TRUE(volume->remove(std::span(&key, 1))[0]);
  ASSERT_TRUE(put_one(*volume, "more", make_bytes(kSlotBytes, 99)));
  EXPECT_TRUE(get_one(*volume, "more", kSlotBytes).value() == make_bytes(kSlotBytes, 99));
}

}  // namespace
}  // namespace ashlar::tiers
