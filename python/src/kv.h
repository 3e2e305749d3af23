// KvRef: what Python's KvBlockManager owns; and deadlines as Python gives them.
//
// Guards, handles, views and event streams hold the manager too, so it lives until the last of them is gone.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "ashlar/tiers/kv_block_manager.h"
#include "errors.h"
#include "gil.h"
#include "interrupts.h"
#include "managers.h"

namespace ashlar::python {

using KvPtr = std::shared_ptr<tiers::KvBlockManager>;

// The manager destroys itself without the GIL, when its last block is back. Once Python has ended, only if
// end_living_kvs() could stop its threads: one of them may wait for the GIL for ever.
KvPtr share_kv(std::unique_ptr<tiers::KvBlockManager> kv);
// For atexit: shuts down every manager, so that its threads have ended before Python does. Waits for their
// callbacks, but not for ever: false if some have not returned. Call with the GIL held.
bool end_living_kvs();

struct KvRef {
  KvPtr kv;
  tokens::HashScheme scheme;  // that G3, volumes and peers are told

  // Raises UsedGuard after close(). Call with the GIL held: another thread may close it later.
  const KvPtr& get() const {
    if (kv == nullptr) raise_used("this KvBlockManager");
    if (is_of_parent(kv)) raise_of_parent();
    return kv;
  }
};

// G1 as a BlockManager, which keeps all of the tiers alive.
inline ManagerPtr g1_of(const KvPtr& kv) {
  return ManagerPtr(kv, &kv->g1());
}

// Seconds from now; nothing for None. Raises InvalidArgument for a negative number or none.
std::optional<Clock::TimePoint> deadline_of(std::optional<double> seconds);

// The parts of the class that other files bind.
void bind_transfers(nanobind::module_& module, nanobind::class_<KvRef>& type);
void bind_memory(nanobind::module_& module, nanobind::class_<KvRef>& type);

}  // namespace ashlar::python
