// EngineRank: the blocks that one rank of an engine holds, and those that wait to be placed, by the rules of
// EngineIngest (ashlar/feed/engine_session.h).
//
// A held block has its content, its tiers, and how many copies the device has; it is forgotten when no tier
// has it. Children keep their own content, so a chain exists only through the names of its blocks. A block
// that gets its content releases the blocks that wait for it, iteratively, after the run that named it.
//
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/events/tier.h"
#include "ashlar/feed/engine_session.h"
#include "base/byte_io.h"
#include "feed/block_content.h"
#include "feed/engine_lookahead.h"
#include "feed/engine_run.h"
#include "feed/held_blocks.h"
#include "feed/waiting_blocks.h"

namespace ashlar::feed {

class EngineRank {
 public:
  // Waiting blocks count against the budget, which outlives the rank.
  EngineRank(std::uint32_t rank, const EngineIngestOptions& options, ByteBudget& budget);

  std::uint32_t rank() const noexcept { return rank_; }
  // Sets `refusal` to the reason when events are left out.
  void apply(const events::EngineBatch& batch, EngineIngestCounters& counters, std::string& refusal,
             ChangeOutput out);
  void clear(EngineIngestCounters& counters, ChangeOutput out);
  // Requires: nothing was applied.
  void set_rank(std::uint32_t rank) noexcept { rank_ = rank; }
  void reserve(std::size_t blocks) { blocks_.reserve(blocks); }
  // The stream continues after a gap.
  void doubt() noexcept { doubt_ = true; }
  // Another engine follows: forgets everything learned.
  void forget();
  // As EngineIngest::save() and load(); a loaded rank was made for that and has applied nothing.
  Result<void> save(ByteWriter& state) const;
  Result<void> load(ByteReader& state);
  // The changes that store everything that a loaded rank holds; its events are numbered on from `before`.
  void tell_all(const EngineRank* before, EngineIngestCounters& counters, ChangeOutput out);

  std::size_t present() const noexcept { return present_; }
  // Of the lowest group that an index needs; 0: not known yet.
  std::uint32_t block_size() const noexcept;
  std::size_t waiting() const noexcept { return waiting_.size(); }
  // Aborts on inconsistent tables. For tests.
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kMaxGroup = 0xFFFF;  // KvEvent::group
  static constexpr std::size_t kDevice = events::G1::kIndex;
  struct Group {
    std::uint32_t block_size = 0;
    std::optional<bool> whole_prefix;  // by the engine's kind for it
  };
  // The outcome of one batch.
  struct Turn {
    EngineIngestCounters& counters;
    std::string& refusal;
    ChangeOutput out;
  };

  // `ahead` is of the event's names.
  void on_stored(const events::EngineBatch& batch, const events::EngineEvent& event, std::size_t tier,
                 const NamesAhead& ahead, Turn& turn);
  void on_removed(const events::EngineBatch& batch, const events::EngineEvent& event, std::size_t tier,
                  const NamesAhead& ahead, Turn& turn);
  // Of some of its names.
  void remove(std::span<const events::BlockName> names, std::uint32_t group, std::size_t tier,
              const NamesAhead& ahead, Turn& turn);
  void remove_for_index(std::span<const events::BlockName> names, std::uint32_t group, std::size_t tier,
                        const NamesAhead& ahead, Turn& turn);
  // Calls drop(found) for those that are gone now.
  template <class Drop>
  void remove_each(std::span<const events::BlockName> names, std::uint32_t group, std::size_t tier,
                   const NamesAhead& ahead, Turn& turn, Drop&& drop);
  void on_cleared(std::size_t tier, Turn& turn);

  void store_placeholders(std::span<const events::BlockName> names, std::uint32_t group, std::size_t tier,
                          Turn& turn);
  // Places the run after `known_parent` if the caller has it, else after the block that run.parent names.
  void store(const EngineRun& run, const RunParent* known_parent, Turn& turn);
  // Places the blocks of a run with an unknown parent, as far as they are known themselves. Returns how many.
  std::size_t store_known(const EngineRun& run, Turn& turn);
  void place(const EngineRun& run, const RunParent* parent, Turn& turn);
  // Places the blocks of content_ up to the first that is held. Requires: no block waits, and none of the run
  // is gone. Returns how many.
  std::size_t place_new(const EngineRun& run, const RunParent* parent, bool is_indexed, Turn& turn);
  // The number of the sequence of content_.
  std::uint32_t sequence_behind(const EngineRun& run, const RunParent* parent, bool is_indexed);
  void settle(Turn& turn);
  void wait(const EngineRun& run, Turn& turn);
  bool is_report(const EngineRun& run) const;
  // Whether block `block` of content_ can be the one that is held.
  bool agrees(const EngineRun& run, std::size_t block, const EngineBlock& held) const;
  // Whether the tokens of a block are those of the one that is held, as far as that can be seen.
  bool has_tokens_of(const EngineRun& run, std::size_t block, const EngineBlock& held) const;

  // Its parent, among the blocks of other groups.
  const EngineBlock* find_elsewhere(const EngineRun& run) const;
  bool indexed(std::uint32_t group) const;
  const Group* find_group(std::uint32_t number) const;  // null: no event named it
  Group& group_of(std::uint32_t number);
  // Whether a parent of that name and hash is held now: then events name it.
  bool holds(std::uint32_t group, events::BlockName name, const tokens::SequenceHash& hash) const {
    const EngineBlock* const held = blocks_.find({group, name});
    return held != nullptr && held->hash == hash;
  }
  EngineBlock& add_block(const EngineKey& key, const BlockContent& content);
  void add(const EngineKey& key, EngineBlock& held, std::size_t tier, Turn& turn);
  // Prefetches their places. Requires: EngineLookahead::kMost names at most.
  std::span<const HeldBlocks::Probe> look_ahead(std::uint32_t group,
                                                std::span<const events::BlockName> names);
  // Requires: it is in that tier. Calls tell(block), and forgets a block that no tier has.
  template <class Tell>
  void drop(const HeldBlocks::Found& found, std::size_t tier, Turn& turn, Tell&& tell);
  // The same, told as others are.
  void drop_all(const EngineKey& key, const HeldBlocks::Found& found, std::size_t tier, Turn& turn);
  void tell(events::KvEventKind kind, const EngineKey& key, const EngineBlock& held, std::size_t tier,
            ChangeOutput out);
  void tell_event(events::KvEventKind kind, const EngineKey& key, const EngineBlock& held, std::size_t tier,
                  std::vector<events::KvEvent>& out);
  bool continues(const IndexChanges& out, events::KvEventKind kind, std::uint32_t group,
                 std::size_t tier) const;
  void tell_index(events::KvEventKind kind, const EngineKey& key, const EngineBlock& held, std::size_t tier,
                  IndexChanges& out);
  // The first blocks of content_ are stored now; `parent_name`, if it is held.
  void tell_run(const EngineRun& run, std::span<const events::BlockName> names,
                const std::optional<events::BlockName>& parent_name, bool is_indexed, ChangeOutput out);
  void tell_run_events(const EngineRun& run, std::span<const events::BlockName> names,
                       const std::optional<events::BlockName>& parent_name, bool is_indexed,
                       std::vector<events::KvEvent>& out);
  // What events of a group and a sequence share. Hashes are those of group 0.
  void fill_shared(events::KvEvent& event, events::KvEventKind kind, std::uint32_t group,
                   const tokens::SequenceHash& root, bool is_indexed, std::size_t tier) const;

  std::uint32_t rank_;
  std::uint32_t block_size_;
  std::uint32_t max_groups_;
  std::uint32_t max_salt_bytes_;
  bool full_reports_;
  std::shared_ptr<const std::atomic<bool>> full_reports_asked_;
  ContentHasher hasher_;
  HeldBlocks blocks_;
  WaitingBlocks waiting_;
  std::unordered_map<std::uint32_t, Group> groups_;
  std::pair<std::uint32_t, Group*> last_group_{};  // of the last event that stored; null: none
  std::optional<bool> publishes_keys_;             // whether device stores carry extra keys
  // Since the device tier was last known to be empty, an event was lost or taken for a full report: unknown
  // device blocks may exist, and a full report may name them.
  bool doubt_ = false;
  std::size_t present_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::deque<std::pair<EngineKey, BlockContent>> named_;  // blocks whose waiters are to be placed
  RunContent content_;                                    // of the run that is placed
  EngineLookahead::Memory ahead_;
  // Of names that were not looked ahead.
  std::vector<HeldBlocks::Probe> probes_;
  std::vector<std::uint32_t> numbers_;
  std::vector<tokens::Token> unpaired_;
};

}  // namespace ashlar::feed
