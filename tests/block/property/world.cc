#include "block/property/world.h"

#include <algorithm>
#include <bit>

#include "ashlar/testing/managers.h"
#include "ashlar/testing/sequence_builder.h"
#include "block/registry/tiny_lfu.h"

namespace ashlar::block::property {
namespace {

using testing::SequenceBuilder;
using tokens::TokenBlock;

std::vector<TokenBlock> blocks_of(const tokens::TokenSequence& sequence) {
  return {sequence.blocks().begin(), sequence.blocks().end()};
}

// What XXH3 mixes into 8 bytes of input: two inputs under two seeds have one hash when they differ by the
// difference of these.
std::uint64_t flip_of(std::uint64_t seed) {
  constexpr std::uint64_t kSecret = 0x1cad21f72c81017cULL ^ 0xdb979083e96dd4deULL;
  const auto low = static_cast<std::uint32_t>(seed);
  const std::uint32_t swapped = (low >> 24) | ((low >> 8) & 0xFF00u) | ((low << 8) & 0xFF0000u) | (low << 24);
  return kSecret - (seed ^ (std::uint64_t{swapped} << 32));
}

}  // namespace

World::World(std::uint32_t block_size, Random random, Trace& trace)
    : block_size_(block_size), random_(random), trace_(trace), registry_(testing::make_counting_registry()) {
  const auto trunk = [&](std::size_t blocks) {
    SequenceBuilder builder;
    builder.block_size(block_size).iota(1000).blocks(blocks).then();
    return builder;
  };
  sequences_.push_back(blocks_of(trunk(4).iota(2000).blocks(4).build()));
  sequences_.push_back(blocks_of(trunk(2).iota(3000).blocks(3).build()));
  sequences_.push_back(blocks_of(SequenceBuilder().block_size(block_size).iota(4000).blocks(4).build()));
  hashers_.resize(3);
  if (block_size == 2) add_collisions();
  for (const auto& sequence : sequences_) {
    for (const TokenBlock& block : sequence) hashes_.push_back(block.sequence_hash());
  }
  std::sort(hashes_.begin(), hashes_.end());
  hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());

  const TinyLfu& tracker = *registry_.frequency_tracker();
  for (const Hash& hash : hashes_) {
    counted_exactly_.push_back(std::none_of(hashes_.begin(), hashes_.end(), [&](const Hash& other) {
      return other != hash && tracker.cell(other, 0).word == tracker.cell(hash, 0).word;
    }));
  }
}

// A salted sequence with other tokens, whose first block has the hash of the first block of the first
// sequence.
void World::add_collisions() {
  const tokens::SequenceHasher salted(tokens::Salt("another", ""));
  const std::uint64_t flip = flip_of(tokens::Salt::kBaseSeed) ^ flip_of(salted.salt().seed());
  std::vector<std::uint32_t> tokens;
  for (const TokenBlock& block : sequences_[0]) {
    const std::uint64_t input =
        (std::uint64_t{block.tokens()[0].value()} << 32 | block.tokens()[1].value()) ^ flip;
    tokens.push_back(static_cast<std::uint32_t>(input >> 32));
    tokens.push_back(static_cast<std::uint32_t>(input));
  }
  sequences_.push_back(blocks_of(SequenceBuilder().block_size(2).hasher(salted).tokens(tokens).build()));
  hashers_.push_back(salted);
  for (std::size_t i = 0; i < sequences_[0].size(); ++i) {
    if (sequences_[0][i].sequence_hash() == sequences_[3][i].sequence_hash()) ++collisions_;
  }
}

World::Pick World::pick() {
  const std::size_t sequence = random_.below(sequences_.size());
  return {sequence, random_.below(sequences_[sequence].size())};
}

NaiveIdentity World::identity(const Pick& pick) const {
  Tokens tokens;
  for (std::size_t i = 0; i <= pick.place; ++i) {
    for (const tokens::Token token : block({pick.sequence, i}).tokens()) tokens.push_back(token.value());
  }
  return {block(pick).sequence_hash(), block(pick).parent(), block(pick).root(), tokens};
}

std::vector<Hash> World::some_hashes(bool scattered) {
  std::vector<Hash> some;
  if (scattered || random_.chance(0.1)) {
    const std::size_t count = random_.below(7);
    for (std::size_t i = 0; i < count; ++i) some.push_back(hashes_[random_.below(hashes_.size())]);
    return some;
  }
  const auto& sequence = sequences_[random_.below(sequences_.size())];
  const std::size_t first = random_.chance(0.7) ? 0 : random_.below(sequence.size());
  const std::size_t last = first + random_.below(sequence.size() - first + 1);
  for (std::size_t i = first; i < last; ++i) some.push_back(sequence[i].sequence_hash());
  return some;
}

Clock::Duration World::unique_ttl() {
  // The clock stands at whole microseconds; what is below them tells pins apart.
  ++pins_;
  return std::chrono::microseconds(random_.below(4)) + std::chrono::nanoseconds(1 + pins_ % 999);
}

void World::advance() {
  const auto by = std::chrono::microseconds(random_.below(3));
  trace_.add("advance the clock by " + std::to_string(by.count()) + " us");
  clock_.advance(by);
}

void World::step() {
  const Hash hash = hashes_[random_.below(hashes_.size())];
  const std::string name = hash.to_string();
  switch (random_.below(6)) {
    case 0: {
      trace_.add("register_sequence_hash " + name);
      const bool fresh = !model_->entries.contains(hash);
      handles_.push_back(registry_.register_sequence_hash(hash));
      model_->acquire(hash, /*counts=*/true);
      if (!fresh) break;
      handles_.back().on_touch(
          [this](const RegistrationHandle& touched) { ++callbacks_run_[touched.sequence_hash()]; });
      ++model_->entries[hash].callbacks;
      break;
    }
    case 1:
      trace_.add("transfer_registration " + name);
      handles_.push_back(registry_.transfer_registration(hash));
      model_->acquire(hash, /*counts=*/false);
      break;
    case 2: {
      const bool touch = random_.chance(0.5);
      trace_.add("match_sequence_hash " + name + (touch ? " with a touch" : ""));
      auto handle = registry_.match_sequence_hash(hash, touch);
      trace_.expect_equal("registered", handle.has_value(), model_->entries.contains(hash));
      if (!handle || trace_.failed()) break;
      model_->acquire(hash, /*counts=*/false);
      if (touch) model_->touch(hash);
      handles_.push_back(*std::move(handle));
      break;
    }
    case 3:
      trace_.add("touch " + name);
      registry_.touch(hash);
      model_->touch(hash);
      break;
    default: {
      if (handles_.empty()) return;
      const std::size_t at = random_.below(handles_.size());
      const Hash gone = handles_[at].sequence_hash();
      trace_.add("drop a handle of " + gone.to_string());
      handles_.erase(handles_.begin() + static_cast<std::ptrdiff_t>(at));
      model_->release(gone);
      break;
    }
  }
}

void World::drop_handles() {
  trace_.add("drop all handles");
  for (const RegistrationHandle& handle : handles_) model_->release(handle.sequence_hash());
  handles_.clear();
}

void World::compare() {
  trace_.expect_equal("registered hashes", registry_.registered_count(), model_->entries.size());
  std::map<std::uint32_t, std::size_t> at_position;
  for (const auto& [hash, entry] : model_->entries) ++at_position[hash.position()];
  for (std::uint32_t position = 0; position < 9; ++position) {
    trace_.expect_equal("registered at a position", registry_.registered_count_at(position),
                        at_position[position]);
  }
  const std::vector<bool> in_g1 = registry_.check_presence<events::G1>(hashes_);
  const std::vector<bool> in_g2 = registry_.check_presence<events::G2>(hashes_);
  const std::vector<bool> in_any =
      registry_.check_presence_any(hashes_, {events::kTierId<events::G1>, events::kTierId<events::G2>});
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    const Hash& hash = hashes_[i];
    trace_.expect_equal("is_registered", registry_.is_registered(hash), model_->entries.contains(hash));
    trace_.expect_equal("presence in g1", bool{in_g1[i]}, model_->present(hash, 0));
    trace_.expect_equal("presence in g2", bool{in_g2[i]}, model_->present(hash, 1));
    trace_.expect_equal("presence anywhere", bool{in_any[i]}, in_g1[i] || in_g2[i]);
    const unsigned uses = std::min(model_->uses[hash], TinyLfu::kMaxCount);
    const unsigned counted = registry_.count(hash);
    if (counted_exactly_[i]) trace_.expect_equal("uses", counted, uses);
    if (counted < uses) trace_.fail("a hash was used more often than its count says");
    trace_.expect_equal("touch callbacks", callbacks_run_[hash], model_->callbacks_run[hash]);
  }
  for (const auto& sequence : sequences_) {
    std::vector<Hash> names;
    for (const TokenBlock& block : sequence) names.push_back(block.sequence_hash());
    std::size_t prefix = 0;
    while (prefix < names.size() && model_->entries.contains(names[prefix])) ++prefix;
    trace_.expect_equal("registered prefix", registry_.registered_prefix(names), prefix);
  }
}

}  // namespace ashlar::block::property
