// The answers of a running service, shortened to what an operator looks for first.
#include <charconv>
#include <string>

#include "events/json_reader.h"
#include "inspect/inspection.h"

namespace ashlar::inspect {
namespace {

using events::JsonReader;

// A value that is a number, a text or a truth; others are skipped.
bool read_field(JsonReader& in, const std::string& key, std::vector<InspectedField>& out) {
  switch (in.peek()) {
    case JsonReader::Type::kNumber: {
      std::uint64_t number = 0;
      if (!in.read_bits(number, "a number of the fleet")) return false;
      out.push_back({key, number});
      return true;
    }
    case JsonReader::Type::kText: {
      std::string text;
      if (!in.read_text(text, "a text of the fleet")) return false;
      out.push_back({key, std::move(text)});
      return true;
    }
    case JsonReader::Type::kBool: {
      bool flag = false;
      if (!in.read_bool(flag, "a truth of the fleet")) return false;
      out.push_back({key, flag});
      return true;
    }
    default:
      return in.skip();
  }
}

// Blocks of a rank by tier: what it holds there, and what came by an offload.
bool read_tiers(JsonReader& in, std::vector<InspectedField>& out) {
  std::string tier;
  bool more = false;
  if (!in.begin_object("tiers")) return false;
  while (in.next_key(tier, more) && more) {
    std::string key;
    bool more_keys = false;
    if (!in.begin_object("a tier")) return false;
    while (in.next_key(key, more_keys) && more_keys) {
      const bool is_shown = key == "held" || key == "offloaded";
      if (is_shown ? !read_field(in, tier + "_" + key, out) : !in.skip()) return false;
    }
    if (in.fault() != nullptr) return false;
  }
  return in.fault() == nullptr;
}

// Adds one item for each rank, after the fields of its worker.
bool read_ranks(JsonReader& in, const std::vector<InspectedField>& worker, InspectedList& list) {
  bool more = false;
  if (!in.begin_array("ranks")) return false;
  while (in.next_item(more) && more) {
    std::vector<InspectedField> item = worker;
    std::string key;
    bool more_keys = false;
    if (!in.begin_object("a rank")) return false;
    while (in.next_key(key, more_keys) && more_keys)
      if (key == "tiers" ? !read_tiers(in, item) : !read_field(in, key, item)) return false;
    if (in.fault() != nullptr) return false;
    list.add(std::move(item));
  }
  return in.fault() == nullptr;
}

bool read_workers(JsonReader& in, InspectedList& list, std::uint64_t& down) {
  bool more = false;
  if (!in.begin_array("workers")) return false;
  while (in.next_item(more) && more) {
    std::vector<InspectedField> worker;
    std::string key;
    bool more_keys = false;
    if (!in.begin_object("a worker")) return false;
    while (in.next_key(key, more_keys) && more_keys) {
      if (key == "ranks" ? !read_ranks(in, worker, list) : !read_field(in, key, worker)) return false;
      if (key == "up" && !worker.empty() && std::holds_alternative<bool>(worker.back().value))
        down += std::get<bool>(worker.back().value) ? 0 : 1;
    }
    if (in.fault() != nullptr) return false;
  }
  return in.fault() == nullptr;
}

bool read_fleet(JsonReader& in, Inspection& seen, InspectedList& workers, std::uint64_t& down) {
  std::string key;
  bool more = false;
  bool has_workers = false;
  if (!in.begin_object("the fleet")) return false;
  while (in.next_key(key, more) && more) {
    has_workers |= key == "workers";
    if (key == "workers" ? !read_workers(in, workers, down) : !read_field(in, key, seen.fields)) return false;
  }
  if (in.fault() != nullptr) return false;
  return has_workers || in.fail("no workers in it");
}

// Sums of the counters that tell how routing goes.
void read_metrics(std::string_view text, Inspection& seen) {
  std::uint64_t lines = 0;
  InspectedList list{.name = "metrics"};
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    ++lines;
    const std::size_t space = line.rfind(' ');
    if (space == std::string_view::npos || line.find("_bucket{") != std::string_view::npos) continue;
    if (!line.starts_with("ashlar_")) continue;
    const std::string_view value = line.substr(space + 1);
    if (value == "0") continue;
    list.add({{"name", std::string(line.substr(0, space))}, {"value", std::string(value)}});
  }
  seen.add("metric_lines", lines);
  seen.lists.push_back(std::move(list));
}

}  // namespace

Result<Inspection> inspect_service(const std::string& url, std::string_view fleet, std::string_view metrics) {
  Inspection seen;
  seen.kind = "running service";
  seen.has_checksums = false;
  seen.path = url;
  JsonReader in(fleet);
  InspectedList workers{.name = "workers"};
  std::uint64_t down = 0;
  if (!read_fleet(in, seen, workers, down))
    return make_error(
        ErrorCode::kCorruption,
        "%s does not answer /fleet as ashlar serve does (%s at byte %zu); is it another server?", url.c_str(),
        in.fault() == nullptr ? "unknown" : in.fault(), in.fault_offset());
  seen.add("ranks", std::uint64_t{workers.items.size() + workers.left_out});
  seen.lists.push_back(std::move(workers));
  if (down != 0) seen.notes.push_back(std::to_string(down) + " workers are not up");
  read_metrics(metrics, seen);
  return seen;
}

}  // namespace ashlar::inspect
