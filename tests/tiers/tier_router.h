// TierRouter: a router's index behind a feed, and where it knows the blocks of one worker.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/tokens/token.h"

namespace ashlar::tiers {

// Device, host, disk, external, remote.
using BlocksPerTier = std::array<std::uint32_t, events::kStorageTiers>;

inline const events::Worker kTierWorker{events::WorkerId(4), 0};

// A router: it begins to listen when it is made.
class TierRouter {
 public:
  explicit TierRouter(std::unique_ptr<feed::FeedSource> source)
      : source_(std::move(source)), heard_(listener_), receiver_(*source_, heard_) {}

  // Where the blocks of a request are, each counted in its fastest tier, once the events of the stream up to
  // `number` have come.
  BlocksPerTier ask(const std::vector<tokens::LocalHash>& request, const events::StreamId& stream,
                    std::uint64_t number) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (heard_.stream != stream || heard_.next < number) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "events up to " << heard_.next << " came, of " << number;
        break;
      }
      EXPECT_TRUE(receiver_.poll(std::chrono::milliseconds(10)));
    }
    EXPECT_TRUE(receiver_.is_complete(kTierWorker));
    listener_.check_invariants();
    index_.find_matches(request, scores_);
    BlocksPerTier blocks{};
    scores_.for_each([&](const events::Worker& worker, const index::Score& score) {
      EXPECT_EQ(worker, kTierWorker);
      blocks = score.blocks;
    });
    return blocks;
  }

 private:
  // Notes how far the stream has come.
  class Heard final : public feed::StreamListener {
   public:
    explicit Heard(feed::StreamListener& next_listener) : inner_(next_listener) {}
    void on_reset(const events::StreamId& of) override {
      stream = of;
      next = 0;
      inner_.on_reset(of);
    }
    void on_events(const events::EventBatch& batch) override {
      stream = batch.stream;
      next = batch.kind == events::BatchKind::kSnapshot ? batch.first : batch.end();
      inner_.on_events(batch);
    }
    std::optional<events::StreamId> stream;
    std::uint64_t next = 0;

   private:
    feed::StreamListener& inner_;
  };

  index::FlashIndex index_;
  index::SinkOf<index::FlashIndex> sink_{index_};
  feed::IndexListener listener_{sink_};
  std::unique_ptr<feed::FeedSource> source_;
  Heard heard_;
  feed::StreamReceiver receiver_;
  index::MatchScores scores_;
};

}  // namespace ashlar::tiers
