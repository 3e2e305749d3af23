// FeedReport: what came of a feed, in words, and whether something of it was left out.
//
// Thread safety: plain values.
#pragma once

#include <string>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/stream_receiver.h"

namespace ashlar::apps {

struct FeedReport {
  std::string text = {};
  bool is_incomplete = false;  // something was damaged, refused or lost
};

FeedReport report_of(const feed::StreamReceiver& receiver, const feed::FeedSource& source);
FeedReport report_of(const feed::EngineSession& session);

}  // namespace ashlar::apps
