// FeedReport: the results of a feed as text, and whether any input was left out.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/stream_receiver.h"

namespace ashlar::apps {

struct FeedReport {
  std::string text = {};
  bool is_incomplete = false;                                           // input was damaged, refused or lost
  std::vector<std::pair<std::string_view, std::uint64_t>> counts = {};  // for programs, zeros too
  std::string reason = {};                                              // of the last refusal
};

FeedReport report_of(const feed::StreamReceiver& receiver, const feed::FeedSource& source);
FeedReport report_of(const feed::EngineSession& session);

}  // namespace ashlar::apps
