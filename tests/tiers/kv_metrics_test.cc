// The metrics page of a manager with four tiers, read as Prometheus reads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ashlar/base/metrics.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using tokens::SequenceHash;

struct Page {
  std::map<std::string, std::uint64_t> samples;  // by name and labels, as written
  std::map<std::string, std::string> types;

  explicit Page(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("# TYPE ")) {
        std::istringstream words(line.substr(7));
        std::string name;
        std::string type;
        words >> name >> type;
        EXPECT_TRUE(types.emplace(name, type).second) << name << " is written twice";
      } else if (!line.starts_with("#")) {
        const std::size_t end = line.rfind(' ');
        const auto value = static_cast<std::uint64_t>(std::stod(line.substr(end + 1)));
        EXPECT_TRUE(samples.emplace(line.substr(0, end), value).second) << line << " is written twice";
      }
    }
  }
  std::uint64_t operator()(const std::string& sample) const {
    const auto found = samples.find(sample);
    EXPECT_NE(found, samples.end()) << sample << " is not on the page";
    return found == samples.end() ? ~std::uint64_t{0} : found->second;
  }
  std::size_t count(const std::string& start) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(samples, [&](const auto& sample) { return sample.first.starts_with(start); }));
  }
};

class KvMetricsTest : public ::testing::Test {
 protected:
  void open() { kv_ = KvBlockManager::create(KvWorkload::options_in(folder_.path())).value(); }
  void request(std::uint64_t number, std::size_t blocks) {
    int wrong = 0;
    const auto table = KvWorkload(*kv_).request(KvWorkload::sequence(number, blocks), &wrong);
    ASSERT_TRUE(table);
    ASSERT_EQ(wrong, 0);
  }
  static std::string in(const std::string& name, const std::string& tier) {
    return "ashlar_" + name + "{model=\"m\",tier=\"" + tier + "\"}";
  }
  static std::string on(const std::string& name, const std::string& to, const std::string& more = "") {
    return "ashlar_" + name + "{from=\"" + (to == "g2" ? "g1" : "g2") + "\",model=\"m\"," + more + "to=\"" +
           to + "\"}";
  }
  // Every figure of status() and counters() is on the page.
  void expect_same(const Page& page) const {
    const KvStatus status = kv_->status();
    const auto expect_tier = [&](const std::string& tier, const TierStatus& of, const auto& manager) {
      const auto state = [&](const char* name) {
        return page("ashlar_pool_blocks{model=\"m\",state=\"" + std::string(name) + "\",tier=\"" + tier +
                    "\"}");
      };
      EXPECT_EQ(state("reset"), of.pool.reset);
      EXPECT_EQ(state("inactive"), of.pool.inactive);
      EXPECT_EQ(state("pinned_inactive"), of.pool.pinned_inactive);
      EXPECT_EQ(state("held_inactive"), of.pool.held_inactive);
      EXPECT_EQ(state("active"), of.pool.active);
      EXPECT_EQ(state("owned"), of.pool.owned);
      EXPECT_EQ(state("quarantined"), of.pool.quarantined);
      EXPECT_EQ(page(in("pool_waiters", tier)), of.pool.waiters);
      EXPECT_EQ(page(in("tier_hits_total", tier)), of.hits);
      EXPECT_EQ(page(in("tier_onboarded_total", tier)), of.onboarded);
      EXPECT_EQ(page(in("tier_evictions_total", tier)), of.evictions);
      const block::ManagerCounters counters = manager.counters();
      EXPECT_EQ(page(in("manager_allocations_total", tier)), counters.allocations);
      EXPECT_EQ(page(in("manager_allocations_from_reset_total", tier)), counters.allocations_from_reset);
      EXPECT_EQ(page(in("manager_evictions_total", tier)), counters.evictions);
      EXPECT_EQ(page(in("manager_stagings_total", tier)), counters.stagings);
      EXPECT_EQ(page(in("manager_registrations_total", tier)), counters.registrations);
      EXPECT_EQ(page(in("manager_duplicates_total", tier)), counters.duplicates);
      EXPECT_EQ(page(in("manager_deduplications_total", tier)), counters.deduplications);
      EXPECT_EQ(page(in("manager_collisions_total", tier)), counters.collisions);
      EXPECT_EQ(page(in("manager_match_hashes_requested_total", tier)), counters.match_hashes_requested);
      EXPECT_EQ(page(in("manager_match_blocks_returned_total", tier)), counters.match_blocks_returned);
      EXPECT_EQ(page(in("manager_match_probes_total", tier)), counters.match_probes);
      EXPECT_EQ(page(in("manager_scan_hashes_requested_total", tier)), counters.scan_hashes_requested);
      EXPECT_EQ(page(in("manager_scan_blocks_returned_total", tier)), counters.scan_blocks_returned);
      EXPECT_EQ(page(in("manager_revivals_total", tier)), counters.revivals);
      EXPECT_EQ(page(in("manager_quarantines_total", tier)), counters.quarantines);
      EXPECT_EQ(page(in("manager_late_releases_total", tier)), counters.late_releases);
    };
    expect_tier("g1", status.g1, kv_->g1());
    expect_tier("g2", *status.g2, *kv_->g2());
    expect_tier("g3", *status.g3, *kv_->g3());
    expect_tier("g4", *status.g4, *kv_->g4());
    const auto expect_route = [&](const std::string& to, const OffloadCounters& counters) {
      const auto outcome = [&](const std::string& name) {
        return page(on("offload_blocks_total", to, "outcome=\"" + name + "\","));
      };
      const auto stage = [&](const std::string& name) {
        return page(on("offload_queue_blocks", to, "stage=\"" + name + "\","));
      };
      EXPECT_EQ(outcome("arrived"), counters.arrived);
      EXPECT_EQ(outcome("present"), counters.present);
      EXPECT_EQ(outcome("filtered"), counters.filtered);
      EXPECT_EQ(outcome("gone"), counters.gone);
      EXPECT_EQ(outcome("damaged"), counters.damaged);
      EXPECT_EQ(outcome("failed"), counters.failed);
      EXPECT_EQ(outcome("stopped"), counters.stopped);
      EXPECT_EQ(page(on("offload_batches_total", to)), counters.batches);
      EXPECT_EQ(page(on("offload_bytes_total", to)), counters.bytes);
      EXPECT_EQ(stage("blocked"), counters.blocked);
      EXPECT_EQ(stage("waiting"), counters.queue.waiting);
      EXPECT_EQ(stage("on_deck"), counters.queue.on_deck);
      EXPECT_EQ(stage("in_flight"), counters.queue.in_flight);
      EXPECT_EQ(page(on("offload_queue_offered_total", to)), counters.queue.offered);
      EXPECT_EQ(page(on("offload_queue_discarded_total", to)), counters.queue.discarded);
      EXPECT_EQ(page(on("offload_queue_displaced_total", to)), counters.queue.displaced);
      EXPECT_EQ(page(on("offload_queue_refused_total", to)), counters.queue.refused);
      EXPECT_EQ(page(on("offload_queue_cancelled_total", to)), counters.queue.cancelled);
      EXPECT_EQ(page(on("offload_queue_taken_total", to)), counters.queue.taken);
    };
    expect_route("g2", *status.to_g2);
    expect_route("g3", *status.to_g3);
    expect_route("g4", *status.to_g4);
    EXPECT_EQ(page("ashlar_onboard_calls{model=\"m\",stage=\"queued\"}"), 0u);
    EXPECT_EQ(page("ashlar_onboard_calls{model=\"m\",stage=\"running\"}"), 0u);
    EXPECT_EQ(page.count("ashlar_offload_"), 3u * 19);
    EXPECT_EQ(page.count("ashlar_manager_"), 4u * 16);
    EXPECT_EQ(page.count("ashlar_pool_"), 4u * 8);
    for (const VolumeStatus& volume : status.volumes) {
      const std::string labels = "{model=\"m\",volume=\"" + volume.name + "\"}";
      EXPECT_EQ(page("ashlar_volume_put_total" + labels), volume.put);
      EXPECT_EQ(page("ashlar_volume_got_total" + labels), volume.got);
      EXPECT_EQ(page("ashlar_volume_failures_total" + labels), volume.failed);
    }
  }

  ScratchFolder folder_;
  std::unique_ptr<KvBlockManager> kv_;
};

TEST_F(KvMetricsTest, FourTiersAndTheirRoutesAreOnThePage) {
  open();
  MetricRegistry registry;
  {
    const auto registered = kv_->add_metrics(registry, {{"model", "m"}});
    ASSERT_TRUE(registered) << registered.error().to_string();
    expect_same(Page(registry.prometheus_text()));
    for (std::uint64_t i = 0; i < 3; ++i) {
      request(i, 4);
      kv_->drain();
    }
    const std::vector<SequenceHash> first = KvWorkload::sequence(0, 4);
    ASSERT_TRUE(kv_->offload_to(kG4, first).value().wait());
    for (const events::TierId tier : {kG1, kG2, kG3}) kv_->reset(tier).value();
    {
      const auto table = kv_->onboard(first);
      EXPECT_EQ(table.size(), 4u);
      const Page page(registry.prometheus_text());
      expect_same(page);
      EXPECT_EQ(page("ashlar_pool_blocks{model=\"m\",state=\"active\",tier=\"g1\"}"), 4u);
    }
    auto [written, signal] = block::Fence::create();
    {
      int wrong = 0;
      const auto table = KvWorkload(*kv_).request(KvWorkload::sequence(7, 2), &wrong, {.after = {written}});
    }
    const Page page(registry.prometheus_text());
    expect_same(page);
    EXPECT_EQ(page(on("offload_queue_blocks", "g2", "stage=\"blocked\",")), 2u);
    std::move(signal).signal();
    kv_->drain();

    const Page last(registry.prometheus_text());
    expect_same(last);
    EXPECT_EQ(last(in("tier_hits_total", "g4")), 4u);
    EXPECT_EQ(last("ashlar_volume_got_total{model=\"m\",volume=\"v\"}"), 4u);
    EXPECT_GE(last(on("offload_blocks_total", "g4", "outcome=\"arrived\",")), 4u);
    EXPECT_EQ(last(on("offload_queue_blocks", "g2", "stage=\"blocked\",")), 0u);
    EXPECT_EQ(last(in("manager_registrations_total", "g1")), 12u + 4u + 2u);
    for (const auto& [name, type] : last.types) {
      const bool is_gauge = name == "ashlar_pool_blocks" || name == "ashlar_offload_queue_blocks";
      EXPECT_TRUE(!name.ends_with("_total") || type == "counter") << name;
      EXPECT_TRUE(!is_gauge || type == "gauge") << name;
    }
    // A volume that goes keeps its figures: a counter never falls.
    ASSERT_TRUE(kv_->unregister_volume("v"));
    EXPECT_EQ(Page(registry.prometheus_text())("ashlar_volume_got_total{model=\"m\",volume=\"v\"}"), 4u);
  }
  EXPECT_EQ(registry.prometheus_text(), "") << "they went with the registrations";
}

TEST_F(KvMetricsTest, TwoManagersNeedLabelsThatTellThemApart) {
  open();
  const std::unique_ptr<KvBlockManager> one = std::move(kv_);
  KvOptions small = KvWorkload::options(folder_.file("other"));
  small.g3.reset();
  const auto two = KvBlockManager::create(small).value();
  MetricRegistry registry;
  const auto first = one->add_metrics(registry, {{"model", "m"}}).value();
  const auto again = two->add_metrics(registry, {{"model", "m"}});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kAlreadyExists);
  const std::size_t lines = Page(registry.prometheus_text()).samples.size();
  const auto other = two->add_metrics(registry, {{"model", "n"}});
  ASSERT_TRUE(other);
  EXPECT_GT(Page(registry.prometheus_text()).samples.size(), lines) << "a refusal left nothing behind";
}

}  // namespace
}  // namespace ashlar::tiers
