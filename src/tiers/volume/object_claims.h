// ObjectClaims: which objects of a volume are being put, probed or removed.
//
// Puts and probes share an object; a removal has it exclusively. So a removal cannot take away an object that
// was put again concurrently. A claim belongs to its call and ends with it, even if the caller has left.
//
// Thread safety: thread-safe.
// Complexity:    O(log claimed) per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

class ObjectClaims : public std::enable_shared_from_this<ObjectClaims> {
 public:
  using Object = std::pair<std::uint16_t, tokens::SequenceHash>;  // on which volume
  enum class Kind : std::uint8_t { kShared, kAlone };

  class Claim {
   public:
    Claim(std::shared_ptr<ObjectClaims> claims, std::vector<Object> objects, Kind kind)
        : claims_(std::move(claims)), objects_(std::move(objects)), kind_(kind) {}
    ~Claim() { claims_->release(objects_, kind_); }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    // Requires: the claim was made by take_free(), whose objects are sorted.
    bool has(const Object& object) const;

   private:
    const std::shared_ptr<ObjectClaims> claims_;
    const std::vector<Object> objects_;
    const Kind kind_;
  };

  // Claims all of them at once, as soon as they are free. Null when the limits came first.
  std::shared_ptr<Claim> take(std::vector<Object> objects, Kind kind, const CallLimits& limits, Clock& clock);
  // Claims those that are free now.
  std::shared_ptr<Claim> take_free(std::vector<Object> objects, Kind kind);

  // For tests: stops the process unless every claimed object has one kind of claim. Safe at any time.
  void check_invariants() const;

 private:
  struct State {
    std::size_t shared = 0;
    bool alone = false;
  };
  bool is_free(const Object& object, Kind kind) const ASHLAR_REQUIRES(mu_);
  void mark(std::span<const Object> objects, Kind kind) ASHLAR_REQUIRES(mu_);
  void release(std::span<const Object> objects, Kind kind);

  mutable Mutex mu_;
  CondVar released_;
  std::map<Object, State> claimed_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
