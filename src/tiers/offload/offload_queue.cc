// Holding a block takes its manager's lock, so it happens outside the queue's lock: the hash is marked as
// upgrading and its place on deck is reserved. A concurrent cancel is noticed once the hold is taken.
#include "tiers/offload/offload_queue.h"

#include <array>
#include <iterator>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

Result<void> OffloadQueueOptions::validate() const {
  if (on_deck == 0 || waiting == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "a queue with room for %zu on deck and %zu waiting lets nothing through", on_deck,
                      waiting);
  return {};
}

Result<std::unique_ptr<OffloadQueue>> OffloadQueue::create(const OffloadQueueOptions& options,
                                                           Upgrade upgrade, Dropped dropped) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return std::unique_ptr<OffloadQueue>(new OffloadQueue(options, std::move(upgrade), std::move(dropped)));
}

OffloadQueue::~OffloadQueue() = default;

Offer OffloadQueue::offer(const SequenceHash& hash, std::uint8_t priority, bool permanently) {
  Order order;
  std::optional<SequenceHash> displaced;
  std::optional<Offer> answer;
  {
    const MutexLock lock(mu_);
    ++counters_.offered;
    order = {static_cast<std::uint8_t>(255 - priority), next_age_++};
    const auto [found, fresh] = known_.try_emplace(hash);
    found->second.permanently |= permanently;
    if (!fresh) {
      Known& known = found->second;
      if (known.stage == Stage::kCancelled) {
        known.stage = Stage::kUpgrading;  // the upgrading thread continues
        return Offer::kWaiting;
      }
      if (known.stage != Stage::kWaiting || known.order.below <= order.below) return Offer::kKnown;
      // It keeps its age: it has waited already.
      waiting_.erase(known.order);
      known.order.below = order.below;
      waiting_.emplace(known.order, hash);
      return Offer::kRaised;
    }
    found->second.order = order;
    const bool room = deck_.size() + upgrading_ < options_.on_deck;
    // Better-ranked blocks go on deck first.
    if (!room || (!waiting_.empty() && waiting_.begin()->first < order)) {
      answer = wait_locked(hash, order, &displaced);
    } else {
      ++upgrading_;
    }
  }
  if (displaced && dropped_) dropped_(*displaced, Offer::kNoRoom);
  if (answer) return *answer;
  const Offer settled = settle(hash, order, upgrade_(hash));
  if (settled != Offer::kOnDeck) refill();  // its place is free again
  return settled;
}

Offer OffloadQueue::wait_locked(const SequenceHash& hash, const Order& order,
                                std::optional<SequenceHash>* displaced) {
  if (waiting_.size() >= options_.waiting) {
    const auto last = std::prev(waiting_.end());
    if (last->first < order) {
      known_.erase(hash);
      ++counters_.refused;
      return Offer::kNoRoom;
    }
    *displaced = last->second;
    known_.erase(last->second);
    waiting_.erase(last);
    ++counters_.displaced;
  }
  known_.at(hash).stage = Stage::kWaiting;
  waiting_.emplace(order, hash);
  return Offer::kWaiting;
}

Offer OffloadQueue::settle(const SequenceHash& hash, const Order& order, std::optional<block::Hold> hold) {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(upgrading_ != 0, "block %s takes a place on deck that was not reserved",
               hash.to_string().c_str());
  --upgrading_;
  Known& known = known_.at(hash);
  ASHLAR_DCHECK(known.stage == Stage::kUpgrading || known.stage == Stage::kCancelled,
                "block %s is taken on deck twice", hash.to_string().c_str());
  const bool cancelled = known.stage == Stage::kCancelled;
  if (cancelled || !hold) {
    if (!cancelled) ++counters_.discarded;
    known_.erase(hash);
    return cancelled ? Offer::kTakenOut : Offer::kGone;
  }
  known.stage = Stage::kOnDeck;
  deck_.emplace(order, *std::move(hold));
  return Offer::kOnDeck;
}

void OffloadQueue::refill() {
  for (;;) {
    SequenceHash hash;
    Order order;
    {
      const MutexLock lock(mu_);
      if (waiting_.empty() || deck_.size() + upgrading_ >= options_.on_deck) return;
      const auto first = waiting_.begin();
      order = first->first;
      hash = first->second;
      waiting_.erase(first);
      known_.at(hash).stage = Stage::kUpgrading;
      ++upgrading_;
    }
    if (settle(hash, order, upgrade_(hash)) == Offer::kGone && dropped_) dropped_(hash, Offer::kGone);
  }
}

std::vector<OffloadQueue::Item> OffloadQueue::take(std::size_t n) {
  refill();
  std::vector<Item> items;
  {
    const MutexLock lock(mu_);
    while (items.size() < n && !deck_.empty()) {
      const auto first = deck_.begin();
      Known& known = known_.at(first->second.sequence_hash());
      known.stage = Stage::kInFlight;
      items.push_back(
          {std::move(first->second), static_cast<std::uint8_t>(255 - first->first.below), known.permanently});
      deck_.erase(first);
    }
    counters_.taken += items.size();
    counters_.in_flight += items.size();
  }
  refill();
  return items;
}

bool OffloadQueue::finished(const SequenceHash& hash) {
  const MutexLock lock(mu_);
  const auto found = known_.find(hash);
  if (found == known_.end() || found->second.stage != Stage::kInFlight) return false;
  const bool permanently = found->second.permanently;
  known_.erase(found);
  --counters_.in_flight;
  return permanently;
}

Release OffloadQueue::release(const SequenceHash& hash) {
  return take_out(hash, true);
}

bool OffloadQueue::cancel(const SequenceHash& hash) {
  return take_out(hash, false) == Release::kOut;
}

Release OffloadQueue::take_out(const SequenceHash& hash, bool if_released) {
  block::Hold dropped;  // outside the lock
  {
    const MutexLock lock(mu_);
    const auto found = known_.find(hash);
    if (found == known_.end() || found->second.stage == Stage::kCancelled) return Release::kUnknown;
    if (if_released && found->second.permanently) return Release::kPermanent;
    switch (found->second.stage) {
      case Stage::kCancelled:
        break;
      case Stage::kInFlight:
        return Release::kInFlight;
      case Stage::kUpgrading:
        found->second.stage = Stage::kCancelled;
        found->second.permanently = false;
        ++counters_.cancelled;
        return Release::kOut;
      case Stage::kWaiting:
        waiting_.erase(found->second.order);
        break;
      case Stage::kOnDeck: {
        const auto held = deck_.find(found->second.order);
        ASHLAR_CHECK(held != deck_.end(), "block %s is recorded as on deck and is not",
                     hash.to_string().c_str());
        dropped = std::move(held->second);
        deck_.erase(held);
        break;
      }
    }
    known_.erase(found);
    ++counters_.cancelled;
  }
  refill();
  return Release::kOut;
}

std::size_t OffloadQueue::clear() {
  std::map<Order, block::Hold> dropped;  // outside the lock
  const MutexLock lock(mu_);
  std::size_t count = 0;
  for (auto at = known_.begin(); at != known_.end();) {
    Known& known = at->second;
    if (known.stage == Stage::kUpgrading) {
      known.stage = Stage::kCancelled;
      known.permanently = false;
      ++count;
    }
    if (known.stage != Stage::kOnDeck && known.stage != Stage::kWaiting) {
      ++at;
      continue;
    }
    at = known_.erase(at);
    ++count;
  }
  dropped.swap(deck_);
  waiting_.clear();
  counters_.cancelled += count;
  return count;
}

std::size_t OffloadQueue::on_deck() const {
  const MutexLock lock(mu_);
  return deck_.size();
}

bool OffloadQueue::in_flight(const SequenceHash& hash) const {
  const MutexLock lock(mu_);
  const auto found = known_.find(hash);
  return found != known_.end() && found->second.stage == Stage::kInFlight;
}

bool OffloadQueue::is_permanent(const SequenceHash& hash) const {
  const MutexLock lock(mu_);
  const auto found = known_.find(hash);
  return found != known_.end() && found->second.permanently;
}

OffloadQueueCounters OffloadQueue::counters() const {
  const MutexLock lock(mu_);
  OffloadQueueCounters counters = counters_;
  counters.on_deck = deck_.size();
  counters.waiting = waiting_.size() + upgrading_;
  return counters;
}

void OffloadQueue::check_invariants() const {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(deck_.size() + upgrading_ <= options_.on_deck,
               "%zu blocks on deck and %zu reserved; room for %zu", deck_.size(), upgrading_,
               options_.on_deck);
  ASHLAR_CHECK(waiting_.size() <= options_.waiting, "%zu blocks wait; room for %zu", waiting_.size(),
               options_.waiting);
  for (const auto& [order, hold] : deck_) {
    const auto known = known_.find(hold.sequence_hash());
    ASHLAR_CHECK(
        known != known_.end() && known->second.stage == Stage::kOnDeck && known->second.order == order,
        "block %s is on deck under another rank than the table says",
        hold.sequence_hash().to_string().c_str());
  }
  for (const auto& [order, hash] : waiting_) {
    const auto known = known_.find(hash);
    ASHLAR_CHECK(
        known != known_.end() && known->second.stage == Stage::kWaiting && known->second.order == order,
        "block %s waits under another rank than the table says", hash.to_string().c_str());
  }
  std::array<std::size_t, kStages> stages{};
  for (const auto& [hash, known] : known_) ++stages[static_cast<std::size_t>(known.stage)];
  const auto in_stage = [&](Stage stage) { return stages[static_cast<std::size_t>(stage)]; };
  ASHLAR_CHECK(in_stage(Stage::kOnDeck) == deck_.size(), "%zu hashes are recorded as on deck, %zu are",
               in_stage(Stage::kOnDeck), deck_.size());
  ASHLAR_CHECK(in_stage(Stage::kWaiting) == waiting_.size(), "%zu hashes are recorded as waiting, %zu are",
               in_stage(Stage::kWaiting), waiting_.size());
  ASHLAR_CHECK(in_stage(Stage::kUpgrading) + in_stage(Stage::kCancelled) == upgrading_,
               "%zu places on deck are reserved for %zu hashes", upgrading_,
               in_stage(Stage::kUpgrading) + in_stage(Stage::kCancelled));
  ASHLAR_CHECK(in_stage(Stage::kInFlight) == counters_.in_flight, "%zu hashes are in flight, %zu are counted",
               in_stage(Stage::kInFlight), counters_.in_flight);
}

}  // namespace ashlar::tiers
