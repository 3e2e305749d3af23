// A chunk is copied row by row: the innermost axis is a loop of copies with two strides and no division,
// which matters when a piece is one head of one token.
#include "ashlar/transfer/host_executors.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ashlar/transfer/copy_plan.h"
#include "transfer/copy/transfer_threads.h"

namespace ashlar::transfer {
namespace {

class MemcpyWork final : public ChunkedWork {
 public:
  MemcpyWork(const TransferPlan& plan, std::uint64_t strip_bytes) : plan_(plan), strip_bytes_(strip_bytes) {
    for (const CopyPlan& copy : plan.copies()) {
      const std::uint64_t units = CopyCursor::units(copy, strip_bytes);
      firsts_.push_back(units_);
      units_ += units;
    }
  }

  std::uint64_t units() const noexcept override { return units_; }
  // About a strip of bytes, inside one plane.
  std::uint64_t chunk_end(std::uint64_t first) const noexcept override {
    std::size_t plane = firsts_.size() - 1;
    while (firsts_[plane] > first) --plane;
    const std::uint64_t plane_end = plane + 1 < firsts_.size() ? firsts_[plane + 1] : units_;
    const std::uint64_t unit = std::min(plan_.copies()[plane].piece_bytes(), strip_bytes_);
    return std::min(plane_end, first + strip_bytes_ / unit);
  }
  void move(TransferState& state, std::uint64_t first, std::uint64_t end) const override {
    TransferStats stats;
    for (std::size_t plane = 0; plane < firsts_.size(); ++plane) {
      const std::uint64_t plane_end = plane + 1 < firsts_.size() ? firsts_[plane + 1] : units_;
      const std::uint64_t from = std::max(first, firsts_[plane]);
      const std::uint64_t to = std::min(end, plane_end);
      if (from >= to) continue;
      CopyCursor cursor(plan_.copies()[plane], strip_bytes_, from - firsts_[plane], to - firsts_[plane]);
      CopyRow row;
      while (cursor.next_row(&row)) {
        const std::byte* source = plan_.from().address(plane, row.from);
        std::byte* target = plan_.to().address(plane, row.to);
        for (std::uint64_t i = 0; i < row.count; ++i) {
          std::memcpy(target, source, row.bytes);
          source += row.from_stride;
          target += row.to_stride;
        }
        stats.bytes += row.bytes * row.count;
        stats.operations += row.count;
      }
    }
    state.moved(stats);
  }

 private:
  const TransferPlan& plan_;
  const std::uint64_t strip_bytes_;
  std::vector<std::uint64_t> firsts_;  // unit at which each plane starts
  std::uint64_t units_ = 0;
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
