// RemoteNode: the blocks of other nodes, as a tier, and the blocks of this node for others.
//
// As an owner it lets peers read the blocks of its G2: a peer asks for names, gets the places and checksums
// of those that are here, and a lease that keeps them from being evicted while it reads. It also lets peers
// push blocks: they write into memory of their own (the landing), and a block is copied to G2 and registered
// only after its checksum was found right there; so a writer that comes too late can never reach a block that
// somebody uses.
//
// As a reader it is the tier `Remote` of its KvBlockManager: find() and onboard() look there too. What
// arrives is checked against the owner's checksum before anybody can find it; whatever happened to the owner
// or to the lease in between, other bytes are a miss.
//
//   AgentOptions agent{.listen = "10.0.0.2:7000", .secret = secret};
//   auto kv = KvBlockManager::create({…, .g2 = TierShape{.block_count = 8192},
//                                     .remote = RemoteShape{.own_agent = agent,
//                                                           .peers = {"10.0.0.1:7000"}}}).value();
//   auto table = kv->onboard(hashes);      // also from 10.0.0.1
//   kv->remote()->push(peer, hashes);      // or the other way: into the G2 of a peer
//
// docs/remote.md describes protocol, leases and what happens when things break.
//
// Thread safety: thread-safe.
// Complexity:    a look-up is one request per peer that may have the blocks, all at once.
// Invariant:     a block that came from a peer can be found only after its bytes matched their checksum.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/rendezvous.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/onboard_handle.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/copy_plan.h"
#include "ashlar/transfer/remote_agent.h"

namespace ashlar::tiers {

// What peers may take of this node: each of them, and all together.
struct RemoteLimits {
  std::uint32_t leases_per_peer = 64;
  std::uint32_t leases = 1024;
  // Of leased blocks: what may be read at once.
  std::uint64_t leased_bytes_per_peer = std::uint64_t{1} << 30;
  std::uint64_t leased_bytes = std::uint64_t{4} << 30;
  std::uint32_t reserved_blocks_per_peer = 64;  // of the landing
  // Of G2: blocks that a peer has begun by pushing its part, while parts of other ranks are missing. All of
  // them are never more than half of G2; where that is less, a peer may begin the same share of it, or one.
  std::uint32_t incomplete_blocks_per_peer = 256;
  std::uint32_t incomplete_blocks = 1024;

  // Errors: kInvalidArgument: a limit of 0, or one for a peer above the one for all.
  Result<void> validate() const;
};

// Blocks that nodes are wanted for: those of a request from `first` on.
struct RemoteQuery {
  // Of the whole request, which may begin in the middle of a sequence: see position().
  std::span<const tokens::SequenceHash> hashes;
  // Of the tokens of the same blocks, as indexes find them: OnboardOptions::locals. Empty: not known.
  std::span<const tokens::LocalHash> locals;
  std::size_t first = 0;
};

// RemoteDirectory: knows which nodes have blocks, so that not all peers are asked. An index of the events of
// a fleet answers by `locals`, and its caller knows the address of each worker (docs/remote.md).
//
// Thread safety: implementations must be thread-safe.
class RemoteDirectory {
 public:
  virtual ~RemoteDirectory() = default;
  // The agents (HOST:PORT) of nodes that may have the first of these blocks, or more. It must not wait for
  // long: requests do.
  virtual std::vector<std::string> find(const RemoteQuery& query) = 0;
};

// Remote: a tier of blocks that are in the G2 of other nodes. Give own_agent or agent.
struct RemoteShape {
  std::optional<transfer::AgentOptions> own_agent = {};  // made with the manager
  std::shared_ptr<transfer::RemoteAgent> agent = {};     // or supplied; it serves one manager at a time
  // How many blocks of peers are tracked. One that is no longer tracked is found again by asking.
  std::uint32_t block_count = 65536;
  std::vector<std::string> peers = {};  // HOST:PORT; connected when first needed
  // Where nodes of one group find each other: this one leaves its block set there, and looks for others when
  // it is asked for blocks that no known peer has, at most once in `look_again`.
  std::shared_ptr<Rendezvous> rendezvous = {};
  std::string group = {};  // a name of the rendezvous: "fleet-1.decode"
  Clock::Duration look_again = std::chrono::seconds(2);
  // Null: all connected peers are asked for blocks that no tier is known to have.
  std::shared_ptr<RemoteDirectory> directory = {};
  bool ask_peers = true;             // off: only the directory, and sources named in requests
  bool serve = true;                 // peers may read the blocks of G2
  std::uint32_t landing_blocks = 0;  // room for blocks that peers push; 0: they may not
  RemoteLimits limits = {};
  // How long a peer may read before it asks again, and how often it does. As a reader: what is asked for.
  Clock::Duration lease = std::chrono::seconds(30);
  Clock::Duration renew = std::chrono::seconds(5);
  // Of a request to a peer, also where the caller has no deadline; and of copying, from the last byte on.
  Clock::Duration call_limit = std::chrono::seconds(2);
  Clock::Duration copy_limit = std::chrono::seconds(20);
  // A peer that could not be reached, or was silent for `call_limit`, is not asked for this long.
  Clock::Duration rest = std::chrono::seconds(5);
  // How long a look-up that could do without a peer waits for it: others that were asked, or G3 and G4, have
  // all blocks.
  Clock::Duration patience = std::chrono::milliseconds(50);
  // Called after blocks of a peer were registered in G2, on a thread of the agent. It must not wait.
  std::function<void(const transfer::AgentIdentity& peer, std::span<const tokens::SequenceHash>)> on_pushed =
      {};

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

// A peer, as far as its blocks matter here.
struct RemotePeerStatus {
  transfer::AgentIdentity identity;
  std::string name;
  std::string address;
  layout::Shard shard;
  std::uint64_t got = 0;     // blocks read from it
  std::uint64_t failed = 0;  // blocks that it was thought to have, and that could not be read
  std::uint64_t known = 0;   // blocks that it is known to have
  std::uint64_t load = 0;    // bytes leased from it, as it last said
  double block_seconds = 0;  // that reading one block from it takes, by what was measured; 0: nothing was
  std::string refusal;       // why its blocks cannot be used here; empty: they can
};

struct RemoteStatus {
  std::vector<RemotePeerStatus> peers;
  std::uint64_t leases = 0;  // that peers have here, now
  std::uint64_t leased_bytes = 0;
  std::uint64_t granted = 0;               // leases, so far
  std::uint64_t renewed = 0;               // how often any was
  std::uint64_t expired = 0;               // of these, not released in time
  std::uint64_t refused = 0;               // requests that would have passed a limit
  std::uint64_t reserved_blocks = 0;       // of the landing, now
  std::uint64_t reservations = 0;          // so far
  std::uint64_t reservations_expired = 0;  // of these, neither committed nor given back in time
  std::uint64_t pushed = 0;                // blocks that peers pushed here
  std::uint64_t push_refused = 0;          // blocks, or parts, whose bytes did not fit, or that had no room
  std::uint64_t incomplete_blocks = 0;     // of G2, of which parts are missing, now
  std::uint64_t incomplete_expired = 0;    // of these, so far: parts did not come in time
  std::uint64_t looked = 0;                // times that the group was listed at the rendezvous
  std::uint64_t met = 0;                   // peers found there
  std::uint64_t records_refused = 0;       // records there that led to no peer; one is tried once per `rest`
  std::string record_refusal = {};         // why the last of them did not
};

// A block of a peer.
struct RemoteBlock {
  tokens::SequenceHash hash;
  Miss miss = Miss::kNone;                                        // why it is not here to read
  std::uint32_t slot = 0;                                         // in the owner's set
  transfer::BlockChecksum checksum = transfer::BlockChecksum(0);  // of the part asked for
};

class RemoteLease;

// Read views of blocks of one peer, for as long as the lease lasts. Dropping it gives the lease back.
//
// Thread safety: thread-compatible. It may outlive the manager.
class [[nodiscard]] RemoteBlocks {
 public:
  // Made by the library.
  RemoteBlocks(std::shared_ptr<const transfer::RemoteBlockSet> set, std::vector<RemoteBlock> blocks,
               std::shared_ptr<RemoteLease> lease)
      : set_(std::move(set)), blocks_(std::move(blocks)), lease_(std::move(lease)) {}

  const transfer::RemoteBlockSet& set() const noexcept { return *set_; }
  // In the order of the request.
  std::span<const RemoteBlock> blocks() const noexcept { return blocks_; }
  // Whether the owner still keeps them, for all that is known here. An owner that resets its tier, or removes
  // a block, ends a lease before its time: compare the checksum of what was read.
  bool active() const;

 private:
  std::shared_ptr<const transfer::RemoteBlockSet> set_;
  std::vector<RemoteBlock> blocks_;
  std::shared_ptr<RemoteLease> lease_;
};

class RemoteReservation;

// What became of a block, or of this rank's part of it, at the peer that it was pushed to.
enum class Pushed : std::uint8_t {
  kRegistered,  // it can be found there
  kIncomplete,  // this part was checked and kept; it can be found once all other parts have come, and is
                // dropped if no other rank brings one for the peer's RemoteShape::lease
};

// Empty blocks at a peer, to be written by a transfer. Dropping it without commit() returns them.
//
// A rank that does not hold all layers and heads of the peer writes its part of each block; other ranks, with
// reservations of their own, write the others.
//
// Thread safety: thread-compatible.
class [[nodiscard]] RemoteBlocksMutable {
 public:
  // Made by the library.
  explicit RemoteBlocksMutable(std::shared_ptr<RemoteReservation> reservation) noexcept
      : reservation_(std::move(reservation)) {}

  // Over the peer's memory: the destination of a plan.
  const std::shared_ptr<const transfer::BlockSet>& blocks() const noexcept;
  std::span<const std::uint32_t> ids() const noexcept;
  // The layers and heads that this rank writes: for the plan.
  transfer::PlanSelection part() const;
  // Tells the peer that block i holds the bytes of the local block `hashes[i]` of G2, whose transfer is done:
  // all, or part(). The peer compares checksums and registers what is whole and matches. Returns one result
  // per block. Errors of a block: kCorruption: other bytes arrived; kCapacity: the peer's G2 has no room, or
  // a limit of incomplete blocks; kNotFound: G2 here no longer has it; kNotReady: the peer dropped the block
  // meanwhile; of parts also kInvalidArgument: other ranks push another text under this name;
  // kAlreadyExists: it overlaps with another part. Errors of the call: those of RemotePeer::call();
  // kNotReady: the reservation is over, or its manager is gone.
  Result<std::vector<Result<Pushed>>> commit(std::span<const tokens::SequenceHash> hashes,
                                             const transfer::RemoteCallLimits& limits = {}) &&;

 private:
  std::shared_ptr<RemoteReservation> reservation_;
};

// What became of an action of a KV hints envelope.
struct HintOutcome {
  enum class Kind : std::uint8_t { kDone, kClipped, kRejected };
  std::string message_id;  // of the envelope; empty: it had none
  std::string action_id;
  std::string action_type;  // "kv.fetch"
  Kind kind = Kind::kRejected;
  std::size_t wanted = 0;   // blocks
  std::size_t fetched = 0;  // that are in G2 now, or in G1
  std::string reason;       // why not all of them are
};

class RemoteCore;

class RemoteNode {
 public:
  // Made by the library.
  explicit RemoteNode(std::shared_ptr<RemoteCore> core) noexcept : core_(std::move(core)) {}
  RemoteNode(const RemoteNode&) = delete;
  RemoteNode& operator=(const RemoteNode&) = delete;

  transfer::RemoteAgent& agent() noexcept;
  // Connects and exchanges block sets. Errors: those of the agent; kUnsupported, kInvalidArgument: blocks of
  // another model, hash scheme, prefix key or shape, which cannot be used here, with what differs.
  Result<std::shared_ptr<transfer::RemotePeer>> connect(std::string_view address,
                                                        std::optional<Clock::TimePoint> until = {});
  // The serialised block set of G2, for any way to peers. Errors: kNotReady: nothing is served.
  Result<std::vector<std::byte>> export_blockset() const;
  // Makes the blocks of another node's set part of this tier. Errors: as connect(), and of
  // RemoteAgent::import_remote_blockset().
  Result<std::shared_ptr<transfer::RemotePeer>> import_remote_blockset(
      std::span<const std::byte> bytes, std::optional<Clock::TimePoint> until = {});
  // Forgets the sets of a peer and the blocks known of it. They stay dropped until connect() or
  // import_remote_blockset() takes them back, or the peer shares others: those of another incarnation, or of
  // another manager over the same agent. False: none.
  bool drop_remote_blockset(const transfer::AgentIdentity& peer);
  // The sets of peers whose blocks are part of this tier: their G2, and their landing where they have one.
  std::vector<std::shared_ptr<const transfer::RemoteBlockSet>> remote_blocksets() const;

  // Views of blocks of one peer's G2, leased. Errors: kNotFound: no such peer, or no set of it that fits
  // here; those of RemotePeer::call().
  Result<RemoteBlocks> get_remote_blocks(const transfer::AgentIdentity& peer,
                                         std::span<const tokens::SequenceHash> hashes,
                                         std::optional<Clock::TimePoint> until = {});
  // The same by slot, for blocks found before: a slot that has another block by now is a miss.
  Result<RemoteBlocks> get_remote_blocks(const transfer::AgentIdentity& peer,
                                         std::span<const RemoteBlock> blocks,
                                         std::optional<Clock::TimePoint> until = {});
  // The same by number alone: whichever blocks are in these slots of the peer's G2 now. The owner tells their
  // names and checksums; a slot without a registered block is a miss, kUnknown.
  Result<RemoteBlocks> get_remote_blocks(const transfer::AgentIdentity& peer,
                                         std::span<const std::uint32_t> slots,
                                         std::optional<Clock::TimePoint> until = {});
  // Reserves n empty blocks in a peer's landing; all or none. Errors: also kCapacity: no room there, or a
  // limit; kUnsupported: this rank holds nothing that the peer does.
  Result<RemoteBlocksMutable> get_remote_blocks_mutable(const transfer::AgentIdentity& peer, std::size_t n,
                                                        std::optional<Clock::TimePoint> until = {});
  // Copies blocks of G2, or the part of them that the peer holds too, into the G2 of a peer, as many at a
  // time as its landing has room for. With `until`, blocks that find no room there are pushed again until
  // then, a few at a time until they are taken: so ranks that push parts of the same blocks wait for each
  // other. Returns one result per block. Errors: as get_remote_blocks_mutable(), but with `until` its
  // kCapacity becomes that of each block; per block as RemoteBlocksMutable::commit().
  Result<std::vector<Result<Pushed>>> push(const transfer::AgentIdentity& peer,
                                           std::span<const tokens::SequenceHash> hashes,
                                           std::optional<Clock::TimePoint> until = {});

  // Executes the `kv.fetch` actions of an envelope of KV hints (JSON): brings the blocks of these 64-bit
  // engine hashes from the named agent into G2. Blocks that are in G2 or G1 count, whatever the source has.
  // Returns one outcome per action, in order. Without `until` all of it ends after call_limit and copy_limit;
  // a source that does not answer is asked once. Errors: kInvalidArgument: not an envelope, with the place;
  // kUnsupported: its protocol version.
  Result<std::vector<HintOutcome>> execute_hints(std::string_view envelope,
                                                 std::optional<Clock::TimePoint> until = {});
  // The outcomes as JSON, for whoever sent the envelope.
  static std::string to_json(std::span<const HintOutcome> outcomes);

  RemoteStatus status() const;

 private:
  Result<std::vector<Result<Pushed>>> push_batches(const transfer::AgentIdentity& peer,
                                                   std::span<const tokens::SequenceHash> hashes,
                                                   std::optional<Clock::TimePoint> until);
  Result<std::vector<Result<Pushed>>> push_some(const transfer::AgentIdentity& peer,
                                                std::span<const tokens::SequenceHash> hashes,
                                                std::optional<Clock::TimePoint> until);

  std::shared_ptr<RemoteCore> core_;
};

}  // namespace ashlar::tiers
