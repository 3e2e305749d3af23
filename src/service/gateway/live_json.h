// What the live page reads, as JSON: workers with their tiers, decisions in brief, receipts. The service
// writes it of itself (api_live.cc), and journal_page.cc of a journal.
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/service/router.h"
#include "service/gateway/json_text.h"
#include "service/gateway/receipts.h"

namespace ashlar::service {

// A worker for people; empty: it is not there any more, or not known.
struct WorkerPlace {
  std::string name = {};
  std::string address = {};
};

// A receipt without its candidates: thousands of them would be too much to send every second.
struct DecisionBrief {
  DecisionId id;
  Clock::TimePoint time;
  std::string model;
  std::string worker_name;
  events::Worker worker;
  WorkerState state = WorkerState::kFallback;
  std::uint64_t prompt_tokens = 0;
  bool is_estimate = false;
  std::uint64_t cached_tokens = 0;
  std::uint64_t available_tokens = 0;
  std::size_t candidates = 0;
  std::optional<RequestOutcome> outcome = {};  // nothing: it is not known, as in a journal
};
DecisionBrief brief_of(const Receipt& receipt);

void write_brief(JsonText& out, std::uint64_t run, const DecisionBrief& brief, Clock::TimePoint now);
// The whole of it, with every candidate and the terms of its cost. In place of its outcome, which a journal
// does not hold, `replayed` says what a replay showed. `knows_misses`: false where it found no reasons.
// `place_of`: of a candidate, for people.
using PlaceTeller = std::function<WorkerPlace(events::WorkerId)>;
void write_receipt(JsonText& out, std::uint64_t run, const Receipt& receipt, const PlaceTeller& place_of,
                   std::string_view replayed = {}, bool knows_misses = true);
// "missed_blocks" of an object: {"never_seen": …, …}; null where they are not known. `count_of`: of a reason.
void write_missed(JsonText& out, bool is_known, const std::function<std::uint64_t(std::size_t)>& count_of);
// Blocks of each tier of a rank; 0: not known.
using TierSizes = std::array<std::uint32_t, events::kStorageTiers>;
// {"device": {"held", "most", "size", "stored", "removed", "offloaded", "offloaded_from"}, …} of the tiers
// that the worker has used; the device always. Without "size" where it is not known.
void write_tiers(JsonText& out, const std::array<TierChanges, events::kStorageTiers>& tiers,
                 const TierSizes& sizes = {});
// The load's fields of an object.
void write_load(JsonText& out, const WorkerLoad& load, const TierSizes& sizes = {});

// A time span in ms; 0 if it ends before it begins.
std::uint64_t milliseconds_between(Clock::TimePoint from, Clock::TimePoint to);

}  // namespace ashlar::service
