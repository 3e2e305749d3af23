// BlockRegistry: one entry per sequence hash, shared by the managers of all tiers.
//
// Position first: a hash belongs to the part of the registry that holds its position in a sequence, and a
// walk along a prefix passes from part to part. Within it, a hash that a manager holds is found through that
// manager's index, one that only handles keep through the registry's own. Entries exist while a handle or a
// registered block refers to them and vanish with the last one, without a background task. The registry never
// owns blocks.
//
// BlockRegistry is a cheap handle; copies are the same registry.
//
// Thread safety: thread-safe. Takes registry.shard (docs/concurrency.md).
// Complexity:    O(1) per hash; batch calls take a shard's lock once per run of 16 positions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/block/registration_handle.h"
#include "ashlar/block/tier.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {
namespace detail {
class BlockStore;
}
class TinyLfu;

// The frequency tracker: a TinyLFU sketch of how often hashes were used lately.
struct TinyLfuOptions {
  // Distinct hashes it can tell apart. Memory is 2 bytes for each, rounded up to a power of two.
  std::size_t capacity = std::size_t{1} << 21;
  // Touches after which all counters are halved; 0 means ten times the capacity, kNever means no decay.
  std::uint64_t decay_after = 0;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  // Large enough for a pool of so many blocks: 16 names for each, so 32 bytes. A smaller sketch takes names
  // for others and decays too soon (docs/eviction.md).
  static TinyLfuOptions for_pool(std::size_t blocks) noexcept {
    return {.capacity = std::clamp(blocks, std::size_t{64}, std::size_t{1} << 28) * 16};
  }

  // Errors: kInvalidArgument for a capacity of 0 or above 2^32.
  Result<void> validate() const;
};

struct RegistryOptions {
  // Counts how often hashes are used; nullopt = no tracker.
  std::optional<TinyLfuOptions> frequency;
  // Model, dtype and layout of all blocks registered here.
  tokens::NamespaceFingerprint name_space{};

  // Errors: those of TinyLfuOptions.
  Result<void> validate() const;
};

class BlockRegistry {
 public:
  // Errors: those of RegistryOptions; kCapacity without memory.
  static Result<BlockRegistry> create(const RegistryOptions& options = {});

  // The handle of a hash, created if missing. Only a new entry counts as one use.
  RegistrationHandle register_sequence_hash(const tokens::SequenceHash& hash) const;
  // The same for many, in order.
  std::vector<RegistrationHandle> register_sequence_hashes(
      std::span<const tokens::SequenceHash> hashes) const;
  // The handle of a hash, created if missing; never counts as a use. For a hash transferred from elsewhere.
  RegistrationHandle transfer_registration(const tokens::SequenceHash& hash) const;
  // The handle of a hash that is registered. With `touch`, a hit counts as one use and runs the touch
  // callbacks.
  std::optional<RegistrationHandle> match_sequence_hash(const tokens::SequenceHash& hash, bool touch) const;

  // Whether an entry exists: a handle or a registered block refers to the hash.
  bool is_registered(const tokens::SequenceHash& hash) const;
  std::size_t registered_count() const;
  // Hashes registered at one position. Scans all that share its lock, one in 64.
  std::size_t registered_count_at(std::uint32_t position) const;
  // How many leading hashes are registered.
  std::size_t registered_prefix(std::span<const tokens::SequenceHash> hashes) const;

  // Whether each hash has a block in the tier. Counts no use.
  template <events::Tier Tier>
  std::vector<bool> check_presence(std::span<const tokens::SequenceHash> hashes) const {
    return check_presence_any(hashes, {events::kTierId<Tier>});
  }
  // Whether each hash has a block in any of the tiers. Counts no use.
  std::vector<bool> check_presence_any(std::span<const tokens::SequenceHash> hashes,
                                       std::span<const events::TierId> tiers) const;
  std::vector<bool> check_presence_any(std::span<const tokens::SequenceHash> hashes,
                                       std::initializer_list<events::TierId> tiers) const {
    return check_presence_any(hashes, std::span(tiers.begin(), tiers.size()));
  }

  // Counts one use of the hash, registered or not, and runs the touch callbacks if it is.
  void touch(const tokens::SequenceHash& hash) const;
  // Recent uses, 0 without a tracker.
  unsigned count(const tokens::SequenceHash& hash) const;
  // Null when the registry was made without one.
  TinyLfu* frequency_tracker() const noexcept;
  const tokens::NamespaceFingerprint& name_space() const noexcept;

  // False after a move.
  bool valid() const noexcept { return entries_ != nullptr; }

  friend bool operator==(const BlockRegistry& a, const BlockRegistry& b) noexcept {
    return a.entries_ == b.entries_;
  }

 private:
  friend class detail::BlockStore;
  explicit BlockRegistry(std::shared_ptr<detail::RegistryEntries> entries) : entries_(std::move(entries)) {}
  std::shared_ptr<detail::RegistryEntries> entries_;
};

}  // namespace ashlar::block
