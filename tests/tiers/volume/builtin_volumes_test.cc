// The suite of all volumes, over the kinds that are always there.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "ashlar/tiers/volume_registry.h"
#include "support/scratch_folder.h"
#include "support/volume_conformance.h"
#include "tiers/volume/file_volume.h"

namespace ashlar::tiers {
namespace {

std::unique_ptr<Volume> attach(const std::string& kind, const std::string& location,
                               const std::string& sync) {
  return VolumeRegistry::with_builtin()
      .attach({.name = "test", .kind = kind, .location = location, .options = {{"sync", sync}}})
      .value();
}

class DirectoryInTest final : public VolumeInTest {
 public:
  DirectoryInTest() : volume_(attach("directory", folder_.path(), "false")) {}
  Volume& volume() override { return *volume_; }

 private:
  ScratchFolder folder_;
  std::unique_ptr<Volume> volume_;
};

class FileInTest final : public VolumeInTest {
 public:
  explicit FileInTest(const std::string& sync) {
    constexpr std::uint64_t kSlotBytes = 21 << 20;  // the suite has objects of 20 MiB
    const std::string path = folder_.file("volume");
    std::ofstream(path).close();
    std::filesystem::resize_file(path, 300 * kSlotBytes);  // holes: no test fills it
    provision_file_volume(path, {.slot_bytes = kSlotBytes}).value();
    volume_ = attach("file", path, sync);
  }
  Volume& volume() override { return *volume_; }

 private:
  ScratchFolder folder_;
  std::unique_ptr<Volume> volume_;
};

VolumeCase file_case(const std::string& name, const std::string& sync) {
  return {.name = name,
          .make = [sync] { return std::make_unique<FileInTest>(sync); },
          .longest_key = FileVolume::kLongestKey};
}

INSTANTIATE_TEST_SUITE_P(
    Builtin, VolumeTest,
    ::testing::Values(VolumeCase{.name = "directory",
                                 .make = [] { return std::make_unique<DirectoryInTest>(); }},
                      file_case("file", "true"), file_case("file_without_sync", "false")),
    volume_case_name);

}  // namespace
}  // namespace ashlar::tiers
