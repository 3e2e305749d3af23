// TreeCache: the last prefix trees by group. Making one takes the index's lock, part by part, so that many
// questions share one tree.
//
// Thread safety: thread-safe; questions wait for a tree that is being made.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/service/router.h"
#include "service/gateway/prefix_tree.h"

namespace ashlar::service {

class TreeCache {
 public:
  struct Made {
    PrefixTree tree;
    Clock::TimePoint time;      // when it was made
    Clock::Duration walk_time;  // how long the index was walked
  };
  // A tree of now, or of a moment ago: it is made again after 0.5 s, or 10 times as long as the walk took.
  std::shared_ptr<const Made> get(const std::string& group, const Router& router, Clock& clock);

 private:
  Mutex mu_;
  std::map<std::string, std::shared_ptr<const Made>> made_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::service
