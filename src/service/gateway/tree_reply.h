// tree_reply(): the answer to GET /tree, of a running service and of a journal alike.
//
// Thread safety: functions.
// Complexity:    as PrefixTree::view().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ashlar/service/passage.h"
#include "service/gateway/prefix_tree.h"

namespace ashlar::service {

// What the reply says beside the elements.
struct TreeFacts {
  std::string model;
  std::uint64_t age_ms = 0;  // since the tree was made
  std::function<std::string(events::WorkerId)> name_of = {};
};

// A refusal, {"error": message}.
Reply tree_error(unsigned status, std::string_view message);
// What a query asks for: root, depth, limit and offset. Errors: kInvalidArgument, with what is expected.
Result<PrefixTree::Wanted> parse_tree_query(std::string_view query);
// 404: there is no such root.
Reply tree_reply(const PrefixTree& tree, const PrefixTree::Wanted& wanted, const TreeFacts& facts);

}  // namespace ashlar::service
