// A chunk is copied row by row: the innermost axis is a loop of copies with two strides and no division,
// which matters when a piece is one head of one token.
#include "ashlar/transfer/host_executors.h"

#include <utility>

#include "transfer/copy/planned_units.h"
#include "transfer/copy/transfer_threads.h"

namespace ashlar::transfer {
namespace {

class MemcpyWork final : public ChunkedWork {
 public:
  MemcpyWork(const TransferPlan& plan, std::uint64_t strip_bytes) : plan_(plan), units_(plan, strip_bytes) {}

  std::uint64_t units() const noexcept override { return units_.count(); }
  std::uint64_t chunk_end(std::uint64_t first) const noexcept override { return units_.chunk_end(first); }
  void move(TransferState& state, std::uint64_t first, std::uint64_t end) const override {
    TransferStats stats;
    units_.each_row(first, end, [&](std::size_t plane, const CopyRow& row) {
      copy_row(row, plan_.from().address(plane, row.from), plan_.to().address(plane, row.to), &stats);
      return true;
    });
    state.moved(stats);
  }

 private:
  const TransferPlan& plan_;
  const PlannedUnits units_;
};

}  // namespace

Result<void> MemcpyOptions::validate() const {
  if (threads == 0 || threads > 1024)
    return make_error(ErrorCode::kInvalidArgument, "threads is %u; it is 1 to 1024", threads);
  if (strip_bytes == 0 || strip_bytes > kMaxStripBytes)
    return make_error(ErrorCode::kInvalidArgument, "strip_bytes is %llu; it is 1 to %llu",
                      static_cast<unsigned long long>(strip_bytes),
                      static_cast<unsigned long long>(kMaxStripBytes));
  return limits.validate();
}

Result<std::unique_ptr<MemcpyExecutor>> MemcpyExecutor::create(const MemcpyOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return TransferThreads::create({options.threads, options.inline_bytes, options.limits, options.clock},
                                 [strip = options.strip_bytes](const TransferPlan& plan) {
                                   return std::make_unique<MemcpyWork>(plan, strip);
                                 })
      .transform([](std::unique_ptr<TransferThreads>&& pool) {
        return std::unique_ptr<MemcpyExecutor>(new MemcpyExecutor(std::move(pool)));
      });
}

MemcpyExecutor::MemcpyExecutor(std::unique_ptr<TransferThreads> pool) noexcept : pool_(std::move(pool)) {}
MemcpyExecutor::~MemcpyExecutor() = default;

bool MemcpyExecutor::handles(const BlockSet& from, const BlockSet& to) const noexcept {
  return from.host_accessible() && to.host_accessible();
}

Result<Transfer> MemcpyExecutor::submit(TransferRequest request) {
  ASHLAR_RETURN_IF_ERROR(check_handles(*this, request.plan));
  return pool_->submit(std::move(request));
}

ExecutorCounters MemcpyExecutor::counters() const {
  return pool_->counters();
}

}  // namespace ashlar::transfer
