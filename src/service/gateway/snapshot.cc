#include "service/gateway/snapshot.h"

#include <charconv>
#include <unordered_map>
#include <utility>

#include "ashlar/events/index_sink.h"
#include "ashlar/events/router_event_json.h"
#include "events/json_reader.h"
#include "service/gateway/json_text.h"

namespace ashlar::service {

namespace {

// Turns the stores of a dump into whole prefixes: those that no other store continues.
class PrefixCollector final : public events::IndexSink {
 public:
  events::StoreVerdict store(const events::BlocksStored& event) override {
    Names& names = held_[event.worker];
    Path path;
    if (event.parent) {
      const auto parent = names.find(*event.parent);
      if (parent == names.end()) return events::StoreVerdict::kUnknownParent;
      path = parent->second;
    }
    for (const events::StoredBlock& block : event.blocks) {
      path = std::make_shared<const Node>(Node{.before = std::move(path), .local = block.local});
      names[block.name] = path;
    }
    return events::StoreVerdict::kApplied;
  }
  std::size_t remove(const events::Worker& worker, events::StorageTier,
                     std::span<const events::BlockName> names) override {
    std::size_t removed = 0;
    for (const events::BlockName name : names) removed += held_[worker].erase(name);
    return removed;
  }
  void clear(const events::Worker& worker) override { held_.erase(worker); }
  void remove_worker(events::WorkerId worker) override {
    std::erase_if(held_, [&](const auto& entry) { return entry.first.id == worker; });
  }

  // Every block's prefix would repeat those before it: only the ends are told.
  template <class F>
  void for_each_end(F&& fn) const {
    for (const auto& [worker, names] : held_) {
      std::unordered_map<const Node*, bool> is_continued;
      for (const auto& [name, path] : names)
        if (path->before) is_continued[path->before.get()] = true;
      for (const auto& [name, path] : names) {
        if (is_continued.contains(path.get())) continue;
        std::vector<tokens::LocalHash> locals;
        for (const Node* node = path.get(); node != nullptr; node = node->before.get())
          locals.push_back(node->local);
        fn(worker, std::vector<tokens::LocalHash>(locals.rbegin(), locals.rend()));
      }
    }
  }

 private:
  struct Node;
  using Path = std::shared_ptr<const Node>;
  struct Node {
    Path before;
    tokens::LocalHash local;
  };
  using Names = std::unordered_map<events::BlockName, Path>;
  std::map<events::Worker, Names> held_;
};

using events::JsonReader;

// The names of the workers of a group, by number.
Result<std::map<std::uint64_t, std::string>> read_names(JsonReader& in) {
  std::map<std::uint64_t, std::string> names;
  std::string key;
  bool more = false;
  if (in.begin_object("workers")) {
    while (in.next_key(key, more) && more) {
      std::uint64_t number = 0;
      std::from_chars(key.data(), key.data() + key.size(), number);
      if (!in.read_text(names[number], "a name")) break;
    }
  }
  if (in.fault() != nullptr) return Error(ErrorCode::kCorruption, in.fault());
  return names;
}

}  // namespace

Result<Snapshot> read_snapshot(std::string_view json) {
  JsonReader in(json);
  Snapshot snapshot;
  std::string group;
  std::string key;
  bool more = false;
  bool has_fields = false;
  if (in.begin_object("a dump")) {
    while (in.next_key(group, more) && more) {
      std::map<std::uint64_t, std::string> names;
      if (!in.begin_object("a group")) break;
      while (in.next_key(key, has_fields) && has_fields) {
        if (key != "workers") {
          if (!in.skip()) break;
          continue;
        }
        ASHLAR_TRY(names, read_names(in));
      }
      if (in.fault() != nullptr) break;
      if (names.empty()) continue;  // nobody was there
      PrefixCollector held;
      ASHLAR_RETURN_IF_ERROR(events::read_router_dump(json, held, group));
      held.for_each_end([&](const events::Worker& worker, std::vector<tokens::LocalHash> locals) {
        const auto name = names.find(worker.id.value());
        if (name != names.end())
          snapshot.workers[name->second].push_back({.rank = worker.rank, .locals = std::move(locals)});
      });
    }
  }
  if (in.fault() != nullptr || !in.at_end())
    return make_error(ErrorCode::kCorruption, "not the dump of a router: %s at byte %zu",
                      in.fault() != nullptr ? in.fault() : "something follows it", in.fault_offset());
  return snapshot;
}

std::string worker_names_json(const std::map<std::uint64_t, std::string>& names) {
  JsonText out;
  out.object([&] {
    for (const auto& [number, name] : names) out.field(std::to_string(number), name);
  });
  return ",\"workers\":" + out.take();
}

}  // namespace ashlar::service
