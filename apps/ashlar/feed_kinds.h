// FeedKinds: the feeds that this program was built with, by the first word of their address.
//
// Thread safety: thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "apps/ashlar/feed_address.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/feed_source.h"

namespace ashlar::apps {

// One of the two.
struct OpenedSource {
  std::unique_ptr<feed::FeedSource> stream = {};
  std::unique_ptr<feed::EngineSource> engine = {};
};

class FeedKinds {
 public:
  using OpenSource = std::function<Result<OpenedSource>(const FeedAddress&)>;
  // `state` answers requests for snapshots, and outlives the sink.
  using OpenSink = std::function<Result<std::shared_ptr<events::BatchSink>>(
      const FeedAddress&, const events::StreamId&, events::SnapshotSource& state)>;

  // All that were built.
  static FeedKinds built();

  // Either may be empty.
  void add(const std::string& kind, std::string help, OpenSource source, OpenSink sink);
  // A kind whose library was not there.
  void add_missing(const std::string& kind, std::string package);

  Result<OpenedSource> open_source(const std::string& address) const;
  Result<std::shared_ptr<events::BatchSink>> open_sink(const std::string& address,
                                                       const events::StreamId& stream,
                                                       events::SnapshotSource& state) const;
  // Whether the address is one that can be written, before it is. Errors: as open_sink(), of the address.
  Result<void> check_sink(const std::string& address) const;
  // For --help.
  std::string help() const;

 private:
  struct Kind {
    std::string help;
    OpenSource source;
    OpenSink sink;
    std::string missing;
  };
  Result<const Kind*> find(const FeedAddress& address) const;
  std::map<std::string, Kind> kinds_;
};

// Each in a file of its own, or one that says what is missing.
void add_nats_feeds(FeedKinds& kinds);
void add_zmq_feeds(FeedKinds& kinds);

}  // namespace ashlar::apps
