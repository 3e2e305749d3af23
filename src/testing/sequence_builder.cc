#include "ashlar/testing/sequence_builder.h"

#include "ashlar/base/check.h"

namespace ashlar::testing {

SequenceBuilder& SequenceBuilder::block_size(std::uint32_t tokens) {
  block_size_ = tokens;
  return *this;
}
SequenceBuilder& SequenceBuilder::salt(std::string_view lora, std::string_view tenant) {
  return hasher(tokens::SequenceHasher(tokens::Salt(lora, tenant)));
}
SequenceBuilder& SequenceBuilder::hasher(tokens::SequenceHasher hasher) {
  hasher_ = std::move(hasher);
  return *this;
}
SequenceBuilder& SequenceBuilder::iota(std::uint32_t start) {
  runs_.back().start = start;
  return *this;
}
SequenceBuilder& SequenceBuilder::tokens(std::size_t n) {
  runs_.back().tokens = n;
  return *this;
}
SequenceBuilder& SequenceBuilder::blocks(std::size_t n) {
  runs_.back().blocks = n;
  return *this;
}
SequenceBuilder& SequenceBuilder::tokens(std::span<const std::uint32_t> tokens) {
  runs_.back().given.assign(tokens.begin(), tokens.end());
  return *this;
}
SequenceBuilder& SequenceBuilder::then() {
  runs_.emplace_back();
  return *this;
}

tokens::TokenSequence SequenceBuilder::build() const {
  std::vector<std::uint32_t> all;
  for (const Run& run : runs_) {
    all.insert(all.end(), run.given.begin(), run.given.end());
    const std::size_t count = run.tokens + run.blocks * block_size_;
    for (std::size_t i = 0; i < count; ++i) all.push_back(run.start + static_cast<std::uint32_t>(i));
  }
  auto sequence = tokens::TokenSequence::create(std::span<const std::uint32_t>(all), block_size_, hasher_);
  ASHLAR_CHECK(sequence.has_value(), "no sequence: %s", sequence.error().to_string().c_str());
  ASHLAR_CHECK(sequence->size() == all.size(), "a sequence of %zu tokens was made of %zu", sequence->size(),
               all.size());
  return *std::move(sequence);
}

tokens::SequenceHash numbered_hash(std::uint32_t n, std::uint32_t position) {
  // Spread over all bits, like real hashes; multiplying by an odd number keeps them distinct.
  const std::uint64_t chain = (std::uint64_t{n} + 1) * 0x9E3779B97F4A7C15u;
  auto hash = tokens::SequenceHash::make(position, chain, 0);
  ASHLAR_CHECK(hash.has_value(), "no hash: %s", hash.error().to_string().c_str());
  return *hash;
}

std::vector<tokens::SequenceHash> numbered_hashes(std::uint32_t n) {
  std::vector<tokens::SequenceHash> hashes;
  hashes.reserve(n);
  for (std::uint32_t i = 0; i < n; ++i) hashes.push_back(numbered_hash(i, i));
  return hashes;
}

}  // namespace ashlar::testing
