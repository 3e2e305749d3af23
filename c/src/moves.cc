// Moves between tiers of the C interface: offload, onboard, prefetch.
#include <memory>
#include <vector>

#include "c/src/tiers.h"

namespace ashlar::c_interface {
namespace {

struct OffloadObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kOffload;
  OffloadObject(std::shared_ptr<PoolLife> its_life, tiers::OffloadHandle its)
      : life(std::move(its_life)), offload(std::move(its)) {}
  const std::weak_ptr<PoolLife> life;  // the call does not keep the tiers
  const tiers::OffloadHandle offload;
};

struct OnboardObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kOnboard;
  OnboardObject(std::shared_ptr<PoolLife> its_life, tiers::OnboardHandle its)
      : life(std::move(its_life)), onboard(std::move(its)) {}
  const std::weak_ptr<PoolLife> life;  // the call does not keep the tiers
  const tiers::OnboardHandle onboard;
};

// Cancels a call. Where the tiers are gone, or going, nothing is left to cancel.
template <class Handle>
void cancel_within(const std::weak_ptr<PoolLife>& weak, const Handle& handle) {
  std::shared_ptr<PoolLife> life = weak.lock();
  if (life == nullptr || !life->enter(PoolUse::kCall)) return;
  const PoolTicket ticket(std::move(life), PoolUse::kCall);
  handle.cancel();
}

ashlar_offload_progress progress_of(const tiers::OffloadProgress& now) {
  ashlar_offload_progress told = {};
  told.done = now.ended() == now.total ? 1 : 0;
  told.total = now.total;
  told.arrived = now.arrived;
  told.present = now.present;
  told.filtered = now.filtered;
  told.gone = now.gone;
  told.failed = now.failed;
  told.refused = now.refused;
  told.cancelled = now.cancelled;
  told.late = now.late;
  return told;
}

Outcome<tiers::OnboardOptions> onboard_options(const ashlar_onboard_options* options, std::size_t n) {
  ASHLAR_TRY(const auto given, options_of(options, "ashlar_onboard_options"));
  tiers::OnboardOptions its;
  if (!(given.compute_tokens_per_second >= 0))
    return invalid_argument("compute_tokens_per_second is %f; it must not be negative",
                            given.compute_tokens_per_second);
  if (given.compute_tokens_per_second > 0) its.compute_tokens_per_second = given.compute_tokens_per_second;
  if (given.deadline_ns != 0) its.deadline = deadline_of(given.deadline_ns);
  its.by_layer = given.by_layer != 0;
  if (given.prefixes != nullptr) {
    ASHLAR_TRY(const auto digests, elements<const tokens::PrefixDigest>(given.prefixes, n, "prefixes"));
    its.prefixes.assign(digests.begin(), digests.end());
  }
  return its;
}

using StartOnboard = Result<tiers::OnboardHandle> (tiers::KvBlockManager::*)(
    std::span<const tokens::SequenceHash>, const tiers::OnboardOptions&);

Outcome<> start_onboard(StartOnboard start, ashlar_tiers handle, const ashlar_hash* hashes, std::size_t n,
                        const ashlar_onboard_options* options, ashlar_onboard* onboard) {
  if (onboard == nullptr) return null_pointer("onboard");
  ASHLAR_TRY(const auto names, elements<const tokens::SequenceHash>(hashes, n, "hashes"));
  ASHLAR_TRY(const auto its, onboard_options(options, n));
  ASHLAR_TRY(const auto entered, enter_tiers(handle));
  ASHLAR_TRY(auto started, (entered.kv().*start)(names, its));
  onboard->id = open_handle(std::make_shared<OnboardObject>(entered.object->life, std::move(started)));
  return {};
}

}  // namespace
}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;

ashlar_status ashlar_tiers_offload(ashlar_tiers tiers, int32_t tier, const ashlar_hash* hashes, size_t n,
                                   const ashlar_offload_options* options, ashlar_offload* offload) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto which, tier_of(tier));
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::SequenceHash>(hashes, n, "hashes"));
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_offload_options"));
    ashlar::tiers::OffloadOptions its;
    if (given.set_priority != 0) {
      ASHLAR_RETURN_IF_ERROR(retention_of(given.priority, ASHLAR_FOREVER));
      its.priority = given.priority;
    }
    ASHLAR_TRY(its.after, fences_of(given.after, given.after_count));
    if (given.deadline_ns != 0) its.deadline = deadline_of(given.deadline_ns);
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ASHLAR_TRY(auto started, entered.kv().offload_to(which, names, its));
    if (offload != nullptr)
      offload->id = open_handle(std::make_shared<OffloadObject>(entered.object->life, std::move(started)));
    return {};
  });
}

ashlar_status ashlar_offload_get_progress(ashlar_offload offload, ashlar_offload_progress* progress) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<OffloadObject>(offload.id));
    return write_answer(progress_of(object->offload.progress()), progress, "ashlar_offload_progress");
  });
}

ashlar_status ashlar_offload_wait(ashlar_offload offload, uint64_t timeout_ns,
                                  ashlar_offload_progress* progress) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<OffloadObject>(offload.id));
    const auto until = deadline_of(timeout_ns);
    const auto ended = until ? object->offload.wait_until(*until) : object->offload.wait();
    if (progress != nullptr) {
      ASHLAR_RETURN_IF_ERROR(
          write_answer(progress_of(object->offload.progress()), progress, "ashlar_offload_progress"));
    }
    ASHLAR_RETURN_IF_ERROR(ended);
    return {};
  });
}

ashlar_status ashlar_offload_cancel(ashlar_offload offload) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<OffloadObject>(offload.id));
    cancel_within(object->life, object->offload);
    return {};
  });
}

ashlar_status ashlar_offload_destroy(ashlar_offload offload) {
  return waiting_call([&] { return close_handle<OffloadObject>(offload.id); });
}

ashlar_status ashlar_tiers_drain(ashlar_tiers tiers, uint64_t timeout_ns) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    if (entered.kv().drain(deadline_of(timeout_ns))) return {};
    return Refusal(ASHLAR_TIMEOUT, "blocks are still queued or in flight");
  });
}

ashlar_status ashlar_tiers_onboard(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                   const ashlar_onboard_options* options, ashlar_blocks* blocks) {
  return waiting_call([&]() -> Outcome<> {
    if (blocks == nullptr) return null_pointer("blocks");
    ASHLAR_TRY(const auto names, elements<const ashlar::tokens::SequenceHash>(hashes, n, "hashes"));
    ASHLAR_TRY(const auto its, onboard_options(options, n));
    ASHLAR_TRY(auto entered, enter_tiers(tiers, PoolUse::kGuard));
    auto table = entered.kv().onboard(names, its);
    ASHLAR_TRY(blocks->id, open_blocks(std::move(entered.ticket), std::move(table)));
    return {};
  });
}

ashlar_status ashlar_tiers_onboard_async(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                         const ashlar_onboard_options* options, ashlar_onboard* onboard) {
  return waiting_call([&] {
    return start_onboard(&ashlar::tiers::KvBlockManager::onboard_async, tiers, hashes, n, options, onboard);
  });
}

ashlar_status ashlar_tiers_prefetch(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                    const ashlar_onboard_options* options, ashlar_onboard* onboard) {
  return waiting_call([&] {
    return start_onboard(&ashlar::tiers::KvBlockManager::prefetch, tiers, hashes, n, options, onboard);
  });
}

ashlar_status ashlar_onboard_done(ashlar_onboard onboard, int* done) {
  return call([&]() -> Outcome<> {
    if (done == nullptr) return null_pointer("done");
    ASHLAR_TRY(const auto object, object_of<OnboardObject>(onboard.id));
    *done = object->onboard.done() ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_onboard_wait(ashlar_onboard onboard, uint64_t timeout_ns, ashlar_blocks* blocks) {
  return waiting_call([&]() -> Outcome<> {
    if (blocks == nullptr) return null_pointer("blocks");
    ASHLAR_TRY(const auto object, object_of<OnboardObject>(onboard.id));
    // The ticket keeps the tiers from being destroyed while this waits.
    auto life = object->life.lock();
    if (life == nullptr || !life->enter()) return Refusal(ASHLAR_CANCELLED, "the tiers were destroyed");
    PoolTicket ticket(std::move(life));
    const auto until = deadline_of(timeout_ns);
    ASHLAR_TRY(auto table, until ? object->onboard.wait_until(*until) : object->onboard.wait());
    ASHLAR_TRY(blocks->id, open_blocks(std::move(ticket), std::move(table)));
    return {};
  });
}

ashlar_status ashlar_onboard_wait_layer(ashlar_onboard onboard, uint32_t layer, uint64_t timeout_ns,
                                        uint32_t* out, size_t capacity, size_t* count) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<OnboardObject>(onboard.id));
    auto life = object->life.lock();
    if (life == nullptr || !life->enter(PoolUse::kCall))
      return Refusal(ASHLAR_CANCELLED, "the tiers were destroyed");
    const PoolTicket ticket(std::move(life), PoolUse::kCall);
    ASHLAR_RETURN_IF_ERROR(check_list(out, capacity, count));
    ASHLAR_TRY(const auto ids, object->onboard.wait_layer(layer, deadline_of(timeout_ns)));
    return write_list(std::span<const ashlar::block::BlockId>(ids), out, capacity, count);
  });
}

ashlar_status ashlar_onboard_cancel(ashlar_onboard onboard) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<OnboardObject>(onboard.id));
    cancel_within(object->life, object->onboard);
    return {};
  });
}

ashlar_status ashlar_onboard_destroy(ashlar_onboard onboard) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<OnboardObject>(onboard.id));
    ASHLAR_RETURN_IF_ERROR(close_handle<OnboardObject>(onboard.id));
    cancel_within(object->life, object->onboard);
    return {};
  });
}
