#include "transfer/hop_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ashlar::transfer {
namespace {

using layout::Axis;
using layout::Layout;
using layout::LayoutConfig;

unsigned long long wide(std::uint64_t value) {
  return value;
}

// The order of axes inside a block, as a layout has them.
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

// One half: blocks in the order of the disk, with the shape of the side that has less.
Result<std::shared_ptr<const BlockSet>> half(const BlockSet& from, const BlockSet& to,
                                             const std::shared_ptr<storage::Storage>& memory,
                                             std::uint64_t offset, std::uint64_t bytes) {
  const BlockSet& ordered = to.kind() == StorageKind::kDisk ? to : from;
  const BlockSet& shaped = to.block_bytes() < from.block_bytes() ? to : from;
  const auto with_blocks = [&](std::uint32_t blocks) -> Result<std::vector<Layout>> {
    std::vector<Layout> layouts;
    for (std::size_t i = 0; i < shaped.planes().size(); ++i) {
      LayoutConfig config = shaped.planes()[i].layout.config();
      config.num_blocks = blocks;
      config.alignment = std::max<std::uint64_t>(config.alignment, 4096);
      const Layout& like = ordered.planes()[std::min(i, ordered.planes().size() - 1)].layout;
      Result<Layout> made = Layout::create(config, order_inside(like));
      if (!made) return made.error();
      layouts.push_back(*std::move(made));
    }
    return layouts;
  };
  const Result<std::vector<Layout>> one = with_blocks(1);
  if (!one) return one.error();
  std::uint64_t per_block = 0;
  for (const Layout& layout : *one) per_block += layout.strides().block;
  const std::uint64_t blocks = std::min<std::uint64_t>(bytes / per_block, 1u << 20);
  if (blocks == 0)
    return make_error(
        ErrorCode::kCapacity,
        "staging memory of %llu bytes is too small: a block takes %llu, and two halves of at least one are "
        "needed",
        wide(memory->size()), wide(per_block));
  const Result<std::vector<Layout>> layouts = with_blocks(static_cast<std::uint32_t>(blocks));
  if (!layouts) return layouts.error();
  std::vector<Plane> planes;
  for (std::size_t i = 0; i < layouts->size(); ++i) {
    planes.push_back({(*layouts)[i], shaped.planes()[i].shard, {{memory, offset}}});
    offset += (*layouts)[i].strides().block * blocks;
  }
  return BlockSet::create(std::move(planes));
}

}  // namespace

HopRunner::HopRunner(const EngineOptions& options)
    : options_(options),
      admission_(options.limits, options.clock == nullptr ? Clock::real() : *options.clock),
      thread_([this] { run(); }) {}

HopRunner::~HopRunner() {
  admission_.close();
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    for (const Job& job : jobs_) job.state->cancel();
    work_.notify_all();
  }
  thread_.join();
}

Result<std::shared_ptr<storage::Storage>> HopRunner::memory() {
  const MutexLock lock(memory_mu_);
  if (memory_ == nullptr) {
    Result<std::shared_ptr<storage::Storage>> made = options_.staging->allocate(options_.staging_bytes, 4096);
    if (!made) return made.error();
    memory_ = *std::move(made);
  }
  return memory_;
}

Result<Staging> HopRunner::route(const BlockSet& from, const BlockSet& to) {
  const auto refuse = [&](const char* why) {
    return make_error(ErrorCode::kUnsupported, "no way from %s to %s storage: %s",
                      std::string(to_string(from.kind())).c_str(), std::string(to_string(to.kind())).c_str(),
                      why);
  };
  if (options_.staging == nullptr) return refuse("no executor handles both, and no staging memory was given");
  const Result<std::shared_ptr<storage::Storage>> area = memory();
  if (!area) return area.error();
  const std::uint64_t bytes = (*area)->size() / 2 / 4096 * 4096;
  Staging staging;
  for (std::size_t i = 0; i < 2; ++i) {
    Result<std::shared_ptr<const BlockSet>> made = half(from, to, *area, i * bytes, bytes);
    if (!made) return made.error();
    staging.halves[i] = *std::move(made);
  }
  for (const std::shared_ptr<Executor>& executor : options_.executors) {
    if (staging.in == nullptr && executor->handles(from, *staging.halves[0])) staging.in = executor.get();
    if (staging.out == nullptr && executor->handles(*staging.halves[0], to)) staging.out = executor.get();
  }
  if (staging.in == nullptr || staging.out == nullptr) return refuse("no two executors lead there");
  return staging;
}

Result<Transfer> HopRunner::submit(TransferRequest request) {
  Result<Staging> staging = route(request.plan.from(), request.plan.to());
  if (!staging) return staging.error();
  Result<std::shared_ptr<TransferState>> state = TransferState::admit(std::move(request), admission_);
  if (!state) return state.error();
  const Transfer transfer(*state);
  const MutexLock lock(mu_);
  jobs_.push_back({*std::move(state), *std::move(staging)});
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
    }
    if (job->state->may_continue()) move(*job);
    job->staging = {};
    job->state->finish();
  }
}

bool HopRunner::settle(TransferState& state, std::optional<Running>& hop) {
  if (!hop) return true;
  const TransferResult result = hop->transfer.wait_for_end();
  const std::uint64_t bytes = hop->bytes;
  hop.reset();
  if (!result) {
    state.fail(result.error());
    return false;
  }
  TransferStats stats = result->stats;
  stats.bytes = bytes;
  stats.staged_bytes = bytes;
  state.moved(stats);
  return true;
}

void HopRunner::move(const Job& job) {
  TransferState& state = *job.state;
  const TransferPlan& whole = state.plan();
  const std::span<const BlockPair> pairs = whole.copies()[0].pairs();
  const std::size_t batch = job.staging.halves[0]->num_blocks();
  state.start();
  std::array<std::optional<Running>, 2> running;
  for (std::size_t first = 0, turn = 0; first < pairs.size(); first += batch, turn ^= 1) {
    // This half is free once the batch before the last has left it.
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
    const auto hop = [&](Executor& executor, Result<TransferPlan> planned) -> Result<Running> {
      if (!planned) return planned.error();
      const std::uint64_t bytes = planned->bytes();
      Result<Transfer> submitted = executor.submit({.plan = *std::move(planned)});
      if (!submitted) return submitted.error();
      return Running{*std::move(submitted), bytes};
    };
    Result<Running> in =
        hop(*job.staging.in, plan(whole.shared_from(), from, middle, between, whole.selection()));
    if (!in) {
      state.fail(in.error());
      break;
    }
    if (const TransferResult read = in->transfer.wait_for_end(); !read) {
      state.fail(read.error());
      break;
    }
    if (!state.may_continue()) break;
    Result<Running> out =
        hop(*job.staging.out, plan(middle, between, whole.shared_to(), to, whole.selection()));
    if (!out) {
      state.fail(out.error());
      break;
    }
    running[turn] = *std::move(out);
  }
  for (std::optional<Running>& hop : running) settle(state, hop);
}

}  // namespace ashlar::transfer
