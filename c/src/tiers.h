// The objects behind tiers, and what the calls over them share.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/tiers/kv_block_manager.h"
#include "c/src/objects.h"

namespace ashlar::c_interface {

// Tiers as the pool of their G1.
class TieredPool final : public PoolLife {
 public:
  TieredPool(std::unique_ptr<tiers::KvBlockManager> kv, const tokens::HashScheme& scheme)
      : kv_(std::move(kv)), scheme_(scheme) {}

  Manager& manager() noexcept override { return kv_->g1(); }
  Outcome<tokens::SequenceHasher> bind(const tokens::SequenceHasher* hasher) const override;
  const tokens::HashScheme& scheme() const noexcept { return scheme_; }
  std::size_t drain_events(events::EventSink& sink) override { return kv_->drain_events(sink); }
  void destroy() noexcept override { kv_.reset(); }
  tiers::KvBlockManager& kv() const noexcept { return *kv_; }

 private:
  std::unique_ptr<tiers::KvBlockManager> kv_;
  const tokens::HashScheme scheme_;  // that G3, volumes and peers are told
};

struct TiersObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kTiers;
  TiersObject(std::shared_ptr<TieredPool> its_life, std::uint64_t its_manager)
      : life(std::move(its_life)), manager(its_manager) {}
  const std::shared_ptr<TieredPool> life;
  const std::uint64_t manager;  // the handle of G1's manager
};

// Tiers during a call: they are not destroyed meanwhile.
struct TiersCall {
  std::shared_ptr<TiersObject> object;
  PoolTicket ticket;

  tiers::KvBlockManager& kv() const noexcept { return object->life->kv(); }
};
// Errors: ASHLAR_INVALID_HANDLE.
Outcome<TiersCall> enter_tiers(ashlar_tiers tiers, PoolUse use = PoolUse::kCall);

// Texts of the caller. Errors: ASHLAR_INVALID_ARGUMENT: a null one, or too many.
Outcome<std::vector<std::string>> texts_of(const char* const* texts, std::size_t n, const char* name);

// Errors: ASHLAR_INVALID_ARGUMENT: not one of G1 to G4.
Outcome<events::TierId> tier_of(std::int32_t tier);

}  // namespace ashlar::c_interface
