// The tree of prefixes that workers hold, for the live page.
#include <algorithm>
#include <chrono>
#include <map>

#include "service/gateway/api.h"
#include "service/gateway/live_json.h"
#include "service/gateway/tree_reply.h"

namespace ashlar::service {

namespace {

constexpr std::size_t kMostTrees = 4;
// A walk slows events down: it is made again after this many times as long as it took.
constexpr int kTreeRest = 10;
constexpr Clock::Duration kLeastTreeRest = std::chrono::milliseconds(500);

}  // namespace

std::shared_ptr<const TreeCache::Made> TreeCache::get(const std::string& group, const Router& router,
                                                      Clock& clock) {
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock.now();
  const auto found = made_.find(group);
  if (found != made_.end() &&
      now < found->second->time + std::max(kLeastTreeRest, kTreeRest * found->second->walk_time))
    return found->second;
  if (made_.size() >= kMostTrees && found == made_.end())
    made_.erase(std::ranges::min_element(made_, {}, [](const auto& entry) { return entry.second->time; }));
  index::IndexOutline outline = router.outline(group);
  const Clock::Duration took = clock.now() - now;
  auto made = std::make_shared<const Made>(
      Made{.tree = PrefixTree(std::move(outline)), .time = now, .walk_time = took});
  made_[group] = made;
  return made;
}

Reply answer_tree(ServiceParts& parts, std::string_view query) {
  const auto wanted = parse_tree_query(query);
  if (!wanted) return tree_error(400, wanted.error().message());
  std::string group = query_value(query, "model");
  std::map<events::WorkerId, std::string> names;
  for (const MemberStatus& member : parts.fleet->status()) {
    names[member.id] = member.name;
    if (group.empty()) group = member.group;
  }
  if (!parts.fleet->block_size_of(group)) return tree_error(404, "no worker is known for this model");
  const auto made = parts.trees.get(group, *parts.router, Clock::real());
  return tree_reply(made->tree, *wanted,
                    {.model = group,
                     .age_ms = milliseconds_between(made->time, Clock::real().now()),
                     .name_of = [&](events::WorkerId id) { return names[id]; }});
}

}  // namespace ashlar::service
