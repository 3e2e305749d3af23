// Hashers, names and fences of the C interface.
#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/tokens/hash_scheme.h"
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/salt.h"
#include "c/src/objects.h"

namespace ashlar::c_interface {

Outcome<tokens::SequenceHasher> hasher_of(ashlar_hasher hasher, const PoolLife& life) {
  if (hasher.id == 0) return life.bind(nullptr);
  ASHLAR_TRY(const auto object, object_of<HasherObject>(hasher.id));
  return life.bind(&object->hasher);
}

Outcome<tokens::SequenceHasher> make_hasher(const ashlar_hasher_options* options,
                                            const tokens::HashScheme& otherwise) {
  ASHLAR_TRY(const auto given, options_of(options, "ashlar_hasher_options"));
  ASHLAR_TRY(const auto key, elements<const std::uint8_t>(given.key, given.key_size, "key"));
  ASHLAR_TRY(const auto scheme,
             tokens::HashScheme::by_name(given.scheme == nullptr ? otherwise.name() : given.scheme,
                                         given.scheme == nullptr && otherwise.is_keyed() && key.empty()
                                             ? std::span<const std::uint8_t>(otherwise.key())
                                             : key));
  return tokens::SequenceHasher(scheme, tokens::Salt(text_of(given.lora), text_of(given.tenant)));
}

Outcome<std::vector<tokens::MultimodalRun>> runs_of(const ashlar_multimodal_run* runs, std::size_t n) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  if (n > kMost) return invalid_argument("%zu runs; at most %zu", n, kMost);
  ASHLAR_TRY(const auto given, elements<const ashlar_multimodal_run>(runs, n, "runs"));
  std::vector<tokens::MultimodalRun> out;
  out.reserve(n);
  for (const ashlar_multimodal_run& one : given) {
    if (one.reserved != 0)
      return invalid_argument("run %zu: reserved is %u; it must be 0", out.size(), one.reserved);
    out.push_back({.mm_hash = one.mm_hash, .offset = one.offset, .length = one.length});
  }
  return out;
}

Outcome<block::Fence> fence_of(ashlar_fence fence) {
  ASHLAR_TRY(auto object, object_of<FenceObject>(fence.id));
  return object->fence;
}

Outcome<std::vector<block::Fence>> fences_of(const ashlar_fence* fences, std::size_t n) {
  ASHLAR_TRY(auto given, elements<const ashlar_fence>(fences, n, "after"));
  std::vector<block::Fence> out;
  out.reserve(n);
  for (const ashlar_fence& one : given) {
    ASHLAR_TRY(auto fence, fence_of(one));
    out.push_back(std::move(fence));
  }
  return out;
}

namespace {

// What waits for a fence. If that is abandoned, it stays in a chain of the process: never released, and not
// lost to a search for leaks.
struct WaitingObject {
  explicit WaitingObject(std::shared_ptr<HandleObject> its) : object(std::move(its)) {}
  std::shared_ptr<HandleObject> object;
  std::shared_ptr<WaitingObject> next;
};

struct AbandonedObjects {
  Mutex mu;
  std::shared_ptr<WaitingObject> first ASHLAR_GUARDED_BY(mu);
};
AbandonedObjects& abandoned_objects() {
  static AbandonedObjects* const all = new AbandonedObjects;
  return *all;
}

// Each block of tokens that follow `before`; `out` is as it was after an error.
Outcome<> hash_with_runs(const tokens::SequenceHasher& hasher, tokens::BlockBefore before,
                         std::span<const tokens::Token> all, std::uint32_t block_size,
                         std::span<const tokens::MultimodalRun> runs, std::span<tokens::BlockHashes> out) {
  ASHLAR_RETURN_IF_ERROR(tokens::validate_runs(runs, 0, std::numeric_limits<std::uint64_t>::max()));
  std::vector<tokens::BlockHashes> made;
  made.reserve(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASHLAR_TRY(const auto hashes, hasher.hash_block(before, all.subspan(i * block_size, block_size), runs));
    made.push_back(hashes);
    before = hashes;
  }
  std::ranges::copy(made, out.begin());
  return {};
}

// To be used outside the lock: it runs what waits for the fence. Empty: it was used before.
Outcome<std::optional<block::FenceSignal>> take_signal(ashlar_fence fence) {
  ASHLAR_TRY(const auto object, object_of<FenceObject>(fence.id));
  const MutexLock lock(object->mu);
  std::optional<block::FenceSignal> signal = std::move(object->signal);
  object->signal.reset();
  return signal;
}

// A use of a pool until a fence has ended; for ever if it is abandoned.
class PoolUntilFence final : public block::Fence::Waiting {
 public:
  explicit PoolUntilFence(std::shared_ptr<PoolLife> life) noexcept : life_(std::move(life)) {
    entered_ = life_->enter();
  }
  ~PoolUntilFence() override {
    if (entered_) life_->leave(PoolUse::kGuard);
  }
  void settled(block::FenceEnd end) noexcept override {
    if (end == block::FenceEnd::kAbandoned) entered_ = false;
  }

 private:
  const std::shared_ptr<PoolLife> life_;
  bool entered_ = false;
};

void settle_waiting(const std::shared_ptr<WaitingObject>& waiting, bool ended) {
  if (ended) {
    waiting->object.reset();
    return;
  }
  AbandonedObjects& all = abandoned_objects();
  const MutexLock lock(all.mu);
  waiting->next = std::move(all.first);
  all.first = waiting;
}

}  // namespace

std::unique_ptr<block::Fence::Waiting> pool_until_fence(const PoolTicket& ticket) {
  return std::make_unique<PoolUntilFence>(ticket.shared());
}

void keep_until(const block::Fence& fence, std::shared_ptr<HandleObject> object) {
  abandoned_objects();  // made now, while an exception still has somewhere to go
  auto waiting = std::make_shared<WaitingObject>(std::move(object));
  fence.on_settled([waiting, fence](bool) { settle_waiting(waiting, fence.ended()); });
}

}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;
namespace tokens = ashlar::tokens;

ashlar_status ashlar_hasher_create(const ashlar_hasher_options* options, ashlar_hasher* hasher) {
  return call([&]() -> Outcome<> {
    if (hasher == nullptr) return null_pointer("hasher");
    ASHLAR_TRY(auto made, make_hasher(options));
    hasher->id = open_handle(std::make_shared<HasherObject>(std::move(made)));
    return {};
  });
}

ashlar_status ashlar_hasher_destroy(ashlar_hasher hasher) {
  return call([&] { return close_handle<HasherObject>(hasher.id); });
}

ashlar_status ashlar_hasher_fingerprint(ashlar_hasher hasher, uint64_t* fingerprint) {
  return call([&]() -> Outcome<> {
    if (fingerprint == nullptr) return null_pointer("fingerprint");
    ASHLAR_TRY(const auto object, object_of<HasherObject>(hasher.id));
    *fingerprint = object->hasher.scheme().fingerprint();
    return {};
  });
}

ashlar_status ashlar_hash_blocks(ashlar_hasher hasher, const ashlar_block_hashes* parent,
                                 const uint32_t* given_tokens, size_t token_count, uint32_t block_size,
                                 ashlar_block_hashes* out, size_t capacity, size_t* count) {
  return ashlar_hash_blocks_with_runs(hasher, parent, given_tokens, token_count, block_size, nullptr, 0, out,
                                      capacity, count);
}

ashlar_status ashlar_hash_blocks_with_runs(ashlar_hasher hasher, const ashlar_block_hashes* parent,
                                           const uint32_t* given_tokens, size_t token_count,
                                           uint32_t block_size, const ashlar_multimodal_run* runs,
                                           size_t run_count, ashlar_block_hashes* out, size_t capacity,
                                           size_t* count) {
  return call([&]() -> Outcome<> {
    if (count == nullptr) return null_pointer("count");
    ASHLAR_RETURN_IF_ERROR(tokens::validate_block_size(block_size));
    ASHLAR_TRY(const auto object, object_of<HasherObject>(hasher.id));
    ASHLAR_TRY(const auto all, elements<const tokens::Token>(given_tokens, token_count, "tokens"));
    ASHLAR_TRY(const auto items, runs_of(runs, run_count));
    const std::size_t blocks = token_count / block_size;
    if (blocks > capacity) {
      *count = blocks;
      return Refusal(ASHLAR_CAPACITY, "the buffer has room for " + std::to_string(capacity) +
                                          " blocks; the tokens have " + std::to_string(blocks));
    }
    ASHLAR_TRY(const auto room, elements<tokens::BlockHashes>(out, blocks, "out"));
    const tokens::BlockBefore before =
        parent == nullptr ? tokens::BlockBefore() : tokens::BlockBefore(hashes_in(*parent));
    if (items.empty()) {
      ASHLAR_RETURN_IF_ERROR(object->hasher.hash_blocks(before, all, block_size, room));
    } else {
      ASHLAR_RETURN_IF_ERROR(hash_with_runs(object->hasher, before, all, block_size, items, room));
    }
    *count = blocks;
    return {};
  });
}

ashlar_status ashlar_hash_parts(const ashlar_hash* hash, uint32_t* position, uint64_t* chain) {
  return call([&]() -> Outcome<> {
    if (hash == nullptr) return null_pointer("hash");
    if (position != nullptr) *position = hash_in(*hash).position();
    if (chain != nullptr) *chain = hash_in(*hash).chain();
    return {};
  });
}

ashlar_status ashlar_hash_to_text(const ashlar_hash* hash, char* out, size_t capacity, size_t* count) {
  return call([&]() -> Outcome<> {
    if (hash == nullptr) return null_pointer("hash");
    const std::string text = hash_in(*hash).to_string();
    return write_list(std::span<const char>(text.c_str(), text.size() + 1), out, capacity, count);
  });
}

ashlar_status ashlar_hash_from_text(const char* text, ashlar_hash* hash) {
  return call([&]() -> Outcome<> {
    if (text == nullptr) return null_pointer("text");
    if (hash == nullptr) return null_pointer("hash");
    ASHLAR_TRY(const auto parsed, tokens::SequenceHash::parse(text));
    *hash = {parsed.hi(), parsed.lo()};
    return {};
  });
}

ashlar_status ashlar_fence_create(ashlar_fence* fence) {
  return call([&]() -> Outcome<> {
    if (fence == nullptr) return null_pointer("fence");
    fence->id = open_handle(std::make_shared<FenceObject>(ashlar::block::Fence::create()));
    return {};
  });
}

ashlar_status ashlar_fence_signal(ashlar_fence fence) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(auto signal, take_signal(fence));
    if (signal) std::move(*signal).signal();
    return {};
  });
}

ashlar_status ashlar_fence_fail(ashlar_fence fence) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(auto signal, take_signal(fence));
    if (signal) std::move(*signal).fail();
    return {};
  });
}

ashlar_status ashlar_fence_passed(ashlar_fence fence, int* passed) {
  return call([&]() -> Outcome<> {
    if (passed == nullptr) return null_pointer("passed");
    ASHLAR_TRY(const auto object, object_of<FenceObject>(fence.id));
    *passed = object->fence.passed() ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_fence_destroy(ashlar_fence fence) {
  return call([&] { return close_handle<FenceObject>(fence.id); });
}
