#include "index_workload.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"
#include "tokens/xxh3_kernel.h"

namespace ashlar::bench {
namespace {

using events::BlockName;
using tokens::LocalHash;

constexpr char kMagic[4] = {'A', 'S', 'H', 'I'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kQueries = 2048;
constexpr std::size_t kNameBytes = 24;

struct WorkloadHeader {
  char magic[4];
  std::uint32_t version;
  std::uint32_t workers;
  std::uint32_t depth;
  std::uint32_t resident;
  std::uint32_t added;
  std::uint32_t event_lists;
  std::uint32_t query_lists;
  std::uint64_t pairs;
  std::uint64_t contents;
};
struct ListHeader {
  char name[kNameBytes];
  std::uint64_t count;
};
static_assert(sizeof(WorkloadHeader) == 48 && sizeof(ListHeader) == 32 && sizeof(IndexEvent) == 16 &&
              sizeof(IndexQuery) == 16 && sizeof(LocalHash) == 8 && sizeof(BlockName) == 8);
static_assert(std::endian::native == std::endian::little,
              "the file is written and read as it lies in memory");

std::string list_name(std::string_view list, std::uint32_t event_size) {
  return std::string(list) + "." + std::to_string(event_size);
}

// Makes event lists. Knows how much of each sequence is stored, and so which shared blocks a worker still
// needs.
class Script {
 public:
  Script(const IndexLoad& load, std::span<const std::uint32_t> prompt_of, std::uint32_t event_size)
      : load_(load), event_size_(event_size), length_(load.sequences + load.added, 0) {
    for (std::uint32_t s = 0; s < length_.size(); ++s) {
      group_of_.push_back(s % load.workers * load.prompts + prompt_of[s]);
      if (load.prefix > 0) groups_[group_of_.back()].push_back(s);
    }
  }

  void store(std::uint32_t sequence) {
    while (length_[sequence] < load_.depth) {
      const std::uint32_t begin = length_[sequence];
      length_[sequence] = std::min(begin + event_size_, load_.depth);
      events_.push_back({IndexEvent::kStore, sequence, begin, length_[sequence]});
    }
  }
  // Removes the last event's worth of a sequence, as far as no other sequence of its worker needs it.
  // Returns whether some of the sequence is left.
  bool remove_end(std::uint32_t sequence) {
    const std::uint32_t end = length_[sequence];
    const std::uint32_t begin = end - std::min(event_size_, end);
    length_[sequence] = begin;
    std::uint32_t needed = 0;
    if (load_.prefix > 0) {
      for (const std::uint32_t other : groups_[group_of_[sequence]])
        needed = std::max(needed, length_[other]);
    }
    const std::uint32_t first = std::max(begin, std::min(needed, load_.prefix));
    if (first < end) events_.push_back({IndexEvent::kRemove, sequence, first, end});
    return begin > 0;
  }
  void remove(std::uint32_t sequence) {
    while (remove_end(sequence)) {
    }
  }
  std::vector<IndexEvent> take() { return std::exchange(events_, {}); }

 private:
  const IndexLoad& load_;
  std::uint32_t event_size_;
  std::vector<std::uint32_t> length_;    // stored blocks of each sequence
  std::vector<std::uint32_t> group_of_;  // sequences of one group share their prefix and their worker
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> groups_;
  std::vector<IndexEvent> events_;
};

void remove_in_random_order(Script& script, std::uint32_t sequences) {
  std::vector<std::uint32_t> left(sequences);
  for (std::uint32_t s = 0; s < sequences; ++s) left[s] = s;
  Random random(17);
  while (!left.empty()) {
    const std::size_t drawn = random.below(left.size());
    if (script.remove_end(left[drawn])) continue;
    left[drawn] = left.back();
    left.pop_back();
  }
}

// The movable sequences are a ring: the first half of the resident ones, which are stored at the start, then
// the added ones. Each step stores the next one and removes the one that is there the longest.
void churn(Script& script, const IndexWorkload& workload) {
  std::vector<std::uint32_t> ring;
  for (std::uint32_t s = 0; s < workload.first_staying(); ++s) ring.push_back(s);
  for (std::uint32_t s = workload.resident; s < workload.sequences(); ++s) ring.push_back(s);
  for (std::size_t step = 0; step < ring.size(); ++step) {
    script.store(ring[(workload.first_staying() + step) % ring.size()]);
    script.remove(ring[step]);
  }
}

void generate_queries(IndexWorkload& workload) {
  Random random(29);
  auto& hits = workload.queries[std::string(kHits)];
  auto& partial = workload.queries[std::string(kPartialHits)];
  auto& misses = workload.queries[std::string(kMisses)];
  auto& mixed = workload.queries[std::string(kMixed)];
  for (std::size_t q = 0; q < kQueries; ++q) {
    const auto any = static_cast<std::uint32_t>(random.below(workload.resident));
    hits.push_back({any, workload.depth, random.next()});
    partial.push_back({any, workload.depth / 2, random.next()});
    misses.push_back({any, 0, random.next()});
    const std::uint32_t moving = workload.first_staying() + workload.added;
    const auto moved = static_cast<std::uint32_t>(random.below(std::max(moving, 1u)));
    const auto staying = static_cast<std::uint32_t>(
        workload.first_staying() + random.below(workload.resident - workload.first_staying()));
    if (q % 4 == 3) {
      const bool old = moved < workload.first_staying();
      mixed.push_back(
          {old ? moved : moved - workload.first_staying() + workload.resident, workload.depth, 0});
    } else {
      mixed.push_back({staying, q % 4 == 2 ? workload.depth / 2 : workload.depth, random.next()});
    }
  }
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

template <class T>
bool put(std::FILE* file, std::span<const T> values) {
  return std::fwrite(values.data(), sizeof(T), values.size(), file) == values.size();
}

template <class T>
bool get(std::FILE* file, std::span<T> values) {
  return std::fread(values.data(), sizeof(T), values.size(), file) == values.size();
}

template <class Lists>
bool put_lists(std::FILE* file, const Lists& lists) {
  for (const auto& [name, values] : lists) {
    ListHeader header{};
    ASHLAR_CHECK(name.size() < kNameBytes, "the name of a list is too long");
    std::memcpy(header.name, name.data(), name.size());
    header.count = values.size();
    if (!put(file, std::span<const ListHeader>(&header, 1)) || !put(file, std::span(values))) return false;
  }
  return true;
}

// `fits` tells whether a value refers to something that exists.
template <class Lists, class Fits>
bool get_lists(std::FILE* file, std::uint32_t count, Lists& lists, Fits&& fits) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 32;
  for (std::uint32_t i = 0; i < count; ++i) {
    ListHeader header;
    if (!get(file, std::span(&header, 1)) || header.name[kNameBytes - 1] != 0 || header.count > kMost)
      return false;
    auto& values = lists[header.name];
    values.resize(header.count);
    if (!get(file, std::span(values)) || !std::ranges::all_of(values, fits)) return false;
  }
  return true;
}

}  // namespace

Result<IndexLoad> IndexLoad::named(std::string_view name) {
  IndexLoad load;
  load.name = name;
  if (name == "shared25") return load;
  if (name == "disjoint") {
    load.prefix = 0;
    load.prompts = 1;
    return load;
  }
  if (name == "broad") {
    load.prefix = load.depth;
    load.prompts = 8;
    return load;
  }
  return make_error(ErrorCode::kInvalidArgument, "no load %s: shared25, disjoint or broad",
                    load.name.c_str());
}

IndexWorkload IndexWorkload::generate(const IndexLoad& load, std::span<const std::uint32_t> event_sizes) {
  ASHLAR_CHECK(load.sequences > 1 && load.depth > 1 && load.workers > 0 && load.prompts > 0 &&
                   load.prefix <= load.depth,
               "a load needs two sequences of two blocks, a worker, a prompt, and a prefix within the depth");
  IndexWorkload out;
  out.workers = load.workers;
  out.depth = load.depth;
  out.resident = load.sequences;
  out.added = load.added;
  const std::uint32_t count = load.sequences + load.added;
  std::vector<std::uint32_t> prompt_of;
  out.locals.reserve(std::size_t{count} * load.depth);
  out.names.reserve(std::size_t{count} * load.depth);
  std::set<std::pair<std::uint64_t, std::uint32_t>> prefixes_held;  // (worker, prompt)
  std::set<std::uint32_t> prompts_held;
  for (std::uint32_t s = 0; s < count; ++s) {
    out.worker_of.push_back(s % load.workers);
    prompt_of.push_back(static_cast<std::uint32_t>(mix(s ^ 0xabcd) % load.prompts));
    const std::uint64_t prompt = mix(prompt_of[s] + 1);
    const std::uint64_t own = mix(s + std::uint64_t{1'000'003});
    for (std::uint32_t i = 0; i < load.depth; ++i) {
      const std::uint64_t local = mix((i < load.prefix ? prompt : own) ^ i);
      out.locals.emplace_back(local);
      out.names.emplace_back(i == 0 ? local : tokens::xxh3_chain_step(out.names.back().value(), local));
    }
    if (s < load.sequences) {
      out.pairs += load.depth - load.prefix;
      out.contents += load.depth - load.prefix;
      if (prefixes_held.emplace(out.worker_of[s], prompt_of[s]).second) out.pairs += load.prefix;
      if (prompts_held.insert(prompt_of[s]).second) out.contents += load.prefix;
    }
  }
  for (const std::uint32_t size : event_sizes) {
    Script filled(load, prompt_of, size);
    for (std::uint32_t s = 0; s < load.sequences; ++s) filled.store(s);
    out.events[list_name(kStores, size)] = filled.take();
    Script tail = filled;
    for (std::uint32_t s = 0; s < load.sequences; ++s) tail.remove(s);
    out.events[list_name(kTailRemovals, size)] = tail.take();
    Script random = filled;
    remove_in_random_order(random, load.sequences);
    out.events[list_name(kRandomRemovals, size)] = random.take();
    Script churning = filled;
    churn(churning, out);
    out.events[list_name(kChurn, size)] = churning.take();
  }
  generate_queries(out);
  return out;
}

Result<void> IndexWorkload::write(const std::string& path) const {
  const File file(std::fopen(path.c_str(), "wb"));
  WorkloadHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.workers = workers;
  header.depth = depth;
  header.resident = resident;
  header.added = added;
  header.event_lists = static_cast<std::uint32_t>(events.size());
  header.query_lists = static_cast<std::uint32_t>(queries.size());
  header.pairs = pairs;
  header.contents = contents;
  if (!file || !put(file.get(), std::span<const WorkloadHeader>(&header, 1)) ||
      !put(file.get(), std::span(worker_of)) || !put(file.get(), std::span(locals)) ||
      !put(file.get(), std::span(names)) || !put_lists(file.get(), events) ||
      !put_lists(file.get(), queries) || std::fflush(file.get()) != 0) {
    return make_error(ErrorCode::kIo, "cannot write %s", path.c_str());
  }
  return {};
}

Result<IndexWorkload> IndexWorkload::read(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) return make_error(ErrorCode::kIo, "cannot read %s", path.c_str());
  WorkloadHeader header;
  if (!get(file.get(), std::span(&header, 1)) || std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.version != kVersion) {
    return make_error(ErrorCode::kInvalidArgument, "%s is no index workload of version %u", path.c_str(),
                      kVersion);
  }
  IndexWorkload out;
  out.workers = header.workers;
  out.depth = header.depth;
  out.resident = header.resident;
  out.added = header.added;
  out.pairs = header.pairs;
  out.contents = header.contents;
  const std::uint64_t count = std::uint64_t{header.resident} + header.added;
  constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 32;
  if (header.depth == 0 || count > kMostBlocks / header.depth) {
    return make_error(ErrorCode::kInvalidArgument, "%s has an impossible size", path.c_str());
  }
  out.worker_of.resize(count);
  out.locals.resize(count * header.depth);
  out.names.resize(count * header.depth);
  const auto event_fits = [&](const IndexEvent& event) {
    return event.kind <= IndexEvent::kRemove && event.sequence < count && event.begin < event.end &&
           event.end <= header.depth;
  };
  const auto query_fits = [&](const IndexQuery& query) {
    return query.sequence < count && query.keep <= header.depth;
  };
  if (!get(file.get(), std::span(out.worker_of)) || !get(file.get(), std::span(out.locals)) ||
      !get(file.get(), std::span(out.names)) ||
      !get_lists(file.get(), header.event_lists, out.events, event_fits) ||
      !get_lists(file.get(), header.query_lists, out.queries, query_fits) || std::fgetc(file.get()) != EOF) {
    return make_error(ErrorCode::kInvalidArgument, "%s does not hold what its header says", path.c_str());
  }
  return out;
}

const std::vector<IndexEvent>& IndexWorkload::events_of(std::string_view list,
                                                        std::uint32_t event_size) const {
  const auto found = events.find(list_name(list, event_size));
  ASHLAR_CHECK(found != events.end(), "the workload has no list %s", list_name(list, event_size).c_str());
  return found->second;
}

const std::vector<IndexQuery>& IndexWorkload::queries_of(std::string_view list) const {
  const auto found = queries.find(list);
  ASHLAR_CHECK(found != queries.end(), "the workload has no queries %s", std::string(list).c_str());
  return found->second;
}

void IndexWorkload::expand(const IndexQuery& query, std::span<LocalHash> out) const {
  const std::span<const LocalHash> stored = locals_of(query.sequence);
  std::copy_n(stored.begin(), query.keep, out.begin());
  for (std::uint32_t i = query.keep; i < depth; ++i) out[i] = LocalHash(mix(query.salt + i));
}

std::size_t blocks_in(std::span<const IndexEvent> events) {
  std::size_t blocks = 0;
  for (const IndexEvent& event : events) blocks += event.blocks();
  return blocks;
}

}  // namespace ashlar::bench
