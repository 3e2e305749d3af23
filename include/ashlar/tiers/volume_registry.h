// VolumeRegistry: the kinds of volumes, and how to attach one of each.
//
//   VolumeRegistry registry = VolumeRegistry::with_builtin();       // directory, file
//   registry.add("s3", backend::s3::attach);                        // one line per backend
//   auto volume = registry.attach({.name = "cold", .kind = "s3", .location = "bucket/prefix"});
//
// VolumeDescriptor describes a volume, VolumeUse says what it is used for, VolumeStatus what came of it.
// A volume of kind "file" must be provisioned once before it is attached: provision_file_volume().
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"
#include "ashlar/tiers/volume.h"

namespace ashlar::tiers {

// What an operator says about a volume. Every value is explicit: the library reads no environment.
struct VolumeDescriptor {
  std::string name;      // unique within a manager
  std::string kind;      // "directory", "file", "s3", "redis", …
  std::string location;  // a path, or bucket and prefix, or host and port: as the kind says
  // By name; unknown options are refused. Secrets are options too, and appear in no message.
  std::map<std::string, std::string> options = {};
};

// What a manager may do with a volume.
struct VolumeUse {
  bool write = true;  // may store and remove blocks; else the volume is read-only
};

// What a manager knows of an attached volume.
struct VolumeStatus {
  std::uint16_t number = 0;  // unique within a manager, never reused
  std::string name;
  std::string describes;  // Volume::describe()
  bool write = true;
  std::size_t block_count = 0;  // blocks known to be on it
  std::uint64_t put = 0;        // objects written
  std::uint64_t got = 0;        // objects read
  std::uint64_t failed = 0;     // objects whose put or get failed
};

class VolumeRegistry {
 public:
  // Makes a volume of one kind. Should check the descriptor, and need no network to do so.
  using Attach = std::function<Result<std::unique_ptr<Volume>>(const VolumeDescriptor&)>;

  // A registry with the kinds "directory" and "file".
  static VolumeRegistry with_builtin();

  // Adds a kind, or replaces it.
  void add(std::string kind, Attach attach) { kinds_[std::move(kind)] = std::move(attach); }
  // Errors: kNotFound: no such kind, with the known ones; those of the backend.
  Result<std::unique_ptr<Volume>> attach(const VolumeDescriptor& descriptor) const;
  std::vector<std::string> kinds() const;

 private:
  std::map<std::string, Attach, std::less<>> kinds_;
};

// The slots of a file volume: each takes one object.
struct FileVolumeShape {
  std::uint64_t slot_bytes = 0;  // the largest object; whole pages of 4096 bytes
  std::uint64_t slots = 0;

  friend bool operator==(const FileVolumeShape&, const FileVolumeShape&) = default;
};

struct ProvisionOptions {
  std::uint64_t slot_bytes = 0;  // the largest object; rounded up to whole pages
  std::uint64_t slots = 0;       // 0: as many as there is room for
  std::shared_ptr<storage::IoFaults> faults = {};
};

// Turns an existing file or block device into an empty volume of kind "file". Returns its shape. Errors:
// kNotFound: the operator must create the file; kAlreadyExists: data in its first MiB or where the table
// goes, which is left alone; kCapacity: fewer slots fit; kInvalidArgument; kNotReady: in use; kIo.
Result<FileVolumeShape> provision_file_volume(const std::string& path, const ProvisionOptions& options);

// VolumeOptions: reads the options of a descriptor one by one, then refuses those left over.
//
// Thread safety: confined. The descriptor outlives it.
class VolumeOptions {
 public:
  explicit VolumeOptions(const VolumeDescriptor& descriptor)
      : descriptor_(descriptor), left_(descriptor.options) {}

  // Each returns the value, or `otherwise` where the option is missing. finish() reports a malformed value.
  std::string text(const std::string& name, std::string otherwise = {});
  std::uint64_t number(const std::string& name, std::uint64_t otherwise, std::uint64_t least,
                       std::uint64_t most);
  bool flag(const std::string& name, bool otherwise);
  // Errors: kInvalidArgument: a malformed value, or an unknown option, with the known ones: those
  // asked for so far. The message never contains a value.
  Result<void> finish() const;

 private:
  const VolumeDescriptor& descriptor_;
  std::map<std::string, std::string> left_;
  std::set<std::string> known_;  // every name that was asked for
  std::string problem_;
};

}  // namespace ashlar::tiers
