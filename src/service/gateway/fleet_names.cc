// Names in a fleet: models as engines list them, endpoints of ranks, groups.
#include <charconv>

#include "events/json_reader.h"
#include "service/gateway/fleet.h"

namespace ashlar::service {

namespace {

constexpr std::string_view kDefaultRoutingGroup = "default";

}  // namespace

Result<std::vector<ModelEntry>> read_models(std::string_view json) {
  events::JsonReader in(json);
  std::vector<ModelEntry> entries;
  std::string key;
  bool more = false;
  const auto bad = [&] {
    return make_error(ErrorCode::kInvalidArgument, "a model list that cannot be read: %s at byte %zu",
                      in.fault() != nullptr ? in.fault() : "no ids", in.fault_offset());
  };
  if (!in.begin_object("an object")) return bad();
  while (in.next_key(key, more) && more) {
    if (key != "data" || in.peek() != events::JsonReader::Type::kArray) {
      if (!in.skip()) return bad();
      continue;
    }
    if (!in.begin_array("a list")) return bad();
    while (in.next_item(more) && more) {
      ModelEntry entry;
      in.peek();
      const std::size_t begin = in.offset();
      if (!in.begin_object("a model")) return bad();
      while (in.next_key(key, more) && more) {
        if (key == "id" && in.peek() == events::JsonReader::Type::kText) {
          if (!in.read_text(entry.id, "an id")) return bad();
        } else {
          entry.is_adapter |= key == "parent" && in.peek() == events::JsonReader::Type::kText;
          if (!in.skip()) return bad();
        }
      }
      if (in.fault() != nullptr) return bad();
      entry.json = std::string(json.substr(begin, in.offset() - begin));
      if (!entry.id.empty()) entries.push_back(std::move(entry));
    }
    if (in.fault() != nullptr) return bad();
  }
  if (in.fault() != nullptr || entries.empty()) return bad();
  return entries;
}

Result<std::string> endpoint_of_rank(const std::string& endpoint, std::uint32_t rank) {
  if (rank == 0) return endpoint;
  const std::size_t colon = endpoint.rfind(':');
  std::uint32_t port = 0;
  const char* const end = endpoint.data() + endpoint.size();
  if (!endpoint.starts_with("tcp://") || colon == std::string::npos ||
      std::from_chars(endpoint.data() + colon + 1, end, port).ptr != end || port == 0 || port + rank > 65'535)
    return Error(ErrorCode::kInvalidArgument,
                 "events of several ranks need an endpoint tcp://host:port "
                 "whose port leaves room for them, not '" +
                     endpoint + "'");
  return endpoint.substr(0, colon + 1) + std::to_string(port + rank);
}

std::string group_name(std::string_view model, std::string_view routing_group) {
  std::string name(model);
  if (!routing_group.empty() && routing_group != kDefaultRoutingGroup) name.append(":").append(routing_group);
  return name;
}

}  // namespace ashlar::service
