// PeerTotals: what was read from each peer and granted to it, for metrics. It outlives the connections of
// peers, so its numbers never fall.
//
// Thread safety: thread-safe.
// Complexity:    at most kMostPeers names are kept; further peers are counted together as kOthers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "ashlar/base/mutex.h"
#include "ashlar/transfer/remote_agent.h"

namespace ashlar::tiers {

class PeerTotals {
 public:
  static constexpr std::size_t kMostPeers = 64;
  static constexpr const char* kOthers = "others";

  enum class What : std::uint8_t {
    kPulledBytes,   // that arrived from the peer
    kFailedBlocks,  // that it was thought to have, and that could not be read
    kLeases,        // that it was granted
    kServedBytes,   // of the blocks of these leases
  };

  // The name of a peer, or its address where it has none.
  static std::string label(const transfer::RemotePeer& peer) {
    return peer.name().empty() ? peer.address() : peer.name();
  }
  void add(const std::string& label, What what, std::uint64_t amount = 1) ASHLAR_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    auto found = totals_.find(label);
    if (found == totals_.end())
      found = totals_.try_emplace(totals_.size() < kMostPeers ? label : kOthers).first;
    found->second[static_cast<std::size_t>(what)] += amount;
  }
  std::map<std::string, std::uint64_t> values(What what) const ASHLAR_EXCLUDES(mu_) {
    std::map<std::string, std::uint64_t> out;
    const MutexLock lock(mu_);
    for (const auto& [label, all] : totals_) out[label] = all[static_cast<std::size_t>(what)];
    return out;
  }

 private:
  mutable Mutex mu_;  // a leaf
  std::map<std::string, std::array<std::uint64_t, 4>> totals_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
