// dump() of PositionalTables: worker by worker, records and names are copied under the worker's lock and sent
// without it.
//
// Records go by ascending position, so that the predecessor is always sent first; a run of consecutive blocks
// in one tier is one event. Every content is sent once under one name, then in the other tiers of that name,
// then under its other names. Ghosts are sent under names that the worker does not use, which are removed at
// the end.
#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "index/positional/positional_tables.h"

namespace ashlar::index::detail {
namespace {

constexpr std::uint32_t kNone = kNoRecord;

class WorkerDump {
 public:
  // Requires: the lock of `blocks`.
  WorkerDump(const Worker& worker, const WorkerBlocks& blocks) : worker_(worker) {
    blocks.for_each_record([&](std::uint32_t number, const HeldBlock& record) {
      nodes_.push_back({.local = record.local, .position = record.position, .parent = record.parent});
      numbers_.push_back(number);
    });
    names_.reserve(blocks.records());
    blocks.for_each_name(
        [&](const NameEntry& name) { names_.push_back({BlockName(name.name), name.record(), name.tiers}); });
  }

  void send(IndexSink& sink) {
    link();
    choose_names();
    // Each content once, in the fastest tier of its name; then the rest, tier by tier.
    send_runs(sink, [](const Node& node) { return node.tiers & -node.tiers; });
    for (unsigned tier = 1; tier < 1u << kStorageTiers; tier <<= 1)
      send_runs(sink, [tier](const Node& node) { return node.tiers & tier; });
    for (const Name& name : more_names_) send_name(sink, name);
    if (!placeholders_.empty()) sink.remove(worker_, StorageTier::kDevice, placeholders_);
  }

 private:
  struct Node {
    LocalHash local;
    std::uint32_t position = 0;
    std::uint32_t parent = kNone;  // a record's number at first, then a place in nodes_
    std::uint32_t first_child = kNone;
    std::uint32_t next_sibling = kNone;
    BlockName name{};
    unsigned tiers = 0;  // of the name, not yet sent
  };
  struct Name {
    BlockName name;
    std::uint32_t node;  // a record's number at first, then a place in nodes_
    unsigned tiers;
  };

  // Sorts by position and turns numbers of records into places.
  void link();
  // Chooses a name for every node; the others go to more_names_.
  void choose_names();
  template <class TierOf>
  void send_runs(IndexSink& sink, TierOf&& tier_of);
  void send_name(IndexSink& sink, const Name& name);
  BlocksStored event_for(const Node& node, unsigned tier) const {
    BlocksStored event{
        worker_, static_cast<StorageTier>(std::countr_zero(tier)), std::nullopt, node.position, {}};
    if (node.parent != kNone) event.parent = nodes_[node.parent].name;
    return event;
  }

  Worker worker_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> numbers_;  // of the records, by place
  std::vector<Name> names_;
  std::vector<Name> more_names_;
  std::vector<BlockName> placeholders_;
  std::vector<StoredBlock> run_;
};

void WorkerDump::link() {
  std::vector<std::uint32_t> order(nodes_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](std::uint32_t i) { return std::pair(nodes_[i].position, i); });
  // Numbers ascend, so the largest is the last.
  std::vector<std::uint32_t> place(numbers_.empty() ? 0 : std::size_t{numbers_.back()} + 1);
  std::vector<Node> sorted;
  sorted.reserve(nodes_.size());
  for (const std::uint32_t i : order) {
    place[numbers_[i]] = static_cast<std::uint32_t>(sorted.size());
    sorted.push_back(nodes_[i]);
  }
  nodes_ = std::move(sorted);
  for (std::uint32_t at = 0; at < nodes_.size(); ++at) {
    Node& node = nodes_[at];
    if (node.parent == kNone) continue;
    node.parent = place[node.parent];
    node.next_sibling = std::exchange(nodes_[node.parent].first_child, at);
  }
  for (Name& name : names_) name.node = place[name.node];
}

void WorkerDump::choose_names() {
  for (const Name& name : names_) {
    Node& node = nodes_[name.node];
    if (node.tiers == 0) {
      node.name = name.name;
      node.tiers = name.tiers;
    } else {
      more_names_.push_back(name);
    }
  }
  std::vector<BlockName> used;
  auto next_used = used.cbegin();
  std::uint64_t unused = 0;
  for (Node& node : nodes_) {
    if (node.tiers != 0) continue;
    if (used.empty()) {
      for (const Name& name : names_) used.push_back(name.name);
      std::ranges::sort(used);
      next_used = used.cbegin();
    }
    for (; next_used != used.cend() && next_used->value() == unused; ++next_used) ++unused;
    node.name = placeholders_.emplace_back(unused++);
    node.tiers = kDeviceMask;
  }
}

// tier_of(node) is the tier, as a mask, to send the node in; 0 for none.
template <class TierOf>
void WorkerDump::send_runs(IndexSink& sink, TierOf&& tier_of) {
  std::vector<bool> sent(nodes_.size());
  for (std::uint32_t head = 0; head < nodes_.size(); ++head) {
    const unsigned tier = tier_of(nodes_[head]);
    if (tier == 0 || sent[head]) continue;
    run_.clear();
    for (std::uint32_t at = head; at != kNone;) {
      Node& node = nodes_[at];
      run_.push_back({node.local, node.name});
      sent[at] = true;
      node.tiers &= ~tier;
      at = node.first_child;
      while (at != kNone && (sent[at] || tier_of(nodes_[at]) != tier)) at = nodes_[at].next_sibling;
    }
    BlocksStored event = event_for(nodes_[head], tier);
    event.blocks = run_;
    sink.store(event);
  }
}

void WorkerDump::send_name(IndexSink& sink, const Name& name) {
  const Node& node = nodes_[name.node];
  const StoredBlock block{node.local, name.name};
  for (unsigned left = name.tiers; left != 0; left &= left - 1) {
    BlocksStored event = event_for(node, left & -left);
    event.blocks = {&block, 1};
    sink.store(event);
  }
}

}  // namespace

void PositionalTables::dump(IndexSink& sink) const {
  std::vector<Worker> workers;
  {
    const StripeHold hold(gate_);
    for (const std::unique_ptr<WorkerBlocks>& blocks : workers_)
      if (blocks != nullptr) workers.push_back(slots_.workers()[blocks->slot()]);
  }
  for (const Worker& worker : workers) {
    std::optional<WorkerDump> dump;
    {
      const StripeHold hold(gate_);
      WorkerBlocks* blocks = blocks_of(worker);
      if (blocks == nullptr) continue;
      const MutexLock held(blocks->lock);
      dump.emplace(worker, *blocks);
    }
    dump->send(sink);
  }
}

}  // namespace ashlar::index::detail
