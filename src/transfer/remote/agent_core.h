// AgentCore: what a RemoteAgent is made of: its links, the threads that serve them, handlers, and block sets.
//
// Threads: LinkLoop's; the handlers'; kOpeners that open paths, because a transport may take its time with a
// peer that does not answer; one that runs callbacks. The core ends them in shutdown(), and lives on while a
// peer or an offer refers to it.
//
// Of two links to one incarnation one stays. The agent with the smaller identity decides, so that both ends
// keep the same one: admit() has the rules.
//
// Thread safety: thread-safe. Takes links_mu_, serving_mu_ and sets_mu_ one at a time, and of a link only its
//                state under them; calls no transport and no callback under a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/remote_agent.h"
#include "base/task_threads.h"
#include "transfer/remote/blockset_record.h"
#include "transfer/remote/handler_pool.h"
#include "transfer/remote/link_loop.h"
#include "transfer/remote/name_resolver.h"
#include "transfer/remote/peer_link.h"
#include "transfer/remote/socket_address.h"
#include "transfer/remote/task_lane.h"

namespace ashlar::transfer {

// An offer that ends by calling `end`.
RemoteOffer make_remote_offer(std::function<void()> end);

class AgentCore final : public LinkHost, public std::enable_shared_from_this<AgentCore> {
 public:
  using PeerCallback = std::function<void(const std::shared_ptr<RemotePeer>&)>;
  using SetList = std::vector<std::shared_ptr<const RemoteBlockSet>>;

  // The agent's own methods.
  static constexpr std::uint16_t kListSets = 1;     // u64: sets with larger ids; answers a part of the list
  static constexpr std::uint16_t kWithdrawSet = 2;  // 2 × u64: a set that is no longer on offer, generation
  static constexpr std::size_t kOpeners = 4;
  static constexpr std::size_t kMaxDropped = 4096;  // sets whose drop is remembered; the oldest is forgotten

  static Result<std::shared_ptr<AgentCore>> create(AgentOptions options);
  explicit AgentCore(AgentOptions options) : options_(std::move(options)) {}

  // Kills all links, waits for running handlers and ends the threads.
  void shutdown();

  const AgentCard& card() const noexcept { return card_; }
  RemoteTransport& transport() noexcept { return *transport_; }

  // Links. `wanted`: dials unless that incarnation is connected, whoever else seems to be at the address.
  Result<std::shared_ptr<RemotePeer>> connect(std::string_view address, const RemoteCallLimits& limits,
                                              const AgentIdentity* wanted = nullptr);
  std::vector<std::shared_ptr<RemotePeer>> peers() const;

  // Handlers. A method below RemoteAgent::kFirstMethod is the agent's own.
  Result<RemoteOffer> serve(std::uint16_t method, RemoteHandler handler);
  Result<RemoteOffer> on_peer(PeerCallback callback);

  // Block sets: agent_sets.cc.
  Result<RemoteOffer> export_blockset(std::shared_ptr<const BlockSet> set, const BlockSetNames& names,
                                      std::uint64_t id, storage::AccessMode mode);
  std::vector<std::vector<std::byte>> exports() const;
  Result<std::shared_ptr<const RemoteBlockSet>> import(std::span<const std::byte> bytes,
                                                       const RemoteCallLimits& limits);
  Result<SetList> exchange(const std::shared_ptr<RemotePeer>& peer, const RemoteCallLimits& limits,
                           bool again, const LateAnswer& late);
  SetList remote_blocksets() const;
  bool drop(const BlockSetOwner& set);
  bool is_dropped(const BlockSetOwner& set) const;

  // Sealed bytes: agent_seal.cc.
  std::vector<std::byte> seal(std::string_view label, std::span<const std::byte> bytes,
                              std::span<const std::byte> challenge) const;
  Result<SealedBytes> unseal(std::string_view label, std::span<const std::byte> sealed,
                             std::span<const std::byte> challenge) const;

  // LinkHost.
  std::shared_ptr<PeerLink> make_link(Handshake::Role role, std::string where) override;
  Result<void> admit(const std::shared_ptr<PeerLink>& link) override;
  void open_path(const std::shared_ptr<PeerLink>& link) override;
  void peer_ready(const std::shared_ptr<PeerLink>& link) override;
  void schedule(const std::shared_ptr<PeerLink>& link) override { handlers_.schedule(link); }
  void attend(const std::shared_ptr<PeerLink>& link) override { loop_->attend(link); }
  void bury(const std::shared_ptr<PeerLink>& link, const Error& why,
            std::vector<ClosedCallback> callbacks) override;

 private:
  // A handler or a callback, and how many threads are in it.
  struct Served {
    RemoteHandler handler;
    PeerCallback callback;
    Mutex mu;
    CondVar idle;
    std::uint32_t running ASHLAR_GUARDED_BY(mu) = 0;
    bool withdrawn ASHLAR_GUARDED_BY(mu) = false;

    bool enter() ASHLAR_EXCLUDES(mu);
    void leave() ASHLAR_EXCLUDES(mu);
    // Waits for the threads that are inside; none enters any more.
    void withdraw() ASHLAR_EXCLUDES(mu);
  };
  struct Exported {
    std::shared_ptr<const BlockSet> set;
    std::vector<std::unique_ptr<MemoryRegistration>> registrations;
    std::vector<std::byte> bytes;
    std::uint64_t generation = 0;
  };
  // While sets of a peer are being imported: what it withdraws meanwhile.
  struct Importing {
    AgentIdentity owner;
    std::map<std::uint64_t, std::uint64_t> withdrawn = {};  // generation by set
    bool overflow = false;                                  // more than are kept
  };
  class ImportScope;

  Result<void> start();
  std::shared_ptr<PeerLink> make_link(Handshake::Role role, std::string where, Clock::TimePoint deadline);
  // One attempt at one address. Null: another link to the agent was to be kept, and died; try again.
  Result<std::shared_ptr<RemotePeer>> dial(const SocketAddress& address, Clock::TimePoint deadline,
                                           const std::stop_token& stop);
  template <class Match>
  std::shared_ptr<RemotePeer> find_peer(const Match& match) const;
  std::shared_ptr<RemotePeer> wait_peer(const AgentIdentity& identity, Clock::TimePoint until,
                                        const std::stop_token& stop);
  void publish(const std::shared_ptr<PeerLink>& link);
  void handle(const std::shared_ptr<PeerLink>& link, const PeerLink::Job& job);
  Result<std::vector<std::byte>> own_method(const PeerLink::Job& job);
  Result<std::vector<std::byte>> list_sets(std::span<const std::byte> request) const;
  void withdraw_export(std::uint64_t id);
  // `again`: also where it was dropped.
  Result<std::shared_ptr<const RemoteBlockSet>> import_record(const BlockSetRecord& record,
                                                              const std::shared_ptr<RemotePeer>& peer,
                                                              bool again, const Importing& importing);
  std::shared_ptr<const RemoteBlockSet> find_import(const BlockSetOwner& key) const;
  // The owner has withdrawn the set up to a generation, or is gone: nothing is left of it.
  void forget_set(const BlockSetOwner& key, std::uint64_t generation = UINT64_MAX);
  // Forgets the sets of a peer that its list, which has all of its sets up to a generation, does not have.
  void forget_unlisted(const AgentIdentity& owner, const std::map<std::uint64_t, std::uint64_t>& listed,
                       std::uint64_t complete);

  AgentOptions options_;
  std::shared_ptr<RemoteTransport> transport_;
  AgentCard card_;
  std::atomic<std::uint64_t> next_link_ = 16;

  mutable Mutex links_mu_;
  CondVar links_changed_;
  bool closing_ ASHLAR_GUARDED_BY(links_mu_) = false;
  std::vector<std::shared_ptr<PeerLink>> links_ ASHLAR_GUARDED_BY(links_mu_);  // admitted and living
  std::vector<std::shared_ptr<RemotePeer>> peers_ ASHLAR_GUARDED_BY(links_mu_);

  mutable Mutex serving_mu_;
  std::map<std::uint16_t, std::shared_ptr<Served>> served_ ASHLAR_GUARDED_BY(serving_mu_);
  std::vector<std::shared_ptr<Served>> watchers_ ASHLAR_GUARDED_BY(serving_mu_);

  mutable Mutex sets_mu_;
  std::map<std::uint64_t, std::shared_ptr<Exported>> exports_ ASHLAR_GUARDED_BY(sets_mu_);
  std::uint64_t generations_ ASHLAR_GUARDED_BY(sets_mu_) = 0;
  std::vector<Importing*> importing_ ASHLAR_GUARDED_BY(sets_mu_);
  std::map<BlockSetOwner, std::shared_ptr<const RemoteBlockSet>> imports_ ASHLAR_GUARDED_BY(sets_mu_);
  std::map<BlockSetOwner, std::uint64_t> dropped_ ASHLAR_GUARDED_BY(sets_mu_);  // by which drop
  std::uint64_t drops_ ASHLAR_GUARDED_BY(sets_mu_) = 0;

  // Threads last: they use everything above.
  HandlerPool handlers_;
  NameResolver names_;
  TaskLane callbacks_;
  TaskThreads openers_{kOpeners};
  std::unique_ptr<LinkLoop> loop_;
};

}  // namespace ashlar::transfer
