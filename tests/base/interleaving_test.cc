#include "base/interleaving.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ashlar {
namespace {

class Recorder final : public InterleavingHook {
 public:
  void at(const char* point) override { points.emplace_back(point); }
  std::vector<std::string> points;
};

TEST(InterleavingTest, HookSeesEachPointWhileItIsInstalled) {
  Recorder recorder;
  interleaving_point("before");
  set_interleaving_hook(&recorder);
  interleaving_point("first");
  interleaving_point("second");
  set_interleaving_hook(nullptr);
  interleaving_point("after");
  EXPECT_EQ(recorder.points, (std::vector<std::string>{"first", "second"}));
}

}  // namespace
}  // namespace ashlar
