// Listeners that tests look into.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "ashlar/feed/stream_receiver.h"

namespace ashlar::feed {

// What each worker holds by what a StreamReceiver hands on. Remembers the first event that does not fit.
class PresenceListener final : public StreamListener {
 public:
  using Key = std::pair<events::TierId, tokens::SequenceHash>;

  void on_reset(const events::StreamId& stream) override {
    present_[stream.worker].clear();
    ++resets_;
  }
  void on_events(const events::EventBatch& batch) override {
    std::set<Key>& held = present_[batch.stream.worker];
    for (const events::KvEvent& event : batch.events) {
      const Key key{event.tier, event.hash};
      if (event.kind == events::KvEventKind::kStored) {
        if (!held.insert(key).second) problem_ = "stored twice";
        if (event.has_parent && !event.parent_bits.can_precede(event.hash))
          problem_ = "a parent at another position";
      }
      if (event.kind == events::KvEventKind::kCleared)
        std::erase_if(
            held, [&](const Key& one) { return event.tier == events::kAllTiers || event.tier == one.first; });
      if (event.kind == events::KvEventKind::kResync) problem_ = "a resync within a stream";
      if (event.kind == events::KvEventKind::kRemoved && held.erase(key) == 0 && strict_)
        problem_ = "removed what is not there";
    }
  }
  // Blocks that were never stored are expected after a gap that nothing closed.
  void allow_unknown_blocks() { strict_ = false; }

  const std::set<Key>& of(const events::Worker& worker) { return present_[worker]; }
  std::size_t resets() const noexcept { return resets_; }
  const std::string& problem() const noexcept { return problem_; }

 private:
  std::map<events::Worker, std::set<Key>> present_;
  std::size_t resets_ = 0;
  bool strict_ = true;
  std::string problem_;
};

}  // namespace ashlar::feed
