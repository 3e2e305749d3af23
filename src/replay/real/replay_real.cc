#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/replay/real.h"
#include "base/temporary_folder.h"
#include "replay/real/kv_cache.h"
#include "replay/simulate/replay_run.h"

namespace ashlar::replay {
Result<void> RealOptions::validate() const {
  if (block_bytes == 0 || block_bytes % 4'096 != 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "a block of %u bytes cannot be replayed; give a multiple of 4096", block_bytes);
  return {};
}

Result<ReplayOutcome> replay_real(const TraceTable& trace, const ReplayConfig& config,
                                  const RealOptions& options, const ReplayProgress& progress,
                                  service::RouteLog* log) {
  ASHLAR_RETURN_IF_ERROR(config.validate());
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_TRY(const TemporaryFolder folder, TemporaryFolder::create("ashlar_replay", options.folder));
  std::uint64_t verified = 0;
  ReplayRun run(trace, config, log);
  for (std::uint32_t worker = 0; worker < config.workers; ++worker) {
    const std::string file = folder.file("worker-" + std::to_string(worker) + ".g3");
    ASHLAR_TRY(auto cache, make_kv_cache(trace, config, options, file, run.presence(), worker, verified));
    run.add_cache(std::move(cache));
  }
  ASHLAR_TRY(ReplayOutcome outcome, run.run(progress));
  outcome.is_real = true;
  outcome.verified = verified;
  ASHLAR_CHECK(verified == outcome.total.hit_blocks(), "every hit is compared");
  return outcome;
}

}  // namespace ashlar::replay
