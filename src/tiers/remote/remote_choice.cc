#include "tiers/remote/remote_choice.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "ashlar/base/check.h"
#include "base/sort_by_key.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

void RemotePool::Choice::add(const Sources& sources, std::size_t blocks) {
  for (const std::shared_ptr<Source>& source : sources) candidates_[source].blocks += blocks;
}

void RemotePool::Choice::compare() {
  double fastest = 0;
  for (const auto& [source, its] : candidates_)
    if (const double seconds = source->cost.seconds(chunk_bytes_); seconds > 0)
      fastest = fastest == 0 ? seconds : std::min(fastest, seconds);
  const Clock::TimePoint now = pool_.clock_.now();
  for (auto& [source, its] : candidates_) {
    its.slowness = source->cost.slowness(chunk_bytes_, fastest);
    its.due = tries_ && fastest > 0 && source->cost.is_due(chunk_bytes_, fastest, now);
    if (its.slowness == 1) best_ = std::max(best_, its.blocks);
  }
}

Result<std::vector<RemotePool::Part>> RemotePool::Choice::take(Sources sources) {
  // Other threads change the loads.
  sort_by_key(sources, [&](const std::shared_ptr<Source>& source) {
    const Candidate& its = candidates_[source];
    ASHLAR_DCHECK(its.blocks > 0, "a peer is chosen that was not compared");
    const bool good = its.blocks + 1 >= best_;
    const std::uint64_t coming = source->in_flight + its.planned;
    const bool is_tried = its.due && coming == 0;
    const double time = static_cast<double>(source->load + coming + chunk_bytes_) * its.slowness;
    return std::tuple(pool_.answers_.owes(source->peer->identity()), !good, good ? 0 : best_ - its.blocks,
                      !is_tried, time, source->number);
  });
  ASHLAR_TRY(std::vector<Part> parts, pool_.recipe(sources));
  for (const Part& part : parts) candidates_[part.source].planned += chunk_bytes_;
  return parts;
}

// ---- what it takes

std::uint64_t RemotePool::part_bytes(const Part& part) const {
  const layout::Shard& mine = blocks_->planes()[0].shard;
  const std::uint64_t all = std::uint64_t{mine.layers.count} * mine.heads.count;
  ASHLAR_DCHECK(std::uint64_t{part.part.layers.count} * part.part.heads.count <= all,
                "%u layers of %u heads are a part of %s", part.part.layers.count, part.part.heads.count,
                mine.to_string().c_str());
  return block_bytes() * part.part.layers.count * part.part.heads.count / all;
}

double RemotePool::seconds(std::span<const SequenceHash> hashes) {
  // Blocks with the same holders follow each other.
  std::vector<std::pair<Sources, std::size_t>> groups;
  std::vector<Number> last;
  for (const SequenceHash& hash : hashes) {
    std::vector<Number> numbers = numbers_of(hash);
    if (groups.empty() || numbers != last) groups.emplace_back(sources_of(numbers), 0);
    ++groups.back().second;
    last = std::move(numbers);
  }
  Choice choice(*this, false);
  for (auto& [sources, count] : groups) {
    std::erase_if(sources, [&](const auto& source) { return rests(*source); });
    choice.add(sources, count);
  }
  choice.compare();
  std::map<std::shared_ptr<Source>, std::uint64_t> bytes;
  for (const auto& [sources, count] : groups)
    for (std::size_t done = 0; done < count; done += Choice::kChunkBlocks) {
      const Result<std::vector<Part>> parts = choice.take(sources);
      if (!parts) break;
      for (const Part& part : *parts)
        bytes[part.source] += std::min(Choice::kChunkBlocks, count - done) * part_bytes(part);
    }
  double most = 0;  // they read at once
  for (const auto& [source, its] : bytes) most = std::max(most, source->cost.seconds(its));
  return most;
}

double RemotePool::block_seconds(const SequenceHash& hash, BlockCost& last) {
  std::vector<Number> numbers = numbers_of(hash);
  if (numbers == last.holders) return last.seconds;
  last = {.holders = std::move(numbers), .seconds = seconds({&hash, 1})};
  return last.seconds;
}

double RemotePool::least_block_seconds() const {
  Sources sources;
  {
    const MutexLock lock(mu_);
    sources = sources_;
  }
  double least = 0;
  for (const auto& source : sources) {
    const double its = source->set == nullptr || !source->peer->alive() || rests(*source)
                           ? 0
                           : source->cost.seconds(block_bytes());
    if (its > 0) least = least == 0 ? its : std::min(least, its);
  }
  return least;
}

void RemotePool::learn_costs(const ReadTimes& times) {
  for (const auto& [number, total] : times.totals())
    for (const std::shared_ptr<Source>& source : sources_of(std::span(&number, 1)))
      source->cost.observe(total.bytes, total.duration, clock_.now());
}

}  // namespace ashlar::tiers
