#include "ashlar/base/check.h"

#include <gtest/gtest.h>

namespace ashlar {
namespace {

TEST(CheckTest, TrueConditionDoesNothingAndIsEvaluatedOnce) {
  int evaluated = 0;
  ASHLAR_CHECK(++evaluated == 1, "counted %d", evaluated);
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckTest, StandsAloneUnderAnIf) {
  bool reached = false;
  if (reached)
    ASHLAR_CHECK(false, "not reached");
  else
    reached = true;
  EXPECT_TRUE(reached);
}

TEST(CheckDeathTest, FalseConditionStopsAndSaysWhereAndWhy) {
  const int limit = 4;
  EXPECT_DEATH(ASHLAR_CHECK(limit > 4, "limit is %d", limit),
               "ashlar: check failed at .*check_test\\.cc:[0-9]+: limit > 4: limit is 4");
}

TEST(CheckDeathTest, HotPathCheckFollowsTheBuildSetting) {
#ifdef ASHLAR_DCHECKS
  EXPECT_DEATH(ASHLAR_DCHECK(1 > 2, "off by %d", 1), "1 > 2: off by 1");
#else
  int evaluated = 0;
  ASHLAR_DCHECK(++evaluated > 5, "never printed");
  EXPECT_EQ(evaluated, 0);
#endif
}

}  // namespace
}  // namespace ashlar
