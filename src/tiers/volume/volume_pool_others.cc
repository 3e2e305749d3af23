// Blocks that are made from objects of other ranks.
#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/in_parallel.h"
#include "tiers/volume/volume_pool.h"
#include "tiers/volume/volume_pool_parts.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

// ---- origins

VolumePool::Place VolumePool::place_of(Origin origin) {
  // Equal sources make equal recipes.
  const auto same = [&](const std::shared_ptr<const Origin>& other) {
    return other->volumes == origin.volumes &&
           std::ranges::equal(other->recipe->parts, origin.recipe->parts, {}, &OtherShards::Part::source,
                              &OtherShards::Part::source);
  };
  ASHLAR_DCHECK(origin.volumes.size() == origin.recipe->parts.size(), "%zu volumes for %zu parts",
                origin.volumes.size(), origin.recipe->parts.size());
  const MutexLock lock(mu_);
  auto known = std::ranges::find_if(origins_, same);
  if (known == origins_.end())
    known = origins_.insert(known, std::make_shared<const Origin>(std::move(origin)));
  return kFirstOrigin + static_cast<Place>(known - origins_.begin());
}

std::shared_ptr<const VolumePool::Origin> VolumePool::origin_at(Place place) const {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(place >= kFirstOrigin && place - kFirstOrigin < origins_.size(),
               "place %u of a block; there are %zu origins", place, origins_.size());
  return origins_[place - kFirstOrigin];
}

std::vector<VolumePool::Number> VolumePool::volumes_at(Place place) const {
  if (place < kFirstOrigin) return {static_cast<Number>(place)};
  std::vector<Number> volumes;
  for (const Number number : origin_at(place)->volumes)
    if (std::ranges::find(volumes, number) == volumes.end()) volumes.push_back(number);
  return volumes;
}

bool VolumePool::is_on(Place place, Number number) const {
  if (place < kFirstOrigin) return place == number;
  const std::shared_ptr<const Origin> origin = origin_at(place);
  return std::ranges::find(origin->volumes, number) != origin->volumes.end();
}

std::vector<std::string> VolumePool::keys_of(const SequenceHash& hash) const {
  std::vector<std::string> keys = {object_of({.hash = hash}).key()};
  if (options_.others != nullptr)
    for (std::size_t i = 0; i < options_.others->size(); ++i) keys.push_back(options_.others->key(i, hash));
  return keys;
}

void VolumePool::note_refusal(const Error& error) {
  const MutexLock lock(mu_);
  last_refusal_ = error.message();
}

std::string VolumePool::last_refusal() const {
  const MutexLock lock(mu_);
  return last_refusal_;
}

// ---- probing

// Asks for the first block alone: most often nobody has it, and then nobody has those behind it.
std::optional<Error> VolumePool::find_in_others(const Asking& asking, std::span<const SequenceHash> names,
                                                std::span<std::optional<Place>> found) {
  const OtherShards& others = *options_.others;
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!found[i]) missing.push_back(i);
  for (std::size_t first = 0; first < missing.size();) {
    const std::span<const std::size_t> round =
        std::span(missing).subspan(first, first == 0 ? 1 : missing.size() - first);
    first += round.size();
    std::vector<std::string> keys;
    std::vector<SequenceHash> owners;
    for (const std::size_t i : round)
      for (std::size_t source = 0; source < others.size(); ++source) {
        keys.push_back(others.key(source, names[i]));
        owners.push_back(names[i]);
      }
    const std::vector<std::optional<Number>> holding = holders(asking, keys, owners);
    for (std::size_t at = 0; at < round.size(); ++at) {
      const auto its = std::span(holding).subspan(at * others.size(), others.size());
      std::vector<bool> present;
      for (const std::optional<Number>& one : its) present.push_back(one.has_value());
      if (std::ranges::find(present, true) == present.end()) return std::nullopt;
      Result<std::shared_ptr<const OtherShards::Recipe>> recipe = others.recipe(present);
      if (!recipe) {
        Error refused = make_error(recipe.error().code(), "block %s: %s",
                                   names[round[at]].to_string().c_str(), recipe.error().message().c_str());
        note_refusal(refused);
        return refused;
      }
      Origin origin{.recipe = *std::move(recipe), .volumes = {}};
      for (const OtherShards::Part& part : origin.recipe->parts) origin.volumes.push_back(*its[part.source]);
      found[round[at]] = place_of(std::move(origin));
    }
  }
  return std::nullopt;
}

// ---- reading

// Blocks of one origin, on their way to host memory.
struct VolumePool::OthersReading {
  struct Outcome {
    std::optional<Error> error = {};
    Moved how = Moved::kArrived;
    std::size_t part = 0;  // that failed
  };

  Place place;
  const Origin& origin;
  std::vector<const Use*> volumes;  // of the parts
  CallLimits limits;
  std::span<const std::size_t> members;  // of the call
  std::span<const SequenceHash> hashes;  // of the call
  std::span<block::Hold> holds;          // of the call
  BytePool& to;
  std::unique_ptr<Reservation> reservation;
  std::vector<Outcome> outcomes = {};
  std::vector<TierRecord> records = {};  // of the valid ones
};

void VolumePool::get_others(Place place, std::span<const std::size_t> members,
                            std::span<const SequenceHash> hashes, std::span<block::Hold> holds, BytePool& to,
                            MoveReport& report, const CallLimits& limits) {
  const auto fail = [&](const Error& error, Moved how = Moved::kFailed) {
    if (!report.error) report.error = error;
    for (const std::size_t i : members) report.blocks[i] = how;
  };
  if (const Result<void> wanted = still_wanted(limits, clock_, members.size()); !wanted)
    return fail(wanted.error(), Moved::kStopped);
  const std::shared_ptr<const Origin> origin = origin_at(place);
  std::map<Number, Use> uses;
  UseLimits while_used(limits);
  for (const Number number : origin->volumes) {
    if (uses.contains(number)) continue;
    Use volume = use(number);
    if (!volume) return;  // detached
    if (rests(*volume))
      return fail(make_error(ErrorCode::kUnavailable, "%s could not be reached and is left alone for a while",
                             volume->volume->describe().c_str()));
    while_used.add(volume);
    uses.emplace(number, std::move(volume));
  }
  Result<std::unique_ptr<Reservation>> reserved = to.reserve(members.size());
  if (!reserved) return fail(reserved.error());
  OthersReading reading{.place = place,
                        .origin = *origin,
                        .volumes = {},
                        .limits = while_used.get(),
                        .members = members,
                        .hashes = hashes,
                        .holds = holds,
                        .to = to,
                        .reservation = *std::move(reserved)};
  for (const Number number : origin->volumes) reading.volumes.push_back(&uses.at(number));
  reading.outcomes.resize(members.size());
  reading.records.resize(members.size());
  const std::size_t threads = std::min<std::size_t>(
      {members.size(), kReadThreads, std::max(1u, std::thread::hardware_concurrency())});
  in_parallel(threads, threads, [&](std::size_t part) {
    read_others(reading, members.size() * part / threads, members.size() * (part + 1) / threads);
  });
  for (std::size_t i = 0; i < members.size(); ++i) settle_others(reading, i, report, limits);
  const Published published =
      reading.reservation->publish(reading.records, block::KvReady::asserted_by_caller());
  if (published.error && !report.error) report.error = published.error;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (published.registered[i]) {
      report.blocks[members[i]] = Moved::kArrived;
      report.bytes += block_bytes();
    } else if (!reading.records[i].empty()) {
      report.blocks[members[i]] = Moved::kFailed;
    }
  }
}

// Part by part, so that few objects are in memory at once.
void VolumePool::read_others(OthersReading& reading, std::size_t first, std::size_t end) {
  const OtherShards& others = *options_.others;
  const auto hash_of = [&](std::size_t i) -> const SequenceHash& {
    return reading.hashes[reading.members[i]];
  };
  const Images blocks(std::vector<std::string>(end - first), block_bytes());
  for (std::size_t at = 0; at < reading.volumes.size(); ++at) {
    const OtherShards::Part& part = reading.origin.recipe->parts[at];
    const auto failed = [&](std::size_t i, Error error, Moved how) {
      reading.outcomes[i] = {std::move(error), how, at};
    };
    std::vector<std::size_t> left;
    for (std::size_t i = first; i < end; ++i)
      if (!reading.outcomes[i].error) left.push_back(i);
    const std::span<const std::uint64_t> sizes = others.payload_bytes(part.source);
    for (std::size_t size = 0; size < sizes.size() && !left.empty(); ++size) {
      std::vector<std::string> keys;
      keys.reserve(left.size());
      for (const std::size_t i : left) keys.push_back(others.key(part.source, hash_of(i)));
      const auto images = std::make_shared<const Images>(std::move(keys), sizes[size]);
      const std::vector<Result<void>> got = call<Result<void>>(
          *reading.volumes[at], left.size(), reading.limits,
          [images](Volume& its, const CallLimits& how) { return its.get(images->reads, how); });
      std::vector<std::size_t> again;
      for (std::size_t k = 0; k < left.size(); ++k) {
        const std::size_t i = left[k];
        if (!got[k]) {
          const ErrorCode code = got[k].error().code();
          if (code == ErrorCode::kCorruption && size + 1 < sizes.size()) {
            again.push_back(i);  // it may have another size
          } else {
            failed(i, got[k].error(),
                   code == ErrorCode::kNotFound     ? Moved::kGone
                   : code == ErrorCode::kCorruption ? Moved::kDamaged
                                                    : Moved::kFailed);
          }
          continue;
        }
        const Result<VolumeObject> found =
            others.take(part, hash_of(i), images->whole[k], blocks.block(i - first));
        if (!found) {
          const ErrorCode code = found.error().code();
          failed(i, found.error(),
                 code == ErrorCode::kCorruption    ? Moved::kDamaged
                 : code == ErrorCode::kUnsupported ? Moved::kFailed
                                                   : Moved::kOtherShards);
          continue;
        }
        TierRecord& record = reading.records[i];
        const TierRecord its = TierRecord::read_from(*found);
        if (record.empty()) {
          record = its;
        } else if (!record.agrees_with(its)) {
          failed(i,
                 make_error(ErrorCode::kInvalidArgument,
                            "block %s: the objects of its ranks hold different texts; the one of %s has "
                            "another %s",
                            hash_of(i).to_string().c_str(), others.shard(part.source).to_string().c_str(),
                            record.prefix.agrees_with(its.prefix) ? "salt" : "prefix digest"),
                 Moved::kOtherShards);
        } else {
          record.learn_text(its.text());
          record.retention.priority = std::max(record.retention.priority, found->priority);
        }
      }
      left = std::move(again);
    }
  }
  for (std::size_t i = first; i < end; ++i) {
    if (reading.outcomes[i].error) continue;
    const BytePool::Place slot = reading.to.place(reading.reservation->ids()[i]);
    blocks.scatter(i - first, *reading.to.blocks(slot.part), slot.slot);
    keep_values(reading.holds[reading.members[i]], reading.records[i]);
  }
}

void VolumePool::settle_others(OthersReading& reading, std::size_t i, MoveReport& report,
                               const CallLimits& limits) {
  const OthersReading::Outcome& outcome = reading.outcomes[i];
  if (!outcome.error) {
    for (const Use* const volume : reading.volumes) (*volume)->got.add();
    return;
  }
  reading.records[i] = {};
  const std::size_t member = reading.members[i];
  const Use& volume = *reading.volumes[outcome.part];
  const bool stopped = is_stop(*outcome.error, limits);
  // Another volume of the block was detached, which ends the wait for this one.
  const bool left = !stopped && is_stop(*outcome.error, reading.limits);
  const Error error =
      left ? make_error(ErrorCode::kUnavailable, "a volume with a part of block %s was detached while in use",
                        reading.hashes[member].to_string().c_str())
           : *outcome.error;
  report.blocks[member] = stopped ? Moved::kStopped : outcome.how;
  if (outcome.how != Moved::kGone && !report.error) report.error = error;
  if (outcome.how == Moved::kFailed) {
    if (!stopped && !left) note(*volume, error);
    return;
  }
  if (outcome.how == Moved::kDamaged) {
    note(*volume, error);
    ASHLAR_LOG(LogLevel::kError, "tiers", "%s: %s; the object belongs to %s and stays",
               volume->volume->describe().c_str(), error.to_string().c_str(),
               options_.others->shard(reading.origin.recipe->parts[outcome.part].source).to_string().c_str());
  }
  if (outcome.how == Moved::kOtherShards) note_refusal(error);
  reading.holds[member] = {};
  forget(reading.hashes[member], reading.place);
}

}  // namespace ashlar::tiers
