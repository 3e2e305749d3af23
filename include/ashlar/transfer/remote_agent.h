// RemoteAgent: one per process: introduces it to its peers, shares block sets with them, and carries short
// requests. RemotePeer: one incarnation of another agent. RemoteBlockSet: its blocks, as this process sees
// them.
//
//   auto agent = RemoteAgent::create({.name = "decode-0", .listen = "10.0.0.2:7000", .secret = secret,
//                                     .transport = transport}).value();
//   auto shared = agent->export_blockset(set, {.keys = keys}).value();      // until it is dropped
//   auto peer = agent->connect("10.0.0.1:7000").value();
//   auto theirs = agent->exchange(peer).value();                            // their block sets
//   auto move = plan(theirs[0]->blocks(), their_blocks, set, my_blocks).value();
//   agent->executor().submit({.plan = std::move(move)}).value().wait();
//
// Peers prove to each other that they know the secret before anything else is said; every message after that
// is authenticated and numbered, so that neither a stranger nor a replay is heard. Without a secret an agent
// talks over loopback addresses only. A connection is watched: a peer that closes it, or says nothing for
// `silence`, is dead, its path is closed, and what waits for it fails with kUnavailable. docs/remote.md has
// the protocol.
//
// Thread safety: thread-safe. Handlers run on threads of the agent, several at once.
// Invariant:     a dead peer never comes back: a new connection is a new RemotePeer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/executor.h"
#include "ashlar/transfer/remote_transport.h"

namespace ashlar::transfer {

struct AgentOptions {
  std::string name = {};                 // for messages: "decode-0"; at most 128 characters
  std::optional<std::uint64_t> id = {};  // of the node; empty: random
  std::string listen = "127.0.0.1:0";    // HOST:PORT; port 0: any. IPv6 hosts in brackets
  std::string advertise = {};            // what peers connect to; empty: the address listened on
  std::string secret = {};               // shared by all agents; needed unless both ends are loopback
  std::shared_ptr<RemoteTransport> transport = {};  // null: a LoopbackTransport
  Clock::Duration heartbeat = std::chrono::seconds(1);
  Clock::Duration silence = std::chrono::seconds(5);     // after which a peer is dead
  Clock::Duration call_limit = std::chrono::seconds(5);  // of calls without a deadline of their own
  std::uint32_t handler_threads = 2;
  std::uint32_t max_peers = 1024;
  std::uint32_t max_message_bytes = std::uint32_t{16} << 20;

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

// Ends a wait: at the deadline (by Clock::real()), or when a stop is requested.
struct RemoteCallLimits {
  std::optional<Clock::TimePoint> deadline = {};
  std::stop_token stop = {};
};

// Hears the answer of a call that has ended before it came. It runs on a thread of the agent and must not
// wait.
using LateAnswer = std::function<void(std::span<const std::byte> answer)>;

// How a block set's blocks are named. Sets of two agents fit together only if all of it is equal.
struct BlockSetNames {
  tokens::NamespaceFingerprint keys = {};
  std::uint64_t scheme_fingerprint = 0;
  std::uint64_t prefix_key_fingerprint = 0;

  friend bool operator==(const BlockSetNames&, const BlockSetNames&) = default;
};

class AgentCore;
class PeerLink;

class RemotePeer {
 public:
  // Made by the library.
  explicit RemotePeer(std::shared_ptr<PeerLink> link) noexcept;
  ~RemotePeer();

  const AgentIdentity& identity() const noexcept;
  const std::string& name() const noexcept;
  // Where the peer accepts connections.
  const std::string& address() const noexcept;
  bool alive() const;
  // Why it is dead; empty while it is alive.
  std::optional<Error> failure() const;
  const std::shared_ptr<RemotePath>& path() const noexcept;
  // The longest request, notification or answer between the two.
  std::size_t max_message_bytes() const;

  // Sends a request and waits for the answer of the peer's handler. Errors: the handler's, with its code;
  // kUnavailable: the peer is dead, or dies meanwhile; kUnsupported: it has no such handler; kTimeout;
  // kCancelled; kInvalidArgument: longer than max_message_bytes. The answer of a call that ended with
  // kTimeout or kCancelled goes to `late`, if the peer gives one: what it granted can be given back then.
  Result<std::vector<std::byte>> call(std::uint16_t method, std::span<const std::byte> request,
                                      const RemoteCallLimits& limits = {}, LateAnswer late = {});
  // Sends a request whose answer nobody waits for. Messages to one peer arrive in the order of the calls that
  // send them; handlers of different messages may run at once. Errors: kCapacity: the peer reads too slowly;
  // kUnavailable, kInvalidArgument: as call(). A peer that falls behind by thousands is closed.
  Result<void> notify(std::uint16_t method, std::span<const std::byte> request);
  // Ends the connection: the peer is dead from now on.
  void close(const Error& why);
  // Runs `callback` once when the peer is dead, on a thread of the agent; at once, on this one, if it is. It
  // must not wait.
  void on_closed(std::function<void(const Error&)> callback);

 private:
  friend class AgentCore;
  std::shared_ptr<PeerLink> link_;
};

// What an agent sealed, and which one.
struct SealedBytes {
  AgentIdentity author;
  std::vector<std::byte> bytes;
};

// Answers requests of peers.
using RemoteHandler = std::function<Result<std::vector<std::byte>>(const std::shared_ptr<RemotePeer>& peer,
                                                                   std::span<const std::byte> request)>;

// A handler, or a block set, that peers reach until this is dropped. Dropping waits for running handlers, and
// must not happen inside one.
class [[nodiscard]] RemoteOffer {
 public:
  RemoteOffer() = default;
  explicit RemoteOffer(std::shared_ptr<void> offer) noexcept : offer_(std::move(offer)) {}

 private:
  std::shared_ptr<void> offer_;
};

// Whose block set it is, and which of its sets.
struct BlockSetOwner {
  AgentIdentity owner;
  std::uint64_t id = 0;

  friend auto operator<=>(const BlockSetOwner&, const BlockSetOwner&) = default;
};

class RemoteBlockSet {
 public:
  // Made by the library.
  RemoteBlockSet(std::shared_ptr<RemotePeer> peer, std::uint64_t id, BlockSetNames names,
                 std::shared_ptr<const BlockSet> blocks, std::uint64_t generation)
      : peer_(std::move(peer)), id_(id), generation_(generation), names_(names), blocks_(std::move(blocks)) {}

  const std::shared_ptr<RemotePeer>& peer() const noexcept { return peer_; }
  // The owner's number of the set.
  std::uint64_t id() const noexcept { return id_; }
  // Of two sets of one owner with one number the later one has the larger generation.
  std::uint64_t generation() const noexcept { return generation_; }
  const BlockSetNames& names() const noexcept { return names_; }
  // Over RemoteStorage: one side of a plan.
  const std::shared_ptr<const BlockSet>& blocks() const noexcept { return blocks_; }
  const layout::Shard& shard() const noexcept { return blocks_->planes()[0].shard; }

 private:
  std::shared_ptr<RemotePeer> peer_;
  std::uint64_t id_;
  std::uint64_t generation_;
  BlockSetNames names_;
  std::shared_ptr<const BlockSet> blocks_;
};

class RemoteAgent {
 public:
  // Methods below this number are the agent's own.
  static constexpr std::uint16_t kFirstMethod = 16;
  // Block sets of one peer that are imported at once.
  static constexpr std::size_t kMaxSetsPerPeer = 64;

  // Errors: those of validate(); kInvalidArgument: no secret, and an address that is not loopback; kIo: the
  // address cannot be listened on; kCapacity: no threads.
  static Result<std::shared_ptr<RemoteAgent>> create(AgentOptions options);
  // Closes all connections, and waits for running handlers and callbacks: must not happen inside one. Peers,
  // offers and imported sets may outlive it; the peers are dead then.
  ~RemoteAgent();

  const AgentIdentity& identity() const noexcept;
  const std::string& name() const noexcept;
  // What peers connect to: HOST:PORT.
  const std::string& address() const noexcept;
  RemoteTransport& transport() noexcept;
  Executor& executor() noexcept { return transport().executor(); }

  // Connects, or returns the living connection to that agent. Errors: kUnavailable: nobody listens, or it did
  // not answer in time; kInvalidArgument: the address, or a peer that knows another secret or none;
  // kAlreadyExists: it is this agent; kUnsupported: another version or transport.
  Result<std::shared_ptr<RemotePeer>> connect(std::string_view address, const RemoteCallLimits& limits = {});
  // The living peers, whoever connected.
  std::vector<std::shared_ptr<RemotePeer>> peers() const;
  // Answers `method` of every peer. Errors: kInvalidArgument: below kFirstMethod; kAlreadyExists.
  Result<RemoteOffer> serve(std::uint16_t method, RemoteHandler handler);
  // Runs `callback` for every peer that connects or is connected from now on, on a thread of the agent.
  Result<RemoteOffer> on_peer(std::function<void(const std::shared_ptr<RemotePeer>&)> callback);

  // Registers the memory of a set with the transport and offers it to peers, which are told when the offer is
  // dropped; one that cannot be told, because it reads too slowly, is disconnected. Peers write it only where
  // `mode` lets them. `id` 0: the agent chooses. Errors: those of the transport; kAlreadyExists: `id` is
  // taken; kUnsupported: a set that is not in memory; kCapacity: its description exceeds max_message_bytes.
  Result<RemoteOffer> export_blockset(std::shared_ptr<const BlockSet> set, const BlockSetNames& names,
                                      std::uint64_t id = 0,
                                      storage::AccessMode mode = storage::AccessMode::kRead);
  // The sets on offer, serialised: docs/formats/blockset.md. They may travel any way.
  std::vector<std::vector<std::byte>> exports() const;
  // Whose set these bytes say that they describe. Errors: kCorruption, kInvalidArgument, kUnsupported.
  static Result<BlockSetOwner> owner_of_blockset(std::span<const std::byte> bytes);
  // Rebuilds a set of another agent from its bytes, which are not trusted, and connects to it where it is not
  // connected. One that was dropped is taken back. Errors: kCorruption, kInvalidArgument, kUnsupported: the
  // bytes, or an incompatible version or transport; kAlreadyExists: an own set, or one imported before;
  // kUnavailable: the owner is gone, or is another incarnation; kNotFound: it withdrew the set meanwhile;
  // kCapacity: kMaxSetsPerPeer; those of connect().
  Result<std::shared_ptr<const RemoteBlockSet>> import_remote_blockset(std::span<const std::byte> bytes,
                                                                       const RemoteCallLimits& limits = {});
  // Asks a peer for its sets and imports those that are new, with `again` also those that were dropped. Sets
  // that it does not offer any more, or has replaced, are no longer listed.
  // Returns all sets of this peer. `late`: as of RemotePeer::call(). Errors: those of RemotePeer::call(); as
  // import_remote_blockset().
  Result<std::vector<std::shared_ptr<const RemoteBlockSet>>> exchange(const std::shared_ptr<RemotePeer>& peer,
                                                                      const RemoteCallLimits& limits = {},
                                                                      bool again = false,
                                                                      const LateAnswer& late = {});
  // Bytes for a way that others may write to, as a bus or a bucket: with this agent's identity and, where the
  // agents have a secret, an HMAC-SHA256 under it over all of this. `label` says what they are for; a reply
  // has the asker's random number as `challenge`, so that an older reply is not taken for it.
  std::vector<std::byte> seal(std::string_view label, std::span<const std::byte> bytes,
                              std::span<const std::byte> challenge = {}) const;
  // Errors: kCorruption: nothing that seal() made; kUnsupported: another version; kInvalidArgument: another
  // secret, or one where the other has none; bytes that were changed, or sealed for another label or
  // challenge.
  Result<SealedBytes> unseal(std::string_view label, std::span<const std::byte> sealed,
                             std::span<const std::byte> challenge = {}) const;
  // A random number for a challenge. Errors: kIo.
  static Result<std::vector<std::byte>> draw_challenge();
  // Sets of living peers.
  std::vector<std::shared_ptr<const RemoteBlockSet>> remote_blocksets() const;
  // False: no such set. Transfers in flight keep it. It stays dropped until it is imported, or its owner
  // withdraws it and offers another under this id.
  bool drop_remote_blockset(const AgentIdentity& owner, std::uint64_t id);
  bool is_dropped(const BlockSetOwner& set) const;

 private:
  explicit RemoteAgent(std::shared_ptr<AgentCore> core) noexcept;
  std::shared_ptr<AgentCore> core_;
};

}  // namespace ashlar::transfer
