#include "service/gateway/snapshot.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
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
    std::size_t path = kStart;
    if (event.parent) {
      const auto parent = names.find(*event.parent);
      if (parent == names.end()) return events::StoreVerdict::kUnknownParent;
      path = parent->second;
    }
    for (const events::StoredBlock& block : event.blocks) {
      nodes_.push_back({.before = path, .local = block.local});
      path = nodes_.size() - 1;
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
      std::unordered_set<std::size_t> is_continued;
      for (const auto& [name, path] : names) is_continued.insert(nodes_[path].before);
      for (const auto& [name, path] : names) {
        if (is_continued.contains(path)) continue;
        std::vector<tokens::LocalHash> locals;
        for (std::size_t at = path; at != kStart; at = nodes_[at].before) {
          ASHLAR_DCHECK(nodes_[at].before + 1 <= at, "block %zu is stored before the one it follows", at);
          locals.push_back(nodes_[at].local);
        }
        fn(worker, std::vector<tokens::LocalHash>(locals.rbegin(), locals.rend()));
      }
    }
  }

 private:
  static constexpr std::size_t kStart = SIZE_MAX;  // of a sequence
  struct Node {
    std::size_t before = kStart;
    tokens::LocalHash local;
  };
  using Names = std::unordered_map<events::BlockName, std::size_t>;
  std::vector<Node> nodes_;  // also of names that are gone
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

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (j < count ? std::to_integer<std::uint32_t>(bytes[i + j]) : 0);
    for (std::size_t j = 0; j < 4; ++j) text += j <= count ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::optional<std::vector<std::byte>> from_base64(std::string_view text) {
  static const std::array<std::uint8_t, 256> values = [] {
    std::array<std::uint8_t, 256> table{};
    table.fill(64);
    for (std::size_t i = 0; i < kDigits.size(); ++i)
      table[static_cast<unsigned char>(kDigits[i])] = static_cast<std::uint8_t>(i);
    return table;
  }();
  if (text.size() % 4 != 0) return std::nullopt;
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  std::uint32_t held = 0;
  for (const char digit : text) {
    const std::uint8_t value = values[static_cast<unsigned char>(digit)];
    if (value > 63) return std::nullopt;
    bits = bits << 6 | value;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<std::byte>(bits >> held & 0xFF));
  }
  return bytes;
}

template <class Number>
Number number_of(std::string_view text, int base = 10) {
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, base);
  return number;
}

SavedEngine read_state(JsonReader& in) {
  feed::EngineCheckpoint state;
  std::string missing = "it does not say at which message it was taken";
  std::string key;
  std::string text;
  bool more = false;
  bool has_message = false;
  std::optional<std::vector<std::byte>> bytes;
  if (!in.begin_object("a state")) return Error(ErrorCode::kCorruption, in.fault());
  while (in.next_key(key, more) && more) {
    if (key == "message") {
      has_message = in.read_unsigned(state.message, UINT64_MAX - 1, "the number of a message");
    } else if (key == "digest" && in.read_text(text, "a digest")) {
      state.digest = number_of<std::uint64_t>(text, 16);
    } else if (key == "state" && in.read_text(text, "a state")) {
      bytes = from_base64(text);
    } else if (key == "missing" && in.read_text(text, "a reason")) {
      missing = text.substr(0, 200);
    } else if (!in.skip()) {
      break;
    }
  }
  if (!has_message || !bytes) return Error(ErrorCode::kNotFound, missing);
  state.state = *std::move(bytes);
  return state;
}

Result<std::map<std::uint64_t, SavedRanks>> read_states(JsonReader& in) {
  std::map<std::uint64_t, SavedRanks> states;
  std::string worker;
  std::string rank;
  bool more = false;
  bool has_ranks = false;
  if (in.begin_object("states")) {
    while (in.next_key(worker, more) && more) {
      if (!in.begin_object("the ranks of a worker")) break;
      SavedRanks& ranks = states[number_of<std::uint64_t>(worker)];
      while (in.next_key(rank, has_ranks) && has_ranks)
        ranks.insert_or_assign(number_of<std::uint32_t>(rank), read_state(in));
    }
  }
  if (in.fault() != nullptr) return Error(ErrorCode::kCorruption, in.fault());
  return states;
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
      std::map<std::uint64_t, SavedRanks> states;
      while (in.next_key(key, has_fields) && has_fields) {
        if (key == "workers") {
          ASHLAR_TRY(names, read_names(in));
        } else if (key == "states") {
          ASHLAR_TRY(states, read_states(in));
        } else if (!in.skip()) {
          break;
        }
      }
      if (in.fault() != nullptr) break;
      if (names.empty()) continue;  // nobody was there
      for (const auto& [number, name] : names) snapshot.saved[name] = std::move(states[number]);
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

std::string states_json(const std::map<std::uint64_t, SavedRanks>& states) {
  JsonText out;
  out.object([&] {
    for (const auto& [worker, ranks] : states)
      out.field(std::to_string(worker), [&] {
        out.object([&] {
          for (const auto& [rank, saved] : ranks)
            out.field(std::to_string(rank), [&] {
              out.object([&] {
                if (!saved) return out.field("missing", std::string_view(saved.error().message()));
                std::array<char, 16> digest{};
                const auto end = std::to_chars(digest.begin(), digest.end(), saved->digest, 16).ptr;
                out.field("message", saved->message);
                out.field("digest", std::string_view(digest.data(), end));
                out.field("state", std::string_view(to_base64(saved->state)));
              });
            });
        });
      });
  });
  return ",\"states\":" + out.take();
}

}  // namespace ashlar::service
