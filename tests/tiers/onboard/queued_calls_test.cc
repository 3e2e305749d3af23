// Calls that wait for a thread of the onboarder while others hang in a volume. No time is measured: the
// volume does not answer before the test lets it.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <semaphore>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/gates.h"
#include "tiers/requests_fixture.h"

namespace ashlar::tiers {
namespace {

// Has no object, and says so when the gate is open.
class GatedVolume final : public Volume {
 public:
  explicit GatedVolume(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  std::string describe() const override { return "gated"; }
  std::vector<Result<void>> put(std::span<const ObjectWrite> objects, const CallLimits&) override {
    return std::vector<Result<void>>(objects.size(), make_error(ErrorCode::kUnavailable, "it takes none"));
  }
  std::vector<Result<void>> get(std::span<const ObjectRead> objects, const CallLimits&) override {
    return std::vector<Result<void>>(objects.size(), make_error(ErrorCode::kNotFound, "it has none"));
  }
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys, const CallLimits&) override {
    gate_->pass();
    return std::vector<Result<bool>>(keys.size(), Result<bool>(false));
  }
  std::vector<Result<void>> remove(std::span<const std::string_view> keys, const CallLimits&) override {
    return std::vector<Result<void>>(keys.size());
  }

 private:
  const std::shared_ptr<Gate> gate_;
};

class QueuedCallsTest : public RequestsTest {
 protected:
  QueuedCallsTest() {
    KvOptions options = KvWorkload::options_in(folder_.path());
    options.g3.reset();
    options.g4 = VolumeShape{.block_count = 40, .volumes = {{.name = "v", .kind = "gated", .location = "-"}}};
    options.g4->kinds.add("gated",
                          [gate = gate_](const VolumeDescriptor&) -> Result<std::unique_ptr<Volume>> {
                            return std::unique_ptr<Volume>(std::make_unique<GatedVolume>(gate));
                          });
    options.to_g4.trigger = Trigger::kOnCall;
    options.onboard_threads = 1;
    options.clock = &clock_;
    open(std::move(options));
  }
  ~QueuedCallsTest() override {
    gate_->open();
    kv_.reset();
  }
  // Occupies the thread with a call that asks the volume.
  OnboardHandle hang() {
    OnboardHandle handle = kv_->onboard_async(KvWorkload::sequence(99, 1)).value();
    gate_->wait_for_somebody();
    return handle;
  }
  // A prompt of three blocks that are in G2 alone.
  std::vector<Token> in_g2(std::uint32_t which) {
    {
      Request computed = request(text(which, 13));
      prefill(computed);
    }
    only_in(kG2);
    return text(which, 13);
  }

  ManualClock clock_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
};

TEST_F(QueuedCallsTest, AMatchIsAnsweredAtTheEndOfItsTime) {
  const OnboardHandle hangs = hang();
  RequestOptions options;
  options.onboard.time = std::chrono::seconds(1);
  Request whole = request(text(1, 13), options);
  options.groups = {block::CacheGroup::full_attention(), block::CacheGroup::full_attention()};
  Request grouped = request(text(2, 13), options);
  std::counting_semaphore<> ready{0};
  ASSERT_TRUE(whole.begin_match([&] { ready.release(); })->pending);
  ASSERT_TRUE(grouped.begin_match([&] { ready.release(); })->pending);
  const OnboardHandle fetched =
      kv_->prefetch(KvWorkload::sequence(3, 2), {.deadline = clock_.now() + std::chrono::seconds(2)}).value();
  EXPECT_FALSE(ready.try_acquire());
  clock_.advance(std::chrono::seconds(1));
  ready.acquire();
  ready.acquire();
  EXPECT_EQ(whole.finish_match().value(), 0u);
  EXPECT_EQ(grouped.finish_match().value(), 0u);
  EXPECT_FALSE(fetched.done());
  clock_.advance(std::chrono::seconds(1));
  EXPECT_TRUE(fetched.wait());
  EXPECT_EQ(fetched.blocks()[0].miss, Miss::kLate);
  EXPECT_FALSE(hangs.done());
}

TEST_F(QueuedCallsTest, WhatIsInMemoryIsNotBehindAVolume) {
  const std::vector<Token> prompt = in_g2(1);
  const OnboardHandle hangs = hang();
  const OnboardHandle behind = kv_->onboard_async(KvWorkload::sequence(98, 1)).value();
  for (int i = 0; i < 3; ++i) {
    Request again = request(prompt);
    std::binary_semaphore ready{0};
    ASSERT_TRUE(again.begin_match([&] { ready.release(); })->pending);
    ready.acquire();
    EXPECT_EQ(again.finish_match().value(), 12u);
    EXPECT_TRUE(right(again));
    again = request(text(7, 13));
    kv_->reset(kG1).value();
  }
  EXPECT_FALSE(hangs.done() || behind.done());
  gate_->open();
  EXPECT_TRUE(hangs.wait().value().empty());
  EXPECT_TRUE(behind.wait().value().empty());
  kv_->check_invariants();
}

TEST_F(QueuedCallsTest, AShutdownEndsThemAll) {
  const std::vector<Token> prompt = in_g2(1);
  const OnboardHandle hangs = hang();
  const OnboardHandle waits =
      kv_->onboard_async(KvWorkload::sequence(2, 2), {.deadline = clock_.now() + std::chrono::hours(1)})
          .value();
  Request quick = request(prompt);
  std::binary_semaphore ready{0};
  ASSERT_TRUE(quick.begin_match([&] { ready.release(); })->pending);
  ready.acquire();
  EXPECT_TRUE(kv_->shutdown());
  EXPECT_EQ(hangs.wait().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(waits.wait().error().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace ashlar::tiers
