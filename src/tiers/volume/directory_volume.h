// DirectoryVolume: a folder of files, local or mounted by the operator: NFS, a parallel file system.
//
// An object is a file. It is written under another name, synced, and renamed, so that readers, other machines
// and a restart see it whole or not at all. Keys are spread over 256 folders by their hash. What is no
// regular file is no object.
//
// Other names begin with ".~" and are random. A writer that dies leaves one behind. The first put into a
// folder removes those that were last written more than an hour before, by the clock of the file system: a
// writer that is slower than that, on any machine, finds its file gone and its put failed, and nothing worse.
// Later puts of this DirectoryVolume do not look again: what is left after that is removed by the next one
// that is attached.
//
// While the folder is away, or another one has its name (its file system is not mounted), every call fails
// with kIo: nothing is said to be removed, or not to be there, that may come back.
//
// Limits of calls are looked at between operations of the file system, which themselves cannot be
// interrupted.
//
// Options: fanout (1 to 65536 folders, 256), sync (true: put() and remove() survive a power failure when they
// return), threads (1 to 64 that write a batch, 4).
//
// Thread safety: thread-safe; several processes may use one folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"

namespace ashlar::tiers {

class DirectoryVolume final : public Volume {
 public:
  // Errors: kNotFound: no such folder; kInvalidArgument: an option, or something that is no folder; kIo: it
  // cannot be written to.
  static Result<std::unique_ptr<Volume>> attach(const VolumeDescriptor& descriptor);

  std::string describe() const override { return "directory " + folder_; }
  std::vector<Result<void>> put(std::span<const ObjectWrite> objects, const CallLimits& limits = {}) override;
  std::vector<Result<void>> get(std::span<const ObjectRead> objects, const CallLimits& limits = {}) override;
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                     const CallLimits& limits = {}) override;
  std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                   const CallLimits& limits = {}) override;

 private:
  // What this process knows of a folder.
  struct Folder {
    std::atomic<bool> swept{false};    // of what dead writers left
    std::atomic<bool> durable{false};  // its name is on the device
  };

  // Which folder a name stands for.
  struct Identity {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;

    friend bool operator==(const Identity&, const Identity&) = default;
  };

  DirectoryVolume(std::string folder, const Identity& identity, std::uint64_t fanout, bool sync,
                  std::uint64_t threads)
      : folder_(std::move(folder)), identity_(identity), sync_(sync), threads_(threads), folders_(fanout) {}
  // Errors: kIo: the folder is away.
  Result<void> check_there() const;
  Result<void> put_one(const ObjectWrite& object, const CallLimits& limits);
  Result<void> get_one(const ObjectRead& object, const CallLimits& limits) const;
  // What was put into folders, or removed from them, since failed_syncs_ was `before`, is on the device.
  void sync_folders(std::span<const std::string_view> keys, std::uint64_t before,
                    std::vector<Result<void>>& results);
  // 0, or the errno.
  int sync_folder(const std::string& path);
  std::size_t number_of(std::string_view key) const;
  std::string folder_of(std::string_view key) const;
  std::string path_of(std::string_view key) const;

  const std::string folder_;
  const Identity identity_;
  const bool sync_;
  const std::uint64_t threads_;
  std::vector<Folder> folders_;
  std::atomic<std::uint64_t> failed_syncs_{0};
};

}  // namespace ashlar::tiers
