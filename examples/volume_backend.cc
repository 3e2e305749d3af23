// A user-defined volume: objects in this process's memory. One class, one function, one line that registers
// it.
//
// docs/writing_a_volume.md explains it. A real backend differs in what lies between a key and its bytes.
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"

using ashlar::ErrorCode;
using ashlar::make_error;
using ashlar::Result;
using ashlar::tiers::CallLimits;
using ashlar::tiers::ObjectRead;
using ashlar::tiers::ObjectWrite;
using ashlar::tiers::Volume;
using ashlar::tiers::VolumeDescriptor;

namespace {

class MemoryVolume final : public Volume {
 public:
  MemoryVolume(std::string name, std::uint64_t capacity) : name_(std::move(name)), capacity_(capacity) {}

  std::string describe() const override { return "memory " + name_; }

  std::vector<Result<void>> put(std::span<const ObjectWrite> objects, const CallLimits& limits) override {
    return each<void>(limits, objects, [&](const ObjectWrite& object) { return put_one(object); });
  }
  std::vector<Result<void>> get(std::span<const ObjectRead> objects, const CallLimits& limits) override {
    return each<void>(limits, objects, [&](const ObjectRead& object) { return get_one(object); });
  }
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                     const CallLimits& limits) override {
    return each<bool>(limits, keys, [&](std::string_view key) -> Result<bool> {
      const ashlar::MutexLock lock(mu_);
      return objects_.contains(key);
    });
  }
  std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                   const CallLimits& limits) override {
    return each<void>(limits, keys, [&](std::string_view key) { return remove_one(key); });
  }

 private:
  static std::string_view key_of(std::string_view key) { return key; }
  static std::string_view key_of(const ObjectWrite& object) { return object.key; }
  static std::string_view key_of(const ObjectRead& object) { return object.key; }

  // One answer per object; a bad key, or a failing object, affects only that object. A cancelled call leaves
  // the rest undone.
  template <class T, class Object, class Do>
  static std::vector<Result<T>> each(const CallLimits& limits, std::span<const Object> objects, Do act) {
    std::vector<Result<T>> results;
    results.reserve(objects.size());
    for (const Object& object : objects) {
      Result<void> good = ashlar::tiers::check_key(key_of(object));
      if (good) good = limits.check();
      if (!good) {
        results.emplace_back(good.error());
      } else {
        results.push_back(act(object));
      }
    }
    return results;
  }

  Result<void> put_one(const ObjectWrite& object) {
    std::vector<std::byte> bytes;  // complete before any reader can see it
    bytes.reserve(object.size());
    for (const std::span<const std::byte>& part : object.parts)
      bytes.insert(bytes.end(), part.begin(), part.end());
    const ashlar::MutexLock lock(mu_);
    const auto found = objects_.find(object.key);
    const std::uint64_t before = found == objects_.end() ? 0 : found->second.size();
    if (used_ - before + bytes.size() > capacity_)
      return make_error(ErrorCode::kCapacity, "%s: put '%s': %zu bytes do not fit, %llu of %llu are used",
                        describe().c_str(), std::string(object.key).c_str(), bytes.size(),
                        static_cast<unsigned long long>(used_), static_cast<unsigned long long>(capacity_));
    used_ += bytes.size() - before;
    objects_.insert_or_assign(std::string(object.key), std::move(bytes));
    return {};
  }

  Result<void> get_one(const ObjectRead& object) {
    const ashlar::MutexLock lock(mu_);
    const auto found = objects_.find(object.key);
    if (found == objects_.end())
      return make_error(ErrorCode::kNotFound, "%s: get '%s': there is no such object", describe().c_str(),
                        std::string(object.key).c_str());
    if (found->second.size() != object.size())
      return make_error(ErrorCode::kCorruption, "%s: get '%s': the object has %zu bytes, %llu are expected",
                        describe().c_str(), std::string(object.key).c_str(), found->second.size(),
                        static_cast<unsigned long long>(object.size()));
    std::span<const std::byte> left(found->second);
    for (const std::span<std::byte>& part : object.parts) {
      std::ranges::copy(left.first(part.size()), part.begin());
      left = left.subspan(part.size());
    }
    return {};
  }

  Result<void> remove_one(std::string_view key) {
    const ashlar::MutexLock lock(mu_);
    const auto found = objects_.find(key);
    if (found == objects_.end()) return {};
    used_ -= found->second.size();
    objects_.erase(found);
    return {};
  }

  const std::string name_;
  const std::uint64_t capacity_;
  ashlar::Mutex mu_;
  std::map<std::string, std::vector<std::byte>, std::less<>> objects_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t used_ ASHLAR_GUARDED_BY(mu_) = 0;
};

// Reads the options, refuses unknown ones, and has no other effect.
Result<std::unique_ptr<Volume>> attach(const VolumeDescriptor& descriptor) {
  ashlar::tiers::VolumeOptions options(descriptor);
  const std::uint64_t capacity = options.number("capacity_bytes", 1 << 20, 1, UINT64_MAX);
  ASHLAR_RETURN_IF_ERROR(options.finish());
  return std::unique_ptr<Volume>(new MemoryVolume(descriptor.location, capacity));
}

std::string text_of(const Result<void>& result) {
  return result ? "good" : result.error().to_string();
}

}  // namespace

int main() {
  ashlar::tiers::VolumeRegistry registry = ashlar::tiers::VolumeRegistry::with_builtin();
  registry.add("memory", attach);

  const Result<std::unique_ptr<Volume>> refused = registry.attach(
      {.name = "cold", .kind = "memory", .location = "demo", .options = {{"colour", "blue"}}});
  std::printf("%s\n", refused.error().to_string().c_str());

  Result<std::unique_ptr<Volume>> attached = registry.attach(
      {.name = "cold", .kind = "memory", .location = "demo", .options = {{"capacity_bytes", "100"}}});
  if (!attached) return 1;
  Volume& volume = **attached;

  const std::vector<std::byte> header(8, std::byte{1});
  const std::vector<std::byte> body(24, std::byte{2});
  const std::vector<std::byte> large(500, std::byte{3});
  const std::array<std::span<const std::byte>, 2> block{header, body};
  const std::array<std::span<const std::byte>, 1> too_large{large};
  const std::array<ObjectWrite, 3> writes{ObjectWrite{.key = "model/block-7", .parts = block},
                                          ObjectWrite{.key = "../secrets", .parts = block},
                                          ObjectWrite{.key = "model/block-8", .parts = too_large}};
  for (const Result<void>& result : volume.put(writes)) std::printf("put: %s\n", text_of(result).c_str());

  std::vector<std::byte> header_read(8);
  std::vector<std::byte> body_read(24);
  const std::array<std::span<std::byte>, 2> places{header_read, body_read};
  const std::array<std::span<std::byte>, 1> too_short{body_read};
  const std::array<ObjectRead, 3> reads{ObjectRead{.key = "model/block-7", .parts = places},
                                        ObjectRead{.key = "model/block-7", .parts = too_short},
                                        ObjectRead{.key = "model/block-9", .parts = places}};
  for (const Result<void>& result : volume.get(reads)) std::printf("get: %s\n", text_of(result).c_str());
  const bool whole = header_read == header && body_read == body;
  std::printf("the block came back %s\n", whole ? "whole" : "changed");
  return whole ? 0 : 1;
}
