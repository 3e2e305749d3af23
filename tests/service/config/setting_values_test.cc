#include "service/config/setting_values.h"

#include <gtest/gtest.h>

#include <string>

#include "ashlar/base/random.h"

namespace ashlar::service {
namespace {

using namespace std::chrono_literals;

TEST(SettingValues, DurationsHaveUnitsOrAreSeconds) {
  EXPECT_EQ(read_duration("250ms"), 250ms);
  EXPECT_EQ(read_duration("5s"), 5s);
  EXPECT_EQ(read_duration("2m"), 2min);
  EXPECT_EQ(read_duration("1h"), 1h);
  EXPECT_EQ(read_duration("1.5h"), 90min);
  EXPECT_EQ(read_duration("30"), 30s);
  EXPECT_EQ(read_duration("0.25"), 250ms);
  EXPECT_EQ(read_duration("0.000000001"), 1ns);
  EXPECT_EQ(read_duration("0"), 0s);
  for (const char* text : {"", "s", "-1s", "1 s", "1d", "1S", ".5", "5.", "1.2.3", "0.0000000001", "1e3",
                           "inf", "99999999999h", "18446744073709551616", "87841h"})
    EXPECT_EQ(read_duration(text), std::nullopt) << text;
}

TEST(SettingValues, SizesHaveUnitsOrAreBytes) {
  EXPECT_EQ(read_bytes("64MiB"), std::uint64_t{64} << 20);
  EXPECT_EQ(read_bytes("512KiB"), std::uint64_t{512} << 10);
  EXPECT_EQ(read_bytes("1GiB"), std::uint64_t{1} << 30);
  EXPECT_EQ(read_bytes("0.5MiB"), std::nullopt);  // no power of ten divides a MiB fully
  EXPECT_EQ(read_bytes("77"), 77u);
  EXPECT_EQ(read_bytes("18446744073709551615"), UINT64_MAX);
  for (const char* text : {"", "MiB", "-1", "1MB", "1 MiB", "1.5", "18446744073709551616", "17179869184GiB"})
    EXPECT_EQ(read_bytes(text), std::nullopt) << text;
}

TEST(SettingValues, WeightsHaveThreeDecimals) {
  EXPECT_EQ(read_decimal("0.75", 1000), 750u);
  EXPECT_EQ(read_decimal("12", 1000), 12'000u);
  EXPECT_EQ(read_decimal("0.001", 1000), 1u);
  EXPECT_EQ(read_decimal("1.5000", 1000), 1500u);
  EXPECT_EQ(read_decimal("0.0001", 1000), std::nullopt);
  EXPECT_EQ(read_decimal("18446744073709552", 1000), std::nullopt);
}

TEST(SettingValues, WhatIsShownIsReadAgain) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto nanoseconds = static_cast<std::int64_t>(random.next() >> (6 + random.below(58)));
    constexpr std::int64_t kScales[] = {1, 1'000'000, 1'000'000'000, 60'000'000'000, 3'600'000'000'000};
    const std::int64_t scale = kScales[random.below(5)];
    const Clock::Duration duration(nanoseconds % (300'000'000'000'000'000 / scale) * scale);
    EXPECT_EQ(read_duration(show_duration(duration)), duration) << show_duration(duration);
    const std::uint64_t bytes =
        (random.next() >> random.below(64)) & ~((std::uint64_t{1} << random.below(32)) - 1);
    EXPECT_EQ(read_bytes(show_bytes(bytes)), bytes) << show_bytes(bytes);
    const auto weight = static_cast<std::int32_t>(random.below(1'000'001));
    EXPECT_EQ(read_decimal(show_thousandths(weight), 1000), weight) << show_thousandths(weight);
  }
  EXPECT_EQ(show_duration(10min), "10m");
  EXPECT_EQ(show_duration(90s), "90s");
  EXPECT_EQ(show_duration(1500ms), "1500ms");
  EXPECT_EQ(show_duration(1ns), "0.000000001s");
  EXPECT_EQ(show_bytes(64 << 20), "64MiB");
  EXPECT_EQ(show_thousandths(250), "0.25");
}

}  // namespace
}  // namespace ashlar::service
