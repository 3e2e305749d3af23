// Eviction backends as cases of a typed suite: how each is made, and the rule of its order as a naive model.
//
// A case without a rank() has no model; the suite then only asks that peek() foretells pop() and that nothing
// is lost.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/block/eviction.h"
#include "ashlar/block/reuse_policy.h"
#include "block/eviction/fifo_backend.h"
#include "block/eviction/lfu_backend.h"
#include "block/eviction/lineage_backend.h"
#include "block/eviction/lru_backend.h"
#include "block/eviction/multi_lru_backend.h"
#include "block/eviction/retention_backend.h"
#include "block/eviction/s3_fifo_backend.h"
#include "support/block_fixture.h"

namespace ashlar::block::support {

// What backends live in: a registry that counts, a clock that waits to be moved, facts that tests write.
struct EvictionWorld {
  explicit EvictionWorld(std::uint32_t blocks)
      : facts(std::make_shared<BlockFacts>(blocks)),
        context(blocks, make_counting_registry(), clock, facts) {}

  ManualClock clock;
  std::shared_ptr<BlockFacts> facts;
  EvictionContext context;
};

// What a naive model notes about a block when it is inserted, and anew when it is touched.
struct EvictionRecord {
  std::uint32_t id = 0;
  SequenceHash hash;
  std::uint64_t inserted = 0;
  std::uint64_t touched = 0;  // or inserted, whichever was last
  unsigned uses = 0;
  std::optional<BlockRetention> retention;
  std::uint64_t acquired = 0;
  bool hit = false;
  bool demoted = false;
};

template <class B>
struct EvictionCase {
  using Backend = B;
  static B make(const EvictionContext& context) {
    if constexpr (requires { B::create(context); }) {
      return value_of(B::create(context));
    } else {
      return B(context);
    }
  }
};

struct LruCase : EvictionCase<LruBackend> {
  static constexpr const char* kName = "Lru";
  static auto rank(const EvictionRecord& r, Clock::TimePoint) { return r.touched; }
};
struct FifoCase : EvictionCase<HashMapBackend<FifoReuse>> {
  static constexpr const char* kName = "HashMapFifo";
  static auto rank(const EvictionRecord& r, Clock::TimePoint) { return r.inserted; }
};
struct LifoCase : EvictionCase<HashMapBackend<LifoReuse>> {
  static constexpr const char* kName = "HashMapLifo";
  static auto rank(const EvictionRecord& r, Clock::TimePoint) {
    return std::numeric_limits<std::uint64_t>::max() - r.inserted;
  }
};
struct LruReuseCase : EvictionCase<HashMapBackend<LruReuse>> {
  static constexpr const char* kName = "HashMapLru";
  static auto rank(const EvictionRecord& r, Clock::TimePoint) { return r.touched; }
};
struct PriorityCase : EvictionCase<HashMapBackend<PriorityReuse>> {
  static constexpr const char* kName = "HashMapPriority";
  static auto rank(const EvictionRecord& r, Clock::TimePoint) {
    return std::tuple(r.retention ? r.retention->priority : BlockRetention::kDefaultPriority, r.touched,
                      r.acquired);
  }
};

template <unsigned kWarm, unsigned kHot, unsigned kVeryHot>
struct MultiLruCase : EvictionCase<MultiLruBackend> {
  static constexpr const char* kName = kVeryHot == 15 ? "MultiLru" : "MultiLruOfLowThresholds";
  static MultiLruBackend make(const EvictionContext& context) {
    return value_of(MultiLruBackend::create(context, {kWarm, kHot, kVeryHot}));
  }
  static auto rank(const EvictionRecord& r, Clock::TimePoint) {
    const int tier = r.uses < kWarm ? 0 : r.uses < kHot ? 1 : r.uses < kVeryHot ? 2 : 3;
    return std::tuple(tier, r.touched);
  }
};

// Their rules have a model in lineage_backend_test.cc.
struct LineageCase : EvictionCase<LineageBackend> {
  static constexpr const char* kName = "Lineage";
};
struct LineageRoundRobinCase : EvictionCase<LineageBackend> {
  static constexpr const char* kName = "LineageRoundRobin";
  static LineageBackend make(const EvictionContext& context) {
    return value_of(LineageBackend::create(context, LineageOrder::kRoundRobin));
  }
};

// Theirs in queue_backends_test.cc.
struct RegisteredFifoCase : EvictionCase<FifoBackend> {
  static constexpr const char* kName = "Fifo";
};
struct LfuCase : EvictionCase<LfuBackend> {
  static constexpr const char* kName = "Lfu";
};
struct S3FifoCase : EvictionCase<S3FifoBackend> {
  static constexpr const char* kName = "S3Fifo";
};

// Options is a type with a name and a RetentionOptions.
template <class Options>
struct RetentionCase : EvictionCase<RetentionBackend> {
  static constexpr const char* kName = Options::kName;
  static RetentionBackend make(const EvictionContext& context) {
    return value_of(RetentionBackend::create(context, Options::options()));
  }
  static int priority(const EvictionRecord& r, Clock::TimePoint now) {
    const RetentionOptions options = Options::options();
    const int fallback = options.default_priority;
    if (!r.retention || r.demoted) return fallback;
    const int distance = r.retention->priority - fallback;
    if (now < r.retention->until) return r.retention->priority;
    if (options.half_life == Clock::Duration::zero()) return fallback;
    const auto halvings = (now - r.retention->until) / options.half_life;
    return halvings > 10 ? fallback : fallback + distance / (1 << halvings);
  }
  static auto rank(const EvictionRecord& r, Clock::TimePoint now) {
    return std::tuple(priority(r, now), Options::options().never_hit_first && r.hit, r.touched);
  }
  // The rule that looks at all blocks together: of those above the default, the first beyond the cap is
  // demoted.
  static void settle(std::vector<EvictionRecord>& records, std::uint32_t block_count, Clock::TimePoint now) {
    const RetentionOptions options = Options::options();
    std::vector<EvictionRecord*> above;
    for (EvictionRecord& record : records) {
      if (priority(record, now) > options.default_priority) above.push_back(&record);
    }
    const auto cap = static_cast<std::size_t>(options.retained_share * block_count);
    if (above.size() <= cap) return;
    (*std::ranges::min_element(above, {}, [&](const EvictionRecord* r) { return rank(*r, now); }))->demoted =
        true;
  }
};
struct UsualRetention {
  static constexpr const char* kName = "Retention";
  static RetentionOptions options() { return {.never_hit_first = true}; }
};
struct RetentionWithoutDecay {
  static constexpr const char* kName = "RetentionWithoutDecay";
  static RetentionOptions options() {
    return {.retained_share = 0.1, .half_life = {}, .never_hit_first = false};
  }
};
struct RetentionOfAll {
  static constexpr const char* kName = "RetentionOfAll";
  static RetentionOptions options() {
    return {.default_priority = 60, .retained_share = 1, .half_life = std::chrono::milliseconds(700)};
  }
};
struct RetentionOfNone {
  static constexpr const char* kName = "RetentionOfNone";
  static RetentionOptions options() { return {.default_priority = 0, .retained_share = 0}; }
};

template <class Case>
concept HasOrderModel =
    requires(const EvictionRecord& record, Clock::TimePoint now) { Case::rank(record, now); };

// The blocks of a backend as a plain list, sorted by the case's rule when it is asked.
template <HasOrderModel Case>
class NaiveOrder {
 public:
  explicit NaiveOrder(const EvictionWorld& world) : world_(world) {}

  void insert(BlockId id, const SequenceHash& hash) {
    EvictionRecord record;
    record.id = id.value();
    record.hash = hash;
    record.inserted = ++tick_;
    records_.push_back(record);
    note(records_.back());
  }
  void remove(BlockId id) {
    std::erase_if(records_, [&](const EvictionRecord& record) { return record.id == id.value(); });
  }
  void touch(BlockId id) {
    ++tick_;
    note(*std::ranges::find(records_, id.value(), &EvictionRecord::id));
  }
  std::vector<std::uint32_t> order() const {
    const Clock::TimePoint now = world_.clock.now();
    std::vector<EvictionRecord> sorted = records_;
    std::ranges::sort(sorted, {}, [&](const EvictionRecord& record) { return Case::rank(record, now); });
    std::vector<std::uint32_t> ids;
    for (const EvictionRecord& record : sorted) ids.push_back(record.id);
    return ids;
  }

 private:
  void note(EvictionRecord& record) {
    const BlockFacts& facts = *world_.facts;
    const BlockId id(record.id);
    record.touched = tick_;
    record.uses = world_.context.registry.count(record.hash);
    if (facts.keeps_retentions()) record.retention = facts.retention(id);
    if (facts.keeps_acquisitions()) record.acquired = facts.acquired(id);
    if (facts.keeps_hits()) record.hit = facts.was_hit(id);
    record.demoted = false;
    if constexpr (requires { Case::settle(records_, 0u, world_.clock.now()); }) {
      Case::settle(records_, world_.context.block_count, world_.clock.now());
    }
  }

  const EvictionWorld& world_;
  std::vector<EvictionRecord> records_;
  std::uint64_t tick_ = 0;
};

// Every id a backend holds, in its order.
template <class Backend>
std::vector<std::uint32_t> peeked(const Backend& backend, std::size_t n = 1000) {
  std::vector<BlockId> ids(n);
  ids.resize(backend.peek(ids));
  std::vector<std::uint32_t> values;
  for (const BlockId id : ids) values.push_back(id.value());
  return values;
}
// The same by taking them.
template <class Backend>
std::vector<std::uint32_t> drained(Backend& backend) {
  std::vector<std::uint32_t> ids;
  while (const auto victim = backend.pop()) ids.push_back(victim->value());
  return ids;
}

}  // namespace ashlar::block::support
