// KvPrefixSource: lets the sequences of G1 find prefixes in the tiers below.
//
// Thread safety: thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "ashlar/block/prefix_source.h"
#include "tiers/onboard/onboarder.h"
#include "tiers/onboard/tier_stack.h"

namespace ashlar::tiers {

class KvPrefixSource final : public block::PrefixSource {
 public:
  // Offers blocks of G1 to the tier below.
  using Offer = std::function<void(std::span<const tokens::SequenceHash>)>;
  // The stack and the onboarder outlive it.
  KvPrefixSource(TierStack& stack, Onboarder& onboarder, Offer offer)
      : stack_(stack), onboarder_(onboarder), offer_(std::move(offer)) {}

  void matched(std::span<const block::BlockId> blocks) noexcept override;
  bool discovers() const noexcept override;
  bool has(const tokens::SequenceHash& hash) override;
  std::unique_ptr<Arrival> bring(const Wanted& wanted, const block::PrefixBudget& budget,
                                 std::function<void()> on_done) override;
  std::unique_ptr<Arrival> bring_chosen(std::unique_ptr<Choice> choice, const block::PrefixBudget& budget,
                                        std::function<void()> on_done) override;
  void leaving(std::span<const tokens::SequenceHash> hashes) noexcept override;

 private:
  OnboardOptions options_of(const block::PrefixBudget& budget, std::function<void()> on_done) const;
  // Runs the call here, or with `on_done` starts it.
  std::unique_ptr<Arrival> begin(const std::shared_ptr<OnboardCall>& call);

  TierStack& stack_;
  Onboarder& onboarder_;
  const Offer offer_;
};

}  // namespace ashlar::tiers
