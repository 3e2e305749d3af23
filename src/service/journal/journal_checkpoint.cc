#include "service/journal/journal_checkpoint.h"

#include <utility>

#include "service/route/route_checkpoint.h"

namespace ashlar::service {

namespace {

constexpr std::size_t kRecordBytes = std::size_t{1} << 20;

enum CallKind : std::uint8_t { kStore = 0, kRemove = 1 };

void put_tier(ByteWriter& out, const TierChanges& tier) {
  for (const std::uint64_t value : {tier.held, tier.most, tier.stored, tier.removed}) out.put(value);
  for (const std::uint64_t blocks : tier.offloaded) out.put(blocks);
}
TierChanges get_tier(ByteReader& in) {
  TierChanges tier;
  for (std::uint64_t* value : {&tier.held, &tier.most, &tier.stored, &tier.removed})
    *value = in.get<std::uint64_t>();
  for (std::uint64_t& blocks : tier.offloaded) blocks = in.get<std::uint64_t>();
  return tier;
}

void put_rank(ByteWriter& out, const RouteCheckpoint::RankPart& rank) {
  out.put(rank.number);
  out.put(static_cast<std::uint8_t>(rank.state));
  out.put(rank.requests);
  for (const std::uint64_t value : {rank.prefill_tokens, rank.decode_blocks, rank.chosen, rank.changes.stored,
                                    rank.changes.removed, rank.changes.cleared})
    out.put(value);
  for (const TierChanges& tier : rank.tiers) put_tier(out, tier);
}
RouteCheckpoint::RankPart get_rank(ByteReader& in) {
  RouteCheckpoint::RankPart rank;
  rank.number = in.get<std::uint64_t>();
  rank.state = static_cast<WorkerState>(in.get<std::uint8_t>());
  rank.requests = in.get<std::uint32_t>();
  for (std::uint64_t* value : {&rank.prefill_tokens, &rank.decode_blocks, &rank.chosen, &rank.changes.stored,
                               &rank.changes.removed, &rank.changes.cleared})
    *value = in.get<std::uint64_t>();
  for (TierChanges& tier : rank.tiers) tier = get_tier(in);
  return rank;
}

ByteWriter state_record(const RouteCheckpoint& state, const JournalCipher& cipher) {
  ByteWriter out;
  put_time(out, state.now);
  out.put(state.next_decision);
  out.put(state.next_rank);
  out.put(static_cast<std::uint32_t>(state.workers.size()));
  for (const RouteCheckpoint::WorkerPart& worker : state.workers) {
    put_spec(out, worker.spec);
    out.put(static_cast<std::uint8_t>(worker.is_up));
    for (const RouteCheckpoint::RankPart& rank : worker.ranks) put_rank(out, rank);
  }
  out.put(static_cast<std::uint32_t>(state.running.size()));
  for (const RouteCheckpoint::RunningPart& one : state.running) {
    out.put(one.decision.value());
    put_worker(out, one.worker);
    for (const std::uint64_t value : {one.rank_number, one.prefill_tokens, one.decode_blocks}) out.put(value);
  }
  out.put(static_cast<std::uint32_t>(state.sessions.size()));
  for (const RouteCheckpoint::SessionPart& one : state.sessions) {
    out.put(cipher.session(one.session));
    put_worker(out, one.worker);
  }
  return out;
}

bool read_state(ByteReader& in, std::uint32_t version, RouteCore& core, const SpecHearer& hear) {
  RouteCheckpoint state;
  state.now = get_time(in);
  state.next_decision = in.get<std::uint64_t>();
  state.next_rank = in.get<std::uint64_t>();
  for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left) {
    RouteCheckpoint::WorkerPart worker;
    worker.spec = get_spec(in, version);
    if (in.ok() && hear) hear(worker.spec);
    worker.is_up = in.get<std::uint8_t>() != 0;
    if (worker.spec.ranks == 0 || worker.spec.ranks > kMaxJournalRanks) return false;
    for (std::uint32_t i = 0; i < worker.spec.ranks && in.ok(); ++i) worker.ranks.push_back(get_rank(in));
    state.workers.push_back(std::move(worker));
  }
  for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left) {
    RouteCheckpoint::RunningPart one;
    one.decision = DecisionId(in.get<std::uint64_t>());
    one.worker = get_worker(in);
    for (std::uint64_t* value : {&one.rank_number, &one.prefill_tokens, &one.decode_blocks})
      *value = in.get<std::uint64_t>();
    state.running.push_back(one);
  }
  for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left) {
    const auto session = in.get<std::uint64_t>();
    state.sessions.push_back({.session = session, .worker = get_worker(in)});
  }
  if (!in.ok()) return false;
  core.load(state);
  return true;
}

void put_predictions(ByteWriter& out, const std::vector<index::PredictedBlock>& blocks,
                     const JournalCipher& cipher) {
  out.put(static_cast<std::uint32_t>(blocks.size()));
  for (const index::PredictedBlock& block : blocks) {
    put_worker(out, block.worker);
    out.put(block.parent);
    out.put(cipher.block(block.local.value()));
    out.put(block.due);
  }
}
bool get_predictions(ByteReader& in, std::vector<index::PredictedBlock>& blocks) {
  for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left) {
    index::PredictedBlock block;
    block.worker = get_worker(in);
    block.parent = in.get<std::uint32_t>();
    block.local = tokens::LocalHash(in.get<std::uint64_t>());
    block.due = in.get<std::int64_t>();
    if (block.parent > blocks.size()) return false;
    blocks.push_back(block);
  }
  return in.ok();
}

ByteWriter group_record(const RouteCheckpoint::GroupPart& group, const JournalCipher& cipher) {
  ByteWriter out;
  put_text(out, group.name);
  out.put(group.turn);
  out.put(static_cast<std::uint32_t>(group.expected.size()));
  for (const auto& [key, time] : group.expected) {
    out.put(key);  // of hashes that passed the cipher already
    put_time(out, time);
  }
  put_predictions(out, group.soon, cipher);
  put_predictions(out, group.lasting, cipher);
  return out;
}

bool read_group(ByteReader& in, RouteCore& core) {
  RouteCheckpoint::GroupPart group;
  group.name = get_text(in);
  group.turn = in.get<std::uint64_t>();
  for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left) {
    const auto key = in.get<std::uint64_t>();
    group.expected.emplace_back(key, get_time(in));
  }
  if (!get_predictions(in, group.soon) || !get_predictions(in, group.lasting)) return false;
  core.load(group);
  return true;
}

// The calls of a dump, gathered into records.
class BlockRecorder final : public events::IndexSink {
 public:
  BlockRecorder(std::string_view group, const JournalCipher& cipher, const RecordHearer& record)
      : group_(group), cipher_(cipher), record_(record) {
    put_text(out_, group_);
  }

  events::StoreVerdict store(const events::BlocksStored& event) override {
    out_.put(static_cast<std::uint8_t>(kStore));
    put_store(out_, event, cipher_);
    end_call();
    return events::StoreVerdict::kApplied;
  }
  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const events::BlockName> names) override {
    out_.put(static_cast<std::uint8_t>(kRemove));
    put_removal(out_, worker, tier, names, cipher_);
    end_call();
    return names.size();
  }
  void clear(const events::Worker&) override { ASHLAR_CHECK(false, "a dump clears nothing"); }
  void remove_worker(events::WorkerId) override { ASHLAR_CHECK(false, "a dump removes no worker"); }

  void finish() {
    if (has_calls_) record_(JournalRecord::kStateBlocks, std::exchange(out_, {}));
  }

 private:
  void end_call() {
    has_calls_ = true;
    if (out_.bytes().size() < kRecordBytes) return;
    record_(JournalRecord::kStateBlocks, std::exchange(out_, {}));
    put_text(out_, group_);
    has_calls_ = false;
  }

  const std::string group_;
  const JournalCipher& cipher_;
  const RecordHearer& record_;
  ByteWriter out_;
  bool has_calls_ = false;
};

bool read_blocks(ByteReader& in, RouteCore& core) {
  const std::string group = get_text(in);
  while (in.ok() && in.left() > 0) {
    if (in.get<std::uint8_t>() == kStore) {
      ReadStore store;
      get_store(in, store);
      if (!in.ok() || !core.load_store(group, store.event)) return false;
    } else {
      ReadRemoval removal;
      get_removal(in, removal);
      if (!in.ok() || !core.load_removal(group, removal.worker, removal.tier, removal.names)) return false;
    }
  }
  return in.ok();
}

}  // namespace

void write_checkpoint(const RouteCore& core, const JournalCipher& cipher, const RecordHearer& record) {
  const RouteCheckpoint state = core.save();
  record(JournalRecord::kState, state_record(state, cipher));
  for (const RouteCheckpoint::GroupPart& group : state.groups) {
    record(JournalRecord::kStateGroup, group_record(group, cipher));
    BlockRecorder blocks(group.name, cipher, record);
    core.reported(group.name)->dump(blocks);
    blocks.finish();
  }
  record(JournalRecord::kStateEnd, {});
}

bool read_checkpoint(JournalRecord type, std::uint32_t version, std::span<const std::byte> payload,
                     RouteCore& core, const SpecHearer& hear) {
  ByteReader in(payload);
  switch (type) {
    case JournalRecord::kState:
      return read_state(in, version, core, hear);
    case JournalRecord::kStateGroup:
      return read_group(in, core);
    case JournalRecord::kStateBlocks:
      return read_blocks(in, core);
    default:
      return type == JournalRecord::kStateEnd;
  }
}

}  // namespace ashlar::service
