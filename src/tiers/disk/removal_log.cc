#include "tiers/disk/removal_log.h"

#include <algorithm>
#include <vector>

#include "ashlar/base/check.h"
#include "base/byte_io.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {
namespace {

constexpr std::uint32_t kRemovalMagic = 0x6d657247;  // "Grem"
constexpr std::size_t kRemovalCovered = RemovalLog::kBytes - sizeof(std::uint64_t);
constexpr std::size_t kRemovalHead = 40;
static_assert(kRemovalHead + RemovalLog::kSessions * 16 + RemovalLog::kEntries * 24 <= kRemovalCovered);

}  // namespace

void RemovalLog::took_part(const Session& session) {
  const auto found = std::ranges::find(sessions_, session.id, &Session::id);
  if (found != sessions_.end()) {
    found->last = std::max(found->last, session.last);
    return;
  }
  sessions_.push_back(session);
  if (sessions_.size() > kSessions) sessions_.pop_front();
}

void RemovalLog::add(std::span<const tokens::SequenceHash> hashes, std::uint64_t session) {
  for (const tokens::SequenceHash& hash : hashes) {
    entries_.push_back({hash, session});
    if (entries_.size() <= kEntries) continue;
    floor_ = {.id = entries_.front().session, .last = floor_.last + 1};
    entries_.pop_front();
  }
  if (!hashes.empty()) took_part({.id = session, .last = last()});
}

void RemovalLog::add_everything(std::uint64_t session) {
  floor_ = {.id = session, .last = last() + 1};
  entries_.clear();
  took_part(floor_);
}

bool RemovalLog::knows(std::uint64_t number, std::uint64_t session) const {
  if (number == 0) return true;
  const auto found = std::ranges::find(sessions_, session, &Session::id);
  return found != sessions_.end() && number <= found->last;
}

RemovalLog RemovalLog::merge(std::span<const RemovalLog> logs, std::uint64_t session) {
  ASHLAR_CHECK(!logs.empty(), "no log to merge");
  const RemovalLog& longest = *std::ranges::max_element(logs, {}, &RemovalLog::last);
  RemovalLog merged = longest;
  bool everything = false;
  std::unordered_set<tokens::SequenceHash> seen;
  std::vector<tokens::SequenceHash> others;
  for (const RemovalLog& log : logs) {
    everything |= !longest.knows_floor_of(log);
    log.each_unknown_to(longest, [&](const tokens::SequenceHash& hash) {
      if (seen.insert(hash).second) others.push_back(hash);
    });
  }
  if (!everything && others.empty()) return merged;
  for (const RemovalLog& log : logs)
    for (const Session& one : log.sessions_) merged.took_part(one);
  if (everything) {
    merged.add_everything(session);
  } else {
    merged.add(others, session);
  }
  return merged;
}

RemovalLog::Missed RemovalLog::missed_by(const RemovalLog& other) const {
  Missed missed{.everything = !other.knows_floor_of(*this)};
  if (!missed.everything)
    each_unknown_to(other, [&](const tokens::SequenceHash& hash) { missed.hashes.insert(hash); });
  return missed;
}

RemovalLog::Bytes RemovalLog::encode(std::uint64_t serial) const {
  ByteWriter out;
  out.put(kRemovalMagic);
  out.put(static_cast<std::uint32_t>(entries_.size()));
  out.put(serial);
  out.put(floor_.last);
  out.put(floor_.id);
  out.put(std::uint64_t{sessions_.size()});
  for (const Session& session : sessions_) {
    out.put(session.id);
    out.put(session.last);
  }
  for (const Entry& entry : entries_) {
    out.put(entry.hash.hi());
    out.put(entry.hash.lo());
    out.put(entry.session);
  }
  out.bytes().resize(kRemovalCovered);
  out.put(std::uint64_t{XXH3_64bits(out.bytes().data(), kRemovalCovered)});
  Bytes bytes;
  std::ranges::copy(out.bytes(), bytes.begin());
  return bytes;
}

std::optional<RemovalLog> RemovalLog::decode(std::span<const std::byte, kBytes> bytes,
                                             std::uint64_t* serial) {
  ByteReader end(bytes.subspan(kRemovalCovered));
  if (end.get<std::uint64_t>() != XXH3_64bits(bytes.data(), kRemovalCovered)) return std::nullopt;
  ByteReader in(bytes);
  const auto magic = in.get<std::uint32_t>();
  const auto entries = in.get<std::uint32_t>();
  *serial = in.get<std::uint64_t>();
  RemovalLog log;
  log.floor_.last = in.get<std::uint64_t>();
  log.floor_.id = in.get<std::uint64_t>();
  const auto sessions = in.get<std::uint64_t>();
  if (magic != kRemovalMagic || entries > kEntries || sessions > kSessions) return std::nullopt;
  for (std::uint64_t i = 0; i < sessions; ++i) {
    const auto id = in.get<std::uint64_t>();
    log.sessions_.push_back({.id = id, .last = in.get<std::uint64_t>()});
  }
  for (std::uint32_t i = 0; i < entries; ++i) {
    const auto hi = in.get<std::uint64_t>();
    const auto lo = in.get<std::uint64_t>();
    log.entries_.push_back({tokens::SequenceHash::from_bits(hi, lo), in.get<std::uint64_t>()});
  }
  return log;
}

}  // namespace ashlar::tiers
