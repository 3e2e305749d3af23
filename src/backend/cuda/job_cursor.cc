// A group is as many patterns and pairs as the launch parameters can hold; jobs are ranges of a group's
// pieces.
#include "backend/cuda/job_cursor.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "ashlar/base/check.h"
#include "backend/cuda/copy_kernel.h"

namespace ashlar::backend::cuda {
namespace {

std::uint64_t address_of(const transfer::BlockSet& set, std::size_t plane,
                         const layout::Place& place) noexcept {
  return reinterpret_cast<std::uintptr_t>(set.address(plane, place));
}

// The widest load, at most 16, that divides every number.
std::uint32_t width_for(std::uint64_t bits) noexcept {
  bits |= 16;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

// Strides of the axes of a side whose pieces are contiguous, and its first address.
template <std::uint64_t JobAxis::* kStride>
std::uint64_t linear_strides(const std::byte* buffer, JobShape* shape) noexcept {
  std::uint64_t stride = shape->piece_bytes;
  for (std::uint32_t i = 0; i < shape->axes; ++i) {
    shape->axis[i].*kStride = stride;
    stride *= shape->axis[i].count.divisor;
  }
  shape->width =
      std::min(shape->width, width_for(shape->piece_bytes | reinterpret_cast<std::uintptr_t>(buffer)));
  return reinterpret_cast<std::uintptr_t>(buffer) - shape->first_piece * shape->piece_bytes;
}

// `words` has the starts of the patterns, two for each.
std::uint64_t run_pieces(const JobShape& shape, const std::uint64_t* words, std::uint64_t patterns,
                         bool at_destination) noexcept {
  std::uint64_t run = 1;
  for (std::uint32_t i = 0; i < shape.axes; ++i) {
    const std::uint64_t stride = at_destination ? shape.axis[i].to_stride : shape.axis[i].from_stride;
    if (stride != run * shape.piece_bytes) return run;
    run *= shape.axis[i].count.divisor;
  }
  const std::size_t side = at_destination ? 1 : 0;
  for (std::uint64_t i = 1; i < patterns; ++i)
    if (words[2 * i + side] - words[2 * i - 2 + side] != run * shape.piece_bytes) return run;
  return run * patterns;
}

}  // namespace

JobCursor::JobCursor(const transfer::CopyPlan& plan, const transfer::BlockSet& from,
                     const transfer::BlockSet& to, std::size_t plane, bool by_source)
    : plan_(plan) {
  const std::uint64_t patterns = plan.patterns().size();
  const std::uint64_t pairs = plan.pairs().size();
  done_ = patterns == 0 || pairs == 0;
  if (done_) return;
  shape_.piece_bytes = plan.piece_bytes();
  shape_.from_block_stride = plan.from_block_stride();
  shape_.to_block_stride = plan.to_block_stride();
  std::uint64_t bits = shape_.piece_bytes | shape_.from_block_stride | shape_.to_block_stride;
  std::vector<transfer::CopyAxis> axes = plan.patterns()[0].axes;  // by destination, as plans have them
  if (by_source) std::ranges::stable_sort(axes, std::greater<>(), &transfer::CopyAxis::from_stride);
  ASHLAR_CHECK(axes.size() <= kMaxAxes, "a pattern has %zu axes; the kernel takes %zu", axes.size(),
               kMaxAxes);
  shape_.axes = static_cast<std::uint32_t>(axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const transfer::CopyAxis& axis = axes[axes.size() - 1 - i];
    shape_.axis[i] = {axis.from_stride, axis.to_stride, Divisor(static_cast<std::uint32_t>(axis.count))};
    bits |= axis.from_stride | axis.to_stride;
  }
  starts_.reserve(2 * patterns);
  for (const transfer::CopyPattern& pattern : plan.patterns()) {
    starts_.push_back(address_of(from, plane, pattern.from));
    starts_.push_back(address_of(to, plane, pattern.to));
    bits |= starts_[starts_.size() - 2] | starts_.back();
  }
  shape_.width = width_for(bits);
  units_ = units_per_piece(shape_.piece_bytes, shape_.width);

  const std::uint64_t pieces = plan.pattern_pieces();
  ASHLAR_CHECK(pieces <= kMaxJobNumber, "a pattern has %llu pieces; the kernel takes %u",
               static_cast<unsigned long long>(pieces), kMaxJobNumber);
  group_patterns_ = std::min<std::uint64_t>({patterns, kLargeWords / 4, kMaxJobNumber / pieces});
  group_pairs_ = std::min<std::uint64_t>(
      {pairs, kLargeWords - 2 * group_patterns_, kMaxJobNumber / (pieces * group_patterns_)});
  ASHLAR_CHECK(group_patterns_ != 0 && group_pairs_ != 0, "no pattern of %llu pieces fits into a launch",
               static_cast<unsigned long long>(pieces));
}

std::uint64_t JobCursor::host_run_bytes(bool at_destination) const noexcept {
  if (starts_.empty()) return 0;
  const std::uint64_t patterns = std::min<std::uint64_t>(group_patterns_, plan_.patterns().size() - pattern_);
  return run_pieces(shape_, starts_.data() + 2 * pattern_, patterns, at_destination) * shape_.piece_bytes;
}

void JobCursor::take_group(LargeCopyJob* job) const {
  const std::uint64_t patterns = std::min<std::uint64_t>(group_patterns_, plan_.patterns().size() - pattern_);
  const std::uint64_t pairs = std::min<std::uint64_t>(group_pairs_, plan_.pairs().size() - pair_);
  job->shape = shape_;
  job->shape.patterns = static_cast<std::uint32_t>(patterns);
  job->shape.pairs = static_cast<std::uint32_t>(pairs);
  job->shape.pattern_pieces = Divisor(static_cast<std::uint32_t>(plan_.pattern_pieces()));
  job->shape.block_pieces = Divisor(static_cast<std::uint32_t>(plan_.pattern_pieces() * patterns));
  std::memcpy(job->words, starts_.data() + 2 * pattern_, 2 * patterns * sizeof(std::uint64_t));
  for (std::uint64_t i = 0; i < pairs; ++i) {
    const transfer::BlockPair& pair = plan_.pairs()[pair_ + i];
    job->words[2 * patterns + i] = pair.from | std::uint64_t{pair.to} << 32;
  }
}

void JobCursor::next(std::uint64_t bytes, LargeCopyJob* job) {
  take_group(job);
  const std::uint64_t all = std::uint64_t{job->shape.block_pieces.divisor} * job->shape.pairs;
  const std::uint64_t wanted = std::max<std::uint64_t>(1, bytes / shape_.piece_bytes);
  const std::uint64_t count = std::min<std::uint64_t>({wanted, all - piece_, kMaxJobNumber / units_});
  job->shape.first_piece = static_cast<std::uint32_t>(piece_);
  job->shape.pieces = static_cast<std::uint32_t>(count);
  ASHLAR_DCHECK(count != 0 && job->used_words() <= kLargeWords, "a job of %llu pieces needs %zu words",
                static_cast<unsigned long long>(count), job->used_words());
  piece_ += count;
  if (piece_ < all) return;
  piece_ = 0;
  pair_ += job->shape.pairs;
  if (pair_ < plan_.pairs().size()) return;
  pair_ = 0;
  pattern_ += job->shape.patterns;
  done_ = pattern_ == plan_.patterns().size();
}

std::uint32_t host_run_pieces(const LargeCopyJob& job, bool at_destination) noexcept {
  return static_cast<std::uint32_t>(run_pieces(job.shape, job.words, job.shape.patterns, at_destination));
}

void make_source_linear(std::byte* buffer, LargeCopyJob* job) noexcept {
  const std::uint64_t start = linear_strides<&JobAxis::from_stride>(buffer, &job->shape);
  const std::uint64_t pattern_bytes = job->shape.pattern_pieces.divisor * job->shape.piece_bytes;
  job->shape.from_block_stride = pattern_bytes * job->shape.patterns;
  for (std::uint32_t i = 0; i < job->shape.patterns; ++i) job->words[2 * i] = start + i * pattern_bytes;
  for (std::uint32_t i = 0; i < job->shape.pairs; ++i) {
    std::uint64_t& pair = job->words[2 * job->shape.patterns + i];
    pair = (pair & ~std::uint64_t{0xffffffff}) | i;
  }
}

void make_destination_linear(std::byte* buffer, LargeCopyJob* job) noexcept {
  const std::uint64_t start = linear_strides<&JobAxis::to_stride>(buffer, &job->shape);
  const std::uint64_t pattern_bytes = job->shape.pattern_pieces.divisor * job->shape.piece_bytes;
  job->shape.to_block_stride = pattern_bytes * job->shape.patterns;
  for (std::uint32_t i = 0; i < job->shape.patterns; ++i) job->words[2 * i + 1] = start + i * pattern_bytes;
  for (std::uint32_t i = 0; i < job->shape.pairs; ++i) {
    std::uint64_t& pair = job->words[2 * job->shape.patterns + i];
    pair = (pair & 0xffffffff) | std::uint64_t{i} << 32;
  }
}

}  // namespace ashlar::backend::cuda
