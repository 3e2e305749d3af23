// FeedKinds: the feeds that this program was built with, by the first word of their address.
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

// One of the two.
struct OpenedSource {
  std::unique_ptr<feed::FeedSource> stream = {};
  std::unique_ptr<feed::EngineSource> engine = {};
  bool is_recorded = false;  // what comes is of an earlier time, and it ends
};

class FeedKinds {
 public:
  using OpenSource = std::function<Result<OpenedSource>(const FeedAddress&)>;
  // `state` answers requests for snapshots, and outlives the sink.
  using OpenSink = std::function<Result<std::shared_ptr<events::BatchSink>>(
      const FeedAddress&, const events::StreamId&, events::SnapshotSource& state)>;

  // All that were built.
  static FeedKinds built();

  // What is wrong with an address, asked before anything is opened.
  using Check = std::function<Result<void>(const FeedAddress&)>;
  // What feeds of a kind have in common beside how they are opened.
  struct Traits {
    bool has_place_per_rank = false;  // written; one that is taken says nothing of the others
    std::string prefix = {};          // of what is read and written, where the address says none
    std::uint32_t port = 0;           // where the address says none
    Check check = {};
  };
  // Either may be empty.
  void add(const std::string& kind, std::string help, OpenSource source, OpenSink sink) {
    add(kind, std::move(help), std::move(source), std::move(sink), Traits{});
  }
  void add(const std::string& kind, std::string help, OpenSource source, OpenSink sink, Traits traits);
  // A kind whose library was not there.
  void add_missing(const std::string& kind, std::string package);

  Result<OpenedSource> open_source(const std::string& address) const;
  Result<std::shared_ptr<events::BatchSink>> open_sink(const std::string& address,
                                                       const events::StreamId& stream,
                                                       events::SnapshotSource& state) const;
  // Whether the address is one that can be written, before it is. Errors: as open_sink(), of the address.
  Result<void> check_sink(const std::string& address) const;
  // Whether an error of open_sink() may be one of this stream's place alone.
  bool is_of_stream(const std::string& address, const Error& error) const;
  // Whether what is written to one address is read from the other: then a relay would feed itself for ever.
  // Names of hosts are not looked up, so that some such pairs pass.
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

// Each in a file of its own, or one that says what is missing.
void add_nats_feeds(FeedKinds& kinds);
void add_zmq_feeds(FeedKinds& kinds);

}  // namespace ashlar::apps
