#include "backend/ucx/operations.h"

#include "backend/ucx/link.h"

namespace ashlar::backend::ucx {

using transfer::BlockSet;
using transfer::CopyCursor;
using transfer::CopyPiece;

OperationCursor::OperationCursor(const transfer::TransferPlan& plan, const Link& link)
    : plan_(&plan), puts_(plan.to().kind() == StorageKind::kRemote) {
  const BlockSet& remote = puts_ ? plan.to() : plan.from();
  for (const transfer::Plane& plane : remote.planes()) {
    std::vector<const UcxAccess*>& accesses = accesses_.emplace_back();
    for (const transfer::RegionMemory& region : plane.regions) {
      const auto& storage = static_cast<const storage::RemoteStorage&>(*region.storage);
      accesses.push_back(static_cast<const UcxAccess*>(storage.access().get()));
      is_mapped_ = is_mapped_ && accesses.back()->is_mapped();
    }
  }
  strip_bytes_ = is_mapped_ ? link.strip_bytes() : link.message_bytes();
}

bool OperationCursor::next_piece(Operation* out) {
  while (plane_ < plan_->copies().size()) {
    const transfer::CopyPlan& copy = plan_->copies()[plane_];
    if (!cursor_) cursor_.emplace(copy, strip_bytes_, 0, CopyCursor::units(copy, strip_bytes_));
    CopyPiece piece;
    if (cursor_->next(&piece)) {
      std::byte* from = plan_->from().address(plane_, piece.from);
      std::byte* to = plan_->to().address(plane_, piece.to);
      out->local = puts_ ? from : to;
      out->remote = reinterpret_cast<std::uintptr_t>(puts_ ? to : from);
      out->access = accesses_[plane_][(puts_ ? piece.to : piece.from).region];
      out->bytes = piece.bytes;
      return true;
    }
    cursor_.reset();
    ++plane_;
  }
  return false;
}

bool OperationCursor::next(Operation* out) {
  if (ahead_) {
    *out = *ahead_;
    ahead_.reset();
  } else if (!next_piece(out)) {
    return false;
  }
  Operation more;
  while (out->bytes < strip_bytes_ && next_piece(&more)) {
    if (more.access != out->access || more.local != out->local + out->bytes ||
        more.remote != out->remote + out->bytes || more.bytes > strip_bytes_ - out->bytes) {
      ahead_ = more;
      break;
    }
    out->bytes += more.bytes;
  }
  return true;
}

}  // namespace ashlar::backend::ucx
