// DirectoryVolume: a folder of files, local or mounted by the operator: NFS, a parallel file system.
//
// An object is a file. It is written under a temporary name, synced, and renamed, so that readers, other
// machines and a restart see it whole or not at all. Keys are spread over 256 folders by their hash. Only
// regular files are objects.
//
// Temporary names begin with ".~" and are random. A writer that dies leaves one behind. The first put into a
// folder removes those last written more than an hour ago, by the clock of the file system: a slower writer,
// on any machine, finds its file gone and its put failed, nothing worse. Later puts of this DirectoryVolume
// do not sweep again: files left after that are removed by the next one attached.
//
// While the folder is missing, or another one has its name (its file system is not mounted), every call fails
// with kIo: objects that may come back are never reported as removed or absent.
//
// Call limits are checked between file system operations, which themselves cannot be interrupted.
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
  // Errors: kNotFound: no such folder; kInvalidArgument: an option, or not a folder; kIo: not writable.
  static Result<std::unique_ptr<Volume>> attach(const VolumeDescriptor& descriptor);

  std::string describe() const override { return "directory " + folder_; }
  std::vector<Result<void>> put(std::span<const ObjectWrite> objects, const CallLimits& limits = {}) override;
  std::vector<Result<void>> get(std::span<const ObjectRead> objects, const CallLimits& limits = {}) override;
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                     const CallLimits& limits = {}) override;
  std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                   const CallLimits& limits = {}) override;

 private:
  // State of one folder in this process.
  struct Folder {
    std::atomic<bool> swept{false};    // files of dead writers were removed
    std::atomic<bool> durable{false};  // its name is on the device
  };

  // Identifies the folder behind a name.
  struct Identity {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;

    friend bool operator==(const Identity&, const Identity&) = default;
  };

  DirectoryVolume(std::string folder, const Identity& identity, std::uint64_t fanout, bool sync,
                  std::uint64_t threads)
      : folder_(std::move(folder)), identity_(identity), sync_(sync), threads_(threads), folders_(fanout) {}
  // Errors: kIo: the folder is missing.
  Result<void> check_folder() const;
  Result<void> put_one(const ObjectWrite& object, const CallLimits& limits);
  Result<void> get_one(const ObjectRead& object, const CallLimits& limits) const;
  // Syncs the folders changed by these puts or removals since failed_syncs_ was `before`.
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
