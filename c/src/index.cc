// Indexes and feeds of the C interface.
#include <algorithm>
#include <string>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/locked_index.h"
#include "ashlar/index/make_index.h"
#include "ashlar/index/radix_tree.h"
#include "c/src/calls.h"
#include "c/src/event_sink.h"

namespace ashlar::c_interface {
namespace {

struct IndexObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kIndex;
  explicit IndexObject(std::unique_ptr<index::AnyIndex> its_index) : index(std::move(its_index)) {}
  const std::unique_ptr<index::AnyIndex> index;
};

// What the first call of a feed decided.
enum class FeedUse : std::uint8_t { kNone, kMessages, kEvents };

struct FeedObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kFeed;
  FeedObject(std::shared_ptr<IndexObject> its_index, feed::EngineIngest its_ingest, events::WorkerId worker)
      : index(std::move(its_index)), ingest(std::move(its_ingest)) {
    feeder = std::make_unique<feed::IndexFeeder>(*index->index, worker);
  }

  const std::shared_ptr<IndexObject> index;
  Mutex mu;
  FeedUse use ASHLAR_GUARDED_BY(mu) = FeedUse::kNone;
  feed::EngineIngest ingest ASHLAR_GUARDED_BY(mu);
  std::unique_ptr<feed::IndexFeeder> feeder ASHLAR_GUARDED_BY(mu);  // always there
  events::EngineBatch batch ASHLAR_GUARDED_BY(mu);
  feed::IndexChanges changes ASHLAR_GUARDED_BY(mu);
};

// The scores of a thread's last query, whose memory the next one uses. They are gone in handlers of
// atexit(), which may call this library.
thread_local constinit bool kept_scores_gone = false;
struct KeptScores {
  ~KeptScores() { kept_scores_gone = true; }
  index::MatchScores scores;
};

static_assert(sizeof(ashlar_stored_block) == sizeof(index::StoredBlock) &&
              offsetof(ashlar_stored_block, name) == offsetof(index::StoredBlock, name));
static_assert(sizeof(ashlar_match::tiers) / sizeof(std::uint32_t) >= index::kStorageTiers);

Outcome<> verdict_outcome(index::StoreVerdict verdict) {
  using index::StoreVerdict;
  switch (verdict) {
    case StoreVerdict::kApplied:
      return {};
    case StoreVerdict::kEmpty:
      return invalid_argument("a store without blocks");
    case StoreVerdict::kUnknownTier:
      return invalid_argument("no such tier; use one of ASHLAR_TIER_...");
    case StoreVerdict::kWrongPosition:
      return invalid_argument("the blocks do not follow their parent");
    case StoreVerdict::kUnknownParent:
      return Refusal(ASHLAR_NOT_FOUND, "the worker holds no block of the parent's name; store that first");
    case StoreVerdict::kNameInUse:
      return Refusal(ASHLAR_ALREADY_EXISTS,
                     "a name occurs twice, is the parent's, or stands for other content on this worker");
    case StoreVerdict::kFull:
      return Refusal(ASHLAR_CAPACITY, "the index is full, or has no memory now; try again later");
  }
  return Refusal(ASHLAR_INTERNAL, "an index answered with a verdict that is none");
}

Outcome<index::Worker> worker_of(const ashlar_worker* worker) {
  if (worker == nullptr) return null_pointer("worker");
  return index::Worker{index::WorkerId(worker->id), worker->rank};
}

Outcome<index::StorageTier> storage_tier_of(std::int32_t tier) {
  if (tier < 0 || static_cast<std::size_t>(tier) >= index::kStorageTiers)
    return invalid_argument("tier %d is none; use one of ASHLAR_TIER_...", tier);
  return static_cast<index::StorageTier>(tier);
}

Outcome<std::unique_ptr<index::AnyIndex>> create_index(const ashlar_index_options& given) {
  index::IndexOptions options;
  if (given.kind != nullptr) options.kind = given.kind;
  if (given.jump_size != 0) options.jump_size = given.jump_size;
  options.threads = given.threads;
  if (given.queue_capacity != 0) options.queue_capacity = given.queue_capacity;
  if (given.forget_behind != 0) options.mid_chain = index::MidChainRemoval::kOrphan;
  ASHLAR_RETURN_IF_ERROR(options.validate());
  if (options.kind == "radix_tree" && options.threads == 0)  // the one structure for one thread alone
    return std::unique_ptr<index::AnyIndex>(
        new index::IndexOf<index::LockedIndex<index::RadixTree>>(options.kind));
  ASHLAR_TRY(auto made, index::make_index(options));
  return made;
}

// The event as the library has it. Errors: a kind or tier that is none.
Outcome<events::KvEvent> event_of(const ashlar_event& given) {
  if (given.kind > ASHLAR_EVENT_CLEARED)
    return invalid_argument("event kind %u is none; use one of ASHLAR_EVENT_...", given.kind);
  if (given.tier >= events::kMaxTiers && given.tier != events::kAllTiers.value())
    return invalid_argument("tier %u is none; use one of ASHLAR_TIER_..., or 255 for all", given.tier);
  events::KvEvent event;
  event.hash = tokens::SequenceHash::from_bits(given.hash.hi, given.hash.lo);
  if (given.has_parent != 0)
    event.set_parent(tokens::SequenceHash::from_bits(given.parent.hi, given.parent.lo));
  if (given.has_root != 0)
    event.set_prefix_group(tokens::SequenceHash::from_bits(given.root.hi, given.root.lo));
  if (given.has_name != 0) event.set_name(events::BlockName(given.name));
  if (given.has_local != 0) event.set_local(tokens::LocalHash(given.local));
  event.sequence = given.sequence;
  event.block = given.block;
  event.bytes = given.bytes;
  event.metadata = given.metadata;
  event.location = given.location;
  event.group = given.group;
  event.kind = static_cast<events::KvEventKind>(given.kind);
  event.tier = events::TierId(given.tier);
  return event;
}

Outcome<> decide_use(FeedUse& use, FeedUse wanted) {
  if (use != FeedUse::kNone && use != wanted)
    return invalid_argument("this feed takes %s; create another feed for the rest",
                            use == FeedUse::kMessages ? "messages of an engine" : "events");
  use = wanted;
  return {};
}

}  // namespace
}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;

ashlar_status ashlar_index_create(const ashlar_index_options* options, ashlar_index* index) {
  return waiting_call([&]() -> Outcome<> {
    if (index == nullptr) return null_pointer("index");
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_index_options"));
    ASHLAR_TRY(auto made, create_index(given));
    index->id = open_handle(std::make_shared<IndexObject>(std::move(made)));
    return {};
  });
}

ashlar_status ashlar_index_destroy(ashlar_index index) {
  return waiting_call([&] { return close_handle<IndexObject>(index.id); });
}

ashlar_status ashlar_index_store(ashlar_index index, const ashlar_worker* worker, int32_t tier,
                                 const uint64_t* parent, const ashlar_stored_block* blocks, size_t n) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<IndexObject>(index.id));
    ashlar::index::BlocksStored stored;
    ASHLAR_TRY(stored.worker, worker_of(worker));
    ASHLAR_TRY(stored.tier, storage_tier_of(tier));
    ASHLAR_TRY(stored.blocks, elements<const ashlar::index::StoredBlock>(blocks, n, "blocks"));
    if (parent != nullptr) stored.parent = ashlar::index::BlockName(*parent);
    return verdict_outcome(object->index->store(stored));
  });
}

ashlar_status ashlar_index_remove(ashlar_index index, const ashlar_worker* worker, int32_t tier,
                                  const uint64_t* names, size_t n, size_t* removed) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<IndexObject>(index.id));
    ASHLAR_TRY(const auto its, worker_of(worker));
    ASHLAR_TRY(const auto where, storage_tier_of(tier));
    ASHLAR_TRY(const auto all, elements<const ashlar::index::BlockName>(names, n, "names"));
    const std::size_t count = object->index->remove(its, where, all);
    if (removed != nullptr) *removed = count;
    return {};
  });
}

ashlar_status ashlar_index_clear(ashlar_index index, const ashlar_worker* worker) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<IndexObject>(index.id));
    ASHLAR_TRY(const auto its, worker_of(worker));
    object->index->clear(its);
    return {};
  });
}

ashlar_status ashlar_index_remove_worker(ashlar_index index, uint64_t worker) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<IndexObject>(index.id));
    object->index->remove_worker(ashlar::index::WorkerId(worker));
    return {};
  });
}

ashlar_status ashlar_index_settle(ashlar_index index) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<IndexObject>(index.id));
    object->index->settle();
    return {};
  });
}

ashlar_status ashlar_index_find(ashlar_index index, const uint64_t* locals, size_t n, ashlar_match* out,
                                size_t capacity, size_t* count) {
  return call([&]() -> Outcome<> {
    if (count == nullptr) return null_pointer("count");
    if (out == nullptr && capacity != 0) return null_pointer("out");
    ASHLAR_TRY(const auto object, object_of<IndexObject>(index.id));
    ASHLAR_TRY(const auto hashes, elements<const ashlar::index::LocalHash>(locals, n, "locals"));
    thread_local KeptScores kept;
    ashlar::index::MatchScores own;
    ashlar::index::MatchScores& scores = kept_scores_gone ? own : kept.scores;
    object->index->find_matches(hashes, scores);
    const std::size_t matched = scores.matched();
    *count = matched;
    if (matched > capacity)
      return Refusal(ASHLAR_CAPACITY, "the buffer has room for " + std::to_string(capacity) + " workers; " +
                                          std::to_string(matched) + " match");
    scores.for_each([&](const ashlar::index::Worker& worker, const ashlar::index::Score& score) {
      ashlar_match& match = *out++;
      match = {};
      match.worker = {worker.id.value(), worker.rank, 0};
      match.depth = score.depth;
      match.device_depth = score.device_depth;
      std::ranges::copy(score.blocks, match.tiers);
    });
    return {};
  });
}

ashlar_status ashlar_index_get_sizes(ashlar_index index, ashlar_index_sizes* sizes) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<IndexObject>(index.id));
    const ashlar::index::IndexSizes now = object->index->sizes();
    ashlar_index_sizes told = {};
    told.workers = now.workers;
    told.blocks = now.blocks;
    told.contents = now.contents;
    told.bytes = now.bytes;
    return write_answer(told, sizes, "ashlar_index_sizes");
  });
}

ashlar_status ashlar_feed_create(ashlar_index index, const ashlar_feed_options* options, ashlar_feed* feed) {
  return call([&]() -> Outcome<> {
    if (feed == nullptr) return null_pointer("feed");
    ASHLAR_TRY(auto object, object_of<IndexObject>(index.id));
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_feed_options"));
    ashlar::feed::EngineIngestOptions its;
    its.worker = ashlar::events::WorkerId(given.worker);
    its.block_size = given.block_size;
    ASHLAR_TRY(its.scheme,
               ashlar::tokens::HashScheme::by_name(given.scheme == nullptr ? "xxh3_chain" : given.scheme));
    its.salt = ashlar::tokens::Salt(text_of(given.lora), text_of(given.tenant));
    ASHLAR_TRY(auto ingest, ashlar::feed::EngineIngest::create(its));
    feed->id = open_handle(std::make_shared<FeedObject>(std::move(object), std::move(ingest), its.worker));
    return {};
  });
}

ashlar_status ashlar_feed_destroy(ashlar_feed feed) {
  return waiting_call([&] { return close_handle<FeedObject>(feed.id); });
}

ashlar_status ashlar_feed_apply_message(ashlar_feed feed, const void* payload, size_t bytes,
                                        size_t* changes) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<FeedObject>(feed.id));
    ASHLAR_TRY(const auto message,
               elements<const std::byte>(static_cast<const std::byte*>(payload), bytes, "payload"));
    const ashlar::MutexLock lock(object->mu);
    ASHLAR_RETURN_IF_ERROR(decide_use(object->use, FeedUse::kMessages));
    ASHLAR_RETURN_IF_ERROR(ashlar::events::decode_engine_batch(message, object->batch));
    object->changes.clear();
    object->ingest.apply(object->batch, object->changes);
    object->batch.clear();  // its views refer to the caller's bytes
    object->feeder->apply(object->changes);
    if (changes != nullptr) *changes = object->changes.size();
    return {};
  });
}

ashlar_status ashlar_feed_apply_events(ashlar_feed feed, uint32_t rank, const ashlar_event* events,
                                       size_t n) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<FeedObject>(feed.id));
    ASHLAR_TRY(const auto given, elements<const ashlar_event>(events, n, "events"));
    std::vector<ashlar::events::KvEvent> all;
    all.reserve(n);
    for (const ashlar_event& one : given) {
      ASHLAR_TRY(const auto event, event_of(one));
      all.push_back(event);
    }
    const ashlar::MutexLock lock(object->mu);
    ASHLAR_RETURN_IF_ERROR(decide_use(object->use, FeedUse::kEvents));
    object->feeder->apply(rank, all);
    return {};
  });
}

ashlar_status ashlar_feed_resync(ashlar_feed feed) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<FeedObject>(feed.id));
    const ashlar::MutexLock lock(object->mu);
    // All memory first. The changes are not applied: the worker goes from the index as a whole, so that a
    // resync that failed half-way can be repeated.
    const ashlar::events::WorkerId worker = object->ingest.options().worker;
    auto fresh = std::make_unique<ashlar::feed::IndexFeeder>(*object->index->index, worker);
    object->changes.clear();
    object->changes.changes.reserve(object->ingest.present() + 1);
    if (object->use == FeedUse::kMessages) object->ingest.resync(object->changes);
    object->index->index->remove_worker(worker);
    object->feeder = std::move(fresh);
    return {};
  });
}
