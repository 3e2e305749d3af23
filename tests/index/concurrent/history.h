// History: when each worker held each content, as far as the stamps around the calls can tell, and whether an
// answer agrees with it.
//
// A call takes effect at some instant between the stamp before it and the stamp after it (after the barrier
// that followed, for an index that applies later). So a presence has two intervals: from the earliest instant
// at which it can have begun to the latest at which it can have ended it was possibly held, and from the
// latest beginning to the earliest end certainly.
//
// The rule (index/indexer.h). Every counted block was held at some instant of the query: possibly, at least.
// And a prefix that was held throughout, for certain, is counted whole: as depth where every block was in
// some tier at each instant, though not in the same all the time; as device depth where every block was in
// the device tier.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/index/indexer.h"
#include "index/concurrent/holdings.h"

namespace ashlar::index::concurrent {

using Stamp = std::uint64_t;

// From the stamp before a call to the stamp after it.
struct Span {
  Stamp before = 0;
  Stamp after = 0;
};

// What a query was told.
struct Answer {
  Span when;
  std::uint32_t query = 0;  // its place in Paths::queries()
  bool early_exit = false;
  bool exact = true;
  std::vector<std::pair<Worker, Score>> scores;
};

class History {
 public:
  History(const Paths& paths, std::span<const Worker> workers);

  // Requires: calls for one worker come in their order.
  void add(const Span& call, std::span<const Change> changes);

  // Nothing when the answer agrees; else what is wrong, in words.
  std::string check(const Answer& answer);
  // Blocks that the answers so far had to count.
  std::size_t required() const noexcept { return required_; }

 private:
  static constexpr Stamp kOpen = std::numeric_limits<Stamp>::max();

  // One presence.
  struct Spell {
    Span begin;
    Span end{kOpen, kOpen};
  };

  std::vector<Spell>& spells(std::size_t worker, Content content, StorageTier tier) {
    return spells_[(worker * paths_.contents() + content) * kStorageTiers + static_cast<std::size_t>(tier)];
  }
  // Whether the content was possibly held at some instant of the call.
  bool possible(std::size_t worker, Content content, StorageTier tier, const Span& when);
  bool possible(std::size_t worker, Content content, const Span& when);
  // Whether it was certainly held at every instant of the call: in that tier, or in one or another.
  bool certain(std::size_t worker, Content content, StorageTier tier, const Span& when);
  bool certain(std::size_t worker, Content content, const Span& when);
  // The end of the certain presence that covers `from`; `from` where there is none.
  Stamp covered(std::size_t worker, Content content, StorageTier tier, Stamp from);

  std::string check_worker(std::size_t worker, const Score& score, const Answer& answer,
                           std::uint32_t longest);
  std::string describe(std::size_t worker, const Answer& answer, std::size_t position, const char* what,
                       const Score& score);

  const Paths& paths_;
  std::vector<Worker> workers_;
  std::unordered_map<Worker, std::size_t> numbers_;
  std::vector<std::vector<Spell>> spells_;
  std::size_t required_ = 0;
};

}  // namespace ashlar::index::concurrent
