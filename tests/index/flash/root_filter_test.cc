#include "index/flash/root_filter.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::index::detail {
namespace {

TEST(RootFilterTest, NeverDeniesWhatItHasAndDeniesMostOfTheRest) {
  const auto filter = std::make_unique<RootFilter>();
  Random random(1);
  std::vector<std::uint64_t> added;
  for (int i = 0; i < 1'000; ++i) {
    added.push_back(random.next());
    filter->add(added.back());
  }
  for (const std::uint64_t hash : added) EXPECT_TRUE(filter->may_have(hash));
  int taken_for_known = 0;
  for (int i = 0; i < 10'000; ++i) taken_for_known += filter->may_have(random.next()) ? 1 : 0;
  EXPECT_LT(taken_for_known, 1'000);  // 10,000 × 1,000 / 16,384 = 610
  for (std::size_t i = 0; i < 500; ++i) filter->remove(added[i]);
  for (std::size_t i = 500; i < 1'000; ++i) EXPECT_TRUE(filter->may_have(added[i]));
  for (std::size_t i = 500; i < 1'000; ++i) filter->remove(added[i]);
  for (const std::uint64_t hash : added) EXPECT_FALSE(filter->may_have(hash));
}

TEST(RootFilterTest, ACountThatIsFullStays) {
  const auto filter = std::make_unique<RootFilter>();
  for (int i = 0; i < 254; ++i) filter->add(7);
  for (int i = 0; i < 254; ++i) filter->remove(7);
  EXPECT_FALSE(filter->may_have(7));
  for (int i = 0; i < 300; ++i) filter->add(7);
  for (int i = 0; i < 299; ++i) filter->remove(7);
  EXPECT_TRUE(filter->may_have(7));
}

}  // namespace
}  // namespace ashlar::index::detail
