// InspectedFile: a file or block device, open for reading only. Pipes, sockets and terminals are refused.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/layout/layout_config.h"
#include "ashlar/layout/shard.h"
#include "base/owned_fd.h"
#include "inspect/inspection.h"

namespace ashlar::inspect {

class InspectedFile {
 public:
  // Errors: kNotFound; kUnsupported: neither a file nor a block device; kIo.
  static Result<InspectedFile> open(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }
  // As many bytes as there are, at most `into.size()`. Errors: kIo.
  Result<std::size_t> read_some(std::uint64_t at, std::span<std::byte> into) const;
  // All of them. Errors: kCorruption: the file ends before; kIo.
  Result<void> read(std::uint64_t at, std::span<std::byte> into) const;
  // The whole file. Errors: kInvalidArgument: longer than `most`; kIo.
  Result<std::vector<std::byte>> read_all(std::uint64_t most) const;

 private:
  InspectedFile(std::string path, OwnedFd fd, std::uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  std::string path_;
  OwnedFd fd_;
  std::uint64_t size_;
};

// One per format. `seen` has the path.
Result<void> inspect_g3(const InspectedFile& file, const InspectOptions& options, Inspection& seen);
Result<void> inspect_file_volume(const InspectedFile& file, const InspectOptions& options, Inspection& seen);
Result<void> inspect_object(const InspectedFile& file, const InspectOptions& options, Inspection& seen);
Result<void> inspect_folder(const std::string& path, const InspectOptions& options, Inspection& seen);
Result<void> inspect_events(const InspectedFile& file, Inspection& seen);
Result<void> inspect_recording(const InspectedFile& file, Inspection& seen);
// Whether its first bytes have the form of a message.
bool looks_like_recording(std::span<const std::byte> first, std::uint64_t size);
// A file, or a folder of them.
Result<void> inspect_journal(const std::string& path, const InspectOptions& options, Inspection& seen);
Result<void> inspect_block_set(const InspectedFile& file, Inspection& seen);
Result<void> inspect_layout(const InspectedFile& file, Inspection& seen);

// A plane, as every format tells it.
std::vector<InspectedField> plane_fields(const layout::LayoutConfig& config, const layout::Shard& shard);
// "0123456789abcdef".
std::string hex_of(std::uint64_t number);

}  // namespace ashlar::inspect
