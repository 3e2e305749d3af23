// What replays of one trace found: as a table for a terminal, as JSON, and as one HTML file with charts.
//
// The HTML needs nothing but itself: no script, no font, no image from anywhere. Charts are inline SVG, and
// it follows the reader's choice of light or dark. Its numbers are those of the JSON.
//
// Thread safety: functions.
// Complexity:    O(runs x (windows + workers)).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/replay/simulate.h"

namespace ashlar::replay {

// What the report is about.
struct ReplaySubject {
  std::string name;  // the file, or the generator's text
  TraceFacts facts;
  std::uint64_t requests = 0;
  std::uint64_t named = 0;     // blocks
  std::uint64_t distinct = 0;  // of these
  std::uint64_t input_tokens = 0;
  std::uint64_t span_ms = 0;
  std::uint64_t with_session = 0;  // requests
  std::uint64_t misplaced = 0;     // requests, as TraceTable counts them
};
ReplaySubject subject_of(std::string name, const TraceTable& trace);

// Sentences that a reader should know before the numbers: no reuse, estimated tokens, skipped lines.
std::vector<std::string> notes_of(const ReplaySubject& subject);

// Columns that say nothing (tiers that are not there, the router of one worker) are left out.
std::string replay_table(const ReplaySubject& subject, std::span<const ReplayOutcome> runs);
std::string replay_json(const ReplaySubject& subject, std::span<const ReplayOutcome> runs);
// Every run has a row; the first 24 have charts.
std::string replay_html(const ReplaySubject& subject, std::span<const ReplayOutcome> runs);

}  // namespace ashlar::replay
