// FeedReport: the results of a feed as text, and whether any input was left out.
//
// Thread safety: plain values.
#pragma once

#include <string>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/stream_receiver.h"

namespace ashlar::apps {

struct FeedReport {
  std::string text = {};
  bool is_incomplete = false;  // input was damaged, refused or lost
};

FeedReport report_of(const feed::StreamReceiver& receiver, const feed::FeedSource& source);
FeedReport report_of(const feed::EngineSession& session);

}  // namespace ashlar::apps
