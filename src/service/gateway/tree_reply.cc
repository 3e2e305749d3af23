#include "service/gateway/tree_reply.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "service/gateway/api.h"
#include "service/gateway/json_text.h"

namespace ashlar::service {

namespace {

constexpr std::size_t kMostElements = 2000;
constexpr std::size_t kMostLevels = 64;
constexpr std::size_t kMostOffset = UINT32_MAX;
constexpr std::size_t kMostHolders = 12;  // that an element names

std::string name_text(std::uint64_t name) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(name));
  return text;
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

Reply tree_error(unsigned status, std::string_view message) {
  JsonText out;
  out.object([&] { out.field("error", message); });
  return json_reply(status, out.take());
}

Result<PrefixTree::Wanted> parse_tree_query(std::string_view query) {
  const auto depth = query_number(query, "depth", 1, kMostLevels);
  const auto limit = query_number(query, "limit", 200, kMostElements);
  const auto offset = query_number(query, "offset", 0, kMostOffset);
  if (!depth || !limit || !offset)
    return Error(ErrorCode::kInvalidArgument, "depth, limit and offset are numbers");
  PrefixTree::Wanted wanted{.depth = *depth, .limit = *limit, .offset = *offset};
  if (const std::string root = query_value(query, "root"); !root.empty()) {
    const auto read = std::from_chars(root.data(), root.data() + root.size(), wanted.root, 16);
    if (read.ec != std::errc() || read.ptr != root.data() + root.size())
      return Error(ErrorCode::kInvalidArgument, "root is a name of an element, in hexadecimal");
  }
  return wanted;
}

Reply tree_reply(const PrefixTree& tree, const PrefixTree::Wanted& wanted, const TreeFacts& facts) {
  const auto seen = tree.view(wanted);
  if (!seen) return tree_error(404, "there is no such prefix now; its blocks may have been removed");
  JsonText out;
  out.object([&] {
    out.field("model", facts.model);
    out.field("blocks", tree.blocks());
    out.field("copies", tree.copies());
    out.field("elements", tree.elements());
    out.field("age_ms", facts.age_ms);
    out.field("shown", seen->size() - 1);
    out.field("workers", [&] {
      out.array([&] {
        for (const events::Worker& worker : tree.workers())
          out.object([&] {
            out.field("id", worker.id.value());
            out.field("dp_rank", worker.rank);
            out.field("name", facts.name_of ? facts.name_of(worker.id) : std::string());
          });
      });
    });
    out.field("root", [&] { write_element(out, *seen, 0); });
  });
  return json_reply(200, out.take());
}

}  // namespace ashlar::service
