// RemoteServer: answers peers that read the blocks of this node's G2, or push blocks into it.
//
// It remembers which blocks each peer was told of, and withdraws those that leave G2. Checksums of parts are
// kept for the last part that was asked for, per block: a fleet asks for the same ones again and again.
//
// Thread safety: thread-safe. Handlers run on threads of the agent; expiry and withdrawals on one of its own.
// Invariant:     a slot that was told to a peer under a lease has that block until the lease ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <unordered_set>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_observer.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/transfer/executor.h"
#include "ashlar/transfer/remote_agent.h"
#include "tiers/pool/tier_pool.h"
#include "tiers/remote/lease_table.h"
#include "tiers/remote/peer_totals.h"
#include "tiers/remote/push_assembly.h"
#include "tiers/remote/push_watch.h"
#include "tiers/remote/remote_messages.h"

namespace ashlar::tiers {

class RemoteServer final : public block::BlockObserver {
 public:
  struct Options {
    transfer::BlockSetNames names = {};
    RemoteLimits limits = {};
    Clock::Duration longest_lease = {};
    std::shared_ptr<const transfer::BlockSet> landing = {};  // null: no pushes
    // Called after blocks of a peer were registered in G2.
    std::function<void(const transfer::AgentIdentity&, std::span<const TierRecord>)> pushed = {};
    // Calls visit(hash) for every block of G2.
    std::function<void(const std::function<void(const tokens::SequenceHash&)>& visit)> each_block = {};
    // The registered block in a slot of G2.
    std::function<std::optional<tokens::SequenceHash>(std::uint32_t slot)> in_slot = {};
    Clock* clock = nullptr;
  };
  // The pool and the executor outlive the server.
  RemoteServer(std::shared_ptr<transfer::RemoteAgent> agent, BytePool& g2, transfer::Executor& executor,
               Options options);
  ~RemoteServer() override;

  // Exports the sets and answers from now on. Errors: those of the agent; kCapacity: no thread.
  Result<void> start();
  // Answers no more, and ends all leases.
  void stop();

  // The blocks leave G2 whoever reads them: ends the leases on them, and tells the peers.
  void withdraw(std::span<const tokens::SequenceHash> hashes);
  void withdraw_all();
  void evicted(std::span<const block::EvictedBlock> blocks) noexcept override;

  const LeaseTable& leases() const noexcept { return leases_; }
  const PeerTotals& totals() const noexcept { return totals_; }
  void add_to(RemoteStatus& status) const;

 private:
  using Peer = std::shared_ptr<transfer::RemotePeer>;
  using Bytes = std::vector<std::byte>;
  // A checksum of a part of the block that a slot had.
  struct PartChecksum {
    tokens::SequenceHash hash;
    RemotePart part;
    Clock::TimePoint since;  // when the block entered its tier
    transfer::BlockChecksum checksum = transfer::BlockChecksum(0);
  };
  // What a peer was told of.
  struct Told {
    std::weak_ptr<transfer::RemotePeer> peer;
    const transfer::RemotePeer* which = nullptr;  // the same, to be compared when it is gone
    std::unordered_set<tokens::SequenceHash> hashes;
    std::vector<tokens::SequenceHash> withdrawn;  // not yet told
  };

  // What a peer's end reaches; null once the server stops.
  struct Ends {
    Mutex mu;  // before the server's
    RemoteServer* server ASHLAR_GUARDED_BY(mu) = nullptr;
  };

  Result<Bytes> find(const Peer& peer, std::span<const std::byte> request);
  Result<Bytes> find_slots(const Peer& peer, std::span<const std::byte> request);
  Result<Bytes> renew(const Peer& peer, std::span<const std::byte> request);
  Result<Bytes> release(const Peer& peer, std::span<const std::byte> request);
  Result<Bytes> reserve(const Peer& peer, std::span<const std::byte> request);
  Result<Bytes> commit(const Peer& peer, std::span<const std::byte> request);
  Result<Bytes> commit_part(const Peer& peer, std::span<const std::byte> request);
  Result<Bytes> abort(const Peer& peer, std::span<const std::byte> request);
  Result<Bytes> names(const Peer& peer, std::span<const std::byte> request);

  // Finds the blocks of a request. `slots`: where they must be; empty: anywhere.
  FindAnswer look_up(const Peer& peer, const FindRequest& request, std::span<const std::uint32_t> slots);
  // The answer as bytes. Errors: kCapacity: more than a message holds; its lease is over.
  Result<Bytes> fitting(const Peer& peer, const FindAnswer& answer);
  // The checksum of a held block's part; an empty part: of the whole, with its rank. Errors: kCorruption.
  Result<transfer::BlockChecksum> checksum(const block::Hold& hold, const TierRecord& record,
                                           const RemotePart& part);
  // Ends the reservation, and lets `commit` answer about the slots that were written.
  template <class Commit>
  Result<Bytes> with_slots(const Peer& peer, const CommitRequest& request, Commit&& commit);
  std::vector<Result<Pushed>> register_landed(std::span<const std::uint32_t> slots,
                                              std::span<const TierRecord> records,
                                              std::vector<TierRecord>& registered);
  // Ends what a peer has here, unless it has come back on another connection.
  void gone(const transfer::AgentIdentity& id, const transfer::RemotePeer* peer);
  void tell(const Peer& peer, std::span<const tokens::SequenceHash> hashes);
  void take_back(std::span<const tokens::SequenceHash> hashes);
  Clock::Duration bounded(std::chrono::milliseconds wanted) const;
  void run();
  void wake();

  const std::shared_ptr<transfer::RemoteAgent> agent_;
  BytePool& g2_;
  transfer::Executor& executor_;
  const Options options_;
  Clock& clock_;
  LeaseTable leases_;
  const std::unique_ptr<PushAssembly> assembly_;  // null: no pushes
  PushWatch watch_;
  PeerTotals totals_;

  Mutex checksums_mu_;  // a leaf
  std::vector<PartChecksum> checksums_ ASHLAR_GUARDED_BY(checksums_mu_);

  mutable Mutex mu_;  // before the agent's locks
  CondVar changed_;
  std::map<transfer::AgentIdentity, Told> told_ ASHLAR_GUARDED_BY(mu_);
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  bool woken_ ASHLAR_GUARDED_BY(mu_) = false;
  // relaxed: of told_; a peer that is being told of a block holds it meanwhile.
  std::atomic<std::size_t> told_peers_{0};
  const std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  std::vector<transfer::RemoteOffer> offers_;
  std::thread thread_;
  Counter pushed_;
  Counter push_refused_;
};

}  // namespace ashlar::tiers
