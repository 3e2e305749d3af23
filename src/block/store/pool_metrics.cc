// The names of a manager's counters and pools in a MetricRegistry.
#include "ashlar/block/detail/untyped_manager.h"

namespace ashlar::block::detail {

Result<std::vector<MetricRegistration>> UntypedManager::add_metrics(MetricRegistry& metrics,
                                                                    const MetricLabels& labels) {
  struct Count {
    const char* name;
    const char* help;
    std::uint64_t ManagerCounters::* member;
  };
  static constexpr Count kCounts[] = {
      {"ashlar_manager_allocations_total", "Blocks handed out.", &ManagerCounters::allocations},
      {"ashlar_manager_allocations_from_reset_total", "Blocks handed out of the reset pool.",
       &ManagerCounters::allocations_from_reset},
      {"ashlar_manager_evictions_total", "Blocks evicted to be handed out.", &ManagerCounters::evictions},
      {"ashlar_manager_stagings_total", "Blocks completed.", &ManagerCounters::stagings},
      {"ashlar_manager_registrations_total", "Blocks registered, with duplicates and refused candidates.",
       &ManagerCounters::registrations},
      {"ashlar_manager_duplicates_total", "Blocks registered beside or in place of one of the same hash.",
       &ManagerCounters::duplicates},
      {"ashlar_manager_deduplications_total", "Registrations answered with the existing block.",
       &ManagerCounters::deduplications},
      {"ashlar_manager_collisions_total", "Registrations refused because the prefix digests differ.",
       &ManagerCounters::collisions},
      {"ashlar_manager_match_hashes_requested_total", "Hashes that matches asked for.",
       &ManagerCounters::match_hashes_requested},
      {"ashlar_manager_match_blocks_returned_total", "Blocks that matches returned.",
       &ManagerCounters::match_blocks_returned},
      {"ashlar_manager_match_probes_total", "Index probes of matches over cache groups.",
       &ManagerCounters::match_probes},
      {"ashlar_manager_scan_hashes_requested_total", "Hashes that scans asked for.",
       &ManagerCounters::scan_hashes_requested},
      {"ashlar_manager_scan_blocks_returned_total", "Blocks that scans returned.",
       &ManagerCounters::scan_blocks_returned},
      {"ashlar_manager_revivals_total", "Inactive blocks that came back into use.",
       &ManagerCounters::revivals},
      {"ashlar_manager_quarantines_total", "Blocks dropped in flight.", &ManagerCounters::quarantines},
      {"ashlar_manager_late_releases_total", "Last drops that found the block revived.",
       &ManagerCounters::late_releases},
  };
  static_assert(std::size(kCounts) * sizeof(std::uint64_t) == sizeof(ManagerCounters),
                "every counter has a name");
  struct Pool {
    const char* state;
    std::size_t PoolStatus::* member;
  };
  static constexpr Pool kPools[] = {
      {"reset", &PoolStatus::reset},
      {"inactive", &PoolStatus::inactive},
      {"pinned_inactive", &PoolStatus::pinned_inactive},
      {"held_inactive", &PoolStatus::held_inactive},
      {"active", &PoolStatus::active},
      {"owned", &PoolStatus::owned},
      {"quarantined", &PoolStatus::quarantined},
  };
  static_assert((std::size(kPools) + 2) * sizeof(std::size_t) == sizeof(PoolStatus),
                "every pool has a name, beside total and waiters");

  std::vector<MetricRegistration> out;
  for (const Count& count : kCounts) {
    ASHLAR_TRY(MetricRegistration added,
               metrics.add_counter({count.name, count.help, labels},
                                   [this, member = count.member] { return counters().*member; }));
    out.push_back(std::move(added));
  }
  for (const Pool& pool : kPools) {
    MetricLabels with_state = labels;
    with_state.emplace_back("state", pool.state);
    ASHLAR_TRY(MetricRegistration added,
               metrics.add({"ashlar_pool_blocks", "Blocks of the manager, by state.", with_state},
                           [this, member = pool.member] { return static_cast<double>(status().*member); }));
    out.push_back(std::move(added));
  }
  ASHLAR_TRY(MetricRegistration added,
             metrics.add({"ashlar_pool_waiters", "Allocations that wait for room.", labels},
                         [this] { return static_cast<double>(status().waiters); }));
  out.push_back(std::move(added));
  return out;
}

}  // namespace ashlar::block::detail
