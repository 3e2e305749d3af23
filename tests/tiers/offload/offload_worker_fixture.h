// Lanes between the tiers of a test.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "ashlar/tiers/offload_lane.h"
#include "tiers/tier_fixture.h"

namespace ashlar::tiers {

class OffloadLaneTest : public TierTest {
 protected:
  std::unique_ptr<OffloadLane> lane(BytePool& from, BytePool& to, OffloadLaneOptions options = {},
                                    OffloadLane::Arrived arrived = {}) {
    return OffloadLane::create(
               from, to,
               [&](std::vector<block::Hold> holds, const MoveOptions& move) -> OffloadLane::Finish {
                 const std::shared_ptr<BlockMover::Running> running =
                     mover_->begin(from, to, std::move(holds), move);
                 return [running] { return running->finish(); };
               },
               std::move(options), std::move(arrived))
        .value();
  }
  static std::vector<SequenceHash> names(std::initializer_list<std::uint64_t> contents) {
    std::vector<SequenceHash> out;
    for (const std::uint64_t content : contents) out.push_back(name(content));
    return out;
  }
};

}  // namespace ashlar::tiers
