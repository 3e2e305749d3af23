// RandomRoutes: a router under random inputs, beside a model of its loads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

class RandomRoutes {
 public:
  // `most`: blocks of a prompt.
  explicit RandomRoutes(std::uint64_t seed, RouteLog* log = nullptr,
                        const RouterOptions& options = tight_options(), std::uint64_t most = 11)
      : random_(seed), router_(options, log, clock_), most_(most), stride_(most < 50 ? 100 : 1000) {}

  // Limits that are reached.
  static RouterOptions tight_options() {
    return {.seed = 5, .max_sessions = 4, .max_predicted_blocks = 9, .max_predictions = 24};
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  Router& router() noexcept { return router_; }
  std::uint64_t refused() const noexcept { return refused_; }
  std::size_t chosen() const noexcept { return decisions_.size(); }
  const std::vector<Decision>& decisions() const noexcept { return decisions_; }

 private:
  struct Load {
    std::uint32_t requests = 0;
    std::uint64_t prefill = 0;
    std::uint64_t decode = 0;
  };
  struct Open {
    Decision decision;
    std::uint64_t prefill = 0;
    std::uint64_t life = 0;
  };

  std::vector<tokens::LocalHash> prompt() {
    std::vector<tokens::LocalHash> locals;
    const std::uint64_t family = random_.below(5);
    for (std::uint64_t i = random_.below(most_ + 1); i > 0; --i)
      locals.emplace_back(family * stride_ + locals.size() + (random_.below(20) == 0 ? stride_ / 2 : 0));
    return locals;
  }
  events::Worker any_worker() {
    return {.id = events::WorkerId(1 + random_.below(4)),
            .rank = static_cast<std::uint32_t>(random_.below(2))};
  }

  void step() {
    clock_.advance(std::chrono::milliseconds(random_.below(300)));
    switch (random_.below(12)) {
      case 0: {
        const events::WorkerId id(1 + random_.below(4));
        const bool was_there = lives_.contains(id);
        router_.add_worker(
            {.id = id, .group = "m", .ranks = 2, .max_running = 6, .has_events = id.value() % 2 == 0});
        if (!was_there) lives_[id] = ++last_life_;
        break;
      }
      case 1:
        if (random_.below(6) == 0) {
          const events::WorkerId id(1 + random_.below(4));
          router_.remove_worker(id);
          lives_.erase(id);
          loads_.erase({.id = id, .rank = 0});
          loads_.erase({.id = id, .rank = 1});
        }
        break;
      case 2:
        router_.set_up(events::WorkerId(1 + random_.below(4)), random_.below(3) != 0);
        break;
      case 3:
        router_.set_state(any_worker(), static_cast<WorkerState>(random_.below(3)));
        if (random_.below(2) == 0) router_.beat(any_worker(), std::chrono::seconds(1));
        break;
      case 4:
      case 5:
        store();
        break;
      case 6: {
        const std::vector<events::BlockName> names = {events::BlockName(random_.below(6 * stride_))};
        router_.sink().remove(any_worker(), events::StorageTier::kDevice, names);
        break;
      }
      case 7:
        if (random_.below(10) == 0) router_.sink().clear(any_worker());
        router_.expect(any_worker(), prompt());
        break;
      case 8:
        end_one();
        break;
      default:
        choose();
    }
    check();
  }

  void store() {
    std::vector<events::StoredBlock> blocks;
    for (const tokens::LocalHash local : prompt())
      blocks.push_back({.local = local, .name = events::BlockName(local.value())});
    events::BlocksStored event;
    event.worker = any_worker();
    event.tier = random_.below(4) == 0 ? events::StorageTier::kHost : events::StorageTier::kDevice;
    event.blocks = blocks;
    router_.sink().store(event);
  }

  void choose() {
    const std::vector<tokens::LocalHash> locals = prompt();
    RouteRequest request{
        .group = "m",
        .locals = locals,
        .prompt_tokens = locals.size() * 16 + random_.below(16),
        .block_size = 16,
        .session = random_.below(7),
        .policy = random_.below(5) == 0 ? static_cast<Policy>(random_.below(4)) : Policy::kPrefix};
    if (random_.below(4) == 0) request.weights.temperature = 500;
    const auto decision = router_.choose(request);
    if (!decision) {
      ++refused_;
      return;
    }
    decisions_.push_back(*decision);
    const Candidate& choice = decision->choice();
    ASSERT_EQ(choice.exclusion, Exclusion::kNone);
    ASSERT_TRUE(lives_.contains(choice.worker.id));
    Load& load = loads_[choice.worker];
    ASSERT_EQ(choice.requests, load.requests);
    ASSERT_EQ(choice.prefill_tokens, load.prefill);
    ASSERT_EQ(choice.decode_blocks, load.decode);
    ASSERT_LE(decision->cached_tokens, decision->available_tokens);
    const std::uint64_t usable =
        request.prompt_tokens == 0
            ? 0
            : std::min<std::uint64_t>(choice.predicted, (request.prompt_tokens - 1) / 16) * 16;
    Open open{
        .decision = *decision, .prefill = request.prompt_tokens - usable, .life = lives_[choice.worker.id]};
    load.requests += 1;
    load.prefill += open.prefill;
    load.decode += (request.prompt_tokens + 15) / 16;
    open_.push_back(open);
  }

  void end_one() {
    if (open_.empty()) return;
    const std::size_t i = random_.below(open_.size());
    Open& open = open_[i];
    const events::Worker worker = open.decision.choice().worker;
    const bool lives = lives_.contains(worker.id) && lives_[worker.id] == open.life;
    if (open.prefill != 0 && random_.below(2) == 0) {
      router_.first_byte(open.decision.id);
      if (lives) loads_[worker].prefill -= open.prefill;
      open.prefill = 0;
      return;
    }
    router_.release(open.decision.id);
    if (lives) {
      loads_[worker].requests -= 1;
      loads_[worker].prefill -= open.prefill;
      loads_[worker].decode -= (open.decision.prompt_tokens + 15) / 16;
    }
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void check() {
    ASSERT_EQ(router_.running(), open_.size());
    for (const WorkerLoad& load : router_.loads()) {
      const Load& model = loads_[load.worker];
      ASSERT_EQ(load.requests, model.requests);
      ASSERT_EQ(load.prefill_tokens, model.prefill);
      ASSERT_EQ(load.decode_blocks, model.decode);
    }
  }

  Random random_;
  ManualClock clock_;
  Router router_;
  const std::uint64_t most_;
  const std::uint64_t stride_;  // from family to family
  std::map<events::WorkerId, std::uint64_t> lives_;
  std::uint64_t last_life_ = 0;
  std::map<events::Worker, Load> loads_;
  std::vector<Open> open_;
  std::vector<Decision> decisions_;
  std::uint64_t refused_ = 0;
};

}  // namespace ashlar::service
