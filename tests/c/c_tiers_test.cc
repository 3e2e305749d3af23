// Random calls over tiers through the C interface: no block is lost, and none has the bytes of another.
#include <gtest/gtest.h>

#include "support/scratch_folder.h"
#include "tests/c/tier_calls.h"

namespace ashlar::testing {
namespace {

TEST(CTiers, RandomCallsKeepEveryBlockWhole) {
  std::size_t before = 0, after = 0;
  ASSERT_EQ(ashlar_open_handles(&before), ASHLAR_OK);
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const ScratchFolder folder;
    TierWorld world(folder.file("g3"));
    {
      TierCalls calls(world, seed);
      for (int i = 0; i < 400 || calls.verified() < 20; ++i) calls.step();
    }
    world.end();
  }
  ASSERT_EQ(ashlar_open_handles(&after), ASHLAR_OK);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace ashlar::testing
