// World: what the two managers of a property test share: few token blocks with many fates, one registry, one
// clock.
//
// Thread safety: confined.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/random.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token_block.h"
#include "block/property/naive_manager.h"
#include "block/property/trace.h"

namespace ashlar::block::property {

class World {
 public:
  World(std::uint32_t block_size, Random random, Trace& trace);

  std::uint32_t block_size() const noexcept { return block_size_; }
  Random& random() noexcept { return random_; }
  Trace& trace() noexcept { return trace_; }
  ManualClock& clock() noexcept { return clock_; }
  const BlockRegistry& registry() const noexcept { return registry_; }
  const std::shared_ptr<NaiveRegistry>& model() const noexcept { return model_; }

  // Sequences that share prefixes, and, for blocks of two tokens, one whose hashes collide with others'
  // tokens.
  const std::vector<std::vector<tokens::TokenBlock>>& sequences() const noexcept { return sequences_; }
  const std::vector<Hash>& hashes() const noexcept { return hashes_; }
  // How a block of a sequence is hashed.
  const tokens::SequenceHasher& hasher(std::size_t sequence) const noexcept { return hashers_[sequence]; }
  std::size_t collisions() const noexcept { return collisions_; }

  // A block of any sequence: (sequence, place in it).
  struct Pick {
    std::size_t sequence;
    std::size_t place;
  };
  Pick pick();
  const tokens::TokenBlock& block(const Pick& pick) const { return sequences_[pick.sequence][pick.place]; }
  // With the tokens of the whole prefix.
  NaiveIdentity identity(const Pick& pick) const;
  // A stretch of a sequence, mostly from its start, or, `scattered`, any hashes.
  std::vector<Hash> some_hashes(bool scattered);

  // Handles of the registry: made, touched, dropped.
  void step();
  void advance();
  void compare();
  void drop_handles();
  // Nanoseconds that no other pin has ended its time with.
  Clock::Duration unique_ttl();

 private:
  void add_collisions();

  std::uint32_t block_size_;
  Random random_;
  Trace& trace_;
  ManualClock clock_;
  BlockRegistry registry_;
  std::shared_ptr<NaiveRegistry> model_ = std::make_shared<NaiveRegistry>();
  std::vector<std::vector<tokens::TokenBlock>> sequences_;
  std::vector<tokens::SequenceHasher> hashers_;
  std::vector<Hash> hashes_;
  std::size_t collisions_ = 0;
  std::vector<RegistrationHandle> handles_;
  std::map<Hash, unsigned> callbacks_run_;
  std::vector<bool> counted_exactly_;  // per hash: its counters are shared with no other hash
  std::int64_t pins_ = 0;
};

}  // namespace ashlar::block::property
