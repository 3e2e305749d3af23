// From tiers to a listener: what the stream adds up to is what the tiers hold, at every quiet moment,
// whatever threads did, and also where logs and workers overflowed.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/block/request_sequence.h"
#include "ashlar/events/event_codec.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/testing/blocks.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/sequence_builder.h"
#include "ashlar/testing/time_box.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "events/batch_recorder.h"
#include "feed/stream_listeners.h"
#include "support/scratch_folder.h"
#include "support/until_seen.h"
#include "tiers/kv_workload.h"

namespace ashlar::tiers {
namespace {

using events::EventManager;
using events::KvEvent;
using events::KvEventKind;
using feed::PresenceListener;
using tokens::SequenceHash;

const events::Worker kWorker{events::WorkerId(4), 0};

// Everything goes over the bytes of the wire once.
class WireSink final : public events::BatchSink {
 public:
  explicit WireSink(std::shared_ptr<events::BatchSink> to) : to_(std::move(to)) {}
  Result<void> publish(const events::EventBatch& batch) override {
    events::encode_batch(batch, bytes_);
    events::OwnedBatch read;
    if (Result<void> decoded = events::decode_batch(bytes_, read); !decoded) return decoded;
    return to_->publish(read.view());
  }
  std::string describe() const override { return "wire"; }

 private:
  std::shared_ptr<events::BatchSink> to_;
  std::vector<std::byte> bytes_;
};

struct Stream {
  explicit Stream(const events::BatchProfile& profile = {}) {
    manager = EventManager::create({.stream = {kWorker, 1}}).value();
    EXPECT_TRUE(manager->add_sink(std::make_shared<WireSink>(bus.sink()), profile));
    bus.serve_snapshots(manager.get());
    source = bus.subscribe();
    receiver = std::make_unique<feed::StreamReceiver>(*source, listener);
  }
  ~Stream() { bus.serve_snapshots(nullptr); }

  // Everything that happened has been heard.
  void settle() {
    ASSERT_TRUE(manager->flush(Clock::real().now() + std::chrono::seconds(30)));
    for (;;) {
      const Result<std::size_t> came = receiver->poll({});
      ASSERT_TRUE(came);
      if (*came == 0) break;
    }
    ASSERT_EQ(listener.problem(), "");
  }

  feed::EventBus bus;
  std::unique_ptr<EventManager> manager;
  std::unique_ptr<feed::FeedSource> source;
  PresenceListener listener;
  std::unique_ptr<feed::StreamReceiver> receiver;
};

template <events::Tier Tier>
void add_held(const block::BlockManager<Tier>& manager, std::set<PresenceListener::Key>& out) {
  manager.for_each_registered(
      [&](const SequenceHash& hash, block::BlockId) { out.insert({events::kTierId<Tier>, hash}); });
}

std::set<PresenceListener::Key> held_by(KvBlockManager& kv) {
  std::set<PresenceListener::Key> out;
  add_held(kv.g1(), out);
  add_held(*kv.g2(), out);
  add_held(*kv.g3(), out);
  add_held(*kv.g4(), out);
  return out;
}

// The capacity of the logs: one that holds everything, and one that overflows all the time.
class EventStreamTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(EventStreamTest, AddsUpToWhatFourTiersHoldWhileThreadsWork) {
  const ScratchFolder folder;
  KvOptions options = KvWorkload::options_in(folder.path());
  options.g1.block_count = 24;
  options.g2->block_count = 24;
  options.g3->block_count = 30;
  options.g3->survive_power_loss = false;
  options.g4->block_count = 20;
  options.g4->volumes[0].options = {{"sync", "false"}};
  options.g4->remove_evicted = true;
  options.event_capacity = GetParam();
  const auto kv = KvBlockManager::create(options).value();
  Stream stream({.max_events = 32, .capacity = 256});
  const bool overflows = GetParam() < 64;
  const ashlar::testing::UntilSeen box(1.5);
  std::vector<int> wrong(3);
  {
    KvWorkload before(*kv);
    const auto table = before.request(KvWorkload::sequence(20, 5), wrong.data());
  }
  ASSERT_TRUE(kv->attach_events(*stream.manager));
  std::uint64_t round = 0;
  do {
    ++round;
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        KvWorkload workload(*kv);
        Random random(round * 3 + t);
        for (int i = 0; i < 20; ++i) {
          const auto hashes = KvWorkload::sequence(random.below(14), 1 + random.below(6));
          {
            const auto table = workload.request(hashes, &wrong[t]);
          }
          if (random.below(15) == 0) static_cast<void>(kv->reset_blocks(std::span(hashes).last(1)));
          if (random.below(30) == 0)
            static_cast<void>(kv->reset(events::TierId(static_cast<std::uint8_t>(random.below(2)))));
        }
      });
    for (std::thread& thread : threads) thread.join();
    kv->drain();
    kv->check_invariants();
    ASSERT_NO_FATAL_FAILURE(stream.settle());
    stream.manager->check_invariants();
    ASSERT_EQ(stream.listener.of(kWorker), held_by(*kv)) << "round " << round;
    ASSERT_EQ(wrong, std::vector<int>(3));
  } while (!box.over([&] { return !overflows || stream.manager->counters().repaired > 0; }));
  const events::EventCounters counters = stream.manager->counters();
  EXPECT_EQ(counters.resyncs, 0u);
  if (overflows) {
    EXPECT_GT(counters.repaired, 0u);
  } else {
    EXPECT_EQ(counters.lost, 0u);
  }
  kv->detach_events();
  ASSERT_NO_FATAL_FAILURE(stream.settle());
  EXPECT_TRUE(stream.listener.of(kWorker).empty());
}

INSTANTIATE_TEST_SUITE_P(Logs, EventStreamTest, ::testing::Values(std::size_t{8}, std::size_t{1} << 16),
                         [](const auto& tested) {
                           return tested.param < 64 ? std::string("ThatOverflow")
                                                    : std::string("ThatHoldAll");
                         });

// Duplicates, drops and evictions of one manager, from several threads.
TEST(BlockEventStreamTest, AddsUpWithDuplicatesAndEvictions) {
  const ashlar::testing::TimeBox box(1);
  for (const auto policy : {block::DuplicatePolicy::kAllow, block::DuplicatePolicy::kReject}) {
    auto options = ashlar::testing::manager_options(24);
    options.duplicates = policy;
    options.events = ashlar::testing::make_event_log(64);
    auto manager = ashlar::testing::make_manager<events::G1>(options);
    Stream stream;
    ASSERT_TRUE(stream.manager->add_source(
        options.events, [&](std::vector<KvEvent>& out) { return manager.list_stored(out); }));
    std::uint64_t round = 0;
    do {
      ++round;
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < 3; ++t)
        threads.emplace_back([&, t] {
          Random random(round * 7 + t);
          std::vector<block::ImmutableBlock<events::G1>> kept;
          for (int i = 0; i < 200; ++i) {
            if (kept.size() >= 6 || (!kept.empty() && random.below(3) == 0)) {
              std::swap(kept[random.below(kept.size())], kept.back());
              kept.pop_back();
              continue;
            }
            auto blocks = manager.allocate_blocks(1);
            if (!blocks) continue;
            const SequenceHash hash = KvWorkload::sequence(random.below(6), 1 + random.below(6)).back();
            auto registered =
                manager.register_block(blocks->take_back().stage(hash, block::KvReady::asserted_by_caller()));
            if (registered) kept.push_back(*std::move(registered));
          }
        });
      for (std::thread& thread : threads) thread.join();
      ASSERT_NO_FATAL_FAILURE(stream.settle());
      stream.manager->check_invariants();
      std::set<PresenceListener::Key> held;
      add_held(manager, held);
      ASSERT_EQ(stream.listener.of(kWorker), held) << "round " << round;
    } while (!box.over());
    ASSERT_TRUE(stream.manager->remove_source(options.events));
  }
}

TEST(BlockEventStreamTest, BlocksRegisteredTogetherAreOneRunWithAllThatIsKnown) {
  auto options = ashlar::testing::manager_options(16);
  options.events = ashlar::testing::make_event_log();
  options.block_bytes = 12345;
  auto manager = ashlar::testing::make_manager<events::G1>(options);
  std::vector<tokens::Token> tokens(32);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = tokens::Token(static_cast<std::uint32_t>(i));
  const auto sequence = tokens::TokenSequence::create(tokens, 4).value();
  const auto blocks = ashlar::testing::fill(manager, sequence);
  std::vector<KvEvent> heard;
  struct Sink final : events::EventSink {
    std::vector<KvEvent>& out;
    explicit Sink(std::vector<KvEvent>& to) : out(to) {}
    void on_events(std::span<const KvEvent> events) override {
      out.insert(out.end(), events.begin(), events.end());
    }
  } sink(heard);
  options.events->drain(sink);
  ASSERT_EQ(heard.size(), 8u);
  EXPECT_EQ(events::run_length(heard), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(heard[i].local(), sequence.blocks()[i].local_hash());
    EXPECT_EQ(heard[i].prefix_group(), sequence.blocks()[0].sequence_hash());
    EXPECT_EQ(heard[i].bytes, 12345u);
  }
}

TEST(TierEventsTest, SayTheFileAndTheVolumeThatHoldABlock) {
  const ScratchFolder folder;
  KvOptions options = KvWorkload::options_in(folder.path());
  options.event_capacity = 1024;
  const auto kv = KvBlockManager::create(options).value();
  Stream stream;
  ASSERT_TRUE(kv->attach_events(*stream.manager));
  EXPECT_EQ(kv->attach_events(*stream.manager).error().code(), ErrorCode::kAlreadyExists);
  struct Nobody final : events::EventSink {
    void on_events(std::span<const KvEvent>) override {
      ADD_FAILURE() << "the events belong to the listener";
    }
  } nobody;
  KvWorkload workload(*kv);
  int wrong = 0;
  {
    const auto table = workload.request(KvWorkload::sequence(1, 4), &wrong);
  }
  kv->drain();
  EXPECT_EQ(kv->drain_events(nobody), 0u);
  std::map<std::string, std::size_t> at;
  const events::OwnedBatch all = stream.manager->snapshot();
  std::map<std::uint16_t, std::string> names;
  for (const events::LocationName& name : all.locations) names[name.number] = name.name;
  for (const KvEvent& event : all.events)
    if (event.location != 0) ++at[names.at(event.location)];
  EXPECT_EQ(at["v"], 4u);
  EXPECT_EQ(at[folder.path() + "/g3.0"] + at[folder.path() + "/g3.1"], 4u);
  EXPECT_EQ(all.events.front().bytes, options.model.block_bytes());
  kv->detach_events();
}

// What another worker put on a shared volume is published as if it had been computed here.
TEST(TierEventsTest, BlocksFoundOnAVolumeAreKnownWithTheirPlace) {
  for (const std::size_t groups : {1u, 2u}) {
    SCOPED_TRACE(groups);
    const ScratchFolder theirs;
    const ScratchFolder ours;
    std::vector<tokens::Token> prompt;
    for (std::uint32_t i = 0; i < 13; ++i) prompt.emplace_back(7 * i);
    const auto text = tokens::TokenSequence::create(prompt, 4).value();
    // Returns the cached tokens.
    const auto run = [&](KvBlockManager& kv, std::size_t tokens) {
      auto request = block::RequestSequence<events::G1>::create(
                         kv.g1(), {prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(tokens)},
                         {.groups = std::vector<block::CacheGroup>(groups)})
                         .value();
      const std::size_t cached = request.match_prefix().value();
      EXPECT_TRUE(request.schedule_prefill(request.tokens_to_compute()));
      EXPECT_TRUE(request.apply_prefill(tokens::Token(1)));
      request.release();
      kv.drain();
      return cached;
    };
    const auto other = KvBlockManager::create(KvWorkload::options_in(theirs.path())).value();
    EXPECT_EQ(run(*other, 13), 0u);

    KvOptions options = KvWorkload::options_in(ours.path());
    options.g4->volumes[0].location = theirs.path() + "/volume";
    options.event_capacity = 1024;
    const auto kv = KvBlockManager::create(std::move(options)).value();
    auto sink = std::make_shared<events::BatchRecorder>();
    const auto manager = EventManager::create({.stream = {kWorker, 1}}).value();
    ASSERT_TRUE(manager->add_sink(sink));
    ASSERT_TRUE(kv->attach_events(*manager));
    EXPECT_EQ(run(*kv, 5), 4u);
    EXPECT_EQ(run(*kv, 13), 12u) << "the first block from G1, the others from the volume";
    ASSERT_TRUE(manager->flush(Clock::real().now() + std::chrono::seconds(30)));
    std::size_t found = 0;
    for (const KvEvent& event : sink->events()) {
      if (event.tier != events::kTierId<events::G4> || event.kind != KvEventKind::kStored) continue;
      ++found;
      const auto& block = text.blocks()[event.hash.position()];
      EXPECT_EQ(event.hash, block.sequence_hash().in_group(event.group));
      ASSERT_EQ(event.parent().has_value(), block.parent().has_value());
      EXPECT_EQ(event.parent().value_or(SequenceHash()),
                block.parent() ? block.parent()->in_group(event.group) : SequenceHash());
      EXPECT_EQ(event.prefix_group(), text.blocks()[0].sequence_hash().in_group(event.group));
      EXPECT_EQ(event.local(), block.local_hash());
    }
    EXPECT_EQ(found, 3 * groups);
    kv->detach_events();
  }
}

TEST(TierEventsTest, AManagerWithoutEventsCannotBeListenedTo) {
  const ScratchFolder folder;
  const auto kv = KvBlockManager::create(KvWorkload::options_in(folder.path())).value();
  const auto manager = EventManager::create({}).value();
  EXPECT_EQ(kv->attach_events(*manager).error().code(), ErrorCode::kNotReady);
}

TEST(TierEventsTest, HitsAreSampledWhereAskedFor) {
  const ScratchFolder folder;
  KvOptions options = KvWorkload::options_in(folder.path());
  options.event_capacity = 1024;
  options.accesses = std::make_shared<events::AccessSampler>(events::AccessSampler::Options{.every = 1});
  const auto kv = KvBlockManager::create(options).value();
  KvWorkload workload(*kv);
  int wrong = 0;
  for (int i = 0; i < 5; ++i) {
    const auto table = workload.request(KvWorkload::sequence(1, 3), &wrong);
  }
  auto sink = std::make_shared<events::BatchRecorder>();
  const auto manager =
      EventManager::create({.stream = {kWorker, 1}, .access_every = std::chrono::nanoseconds(1)}).value();
  ASSERT_TRUE(manager->add_sink(sink));
  ASSERT_TRUE(kv->attach_events(*manager));
  ASSERT_TRUE(manager->flush(Clock::real().now() + std::chrono::seconds(30)));
  kv->detach_events();
  std::uint64_t hits = 0;
  for (const KvEvent& event : sink->events())
    if (event.kind == KvEventKind::kAccess && event.tier == events::kTierId<events::G1>) hits += event.block;
  EXPECT_EQ(hits, 12u) << "three blocks, four requests after the first";
}

}  // namespace
}  // namespace ashlar::tiers
