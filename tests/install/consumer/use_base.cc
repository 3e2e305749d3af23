// Uses the base layer.
#include <cstdio>
#include <string>

#include "ashlar/base/log.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/random.h"
#include "ashlar/base/result.h"

namespace {

ashlar::Result<int> dice(ashlar::Random& random) {
  if (random.chance(0.0))
    return ashlar::make_error(ashlar::ErrorCode::kInternal, "the dice fell off the table");
  return random.between(1, 6);
}

}  // namespace

int main() {
  ashlar::Random random(1);
  ashlar::MetricRegistry registry;
  const ashlar::Result<ashlar::Counter*> rolls = registry.counter({"rolls_total", "Dice rolled"});
  if (!rolls) return 1;
  for (int i = 0; i < 6; ++i) {
    const ashlar::Result<int> rolled = dice(random);
    if (!rolled || *rolled < 1 || *rolled > 6) return 1;
    (*rolls)->add();
  }
  ASHLAR_LOG(ashlar::LogLevel::kDebug, "consumer", "rolled %d times", 6);
  const std::string page = registry.prometheus_text();
  std::fputs(page.c_str(), stdout);
  return page.find("\nrolls_total 6\n") != std::string::npos ? 0 : 1;
}
