// Workers between the tiers of a test.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "tiers/offload/offload_worker.h"
#include "tiers/tier_fixture.h"

namespace ashlar::tiers {

class OffloadWorkerTest : public TierTest {
 protected:
  std::unique_ptr<OffloadWorker> worker(BytePool& from, BytePool& to, OffloadWorkerOptions options = {},
                                        OffloadWorker::Arrived arrived = {}) {
    return OffloadWorker::create(
               from, to,
               [&](std::vector<block::Hold> holds, const MoveOptions& move) -> OffloadWorker::Finish {
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
