// A file for file volumes in tests, and its bytes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/scratch_folder.h"
#include "support/volume_objects.h"
#include "tiers/volume/file_volume.h"

namespace ashlar::tiers {

class FileVolumeFixture : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSlotBytes = 8192;
  static constexpr std::uint64_t kSlots = 12;
  static constexpr std::uint64_t kTable = 4096;
  static constexpr std::uint64_t kHeader = 256;
  static constexpr std::uint64_t kFirstSlot = 8192;
  static constexpr std::uint64_t kBytes = kFirstSlot + kSlots * kSlotBytes;
  using Image = std::vector<std::uint8_t>;

  // What an operator does: a file with a size, all zero.
  void make_file(std::uint64_t bytes = kBytes) const {
    std::filesystem::remove(path_);
    std::ofstream(path_, std::ios::binary);
    std::filesystem::resize_file(path_, bytes);
  }
  void provision() const {
    make_file();
    ASSERT_EQ(provision_file_volume(path_, {.slot_bytes = kSlotBytes}).value(),
              (FileVolumeShape{.slot_bytes = kSlotBytes, .slots = kSlots}));
  }
  std::unique_ptr<FileVolume> open(std::shared_ptr<storage::IoFaults> faults = nullptr) const {
    return FileVolume::open({.path = path_, .faults = std::move(faults)}).value();
  }
  Image image() const {
    Image bytes(std::filesystem::file_size(path_));
    std::ifstream(path_, std::ios::binary)
        .read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }
  static void store(const std::string& path, const Image& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  void store(const Image& bytes) const { store(path_, bytes); }

  static std::size_t header_at(std::size_t slot) { return kTable + slot * kHeader; }
  static std::size_t slot_at(std::size_t slot) { return kFirstSlot + slot * kSlotBytes; }

  ScratchFolder folder_;
  std::string path_ = folder_.file("volume");
};

}  // namespace ashlar::tiers
