#include "tiers/offload/offload_worker.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

bool OffloadCandidate::is_present_below() const {
  return to_->has(hash);
}

Result<void> OffloadQueueOptions::validate() const {
  if (on_deck == 0 || waiting == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "a queue with room for %zu on deck and %zu waiting lets nothing through", on_deck,
                      waiting);
  return {};
}

Result<void> OffloadWorkerOptions::validate() const {
  if (batch_blocks == 0)
    return make_error(ErrorCode::kInvalidArgument, "batch_blocks is 0; no block would be offloaded");
  if (full_batch == 0 || full_batch > batch_blocks || full_batch > queue.on_deck)
    return make_error(ErrorCode::kInvalidArgument,
                      "full_batch is %zu; it is at least 1 and at most batch_blocks (%zu) and on_deck (%zu)",
                      full_batch, batch_blocks, queue.on_deck);
  if (batch_bytes == 0)
    return make_error(ErrorCode::kInvalidArgument, "batch_bytes is 0; no block would be offloaded");
  if (max_wait < Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "max_wait is negative");
  if (!policy)
    return make_error(ErrorCode::kInvalidArgument, "policy is empty; every_block() lets all through");
  return queue.validate();
}

namespace {

constexpr std::size_t kOfferedAtATime = 64;

std::size_t largest_batch(const OffloadWorkerOptions& options, const TierPool& from) {
  return std::clamp<std::uint64_t>(options.batch_bytes / std::max<std::uint64_t>(1, from.block_bytes()), 1,
                                   options.batch_blocks);
}

// The precondition of block i unless it has passed, out of none, one for all blocks or one for each.
std::vector<block::Fence> precondition(std::size_t i, std::span<const block::Fence> after) {
  if (after.empty()) return {};
  const block::Fence& fence = after[after.size() == 1 ? 0 : i];
  return fence.passed() ? std::vector<block::Fence>() : std::vector{fence};
}

// The block that has the name now, whenever it was offered: another may have had it then.
std::optional<OffloadTable::Source> source_in(TierPool& pool, const SequenceHash& hash) {
  std::optional<block::Hold> hold = pool.hold(hash);
  if (!hold) return std::nullopt;
  std::optional<block::Fence> after = pool.records().precondition(*hold);
  return OffloadTable::Source{*std::move(hold), std::move(after)};
}

}  // namespace

OffloadWorker::OffloadWorker(TierPool& from, TierPool& to, Begin begin, OffloadWorkerOptions options,
                             Arrived arrived)
    : from_(from),
      to_(to),
      begin_(std::move(begin)),
      options_(std::move(options)),
      arrived_(std::move(arrived)),
      table_(std::make_shared<OffloadTable>(
          options_, largest_batch(options_, from),
          options_.clock == nullptr ? Clock::real() : *options_.clock,
          [&from](const SequenceHash& hash) { return source_in(from, hash); })) {}

Result<std::unique_ptr<OffloadWorker>> OffloadWorker::create(TierPool& from, TierPool& to, Begin begin,
                                                             OffloadWorkerOptions options, Arrived arrived) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  std::unique_ptr<OffloadWorker> worker(
      new OffloadWorker(from, to, std::move(begin), std::move(options), std::move(arrived)));
  ASHLAR_RETURN_IF_ERROR(start_thread(&worker->thread_, [raw = worker.get()] { raw->run(); }));
  return worker;
}

OffloadWorker::~OffloadWorker() {
  table_->stop();
  if (thread_.joinable()) thread_.join();
  table_->close();
}

bool OffloadWorker::passes(const SequenceHash& hash, std::uint8_t priority) const {
  return options_.policy({hash, priority, options_.uses ? options_.uses(hash) : 0, &to_});
}

std::uint8_t OffloadWorker::priority_of(const SequenceHash& hash) const {
  const std::optional<block::Hold> hold = from_.hold(hash);
  return hold ? from_.record(*hold).retention.priority : block::BlockRetention::kDefaultPriority;
}

OffloadHandle OffloadWorker::offload(std::span<const SequenceHash> hashes, const OffloadOptions& options) {
  ASHLAR_CHECK(options.after.size() <= 1 || options.after.size() == hashes.size(),
               "%zu preconditions for %zu blocks", options.after.size(), hashes.size());
  const auto call = std::make_shared<OffloadCall>(hashes.size(), options, table_);
  std::vector<std::size_t> named;
  named.reserve(hashes.size());
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (call->name(hashes[i])) named.push_back(i);
  // The first are copied while the policy looks at the rest.
  std::map<std::uint8_t, std::vector<OffloadTable::Wanted>, std::greater<>> wanted;  // by priority
  std::vector<SequenceHash> filtered;
  for (std::size_t first = 0; first < named.size(); first += kOfferedAtATime) {
    wanted.clear();
    filtered.clear();
    for (const std::size_t i :
         std::span(named).subspan(first, std::min(kOfferedAtATime, named.size() - first))) {
      const std::uint8_t priority = options.priority ? *options.priority : priority_of(hashes[i]);
      if (passes(hashes[i], priority)) {
        wanted[priority].push_back({hashes[i], precondition(i, options.after)});
      } else {
        filtered.push_back(hashes[i]);
      }
    }
    if (!filtered.empty()) table_->offer({}, filtered, 0, call);
    for (const auto& [priority, blocks] : wanted) table_->offer(blocks, {}, priority, call);
  }
  table_->offered(call);
  return OffloadHandle(call);
}

void OffloadWorker::suggest(std::span<const SequenceHash> hashes, std::uint8_t priority,
                            std::span<const block::Fence> after) {
  ASHLAR_CHECK(after.size() <= 1 || after.size() == hashes.size(), "%zu preconditions for %zu blocks",
               after.size(), hashes.size());
  std::vector<OffloadTable::Wanted> wanted;
  std::vector<SequenceHash> filtered;
  wanted.reserve(std::min(kOfferedAtATime, hashes.size()));
  for (std::size_t first = 0; first < hashes.size(); first += kOfferedAtATime) {
    wanted.clear();
    filtered.clear();
    for (std::size_t i = first; i < std::min(first + kOfferedAtATime, hashes.size()); ++i) {
      if (passes(hashes[i], priority)) {
        wanted.push_back({hashes[i], precondition(i, after)});
      } else {
        filtered.push_back(hashes[i]);
      }
    }
    table_->offer(wanted, filtered, priority);
  }
}

void OffloadWorker::run() {
  std::optional<Batch> before;
  // A byte budget requires batches to run one after the other.
  const bool overlap = options_.bytes_per_second == 0;
  for (;;) {
    std::optional<Batch> next;
    const bool wait = !before.has_value();
    if ((wait || overlap) && table_->wait_for_batch(wait)) {
      next = begin();
    } else if (wait) {
      return;
    }
    if (before) finish(*std::move(before));
    before = std::move(next);
  }
}

std::optional<OffloadWorker::Batch> OffloadWorker::begin() {
  auto [blocks, holds] = table_->take();
  if (holds.empty()) return std::nullopt;
  Batch batch{blocks, {}};
  batch.finish = begin_(std::move(holds), {.deadline = blocks->deadline, .control = &blocks->control});
  return batch;
}

void OffloadWorker::finish(Batch batch) {
  // Callers that hear of the end find no block held.
  const MoveReport report = std::exchange(batch.finish, nullptr)();
  // Before the blocks leave the table, so a caller that waits for that knows they were offered to the next
  // worker.
  const std::vector<OffloadBatch::Member>& members = batch.blocks->members;
  for (std::size_t i = 0; arrived_ && i < members.size(); ++i)
    if (report.blocks.at(i) == Moved::kArrived) arrived_(members[i].hash, members[i].priority);
  table_->finish(batch.blocks, report);
}

}  // namespace ashlar::tiers
