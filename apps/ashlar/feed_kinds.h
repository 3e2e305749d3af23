// FeedKinds: the feeds that this program was built with, by the kind in their address.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "apps/ashlar/feed_address.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/feed_source.h"

namespace ashlar::apps {

// Exactly one is set.
struct OpenedSource {
  std::unique_ptr<feed::FeedSource> stream = {};
  std::unique_ptr<feed::EngineSource> engine = {};
  bool is_recorded = false;  // the events are from an earlier time, and end
};

class FeedKinds {
 public:
  using OpenSource = std::function<Result<OpenedSource>(const FeedAddress&)>;
  // `state` answers requests for snapshots, and outlives the sink.
  using OpenSink = std::function<Result<std::shared_ptr<events::BatchSink>>(
      const FeedAddress&, const events::StreamId&, events::SnapshotSource& state)>;

  // All that were built.
  static FeedKinds built();

  // Checks an address before anything is opened.
  using Check = std::function<Result<void>(const FeedAddress&)>;
  // Properties of a kind beside how it is opened.
  struct Traits {
    bool has_place_per_rank = false;  // when written; a busy one says nothing about the others
    std::string prefix = {};          // of what is read and written, if the address has none
    std::uint32_t port = 0;           // if the address has none
    Check check = {};
  };
  // Either may be empty.
  void add(const std::string& kind, std::string help, OpenSource source, OpenSink sink) {
    add(kind, std::move(help), std::move(source), std::move(sink), Traits{});
  }
  void add(const std::string& kind, std::string help, OpenSource source, OpenSink sink, Traits traits);
  // A kind whose library was missing at build time.
  void add_missing(const std::string& kind, std::string package);

  Result<OpenedSource> open_source(const std::string& address) const;
  Result<std::shared_ptr<events::BatchSink>> open_sink(const std::string& address,
                                                       const events::StreamId& stream,
                                                       events::SnapshotSource& state) const;
  // Checks whether the address can be written, before it is. Errors: as open_sink(), of the address.
  Result<void> check_sink(const std::string& address) const;
  // Whether an error of open_sink() may concern only this stream's place.
  bool is_of_stream(const std::string& address, const Error& error) const;
  // Whether data written to one address is read from the other: a relay would then feed itself forever. Host
  // names are not resolved, so some such pairs pass.
  bool is_same_place(const FeedAddress& from, const FeedAddress& to) const;
  // For --help.
  std::string help() const;

 private:
  struct Kind {
    std::string help;
    OpenSource source;
    OpenSink sink;
    std::string missing;
    Traits traits;
  };
  Result<const Kind*> find(const FeedAddress& address) const;
  std::map<std::string, Kind> kinds_;
};

// Each is defined in its own file, or in one that reports the missing library.
void add_nats_feeds(FeedKinds& kinds);
void add_zmq_feeds(FeedKinds& kinds);

}  // namespace ashlar::apps
