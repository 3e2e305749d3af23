// Lists of blocks of the C interface.
//
// A transition gets the handle of its result before it touches a block, so that it cannot fail afterwards.
#include <type_traits>
#include <vector>

#include "ashlar/tokens/token_sequence.h"
#include "c/src/objects.h"

namespace ashlar::c_interface {
namespace {

constexpr const char* kStates[] = {"empty", "complete", "registered"};

// The list of a handle, locked: it stays the handle's until this is gone.
class LockedBlocks {
 public:
  // Errors: ASHLAR_INVALID_HANDLE, also when a transition consumed the handle meanwhile.
  static Outcome<LockedBlocks> of(std::uint64_t handle) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    ASHLAR_TRY(auto object, object_of<BlocksObject>(handle));
    object->mu.lock();
    LockedBlocks locked(std::move(object));
    if (locked.object_->handle != handle) return invalid_handle(HandleKind::kBlocks, handle);
    return locked;
  }
  LockedBlocks(LockedBlocks&&) noexcept = default;
  LockedBlocks& operator=(LockedBlocks&&) = delete;
  ~LockedBlocks() ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if (object_ != nullptr) object_->mu.unlock();
  }

  AnyBlocks& blocks() ASHLAR_NO_THREAD_SAFETY_ANALYSIS { return object_->blocks; }
  std::uint64_t handle() const ASHLAR_NO_THREAD_SAFETY_ANALYSIS { return object_->handle; }
  PoolLife& life() const noexcept { return object_->ticket.life(); }
  const std::shared_ptr<BlocksObject>& object() const noexcept { return object_; }
  std::size_t size() {
    return std::visit([](const auto& list) { return list.size(); }, blocks());
  }

  // Errors: ASHLAR_NOT_READY: another state.
  template <class List>
  Outcome<List*> as(const char* call) {
    if (auto* list = std::get_if<List>(&blocks())) return list;
    constexpr std::size_t kWanted = std::is_same_v<List, EmptyBlocks>      ? 0
                                    : std::is_same_v<List, CompleteBlocks> ? 1
                                                                           : 2;
    return not_ready("%s is for %s blocks; these are %s", call, kStates[kWanted], kStates[blocks().index()]);
  }
  void set_handle(std::uint64_t handle) ASHLAR_NO_THREAD_SAFETY_ANALYSIS { object_->handle = handle; }

 private:
  explicit LockedBlocks(std::shared_ptr<BlocksObject> object) noexcept : object_(std::move(object)) {}
  std::shared_ptr<BlocksObject> object_;
};

// The handle that a list gets by a transition. Unless it is taken, the list keeps its old one.
class NextHandle {
 public:
  explicit NextHandle(LockedBlocks& list) : list_(list), next_(open_handle(list.object())) {}
  NextHandle(const NextHandle&) = delete;
  NextHandle& operator=(const NextHandle&) = delete;
  ~NextHandle() {
    if (next_ != 0) HandleTable::of_process().remove(HandleKind::kBlocks, next_);
  }
  std::uint64_t take() noexcept {
    HandleTable::of_process().remove(HandleKind::kBlocks, list_.handle());
    list_.set_handle(next_);
    return std::exchange(next_, 0);
  }

 private:
  LockedBlocks& list_;
  std::uint64_t next_;
};

block::BlockIdentity identity_of(const tokens::BlockHashes& hashes,
                                 const std::optional<tokens::SequenceHash>& parent,
                                 const std::optional<tokens::SequenceHash>& root) {
  return {.hash = hashes.sequence,
          .parent = parent,
          .root = root,
          .local = hashes.local,
          .prefix = hashes.prefix};
}

Outcome<> complete_list(LockedBlocks& list, const tokens::SequenceHasher& hasher,
                        std::span<const tokens::Token> all, std::span<const tokens::MultimodalRun> runs,
                        std::size_t first_block) {
  ASHLAR_TRY(EmptyBlocks* const empty, list.as<EmptyBlocks>("ashlar_blocks_complete()"));
  const std::uint32_t block_size = list.life().manager().block_size();
  const std::size_t full = all.size() / block_size;
  if (first_block > full || empty->size() > full - first_block)
    return invalid_argument("%zu tokens have %zu full blocks; %zu from number %zu on are to be completed",
                            all.size(), full, empty->size(), first_block);
  ASHLAR_TRY(const auto sequence,
             tokens::TokenSequence::create(
                 runs.empty() ? all.first((first_block + empty->size()) * block_size) : all, block_size,
                 hasher, runs));
  CompleteBlocks complete;
  complete.reserve(empty->size());
  for (std::size_t i = 0; i < empty->size(); ++i) {
    auto done = std::move((*empty)[i])
                    .complete(sequence.blocks()[first_block + i], block::KvReady::asserted_by_caller());
    if (!done)  // the sizes are equal: nothing else is refused
      return Refusal(ASHLAR_INTERNAL, done.error().error.message());
    complete.push_back(*std::move(done));
  }
  list.blocks() = std::move(complete);
  return {};
}

}  // namespace

Outcome<std::uint64_t> open_blocks(PoolTicket ticket, AnyBlocks blocks) {
  auto object = std::make_shared<BlocksObject>(std::move(ticket), std::move(blocks));
  const MutexLock lock(object->mu);
  object->handle = open_handle(object);
  return object->handle;
}

}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;
namespace block = ashlar::block;

ashlar_status ashlar_blocks_info(ashlar_blocks blocks, size_t* count, int32_t* state) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    if (count != nullptr) *count = list.size();
    if (state != nullptr) *state = static_cast<int32_t>(list.blocks().index());
    return {};
  });
}

ashlar_status ashlar_blocks_ids(ashlar_blocks blocks, uint32_t* out, size_t capacity, size_t* count) {
  return call([&]() -> Outcome<> {
    if (count == nullptr) return null_pointer("count");
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    if (list.size() <= capacity && out != nullptr) {
      *count = list.size();
      std::visit(
          [&](const auto& all) {
            for (const auto& one : all) *out++ = one.block_id().value();
          },
          list.blocks());
      return {};
    }
    const std::vector<std::uint32_t> none(list.size());
    return write_list(std::span<const std::uint32_t>(none), out, capacity, count);
  });
}

ashlar_status ashlar_blocks_hashes(ashlar_blocks blocks, ashlar_hash* out, size_t capacity, size_t* count) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    std::vector<ashlar::tokens::SequenceHash> hashes;
    hashes.reserve(list.size());
    if (const auto* complete = std::get_if<CompleteBlocks>(&list.blocks())) {
      for (const auto& one : *complete) hashes.push_back(one.sequence_hash());
    } else {
      ASHLAR_TRY(const auto* registered, list.as<RegisteredBlocks>("ashlar_blocks_hashes()"));
      for (const auto& one : *registered) hashes.push_back(one.sequence_hash());
    }
    return write_list(std::span<const ashlar::tokens::SequenceHash>(hashes), out, capacity, count);
  });
}

ashlar_status ashlar_blocks_complete(ashlar_blocks blocks, ashlar_hasher hasher, const uint32_t* tokens,
                                     size_t token_count, size_t first_block, ashlar_blocks* complete) {
  return ashlar_blocks_complete_with_runs(blocks, hasher, tokens, token_count, nullptr, 0, first_block,
                                          complete);
}

ashlar_status ashlar_blocks_complete_with_runs(ashlar_blocks blocks, ashlar_hasher hasher,
                                               const uint32_t* tokens, size_t token_count,
                                               const ashlar_multimodal_run* runs, size_t run_count,
                                               size_t first_block, ashlar_blocks* complete) {
  return call([&]() -> Outcome<> {
    if (complete == nullptr) return null_pointer("complete");
    ASHLAR_TRY(const auto all, elements<const ashlar::tokens::Token>(tokens, token_count, "tokens"));
    ASHLAR_TRY(const auto items, runs_of(runs, run_count));
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_TRY(const auto its, hasher_of(hasher, list.life()));
    NextHandle next(list);
    ASHLAR_RETURN_IF_ERROR(complete_list(list, its, all, items, first_block));
    complete->id = next.take();
    return {};
  });
}

ashlar_status ashlar_blocks_stage(ashlar_blocks blocks, const ashlar_block_hashes* hashes, size_t n,
                                  const ashlar_hash* parent, const ashlar_hash* root,
                                  ashlar_blocks* complete) {
  return call([&]() -> Outcome<> {
    if (complete == nullptr) return null_pointer("complete");
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::BlockHashes>(hashes, n, "hashes"));
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_TRY(EmptyBlocks* const empty, list.as<EmptyBlocks>("ashlar_blocks_stage()"));
    if (empty->size() != n) return invalid_argument("%zu hashes for %zu blocks", n, empty->size());
    NextHandle next(list);
    CompleteBlocks staged;
    staged.reserve(n);
    std::optional<ashlar::tokens::SequenceHash> before, first;
    if (parent != nullptr) before = hash_in(*parent);
    if (root != nullptr) first = hash_in(*root);
    for (std::size_t i = 0; i < n; ++i) {
      if (names[i].sequence.position() == 0) {
        before.reset();
        first = names[i].sequence;
      }
      staged.push_back(
          std::move((*empty)[i])
              .stage(identity_of(names[i], before, first), block::KvReady::asserted_by_caller()));
      before = names[i].sequence;
    }
    list.blocks() = std::move(staged);
    complete->id = next.take();
    return {};
  });
}

ashlar_status ashlar_blocks_reset(ashlar_blocks blocks, ashlar_blocks* empty) {
  return call([&]() -> Outcome<> {
    if (empty == nullptr) return null_pointer("empty");
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_TRY(CompleteBlocks* const complete, list.as<CompleteBlocks>("ashlar_blocks_reset()"));
    NextHandle next(list);
    EmptyBlocks cleared;
    cleared.reserve(complete->size());
    for (auto& one : *complete) cleared.push_back(std::move(one).reset());
    list.blocks() = std::move(cleared);
    empty->id = next.take();
    return {};
  });
}

ashlar_status ashlar_blocks_register(ashlar_blocks blocks, const ashlar_register_options* options,
                                     ashlar_blocks* registered) {
  return call([&]() -> Outcome<> {
    if (registered == nullptr) return null_pointer("registered");
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_register_options"));
    block::RegistrationOptions its;
    if (given.set_priority != 0) {
      ASHLAR_TRY(its.retention,
                 retention_of(given.priority, given.ttl_ns == 0 ? ASHLAR_FOREVER : given.ttl_ns));
    }
    ASHLAR_TRY(its.after, fences_of(given.after, given.after_count));
    its.metadata = given.metadata;
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_TRY(CompleteBlocks* const complete, list.as<CompleteBlocks>("ashlar_blocks_register()"));
    if (its.after.size() > 1 && its.after.size() != complete->size())
      return invalid_argument("%zu fences for %zu blocks; there must be none, one, or one per block",
                              its.after.size(), complete->size());
    std::vector<std::unique_ptr<block::Fence::Waiting>> pools;
    for (std::size_t i = 0; i < its.after.size(); ++i)
      pools.push_back(pool_until_fence(list.object()->ticket));
    NextHandle next(list);
    auto done = list.life().manager().register_blocks(std::move(*complete), its);
    if (!done) {
      *complete = std::move(done.error().guard);
      return Refusal(std::move(done.error().error));
    }
    for (std::size_t i = 0; i < its.after.size(); ++i) its.after[i].keep(std::move(pools[i]));
    list.blocks() = *std::move(done);
    registered->id = next.take();
    return {};
  });
}

ashlar_status ashlar_blocks_share(ashlar_blocks blocks, ashlar_blocks* shared) {
  return call([&]() -> Outcome<> {
    if (shared == nullptr) return null_pointer("shared");
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_TRY(const RegisteredBlocks* const mine, list.as<RegisteredBlocks>("ashlar_blocks_share()"));
    RegisteredBlocks copy;
    copy.reserve(mine->size());
    for (const auto& one : *mine) {
      if (one.use_count() >= block::detail::kMaxReferences / 2)
        return Refusal(ASHLAR_CAPACITY, "a block has as many references as it may have; release some");
      copy.push_back(one);
    }
    if (!list.life().enter()) return invalid_handle(HandleKind::kBlocks, blocks.id);
    ASHLAR_TRY(shared->id, open_blocks(PoolTicket(list.object()->ticket.shared()), std::move(copy)));
    return {};
  });
}

ashlar_status ashlar_blocks_split(ashlar_blocks blocks, size_t at, ashlar_blocks* head, ashlar_blocks* tail) {
  return call([&]() -> Outcome<> {
    if (head == nullptr) return null_pointer("head");
    if (tail == nullptr) return null_pointer("tail");
    if (head == tail) return invalid_argument("head and tail are one place; each needs its own");
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    if (at > list.size())
      return invalid_argument("a list of %zu blocks cannot be split at %zu", list.size(), at);
    if (!list.life().enter()) return invalid_handle(HandleKind::kBlocks, blocks.id);
    PoolTicket ticket(list.object()->ticket.shared());
    NextHandle next(list);
    return std::visit(
        [&]<class List>(List& all) -> Outcome<> {
          List front;
          List rest;
          front.reserve(at);
          rest.reserve(all.size() - at);
          ASHLAR_TRY(const std::uint64_t second, open_blocks(std::move(ticket), List()));
          ASHLAR_TRY(auto added, LockedBlocks::of(second));
          for (std::size_t i = 0; i < all.size(); ++i) (i < at ? front : rest).push_back(std::move(all[i]));
          added.blocks() = std::move(rest);
          all = std::move(front);
          tail->id = second;
          head->id = next.take();
          return {};
        },
        list.blocks());
  });
}

ashlar_status ashlar_blocks_set_retention(ashlar_blocks blocks, uint8_t priority, uint64_t ttl_ns) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto retention, retention_of(priority, ttl_ns));
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_TRY(RegisteredBlocks* const mine, list.as<RegisteredBlocks>("ashlar_blocks_set_retention()"));
    for (auto& one : *mine) ASHLAR_RETURN_IF_ERROR(one.set_retention(retention));
    return {};
  });
}

ashlar_status ashlar_blocks_set_reset_on_release(ashlar_blocks blocks, int reset) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_TRY(RegisteredBlocks* const mine,
               list.as<RegisteredBlocks>("ashlar_blocks_set_reset_on_release()"));
    for (auto& one : *mine) one.set_reset_on_release(reset != 0);
    return {};
  });
}

ashlar_status ashlar_blocks_pin(ashlar_blocks blocks, uint64_t ttl_ns, ashlar_pin* pin) {
  return call([&]() -> Outcome<> {
    if (pin == nullptr) return null_pointer("pin");
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_TRY(RegisteredBlocks* const mine, list.as<RegisteredBlocks>("ashlar_blocks_pin()"));
    std::vector<block::Pin> pins;
    pins.reserve(mine->size());
    for (const auto& one : *mine) {
      ASHLAR_TRY(auto made, one.pin(duration_of(ttl_ns)));
      pins.push_back(std::move(made));
    }
    pin->id = open_handle(std::make_shared<PinObject>(std::move(pins)));
    return {};
  });
}

ashlar_status ashlar_blocks_release(ashlar_blocks blocks) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
    ASHLAR_RETURN_IF_ERROR(close_handle<BlocksObject>(blocks.id));
    list.set_handle(0);
    return {};
  });
}

ashlar_status ashlar_blocks_release_after(ashlar_blocks blocks, ashlar_fence fence) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto its, fence_of(fence));
    std::shared_ptr<BlocksObject> object;
    {
      ASHLAR_TRY(auto list, LockedBlocks::of(blocks.id));
      object = list.object();
      keep_until(its, object);
      ASHLAR_RETURN_IF_ERROR(close_handle<BlocksObject>(blocks.id));
      list.set_handle(0);
    }
    return {};
  });
}
