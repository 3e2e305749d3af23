#include "ashlar/tiers/volume_registry.h"

#include <charconv>
#include <utility>

#include "tiers/volume/directory_volume.h"
#include "tiers/volume/file_volume.h"

namespace ashlar::tiers {

VolumeRegistry VolumeRegistry::with_builtin() {
  VolumeRegistry registry;
  registry.add("directory", DirectoryVolume::attach);
  registry.add("file", FileVolume::attach);
  return registry;
}

Result<std::unique_ptr<Volume>> VolumeRegistry::attach(const VolumeDescriptor& descriptor) const {
  const auto found = kinds_.find(descriptor.kind);
  if (found != kinds_.end()) return found->second(descriptor);
  std::string known;
  for (const auto& [kind, attach] : kinds_) known += (known.empty() ? "" : ", ") + kind;
  return make_error(ErrorCode::kNotFound,
                    "volume '%s' is of kind '%s'; this program has %s. A backend's kind, such as s3 of "
                    "ashlar::s3, is linked and added to VolumeShape::kinds",
                    descriptor.name.c_str(), descriptor.kind.c_str(), known.c_str());
}

std::vector<std::string> VolumeRegistry::kinds() const {
  std::vector<std::string> names;
  names.reserve(kinds_.size());
  for (const auto& [kind, attach] : kinds_) names.push_back(kind);
  return names;
}

std::string VolumeOptions::text(const std::string& name, std::string otherwise) {
  known_.insert(name);
  const auto found = left_.find(name);
  if (found == left_.end()) return otherwise;
  std::string value = std::move(found->second);
  left_.erase(found);
  return value;
}

std::uint64_t VolumeOptions::number(const std::string& name, std::uint64_t otherwise, std::uint64_t least,
                                    std::uint64_t most) {
  known_.insert(name);
  if (!left_.contains(name)) return otherwise;
  const std::string value = text(name);
  std::uint64_t out = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (error != std::errc() || end != value.data() + value.size() || out < least || out > most)
    problem_ =
        "option '" + name + "' is a number from " + std::to_string(least) + " to " + std::to_string(most);
  return out;
}

bool VolumeOptions::flag(const std::string& name, bool otherwise) {
  known_.insert(name);
  if (!left_.contains(name)) return otherwise;
  const std::string value = text(name);
  if (value != "true" && value != "false") problem_ = "option '" + name + "' is true or false";
  return value == "true";
}

Result<void> VolumeOptions::finish() const {
  if (!problem_.empty())
    return make_error(ErrorCode::kInvalidArgument, "volume '%s': %s", descriptor_.name.c_str(),
                      problem_.c_str());
  if (left_.empty()) return {};
  std::string known;
  for (const std::string& name : known_) known += (known.empty() ? "" : ", ") + name;
  return make_error(ErrorCode::kInvalidArgument, "volume '%s' of kind '%s' has no option '%s'; it has %s",
                    descriptor_.name.c_str(), descriptor_.kind.c_str(), left_.begin()->first.c_str(),
                    known.empty() ? "none" : known.c_str());
}

}  // namespace ashlar::tiers
