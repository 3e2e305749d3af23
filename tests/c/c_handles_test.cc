// Handles that are none: zero, stale, of another kind, made up. Random calls with good and bad handles beside
// a small model: no block is lost or freed twice.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ashlar_c.h"
#include "tests/c/handle_calls.h"

namespace ashlar::testing {
namespace {

std::size_t open_handles() {
  std::size_t count = 0;
  EXPECT_EQ(ashlar_open_handles(&count), ASHLAR_OK);
  return count;
}

ashlar_manager make_manager(std::uint32_t blocks = 24) {
  ashlar_manager_options options = {};
  options.struct_size = sizeof options;
  options.block_count = blocks;
  options.block_size = 4;
  options.max_pins = 64;
  options.event_capacity = 256;
  ashlar_manager manager = {};
  EXPECT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_OK) << ashlar_last_error();
  return manager;
}

ashlar_pool_status status_of(ashlar_manager manager) {
  ashlar_pool_status status = {};
  status.struct_size = sizeof status;
  EXPECT_EQ(ashlar_manager_status(manager, &status), ASHLAR_OK) << ashlar_last_error();
  return status;
}

// One live handle of every kind.
class OneOfEach {
 public:
  OneOfEach() {
    manager_ = make_manager();
    at(HandleOf::kManager) = manager_.id;
    ashlar_hasher hasher = {};
    EXPECT_EQ(ashlar_hasher_create(nullptr, &hasher), ASHLAR_OK);
    at(HandleOf::kHasher) = hasher.id;
    ashlar_registry registry = {};
    EXPECT_EQ(ashlar_registry_create(nullptr, &registry), ASHLAR_OK);
    at(HandleOf::kRegistry) = registry.id;
    ashlar_fence fence = {};
    EXPECT_EQ(ashlar_fence_create(&fence), ASHLAR_OK);
    at(HandleOf::kFence) = fence.id;
    const std::uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    ashlar_blocks blocks = {};
    EXPECT_EQ(ashlar_manager_allocate(manager_, 2, &blocks), ASHLAR_OK);
    EXPECT_EQ(ashlar_blocks_complete(blocks, hasher, tokens, 8, 0, &blocks), ASHLAR_OK);
    EXPECT_EQ(ashlar_blocks_register(blocks, nullptr, &blocks), ASHLAR_OK);
    at(HandleOf::kBlocks) = blocks.id;
    ashlar_pin pin = {};
    EXPECT_EQ(ashlar_blocks_pin(blocks, 1'000'000'000'000, &pin), ASHLAR_OK);
    at(HandleOf::kPin) = pin.id;
    ashlar_request request = {};
    EXPECT_EQ(ashlar_request_create(manager_, tokens, 8, nullptr, &request), ASHLAR_OK);
    at(HandleOf::kRequest) = request.id;
    ashlar_sequences sequences = {};
    EXPECT_EQ(ashlar_sequences_create(manager_, nullptr, &sequences), ASHLAR_OK);
    at(HandleOf::kSequences) = sequences.id;
    ashlar_sequence sequence = {};
    EXPECT_EQ(ashlar_sequence_create(sequences, tokens, 8, &sequence), ASHLAR_OK);
    at(HandleOf::kSequence) = sequence.id;
    ashlar_tiers_options options = {};
    options.struct_size = sizeof options;
    options.num_layers = options.num_heads = options.head_dim = 1;
    options.g1_blocks = options.g2_blocks = 4;
    ashlar_tiers tiers = {};
    EXPECT_EQ(ashlar_tiers_create(&options, &tiers), ASHLAR_OK) << ashlar_last_error();
    at(HandleOf::kTiers) = tiers.id;
    const ashlar_hash hash = {1, 2};
    ashlar_offload offload = {};
    EXPECT_EQ(ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, &hash, 1, nullptr, &offload), ASHLAR_OK);
    at(HandleOf::kOffload) = offload.id;
    ashlar_onboard onboard = {};
    EXPECT_EQ(ashlar_tiers_onboard_async(tiers, &hash, 1, nullptr, &onboard), ASHLAR_OK);
    at(HandleOf::kOnboard) = onboard.id;
    ashlar_index index = {};
    EXPECT_EQ(ashlar_index_create(nullptr, &index), ASHLAR_OK);
    at(HandleOf::kIndex) = index.id;
    ashlar_feed feed = {};
    EXPECT_EQ(ashlar_feed_create(index, nullptr, &feed), ASHLAR_OK);
    at(HandleOf::kFeed) = feed.id;
    ashlar_client_options client_options = {};
    client_options.struct_size = sizeof client_options;
    client_options.url = "http://127.0.0.1:1";
    ashlar_client client = {};
    EXPECT_EQ(ashlar_client_create(&client_options, &client), ASHLAR_OK);
    at(HandleOf::kClient) = client.id;
  }

  // Zero for kAnswer: only a service gives one.
  std::uint64_t& at(HandleOf kind) { return ids_[static_cast<std::size_t>(kind)]; }

  void close_all() {
    for (const auto& [kind, close] : {std::pair(HandleOf::kRequest, "ashlar_request_destroy"),
                                      {HandleOf::kSequence, "ashlar_sequence_destroy"},
                                      {HandleOf::kSequences, "ashlar_sequences_destroy"},
                                      {HandleOf::kBlocks, "ashlar_blocks_release"},
                                      {HandleOf::kPin, "ashlar_pin_release"},
                                      {HandleOf::kFence, "ashlar_fence_destroy"},
                                      {HandleOf::kManager, "ashlar_manager_destroy"},
                                      {HandleOf::kHasher, "ashlar_hasher_destroy"},
                                      {HandleOf::kRegistry, "ashlar_registry_destroy"},
                                      {HandleOf::kOffload, "ashlar_offload_destroy"},
                                      {HandleOf::kOnboard, "ashlar_onboard_destroy"},
                                      {HandleOf::kTiers, "ashlar_tiers_destroy"},
                                      {HandleOf::kFeed, "ashlar_feed_destroy"},
                                      {HandleOf::kIndex, "ashlar_index_destroy"},
                                      {HandleOf::kClient, "ashlar_client_destroy"}}) {
      for (const HandleCall& call : handle_calls())
        if (call.name == close) {
          EXPECT_EQ(call.run(at(kind)), ASHLAR_OK) << close << ashlar_last_error();
        }
    }
  }

 private:
  ashlar_manager manager_;
  std::array<std::uint64_t, kHandleKinds> ids_{};
};

TEST(CHandles, EveryCallRefusesHandlesThatAreNone) {
  const std::size_t before = open_handles();
  OneOfEach live;
  OneOfEach gone;
  gone.close_all();
  const std::size_t open = open_handles();
  for (const HandleCall& call : handle_calls()) {
    std::vector<std::uint64_t> bad = {0, 1, ~std::uint64_t{0}, gone.at(call.kind)};
    for (std::size_t kind = 0; kind < kHandleKinds; ++kind)
      if (static_cast<HandleOf>(kind) != call.kind) bad.push_back(live.at(static_cast<HandleOf>(kind)));
    const std::uint64_t good = live.at(call.kind);
    if (good != 0)
      for (unsigned bit = 0; bit < 64; ++bit) bad.push_back(good ^ (std::uint64_t{1} << bit));
    for (const std::uint64_t id : bad)
      EXPECT_EQ(call.run(id), ASHLAR_INVALID_HANDLE) << call.name << " of " << id;
  }
  EXPECT_EQ(open_handles(), open);
  live.close_all();
  EXPECT_EQ(open_handles(), before);
}

// What is called above is every function but those that take no handle.
TEST(CHandles, EveryCallIsListed) {
  std::set<std::string> left;
  std::ifstream symbols(ASHLAR_C_SYMBOLS);
  for (std::string name; symbols >> name;) left.insert(name);
  for (const HandleCall& call : handle_calls())
    EXPECT_EQ(left.erase(std::string(call.name)), 1u) << call.name;
  EXPECT_EQ(left,
            (std::set<std::string>{"ashlar_abi_version", "ashlar_client_create", "ashlar_fence_create",
                                   "ashlar_hash_from_text", "ashlar_hash_parts", "ashlar_hash_to_text",
                                   "ashlar_hasher_create", "ashlar_index_create", "ashlar_last_error",
                                   "ashlar_manager_create", "ashlar_open_handles", "ashlar_registry_create",
                                   "ashlar_status_name", "ashlar_tiers_create", "ashlar_version"}));
}

// pthread_cancel() of a thread that waits in a call.
TEST(CHandles, ACancelledThreadEndsAfterItsCall) {
  ashlar_manager_options options = {};
  options.struct_size = sizeof options;
  options.block_count = 1;
  options.block_size = 4;
  struct Waiting {
    ashlar_manager manager = {};
    ashlar_blocks blocks = {};
    ashlar_status status = ASHLAR_INTERNAL;
  } waiting;
  ASSERT_EQ(ashlar_manager_create(&options, &waiting.manager), ASHLAR_OK);
  ashlar_blocks all = {};
  ASSERT_EQ(ashlar_manager_allocate(waiting.manager, 1, &all), ASHLAR_OK);
  pthread_t thread;
  const auto wait = [](void* given) -> void* {
    auto& its = *static_cast<Waiting*>(given);
    its.status = ashlar_manager_allocate_within(its.manager, 1, ASHLAR_FOREVER - 1, &its.blocks);
    pthread_testcancel();
    return given;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, wait, &waiting), 0);
  ashlar_pool_status status = {};
  status.struct_size = sizeof status;
  while (status.waiters == 0) ASSERT_EQ(ashlar_manager_status(waiting.manager, &status), ASHLAR_OK);
  ASSERT_EQ(pthread_cancel(thread), 0);
  ASSERT_EQ(ashlar_blocks_release(all), ASHLAR_OK);
  void* ended = nullptr;
  ASSERT_EQ(pthread_join(thread, &ended), 0);
  EXPECT_EQ(ended, PTHREAD_CANCELED);
  EXPECT_EQ(waiting.status, ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_release(waiting.blocks), ASHLAR_OK);
  EXPECT_EQ(ashlar_manager_destroy(waiting.manager), ASHLAR_OK);
}

TEST(CHandles, AHandleIsNeverUsedAgain) {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    ashlar_fence fence = {};
    ASSERT_EQ(ashlar_fence_create(&fence), ASHLAR_OK);
    EXPECT_TRUE(seen.insert(fence.id).second);
    ASSERT_EQ(ashlar_fence_destroy(fence), ASHLAR_OK);
    EXPECT_EQ(ashlar_fence_signal(fence), ASHLAR_INVALID_HANDLE);
  }
}

TEST(CHandles, AnAbandonedFenceKeepsItsBlocksAndTheirManager) {
  const ashlar_manager manager = make_manager();
  ashlar_blocks blocks = {};
  ashlar_fence fence = {};
  ASSERT_EQ(ashlar_manager_allocate(manager, 3, &blocks), ASHLAR_OK);
  ASSERT_EQ(ashlar_fence_create(&fence), ASHLAR_OK);
  ASSERT_EQ(ashlar_blocks_release_after(blocks, fence), ASHLAR_OK);
  ASSERT_EQ(ashlar_fence_destroy(fence), ASHLAR_OK);
  EXPECT_EQ(status_of(manager).owned, 3u);
  EXPECT_EQ(ashlar_manager_destroy(manager), ASHLAR_NOT_READY);
}

TEST(CHandles, AStepInFlightKeepsItsBlocksAndTheirManager) {
  const std::uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const bool fails : {false, true}) {
    const ashlar_manager manager = make_manager();
    ashlar_request request = {};
    ashlar_fence fence = {};
    const std::uint32_t next = 10;
    ASSERT_EQ(ashlar_fence_create(&fence), ASHLAR_OK);
    ASSERT_EQ(ashlar_request_create(manager, prompt, 9, nullptr, &request), ASHLAR_OK);
    ASSERT_EQ(ashlar_request_schedule_prefill(request, 9, nullptr), ASHLAR_OK);
    ASSERT_EQ(ashlar_request_set_written_after(request, fence), ASHLAR_OK);
    ASSERT_EQ(ashlar_request_apply_prefill(request, &next, nullptr), ASHLAR_OK);
    const auto before = status_of(manager);
    EXPECT_GT(before.active, 0u);
    ASSERT_EQ(ashlar_request_destroy(request), ASHLAR_OK);
    EXPECT_EQ(status_of(manager).active, before.active) << "the step still writes them";
    EXPECT_EQ(ashlar_manager_destroy(manager), ASHLAR_NOT_READY);
    EXPECT_EQ(fails ? ashlar_fence_fail(fence) : ashlar_fence_signal(fence), ASHLAR_OK);
    EXPECT_EQ(status_of(manager).inactive, fails ? 0u : before.active);
    EXPECT_EQ(status_of(manager).active + status_of(manager).owned, 0u);
    EXPECT_EQ(ashlar_fence_destroy(fence), ASHLAR_OK);
    EXPECT_EQ(ashlar_manager_destroy(manager), ASHLAR_OK);
  }
}

// What the fuzzer knows of a list.
struct ModelList {
  std::size_t count = 0;
  int state = ASHLAR_BLOCKS_EMPTY;
};

// Random calls over one manager. Lists and requests are modelled; the rest shows in the pool.
class CallFuzzer {
 public:
  explicit CallFuzzer(std::uint64_t seed) : random_(seed), manager_(make_manager()) {
    for (std::uint32_t i = 0; i < 64; ++i) tokens_.push_back(i / 16);
    EXPECT_EQ(ashlar_sequences_create(manager_, nullptr, &maker_), ASHLAR_OK);
  }

  void step() {
    switch (below(21)) {
      case 0:
        return allocate();
      case 1:
        return transition(ASHLAR_BLOCKS_EMPTY, ASHLAR_BLOCKS_COMPLETE,
                          [&](ashlar_blocks in, ashlar_blocks* out) {
                            return ashlar_blocks_complete(in, {0}, tokens_.data(), 64, below(8), out);
                          });
      case 2:
        return transition(ASHLAR_BLOCKS_COMPLETE, ASHLAR_BLOCKS_EMPTY, ashlar_blocks_reset);
      case 3:
      case 4:
        return transition(
            ASHLAR_BLOCKS_COMPLETE, ASHLAR_BLOCKS_REGISTERED,
            [](ashlar_blocks in, ashlar_blocks* out) { return ashlar_blocks_register(in, nullptr, out); });
      case 5:
        return share();
      case 6:
        return split();
      case 7:
      case 8:
        return release();
      case 9:
        return release_after();
      case 10:
        return match();
      case 11:
        return signal();
      case 12:
        return pin();
      case 13:
        return create_request();
      case 14:
      case 15:
      case 16:
        return request_call();
      case 17:
      case 18:
      case 19:
        return sequence_call();
      default:
        return look();
    }
  }

  // Nothing is left, and every block is free or cached.
  void finish() {
    for (const auto& [id, list] : std::map(lists_)) EXPECT_EQ(ashlar_blocks_release({id}), ASHLAR_OK);
    for (const std::uint64_t id : std::set(requests_)) EXPECT_EQ(ashlar_request_destroy({id}), ASHLAR_OK);
    for (const std::uint64_t id : sequences_) EXPECT_EQ(ashlar_sequence_destroy({id}), ASHLAR_OK);
    EXPECT_EQ(ashlar_sequences_destroy(maker_), ASHLAR_OK);
    for (const std::uint64_t id : fences_) {
      EXPECT_EQ(ashlar_fence_signal({id}), ASHLAR_OK);
      EXPECT_EQ(ashlar_fence_destroy({id}), ASHLAR_OK);
    }
    for (const std::uint64_t id : pins_) EXPECT_EQ(ashlar_pin_release({id}), ASHLAR_OK);
    const ashlar_pool_status status = status_of(manager_);
    EXPECT_EQ(status.guards, 0u);
    EXPECT_EQ(status.reset + status.inactive, status.total);
    EXPECT_EQ(ashlar_manager_destroy(manager_), ASHLAR_OK) << ashlar_last_error();
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }

  // A live one, or now and then one that is none.
  template <class Live>
  std::uint64_t pick(const Live& live) {
    if (live.empty() || below(6) == 0) {
      const std::size_t which = below(4);
      if (which == 0 || dead_.empty()) return 0;
      return which == 1 ? manager_.id : dead_[below(dead_.size())];
    }
    auto at = live.begin();
    std::advance(at, below(live.size()));
    if constexpr (requires { at->first; }) {
      return at->first;
    } else {
      return *at;
    }
  }
  void add_list(ashlar_blocks blocks, std::size_t count, int state) { lists_[blocks.id] = {count, state}; }
  void kill_list(std::uint64_t id) {
    lists_.erase(id);
    dead_.push_back(id);
  }

  void allocate() {
    ashlar_blocks blocks = {};
    const std::size_t n = below(6);
    const ashlar_pool_status status = status_of(manager_);
    const ashlar_status done = ashlar_manager_allocate(manager_, n, &blocks);
    ASSERT_EQ(done, n <= status.reset + status.inactive ? ASHLAR_OK : ASHLAR_CAPACITY) << ashlar_last_error();
    if (done == ASHLAR_OK) add_list(blocks, n, ASHLAR_BLOCKS_EMPTY);
  }

  template <class F>
  void transition(int from, int to, F&& call) {
    const std::uint64_t id = pick(lists_);
    ashlar_blocks next = {};
    const ashlar_status done = call(ashlar_blocks{id}, &next);
    const auto known = lists_.find(id);
    if (known == lists_.end()) {
      ASSERT_EQ(done, ASHLAR_INVALID_HANDLE);
    } else if (done == ASHLAR_OK) {
      ASSERT_EQ(known->second.state, from);
      add_list(next, known->second.count, to);
      kill_list(id);
    } else if (known->second.state != from) {
      ASSERT_EQ(done, ASHLAR_NOT_READY);
    } else {
      ASSERT_EQ(done, ASHLAR_INVALID_ARGUMENT) << ashlar_last_error();
    }
  }

  void share() {
    const std::uint64_t id = pick(lists_);
    ashlar_blocks shared = {};
    const ashlar_status done = ashlar_blocks_share({id}, &shared);
    const auto known = lists_.find(id);
    if (known == lists_.end()) {
      ASSERT_EQ(done, ASHLAR_INVALID_HANDLE);
    } else if (known->second.state != ASHLAR_BLOCKS_REGISTERED) {
      ASSERT_EQ(done, ASHLAR_NOT_READY);
    } else {
      ASSERT_EQ(done, ASHLAR_OK);
      add_list(shared, known->second.count, ASHLAR_BLOCKS_REGISTERED);
    }
  }

  void split() {
    const std::uint64_t id = pick(lists_);
    const std::size_t at = below(4);
    ashlar_blocks head = {}, tail = {};
    const ashlar_status done = ashlar_blocks_split({id}, at, &head, &tail);
    const auto known = lists_.find(id);
    if (known == lists_.end()) {
      ASSERT_EQ(done, ASHLAR_INVALID_HANDLE);
    } else if (at > known->second.count) {
      ASSERT_EQ(done, ASHLAR_INVALID_ARGUMENT);
    } else {
      ASSERT_EQ(done, ASHLAR_OK);
      const ModelList whole = known->second;
      kill_list(id);
      add_list(head, at, whole.state);
      add_list(tail, whole.count - at, whole.state);
    }
  }

  void release() {
    const std::uint64_t id = pick(lists_);
    ASSERT_EQ(ashlar_blocks_release({id}), lists_.contains(id) ? ASHLAR_OK : ASHLAR_INVALID_HANDLE);
    if (lists_.contains(id)) kill_list(id);
  }

  void release_after() {
    if (fences_.size() < 4) {
      ashlar_fence fence = {};
      ASSERT_EQ(ashlar_fence_create(&fence), ASHLAR_OK);
      fences_.insert(fence.id);
    }
    const std::uint64_t fence = pick(fences_);
    const bool known = fences_.contains(fence);
    if (below(2) == 0) {
      const std::uint64_t id = pick(lists_);
      const bool good = known && lists_.contains(id);
      ASSERT_EQ(ashlar_blocks_release_after({id}, {fence}), good ? ASHLAR_OK : ASHLAR_INVALID_HANDLE);
      if (good) kill_list(id);
    } else {
      const std::uint64_t id = pick(requests_);
      const bool good = known && requests_.contains(id);
      ASSERT_EQ(ashlar_request_destroy_after({id}, {fence}), good ? ASHLAR_OK : ASHLAR_INVALID_HANDLE);
      if (good) {
        requests_.erase(id);
        dead_.push_back(id);
      }
    }
  }

  void match() {
    ashlar_blocks found = {};
    ASSERT_EQ(ashlar_manager_match_tokens(manager_, {0}, tokens_.data(), below(65), &found), ASHLAR_OK);
    std::size_t count = 0;
    ASSERT_EQ(ashlar_blocks_info(found, &count, nullptr), ASHLAR_OK);
    add_list(found, count, ASHLAR_BLOCKS_REGISTERED);
  }

  void signal() {
    const std::uint64_t id = pick(fences_);
    ASSERT_EQ(ashlar_fence_signal({id}), fences_.contains(id) ? ASHLAR_OK : ASHLAR_INVALID_HANDLE);
    if (!fences_.contains(id)) return;
    ASSERT_EQ(ashlar_fence_destroy({id}), ASHLAR_OK);
    fences_.erase(id);
    dead_.push_back(id);
  }

  void pin() {
    const std::uint64_t id = pick(lists_);
    ashlar_pin made = {};
    if (ashlar_blocks_pin({id}, 1'000'000'000'000, &made) == ASHLAR_OK) pins_.insert(made.id);
    const std::uint64_t ended = pick(pins_);
    ASSERT_EQ(ashlar_pin_release({ended}), pins_.contains(ended) ? ASHLAR_OK : ASHLAR_INVALID_HANDLE);
    if (pins_.erase(ended) != 0) dead_.push_back(ended);
  }

  void create_request() {
    ashlar_request request = {};
    ashlar_request_options options = {};
    options.struct_size = sizeof options;
    options.max_tokens = below(2) == 0 ? 0 : 40;
    ASSERT_EQ(ashlar_request_create(manager_, tokens_.data(), 1 + below(30), &options, &request), ASHLAR_OK);
    requests_.insert(request.id);
  }

  // Any call in any state: refused, or as the header says; the pool shows the rest.
  void request_call() {
    const std::uint64_t id = pick(requests_);
    const ashlar_request request = {id};
    const std::uint32_t token = static_cast<std::uint32_t>(below(8));
    ashlar_status done = ASHLAR_OK;
    switch (below(14)) {
      case 0:
        done = ashlar_request_match(request, nullptr);
        break;
      case 1:
      case 2:
        done = ashlar_request_schedule_prefill(request, below(40), nullptr);
        break;
      case 3:
        done = ashlar_request_apply_prefill(request, nullptr, nullptr);
        break;
      case 4:
      case 5:
        done = ashlar_request_apply_prefill(request, &token, nullptr);
        break;
      case 6:
        done = ashlar_request_schedule_decode(request, nullptr);
        break;
      case 7:
        done = ashlar_request_apply_decode(request, token, nullptr);
        break;
      case 8:
        done = ashlar_request_schedule_speculative(request, below(3) == 0 ? SIZE_MAX : below(5), nullptr);
        break;
      case 9:
        done = ashlar_request_apply_speculative(request, tokens_.data(), below(4), nullptr);
        break;
      case 10:
        done = ashlar_request_revert(request);
        break;
      case 11:
        done = below(2) == 0 ? ashlar_request_preempt(request) : ashlar_request_resume(request, nullptr);
        break;
      case 12: {
        ashlar_request forked = {};
        done = ashlar_request_fork(request, below(2) == 0 ? &token : nullptr, &forked);
        if (done == ASHLAR_OK) requests_.insert(forked.id);
        break;
      }
      default:
        done = ashlar_request_destroy(request);
        if (done == ASHLAR_OK) {
          requests_.erase(id);
          dead_.push_back(id);
          return;
        }
    }
    ASSERT_EQ(done == ASHLAR_INVALID_HANDLE, !requests_.contains(id)) << ashlar_status_name(done);
    ASSERT_NE(done, ASHLAR_INTERNAL) << ashlar_last_error();
  }

  void sequence_call() {
    if (sequences_.size() < 4) {
      ashlar_sequence made = {};
      ASSERT_EQ(ashlar_sequence_create(maker_, tokens_.data(), below(30), &made), ASHLAR_OK);
      sequences_.insert(made.id);
    }
    const std::uint64_t id = pick(sequences_);
    const ashlar_sequence sequence = {id};
    ashlar_status done = ASHLAR_OK;
    switch (below(7)) {
      case 0:
      case 1:
        done = ashlar_sequence_allocate(sequence, nullptr);
        break;
      case 2:
        done = ashlar_sequence_computed(sequence, below(40), nullptr, nullptr);
        break;
      case 3:
        done = ashlar_sequence_append(sequence, static_cast<std::uint32_t>(below(8)));
        break;
      case 4:
        done = ashlar_sequence_may_append(sequence, nullptr, nullptr);
        break;
      case 5:
        done = ashlar_sequence_deallocate(sequence);
        break;
      default:
        done = ashlar_sequence_destroy(sequence);
        if (done == ASHLAR_OK) {
          ASSERT_EQ(sequences_.erase(id), 1u);
          dead_.push_back(id);
          return;
        }
    }
    ASSERT_EQ(done == ASHLAR_INVALID_HANDLE, !sequences_.contains(id)) << ashlar_status_name(done);
    ASSERT_NE(done, ASHLAR_INTERNAL) << ashlar_last_error();
  }

  void look() {
    const ashlar_pool_status status = status_of(manager_);
    ASSERT_EQ(status.total, status.reset + status.inactive + status.pinned_inactive + status.held_inactive +
                                status.active + status.owned + status.quarantined);
    ASSERT_GE(status.guards, 1 + lists_.size() + requests_.size() + sequences_.size());
    for (const auto& [id, list] : lists_) {
      std::size_t count = 0;
      std::int32_t state = -1;
      ASSERT_EQ(ashlar_blocks_info({id}, &count, &state), ASHLAR_OK);
      ASSERT_EQ(count, list.count);
      ASSERT_EQ(state, list.state);
    }
    if (!lists_.empty()) {
      ASSERT_EQ(ashlar_manager_destroy(manager_), ASHLAR_NOT_READY);
    }
    ASSERT_EQ(ashlar_manager_drain_events(
                  manager_, [](void*, const ashlar_event*, std::size_t) {}, nullptr, nullptr),
              ASHLAR_OK);
  }

  std::mt19937_64 random_;
  ashlar_manager manager_;
  std::vector<std::uint32_t> tokens_;
  std::map<std::uint64_t, ModelList> lists_;
  std::set<std::uint64_t> requests_;
  ashlar_sequences maker_ = {};
  std::set<std::uint64_t> sequences_;
  std::set<std::uint64_t> fences_;
  std::set<std::uint64_t> pins_;
  std::vector<std::uint64_t> dead_;
};

TEST(CHandles, RandomCallsLoseNoBlock) {
  const std::size_t before = open_handles();
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CallFuzzer fuzzer(seed);
    for (int i = 0; i < 1500; ++i) {
      fuzzer.step();
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    fuzzer.finish();
    ASSERT_EQ(open_handles(), before) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ashlar::testing
