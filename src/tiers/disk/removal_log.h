// RemovalLog: what was removed from G3, for files that were absent then.
//
// Several files hold the blocks of G3, and the device of one may be absent while blocks are removed. So every
// removal is written to the log of each file that is present. When the files are opened, merge() makes one
// log of theirs, and each file is told what it has missed before anything in it is found.
//
// Each opening of the files is a session with a number of its own, and a log names the sessions that it took
// part in: so it is known what a file was told, and what not. A log holds the last kEntries removals. Older
// ones are behind its floor, and so is what was there when everything was removed: a file that was not there
// has missed more than the log can say, and loses all its blocks.
//
// Two logs may have gone different ways, each with a file that the other was without. The merged log goes on
// from the longer one and repeats what only the other has. So a removal is known as long as one file that
// knows it is present, and a block may be removed once too often, never once too few.
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
      256;  // that are remembered; a file that knows only older ones knows nothing
  using Bytes = std::array<std::byte, kBytes>;

  // What a file that was absent still holds, and should not.
  struct Missed {
    bool everything = false;
    std::unordered_set<tokens::SequenceHash> hashes = {};

    bool contains(const tokens::SequenceHash& hash) const { return everything || hashes.contains(hash); }
  };

  void add(std::span<const tokens::SequenceHash> hashes, std::uint64_t session);
  void add_everything(std::uint64_t session);

  // What is repeated belongs to `session`. Requires: one log or more.
  static RemovalLog merge(std::span<const RemovalLog> logs, std::uint64_t session);
  // What is in this log, and `other` does not know.
  Missed missed_by(const RemovalLog& other) const;

  // `serial`: larger for what was written later.
  Bytes encode(std::uint64_t serial) const;
  // Nothing for bytes that are no log, or damaged.
  static std::optional<RemovalLog> decode(std::span<const std::byte, kBytes> bytes, std::uint64_t* serial);

  friend bool operator==(const RemovalLog&, const RemovalLog&) = default;

 private:
  // Removals are numbered from 1 on. A session has those up to `last` that it added.
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
  // Calls fn(hash) for each removal that is here, and that `other` does not know.
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
