// What a passage does when a worker fails, and what that says about the worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "service/gateway/fake_workers.h"

namespace ashlar::service {
namespace {

using ::testing::HasSubstr;

// Workers that rest for as long as a test takes, once they are taken out.
ServeOptions lasting_rests(std::size_t workers) {
  ServeOptions options = ServiceUnderTest::options_of(workers);
  options.breaker_rest = std::chrono::hours(1);
  options.health_interval = std::chrono::hours(1);
  return options;
}

double workers_up(ServiceUnderTest& service) {
  return service.metric("ashlar_serve_workers_up");
}

// A request whose answer begins with this status, and ends so.
void pass_to_end(ServiceUnderTest& service, unsigned status, PassageEnd end) {
  const auto open = service.begin("/v1/completions", tokens_body(40));
  ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
  ASSERT_FALSE(open->passage->head(status, kJsonHead).instead);
  open->passage->ended(end);
}

TEST(PassageFaults, AWorkerThatDiesInEveryAnswerIsTakenOut) {
  ServiceUnderTest service(lasting_rests(1));
  for (int i = 0; i < 2; ++i) pass_to_end(service, 200, PassageEnd::kWorkerBroke);
  pass_to_end(service, 200, PassageEnd::kComplete);  // not in a row
  pass_to_end(service, 200, PassageEnd::kWorkerBroke);
  pass_to_end(service, 200, PassageEnd::kClientGone);  // says nothing
  pass_to_end(service, 200, PassageEnd::kWorkerBroke);
  EXPECT_EQ(workers_up(service), 1);
  pass_to_end(service, 200, PassageEnd::kWorkerBroke);
  EXPECT_EQ(workers_up(service), 0);
  EXPECT_THAT(service.get("/fleet").body, HasSubstr("3 failures in a row, the last: broke off its answer"));
}

}  // namespace
}  // namespace ashlar::service
