// The tree of prefixes that workers hold, for the live page.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>

#include "service/gateway/api.h"
#include "service/gateway/live_json.h"

namespace ashlar::service {

namespace {

constexpr std::size_t kMostElements = 2000;
constexpr std::size_t kMostLevels = 64;
constexpr std::size_t kMostHolders = 12;  // that an element names
constexpr std::size_t kMostTrees = 4;
// A walk slows events down: it is made again after this many times as long as it took.
constexpr int kTreeRest = 10;
constexpr Clock::Duration kLeastTreeRest = std::chrono::milliseconds(500);

std::string name_text(std::uint64_t name) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(name));
  return text;
}

Reply tree_error(unsigned status, std::string_view message) {
  JsonText out;
  out.object([&] { out.field("error", message); });
  return json_reply(status, out.take());
}

void write_element(JsonText& out, const std::vector<PrefixTree::Seen>& all, std::size_t at) {
  const PrefixTree::Seen& element = all[at];
  out.object([&] {
    out.field("name", name_text(element.name));
    out.field("position", element.position);
    out.field("blocks", element.blocks);
    out.field("below", element.below);
    out.field("children", element.children);
    out.field("holders", element.held.size());
    out.field("held", [&] {
      out.array([&] {
        for (std::size_t i = 0; i < std::min(element.held.size(), kMostHolders); ++i)
          out.array([&] {
            out.value(element.held[i].first);
            out.value(element.held[i].second);
          });
      });
    });
    out.field("hidden_below", element.hidden_below);
    out.field("shown", [&] {
      out.array([&] {
        for (const std::size_t child : element.shown) write_element(out, all, child);
      });
    });
  });
}

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
  const auto depth = query_number(query, "depth", 1, kMostLevels);
  const auto limit = query_number(query, "limit", 200, kMostElements);
  if (!depth || !limit) return tree_error(400, "depth and limit are numbers");
  PrefixTree::Wanted wanted{.depth = *depth, .limit = *limit};
  if (const std::string root = query_value(query, "root"); !root.empty()) {
    const auto read = std::from_chars(root.data(), root.data() + root.size(), wanted.root, 16);
    if (read.ec != std::errc() || read.ptr != root.data() + root.size())
      return tree_error(400, "root is a name of an element, in hexadecimal");
  }
  std::string group = query_value(query, "model");
  std::map<events::WorkerId, std::string> names;
  for (const MemberStatus& member : parts.fleet->status()) {
    names[member.id] = member.name;
    if (group.empty()) group = member.group;
  }
  if (!parts.fleet->block_size_of(group)) return tree_error(404, "no worker is known for this model");
  const auto made = parts.trees.get(group, *parts.router, Clock::real());
  const auto seen = made->tree.view(wanted);
  if (!seen) return tree_error(404, "there is no such prefix now; its blocks may have been removed");
  JsonText out;
  out.object([&] {
    out.field("model", group);
    out.field("blocks", made->tree.blocks());
    out.field("copies", made->tree.copies());
    out.field("elements", made->tree.elements());
    out.field("age_ms", milliseconds_between(made->time, Clock::real().now()));
    out.field("shown", seen->size() - 1);
    out.field("workers", [&] {
      out.array([&] {
        for (const events::Worker& worker : made->tree.workers())
          out.object([&] {
            out.field("id", worker.id.value());
            out.field("dp_rank", worker.rank);
            out.field("name", names[worker.id]);
          });
      });
    });
    out.field("root", [&] { write_element(out, *seen, 0); });
  });
  return json_reply(200, out.take());
}

}  // namespace ashlar::service
