// Random traces made of prefixes: requests go on from, or branch off, earlier ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/replay/trace_table.h"

namespace ashlar::replay {

// Requests given as they are.
class GivenTrace final : public TraceSource {
 public:
  explicit GivenTrace(std::vector<TraceRequest> requests, std::uint32_t block_size = 16)
      : requests_(std::move(requests)) {
    facts_.format = TraceFormat::kMooncake;
    facts_.block_size = block_size;
  }
  Result<bool> next(TraceRequest& out) override {
    if (facts_.requests == requests_.size()) return false;
    out = requests_[facts_.requests++];
    return true;
  }
  const TraceFacts& facts() const noexcept override { return facts_; }

 private:
  std::vector<TraceRequest> requests_;
  TraceFacts facts_;
};

inline TraceTable table_of(std::vector<TraceRequest> requests) {
  GivenTrace source(std::move(requests));
  return TraceTable::load(source).value();
}

inline TraceRequest request_of(std::uint64_t at, std::vector<std::uint64_t> blocks,
                               std::uint64_t session = 0) {
  return {.arrival_ms = at,
          .session = session,
          .input_tokens = blocks.size() * 16,
          .output_tokens = 4,
          .block_size = 16,
          .blocks = std::move(blocks)};
}

inline TraceTable random_trace(std::uint64_t seed, std::size_t count, std::size_t longest) {
  Random random(seed);
  std::vector<TraceRequest> requests;
  std::uint64_t name = 0;
  std::uint64_t now = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::uint64_t> blocks;
    std::uint64_t session = i + 1;
    if (!requests.empty() && random.chance(0.8)) {
      // Recent ones are more likely.
      const std::size_t back = std::min<std::size_t>(requests.size(), 1 + random.below(1 + random.below(40)));
      const TraceRequest& old = requests[requests.size() - back];
      blocks = old.blocks;
      session = old.session;
      if (random.chance(0.5)) blocks.resize(random.below(blocks.size() + 1));
    }
    for (std::uint64_t more = random.below(6) + (blocks.empty() ? 1 : 0); more > 0; --more)
      blocks.push_back(++name);
    if (blocks.size() > longest) blocks.resize(longest);
    now += random.below(2'000);
    requests.push_back(request_of(now, std::move(blocks), session));
  }
  return table_of(std::move(requests));
}

}  // namespace ashlar::replay
