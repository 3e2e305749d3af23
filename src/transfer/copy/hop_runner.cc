#include "transfer/copy/hop_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "base/start_thread.h"
#include "base/wide.h"

namespace ashlar::transfer {
namespace {

using layout::Axis;
using layout::Layout;
using layout::LayoutConfig;

// The axis order of a layout inside a block.
layout::AxisOrder order_inside(const Layout& layout) {
  layout::AxisOrder order = {Axis::kBlock, Axis::kLayer, Axis::kOuter, Axis::kToken, Axis::kHead};
  // Regions per layer have no stride for layers; there they are outermost.
  const auto stride = [&](Axis axis) {
    return axis == Axis::kLayer && layout.regions() == layout::Regions::kPerLayer ? ~std::uint64_t{0}
                                                                                  : layout.strides().of(axis);
  };
  std::ranges::sort(order.begin() + 1, order.end(), std::greater<>(), stride);
  return order;
}

// The layout of a plane in staging memory, for `blocks` blocks: the moving layers and heads, in disk order.
// Opaque content keeps its strides inside a layer.
Result<Layout> middle_layout(const Plane& source, const Layout& ordered, const PlanSelection& selection,
                             std::uint32_t blocks) {
  LayoutConfig config = source.layout.config();
  config.block_count = blocks;
  config.num_layers = selection.layers->count;
  if (config.num_heads > 1) config.num_heads = selection.heads->count;
  config.inner_dim = config.num_heads * config.head_dim;
  config.alignment = 4096;
  config.layer_alignment = 1;
  if (!config.opaque) return Layout::create(config, order_inside(ordered));
  layout::Strides strides = source.layout.strides();
  strides.layer = config.head_bytes();
  for (const Axis axis : {Axis::kOuter, Axis::kToken, Axis::kHead})
    strides.layer += strides.of(axis) * (source.layout.extent(axis) - 1);
  strides.block = (strides.layer * config.num_layers + 4095) / 4096 * 4096;
  return Layout::create(config, strides);
}

// One half of the staging memory.
Result<std::shared_ptr<const BlockSet>> half(const BlockSet& from, const BlockSet& to,
                                             const PlanSelection& selection,
                                             const std::shared_ptr<storage::Storage>& memory,
                                             std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t end = offset + bytes;
  const BlockSet& ordered = to.kind() == StorageKind::kDisk ? to : from;
  const auto with_blocks = [&](std::uint32_t blocks) -> Result<std::vector<Layout>> {
    std::vector<Layout> layouts;
    for (std::size_t i = 0; i < from.planes().size(); ++i) {
      ASHLAR_TRY(const Layout made,
                 middle_layout(from.planes()[i], ordered.planes()[i].layout, selection, blocks));
      layouts.push_back(made);
    }
    return layouts;
  };
  ASHLAR_TRY(const std::vector<Layout> one, with_blocks(1));
  std::uint64_t per_block = 0;
  for (const Layout& layout : one) per_block += layout.strides().block;
  const std::uint64_t blocks = std::min<std::uint64_t>(bytes / per_block, 1u << 20);
  if (blocks == 0)
    return make_error(
        ErrorCode::kCapacity,
        "staging memory of %llu bytes is too small: a block takes %llu, and two halves of at least one are "
        "needed",
        wide(memory->size()), wide(per_block));
  ASHLAR_TRY(const std::vector<Layout> layouts, with_blocks(static_cast<std::uint32_t>(blocks)));
  std::vector<Plane> planes;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const layout::Shard shard{*selection.layers, {selection.heads->first, layouts[i].config().num_heads}};
    planes.push_back({layouts[i], shard, {{memory, offset}}});
    offset += layouts[i].strides().block * blocks;
  }
  ASHLAR_CHECK(offset <= end, "the planes of %llu staged blocks pass the end of their half of the memory",
               wide(blocks));
  return BlockSet::create(std::move(planes));
}

}  // namespace

HopRunner::HopRunner(const TransferEngineOptions& options)
    : options_(options),
      admission_(options.limits, options.clock == nullptr ? Clock::real() : *options.clock) {}

Result<std::unique_ptr<HopRunner>> HopRunner::create(const TransferEngineOptions& options) {
  std::unique_ptr<HopRunner> runner(new HopRunner(options));
  ASHLAR_RETURN_IF_ERROR(start_thread(&runner->thread_, [raw = runner.get()] { raw->run(); }));
  return runner;
}

HopRunner::~HopRunner() {
  if (!thread_.joinable()) return;
  ASHLAR_CHECK(thread_.get_id() != std::this_thread::get_id(),
               "an engine is destroyed on its own thread: a callback held the last reference to it");
  admission_.close();
  std::vector<std::shared_ptr<TransferState>> all;
  {
    const MutexLock lock(mu_);
    closing_ = true;
    for (const Job& job : jobs_) all.push_back(job.state);
    if (current_ != nullptr) all.push_back(current_);
  }
  for (const std::shared_ptr<TransferState>& state : all) state->cancel();
  admission_.wait_empty();
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    work_.notify_all();
  }
  thread_.join();
}

Result<std::shared_ptr<storage::Storage>> HopRunner::memory() {
  const MutexLock lock(memory_mu_);
  if (memory_ == nullptr) {
    ASHLAR_TRY(std::shared_ptr<storage::Storage> made,
               options_.staging->allocate(options_.staging_bytes, 4096));
    memory_ = std::move(made);
  }
  return memory_;
}

Result<Staging> HopRunner::route(const BlockSet& from, const BlockSet& to, const PlanSelection& selection) {
  const auto refuse = [&](const char* why) {
    return make_error(ErrorCode::kUnsupported, "no way from %s to %s storage: %s",
                      std::string(to_string(from.kind())).c_str(), std::string(to_string(to.kind())).c_str(),
                      why);
  };
  if (options_.staging == nullptr) return refuse("no executor handles both, and no staging memory was given");
  const layout::Shard& source = from.planes()[0].shard;
  const layout::Shard& target = to.planes()[0].shard;
  const PlanSelection moved{selection.layers.value_or(intersect(source.layers, target.layers)),
                            selection.heads.value_or(intersect(source.heads, target.heads))};
  if (from.planes().size() != to.planes().size() || moved.layers->count == 0 || moved.heads->count == 0)
    return refuse("the sets have nothing in common");
  ASHLAR_TRY(const std::shared_ptr<storage::Storage> area, memory());
  const std::uint64_t bytes = area->size() / 2 / 4096 * 4096;
  Staging staging;
  for (std::size_t i = 0; i < 2; ++i) {
    ASHLAR_TRY(std::shared_ptr<const BlockSet> made, half(from, to, moved, area, i * bytes, bytes));
    staging.halves[i] = std::move(made);
  }
  for (const std::shared_ptr<Executor>& executor : options_.executors) {
    if (staging.in == nullptr && executor->handles(from, *staging.halves[0])) staging.in = executor.get();
    if (staging.out == nullptr && executor->handles(*staging.halves[0], to)) staging.out = executor.get();
  }
  if (staging.in == nullptr || staging.out == nullptr) return refuse("no two executors connect them");
  return staging;
}

Result<Transfer> HopRunner::submit(TransferRequest request) {
  ASHLAR_TRY(Staging staging, route(request.plan.from(), request.plan.to(), request.plan.selection()));
  ASHLAR_TRY(std::shared_ptr<TransferState> state, TransferState::admit(std::move(request), admission_));
  const Transfer transfer(state);
  const MutexLock lock(mu_);
  if (closing_) state->cancel();
  jobs_.push_back({std::move(state), std::move(staging)});
  work_.notify_all();
  return transfer;
}

void HopRunner::run() {
  for (;;) {
    std::optional<Job> job;
    {
      const MutexLock lock(mu_);
      while (jobs_.empty() && !stopping_) work_.wait(mu_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      current_ = job->state;
    }
    if (job->state->may_continue()) move(*job);
    job->staging = {};
    {
      const MutexLock lock(mu_);
      current_.reset();
    }
    job->state->finish();
  }
}

namespace {

// A hop that was cancelled or late together with its transfer is not a failure.
void fail_unless_stopped(TransferState& state, const Error& error) {
  const bool stopped = error.code() == ErrorCode::kCancelled || error.code() == ErrorCode::kTimeout;
  if (!stopped || state.may_continue()) state.fail(error);
}

}  // namespace

bool HopRunner::settle(TransferState& state, std::optional<Running>& hop) {
  if (!hop) return true;
  state.set_part(hop->transfer);
  const TransferResult result = hop->transfer.wait_for_end();
  state.set_part({});
  const std::uint64_t bytes = hop->bytes;
  const std::uint64_t operations = hop->operations;
  hop.reset();
  if (!result) {
    fail_unless_stopped(state, result.error());
    return false;
  }
  TransferStats stats = result->stats;
  stats.operations += operations;
  stats.bytes = bytes;
  stats.staged_bytes = bytes;
  state.moved(stats);
  return true;
}

void HopRunner::sweep() {
  std::vector<std::shared_ptr<TransferState>> over;
  {
    const MutexLock lock(mu_);
    std::erase_if(jobs_, [&](const Job& job) {
      if (job.state->may_continue()) return false;
      over.push_back(job.state);
      return true;
    });
  }
  for (const std::shared_ptr<TransferState>& state : over) state->finish();
}

void HopRunner::move(const Job& job) {
  TransferState& state = *job.state;
  const TransferPlan& whole = state.plan();
  const std::span<const BlockPair> pairs = whole.copies()[0].pairs();
  const std::size_t batch = job.staging.halves[0]->block_count();
  ASHLAR_DCHECK(job.staging.halves[1]->block_count() == batch, "the two halves hold %zu and %u blocks", batch,
                job.staging.halves[1]->block_count());
  state.start();
  std::array<std::optional<Running>, 2> running;
  for (std::size_t first = 0, turn = 0; first < pairs.size(); first += batch, turn ^= 1) {
    sweep();
    // This half is free once its previous batch has left it.
    if (!settle(state, running[turn]) || !state.may_continue()) break;
    const std::span<const BlockPair> part = pairs.subspan(first, std::min(batch, pairs.size() - first));
    std::vector<std::uint32_t> from;
    std::vector<std::uint32_t> between;
    std::vector<std::uint32_t> to;
    for (const BlockPair& pair : part) {
      between.push_back(static_cast<std::uint32_t>(from.size()));
      from.push_back(pair.from);
      to.push_back(pair.to);
    }
    const std::shared_ptr<const BlockSet>& middle = job.staging.halves[turn];
    const auto hop = [&](Executor& executor, Result<TransferPlan> result) -> Result<Running> {
      ASHLAR_TRY(TransferPlan planned, std::move(result));
      const std::uint64_t bytes = planned.bytes();
      ASHLAR_TRY(Transfer submitted,
                 executor.submit({.plan = std::move(planned), .deadline = state.deadline()}));
      return Running{std::move(submitted), bytes, 0};
    };
    Result<Running> in =
        hop(*job.staging.in, plan(whole.shared_from(), from, middle, between, whole.selection()));
    if (!in) {
      fail_unless_stopped(state, in.error());
      break;
    }
    state.set_part(in->transfer);
    const TransferResult read = in->transfer.wait_for_end();
    state.set_part({});
    if (!read) {
      fail_unless_stopped(state, read.error());
      break;
    }
    if (!state.may_continue()) break;
    Result<Running> out =
        hop(*job.staging.out, plan(middle, between, whole.shared_to(), to, whole.selection()));
    if (!out) {
      fail_unless_stopped(state, out.error());
      break;
    }
    out->operations = read->stats.operations;
    running[turn] = *std::move(out);
  }
  for (std::optional<Running>& hop : running) settle(state, hop);
}

}  // namespace ashlar::transfer
