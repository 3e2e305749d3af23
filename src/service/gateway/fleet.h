// Fleet: the workers, and what is known of each: where it listens, what it serves, whether it answers, and
// the followers of its events.
//
// A worker is added to the router when its model is known: named by its options, or told by its /v1/models. A
// worker that fails several times in a row, a /health that does not answer counted, or whose /health answers
// that it is not well, is down; it comes back when it answers, not before it has rested.
//
// Thread safety: thread-safe. Followers are made and ended without the lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/service/passage.h"
#include "ashlar/service/router.h"
#include "ashlar/service/serve_options.h"
#include "ashlar/service/service.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "service/gateway/live_json.h"
#include "service/gateway/snapshot.h"
#include "service/gateway/token_workers.h"
#include "service/gateway/wait_line.h"
#include "service/route/engine_follower.h"

namespace ashlar::service {

// Block size of groups whose engines have not said theirs.
inline constexpr std::uint32_t kGuessedBlockSize = 16;

// Workers of the router's own are numbered from here on: instances that others register are mostly numbered
// from 1. Every reader of JSON keeps these numbers exactly.
inline constexpr std::uint64_t kFirstOwnId = std::uint64_t{1} << 52;

// The router keeps a group for good, once it had a worker: registrations make no more than this many.
inline constexpr std::size_t kMostGroups = 4096;

// How the blocks of a model are hashed for the index, by us and by clients that ask with hashes.
struct ModelHashing {
  tokens::HashScheme scheme = {};
  std::string salt = {};  // of sequences that name none

  tokens::SequenceHasher hasher(std::string_view lora, std::string_view cache_salt) const {
    return {scheme, tokens::Salt(lora, cache_salt.empty() ? std::string_view(salt) : cache_salt)};
  }
  friend bool operator==(const ModelHashing&, const ModelHashing&) = default;
};

// What a model's name stands for.
struct ResolvedModel {
  std::string group;
  std::string adapter;                        // LoRA; empty: the model itself
  std::vector<events::Worker> unlisted = {};  // of the group, which do not list this name: all ranks of them
  std::uint32_t block_size = kGuessedBlockSize;
  std::uint64_t sizes_then = 0;  // Fleet::block_size_changes() when this was so
  ModelHashing hashing = {};
  bool has_ranks = false;  // a worker of the group has several
};

// Where to send a request that was routed.
struct RouteTarget {
  std::string name;
  HttpAddress address;
  bool has_ranks = false;  // it must be told which
};

// Where to ask for tokens.
struct QuestionTarget {
  events::WorkerId worker;
  HttpAddress address;
  std::string_view target;
  std::string authorization = {};  // with the worker's key; empty: it has none
};

struct RankStatus {
  std::uint32_t rank = 0;
  std::string endpoint;  // of its events; empty: none
  FollowerStatus follower;
};

struct MemberStatus {
  events::WorkerId id;
  std::string name;
  std::string group;
  std::string routing_group;
  HttpAddress address;
  bool is_registered = false;  // by /register: it has events and no address
  bool is_up = false;
  std::string problem;  // why it is not
  std::vector<std::string> models;
  std::vector<RankStatus> ranks;
  std::array<std::uint32_t, events::kStorageTiers> tier_sizes = {};  // blocks of each rank; 0: not known
};

class Fleet {
 public:
  // All must outlive the fleet.
  Fleet(const ServeOptions& options, Router& router, EngineSourceFactory make_source, Clock& clock);
  ~Fleet();

  // Expected at workers of these names, now or when they are added. After the first one only at ranks that
  // have lost events.
  void set_snapshot(Snapshot snapshot);
  // A worker has lost events for good since the last true answer, or still lacks them after so long that what
  // was expected then has ended.
  bool wants_snapshot();
  // What is known of each followed rank after a message, for set_snapshot() of another router. Waits for
  // followers that repair a gap, a short while.
  std::map<events::WorkerId, SavedRanks> save();
  // As Service::set_workers().
  Result<void> set_workers(std::span<const WorkerOptions> workers);
  struct Registration {
    std::uint64_t instance = 0;
    std::string name;
    std::string endpoint;
    std::string replay;
    std::string model;
    std::string routing_group;
    std::uint32_t block_size = 0;
    std::uint32_t rank = 0;
    std::string salt = {};
  };
  // A worker that is only asked about. Errors: kAlreadyExists: that rank is registered, or the number is
  // taken; kCapacity: too many are, or too many groups were; kInvalidArgument; kUnsupported.
  Result<void> register_worker(const Registration& registration);
  // Errors: kNotFound.
  Result<void> unregister_worker(std::uint64_t instance, std::string_view group,
                                 std::optional<std::uint32_t> rank);

  // Errors: kNotFound: no worker serves it, with those that are served; kUnavailable: no worker has said what
  // it serves yet.
  Result<ResolvedModel> resolve(std::string_view model) const;
  // Of a group that any worker belongs to, registered ones included; nothing if there is none.
  std::optional<std::uint32_t> block_size_of(std::string_view group) const;
  // Whenever it is the same as before, so is the block size of every model.
  std::uint64_t block_size_changes() const noexcept {
    // acquire: pairs with tell_block_size(); what follows sees the sizes that were counted.
    return block_size_changes_.load(std::memory_order_acquire);
  }
  ModelHashing hashing_of(std::string_view group) const;
  std::optional<RouteTarget> target(const events::Worker& worker) const;
  // Where to ask for tokens: the least busy worker, but for these, of the first of these targets that one
  // has. Errors: kUnavailable.
  Result<QuestionTarget> target_for_question(const ResolvedModel& model,
                                             std::span<const std::string_view> targets,
                                             std::span<const events::WorkerId> left_out) const;
  TokenWorkers& token_workers() noexcept { return token_workers_; }

  // What became of a request there. `is_failure`: it could not be reached, or broke; otherwise it was
  // answered to its end.
  void note(events::WorkerId worker, bool is_failure, std::string_view detail = {});
  // No connection to it came about, for a request that does not tell whether it is well.
  void note_unreachable(events::WorkerId worker, std::string_view detail);
  // A request asks its worker to announce again what it finds. Before the request is sent.
  void expect_full_reports() noexcept {
    full_reports_asked_->store(true, std::memory_order_release);  // release: pairs with EngineRank::apply()
  }
  // Events of a request that was answered are owed.
  void expect_event(const events::Worker& worker, const WorkerChanges& before);
  // An answer whose cached tokens are no whole blocks shows that the worker's are of another size.
  void check_answer(const events::Worker& worker, std::uint64_t cached_tokens, std::uint64_t prompt_tokens);
  std::string state_reason(const events::Worker& worker) const;
  // Requests that wait for events: each message of any worker wakes all.
  WaitLine& hesitating() noexcept { return hesitating_; }

  Gateway::Due due();
  void told(std::uint64_t number, Result<Answer> answer);

  std::vector<MemberStatus> status() const;
  WorkerPlace place_of(events::WorkerId worker) const;
  // Empty: it is gone, or not known.
  std::string group_of(events::WorkerId worker) const;
  // The entries of all workers' /v1/models, each id once, as JSON objects.
  std::vector<std::string> model_entries() const;
  // The one of this id.
  std::optional<std::string> model_entry(std::string_view id) const;
  // A group with a worker that can be chosen.
  bool is_ready() const;

 private:
  struct Member;
  struct Asked {
    events::WorkerId worker;
    bool is_health = true;
  };

  std::shared_ptr<Member> find(events::WorkerId worker) const ASHLAR_REQUIRES(mu_);
  bool has_group(std::string_view group) const ASHLAR_REQUIRES(mu_);
  ModelHashing known_hashing(std::string_view group) const ASHLAR_REQUIRES(mu_);
  // The hashing of models as these workers have it. Errors: kInvalidArgument: two differ, or one differs from
  // that of a worker that stays.
  Result<void> set_hashing(std::span<const WorkerOptions> workers) ASHLAR_REQUIRES(mu_);
  // An adapter, or another name, may be loaded at some workers of a group only.
  void add_unlisted(std::string_view model, ResolvedModel& resolved) const ASHLAR_REQUIRES(mu_);
  ResolvedModel with_block_size(ResolvedModel resolved) const ASHLAR_REQUIRES(mu_);
  // Whether it is taken out for its failures, and how the last one was.
  bool goes_down(Member& member, std::string_view detail) ASHLAR_REQUIRES(mu_);
  std::string authorization_of(const Member& member) const ASHLAR_REQUIRES(mu_);
  Errand errand(const Member& member, bool is_health, std::string target) ASHLAR_REQUIRES(mu_);
  events::WorkerId free_id() ASHLAR_REQUIRES(mu_);
  // Adds the worker to the router once its group is known, and follows its events.
  void settle(const std::shared_ptr<Member>& member);
  void expect_snapshot(const std::shared_ptr<Member>& member, bool is_again);
  Result<std::unique_ptr<feed::EngineSource>> make_source(const EngineEndpoint& endpoint) const;
  // Without a source it makes one.
  Result<void> follow(const std::shared_ptr<Member>& member, std::uint32_t rank,
                      const EngineEndpoint& endpoint, std::unique_ptr<feed::EngineSource> source = nullptr);
  Result<std::unique_ptr<EngineFollower>> make_follower(const std::shared_ptr<Member>& member,
                                                        std::uint32_t rank, const EngineEndpoint& endpoint,
                                                        std::unique_ptr<feed::EngineSource> source);
  void take_back(const std::shared_ptr<Member>& member, std::uint32_t rank);
  void forget(Member& member) ASHLAR_REQUIRES(mu_);
  void forget_hashing_of(const std::string& group) ASHLAR_REQUIRES(mu_);
  // After one of the router's own workers has left the group.
  void note_leave(const std::string& group) ASHLAR_REQUIRES(mu_);
  void learn_block_size(const std::string& group, const events::Worker& worker, std::uint32_t block_size);
  void tell_block_size(std::string_view group) ASHLAR_REQUIRES(mu_);
  void take_models(const std::shared_ptr<Member>& member, const Answer& answer);
  void update_up(Member& member, bool is_up, std::string problem) ASHLAR_REQUIRES(mu_);

  const ServeOptions& options_;
  const std::shared_ptr<std::atomic<bool>> full_reports_asked_ =
      std::make_shared<std::atomic<bool>>(options_.full_reports);
  Router& router_;
  const EngineSourceFactory make_source_;
  Clock& clock_;
  WaitLine hesitating_;
  TokenWorkers token_workers_;
  mutable Mutex mu_;
  std::map<events::WorkerId, std::shared_ptr<Member>> members_ ASHLAR_GUARDED_BY(mu_);
  std::set<std::string> groups_ ASHLAR_GUARDED_BY(mu_);  // that the router has heard of
  std::map<std::string, std::uint32_t, std::less<>> block_sizes_ ASHLAR_GUARDED_BY(mu_);  // by group
  std::atomic<std::uint64_t> block_size_changes_{0};  // and what may be one; written under mu_
  // By group; those that are not here have the default.
  std::map<std::string, ModelHashing, std::less<>> hashings_ ASHLAR_GUARDED_BY(mu_);
  std::map<std::uint64_t, Asked> asked_ ASHLAR_GUARDED_BY(mu_);
  Snapshot snapshot_ ASHLAR_GUARDED_BY(mu_);  // of workers that are not settled yet
  bool has_snapshot_ ASHLAR_GUARDED_BY(mu_) = false;
  std::uint64_t answered_losses_ ASHLAR_GUARDED_BY(mu_) = 0;  // of all workers
  Clock::TimePoint wanted_at_ ASHLAR_GUARDED_BY(mu_) = {};    // when a snapshot was last wanted
  std::uint64_t next_errand_ ASHLAR_GUARDED_BY(mu_) = 1;
  std::uint64_t next_id_ ASHLAR_GUARDED_BY(mu_) = kFirstOwnId;
};

// The model list of an engine: ids, whether each is an adapter, and its JSON.
struct ModelEntry {
  std::string id;
  bool is_adapter = false;
  std::string json;
};
// Errors: kInvalidArgument.
Result<std::vector<ModelEntry>> read_models(std::string_view json);
// The group of workers that were registered for a model and routing group; "default" is the model's own.
std::string group_name(std::string_view model, std::string_view routing_group);
// What set_workers() refuses whatever workers are there. Errors: as set_workers().
Result<void> check_workers(std::span<const WorkerOptions> workers, bool hears_events);
// An endpoint of rank `rank`: its port grows with it. Errors: kInvalidArgument.
Result<std::string> endpoint_of_rank(const std::string& endpoint, std::uint32_t rank);

}  // namespace ashlar::service
