// RemovalLog: removals from G3, for files that were absent at the time.
//
// G3 may span several files, and the device of one may be absent while blocks are removed. So every removal
// is written to the log of each present file. When the files are opened, merge() combines their logs, and
// each file applies the removals it missed before its blocks can be found.
//
// Each opening of the files is a session with its own number. A log lists the sessions it took part in, which
// tells what a file knows. A log keeps the last kEntries removals. Older removals, and a removal of
// everything, lie behind its floor: a file absent then has missed more than the log can list, and loses all
// its blocks.
//
// Two logs may have diverged, each written while the other's file was absent. The merged log continues the
// longer one and repeats the entries found only in the other. So a removal is known as long as one file that
// knows it is present; a block may be removed once too often, never too seldom.
//
// Thread safety: thread-compatible.
// Complexity:    linear in the log and its sessions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_set>

#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

class RemovalLog {
 public:
  static constexpr std::size_t kBytes = 32768;
  static constexpr std::size_t kEntries = 1000;
  static constexpr std::size_t kSessions =
      256;  // remembered; a file that knows only older ones knows nothing
  using Bytes = std::array<std::byte, kBytes>;

  // Blocks that a file absent at the time still holds and must drop.
  struct Missed {
    bool everything = false;
    std::unordered_set<tokens::SequenceHash> hashes = {};

    bool contains(const tokens::SequenceHash& hash) const { return everything || hashes.contains(hash); }
  };

  void add(std::span<const tokens::SequenceHash> hashes, std::uint64_t session);
  void add_everything(std::uint64_t session);

  // Repeated entries belong to `session`. Requires: at least one log.
  static RemovalLog merge(std::span<const RemovalLog> logs, std::uint64_t session);
  // Removals in this log that `other` does not know.
  Missed missed_by(const RemovalLog& other) const;

  // `serial`: increases with every write.
  Bytes encode(std::uint64_t serial) const;
  // Empty for bytes that are not a log, or damaged.
  static std::optional<RemovalLog> decode(std::span<const std::byte, kBytes> bytes, std::uint64_t* serial);

  friend bool operator==(const RemovalLog&, const RemovalLog&) = default;

 private:
  // Removals are numbered from 1. A session covers the ones it added, up to `last`.
  struct Session {
    std::uint64_t id = 0;
    std::uint64_t last = 0;

    friend bool operator==(const Session&, const Session&) = default;
  };
  struct Entry {
    tokens::SequenceHash hash = {};
    std::uint64_t session = 0;

    friend bool operator==(const Entry&, const Entry&) = default;
  };

  std::uint64_t last() const noexcept { return floor_.last + entries_.size(); }
  void took_part(const Session& session);
  bool knows(std::uint64_t number, std::uint64_t session) const;
  bool knows_floor_of(const RemovalLog& other) const { return knows(other.floor_.last, other.floor_.id); }
  // Calls fn(hash) for each removal in this log that `other` does not know.
  template <class F>
  void each_unknown_to(const RemovalLog& other, F&& fn) const {
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (!other.knows(floor_.last + 1 + i, entries_[i].session)) fn(entries_[i].hash);
  }

  Session floor_;                 // the last removal before entries_; 0: there was none
  std::deque<Entry> entries_;     // numbered from there on
  std::deque<Session> sessions_;  // the newest last
};

}  // namespace ashlar::tiers
