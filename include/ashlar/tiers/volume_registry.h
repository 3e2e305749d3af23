// VolumeRegistry: which kinds of volumes there are, and how to attach one.
//
//   VolumeRegistry registry = VolumeRegistry::with_builtin();       // directory, file
//   registry.add("s3", backend::s3::attach);                        // a line per backend that was built
//   auto volume = registry.attach({.name = "cold", .kind = "s3", .location = "bucket/prefix", .options =
//   {…}});
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"

namespace ashlar::tiers {

// What an operator says about a volume. Values are given, never looked up: a library reads no environment.
struct VolumeDescriptor {
  std::string name;      // unique among the volumes of a manager
  std::string kind;      // "directory", "file", "s3", "redis", …
  std::string location;  // a path, or bucket and prefix, or host and port: as the kind says
  // Options by name; unknown ones are refused. Secrets are options too and appear in no message.
  std::map<std::string, std::string> options = {};
};

class VolumeRegistry {
 public:
  using Attach = std::function<Result<std::unique_ptr<Volume>>(const VolumeDescriptor&)>;

  // "directory" and "file".
  static VolumeRegistry with_builtin();

  // Replaces what had that kind before.
  void add(std::string kind, Attach attach) { kinds_[std::move(kind)] = std::move(attach); }
  // Errors: kNotFound: no such kind, naming those there are; those of the backend.
  Result<std::unique_ptr<Volume>> attach(const VolumeDescriptor& descriptor) const;
  std::vector<std::string> kinds() const;

 private:
  std::map<std::string, Attach, std::less<>> kinds_;
};

// Reads options one by one, and refuses what nobody asked for.
class VolumeOptions {
 public:
  explicit VolumeOptions(const VolumeDescriptor& descriptor)
      : descriptor_(descriptor), left_(descriptor.options) {}

  // The value, or the default.
  std::string text(const std::string& name, std::string otherwise = {});
  std::uint64_t number(const std::string& name, std::uint64_t otherwise, std::uint64_t least,
                       std::uint64_t most);
  bool flag(const std::string& name, bool otherwise);
  // Errors: kInvalidArgument: a value that is none, or an option that nobody asked for; never with a value in
  // it.
  Result<void> finish() const;

 private:
  const VolumeDescriptor& descriptor_;
  std::map<std::string, std::string> left_;
  std::string problem_;
};

}  // namespace ashlar::tiers
