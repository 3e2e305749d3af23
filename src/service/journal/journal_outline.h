// journal_outline(): what the workers of a group held at a moment of a journal, as its records tell.
//
// Thread safety: a function.
// Complexity:    O(records until then): they are replayed from the first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/index/flash_index.h"
#include "ashlar/service/journal.h"

namespace ashlar::service {

// With everything before the first choice, first byte or end that is later than `until`. Empty: no such group
// then. Errors: as replay_journal(); kUnsupported: the run's first files were removed; kCapacity: more than
// `max_bytes` are to be read.
Result<index::IndexOutline> journal_outline(std::span<const std::string> files, const JournalKey& key,
                                            std::string_view group, Clock::TimePoint until,
                                            std::uint64_t max_bytes);

}  // namespace ashlar::service
