#include "index_replay.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <list>
#include <string_view>
#include <unordered_map>

#include "ashlar/base/random.h"
#include "tokens/xxh3_kernel.h"

namespace ashlar::bench {
namespace {

using index::BlockName;
using index::LocalHash;

// The cache of one worker, the block used last in front.
class LruCache {
 public:
  explicit LruCache(std::size_t capacity) : capacity_(capacity) {}

  bool holds(BlockName name) const { return places_.contains(name); }
  void touch(BlockName name) { order_.splice(order_.begin(), order_, places_.at(name)); }
  void insert(BlockName name) { places_[name] = order_.insert(order_.begin(), name); }
  bool has_room_for(std::size_t blocks) const { return order_.size() + blocks <= capacity_; }
  BlockName evict() {
    const BlockName last = order_.back();
    places_.erase(last);
    order_.pop_back();
    return last;
  }

 private:
  std::size_t capacity_;
  std::list<BlockName> order_;
  std::unordered_map<BlockName, std::list<BlockName>::iterator> places_;
};

struct CachedWorker {
  explicit CachedWorker(std::size_t capacity) : cache(capacity) {}

  // How many of these names it holds, from the first on.
  std::size_t depth_of(std::span<const BlockName> names) const {
    const auto end = std::ranges::find_if(names, [&](BlockName name) { return !cache.holds(name); });
    return static_cast<std::size_t>(end - names.begin());
  }

  LruCache cache;
  std::size_t blocks_given = 0;
};

}  // namespace

Result<std::vector<IndexRequest>> read_trace(const std::string& path) {
  std::ifstream file(path);
  if (!file) return make_error(ErrorCode::kIo, "cannot read %s", path.c_str());
  std::vector<IndexRequest> trace;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    constexpr std::string_view kField = "\"hash_ids\"";
    const std::size_t field = line.find(kField);
    const std::size_t open = field == std::string::npos ? field : line.find('[', field + kField.size());
    const std::size_t close = open == std::string::npos ? open : line.find(']', open);
    if (close == std::string::npos) {
      return make_error(ErrorCode::kInvalidArgument, "%s, line %zu has no hash_ids", path.c_str(), number);
    }
    IndexRequest request{.at = static_cast<double>(number - 1), .ids = {}};
    constexpr std::string_view kTime = "\"timestamp\"";
    if (const std::size_t time = line.find(kTime); time != std::string::npos) {
      const std::size_t digits = line.find_first_not_of(" :", time + kTime.size());
      if (digits != std::string::npos)
        (void)std::from_chars(line.data() + digits, line.data() + line.size(), request.at);
    }
    const char* at = line.data() + open + 1;
    const char* const end = line.data() + close;
    while (at < end) {
      std::uint64_t id = 0;
      const auto [next, error] = std::from_chars(at, end, id);
      if (error != std::errc() || next == at) {
        ++at;  // a comma or a space
        continue;
      }
      request.ids.push_back(id);
      at = next;
    }
    if (!request.ids.empty()) trace.push_back(std::move(request));
  }
  std::ranges::stable_sort(trace, {}, &IndexRequest::at);
  if (trace.empty()) return make_error(ErrorCode::kInvalidArgument, "%s has no requests", path.c_str());
  return trace;
}

std::vector<IndexRequest> generate_trace() {
  constexpr std::size_t kRequests = 20'000, kConversations = 400, kPrompts = 8;
  Random random(41);
  std::uint64_t next_id = 0;
  const auto blocks = [&](std::uint64_t least, std::uint64_t most) {
    std::vector<std::uint64_t> ids(random.between(least, most));
    for (std::uint64_t& id : ids) id = next_id++;
    return ids;
  };
  std::vector<std::vector<std::uint64_t>> prompts(kPrompts);
  for (auto& prompt : prompts) prompt = blocks(4, 32);
  std::vector<std::vector<std::uint64_t>> conversations(kConversations);
  std::vector<IndexRequest> trace;
  double now = 0;
  while (trace.size() < kRequests) {
    auto& conversation = conversations[random.below(kConversations)];
    if (conversation.empty() || random.chance(0.1)) conversation = prompts[random.below(kPrompts)];
    const std::vector<std::uint64_t> turn = blocks(1, 24);
    conversation.insert(conversation.end(), turn.begin(), turn.end());
    now += static_cast<double>(random.below(101));  // 20 requests a second
    trace.push_back({now, conversation});
  }
  return trace;
}

Replay Replay::plan(std::span<const IndexRequest> trace, const ReplayOptions& options) {
  Replay out;
  std::vector<CachedWorker> workers(options.workers, CachedWorker(options.cache_blocks));
  for (const IndexRequest& request : trace) {
    const std::size_t length = std::min(request.ids.size(), options.cache_blocks);
    const double at = request.at - trace.front().at;
    const std::size_t first = out.locals.size();
    std::vector<BlockName> names;
    for (std::size_t i = 0; i < length; ++i) {
      const LocalHash local(mix(request.ids[i]));
      names.emplace_back(i == 0 ? local.value()
                                : tokens::xxh3_chain_step(names.back().value(), local.value()));
      out.locals.push_back(local);
    }
    std::uint32_t best = 0, idlest = 0;
    std::size_t deepest = 0;
    for (std::uint32_t w = 0; w < options.workers; ++w) {
      const std::size_t depth = workers[w].depth_of(names);
      if (depth > deepest) best = w;
      deepest = std::max(deepest, depth);
      if (workers[w].blocks_given < workers[idlest].blocks_given) idlest = w;
    }
    out.steps.push_back(
        {ReplayStep::kFind, 0, first, length, std::nullopt, static_cast<std::uint32_t>(deepest), at});
    const std::uint32_t chosen = 2 * deepest >= length ? best : idlest;
    const std::size_t held = workers[chosen].depth_of(names);
    out.hits += held;

    CachedWorker& worker = workers[chosen];
    worker.blocks_given += length - held;
    for (std::size_t i = held; i-- > 0;) worker.cache.touch(names[i]);
    if (held == length) continue;
    const std::size_t first_removed = out.removed.size();
    while (!worker.cache.has_room_for(length - held)) out.removed.push_back(worker.cache.evict());
    if (const std::size_t evicted = out.removed.size() - first_removed; evicted > 0) {
      out.steps.push_back({ReplayStep::kRemove, chosen, first_removed, evicted, std::nullopt, 0, at});
    }
    const std::size_t first_stored = out.stored.size();
    for (std::size_t i = held; i < length; ++i) out.stored.push_back({out.locals[first + i], names[i]});
    out.steps.push_back({ReplayStep::kStore, chosen, first_stored, length - held,
                         held == 0 ? std::nullopt : std::optional(names[held - 1]), 0, at});
    // The end of the prompt first, so that it is evicted first; what was touched above stays behind the whole
    // prompt.
    for (std::size_t i = length; i-- > held;) worker.cache.insert(names[i]);
    for (std::size_t i = held; i-- > 0;) worker.cache.touch(names[i]);
  }
  return out;
}

}  // namespace ashlar::bench
