// Who owns a manager: everything that refers to its blocks, by a ManagerPtr.
//
// The library stops the process when a manager dies with blocks outstanding. Guards hold a ManagerPtr each,
// so what can be outstanding at the end is what waits for a fence: blocks in quarantine, references given to
// release_after(), blocks registered with a fence, and what requests returned before their step ended. Such a
// manager is set aside, and destroyed by a later call, once its blocks are back; if their fence never settles
// or was abandoned, at no time.
//
// Thread safety: thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "ashlar/block/block_manager.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "fork.h"

namespace ashlar::python {

using Manager = block::BlockManager<block::G1>;
// Of a manager that is part of something larger: ManagerPtr(larger, &larger->g1()).
using ManagerPtr = std::shared_ptr<Manager>;

ManagerPtr share_manager(Manager manager);

// destroy_if_idle() destroys a manager and returns true, or returns false while blocks of it are
// outstanding. It is called now, and if it refuses, again whenever another manager is made or given up;
// always without the GIL, and never on a thread of the library that is calling Python: the end of a manager
// waits for its threads. There another thread does it. For the deleters of shared pointers.
void destroy_when_idle(std::function<bool()> destroy_if_idle);
// Tries the managers that were set aside, without the GIL. Does nothing on a thread of the library that is
// calling Python.
void destroy_idle_managers();
// Waits until no other thread is destroying a manager, `patience` at most. Call without the GIL.
void wait_for_destruction(Clock::Duration patience);

// True when destroying the manager is allowed: no guard, no quarantine, no waiting allocation.
bool is_idle(const block::PoolStatus& status);

// The Python class BlockManager.
struct ManagerObject {
  SharedHere<Manager> manager;
  // Of G1 of tiers, which have told it to files, volumes and peers: other names do not belong there.
  std::optional<tokens::HashScheme> scheme = {};

  // The caller's, or the default one. Raises InvalidArgument: of another scheme.
  tokens::SequenceHasher hasher_or(const std::optional<tokens::SequenceHasher>& given) const;
};

}  // namespace ashlar::python
