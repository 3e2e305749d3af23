#include "apps/ashlar/feed_report.h"

#include <cstdint>
#include <utility>

namespace ashlar::apps {
namespace {

class Words {
 public:
  // Always printed. `key`: its name for programs, a literal.
  Words& add(std::string_view key, std::uint64_t count, const char* what) {
    report_.counts.emplace_back(key, count);
    return print(count, what);
  }
  // Printed if not zero.
  Words& note(std::string_view key, std::uint64_t count, const char* what) {
    report_.counts.emplace_back(key, count);
    return count == 0 ? *this : print(count, what);
  }
  // The same for faults.
  Words& lack(std::string_view key, std::uint64_t count, const char* what) {
    if (count != 0) report_.is_incomplete = true;
    return note(key, count, what);
  }
  Words& reason(const std::string& why) {
    if (!why.empty()) report_.text += " (" + why + ")";
    report_.reason = why;
    return *this;
  }
  FeedReport take() { return std::move(report_); }

 private:
  Words& print(std::uint64_t count, const char* what) {
    if (!report_.text.empty()) report_.text += ", ";
    report_.text += std::to_string(count) + " " + what;
    return *this;
  }

  FeedReport report_;
};

}  // namespace

FeedReport report_of(const feed::StreamReceiver& receiver, const feed::FeedSource& source) {
  const feed::StreamReceiver::Counters& counters = receiver.counters();
  Words words;
  words.add("batches", counters.batches, "batches")
      .add("gaps", counters.gaps, "gaps")
      .add("replayed", counters.replayed, "replayed")
      .add("snapshots", counters.snapshots, "snapshots")
      .note("stale", counters.stale, "stale")
      .note("own", counters.own, "published here that came back: the feeds form a circle")
      .lack("unclosed_gaps", counters.resyncs, "gaps that nothing closed")
      .lack("damaged", source.damaged(), "damaged")
      .lack("overflowed", counters.overflowed, "snapshots too large")
      .lack("refused", counters.refused, "refused")
      .reason(receiver.last_refusal())
      .note("unfinished_bytes", source.unfinished_bytes(), "bytes of an unfinished batch at the end");
  FeedReport report = words.take();
  if (!receiver.last_shadowed().empty()) report.text += "; warning: " + receiver.last_shadowed();
  return report;
}

FeedReport report_of(const feed::EngineSession& session) {
  const feed::EngineSessionCounters& counters = session.counters();
  const feed::EngineIngest& ingest = session.ingest();
  const feed::EngineIngestCounters& left_out = ingest.counters();
  Words words;
  words.add("messages", counters.applied, "messages")
      .add("gaps", counters.gaps, "gaps")
      .add("replayed", counters.replayed, "replayed")
      .add("resyncs", counters.resyncs, "resyncs")
      .add("restarts", counters.restarts, "restarts")
      .add("blocks_present", ingest.present(), "blocks present")
      .note("blocks_waiting", ingest.waiting(), "blocks wait for what they need")
      .lack("lost", counters.lost, "messages lost")
      .lack("undecodable", counters.undecodable, "not decodable")
      .lack("damaged", session.source().damaged(), "damaged")
      .note("unfinished_bytes", session.source().unfinished_bytes(),
            "bytes of an unfinished message at the end")
      .lack("overflowed", left_out.overflowed, "blocks waited in vain")
      .lack("other_ranks", left_out.other_ranks, "batches of too many ranks")
      .lack("unknown_tiers", left_out.unknown_mediums, "events of unknown tiers")
      .lack("unplaced", left_out.collisions + left_out.ambiguous_parents + left_out.too_deep,
            "events that cannot be placed")
      .lack("refused",
            left_out.wrong_block_sizes + left_out.short_tokens + left_out.long_salts + left_out.other_groups,
            "events refused")
      .reason(ingest.last_refusal());
  return words.take();
}

}  // namespace ashlar::apps
