#include "tiers/kv_prefix_source.h"

#include <algorithm>
#include <utility>

namespace ashlar::tiers {

using events::G1;
using events::kTierId;
using tokens::SequenceHash;

namespace {

// The blocks of one onboard call, held in G1 until the request has its references.
class KvArrival final : public block::PrefixSource::Arrival {
 public:
  explicit KvArrival(std::shared_ptr<OnboardCall> call) : call_(std::move(call)) {}
  ~KvArrival() override { call_->cancel(); }

  bool done() const override { return call_->done(); }
  std::size_t wait() override {
    if (table_.empty())
      if (Result<OnboardTable> table = call_->wait({})) table_ = *std::move(table);
    return table_.size();
  }
  Result<std::vector<block::BlockId>> wait_layer(std::uint32_t layer,
                                                 std::optional<Clock::TimePoint> until) override {
    return call_->wait_layer(layer, until);
  }

 private:
  const std::shared_ptr<OnboardCall> call_;
  OnboardTable table_;
};

}  // namespace

OnboardOptions KvPrefixSource::options_of(const block::PrefixBudget& budget,
                                          std::function<void()> on_done) const {
  OnboardOptions options{.compute_tokens_per_second = budget.compute_tokens_per_second,
                         .by_layer = budget.by_layer && on_done != nullptr};
  options.on_done = std::move(on_done);
  const Clock::TimePoint now = stack_.clock->now();
  if (budget.time && *budget.time < Clock::TimePoint::max() - now) options.deadline = now + *budget.time;
  return options;
}

void KvPrefixSource::matched(std::span<const block::BlockId> blocks) noexcept {
  std::uint64_t hits = 0;
  for (const block::BlockId id : blocks) {
    if (id.value() >= stack_.g1_manager->total_blocks()) continue;  // outside the window of its group
    stack_.g1->records().hit(id);
    ++hits;
  }
  stack_.metrics.of(kTierId<G1>).hits.add(hits);
}

bool KvPrefixSource::discovers() const noexcept {
  return onboarder_.probes();
}

bool KvPrefixSource::has(const SequenceHash& hash) {
  const std::vector<TierPool*> pools = stack_.pools();
  return std::ranges::any_of(pools.begin() + 1, pools.end(), [&](TierPool* pool) { return pool->has(hash); });
}

std::unique_ptr<block::PrefixSource::Arrival> KvPrefixSource::bring(const Wanted& wanted,
                                                                    const block::PrefixBudget& budget,
                                                                    std::function<void()> on_done) {
  if (stack_.g2 == nullptr || wanted.hashes.empty()) return nullptr;
  // Without volumes to ask, what the first block says is certain.
  if (!onboarder_.probes() && !has(wanted.hashes[0])) return nullptr;
  OnboardOptions options = options_of(budget, std::move(on_done));
  options.prefixes.assign(wanted.prefixes.begin(), wanted.prefixes.end());
  options.salt = wanted.salt;
  options.locals.assign(wanted.locals.begin(), wanted.locals.end());
  options.parent = wanted.parent;
  options.root = wanted.root;
  return begin(onboarder_.make_call(wanted.hashes, options, false));
}

std::unique_ptr<block::PrefixSource::Arrival> KvPrefixSource::bring_chosen(std::unique_ptr<Choice> choice,
                                                                           const block::PrefixBudget& budget,
                                                                           std::function<void()> on_done) {
  if (stack_.g2 == nullptr) return nullptr;
  // Without volumes to ask, looking takes no time.
  if (!onboarder_.probes())
    return block::PrefixSource::bring_chosen(std::move(choice), budget, std::move(on_done));
  const std::shared_ptr<OnboardCall> call =
      onboarder_.make_call({}, options_of(budget, std::move(on_done)), false);
  call->choose = [this, choice = std::shared_ptr<Choice>(std::move(choice))](OnboardCall& its) {
    for (const Wanted& some : choice->candidates())
      static_cast<void>(onboarder_.find(
          some.hashes, {.deadline = its.options.deadline, .stop = its.control.stop_token()},
          {.parent = some.parent, .root = some.root, .locals = some.locals, .group = some.group}));
    if (its.stopped()) return;
    const Wanted wanted = choice->choose(*this);
    its.want(wanted.hashes, wanted.prefixes, wanted.salt);
  };
  return begin(call);
}

std::unique_ptr<block::PrefixSource::Arrival> KvPrefixSource::begin(
    const std::shared_ptr<OnboardCall>& call) {
  auto arrival = std::make_unique<KvArrival>(call);
  if (call->options.on_done != nullptr) {
    if (!onboarder_.start(call)) return nullptr;
    return arrival;
  }
  onboarder_.run(call);
  if (arrival->wait() == 0) return nullptr;
  return arrival;
}

// Without memory they are not offered: they stay in G1 as long as nothing else needs the room.
void KvPrefixSource::leaving(std::span<const SequenceHash> hashes) noexcept {
  unless_out_of_memory([&] { return offer_(hashes), true; }, [] { return false; });
}

}  // namespace ashlar::tiers
