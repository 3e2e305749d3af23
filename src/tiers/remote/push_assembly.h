// PushAssembly: blocks of G2 that several ranks fill, each with its layers and heads.
//
// The first part of a block reserves a place in G2; every part is copied there from the landing and compared
// with its checksum; the block is registered when its parts are all that this rank holds. Until then nobody
// can find it. One part of a block is copied at a time, so a plane with one head for all others comes with
// the first part of a layer, and those after it are checked against it.
//
//   absent ── first part ──> incomplete ── last part ──> registered
//                                └── time, reset, removal, death of the only peer ──> gone
//
// A block that G2 has, however it came, needs no part: any part of it counts as registered, unless it is of
// another text, and what had come is dropped. A part that is here already is not copied again. One that
// overlaps with another and brings something new is refused. A part whose checksum does not match changes
// nothing: its place is written again by the next one.
//
// Thread safety: thread-safe. Holds no lock while it copies, reserves and registers.
// Complexity:    O(incomplete blocks) per call, and one pass over the bytes of the parts.
// Invariant:     every byte of a registered block was compared with the checksum of a part, after the copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/executor.h"
#include "tiers/pool/tier_pool.h"
#include "tiers/remote/remote_messages.h"

namespace ashlar::tiers {

class PushAssembly {
 public:
  using Peer = transfer::AgentIdentity;
  struct Options {
    tokens::NamespaceFingerprint keys = {};
    std::uint32_t blocks_per_peer = 1;  // that it may have begun
    std::uint32_t blocks = 1;
    Clock::Duration duration = {};  // of an incomplete block, from when a peer last joined in
    Clock* clock = nullptr;
  };
  // The pool and the executor outlive this. `landing` has the shard of the pool.
  PushAssembly(BytePool& g2, std::shared_ptr<const transfer::BlockSet> landing, transfer::Executor& executor,
               const Options& options);

  // Takes over what a peer wrote into slots of the landing: of each block the same part, which `records[i]`
  // names, with its checksum. Appends blocks that are whole now to `registered`. Errors of a block:
  // kNotFound: an empty record; kCorruption: other bytes; kInvalidArgument: another text under this name;
  // kAlreadyExists: the part overlaps with another; kCapacity: a limit, or G2 has no room; kNotReady: the
  // block was dropped meanwhile. Errors of the call: kInvalidArgument: a part that this rank does not hold.
  Result<std::vector<Result<Pushed>>> add(const Peer& peer, const RemotePart& part,
                                          std::span<const std::uint32_t> slots,
                                          std::span<const TierRecord> records,
                                          std::vector<TierRecord>& registered);
  // What becomes of a block that is pushed, or of a part of it, where G2 has one of its name. Empty: it has
  // none.
  static std::optional<Result<Pushed>> in_g2(BytePool& g2, const TierRecord& record);
  // Drops blocks that only this peer brought parts of.
  void end_peer(const Peer& peer);
  void end_blocks(std::span<const tokens::SequenceHash> hashes);
  // Drops what came of blocks that G2 has; one of which a part is being copied may stay for its time.
  void end_registered(std::span<const tokens::SequenceHash> hashes);
  void end_all();
  // Drops what is over. Returns when the next one is; empty: nothing is left.
  std::optional<Clock::TimePoint> expire();

  void add_to(RemoteStatus& status) const;

 private:
  struct Block {
    std::unique_ptr<Reservation> target;  // while it is busy, of the thread that works on it
    std::uint32_t slot = 0;
    Peer began;
    TierRecord record;  // of the first part
    std::vector<RemotePart> parts;
    std::vector<Peer> peers;  // of the parts
    Clock::TimePoint end;
    bool busy = true;  // a thread copies a part, or registers it
    bool over = false;
  };
  using Blocks = std::map<tokens::SequenceHash, std::shared_ptr<Block>>;
  // A part that this thread takes over.
  struct Claim {
    std::size_t place;  // in the request
    std::shared_ptr<Block> block;
    std::optional<Result<Pushed>> outcome = {};  // known before it was copied, or that it could not be
  };
  // What one call of add() works on.
  struct Request {
    const Peer& peer;
    const RemotePart& part;
    std::span<const std::uint32_t> slots;
    std::span<const TierRecord> records;
    std::vector<Result<Pushed>>& outcomes;
  };

  // Makes busy what can be worked on; waits while there is nothing but what others work on. Takes from `left`
  // what is claimed or decided.
  std::vector<Claim> claim(const Request& request, std::vector<std::size_t>& left);
  std::size_t begun_by(const Peer& peer) const ASHLAR_REQUIRES(mu_);
  void refuse_one() ASHLAR_EXCLUDES(mu_);
  // Of a block that nobody works on. Empty: the part is to be copied.
  static std::optional<Result<Pushed>> decide(const RemotePart& part, const Block& block,
                                              const TierRecord& record);
  // The steps of a round, each for those claims that have no outcome yet.
  void reserve(const Request& request, Claim& claim);
  void copy(const Request& request, std::span<Claim> claims);
  void verify(const Request& request, Claim& claim) const;
  void settle(const Request& request, std::span<Claim> claims, std::vector<TierRecord>& registered);
  bool is_whole(const Block& block) const;
  void erase(const tokens::SequenceHash& hash, Block& block) ASHLAR_REQUIRES(mu_);
  template <class Which>
  void end(Which&& which);

  BytePool& g2_;
  const std::shared_ptr<const transfer::BlockSet> landing_;
  transfer::Executor& executor_;
  const Options options_;
  const layout::Shard shard_;
  Clock& clock_;
  mutable Mutex mu_;  // a leaf
  CondVar changed_;
  Blocks blocks_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t expired_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t refused_ ASHLAR_GUARDED_BY(mu_) = 0;  // parts
};

}  // namespace ashlar::tiers
