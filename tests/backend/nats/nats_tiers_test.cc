// From requests over four tiers to a router's index, through a real server.
#include <memory>
#include <string>
#include <utility>

#include "backend/nats/nats_fixture.h"
#include "tiers/tier_index_scenario.h"

namespace ashlar::tiers {
namespace {

using backend::nats::NatsMode;
using backend::nats::NatsServer;

class NatsPath final : public EventPath {
 public:
  explicit NatsPath(NatsMode mode) : mode_(mode) {}
  void begin(events::EventManager& worker) override {
    backend::nats::NatsSinkOptions options;
    options.connection = server_.options();
    options.mode = mode_;
    options.snapshots.push_back({.worker = kTierWorker, .source = &worker});
    sink_ = backend::nats::sink_of(std::move(options));
    ASSERT_TRUE(worker.add_sink(sink_));
  }
  void end(events::EventManager& worker) override {
    ASSERT_TRUE(worker.flush(Clock::real().now() + std::chrono::seconds(60)));
    ASSERT_TRUE(worker.remove_sink(sink_));
    sink_.reset();  // it asks the worker for snapshots
  }
  std::unique_ptr<feed::FeedSource> listen() override {
    return backend::nats::source_of({.connection = server_.options(), .mode = mode_});
  }

 private:
  const NatsMode mode_;
  NatsServer server_;
  std::shared_ptr<backend::nats::NatsSink> sink_;
};

EventPathCase case_of(std::string name, NatsMode mode) {
  return {.name = std::move(name),
          .make = [mode](const std::string&) { return std::make_unique<NatsPath>(mode); },
          .is_installed = NatsServer::is_installed()};
}

INSTANTIATE_TEST_SUITE_P(Nats, TierIndexTest,
                         ::testing::Values(case_of("Core", NatsMode::kCore),
                                           case_of("JetStream", NatsMode::kJetStream)),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace ashlar::tiers
