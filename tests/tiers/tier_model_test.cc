// Random operations on all tiers beside a model that says, for every block, which tiers have it and whether
// its object lies on the volume. Nothing is evicted here but by call, so the model is exact.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "support/rounds.h"
#include "support/scratch_folder.h"
#include "support/until_seen.h"
#include "tiers/disk/g3_places.h"
#include "tiers/every_eviction.h"
#include "tiers/kv_workload.h"
#include "tiers/volume/directory_volume.h"
#include "tiers/volume/volume_object.h"

namespace ashlar::tiers {
namespace {

using events::G1;
using events::G2;
using events::G3;
using events::G4;
using tokens::SequenceHash;

constexpr std::uint64_t kSequences = 12;
constexpr std::size_t kLength = 5;
constexpr std::uint32_t kModelBlocks = 128;  // in each tier: more than there are names

class Mirror final : public events::EventSink {
 public:
  void on_events(std::span<const events::KvEvent> events) override {
    for (const events::KvEvent& event : events) {
      const bool fits = event.kind == events::KvEventKind::kStored
                            ? present[event.tier.value()].insert(event.hash).second
                            : present[event.tier.value()].erase(event.hash) == 1;
      EXPECT_TRUE(fits) << "an event that does not fit: tier " << unsigned{event.tier.value()};
      next[event.tier.value()] = event.sequence + 1;
    }
  }
  std::array<std::uint64_t, 4> next = {};
  std::array<std::set<SequenceHash>, 4> present;
};

class TierModelTest : public ::testing::TestWithParam<EvictionCase> {
 protected:
  TierModelTest() {
    for (std::uint64_t i = 0; i < kSequences; ++i) sequences_.push_back(KvWorkload::sequence(i, kLength));
    mkdir(folder_.file("volume").c_str(), 0700);
    volume_ = DirectoryVolume::attach(volume_descriptor()).value();
    restart();
  }

  VolumeDescriptor volume_descriptor() const {
    return {
        .name = "v", .kind = "directory", .location = folder_.file("volume"), .options = {{"sync", "false"}}};
  }
  void restart() {
    if (kv_) hits_ += kv_->status().g1.hits;
    kv_.reset();
    KvOptions options = KvWorkload::options(folder_.file("g3"));
    options.g1.block_count = kModelBlocks;
    options.g2->block_count = kModelBlocks;
    options.g3->block_count = kModelBlocks;
    options.g3->survive_power_loss = false;
    options.g4 = VolumeShape{.block_count = kModelBlocks, .volumes = {volume_descriptor()}};
    options.to_g2.trigger = options.to_g3.trigger = options.to_g4.trigger = Trigger::kOnCall;
    for (OffloadRoute* const way : {&options.to_g2, &options.to_g3, &options.to_g4})
      way->worker.max_wait = {};
    options.event_capacity = 4096;
    GetParam().apply(options);
    kv_ = KvBlockManager::create(options).value();
    mirror_ = Mirror();
    attached_ = true;
    in_[0].clear();
    in_[1].clear();
    in_[3].clear();
  }
  std::string key_of(const SequenceHash& hash) const {
    layout::LayoutConfig config = KvWorkload::model();
    const auto layout = layout::Layout::create(config, layout::order::kFullyContiguousNhd).value();
    storage::SystemAllocator memory;
    static const auto shape = transfer::BlockSet::allocate(layout, memory).value();
    VolumeObject object = VolumeObject::describe(
        *shape, tokens::NamespaceFingerprint::from_bits(7, 8), 0,
        tokens::PrefixKey::of_namespace(tokens::NamespaceFingerprint::from_bits(7, 8)).fingerprint());
    object.hash = hash;
    return object.key();
  }
  std::vector<SequenceHash> prefix() {
    const auto& sequence = sequences_[random_.below(kSequences)];
    return {sequence.begin(), sequence.begin() + 1 + static_cast<std::ptrdiff_t>(random_.below(kLength))};
  }
  std::vector<SequenceHash> some() {
    std::vector<SequenceHash> out;
    for (std::uint64_t n = 1 + random_.below(6); n > 0; --n) {
      const SequenceHash& hash = sequences_[random_.below(kSequences)][random_.below(kLength)];
      if (std::ranges::find(out, hash) == out.end()) out.push_back(hash);
    }
    return out;
  }
  bool in(int tier, const SequenceHash& hash) const { return in_[tier].contains(hash); }
  bool anywhere(const SequenceHash& hash) const {
    return in(0, hash) || in(1, hash) || in(2, hash) || in(3, hash);
  }

  // How much of a prefix is found; volumes are asked for what nobody knows.
  std::size_t model_find(const std::vector<SequenceHash>& hashes) {
    std::size_t probed = 0;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (!anywhere(hashes[i]) && attached_ && i >= probed) {
        std::size_t found = 0;
        for (std::size_t j = i; j < hashes.size(); ++j, ++found) {
          if (in(3, hashes[j])) continue;
          if (!objects_.contains(hashes[j])) break;
          in_[3].insert(hashes[j]);
        }
        probed = i + std::max<std::size_t>(1, found);
      }
      if (!anywhere(hashes[i])) return i;
    }
    return hashes.size();
  }
  // A block from below comes into G2; what turns out to be gone or damaged is forgotten.
  bool model_bring_to_host(const SequenceHash& hash) {
    if (in(2, hash) && damaged_.contains(hash)) {
      damaged_.erase(hash);
      in_[2].erase(hash);
    } else if (in(2, hash)) {
      in_[1].insert(hash);
      return true;
    }
    if (!in(3, hash)) return false;
    if (!objects_.contains(hash)) {
      in_[3].erase(hash);
      return false;
    }
    in_[1].insert(hash);
    return true;
  }
  std::size_t model_onboard(const std::vector<SequenceHash>& hashes) {
    const std::size_t known = model_find(hashes);
    std::size_t up = 0;
    while (up < known && in(0, hashes[up])) ++up;
    std::size_t end = known;
    for (std::size_t i = up; i < known; ++i)
      if (!in(0, hashes[i]) && !in(1, hashes[i]) && !model_bring_to_host(hashes[i])) end = std::min(end, i);
    for (std::size_t i = up; i < end; ++i) in_[0].insert(hashes[i]);
    return end;
  }

  void request() {
    const auto hashes = prefix();
    const std::size_t expected = model_onboard(hashes);
    KvWorkload workload(*kv_);
    {
      const OnboardTable table = kv_->onboard(hashes);
      ASSERT_EQ(table.size(), expected);
      ASSERT_TRUE(workload.right(table, hashes));
    }
    if (random_.below(2) == 0) return;
    int wrong = 0;
    model_onboard(hashes);
    const auto table = workload.request(hashes, &wrong);
    ASSERT_TRUE(table && wrong == 0);
    for (const SequenceHash& hash : hashes) in_[0].insert(hash);
  }
  void offload() {
    const auto hashes = some();
    const int to = 1 + static_cast<int>(random_.below(3));
    const OffloadHandle handle =
        kv_->offload_to(events::TierId(static_cast<std::uint8_t>(to)), hashes).value();
    const auto done = handle.wait();
    const int from = to == 1 ? 0 : 1;
    OffloadProgress expected{.total = hashes.size()};
    for (const SequenceHash& hash : hashes) {
      if (!in(from, hash)) {
        ++expected.gone;
      } else if (in(to, hash)) {
        ++expected.present;
      } else if (to == 3 && !attached_) {
        ++expected.failed;
      } else {
        ++expected.arrived;
        in_[to].insert(hash);
        if (to == 2) damaged_.erase(hash);
        if (to == 3) objects_.insert(hash);
      }
    }
    ASSERT_EQ(done.has_value(), expected.failed == 0);
    ASSERT_EQ(handle.progress(), expected);
  }
  void reset() {
    const auto tier = static_cast<std::uint8_t>(random_.below(4));
    ASSERT_EQ(kv_->reset(events::TierId(tier)).value(), in_[tier].size());
    if (tier == 3)
      for (const SequenceHash& hash : in_[3]) objects_.erase(hash);
    if (tier == 2) damaged_.clear();
    in_[tier].clear();
  }
  void reset_blocks() {
    const auto hashes = some();
    ASSERT_TRUE(kv_->reset_blocks(hashes));
    for (const SequenceHash& hash : hashes) {
      for (auto& tier : in_) tier.erase(hash);
      if (attached_) objects_.erase(hash);
      damaged_.erase(hash);
    }
  }
  void prefetch() {
    const auto hashes = prefix();
    const std::size_t known = model_find(hashes);
    for (std::size_t i = 0; i < known; ++i)
      if (!in(0, hashes[i]) && !in(1, hashes[i])) model_bring_to_host(hashes[i]);
    ASSERT_TRUE(kv_->prefetch(hashes).value().wait());
  }
  void find() {
    const auto hashes = prefix();
    const std::size_t expected = model_find(hashes);
    std::size_t found = 0;
    for (const TierRun& run : kv_->find(hashes)) found += run.count;
    ASSERT_EQ(found, expected);
  }
  void attach_or_detach() {
    if (attached_) {
      ASSERT_EQ(kv_->unregister_volume("v").value(), in_[3].size());
      in_[3].clear();
    } else {
      ASSERT_TRUE(kv_->register_volume(volume_descriptor()));
    }
    attached_ = !attached_;
  }
  void remove_behind_its_back() {
    const SequenceHash hash = some()[0];
    const std::string key = key_of(hash);
    const std::string_view view = key;
    ASSERT_EQ(volume_->contains(std::span(&view, 1))[0].value(), objects_.contains(hash));
    ASSERT_TRUE(volume_->remove(std::span(&view, 1))[0]);
    objects_.erase(hash);
  }
  void damage() {
    const SequenceHash hash = some()[0];
    const auto hold = kv_->g3()->hold(hash);
    ASSERT_EQ(hold.has_value(), in(2, hash));
    if (!hold || damaged_.contains(hash)) return;
    const int file = ::open(folder_.file("g3").c_str(), O_RDWR | O_CLOEXEC);
    const auto at = static_cast<off_t>(g3_blocks_at(kModelBlocks) + hold->block_id().value() * 4096 +
                                       random_.below(4000));
    std::uint8_t byte = 0;
    ASSERT_EQ(pread(file, &byte, 1, at), 1);
    byte ^= static_cast<std::uint8_t>(1 + random_.below(255));
    ASSERT_EQ(pwrite(file, &byte, 1, at), 1);
    close(file);
    damaged_.insert(hash);
  }

  void compare() {
    kv_->drain_events(mirror_);
    for (int tier = 0; tier < 4; ++tier) {
      std::set<SequenceHash> has;
      const std::array<events::TierId, 1> id = {events::TierId(static_cast<std::uint8_t>(tier))};
      for (const auto& sequence : sequences_) {
        const auto present = kv_->registry().check_presence_any(sequence, id);
        for (std::size_t i = 0; i < sequence.size(); ++i)
          if (present[i]) has.insert(sequence[i]);
      }
      ASSERT_EQ(has, in_[tier]) << "tier " << tier + 1;
      ASSERT_EQ(mirror_.present[tier], in_[tier]) << "by events, tier " << tier + 1;
      std::vector<events::KvEvent> listed;
      ASSERT_EQ(kv_->list_stored(id[0], listed).value(), mirror_.next[tier]);
      std::set<SequenceHash> in_list;
      for (const events::KvEvent& event : listed) {
        ASSERT_TRUE(event.kind == events::KvEventKind::kStored && event.tier == id[0]);
        ASSERT_TRUE(in_list.insert(event.hash).second);
      }
      ASSERT_EQ(in_list, in_[tier]) << "by its list, tier " << tier + 1;
    }
    kv_->check_invariants();
    const KvStatus status = kv_->status();
    ASSERT_EQ(status.g1.pool.available(), kModelBlocks);
    ASSERT_EQ(status.g2->pool.available(), kModelBlocks);
    ASSERT_EQ(status.g3->pool.available(), kModelBlocks);
    ASSERT_EQ(status.g4->pool.available(), kModelBlocks);
  }

  ScratchFolder folder_;
  const ScopedLogSink quiet_{[](LogLevel, std::string_view, std::string_view) {}};
  Random random_{41};
  std::vector<std::vector<SequenceHash>> sequences_;
  std::unique_ptr<Volume> volume_;
  std::unique_ptr<KvBlockManager> kv_;
  Mirror mirror_;
  std::uint64_t hits_ = 0;  // of the managers that are gone: a restart may come just before the end

  std::array<std::set<SequenceHash>, 4> in_;  // what each tier holds
  std::set<SequenceHash> objects_;            // on the volume, known or not
  std::set<SequenceHash> damaged_;            // in G3, but not what they were
  bool attached_ = true;
};

TEST_P(TierModelTest, RandomOperationsDoWhatTheModelSays) {
  const bool most_used = GetParam().name == "lru";
  const ashlar::testing::TimeBox box(most_used ? 2 : 0);
  int step = 0;
  const int steps = static_cast<int>(ashlar::testing::rounds(most_used ? 8000 : 600));
  for (; step < steps || (step < 1'000'000 && !box.over()); ++step) {
    SCOPED_TRACE(step);
    switch (random_.below(40)) {
      case 0:
        reset();
        break;
      case 1:
      case 2:
        reset_blocks();
        break;
      case 3:
        attach_or_detach();
        break;
      case 4:
        remove_behind_its_back();
        break;
      case 5:
        damage();
        break;
      case 6:
        if (random_.below(20) == 0) restart();
        break;
      case 7:
      case 8:
      case 9:
        prefetch();
        break;
      case 10:
      case 11:
      case 12:
        find();
        break;
      default:
        random_.below(3) == 0 ? offload() : request();
        break;
    }
    ASSERT_FALSE(HasFatalFailure());
    compare();
    ASSERT_FALSE(HasFatalFailure());
  }
  RecordProperty("steps", step);
  EXPECT_GT(hits_ + kv_->status().g1.hits, 0u);
}

INSTANTIATE_TEST_SUITE_P(Backends, TierModelTest, ::testing::ValuesIn(every_eviction()),
                         [](const auto& info) { return info.param.name; });

// Small tiers that evict all the time, and workers that run by themselves: who is evicted when is nobody's
// promise, but what the events say is what the registry says, and every hit has its bytes.
class TierEvictionTest : public ::testing::TestWithParam<EvictionCase> {};

TEST_P(TierEvictionTest, EventsAndPresenceAgreeWhileTiersEvict) {
  const ScratchFolder folder;
  KvOptions options = KvWorkload::options_in(folder.path());
  options.g3->block_count = 18;
  options.g3->survive_power_loss = false;
  options.g4->block_count = 15;
  options.g4->volumes[0].options = {{"sync", "false"}};
  options.g4->remove_evicted = true;
  options.read_back_after_write = true;
  options.event_capacity = 1 << 16;
  options.to_g3.trigger = Trigger::kNearEviction;
  options.to_g3.look_ahead = 4;
  GetParam().apply(options);
  const auto kv = KvBlockManager::create(options).value();
  KvWorkload workload(*kv);
  Mirror mirror;
  Random random(17);
  std::vector<std::vector<SequenceHash>> sequences;
  for (std::uint64_t i = 0; i < 14; ++i) sequences.push_back(KvWorkload::sequence(i, 6));
  const ashlar::testing::UntilSeen box(GetParam().name == "lru" ? 1.5 : 0.2);
  const auto seen = [&] {
    const KvStatus status = kv->status();
    return status.g2->evictions > 0 && status.g3->evictions > 0 && status.g4->evictions > 0 &&
           status.g3->onboarded + status.g4->onboarded > 0;
  };
  int wrong = 0;
  const int steps = GetParam().name == "lru" ? 300 : static_cast<int>(ashlar::testing::rounds(300));
  for (int step = 0; step < steps || !box.over(seen); ++step) {
    SCOPED_TRACE(step);
    const auto& sequence = sequences[random.below(sequences.size())];
    const std::vector<SequenceHash> hashes(
        sequence.begin(), sequence.begin() + 1 + static_cast<std::ptrdiff_t>(random.below(6)));
    {
      const auto table = workload.request(hashes, &wrong);
    }
    if (random.below(20) == 0) {
      ASSERT_TRUE(kv->reset_blocks(std::span(hashes).first(1)));
    }
    if (random.below(8) == 0) {
      const OnboardHandle handle = kv->onboard_async(hashes).value();
      if (random.below(2) == 0) handle.cancel();
      static_cast<void>(handle.wait());
    }
    ASSERT_EQ(wrong, 0);
    if (random.below(10) != 0) continue;
    kv->drain();
    kv->check_invariants();
    kv->drain_events(mirror);
    ASSERT_FALSE(::testing::Test::HasFailure());
    for (std::uint8_t tier = 0; tier < 4; ++tier) {
      std::set<SequenceHash> has;
      const std::array<events::TierId, 1> id = {events::TierId(tier)};
      for (const auto& each : sequences) {
        const auto present = kv->registry().check_presence_any(each, id);
        for (std::size_t i = 0; i < each.size(); ++i)
          if (present[i]) has.insert(each[i]);
      }
      ASSERT_EQ(mirror.present[tier], has) << "tier " << tier + 1;
    }
  }
  kv->drain();
  const KvStatus status = kv->status();
  EXPECT_GT(status.g2->evictions, 0u);
  EXPECT_GT(status.g3->evictions, 0u);
  EXPECT_GT(status.g4->evictions, 0u);
  EXPECT_GT(status.g3->onboarded + status.g4->onboarded, 0u);
  EXPECT_EQ(status.g3->damaged + status.g4->damaged, 0u);
  EXPECT_EQ(status.g1.pool.available(), 8u);
  EXPECT_EQ(status.g2->pool.available(), 12u);
  EXPECT_EQ(status.g3->pool.available(), 18u);
  EXPECT_EQ(status.g4->pool.available(), 15u);
}

INSTANTIATE_TEST_SUITE_P(Backends, TierEvictionTest, ::testing::ValuesIn(every_eviction()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ashlar::tiers
