// The scenarios of tier_index_scenario.h over a bus and over recordings.
#include "tiers/tier_index_scenario.h"

#include <memory>
#include <string>
#include <utility>

namespace ashlar::tiers {
namespace {

class BusPath final : public EventPath {
 public:
  void begin(events::EventManager& worker) override {
    ASSERT_TRUE(worker.add_sink(bus_.sink()));
    bus_.serve_snapshots(&worker);
  }
  void end(events::EventManager&) override { bus_.serve_snapshots(nullptr); }
  std::unique_ptr<feed::FeedSource> listen() override { return bus_.subscribe(); }

 private:
  feed::EventBus bus_;
};

// Who listens late has a recording of his own, which begins with a snapshot.
class RecordingPath final : public EventPath {
 public:
  explicit RecordingPath(std::string folder) : folder_(std::move(folder)) {}
  void begin(events::EventManager& worker) override { worker_ = &worker; }
  void end(events::EventManager&) override { worker_ = nullptr; }
  std::unique_ptr<feed::FeedSource> listen() override {
    const std::string path = folder_ + "/recording" + std::to_string(++recordings_);
    EXPECT_TRUE(worker_->add_sink(feed::FileSink::create({.path = path}).value()));
    return feed::FileSource::create({.path = path, .follow = true}).value();
  }

 private:
  const std::string folder_;
  events::EventManager* worker_ = nullptr;
  int recordings_ = 0;
};

// One recording from the beginning on; who listens late reads it again.
class ReplayPath final : public EventPath {
 public:
  explicit ReplayPath(const std::string& folder) : path_(folder + "/recording") {}
  void begin(events::EventManager& worker) override {
    ASSERT_TRUE(worker.add_sink(sink_ = feed::FileSink::create({.path = path_, .append = true}).value()));
  }
  void end(events::EventManager& worker) override {
    ASSERT_TRUE(worker.flush(Clock::real().now() + std::chrono::seconds(60)));
    ASSERT_TRUE(worker.remove_sink(sink_));
    sink_.reset();  // one sink at a time writes a file
  }
  std::unique_ptr<feed::FeedSource> listen() override {
    return feed::FileSource::create({.path = path_, .follow = true}).value();
  }

 private:
  const std::string path_;
  std::shared_ptr<events::BatchSink> sink_;
};

INSTANTIATE_TEST_SUITE_P(
    Feeds, TierIndexTest,
    ::testing::Values(
        EventPathCase{"Bus", [](const std::string&) { return std::make_unique<BusPath>(); }},
        EventPathCase{"Recording",
                      [](const std::string& folder) { return std::make_unique<RecordingPath>(folder); }},
        EventPathCase{"Replay",
                      [](const std::string& folder) { return std::make_unique<ReplayPath>(folder); }}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace ashlar::tiers
