// ScriptedVolume: a volume that goes as a test says: calls fail, bytes change on the way, threads wait at a
// gate.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/tiers/volume.h"
#include "support/gates.h"

namespace ashlar::tiers {

enum class VolumeCall : std::uint8_t { kPut, kGet, kContains, kRemove };

// What a test says, and sees. Changed only while nobody calls the volume, but for what is atomic.
struct VolumeScript {
  // The error of a call, by key; nothing: it goes through.
  std::function<std::optional<ErrorCode>(VolumeCall, std::string_view key)> verdict = {};
  std::atomic<bool> flips{false};       // a bit of every object that is read
  std::atomic<bool> claims_all{false};  // contains() says yes to every key
  std::shared_ptr<Gate> put_gate = {};  // before anything is written
  // Called before anything else; it may block, and then no limit interrupts it.
  std::function<void(VolumeCall)> on_call = {};
  std::atomic<std::uint64_t> asked{0};    // keys in calls of contains()
  std::atomic<std::uint64_t> removed{0};  // keys in calls of remove()

  void arrive(VolumeCall call) const {
    if (on_call) on_call(call);
  }
  // Every call of this kind fails.
  void fail(VolumeCall call, ErrorCode code) {
    verdict = [call, code](VolumeCall one, std::string_view) {
      return one == call ? std::optional(code) : std::nullopt;
    };
  }
  void fail_all(ErrorCode code) {
    verdict = [code](VolumeCall, std::string_view) { return std::optional(code); };
  }
};

class ScriptedVolume final : public Volume {
 public:
  ScriptedVolume(std::unique_ptr<Volume> volume, std::shared_ptr<VolumeScript> script)
      : volume_(std::move(volume)), script_(std::move(script)) {}

  std::string describe() const override { return "scripted " + volume_->describe(); }
  std::vector<Result<void>> put(std::span<const ObjectWrite> objects, const CallLimits& limits) override {
    script_->arrive(VolumeCall::kPut);
    if (script_->put_gate != nullptr) script_->put_gate->pass();
    return each<Result<void>>(VolumeCall::kPut, objects, [&](const ObjectWrite& object) {
      return volume_->put(std::span(&object, 1), limits)[0];
    });
  }
  std::vector<Result<void>> get(std::span<const ObjectRead> objects, const CallLimits& limits) override {
    script_->arrive(VolumeCall::kGet);
    return each<Result<void>>(VolumeCall::kGet, objects, [&](const ObjectRead& object) {
      Result<void> got = volume_->get(std::span(&object, 1), limits)[0];
      if (got && script_->flips) object.parts.back().back() ^= std::byte{4};
      return got;
    });
  }
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                     const CallLimits& limits) override {
    script_->arrive(VolumeCall::kContains);
    script_->asked += keys.size();
    return each<Result<bool>>(VolumeCall::kContains, keys, [&](const std::string_view& key) {
      return script_->claims_all ? Result<bool>(true) : volume_->contains(std::span(&key, 1), limits)[0];
    });
  }
  std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                   const CallLimits& limits) override {
    script_->arrive(VolumeCall::kRemove);
    script_->removed += keys.size();
    return each<Result<void>>(VolumeCall::kRemove, keys, [&](const std::string_view& key) {
      return volume_->remove(std::span(&key, 1), limits)[0];
    });
  }

 private:
  static std::string_view key_of(std::string_view key) { return key; }
  static std::string_view key_of(const ObjectWrite& object) { return object.key; }
  static std::string_view key_of(const ObjectRead& object) { return object.key; }

  template <class R, class T, class F>
  std::vector<R> each(VolumeCall call, std::span<const T> objects, F&& fn) {
    std::vector<R> results;
    for (const T& object : objects) {
      const auto error = script_->verdict ? script_->verdict(call, key_of(object)) : std::nullopt;
      results.push_back(error ? R(make_error(*error, "as the test wants")) : R(fn(object)));
    }
    return results;
  }

  const std::unique_ptr<Volume> volume_;
  const std::shared_ptr<VolumeScript> script_;
};

}  // namespace ashlar::tiers
