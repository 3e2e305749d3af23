// Where the blocks of a tier lie: the planes that KvOptions describes, over memory of an allocator or of the
// caller.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/tiers/kv_options.h"

namespace ashlar::tiers {

// The planes of a tier with this many blocks, as this rank holds them.
Result<std::vector<transfer::PlaneShape>> planes_of(const KvOptions& options, std::uint32_t blocks,
                                                    const layout::AxisOrder& order,
                                                    std::uint64_t alignment = 1);

// The blocks of G1 or G2; `tier` is its field of KvOptions, for messages. Errors: those of the allocator;
// kInvalidArgument: memory that does not fit the options, with the field, what it has and what it needs.
Result<std::shared_ptr<const transfer::BlockSet>> memory_of(const KvOptions& options, const TierShape& shape,
                                                            const char* tier);

// Errors: kInvalidArgument: they share memory; kUnsupported: the executor does not copy between them.
Result<void> check_copies(const transfer::Executor& executor,
                          const std::shared_ptr<const transfer::BlockSet>& g1,
                          const std::shared_ptr<const transfer::BlockSet>& g2);

}  // namespace ashlar::tiers
