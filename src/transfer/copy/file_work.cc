#include "transfer/copy/file_work.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "ashlar/base/check.h"

namespace ashlar::transfer {
namespace {

// Pieces from this size on are separate operations; staging them would only cost a copy.
constexpr std::uint64_t kLargePiece = std::uint64_t{128} << 10;
// Largest run assembled in a buffer.
constexpr std::uint64_t kMaxStage = std::uint64_t{4} << 20;
static_assert(kLargePiece <= kMaxStage, "a piece that is staged fits into a staging buffer");
static_assert(kMaxStage % 4096 == 0, "a full staging buffer can be written past the page cache");

}  // namespace

FileWork::FileWork(const TransferPlan& plan, std::uint64_t strip_bytes)
    : plan_(plan),
      chunk_bytes_(strip_bytes),
      direction_(plan.to().kind() == StorageKind::kDisk ? storage::IoDirection::kWrite
                                                        : storage::IoDirection::kRead) {
  const Side file_side = direction_ == storage::IoDirection::kWrite ? Side::kTo : Side::kFrom;
  for (const CopyPlan& copy : plan.copies()) {
    PlaneWork work{copy.piece_bytes() < kLargePiece ? copy.gather(file_side, kMaxStage)
                                                    : GatheredPlan{copy, {}, copy.piece_bytes()},
                   strip_bytes, units_, 0};
    if (!work.plan.inner.empty()) {
      work.strip_bytes = work.plan.runs.piece_bytes();
      staging_bytes_ = std::max(staging_bytes_, work.strip_bytes);
    }
    units_ += CopyCursor::units(work.plan.runs, work.strip_bytes);
    work.end = units_;
    planes_.push_back(std::move(work));
  }
}

std::uint64_t FileWork::chunk_end(std::uint64_t first) const noexcept {
  std::size_t plane = planes_.size() - 1;
  while (planes_[plane].first > first) --plane;
  const PlaneWork& work = planes_[plane];
  const std::uint64_t unit = std::min(work.plan.runs.piece_bytes(), work.strip_bytes);
  return std::min(work.end, first + std::max<std::uint64_t>(1, chunk_bytes_ / unit));
}

FileWork::Cursor::Cursor(const FileWork& work, std::uint64_t first, std::uint64_t end)
    : work_(&work), first_(first), end_(end) {
  while (plane_ < work.planes_.size() && !enter(plane_)) ++plane_;
}

// Makes the cursor of a plane; false when none of the units are in it.
bool FileWork::Cursor::enter(std::size_t plane) {
  const PlaneWork& work = work_->planes_[plane];
  const std::uint64_t from = std::max(first_, work.first);
  const std::uint64_t to = std::min(end_, work.end);
  if (from >= to) return false;
  cursor_.assign(1, CopyCursor(work.plan.runs, work.strip_bytes, from - work.first, to - work.first));
  return true;
}

bool FileWork::Cursor::next(FileOperation* out) {
  CopyPiece piece;
  while (plane_ < work_->planes_.size()) {
    if (!cursor_.empty() && cursor_[0].next(&piece)) {
      const bool writes = work_->direction_ == storage::IoDirection::kWrite;
      const TransferPlan& plan = work_->plan_;
      const layout::Place& in_file = writes ? piece.to : piece.from;
      const layout::Place& in_memory = writes ? piece.from : piece.to;
      const RegionMemory& region =
          (writes ? plan.to() : plan.from()).planes()[plane_].regions[in_file.region];
      out->storage = region.storage.get();
      out->direction = work_->direction_;
      out->offset = region.offset + in_file.offset;
      out->bytes = piece.bytes;
      out->memory = (writes ? plan.from() : plan.to()).address(plane_, in_memory);
      out->staged = !work_->planes_[plane_].plan.inner.empty();
      out->plane = plane_;
      return true;
    }
    cursor_.clear();
    ++plane_;
    while (plane_ < work_->planes_.size() && !enter(plane_)) ++plane_;
  }
  return false;
}

template <class F>
void FileWork::for_each_piece(const FileOperation& operation, F&& fn) const {
  const GatheredPlan& plan = planes_[operation.plane].plan;
  const bool writes = direction_ == storage::IoDirection::kWrite;
  std::vector<std::uint64_t> at(plan.inner.size(), 0);
  const std::uint64_t row = plan.inner.back().count;
  const std::uint64_t row_stride = writes ? plan.inner.back().from_stride : plan.inner.back().to_stride;
  std::byte* memory = operation.memory;
  std::uint64_t done = 0;
  while (done < operation.bytes) {
    std::byte* piece = memory;
    for (std::uint64_t i = 0; i < row; ++i) {
      fn(piece, done, plan.piece_bytes);
      done += plan.piece_bytes;
      piece += row_stride;
    }
    // The next row: an odometer over the other axes.
    for (std::size_t axis = plan.inner.size() - 1; axis-- > 0;) {
      const std::uint64_t stride = writes ? plan.inner[axis].from_stride : plan.inner[axis].to_stride;
      memory += stride;
      if (++at[axis] < plan.inner[axis].count) break;
      memory -= stride * plan.inner[axis].count;
      at[axis] = 0;
    }
  }
  ASHLAR_DCHECK(done == operation.bytes, "the pieces of a run of %llu bytes are %llu long",
                static_cast<unsigned long long>(operation.bytes), static_cast<unsigned long long>(done));
}

void FileWork::collect(const FileOperation& operation, std::byte* buffer) const {
  for_each_piece(operation, [buffer](const std::byte* memory, std::uint64_t at, std::uint64_t bytes) {
    std::memcpy(buffer + at, memory, bytes);
  });
}

void FileWork::spread(const FileOperation& operation, const std::byte* buffer) const {
  for_each_piece(operation, [buffer](std::byte* memory, std::uint64_t at, std::uint64_t bytes) {
    std::memcpy(memory, buffer + at, bytes);
  });
}

bool moves_between_memory_and_file(const BlockSet& from, const BlockSet& to) noexcept {
  return (from.host_accessible() && to.kind() == StorageKind::kDisk) ||
         (from.kind() == StorageKind::kDisk && to.host_accessible());
}

int choose_descriptor(const storage::FileAccess& file, std::uint64_t offset, std::uint64_t bytes,
                      const std::byte* memory) noexcept {
  const std::uint64_t bits = offset | bytes | reinterpret_cast<std::uintptr_t>(memory);
  return file.direct >= 0 && bits % file.alignment == 0 ? file.direct : file.buffered;
}

Error file_error(const FileOperation& operation, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return make_error(full ? ErrorCode::kCapacity : ErrorCode::kIo, "%s of %llu bytes at %llu of %s: %s",
                    operation.direction == storage::IoDirection::kWrite ? "write" : "read",
                    static_cast<unsigned long long>(operation.bytes),
                    static_cast<unsigned long long>(operation.offset), operation.storage->describe().c_str(),
                    error == 0 ? "the file ends there" : std::generic_category().message(error).c_str());
}

}  // namespace ashlar::transfer
