// What takes long is done by a thread of its own, while other requests go on.
#include "service/gateway/chores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <new>

#include "service/gateway/fake_workers.h"
#include "service/gateway/fleet.h"

namespace ashlar::service {
namespace {

// An engine that says nothing, and does not let its listener go until it is told to.
class StubbornEngine final : public feed::EngineSource {
 public:
  // Shared with the test.
  struct Control {
    std::promise<void> release;
    std::shared_future<void> released = release.get_future().share();
    std::atomic<bool> listens{false};
  };
  explicit StubbornEngine(std::shared_ptr<Control> control) : control_(std::move(control)) {}
  Result<std::optional<feed::EngineMessage>> receive(Clock::Duration) override {
    control_->listens = true;
    control_->released.wait_for(std::chrono::minutes(1));  // where the test fails, it ends all the same
    return Error(ErrorCode::kUnavailable, "silent");
  }
  Result<feed::EngineReplay> replay(std::uint64_t) override { return Error(ErrorCode::kUnsupported, "none"); }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "stubborn"; }

 private:
  std::shared_ptr<Control> control_;
};

constexpr const char* kRegistration =
    R"({"instance_id":77,"endpoint":"tcp://x:1","model_name":"m","block_size":16})";
constexpr const char* kUnregistration = R"({"instance_id":77,"model_name":"m"})";

TEST(Chores, OtherRequestsGoOnWhileAFollowerEnds) {
  const auto engine = std::make_shared<StubbornEngine::Control>();
  ServiceUnderTest service(ServiceUnderTest::options_of(1), {}, [engine](const EngineEndpoint&) {
    return Result<std::unique_ptr<feed::EngineSource>>(std::make_unique<StubbornEngine>(engine));
  });
  const auto registered = service.begin("/register", kRegistration);
  service.finish(*registered);
  ASSERT_EQ(std::get<Reply>(registered->step).status, 201u);

  while (!engine->listens) std::this_thread::yield();
  const auto leaving = service.begin("/unregister", kUnregistration);
  ASSERT_TRUE(std::holds_alternative<Wait>(leaving->step)) << "it does not hold up the thread that asks";
  const auto dump = service.begin("/dump", {}, {}, "GET");
  ASSERT_TRUE(std::holds_alternative<Wait>(dump->step));
  auto given_up = service.begin("/dump", {}, {}, "GET");
  given_up->passage->ended(PassageEnd::kClientGone);
  given_up.reset();
  // Others do not notice.
  EXPECT_EQ(service.get("/health").status, 200u);
  EXPECT_EQ(service.get("/fleet").status, 200u);
  const auto open = service.begin("/v1/completions", tokens_body(40));
  EXPECT_TRUE(std::holds_alternative<Forward>(open->step));
  EXPECT_EQ(*leaving->wakes, 0);
  // A wake too many changes nothing.
  leaving->step = leaving->passage->resumed();
  EXPECT_TRUE(std::holds_alternative<Wait>(leaving->step));

  engine->release.set_value();
  service.finish(*leaving);
  EXPECT_EQ(std::get<Reply>(leaving->step).status, 200u);
  service.finish(*dump);
  EXPECT_EQ(std::get<Reply>(dump->step).status, 200u);
  const auto again = service.begin("/unregister", kUnregistration);
  service.finish(*again);
  EXPECT_EQ(std::get<Reply>(again->step).status, 404u);
}

TEST(Chores, AreBounded) {
  const auto engine = std::make_shared<StubbornEngine::Control>();
  ServiceUnderTest service(ServiceUnderTest::options_of(1), {}, [engine](const EngineEndpoint&) {
    return Result<std::unique_ptr<feed::EngineSource>>(std::make_unique<StubbornEngine>(engine));
  });
  const auto registered = service.begin("/register", kRegistration);
  service.finish(*registered);
  while (!engine->listens) std::this_thread::yield();
  const auto leaving = service.begin("/unregister", kUnregistration);
  std::vector<std::unique_ptr<ServiceUnderTest::Open>> waiting;
  while (service.get("/workers").body.find("77") != std::string::npos) std::this_thread::yield();
  while (waiting.size() < Chores::kMostChores) {
    waiting.push_back(service.begin("/dump", {}, {}, "GET"));
    ASSERT_TRUE(std::holds_alternative<Wait>(waiting.back()->step));
  }
  const auto too_many = service.begin("/dump", {}, {}, "GET");
  const auto* refusal = std::get_if<Reply>(&too_many->step);
  ASSERT_NE(refusal, nullptr);
  EXPECT_EQ(refusal->status, 503u);
  EXPECT_THAT(refusal->headers, ::testing::Contains(::testing::Pair("Retry-After", "1")));
  engine->release.set_value();
  for (const auto& one : waiting) {
    service.finish(*one);
    EXPECT_EQ(std::get<Reply>(one->step).status, 200u);
  }
  const auto huge = service.begin("/register", std::string(2 << 20, ' '));
  EXPECT_EQ(std::get<Reply>(huge->step).status, 413u);
}

TEST(Chores, AWorkerThatLeavesIsNotRegisteredAgainBeforeItHasLeft) {
  const auto engine = std::make_shared<StubbornEngine::Control>();
  const ServeOptions options;
  Router router;
  Fleet fleet(
      options, router,
      [engine](const EngineEndpoint&) {
        return Result<std::unique_ptr<feed::EngineSource>>(std::make_unique<StubbornEngine>(engine));
      },
      Clock::real());
  Fleet::Registration worker;
  worker.instance = 77;
  worker.endpoint = "tcp://x:1";
  worker.model = "m";
  worker.block_size = 16;
  ASSERT_TRUE(fleet.register_worker(worker));
  while (!engine->listens) std::this_thread::yield();
  std::thread leaving([&] { EXPECT_TRUE(fleet.unregister_worker(77, "m", {})); });
  while (!fleet.status().empty()) std::this_thread::yield();
  const Result<void> again = fleet.register_worker(worker);
  EXPECT_FALSE(again);
  if (!again) {
    EXPECT_EQ(again.error().code(), ErrorCode::kAlreadyExists);
    EXPECT_THAT(again.error().message(), ::testing::HasSubstr("leaves"));
  }
  EXPECT_FALSE(fleet.unregister_worker(77, "m", {})) << "it leaves already";
  engine->release.set_value();
  leaving.join();
  EXPECT_TRUE(router.loads().empty());
  EXPECT_TRUE(fleet.register_worker(worker));
  EXPECT_EQ(router.loads().size(), 1u);
  EXPECT_EQ(fleet.status().size(), 1u);
}

TEST(Chores, ThatThrowAnswerTheirClient) {
  ServiceUnderTest service(
      ServiceUnderTest::options_of(1), {},
      [](const EngineEndpoint&) -> Result<std::unique_ptr<feed::EngineSource>> { throw std::bad_alloc(); });
  const auto registered = service.begin("/register", kRegistration);
  service.finish(*registered);
  EXPECT_EQ(std::get<Reply>(registered->step).status, 500u);
  EXPECT_EQ(service.get("/dump").status, 200u) << "the next one is done";
}

TEST(Chores, GoOnAfterOneThatFails) {
  auto chores = Chores::create().value();
  std::promise<void> done;
  chores->add([] { throw std::bad_alloc(); });
  chores->add([&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
}

TEST(Chores, ThatWaitAreDroppedAtTheEnd) {
  std::promise<void> release;
  std::promise<void> began;
  std::atomic<int> done{0};
  {
    auto chores = Chores::create().value();
    chores->add([&, released = release.get_future().share()] {
      began.set_value();
      released.wait();
      ++done;
    });
    began.get_future().wait();
    chores->add([&] { done += 10; });
    std::thread ending([&] { chores.reset(); });
    release.set_value();
    ending.join();
  }
  EXPECT_TRUE(done == 1 || done == 11) << done;
}

}  // namespace
}  // namespace ashlar::service
