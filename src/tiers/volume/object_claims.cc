#include "tiers/volume/object_claims.h"

#include <algorithm>
#include <stop_token>

#include "ashlar/base/check.h"

namespace ashlar::tiers {

bool ObjectClaims::Claim::has(const Object& object) const {
  return std::ranges::binary_search(objects_, object);
}

std::shared_ptr<ObjectClaims::Claim> ObjectClaims::take(std::vector<Object> objects, Kind kind,
                                                        const CallLimits& limits, Clock& clock) {
  const std::stop_callback wake(limits.stop, [this] {
    const MutexLock lock(mu_);
    released_.notify_all();
  });
  std::ranges::sort(objects);
  objects.erase(std::ranges::unique(objects).begin(), objects.end());
  const MutexLock lock(mu_);
  const auto free = [&](const Object& object) ASHLAR_REQUIRES(mu_) { return is_free(object, kind); };
  while (!std::ranges::all_of(objects, free)) {
    if (!limits.check(clock)) return nullptr;
    if (limits.deadline) {
      clock.wait_until(released_, mu_, *limits.deadline);
    } else {
      released_.wait(mu_);
    }
  }
  mark(objects, kind);
  return std::make_shared<Claim>(shared_from_this(), std::move(objects), kind);
}

std::shared_ptr<ObjectClaims::Claim> ObjectClaims::take_free(std::vector<Object> objects, Kind kind) {
  std::ranges::sort(objects);
  objects.erase(std::ranges::unique(objects).begin(), objects.end());
  const MutexLock lock(mu_);
  std::erase_if(objects, [&](const Object& object) ASHLAR_REQUIRES(mu_) { return !is_free(object, kind); });
  mark(objects, kind);
  return std::make_shared<Claim>(shared_from_this(), std::move(objects), kind);
}

bool ObjectClaims::is_free(const Object& object, Kind kind) const {
  const auto found = claimed_.find(object);
  if (found == claimed_.end()) return true;
  return kind == Kind::kShared && !found->second.alone;
}

void ObjectClaims::mark(std::span<const Object> objects, Kind kind) {
  for (const Object& object : objects) {
    State& state = claimed_[object];
    if (kind == Kind::kShared) ++state.shared;
    if (kind == Kind::kAlone) state.alone = true;
  }
}

void ObjectClaims::release(std::span<const Object> objects, Kind kind) {
  const MutexLock lock(mu_);
  for (const Object& object : objects) {
    const auto found = claimed_.find(object);
    ASHLAR_CHECK(found != claimed_.end() && found->second.alone == (kind == Kind::kAlone),
                 "a claim of block %s on volume %u is released but was not taken",
                 object.second.to_string().c_str(), unsigned{object.first});
    if (kind == Kind::kAlone || --found->second.shared == 0) claimed_.erase(found);
  }
  released_.notify_all();
}

void ObjectClaims::check_invariants() const {
  const MutexLock lock(mu_);
  for (const auto& [object, state] : claimed_)
    ASHLAR_CHECK(state.alone == (state.shared == 0),
                 "block %s on volume %u has %zu shared claims and is %s alone",
                 object.second.to_string().c_str(), unsigned{object.first}, state.shared,
                 state.alone ? "claimed" : "not claimed");
}

}  // namespace ashlar::tiers
