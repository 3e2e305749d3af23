#include "ashlar/tokens/salt.h"

#include <gtest/gtest.h>

namespace ashlar::tokens {
namespace {

TEST(SaltTest, EmptySaltHasTheBaseSeed) {
  EXPECT_EQ(Salt().seed(), 1337u);
  EXPECT_EQ(Salt("", "").seed(), 1337u);
  EXPECT_TRUE(Salt("", "").empty());
  EXPECT_EQ(Salt("", ""), Salt());
}

TEST(SaltTest, LoraAndTenantGiveTheSeedsOfTheField) {
  EXPECT_EQ(Salt("adapter-a", "").seed(), 8842669519798868182u);
  EXPECT_EQ(Salt("", "tenant-a").seed(), 1948188790972764086u);
  EXPECT_EQ(Salt("adapter-a", "tenant-a").seed(), 10790858310771630931u);
}

TEST(SaltTest, LoraAndTenantAreNotInterchangeable) {
  EXPECT_NE(Salt("x", "").seed(), Salt("", "x").seed());
  EXPECT_NE(Salt("x", "y").seed(), Salt("y", "x").seed());
  EXPECT_NE(Salt("x", "y"), Salt("y", "x"));
  EXPECT_FALSE(Salt("x", "").empty());
}

}  // namespace
}  // namespace ashlar::tokens
