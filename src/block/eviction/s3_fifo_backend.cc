#include "block/eviction/s3_fifo_backend.h"

#include <algorithm>
#include <deque>

#include "ashlar/base/check.h"
#include "block/registry/hash_mix.h"

namespace ashlar::block {

// ---- ghosts

GhostNames::GhostNames(std::uint32_t names)
    : names_(names),
      ghosts_(std::max<std::size_t>((names * kPlacesPerName + kPlaces - 1) / kPlaces, 1) * kPlaces) {}

std::span<GhostNames::Ghost> GhostNames::bucket_of(std::uint64_t mix) noexcept {
  const std::uint64_t buckets = ghosts_.size() / kPlaces;
  const auto bucket = static_cast<std::size_t>(static_cast<std::uint32_t>(mix) * buckets >> 32);
  return std::span(ghosts_).subspan(bucket * kPlaces, kPlaces);
}

void GhostNames::put(const tokens::SequenceHash& hash) noexcept {
  const std::uint64_t mix = HashMix::of(hash);
  if (++last_ == 0) ++last_;
  Ghost* oldest = nullptr;
  for (Ghost& ghost : bucket_of(mix)) {
    if (ghost.number == 0) {
      oldest = &ghost;
      break;
    }
    if (oldest == nullptr || last_ - ghost.number > last_ - oldest->number) oldest = &ghost;
  }
  *oldest = {static_cast<std::uint32_t>(mix >> 32), last_};
}

bool GhostNames::take(const tokens::SequenceHash& hash) noexcept {
  const std::uint64_t mix = HashMix::of(hash);
  for (Ghost& ghost : bucket_of(mix)) {
    if (ghost.number == 0 || ghost.tag != static_cast<std::uint32_t>(mix >> 32)) continue;
    const bool young = last_ - ghost.number < names_;
    ghost = {};
    return young;
  }
  return false;
}

// ---- the queues

S3FifoBackend::S3FifoBackend(const EvictionContext& context)
    : small_target_(context.block_count / kSmallShare),
      entries_(context.block_count),
      hashes_(context.block_count),
      small_(context.block_count),
      main_(context.block_count),
      ghosts_(context.block_count) {}

void S3FifoBackend::enter(BlockId id, Queue queue) {
  Entry& entry = entries_[id.value()];
  small_blocks_ -= entry.queue == Queue::kSmall ? 1 : 0;
  small_blocks_ += queue == Queue::kSmall ? 1 : 0;
  entry.queue = queue;
  entry.turn = ++turn_;
}

void S3FifoBackend::forget(BlockId id) {
  Entry& entry = entries_[id.value()];
  ASHLAR_DCHECK(entry.queue != Queue::kSmall || small_blocks_ > 0, "more blocks leave than came");
  small_blocks_ -= entry.queue == Queue::kSmall ? 1 : 0;
  entry = {};
}

void S3FifoBackend::registered(BlockId id, const tokens::SequenceHash& hash) {
  forget(id);
  enter(id, ghosts_.take(hash) ? Queue::kMain : Queue::kSmall);
}

void S3FifoBackend::insert(BlockId id, const tokens::SequenceHash& hash) {
  if (entries_[id.value()].queue == Queue::kNone) registered(id, hash);
  Entry& entry = entries_[id.value()];
  if (entry.released) use(id);
  entry.released = true;
  hashes_[id.value()] = hash;
  heap_of(id).push(id, entry.turn);
}

std::optional<BlockId> S3FifoBackend::pop() {
  for (;;) {
    const bool from_small = !small_.empty() && (small_blocks_ > small_target_ || main_.empty());
    const std::optional<BlockId> oldest = from_small ? small_.pop() : main_.pop();
    if (!oldest) return std::nullopt;
    Entry& entry = entries_[oldest->value()];
    if (from_small && entry.uses >= kUsesToStay) {
      entry.uses = 0;
    } else if (!from_small && entry.uses > 0) {
      --entry.uses;
    } else {
      if (from_small) ghosts_.put(hashes_[oldest->value()]);
      forget(*oldest);
      return oldest;
    }
    enter(*oldest, Queue::kMain);
    main_.push(*oldest, entry.turn);
  }
}

std::size_t S3FifoBackend::peek(std::span<BlockId> out) const {
  out = out.first(std::min(out.size(), size()));
  std::size_t look = 2 * out.size() + 16;
  while (!foretell(out, look)) look *= 4;
  return out.size();
}

bool S3FifoBackend::foretell(std::span<BlockId> out, std::size_t look) const {
  std::vector<BlockId> small(std::min(look, small_.size()));
  small_.peek(small);
  std::vector<BlockId> first(std::min(look, main_.size()));
  main_.peek(first);
  struct Place {
    BlockId id;
    std::uint8_t uses;
  };
  std::deque<Place> main;
  for (const BlockId id : first) main.push_back({id, entries_[id.value()].uses});
  const std::size_t unseen = main_.size() - main.size();  // before what is appended here
  std::size_t seen = main.size();
  std::size_t at = 0;  // in small
  std::uint32_t small_blocks = small_blocks_;
  for (std::size_t count = 0; count < out.size();) {
    const std::size_t small_left = small_.size() - at;
    const bool from_small = small_left != 0 && (small_blocks > small_target_ || main.empty());
    if (from_small) {
      if (main.empty() && unseen != 0 && small_blocks <= small_target_) return false;
      if (at == small.size()) return false;
      const BlockId id = small[at++];
      --small_blocks;
      if (entries_[id.value()].uses >= kUsesToStay) {
        main.push_back({id, 0});
      } else {
        out[count++] = id;
      }
      continue;
    }
    if (seen == 0 && unseen != 0) return false;
    ASHLAR_CHECK(!main.empty(), "a victim was promised");
    const Place place = main.front();
    main.pop_front();
    if (seen != 0) --seen;
    if (place.uses > 0) {
      main.push_back({place.id, static_cast<std::uint8_t>(place.uses - 1)});
    } else {
      out[count++] = place.id;
    }
  }
  return true;
}

}  // namespace ashlar::block
