#include "apps/ashlar/feed_report.h"

#include <cstdint>
#include <utility>

namespace ashlar::apps {
namespace {

class Words {
 public:
  // Always printed.
  Words& add(std::uint64_t count, const char* what) {
    if (!report_.text.empty()) report_.text += ", ";
    report_.text += std::to_string(count) + " " + what;
    return *this;
  }
  // Printed if not zero.
  Words& note(std::uint64_t count, const char* what) { return count == 0 ? *this : add(count, what); }
  // The same for faults.
  Words& lack(std::uint64_t count, const char* what) {
    if (count != 0) report_.is_incomplete = true;
    return note(count, what);
  }
  Words& reason(const std::string& why) {
    if (!why.empty()) report_.text += " (" + why + ")";
    return *this;
  }
  FeedReport take() { return std::move(report_); }

 private:
  FeedReport report_;
};

}  // namespace

FeedReport report_of(const feed::StreamReceiver& receiver, const feed::FeedSource& source) {
  const feed::StreamReceiver::Counters& counters = receiver.counters();
  Words words;
  words.add(counters.batches, "batches")
      .add(counters.gaps, "gaps")
      .add(counters.replayed, "replayed")
      .add(counters.snapshots, "snapshots")
      .note(counters.stale, "stale")
      .note(counters.own, "published here that came back: the feeds form a circle")
      .lack(counters.resyncs, "gaps that nothing closed")
      .lack(source.damaged(), "damaged")
      .lack(counters.overflowed, "snapshots too large")
      .lack(counters.refused, "refused")
      .reason(receiver.last_refusal())
      .note(source.unfinished_bytes(), "bytes of an unfinished batch at the end");
  FeedReport report = words.take();
  if (!receiver.last_shadowed().empty()) report.text += "; warning: " + receiver.last_shadowed();
  return report;
}

FeedReport report_of(const feed::EngineSession& session) {
  const feed::EngineSessionCounters& counters = session.counters();
  const feed::EngineIngest& ingest = session.ingest();
  const feed::EngineIngestCounters& left_out = ingest.counters();
  Words words;
  words.add(counters.applied, "messages")
      .add(counters.gaps, "gaps")
      .add(counters.replayed, "replayed")
      .add(counters.resyncs, "resyncs")
      .add(counters.restarts, "restarts")
      .add(ingest.present(), "blocks present")
      .note(ingest.waiting(), "blocks wait for what they need")
      .lack(counters.lost, "messages lost")
      .lack(counters.undecodable, "not decodable")
      .lack(session.source().damaged(), "damaged")
      .note(session.source().unfinished_bytes(), "bytes of an unfinished message at the end")
      .lack(left_out.overflowed, "blocks waited in vain")
      .lack(left_out.other_ranks, "batches of too many ranks")
      .lack(left_out.unknown_mediums, "events of unknown tiers")
      .lack(left_out.collisions + left_out.ambiguous_parents + left_out.too_deep,
            "events that cannot be placed")
      .lack(left_out.wrong_block_sizes + left_out.short_tokens + left_out.long_salts + left_out.other_groups,
            "events refused")
      .reason(ingest.last_refusal());
  return words.take();
}

}  // namespace ashlar::apps
