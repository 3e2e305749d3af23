#include "tiers/volume/volume_pool.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/interleaving.h"
#include "tiers/volume/volume_pool_parts.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {

using block::BlockId;
using events::G4;
using tokens::SequenceHash;

namespace {

// Hashes probed at a time.
constexpr std::size_t kProbe = 64;
// After this many consecutive calls abandoned at their deadline a volume counts as unreachable.
constexpr std::size_t kMostUnanswered = 3;

}  // namespace

VolumePool::VolumePool(block::BlockManager<G4>& manager, const Options& options)
    : ManagedPool(manager, options.clock == nullptr ? Clock::real() : *options.clock),
      options_(options),
      clock_(options.clock == nullptr ? Clock::real() : *options.clock),
      where_(manager.total_blocks()),
      claims_(std::make_shared<ObjectClaims>()),
      calls_(std::make_unique<VolumeCalls>()) {}

VolumePool::~VolumePool() {
  stop();
}

void VolumePool::stop() {
  std::vector<std::shared_ptr<Attached>> all;
  {
    const MutexLock lock(mu_);
    stopped_ = true;
    all = volumes_;
  }
  for (const std::shared_ptr<Attached>& one : all)
    if (one != nullptr) one->stop.request_stop();
}

// ---- volumes

Result<void> VolumePool::attach(std::string name, std::unique_ptr<Volume> volume, const VolumeUse& use) {
  if (name.empty())
    return make_error(ErrorCode::kInvalidArgument, "a volume needs a name, by which it is detached");
  const MutexLock lock(mu_);
  for (const std::shared_ptr<Attached>& other : volumes_)
    if (other != nullptr && other->name == name)
      return make_error(ErrorCode::kAlreadyExists, "a volume '%s' is attached: %s", name.c_str(),
                        other->volume->describe().c_str());
  if (volumes_.size() > std::numeric_limits<Number>::max())
    return make_error(ErrorCode::kCapacity, "%zu volumes have been attached; restart to attach more",
                      volumes_.size());
  auto attached = std::make_shared<Attached>();
  attached->salt = XXH3_64bits(name.data(), name.size());
  attached->name = std::move(name);
  attached->volume = std::move(volume);
  attached->use = use;
  volumes_.push_back(std::move(attached));
  return {};
}

Result<std::size_t> VolumePool::detach(std::string_view name, std::optional<Clock::TimePoint> until) {
  Number number = 0;
  std::shared_ptr<Attached> gone;  // destroyed outside the lock
  {
    const MutexLock lock(mu_);
    const auto found = std::ranges::find_if(volumes_, [&](const std::shared_ptr<Attached>& one) {
      return one != nullptr && one->name == name && !one->leaving;
    });
    if (found == volumes_.end())
      return make_error(ErrorCode::kNotFound, "no volume '%s' is attached", std::string(name).c_str());
    number = static_cast<Number>(found - volumes_.begin());
    gone = *found;
    gone->leaving = true;
    while (gone->users != 0 && !(until && clock_.now() >= *until)) {
      if (until) {
        clock_.wait_until(unused_, mu_, *until);
      } else {
        unused_.wait(mu_);
      }
    }
  }
  gone->stop.request_stop();
  {
    const MutexLock lock(mu_);
    while (gone->users != 0) unused_.wait(mu_);
    ASHLAR_CHECK(volumes_[number] == gone, "volume %u was replaced while it was detached", unsigned{number});
    detached_[gone->name].add(*gone);
    volumes_[number] = nullptr;
  }
  std::vector<SequenceHash> hashes;
  manager_.for_each_registered([&](const SequenceHash& hash, BlockId) { hashes.push_back(hash); });
  std::size_t forgotten = 0;
  for (const SequenceHash& hash : hashes) {
    const std::optional<Place> place = where(hash);
    if (place && is_on(*place, number) && forget(hash, *place)) ++forgotten;
  }
  return forgotten;
}

VolumePool::Use VolumePool::use(Number number) {
  const MutexLock lock(mu_);
  if (stopped_ || number >= volumes_.size() || volumes_[number] == nullptr || volumes_[number]->leaving)
    return {};
  ++volumes_[number]->users;
  return Use(*this, volumes_[number]);
}

std::vector<std::pair<VolumePool::Number, VolumePool::Use>> VolumePool::use_all() {
  std::vector<std::pair<Number, Use>> all;
  const MutexLock lock(mu_);
  for (std::size_t i = 0; i < volumes_.size(); ++i) {
    if (stopped_ || volumes_[i] == nullptr || volumes_[i]->leaving) continue;
    ++volumes_[i]->users;
    all.emplace_back(static_cast<Number>(i), Use(*this, volumes_[i]));
  }
  return all;
}

std::optional<VolumePool::Place> VolumePool::where(const SequenceHash& hash) {
  const std::optional<block::Hold> held = hold(hash);
  if (!held) return std::nullopt;
  return where_[held->block_id().value()].load();
}

bool VolumePool::rests(const Attached& volume) const {
  // relaxed, here and below: the value publishes nothing.
  return clock_.now() < volume.rests_until.load(std::memory_order_relaxed);
}

void VolumePool::note(Attached& volume, const Error& error) const {
  volume.failed.add();
  if (error.code() == ErrorCode::kUnavailable) rest(volume, error);
}

void VolumePool::rest(Attached& volume, const Error& error) const {
  if (options_.rest <= Clock::Duration::zero()) return;
  if (!rests(volume))
    ASHLAR_LOG(LogLevel::kWarn, "tiers", "%s cannot be reached and is left alone for a while: %s",
               volume.volume->describe().c_str(), error.to_string().c_str());
  volume.rests_until.store(clock_.now() + options_.rest, std::memory_order_relaxed);
}

CallLimits VolumePool::bounded(const CallLimits& limits) const {
  CallLimits all = limits;
  if (options_.call_limit <= Clock::Duration::zero()) return all;
  const Clock::TimePoint latest = clock_.now() + options_.call_limit;
  all.deadline = std::min(limits.deadline.value_or(latest), latest);
  return all;
}

bool VolumePool::is_stop(const Error& error, const CallLimits& limits) const {
  const bool by_limits = error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kCancelled;
  return by_limits && !limits.check(clock_);
}

Error VolumePool::why_left(Attached& volume, const CallLimits& limits) const {
  const std::string name = volume.volume->describe();
  if (volume.stop.stop_requested())
    return make_error(ErrorCode::kUnavailable, "%s was detached while in use", name.c_str());
  const Result<void> wanted = limits.check(clock_);
  if (wanted) {
    volume.unanswered = 0;  // it rests for this
    return make_error(
        ErrorCode::kUnavailable, "%s did not answer within %lld ms", name.c_str(),
        static_cast<long long>(
            std::chrono::duration_cast<std::chrono::milliseconds>(options_.call_limit).count()));
  }
  Error error = make_error(wanted.error().code(), "%s: %s", name.c_str(), wanted.error().message().c_str());
  if (error.code() == ErrorCode::kTimeout && volume.unanswered.fetch_add(1) + 1 >= kMostUnanswered) {
    volume.unanswered = 0;
    rest(volume, error);
  }
  return error;
}

std::vector<Result<void>> VolumePool::remove_keys(const Use& volume, std::vector<std::string> keys,
                                                  const CallLimits& limits,
                                                  std::shared_ptr<const void> claim) {
  const std::size_t count = keys.size();
  return call<Result<void>>(
      volume, count, limits,
      [keys = std::move(keys), claim = std::move(claim)](Volume& its, const CallLimits& how) {
        const std::vector<std::string_view> views(keys.begin(), keys.end());
        return its.remove(views, how);
      });
}

// Each volume rates the hash; the highest rating wins. So attaching or detaching a volume moves no other
// volume's blocks.
std::optional<VolumePool::Number> VolumePool::choose(const SequenceHash& hash) const {
  std::optional<Number> best;
  std::uint64_t best_rate = 0;
  const MutexLock lock(mu_);
  for (std::size_t i = 0; i < volumes_.size(); ++i) {
    if (volumes_[i] == nullptr || volumes_[i]->leaving || !volumes_[i]->use.write || rests(*volumes_[i]))
      continue;
    const std::array<std::uint8_t, 16> bytes = hash.to_bytes();
    const std::uint64_t rate = XXH3_64bits_withSeed(bytes.data(), bytes.size(), volumes_[i]->salt);
    if (best && rate <= best_rate) continue;
    best = static_cast<Number>(i);
    best_rate = rate;
  }
  return best;
}

std::vector<VolumeStatus> VolumePool::volumes() const {
  std::map<Number, std::size_t> blocks;
  std::map<Place, std::size_t> at;
  manager_.for_each_registered([&](const SequenceHash&, BlockId id) { ++at[where_[id.value()]]; });
  for (const auto& [place, count] : at)
    for (const Number number : volumes_at(place)) blocks[number] += count;
  std::vector<VolumeStatus> out;
  const MutexLock lock(mu_);
  for (std::size_t i = 0; i < volumes_.size(); ++i)
    if (const Attached* one = volumes_[i].get(); one != nullptr)
      out.push_back({static_cast<Number>(i), one->name, one->volume->describe(), one->use.write,
                     blocks[static_cast<Number>(i)], one->put.value(), one->got.value(),
                     one->failed.value()});
  return out;
}

std::string VolumePool::volume_name(std::uint16_t number) const {
  const MutexLock lock(mu_);
  return number < volumes_.size() && volumes_[number] != nullptr ? volumes_[number]->name : std::string();
}

Result<void> VolumePool::add_metrics(MetricRegistry& metrics, const MetricLabels& labels,
                                     std::vector<MetricRegistration>& out) const {
  struct Count {
    const char* name;
    const char* help;
    std::uint64_t Counts::* count;
  };
  static constexpr Count kCounts[] = {
      {"ashlar_volume_put_total", "Blocks written to the volume.", &Counts::put},
      {"ashlar_volume_got_total", "Blocks read from the volume.", &Counts::got},
      {"ashlar_volume_failures_total", "Blocks whose put or get failed.", &Counts::failed},
  };
  for (const Count& one : kCounts) {
    const auto by_volume = [this, count = one.count] {
      std::map<std::string, std::uint64_t> values;
      for (const auto& [name, counts] : counts_by_name()) values.emplace(name, counts.*count);
      return values;
    };
    ASHLAR_TRY(MetricRegistration added,
               metrics.add_counters({one.name, one.help, labels}, "volume", by_volume));
    out.push_back(std::move(added));
  }
  return {};
}

std::map<std::string, VolumePool::Counts> VolumePool::counts_by_name() const {
  const MutexLock lock(mu_);
  std::map<std::string, Counts> all = detached_;
  for (const std::shared_ptr<Attached>& one : volumes_)
    if (one != nullptr) all[one->name].add(*one);
  return all;
}

void VolumePool::Counts::add(const Attached& volume) {
  put += volume.put.value();
  got += volume.got.value();
  failed += volume.failed.value();
}

void VolumePool::check_invariants() const {
  claims_->check_invariants();
  std::vector<std::pair<SequenceHash, BlockId>> registered;
  manager_.for_each_registered(
      [&](const SequenceHash& hash, BlockId id) { registered.emplace_back(hash, id); });
  std::size_t attached = 0;
  {
    const MutexLock lock(mu_);
    attached = volumes_.size();
  }
  for (const auto& [hash, id] : registered) {
    for (const Number number : volumes_at(where_[id.value()]))
      ASHLAR_CHECK(number < attached, "block %u is on volume %u; %zu were ever attached", id.value(),
                   unsigned{number}, attached);
    ASHLAR_CHECK(records_.last(id) == hash, "block %u is registered as %s and recorded as %s", id.value(),
                 hash.to_string().c_str(), records_.last(id).to_string().c_str());
  }
  std::unordered_set<std::string_view> names;
  const MutexLock lock(mu_);
  for (const std::shared_ptr<Attached>& one : volumes_) {
    if (one == nullptr) continue;
    ASHLAR_CHECK(names.insert(one->name).second, "two volumes are attached as '%s'", one->name.c_str());
    ASHLAR_CHECK(one->users == 0 && !one->leaving, "volume '%s' has %zu users while no call runs",
                 one->name.c_str(), one->users);
    ASHLAR_CHECK(one->unanswered < kMostUnanswered, "volume '%s' left %zu calls unanswered and does not rest",
                 one->name.c_str(), one->unanswered.load());
  }
}

// ---- known blocks

VolumeObject VolumePool::object_of(const TierRecord& record) const {
  VolumeObject object = options_.shape;
  record.write_to(object);
  if (record.checksum) object.checksum = *record.checksum;
  return object;
}

void VolumePool::keep_values(const block::Hold& hold, TierRecord& read) const {
  const TierRecord known = record(hold);
  const bool all = knows_values(hold);
  if (all || known.retention != block::BlockRetention()) read.retention = known.retention;
  if (all || known.metadata != 0) read.metadata = known.metadata;
}

Result<ReservedBlocks<G4>> VolumePool::take(std::size_t n, const CallLimits& limits) {
  auto taken = manager_.allocate_blocks_with_evictions(n);
  if (!taken) return taken.error().to_error();
  if (options_.remove_evicted && !taken->evicted.empty()) {
    const std::unordered_set<SequenceHash> evicted(taken->evicted.begin(), taken->evicted.end());
    std::vector<std::pair<Number, SequenceHash>> gone;
    for (const auto& block : taken->blocks)
      if (const SequenceHash hash = records_.last(block.block_id()); evicted.contains(hash))
        if (const Place place = where_[block.block_id().value()]; place < kFirstOrigin)
          gone.emplace_back(static_cast<Number>(place), hash);
    interleaving_point("volume_pool.evicted");
    remove_evicted(gone, limits);
  }
  return ReservedBlocks<G4>(std::move(taken->blocks));
}

// Another call may have put the object again since the eviction, or be about to: that object stays.
void VolumePool::remove_evicted(std::span<const std::pair<Number, SequenceHash>> evicted,
                                const CallLimits& limits) {
  const std::shared_ptr<const ObjectClaims::Claim> claim =
      claims_->take_free({evicted.begin(), evicted.end()}, ObjectClaims::Kind::kAlone);
  std::map<Number, std::vector<std::string>> gone;
  for (const auto& [number, hash] : evicted)
    if (claim->has({number, hash}) && where(hash) != number)
      gone[number].push_back(object_of({.hash = hash}).key());
  for (auto& [number, keys] : gone) {
    const Use volume = use(number);
    if (!volume || !volume->use.write) continue;
    for (const Result<void>& removed : remove_keys(volume, std::move(keys), limits, claim))
      if (!removed)
        ASHLAR_LOG(LogLevel::kWarn, "tiers", "an evicted object stays on %s: %s",
                   volume->volume->describe().c_str(), removed.error().to_string().c_str());
  }
}

bool VolumePool::forget(const SequenceHash& hash, Place place) {
  if (where(hash) != place) return false;
  auto block = find(hash);
  if (!block || where_[block->block_id().value()] != place) return false;
  block->set_reset_on_release(true);
  records_.removed(std::span(&hash, 1));
  return true;
}

Result<void> VolumePool::remove(const SequenceHash& hash) {
  if (!has(hash)) return not_here(hash);
  return remove_all(std::span(&hash, 1));
}

// An evicted block's object may still be on its volume, and not on the one chosen for a new copy. Objects
// from which the block would be made again go too.
Result<void> VolumePool::remove_all(std::span<const SequenceHash> hashes, const CallLimits& limits) {
  if (hashes.empty()) return {};
  std::vector<std::string> keys;
  for (const SequenceHash& hash : hashes) std::ranges::move(keys_of(hash), std::back_inserter(keys));
  const std::size_t per_hash = keys.size() / hashes.size();
  std::optional<Error> error;
  const auto note_error = [&](const Error& one) {
    if (!error) error = one;
  };
  std::vector<Number> numbers;
  for (const auto& [number, volume] : use_all()) numbers.push_back(number);
  for (const Number number : numbers) {
    const Use volume = use(number);  // one at a time: a silent volume keeps no other attached
    if (!volume) {
      note_error(make_error(ErrorCode::kUnavailable,
                            "a volume was detached while blocks were removed; its objects stay"));
      continue;
    }
    if (volume->use.write) {
      std::vector<ObjectClaims::Object> objects;
      for (const SequenceHash& hash : hashes) objects.emplace_back(number, hash);
      const UseLimits while_used(limits, volume);
      const std::shared_ptr<const ObjectClaims::Claim> claim =
          claims_->take(std::move(objects), ObjectClaims::Kind::kAlone, bounded(while_used.get()), clock_);
      if (claim == nullptr) {
        const Result<void> wanted = limits.check(clock_);
        note_error(!wanted                         ? wanted.error()
                   : volume->stop.stop_requested() ? why_left(*volume, limits)
                                                   : make_error(ErrorCode::kUnavailable,
                                                                "%s: an object to remove is still "
                                                                "being put; repeat it",
                                                                volume->volume->describe().c_str()));
        continue;
      }
      const std::vector<Result<void>> removed = remove_keys(volume, keys, limits, claim);
      for (std::size_t i = 0; i < hashes.size(); ++i) {
        const std::optional<Place> place = where(hashes[i]);
        bool all = true;
        for (const Result<void>& one : std::span(removed).subspan(i * per_hash, per_hash)) {
          if (!one) note_error(one.error());
          all &= one.has_value();
        }
        const bool gone = place == Place{number} ? removed[i * per_hash].has_value() : all;
        if (gone && place && is_on(*place, number)) forget(hashes[i], *place);
      }
    } else if (!error) {
      // Asks the volume: the object may be unknown to this process.
      const auto contains = [keys](Volume& its, const CallLimits& how) {
        const std::vector<std::string_view> views(keys.begin(), keys.end());
        return its.contains(views, how);
      };
      for (const Result<bool>& there : call<Result<bool>>(volume, keys.size(), limits, contains)) {
        if (there && !*there) continue;
        note_error(there ? make_error(ErrorCode::kUnsupported, "volume '%s' is read-only; its objects stay",
                                      volume->name.c_str())
                         : there.error());
        break;
      }
    }
  }
  return error ? Result<void>(*error) : Result<void>();
}

std::size_t VolumePool::probe(std::span<const SequenceHash> hashes, const CallLimits& limits,
                              const BlockLineage& first, std::optional<Error>* refused) {
  block::BlockList<block::ImmutableBlock<G4>> known;  // held, so that other calls do not evict them
  std::size_t asked = 0;
  while (known.size() < hashes.size()) {
    if (auto block = find(hashes[known.size()])) {
      known.push_back(*std::move(block));
      continue;
    }
    if (known.size() < asked) break;  // absent everywhere, or no room to register it
    if (!limits.check(clock_)) break;
    std::vector<TierRecord> wanted;
    const std::size_t most = std::min(kProbe, capacity() - known.size());
    for (asked = known.size(); asked < hashes.size() && wanted.size() < most; ++asked) {
      if (has(hashes[asked])) continue;
      TierRecord& record = wanted.emplace_back(TierRecord{.hash = hashes[asked]});
      const std::optional<SequenceHash> parent = asked == 0 ? first.parent : hashes[asked - 1];
      if (parent && parent->can_precede(record.hash)) record.parent = *parent;
      record.root = hashes[0].position() == 0 ? hashes[0] : first.root;
      if (asked < first.locals.size()) record.local = first.locals[asked];
      record.group = first.group;
    }
    if (wanted.empty()) break;
    std::optional<Error> unusable = ask(std::move(wanted), limits);
    if (refused != nullptr) *refused = std::move(unusable);
  }
  return known.size();
}

std::optional<Error> VolumePool::ask(std::vector<TierRecord> wanted, const CallLimits& limits) {
  std::vector<SequenceHash> names;
  names.reserve(wanted.size());
  for (const TierRecord& record : wanted) names.push_back(record.hash);
  std::vector<std::string> keys;
  keys.reserve(names.size());
  for (const SequenceHash& hash : names) keys.push_back(object_of({.hash = hash}).key());
  const std::vector<std::pair<Number, Use>> uses = use_all();  // until the found blocks are registered
  UseLimits while_used(limits);
  std::vector<ObjectClaims::Object> objects;
  for (const auto& [number, volume] : uses) {
    while_used.add(volume);
    for (const SequenceHash& hash : names) objects.emplace_back(number, hash);
  }
  const std::shared_ptr<const ObjectClaims::Claim> claim =
      claims_->take_free(std::move(objects), ObjectClaims::Kind::kShared);
  const Asking asking{.uses = uses, .claim = *claim, .limits = while_used.get()};
  std::vector<std::optional<Place>> found;
  for (const std::optional<Number>& number : holders(asking, keys, names))
    found.push_back(number ? std::optional<Place>(*number) : std::nullopt);
  std::optional<Error> refused;
  if (options_.others != nullptr) refused = find_in_others(asking, names, found);
  const auto first_missing = std::ranges::find_if(found, [](const auto& one) { return !one; });
  names.resize(static_cast<std::size_t>(first_missing - found.begin()));
  if (names.empty()) return refused;
  Result<ReservedBlocks<G4>> taken = take(names.size(), asking.limits);
  if (!taken) return refused;
  std::vector<TierRecord> records;
  std::vector<Place> places;
  for (std::size_t i = 0; i < names.size(); ++i) {
    records.push_back(wanted[i]);
    places.push_back(*found[i]);
  }
  MoveReport report;
  report.blocks.resize(names.size());
  const std::vector<std::size_t> members(names.size());
  publish(*taken, records, places, report, members);
  return refused;
}

// Asks all volumes at once: a silent one does not delay the others' answers.
std::vector<std::optional<VolumePool::Number>> VolumePool::holders(const Asking& asking,
                                                                   const std::vector<std::string>& keys,
                                                                   std::span<const SequenceHash> names) {
  ASHLAR_DCHECK(keys.size() == names.size(), "%zu keys for %zu names", keys.size(), names.size());
  std::vector<std::optional<Number>> found(keys.size());
  std::vector<std::pair<Number, Pending<Result<bool>>>> questions;
  for (const auto& [number, volume] : asking.uses)
    if (!rests(*volume))
      questions.emplace_back(number, begin_call<Result<bool>>(volume, keys.size(), asking.limits,
                                                              [keys](Volume& its, const CallLimits& how) {
                                                                const std::vector<std::string_view> views(
                                                                    keys.begin(), keys.end());
                                                                return its.contains(views, how);
                                                              }));
  for (auto& [number, question] : questions) {
    const std::vector<Result<bool>> answers = finish_call(question, asking.limits);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!answers[i] && !is_stop(answers[i].error(), asking.limits))
        note(question.volume, answers[i].error());
      if (answers[i] && *answers[i] && !found[i] && asking.claim.has({number, names[i]})) found[i] = number;
    }
  }
  return found;
}

// A volume detached meanwhile has no blocks; its number is unknown to later callers.
void VolumePool::publish(ReservedBlocks<G4>& taken, std::span<const TierRecord> records,
                         std::span<const Place> places, MoveReport& report,
                         std::span<const std::size_t> members) {
  for (std::size_t i = 0; i < records.size(); ++i)
    if (!records[i].empty()) where_[taken.ids()[i].value()] = places[i];
  // The volume has acknowledged every byte.
  const Published published =
      taken.publish(manager_, records_, records, block::KvReady::asserted_by_caller(),
                    [&](std::size_t i) { return EventLocation::volume(volumes_at(places[i])[0]); });
  if (published.error && !report.error) report.error = published.error;
  for (std::size_t i = 0; i < records.size(); ++i)
    if (published.registered[i]) report.blocks[members[i]] = Moved::kArrived;
}

}  // namespace ashlar::tiers
