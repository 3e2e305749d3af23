// RemotePool: the tier Remote: blocks that are in the G2 of peers.
//
// The blocks of its manager have no bytes here: each has the list of peers that said they have it. So
// presence, eviction and events work as in any tier. A peer that withdraws a block, dies, or turns out not to
// have it leaves the list; with its last peer, or when those left no longer hold every layer and head of this
// rank, the block leaves the tier.
//
// A rank reads from peers of any tensor-parallel shape: its layers and heads are divided among those that
// have the block (transfer::cover), and each part is checked against the checksum of its owner.
//
// Thread safety: thread-safe. Holds no lock while it waits for a peer.
// Invariant:     see check_invariants().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/transfer/remote_agent.h"
#include "tiers/pool/block_mover.h"
#include "tiers/pool/managed_pool.h"
#include "tiers/pool/tier_pool.h"
#include "tiers/remote/answer_watch.h"
#include "tiers/remote/peer_cost.h"
#include "tiers/remote/peer_finder.h"
#include "tiers/remote/peer_reacher.h"
#include "tiers/remote/peer_totals.h"
#include "tiers/remote/remote_lease.h"
#include "tiers/remote/remote_messages.h"

namespace ashlar::tiers {

class RemotePool final : public ManagedPool<events::Remote, TierPool> {
 public:
  struct Options {
    transfer::BlockSetNames names = {};
    std::vector<std::string> peers = {};
    std::optional<PeerFinder::Options> finder = {};
    std::shared_ptr<RemoteDirectory> directory = {};
    bool ask_peers = true;
    Clock::Duration lease = {};
    Clock::Duration renew = {};
    Clock::Duration call_limit = {};
    Clock::Duration copy_limit = {};
    Clock::Duration rest = {};
    Clock::Duration patience = {};
    // Called for every peer that is met, before there are events of its blocks, with its number in event
    // locations.
    std::function<void(std::uint16_t number, const std::string& name)> named = {};
    Clock* clock = nullptr;
  };
  // `blocks`: those of G2, into which blocks are read. The manager outlives the pool.
  RemotePool(block::BlockManager<events::Remote>& manager, std::shared_ptr<transfer::RemoteAgent> agent,
             std::shared_ptr<const transfer::BlockSet> blocks, const Options& options);
  ~RemotePool() override;
  // Listens to the agent. Errors: those of the agent.
  Result<void> start();
  void stop();
  // Where nodes find each other; null: nowhere.
  PeerFinder* finder() const noexcept { return finder_.get(); }

  events::StorageTier storage_tier() const noexcept override { return events::StorageTier::kRemote; }
  std::uint64_t block_bytes() const noexcept override { return blocks_->block_bytes(); }
  TierRecord record(const block::Hold& hold) const override;
  bool knows_values(const block::Hold&) const override { return false; }
  // Forgets the block; its owners keep it.
  Result<void> remove(const tokens::SequenceHash& hash) override;
  std::size_t forget_all();

  // Limits of a call, by the clock of the pool.
  struct Limits {
    std::optional<Clock::TimePoint> deadline = {};
    std::stop_token stop = {};
  };
  // Connects to a peer and makes its blocks part of this tier; with `again` also those that were dropped.
  // Errors: see RemoteNode::connect().
  Result<std::shared_ptr<transfer::RemotePeer>> connect(std::string_view address,
                                                        const transfer::RemoteCallLimits& limits,
                                                        bool again = false);
  // Returns the peer at an address, whose blocks are part of this tier. One that rests is not asked. Errors:
  // kUnavailable: it cannot be reached, or does not answer; kUnsupported: see RemotePeerStatus::refusal.
  Result<std::shared_ptr<transfer::RemotePeer>> reach(const std::string& address, const Limits& limits);
  using Sets = std::vector<std::shared_ptr<const transfer::RemoteBlockSet>>;
  // Takes over sets that the agent has imported; those of a peer that was dropped after drop number `since`
  // are not. Errors: as connect().
  Result<void> adopt(const std::shared_ptr<transfer::RemotePeer>& peer, const Result<Sets>& sets,
                     std::uint64_t since);
  // How often drop() was called: for `since`, before the peer is asked.
  std::uint64_t drops() const;
  // Its sets stay dropped: look-ups do not bring them back.
  bool drop(const transfer::AgentIdentity& peer);
  // The set of a peer's G2, or of its landing; null when it has none that fits.
  std::shared_ptr<const transfer::RemoteBlockSet> set_of(const transfer::AgentIdentity& peer,
                                                         std::uint64_t id = kG2Set) const;

  // What a probe asks for: the blocks of a request from `whole.first` on.
  struct Question {
    RemoteQuery whole;
    BlockLineage first = {};  // of the first that is wanted
    std::span<const std::string> sources = {};
    bool only_sources = false;
  };
  // Asks peers for blocks, until one is absent: `sources` first, the others where those do not have the first
  // block. Returns how many leading ones are known now. `why`: of the next one.
  std::size_t probe(const Question& question, const Limits& limits, Miss* why = nullptr);
  Clock::Duration patience() const noexcept { return options_.patience; }
  // Whether probe() may find anything.
  bool probes() const;
  // Expected seconds of reading these blocks from those who would be asked for them now, at once; blocks that
  // nobody has take no time. 0: it was not measured.
  double seconds(std::span<const tokens::SequenceHash> hashes);
  // What reading one block from a set of peers takes, for block after block: most have the same holders.
  struct BlockCost {
    std::vector<std::uint16_t> holders = {};
    double seconds = 0;  // 0: not measured
  };
  double block_seconds(const tokens::SequenceHash& hash, BlockCost& last);
  // Of the fastest peer that is measured; 0: none is.
  double least_block_seconds() const;
  // Reads blocks into host memory, from several peers at once. Each block has its own outcome.
  MoveReport get(std::span<const tokens::SequenceHash> hashes, BytePool& to, const MoveOptions& options = {});
  struct Leased {
    FindAnswer answer;
    std::shared_ptr<RemoteLease> lease;  // null: none of them
  };
  // Asks one peer for blocks, with a lease on those that it has. An empty part: of the whole, with its rank.
  Result<Leased> lease(const transfer::RemoteBlockSet& set, std::span<const tokens::SequenceHash> hashes,
                       const RemotePart& part, const Limits& limits);

  // Asks one peer for the blocks in its slots, with a lease on those that have one.
  Result<Leased> lease_slots(const transfer::RemoteBlockSet& set, std::span<const std::uint32_t> slots,
                             const RemotePart& part, const Limits& limits);
  // A transfer that owns blocks of G2: stop() ends it.
  void follow(const std::shared_ptr<transfer::RemotePeer>& peer, const transfer::Transfer& transfer);
  // Those that are part of this tier.
  Sets sets() const;
  const PeerTotals& totals() const noexcept { return totals_; }

  void add_to(RemoteStatus& status) const;
  // The name of a peer by its number in event locations; empty: no such peer.
  std::string peer_name(std::uint16_t number) const;
  std::vector<std::pair<std::uint16_t, std::string>> peer_names() const;
  // Of a request, and of copying: for calls without a deadline.
  Clock::Duration longest_fetch() const noexcept { return options_.call_limit + options_.copy_limit; }
  // The limits of a call of the agent, whose clock is the machine's.
  transfer::RemoteCallLimits call_limits(const Limits& limits) const;
  // For tests: stops the process unless blocks and peers agree. Requires: no other call runs.
  void check_invariants() const;

 private:
  using Number = std::uint16_t;  // of a source; no other has it while it lives
  struct Source {
    Number number = 0;
    std::shared_ptr<transfer::RemotePeer> peer;
    std::shared_ptr<const transfer::RemoteBlockSet> set;
    std::shared_ptr<const transfer::RemoteBlockSet> landing;  // null: none
    std::string refusal;                                      // why its blocks cannot be used
    bool unanswered = false;                                  // it did not say what it shares
    std::atomic<std::uint64_t> load{0};
    std::atomic<std::uint64_t> in_flight{0};  // bytes that this node reads from it now
    std::atomic<Clock::TimePoint> rests_until{};
    PeerCost cost;
    Counter got;
    Counter failed;
  };
  using Sources = std::vector<std::shared_ptr<Source>>;
  // A part of a block, and who has it.
  struct Part {
    std::shared_ptr<Source> source;
    RemotePart part;     // of the model
    bool whole = false;  // of a peer with the same shard: checked with the stored checksum
  };
  // Whom blocks are read from.
  class Choice;
  // Blocks with one recipe, read together.
  struct Chunk;
  // What a read owns until its last byte.
  struct Landing;

  static transfer::LateAnswer give_back_late(const std::shared_ptr<transfer::RemotePeer>& peer);
  // Keeps the lease of an answer.
  Leased take(const transfer::RemoteBlockSet& set, FindAnswer answer, Clock::TimePoint sent);
  // A request for a lease, of either kind. Returns the bytes of the answer.
  Result<std::vector<std::byte>> ask_lease(const transfer::RemoteBlockSet& set, RemoteMethod method,
                                           std::span<const std::byte> request, const Limits& limits);
  // What became of blocks whose source did not do as it was asked: the caller had no more time, or it is the
  // source's fault.
  Moved failure_of(const Error& error, const Limits& limits) const;
  void failed(Source& source, std::size_t blocks);
  Result<void> check_fits(const transfer::RemoteBlockSet& set) const;
  std::shared_ptr<Source> source_of(const transfer::AgentIdentity& peer) const;
  // Takes a peer's sets over, once. Null: it has none that fit, or, with *silent, does not answer.
  std::shared_ptr<Source> meet(const std::shared_ptr<transfer::RemotePeer>& peer, const Limits& limits,
                               bool* silent);
  void died(const transfer::AgentIdentity& peer);
  void forget_blocks(const Source& source);
  void withdrawn(const transfer::AgentIdentity& peer, std::span<const tokens::SequenceHash> hashes);
  bool rests(const Source& source) const;
  // Whether its owner still offers it.
  bool is_offered(const std::shared_ptr<const transfer::RemoteBlockSet>& set) const;
  // How this rank's shard is divided among sources, the preferred first. Errors: kNotFound: they do not have
  // all of it.
  Result<std::vector<Part>> recipe(const Sources& sources) const;
  Sources holders(const tokens::SequenceHash& hash);
  std::vector<Number> numbers_of(const tokens::SequenceHash& hash);
  Sources sources_of(std::span<const Number> numbers) const;
  std::uint64_t part_bytes(const Part& part) const;  // of one block
  // What a call measured.
  void learn_costs(const ReadTimes& times);
  // What a probe wants to know, and the answers so far: remote_pool_ask.cc.
  struct Round;
  struct Asked;
  // Asks those at `addresses` and `peers` that were not asked before.
  void ask(std::span<const std::string> addresses,
           std::span<const std::shared_ptr<transfer::RemotePeer>> peers, Asked& asked);
  void ask_peer(Round& round, const std::shared_ptr<transfer::RemotePeer>& peer,
                std::span<const std::byte> request);
  // `asked`: withdrawals before the question.
  std::size_t learn(std::vector<TierRecord> records, const std::vector<Sources>& has, std::uint64_t asked);
  static bool is_no_answer(const Error& error);
  // A question failed. Whether the peer is left alone for a while: it is dead, or has been silent for
  // `call_limit`, however short the caller's own limit was.
  bool is_its_fault(const Error& error, const AnswerWatch::Question& question);
  // A peer does not have a block after all.
  void not_there(const tokens::SequenceHash& hash, const Source& source);
  bool drop_holder(const tokens::SequenceHash& hash, Number number);

  // Sources that refused a block of the request in this call.
  using Refusals = std::set<std::pair<std::size_t, Number>>;
  std::vector<Chunk> chunks_of(std::span<const tokens::SequenceHash> hashes,
                               std::span<const std::size_t> members, const Refusals& refusals,
                               MoveReport& report);
  void read(Chunk& chunk, BytePool& to, const MoveOptions& options);
  // Whether others than those of its parts have the blocks of a chunk.
  bool has_others(const Chunk& chunk);
  bool lease_parts(Chunk& chunk, const Limits& limits);
  bool is_one_text(Chunk& chunk, std::size_t k);
  bool copy_parts(Chunk& chunk, BytePool& to, const MoveOptions& options, const Limits& limits);
  void settle(Chunk& chunk, BytePool& to, const Limits& limits);

  const std::shared_ptr<transfer::RemoteAgent> agent_;
  const std::shared_ptr<const transfer::BlockSet> blocks_;
  const Options options_;
  Clock& clock_;
  LeaseKeeper keeper_;

  PeerTotals totals_;
  const std::unique_ptr<PeerFinder> finder_;
  AnswerWatch answers_;
  PeerReacher reacher_;

  struct Ends;  // what callbacks of the agent reach
  const std::shared_ptr<Ends> ends_;
  std::vector<transfer::RemoteOffer> offers_;

  Mutex transfers_mu_;  // a leaf
  std::map<std::uint64_t, std::pair<std::shared_ptr<transfer::RemotePeer>, transfer::Transfer>> transfers_
      ASHLAR_GUARDED_BY(transfers_mu_);  // in flight
  std::uint64_t next_transfer_ ASHLAR_GUARDED_BY(transfers_mu_) = 0;

  mutable Mutex mu_;  // a leaf
  Sources sources_ ASHLAR_GUARDED_BY(mu_);
  Number next_ ASHLAR_GUARDED_BY(mu_) = 0;
  // Of a block: who has it, and what they say it stands for. Holders agree with each other.
  struct Known {
    std::vector<Number> holders;
    BlockText text;
  };
  std::vector<Known> known_ ASHLAR_GUARDED_BY(mu_);  // by block
  // Withdrawn while peers are being asked: their answers may be older.
  // With the number of the withdrawal; those before the oldest question that is open are dropped.
  std::map<std::pair<Number, tokens::SequenceHash>, std::uint64_t> withdrawn_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t withdrawals_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::multiset<std::uint64_t> asking_ ASHLAR_GUARDED_BY(mu_);  // withdrawals before each open question
  std::uint64_t drops_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::map<transfer::AgentIdentity, std::uint64_t> dropped_ ASHLAR_GUARDED_BY(mu_);  // by which drop
};

}  // namespace ashlar::tiers
