// Every way a request can take, by chance: whatever happens, load is held exactly while a worker has the
// request. Workers come and go, ranks are chosen, requests wait for room and for events, and at last the
// router stops.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "service/gateway/fake_workers.h"

namespace ashlar::service {
namespace {

using Open = ServiceUnderTest::Open;

constexpr HeaderView kJsonType[] = {{.name = "Content-Type", .value = "application/json"}};

class PassagePaths : public ::testing::Test {
 protected:
  // Three workers, the last with two ranks.
  static ServeOptions options() {
    ServeOptions options = ServiceUnderTest::options_of(3);
    options.workers[2].dp = 2;
    options.max_running = 3;
    options.max_queued = 4;
    options.breaker_failures = 1000;
    options.event_patience = std::chrono::milliseconds(1);
    return options;
  }

  void begin() {
    std::vector<std::pair<std::string, std::string>> headers;
    if (random_.below(6) == 0) headers = {{"X-data-parallel-rank", std::to_string(random_.below(2))}};
    const bool is_text = random_.below(3) == 0;
    auto one = is_text ? service_.begin("/v1/chat/completions",
                                        R"({"model":"m","messages":[{"role":"user","content":")" +
                                            std::to_string(random_.below(1000)) + "\"}]}",
                                        headers)
                       : service_.begin(
                             "/v1/completions",
                             tokens_body(1 + random_.below(80), static_cast<int>(random_.below(9))), headers);
    note(*one);
    if (is_draining_) {
      const auto* const reply = std::get_if<Reply>(&one->step);
      ASSERT_NE(reply, nullptr);
      ASSERT_EQ(reply->status, 503u);
      ++seen_["refused"];
    }
    open_.push_back(std::move(one));
  }

  // A passage took a step: remembers which life of its worker has it.
  void note(const Open& one) {
    if (const auto* const forward = std::get_if<Forward>(&one.step)) {
      places_[&one] = {forward->address.port, lives_[forward->address.port]};
      const bool has_rank = std::ranges::any_of(
          forward->added, [](const auto& header) { return header.first == "X-data-parallel-rank"; });
      EXPECT_TRUE(forward->address.port != 9003 || has_rank);
      seen_["rank"] += forward->address.port == 9003 ? 1 : 0;
    } else {
      places_.erase(&one);
    }
  }
  void take(Open& one, Step step) {
    one.step = std::move(step);
    note(one);
  }

  // Some of the workers, those with other options as new ones.
  void reload() {
    const std::vector<WorkerOptions> all = options().workers;
    std::vector<WorkerOptions> some;
    std::set<std::uint16_t> ports;
    for (const WorkerOptions& worker : all)
      if (random_.below(3) != 0) some.push_back(worker);
    if (some.empty()) some = all;
    for (const WorkerOptions& worker : some) ports.insert(worker.address.port);
    for (const WorkerOptions& worker : all)
      if (!ports.contains(worker.address.port) && ports_.contains(worker.address.port))
        ++lives_[worker.address.port];
    ports_ = ports;
    ASSERT_TRUE(service_->set_workers(some));
    service_.answer_errands();
    ++seen_["reload"];
  }

  // Events that are complete, or not: then expected blocks make requests hesitate.
  void change_states() {
    for (const WorkerLoad& load : service_->router().loads())
      service_->router().set_state(load.worker,
                                   random_.below(3) == 0 ? WorkerState::kFallback : WorkerState::kExact);
  }

  void move() {
    const std::size_t i = random_.below(open_.size());
    if (!move(*open_[i])) return;
    places_.erase(open_[i].get());
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // Returns whether it is over.
  bool move(Open& one) {
    if (random_.below(12) == 0) {
      ++seen_["drop"];
      return true;
    }
    if (std::holds_alternative<Reply>(one.step)) {
      ++seen_["reply"];
      one.passage->ended(random_.below(2) == 0 ? PassageEnd::kComplete : PassageEnd::kClientGone);
      return true;
    }
    if (std::holds_alternative<Ask>(one.step)) {
      ++seen_["ask"];
      const std::uint64_t kind = random_.below(8);
      take(one, kind == 0   ? one.passage->answered(Error(ErrorCode::kUnavailable, "gone"))
                : kind == 1 ? one.passage->answered(Answer{.status = 404, .body = {}})
                            : one.passage->answered(Answer{.status = 200, .body = R"({"tokens":[1,2,3]})"}));
      return false;
    }
    if (std::holds_alternative<Wait>(one.step)) {
      ++seen_["wait"];
      if (random_.below(5) == 0) {
        one.passage->ended(PassageEnd::kClientGone);
        return true;
      }
      ++seen_["resumed"];
      take(one, one.passage->resumed());
      return false;
    }
    return move_forwarded(one);
  }

  // Once a head is passed on only its body and the end can follow.
  bool move_forwarded(Open& one) {
    ++seen_["forward"];
    switch (one.has_head ? 2 + random_.below(6) : random_.below(8)) {
      case 0:
        take(one, one.passage->failed(static_cast<ForwardFailure>(random_.below(4)), "x"));
        ++seen_["failed"];
        seen_["to reply"] += std::holds_alternative<Reply>(one.step) ? 1 : 0;
        return false;
      case 1: {
        const HeadVerdict verdict = one.passage->head(503, kJsonType);
        if (verdict.instead) {
          ++seen_["instead"];
          take(one, *verdict.instead);
        } else {
          one.has_head = true;
        }
        return false;
      }
      case 2:
        if (!std::exchange(one.has_head, true)) one.passage->head(200, kJsonType);
        one.passage->bytes("{\"usage\":");
        ++seen_["bytes"];
        return false;
      case 3:
        one.passage->ended(PassageEnd::kWorkerBroke);
        ++seen_["broke"];
        return true;
      case 4:
        one.passage->ended(PassageEnd::kClientGone);
        ++seen_["gone"];
        return true;
      case 5:
        one.passage->ended(PassageEnd::kStopped);
        ++seen_["stopped"];
        return true;
      default:
        if (!one.has_head) one.passage->head(200, kJsonType);
        one.passage->bytes(usage_answer(random_.below(80), random_.below(80)));
        one.passage->ended(PassageEnd::kComplete);
        ++seen_["complete"];
        return true;
    }
  }

  void check() {
    std::size_t at_workers = 0;
    std::size_t at_present = 0;  // workers that have not left since
    for (const auto& one : open_) {
      if (!std::holds_alternative<Forward>(one->step)) continue;
      ++at_workers;
      const auto& [port, life] = places_.at(one.get());
      at_present += lives_[port] == life ? 1 : 0;
    }
    seen_["left behind"] += at_workers > at_present ? 1 : 0;
    ASSERT_EQ(service_->router().running(), at_workers);
    std::size_t loads = 0;
    for (const WorkerLoad& load : service_->router().loads()) loads += load.requests;
    ASSERT_EQ(loads, at_present);
  }

  bool has_seen_all() {
    constexpr const char* kWanted[] = {"reply",   "forward",  "wait",    "ask",   "failed", "instead",
                                       "gone",    "complete", "stopped", "broke", "drop",   "left behind",
                                       "resumed", "to reply", "bytes",   "rank",  "reload"};
    return std::ranges::all_of(kWanted, [&](const char* name) { return seen_[name] > 0; }) &&
           service_.metric("ashlar_serve_hesitated_total") > 0 &&
           service_.metric("ashlar_serve_queued_total") > 0;
  }

  ServiceUnderTest service_{options()};
  Random random_{7};
  std::vector<std::unique_ptr<Open>> open_;
  std::map<const Open*, std::pair<std::uint16_t, int>> places_;
  std::map<std::uint16_t, int> lives_;  // of the worker at a port
  std::set<std::uint16_t> ports_ = {9001, 9002, 9003};
  std::map<std::string, int> seen_;
  bool is_draining_ = false;
};

TEST_F(PassagePaths, LoadIsHeldExactlyWhileAWorkerHasTheRequest) {
  const ashlar::testing::TimeBox box(0.3);
  for (std::uint64_t step = 0; !box.over() || !has_seen_all(); ++step) {
    if (random_.below(200) == 0) {
      ASSERT_NO_FATAL_FAILURE(reload());
    }
    if (random_.below(50) == 0) change_states();
    if (open_.empty() || (open_.size() < 20 && random_.below(3) == 0)) {
      ASSERT_NO_FATAL_FAILURE(begin());
    } else {
      move();
    }
    ASSERT_NO_FATAL_FAILURE(check()) << "step " << step;
  }
  // The router stops: what waits is refused, what a worker has goes on.
  service_->drain();
  is_draining_ = true;
  while (!open_.empty()) {
    if (seen_["refused"] < 5) {
      ASSERT_NO_FATAL_FAILURE(begin());
    }
    move();
    ASSERT_NO_FATAL_FAILURE(check());
  }
  EXPECT_EQ(service_->router().running(), 0u);
  for (const WorkerLoad& load : service_->router().loads()) {
    EXPECT_EQ(load.requests, 0u);
    EXPECT_EQ(load.prefill_tokens, 0u);
    EXPECT_EQ(load.decode_blocks, 0u);
  }
  EXPECT_EQ(service_.metric("ashlar_serve_waiting"), 0);
}

}  // namespace
}  // namespace ashlar::service
