// result_per_key(): the loop of a volume's contains() and remove(), key by key.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"

namespace ashlar::tiers {

// Returns ask(key) for each key, in order; the error of check(key) for a wrong key; and the error of the
// limits from the first key that comes too late.
template <class T, class Check, class Ask>
std::vector<Result<T>> result_per_key(std::span<const std::string_view> keys, const CallLimits& limits,
                                      Check&& check, Ask&& ask) {
  std::vector<Result<T>> results;
  results.reserve(keys.size());
  for (const std::string_view key : keys) {
    Result<void> good = check(key);
    if (good) good = limits.check();
    if (good) {
      results.push_back(ask(key));
    } else {
      results.emplace_back(good.error());
    }
  }
  return results;
}

}  // namespace ashlar::tiers
