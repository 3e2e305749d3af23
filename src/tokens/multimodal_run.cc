#include "ashlar/tokens/multimodal_run.h"

#include <algorithm>
#include <cinttypes>

namespace ashlar::tokens {

Result<void> validate_runs(std::span<const MultimodalRun> runs, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t from = begin;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const MultimodalRun& run = runs[i];
    if (run.length == 0) {
      return make_error(ErrorCode::kInvalidArgument, "multimodal run %zu at token %" PRIu64 " is empty", i,
                        run.offset);
    }
    if (run.offset < from) {
      return make_error(ErrorCode::kInvalidArgument,
                        "multimodal run %zu starts at token %" PRIu64 ", before %" PRIu64
                        ", where the one before it (or the text before the runs) ends",
                        i, run.offset, from);
    }
    if (run.offset > end || run.length > end - run.offset) {
      return make_error(ErrorCode::kInvalidArgument,
                        "multimodal run %zu of %u tokens at token %" PRIu64
                        " goes past the last token, %" PRIu64,
                        i, run.length, run.offset, end);
    }
    from = run.offset + run.length;
  }
  return {};
}

std::span<const MultimodalRun> runs_touching(std::span<const MultimodalRun> runs, std::uint64_t begin,
                                             std::uint64_t end) noexcept {
  const auto first = std::partition_point(runs.begin(), runs.end(), [begin](const MultimodalRun& run) {
    return run.offset + run.length <= begin;
  });
  const auto last =
      std::partition_point(first, runs.end(), [end](const MultimodalRun& run) { return run.offset < end; });
  return {first, last};
}

}  // namespace ashlar::tokens
