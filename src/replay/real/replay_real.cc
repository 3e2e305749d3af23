#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/replay/real.h"
#include "replay/real/kv_cache.h"
#include "replay/simulate/replay_run.h"

namespace ashlar::replay {
namespace {

// A folder for the files of G3: the caller's, or one that goes with the run.
class ReplayFolder {
 public:
  static Result<ReplayFolder> open(const std::string& given) {
    std::error_code failed;
    if (!given.empty()) {
      if (!std::filesystem::is_directory(given, failed))
        return Error(ErrorCode::kNotFound, "there is no folder " + given + " for the files of G3");
      return ReplayFolder(given, false);
    }
    const std::filesystem::path base = std::filesystem::temp_directory_path(failed);
    std::string name = (base / "ashlar_replay_XXXXXX").string();
    if (failed || mkdtemp(name.data()) == nullptr)
      return make_error(ErrorCode::kIo, "no folder for the files of G3 can be made at %s: %s", name.c_str(),
                        std::generic_category().message(errno).c_str());
    return ReplayFolder(name, true);
  }
  ReplayFolder(ReplayFolder&& other) noexcept
      : path_(std::move(other.path_)), is_own_(std::exchange(other.is_own_, false)) {}
  ReplayFolder& operator=(ReplayFolder&&) = delete;
  ~ReplayFolder() {
    std::error_code ignored;
    if (is_own_) std::filesystem::remove_all(path_, ignored);
  }
  std::string file(std::uint32_t worker) const {
    return (std::filesystem::path(path_) / ("worker-" + std::to_string(worker) + ".g3")).string();
  }

 private:
  ReplayFolder(std::string path, bool is_own) : path_(std::move(path)), is_own_(is_own) {}
  std::string path_;
  bool is_own_;
};

}  // namespace

Result<void> RealOptions::validate() const {
  if (block_bytes == 0 || block_bytes % 4'096 != 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "a block of %u bytes cannot be replayed; give a multiple of 4096", block_bytes);
  return {};
}

Result<ReplayOutcome> replay_real(const TraceTable& trace, const ReplayConfig& config,
                                  const RealOptions& options, const ReplayProgress& progress) {
  ASHLAR_RETURN_IF_ERROR(config.validate());
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_TRY(const ReplayFolder folder, ReplayFolder::open(options.folder));
  std::uint64_t verified = 0;
  ReplayRun run(trace, config);
  for (std::uint32_t worker = 0; worker < config.workers; ++worker) {
    std::error_code failed;
    // What an earlier run left would be found.
    std::filesystem::remove(folder.file(worker), failed);
    ASHLAR_TRY(auto cache,
               make_kv_cache(trace, config, options, folder.file(worker), run.presence(), worker, verified));
    run.add_cache(std::move(cache));
  }
  ASHLAR_TRY(ReplayOutcome outcome, run.run(progress));
  outcome.is_real = true;
  outcome.verified = verified;
  ASHLAR_CHECK(verified == outcome.total.hit_blocks(), "every hit is compared");
  return outcome;
}

}  // namespace ashlar::replay
