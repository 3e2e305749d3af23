// Eviction: which inactive block goes next. One concept for the policies, one class that the store calls.
//
// A backend orders the inactive blocks of one manager. It is told when a block becomes inactive (insert), leaves
// because somebody uses it again (remove), is touched while it stays (touch), and is asked for victims (pop). It never
// looks blocks up: the store's index does that, for active and inactive blocks alike.
//
// Thread safety: confined; the store calls a backend under its own lock.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

// What a backend is made for.
struct EvictionContext {
  std::uint32_t block_count;
  BlockRegistry registry;
};

// insert(): the block is not in the backend. remove(), touch(): it is. pop(): the next victim leaves the backend;
// nothing when it is empty, and only then. peek(): the next victims in order, without a change.
template <class B>
concept EvictionBackend =
    requires(B backend, const B& view, BlockId id, const tokens::SequenceHash& hash, std::span<BlockId> out) {
      { backend.insert(id, hash) } -> std::same_as<void>;
      { backend.remove(id) } -> std::same_as<void>;
      { backend.touch(id) } -> std::same_as<void>;
      { backend.pop() } -> std::same_as<std::optional<BlockId>>;
      { view.peek(out) } -> std::same_as<std::size_t>;
      { view.size() } -> std::same_as<std::size_t>;
    };

// A backend behind virtual calls: what the store holds.
class InactivePool {
 public:
  virtual ~InactivePool() = default;
  virtual void insert(BlockId id, const tokens::SequenceHash& hash) = 0;
  virtual void remove(BlockId id) = 0;
  virtual void touch(BlockId id) = 0;
  // Fills `out` with victims, as many as there are. Returns their number.
  virtual std::size_t pop(std::span<BlockId> out) = 0;
  virtual std::size_t peek(std::span<BlockId> out) const = 0;
  virtual std::size_t size() const = 0;
};

template <EvictionBackend B>
class InactivePoolOf final : public InactivePool {
 public:
  explicit InactivePoolOf(B backend) : backend_(std::move(backend)) {}
  void insert(BlockId id, const tokens::SequenceHash& hash) override { backend_.insert(id, hash); }
  void remove(BlockId id) override { backend_.remove(id); }
  void touch(BlockId id) override { backend_.touch(id); }
  std::size_t pop(std::span<BlockId> out) override {
    std::size_t count = 0;
    while (count < out.size()) {
      const std::optional<BlockId> victim = backend_.pop();
      if (!victim) break;
      out[count++] = *victim;
    }
    return count;
  }
  std::size_t peek(std::span<BlockId> out) const override { return backend_.peek(out); }
  std::size_t size() const override { return backend_.size(); }

 private:
  B backend_;
};

// Makes the backend of one manager. Errors refuse the manager.
using EvictionFactory = std::function<Result<std::unique_ptr<InactivePool>>(const EvictionContext&)>;

// The backend registered under a name ("lru", "hashmap_fifo", …), for configuration.
// Errors: kNotFound, with the names there are.
Result<EvictionFactory> eviction_by_name(std::string_view name);
// All registered names, sorted.
std::vector<std::string> eviction_names();

}  // namespace ashlar::block
