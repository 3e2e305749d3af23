// PowerLoss: watches the writes of a file, and makes images of what a disk may hold after the power failed.
//
// Everything up to the last sync is there. Of what was written since, any subset of sectors may be there,
// each in any of the versions that were written: disks reorder, and a write of many sectors tears.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/random.h"
#include "ashlar/storage/storage.h"

namespace ashlar::tiers {

class PowerLoss final : public storage::IoFaults {
 public:
  static constexpr std::uint64_t kSector = 512;
  using Image = std::vector<std::uint8_t>;

  // What is on the disk now for certain.
  void start(Image image) {
    const MutexLock lock(mu_);
    durable_ = std::move(image);
    pending_.clear();
  }

  storage::IoVerdict judge(storage::IoDirection, std::uint64_t, std::uint64_t) override { return {}; }
  // Called after each write, before anything is synced.
  std::function<void()> after_write;

  void written(std::uint64_t offset, std::span<const std::byte> bytes) override {
    record(offset, bytes);
    if (after_write) after_write();
  }
  // The next syncs fail, so many of them. A system tells that once, and takes what was written for clean: a
  // later sync writes nothing of it.
  int failing_syncs = 0;

  int syncing() override {
    if (failing_syncs == 0) return 0;
    --failing_syncs;
    const MutexLock lock(mu_);
    pending_.clear();
    return EIO;
  }
  void synced() override {
    const MutexLock lock(mu_);
    for (const auto& [at, versions] : pending_) put(durable_, at, versions.back());
    pending_.clear();
  }

  Image image(Random& random) {
    const MutexLock lock(mu_);
    Image image = durable_;
    for (const auto& [at, versions] : pending_) {
      const std::uint64_t which = random.below(versions.size() + 1);
      if (which > 0) put(image, at, versions[which - 1]);
    }
    return image;
  }
  std::size_t pending_sectors() {
    const MutexLock lock(mu_);
    return pending_.size();
  }

 private:
  void record(std::uint64_t offset, std::span<const std::byte> bytes) {
    const MutexLock lock(mu_);
    if (durable_.empty()) return;
    // The sectors as they are after this write, on top of the newest version.
    for (std::uint64_t at = offset / kSector * kSector; at < offset + bytes.size(); at += kSector) {
      std::vector<Image>& versions = pending_[at];
      Image sector = versions.empty() ? durable_sector(at) : versions.back();
      const std::uint64_t first = std::max(at, offset);
      const std::uint64_t end = std::min<std::uint64_t>(at + kSector, offset + bytes.size());
      std::memcpy(sector.data() + (first - at), bytes.data() + (first - offset), end - first);
      versions.push_back(std::move(sector));
    }
  }
  Image durable_sector(std::uint64_t at) const ASHLAR_REQUIRES(mu_) {
    Image sector(kSector, 0);
    if (at < durable_.size())
      std::memcpy(sector.data(), durable_.data() + at,
                  std::min<std::uint64_t>(kSector, durable_.size() - at));
    return sector;
  }
  static void put(Image& image, std::uint64_t at, const Image& sector) {
    if (at < image.size())
      std::memcpy(image.data() + at, sector.data(), std::min<std::uint64_t>(kSector, image.size() - at));
  }

  Mutex mu_;
  Image durable_ ASHLAR_GUARDED_BY(mu_);
  std::map<std::uint64_t, std::vector<Image>> pending_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
