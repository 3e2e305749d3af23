#include "ashlar/replay/trace_table.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "ashlar/base/check.h"
#include "replay/trace/trace_forms.h"

namespace ashlar::replay {

Result<TraceTable> TraceTable::load(TraceSource& source, const Progress& progress) {
  constexpr std::uint64_t kStep = 64;
  TraceTable table;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers;
  TraceRequest request;
  for (;;) {
    ASHLAR_TRY(const bool more, source.next(request));
    if (!more) break;
    const std::uint64_t first = table.blocks_.size();
    bool is_misplaced = false;
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      const auto [found, is_new] =
          numbers.try_emplace(request.blocks[i], static_cast<std::uint32_t>(table.hashes_.size()));
      const std::uint64_t parent = i == 0 ? 0 : std::uint64_t{table.blocks_.back()} + 1;
      if (is_new) {
        if (table.hashes_.size() >= UINT32_MAX - 1)
          return Error(ErrorCode::kCapacity, "the trace has more than 2^32 - 2 distinct blocks");
        ASHLAR_TRY(const tokens::SequenceHash hash,
                   tokens::SequenceHash::make(i, std::uint64_t{found->second} + 1, parent));
        table.hashes_.push_back(hash);
      } else {
        // Numbers of blocks fit into the fragment.
        const tokens::SequenceHash& known = table.hashes_[found->second];
        is_misplaced |= known.position() != i || known.parent_fragment() != parent;
      }
      table.blocks_.push_back(found->second);
    }
    table.requests_.push_back({.arrival_ms = request.arrival_ms,
                               .session = request.session,
                               .input_tokens = request.input_tokens,
                               .output_tokens = request.output_tokens,
                               .first = first,
                               .count = static_cast<std::uint32_t>(request.blocks.size()),
                               .block_size = request.block_size});
    table.misplaced_ += is_misplaced ? 1 : 0;
    table.longest_ = std::max(table.longest_, request.blocks.size());
    table.input_tokens_ += request.input_tokens;
    if (progress && table.requests_.size() % kStep == 0 && !progress(table.requests_.size()))
      return Error(ErrorCode::kCancelled, "stopped while the trace was read");
  }
  table.facts_ = source.facts();
  if (table.requests_.empty()) return no_requests(table.facts_);
  // Blocks stay where they are, in the order of the file; of equal times the earlier line comes first.
  std::ranges::sort(table.requests_, {},
                    [](const Request& one) { return std::tuple(one.arrival_ms, one.first); });
  const std::uint64_t start = table.requests_.front().arrival_ms;
  for (Request& one : table.requests_) one.arrival_ms -= start;
  ASHLAR_CHECK(table.hashes_.size() == numbers.size(), "a name per distinct block");
  return table;
}

}  // namespace ashlar::replay
