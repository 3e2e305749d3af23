#include "ashlar/transfer/transfer_plan.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/check.h"
#include "transfer/copy/region_extent.h"

namespace ashlar::transfer {
namespace {

Result<void> check_shared_memory(const BlockSet& from, std::span<const std::uint32_t> from_blocks,
                                 const BlockSet& to, std::span<const std::uint32_t> to_blocks) {
  if (&from == &to) {
    std::vector<std::uint32_t> sources(from_blocks.begin(), from_blocks.end());
    std::ranges::sort(sources);
    for (const std::uint32_t block : to_blocks)
      if (std::ranges::binary_search(sources, block))
        return make_error(ErrorCode::kInvalidArgument, "block %u is source and destination of one transfer",
                          block);
    return {};
  }
  std::vector<RegionExtent> extents = extents_of(from);
  std::ranges::copy(extents_of(to), std::back_inserter(extents));
  if (const std::optional<std::string> shared = find_overlap(std::move(extents)))
    return make_error(
        ErrorCode::kInvalidArgument,
        "source and destination share memory (%s); move blocks inside one set, or between sets that do not "
        "overlap",
        shared->c_str());
  return {};
}

// One head for all: it moves whole, and only if the destination takes all its heads from this source.
Result<PlanSelection> shared_heads(const BlockSet& from, const BlockSet& to, std::size_t plane,
                                   const PlanSelection& selection) {
  const layout::Range moved =
      selection.heads.value_or(intersect(from.planes()[0].shard.heads, to.planes()[0].shard.heads));
  if (moved != to.planes()[0].shard.heads && selection.shared == SharedHeads::kWithAll)
    return make_error(
        ErrorCode::kUnsupported,
        "plane %zu has one value for all heads, and %u heads from %u on would move into a destination with "
        "%u from %u on; heads that stay need a value of their own",
        plane, moved.count, moved.first, to.planes()[0].shard.heads.count, to.planes()[0].shard.heads.first);
  return PlanSelection{selection.layers, {}};
}

bool one_for_all(const BlockSet& set, std::size_t plane) {
  return plane > 0 && set.planes()[plane].layout.config().num_heads == 1 &&
         set.planes()[0].layout.config().num_heads > 1;
}

}  // namespace

std::uint64_t TransferPlan::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const CopyPlan& copy : copies_) sum += copy.bytes();
  return sum;
}

TransferPlan TransferPlan::between(std::shared_ptr<const BlockSet> from,
                                   std::shared_ptr<const BlockSet> to) const {
  const auto check = [](const BlockSet& planned, const BlockSet& other) {
    ASHLAR_CHECK(std::ranges::equal(planned.planes(), other.planes(),
                                    [](const Plane& a, const Plane& b) {
                                      return a.layout == b.layout && a.shard == b.shard;
                                    }),
                 "a plan is moved to a set with %zu planes that lie otherwise", other.planes().size());
  };
  check(*from_, *from);
  check(*to_, *to);
  TransferPlan out = *this;
  out.from_ = std::move(from);
  out.to_ = std::move(to);
  return out;
}

std::uint64_t TransferPlan::pieces() const noexcept {
  std::uint64_t sum = 0;
  for (const CopyPlan& copy : copies_) sum += copy.pieces();
  return sum;
}

Result<TransferPlan> plan(std::shared_ptr<const BlockSet> from, std::span<const std::uint32_t> from_blocks,
                          std::shared_ptr<const BlockSet> to, std::span<const std::uint32_t> to_blocks,
                          const PlanSelection& selection) {
  if (from == nullptr || to == nullptr)
    return make_error(ErrorCode::kInvalidArgument, "a transfer needs a source and a destination");
  if (from->planes().size() != to->planes().size())
    return make_error(ErrorCode::kInvalidArgument, "%zu planes at the source, %zu at the destination",
                      from->planes().size(), to->planes().size());
  ASHLAR_RETURN_IF_ERROR(to->check_writable());
  ASHLAR_RETURN_IF_ERROR(check_shared_memory(*from, from_blocks, *to, to_blocks));
  TransferPlan out;
  for (std::size_t i = 0; i < from->planes().size(); ++i) {
    PlanSelection part = selection;
    PlanSide source{from->planes()[i].layout, from->planes()[i].shard, from_blocks};
    const PlanSide target{to->planes()[i].layout, to->planes()[i].shard, to_blocks};
    if (one_for_all(*from, i) || one_for_all(*to, i)) {
      if (selection.shared == SharedHeads::kLeave) {
        out.copies_.push_back(CopyPlan::nothing(out.copies_[0]));
        continue;
      }
      ASHLAR_TRY(const PlanSelection shared, shared_heads(*from, *to, i, selection));
      part = shared;
      source.shard.heads = target.shard.heads;  // its head number does not matter
    }
    Result<CopyPlan> copy = plan(source, target, part);
    if (!copy)
      return i == 0
                 ? copy.error()
                 : Error(copy.error().code(), "plane " + std::to_string(i) + ": " + copy.error().message());
    out.copies_.push_back(*std::move(copy));
    ASHLAR_DCHECK(std::ranges::equal(out.copies_[0].pairs(), out.copies_[i].pairs()),
                  "plane %zu moves other blocks than the first", i);
  }
  out.from_ = std::move(from);
  out.to_ = std::move(to);
  const Plane& source = out.from_->planes()[0];
  const Plane& target = out.to_->planes()[0];
  out.selection_ = {selection.layers.value_or(intersect(source.shard.layers, target.shard.layers)),
                    selection.heads.value_or(intersect(source.shard.heads, target.shard.heads))};
  return out;
}

}  // namespace ashlar::transfer
