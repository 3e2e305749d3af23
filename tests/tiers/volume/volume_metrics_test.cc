// The counters of volumes that come and go, on the page that Prometheus reads.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "ashlar/base/metrics.h"
#include "support/scratch_folder.h"
#include "tiers/volume/volume_tier.h"

namespace ashlar::tiers {
namespace {

class VolumeMetricsTest : public ::testing::Test {
 protected:
  VolumeDescriptor volume(const std::string& name) const {
    std::filesystem::create_directories(folder_.file(name));
    return {.name = name, .kind = "directory", .location = folder_.file(name)};
  }
  // Puts three blocks on the only volume, and reads them back.
  static void use(VolumeTier& tier, std::uint64_t number) {
    const VolumeTier::Hashes hashes = VolumeTier::sequence(number, 3);
    EXPECT_EQ(tier.request(hashes), 0u);
    tier.push_out();
    EXPECT_EQ(tier.onboard(hashes), 3u);
  }
  static bool has(const MetricRegistry& registry, const std::string& line) {
    return ("\n" + registry.prometheus_text()).find("\n" + line + "\n") != std::string::npos;
  }

  ScratchFolder folder_;
};

TEST_F(VolumeMetricsTest, AVolumeThatIsRegisteredLaterIsOnThePage) {
  VolumeTier tier(VolumeTier::options({volume("early")}));
  MetricRegistry registry;
  {
    const auto registered = tier.kv().add_metrics(registry, {{"zone", "a"}, {"model", "m"}});
    ASSERT_TRUE(registered) << registered.error();
    EXPECT_TRUE(has(registry, "ashlar_volume_put_total{model=\"m\",volume=\"early\",zone=\"a\"} 0"));
    use(tier, 1);
    ASSERT_TRUE(tier.kv().unregister_volume("early"));
    ASSERT_TRUE(tier.kv().register_volume(volume("late")));
    EXPECT_TRUE(has(registry, "ashlar_volume_put_total{model=\"m\",volume=\"late\",zone=\"a\"} 0"));
    use(tier, 2);
    for (const char* const name : {"early", "late"}) {
      const std::string labels = std::string("{model=\"m\",volume=\"") + name + "\",zone=\"a\"}";
      EXPECT_TRUE(has(registry, "ashlar_volume_put_total" + labels + " 3")) << registry.prometheus_text();
      EXPECT_TRUE(has(registry, "ashlar_volume_got_total" + labels + " 3"));
      EXPECT_TRUE(has(registry, "ashlar_volume_failures_total" + labels + " 0"));
    }
    EXPECT_TRUE(has(registry, "# TYPE ashlar_volume_put_total counter"));
    // A counter never falls: who comes back continues.
    ASSERT_TRUE(tier.kv().unregister_volume("late"));
    ASSERT_TRUE(tier.kv().register_volume(volume("early")));
    use(tier, 3);
    EXPECT_TRUE(has(registry, "ashlar_volume_put_total{model=\"m\",volume=\"early\",zone=\"a\"} 6"));
    EXPECT_TRUE(has(registry, "ashlar_volume_put_total{model=\"m\",volume=\"late\",zone=\"a\"} 3"));
  }
  EXPECT_EQ(registry.prometheus_text(), "") << "they went with the registrations";
}

TEST_F(VolumeMetricsTest, AManagerWithoutVolumesGetsThemWithItsFirst) {
  VolumeTier tier(VolumeTier::options({}));
  MetricRegistry registry;
  const auto registered = tier.kv().add_metrics(registry);
  ASSERT_TRUE(registered) << registered.error();
  EXPECT_EQ(registry.prometheus_text().find("ashlar_volume_"), std::string::npos);
  ASSERT_TRUE(tier.kv().register_volume(volume("v")));
  use(tier, 1);
  EXPECT_TRUE(has(registry, "ashlar_volume_got_total{volume=\"v\"} 3"));
}

}  // namespace
}  // namespace ashlar::tiers
