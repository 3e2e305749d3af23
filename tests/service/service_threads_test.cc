// The service as its threads meet in it: loops that move passages, followers of events, the errands, a
// reload, pages, dumps and queries, and the drain at the end. What each of them says is tested elsewhere;
// here nothing may race, and every request ends once.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/service/journal.h"
#include "service/gateway/fake_workers.h"
#include "service/route/fake_engine.h"
#include "support/scratch_folder.h"

namespace ashlar::service {
namespace {

constexpr std::size_t kWorkers = 3;
constexpr std::uint32_t kMostBlocks = 12;  // of the one sequence that all prompts begin with
constexpr int kMessages = 400;             // of an engine
constexpr int kLoops = 3;
constexpr int kRequests = 200;  // of a loop, at least

// Stores and drops the blocks of one sequence at its end, is cleared, restarted, and loses messages.
class BusyEngine {
 public:
  explicit BusyEngine(std::uint64_t seed)
      : random_(seed), engine_(std::make_shared<FakeEngine>()), thread_([this] { run(); }) {}
  ~BusyEngine() { thread_.join(); }
  const std::shared_ptr<FakeEngine>& engine() const { return engine_; }

 private:
  void run() {
    for (int i = 0; i < kMessages; ++i) {
      const std::uint64_t what = random_.below(20);
      if (what == 0) {
        engine_->restart();
        sequence_ = 0;
        blocks_ = 0;
      } else if (what == 1) {
        engine_->send(cleared_message(sequence_++));
        blocks_ = 0;
      } else if (blocks_ == kMostBlocks || (blocks_ > 0 && what < 8)) {
        engine_->send(removed_message(sequence_++, --blocks_), what == 2);
      } else {
        engine_->send(stored_message(sequence_++, blocks_++), what == 19);
      }
      if (i % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Random random_;
  std::uint64_t sequence_ = 0;
  std::uint32_t blocks_ = 0;
  const std::shared_ptr<FakeEngine> engine_;
  std::thread thread_;
};

std::string prompt_body(std::uint64_t blocks) {
  std::string ids;
  for (std::uint32_t block = 0; block < blocks; ++block)
    for (const tokens::Token token : tokens_of_block(block)) ids += std::to_string(token.value()) + ",";
  return R"({"model":"m","prompt":[)" + ids + "99]}";
}

// One loop of a leaf: takes requests through to an end, in every way there is.
class Loop {
 public:
  Loop(ServiceUnderTest& service, std::uint64_t seed, std::atomic<int>& begun, std::atomic<bool>& is_draining)
      : service_(service), random_(seed), begun_(begun), is_draining_(is_draining), thread_([this] {
          run();
        }) {}
  ~Loop() { thread_.join(); }

 private:
  void run() {
    int drained = 0;
    for (int i = 0; i < kRequests || drained < 3; ++i) {
      if (is_draining_) ++drained;
      ++begun_;
      const std::uint64_t blocks = random_.below(kMostBlocks + 2);
      const auto open =
          service_.begin("/v1/completions", prompt_body(blocks),
                         {{"x-session-id", std::to_string(random_.below(4))},
                          {"x-ashlar-policy", random_.below(4) == 0 ? "round_robin" : "prefix"}});
      move(*open, blocks);
      if (!decision_.empty() && random_.below(4) == 0) {
        const Reply receipt = service_.get("/decisions/" + decision_);
        EXPECT_TRUE(receipt.status == 200 || receipt.status == 404) << receipt.body;
      }
    }
  }
  void move(ServiceUnderTest::Open& open, std::uint64_t blocks) {
    for (;;) {
      if (std::holds_alternative<Reply>(open.step)) return open.passage->ended(PassageEnd::kComplete);
      if (const auto* wait = std::get_if<Wait>(&open.step)) {
        if (random_.below(16) == 0) return open.passage->ended(PassageEnd::kClientGone);
        while (open.wakes->exchange(0) == 0 && Clock::real().now() < wait->until) std::this_thread::yield();
        open.step = open.passage->resumed();
        continue;
      }
      ASSERT_TRUE(std::holds_alternative<Forward>(open.step)) << "token ids need no question";
      if (random_.below(8) == 0) {
        open.step = open.passage->failed(ForwardFailure::kConnect, "refused");
        continue;
      }
      if (random_.below(8) == 0) return;  // it is destroyed as it is
      HeadVerdict verdict = open.passage->head(random_.below(8) == 0 ? 503 : 200, kJsonHead);
      if (verdict.instead) {
        open.step = *std::move(verdict.instead);
        continue;
      }
      for (const auto& [name, value] : verdict.added)
        if (name == "x-ashlar-decision-id") decision_ = value;
      const std::uint64_t prompt = blocks * kFakeBlockSize + 1;
      open.passage->bytes(usage_answer(prompt, random_.below(blocks + 1) * kFakeBlockSize));
      return open.passage->ended(random_.below(8) == 0 ? PassageEnd::kWorkerBroke : PassageEnd::kComplete);
    }
  }

  ServiceUnderTest& service_;
  Random random_;
  std::atomic<int>& begun_;
  std::atomic<bool>& is_draining_;
  std::string decision_;
  std::thread thread_;
};

TEST(ServiceThreads, MeetWithoutARace) {
  const ScratchFolder folder;
  ServeOptions options = ServiceUnderTest::options_of(kWorkers);
  std::map<std::string, std::unique_ptr<BusyEngine>> engines;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    options.workers[i].events = "tcp://127.0.0.1:" + std::to_string(6000 + i);
    options.workers[i].block_size = kFakeBlockSize;
  }
  options.max_running = 2;
  options.max_queued = 4;
  options.queue_timeout = std::chrono::milliseconds(50);
  options.event_patience = std::chrono::milliseconds(2);
  options.late_after = std::chrono::milliseconds(200);
  options.breaker_failures = 1'000'000;
  options.health_interval = std::chrono::milliseconds(1);
  options.receipts = 64;
  options.journal = folder.file("journal");
  options.journal_file_bytes = 64 << 10;
  options.record = folder.file("trace.jsonl");
  for (std::size_t i = 0; i < kWorkers; ++i)
    engines[options.workers[i].events] = std::make_unique<BusyEngine>(i + 1);
  ServiceUnderTest service(
      options, {}, [&](const EngineEndpoint& endpoint) -> Result<std::unique_ptr<feed::EngineSource>> {
        return std::unique_ptr<feed::EngineSource>(
            std::make_unique<FakeEngine::Source>(engines.at(endpoint.events)->engine()));
      });

  std::atomic<bool> is_draining{false};
  std::atomic<bool> is_over{false};
  std::thread errands([&] {
    while (!is_over) {
      service.answer_errands();
      std::this_thread::yield();
    }
  });
  std::thread pages([&] {
    for (int i = 0; !is_over; ++i) {
      EXPECT_EQ(service.get("/metrics").status, 200u);
      EXPECT_EQ(service.get("/fleet").status, 200u);
      EXPECT_EQ(service.get("/live").status, 200u);
      const unsigned status =
          service.post("/query", R"({"model_name":"m","token_ids":[1,1,1,1,2,2,2,2]})").status;
      EXPECT_TRUE(status == 200 || status == 404) << status;
      if (i % 4 == 0) {
        EXPECT_EQ(service.get("/dump").status, 200u);
      }
    }
  });
  {
    std::atomic<int> begun{0};
    std::vector<std::unique_ptr<Loop>> loops;
    for (std::uint64_t i = 0; i < kLoops; ++i)
      loops.push_back(std::make_unique<Loop>(service, 100 + i, begun, is_draining));
    // Workers leave and come back until the loops are half through.
    for (std::size_t i = 0; i < kWorkers || begun < kLoops * kRequests / 2; ++i)
      EXPECT_TRUE(service->set_workers(std::span(options.workers).first(1 + i % kWorkers)));
    EXPECT_TRUE(service->set_workers(options.workers));
    service->drain();
    is_draining = true;
  }
  is_over = true;
  errands.join();
  pages.join();
  EXPECT_EQ(service->router().running(), 0u);
  EXPECT_EQ(service.get("/ready").status, 503u);
  EXPECT_EQ(service.begin("/v1/completions", prompt_body(1))->step.index(), 0u)
      << "it takes no more requests";
  EXPECT_EQ(service.metric("ashlar_serve_running"), 0);
  service.reset();
  // The journal of all that gives the same choices.
  const auto runs = find_journals(folder.file("journal"));
  ASSERT_TRUE(runs) << runs.error();
  ASSERT_EQ(runs->size(), 1u);
  const auto key = load_journal_key(folder.file("journal") + "/key", false);
  ASSERT_TRUE(key) << key.error();
  const auto report = replay_journal(runs->front().files, *key, {});
  ASSERT_TRUE(report) << report.error();
  EXPECT_EQ(report->differences, 0u);
  EXPECT_GT(report->decisions, 0u);
}

}  // namespace
}  // namespace ashlar::service
