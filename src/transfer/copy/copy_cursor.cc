// Units are numbered pair by pair, so a block is done before the next one starts. Where blocks join, the
// order is reversed: the same piece of all pairs, so that adjacent pieces follow each other.
#include "ashlar/transfer/copy_plan.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::transfer {

namespace {

std::uint64_t strips_of(const CopyPlan& plan, std::uint64_t strip_bytes) noexcept {
  return plan.piece_bytes() == 0 ? 0 : (plan.piece_bytes() - 1) / strip_bytes + 1;
}

}  // namespace

std::uint64_t CopyCursor::units(const CopyPlan& plan, std::uint64_t strip_bytes) noexcept {
  return plan.pieces() * strips_of(plan, strip_bytes);
}

CopyCursor::CopyCursor(const CopyPlan& plan, std::uint64_t strip_bytes, std::uint64_t first,
                       std::uint64_t end) noexcept
    : plan_(&plan),
      strip_bytes_(strip_bytes),
      strips_(strips_of(plan, strip_bytes)),
      pieces_(plan.pattern_pieces() * plan.patterns().size()),
      next_(first),
      end_(end) {
  ASHLAR_DCHECK(first <= end && end <= units(plan, strip_bytes), "units %llu to %llu of a plan with %llu",
                static_cast<unsigned long long>(first), static_cast<unsigned long long>(end),
                static_cast<unsigned long long>(units(plan, strip_bytes)));
}

void CopyCursor::decompose(std::uint64_t unit, CopyPiece* out, std::uint64_t* pair,
                           std::uint64_t* inner) const noexcept {
  const std::uint64_t strip = unit % strips_;
  std::uint64_t piece = unit / strips_;
  if (plan_->joins_blocks()) {
    *pair = piece % plan_->pairs().size();
    piece /= plan_->pairs().size();
  } else {
    *pair = piece / pieces_;
    piece %= pieces_;
  }
  const CopyPattern& pattern = plan_->patterns()[piece / plan_->pattern_pieces()];
  const BlockPair& blocks = plan_->pairs()[*pair];
  out->from = pattern.from;
  out->to = pattern.to;
  out->from.offset += blocks.from * plan_->from_block_stride() + strip * strip_bytes_;
  out->to.offset += blocks.to * plan_->to_block_stride() + strip * strip_bytes_;
  piece %= plan_->pattern_pieces();
  *inner = pattern.axes.empty() ? 0 : piece % pattern.axes.back().count;
  for (std::size_t i = pattern.axes.size(); i-- > 0;) {
    const CopyAxis& axis = pattern.axes[i];
    out->from.offset += piece % axis.count * axis.from_stride;
    out->to.offset += piece % axis.count * axis.to_stride;
    piece /= axis.count;
  }
  out->bytes = strip + 1 < strips_ ? strip_bytes_ : pattern.bytes - strip * strip_bytes_;
}

bool CopyCursor::next(CopyPiece* out) noexcept {
  if (next_ == end_) return false;
  std::uint64_t pair = 0;
  std::uint64_t inner = 0;
  decompose(next_++, out, &pair, &inner);
  if (!plan_->joins_blocks() || strips_ > 1) return true;
  const std::span<const BlockPair> pairs = plan_->pairs();
  while (next_ < end_ && pair + 1 < pairs.size() && pairs[pair + 1].from == pairs[pair].from + 1 &&
         pairs[pair + 1].to == pairs[pair].to + 1 && out->bytes + plan_->piece_bytes() <= strip_bytes_) {
    out->bytes += plan_->piece_bytes();
    ++pair;
    ++next_;
  }
  return true;
}

bool CopyCursor::next_row(CopyRow* out) noexcept {
  CopyPiece piece;
  const std::span<const CopyPattern> patterns = plan_->patterns();
  if (strips_ > 1 || plan_->joins_blocks() || patterns.empty() || patterns[0].axes.empty()) {
    if (!next(&piece)) return false;
    *out = {piece.from, piece.to, piece.bytes, 1, 0, 0};
    return true;
  }
  if (next_ == end_) return false;
  std::uint64_t pair = 0;
  std::uint64_t inner = 0;
  decompose(next_, &piece, &pair, &inner);
  const CopyAxis& axis = patterns[0].axes.back();
  const std::uint64_t count = std::min(axis.count - inner, end_ - next_);
  *out = {piece.from, piece.to, piece.bytes, count, axis.from_stride, axis.to_stride};
  next_ += count;
  return true;
}

}  // namespace ashlar::transfer
