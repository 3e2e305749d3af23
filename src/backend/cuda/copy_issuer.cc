#include "backend/cuda/copy_issuer.h"

#include "ashlar/base/check.h"
#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/cuda_error.h"

namespace ashlar::backend::cuda {
namespace {

constexpr std::uint64_t kStripBytes = std::uint64_t{32} << 20;  // largest single copy
constexpr std::size_t kBatchCopies = 4096;
constexpr std::uint64_t kNeverKernel = std::uint64_t{64}
                                       << 20;  // pieces of this size always go to the copy engines

}  // namespace

std::uint64_t mean_run_bytes(const transfer::CopyPlan& plan) noexcept {
  if (!plan.joins_blocks() || plan.pairs().empty()) return plan.piece_bytes();
  std::uint64_t runs = 1;
  for (std::size_t i = 1; i < plan.pairs().size(); ++i)
    if (plan.pairs()[i].from != plan.pairs()[i - 1].from + 1 ||
        plan.pairs()[i].to != plan.pairs()[i - 1].to + 1)
      ++runs;
  return plan.piece_bytes() * plan.pairs().size() / runs;
}

CopyIssuer::CopyIssuer(const transfer::TransferPlan& plan, const CopyRules& rules, Packer* packer)
    : plan_(&plan), rules_(rules), packer_(packer) {
  open_plane();
}

// Opens the next plane with work.
void CopyIssuer::open_plane() {
  for (; plane_ < plan_->copies().size(); ++plane_) {
    const transfer::CopyPlan& copy = plan_->copies()[plane_];
    if (copy.bytes() == 0) continue;
    if (copy.piece_bytes() >= kNeverKernel || mean_run_bytes(copy) >= rules_.switch_bytes) {
      engine_.emplace(copy, kStripBytes, 0, transfer::CopyCursor::units(copy, kStripBytes));
    } else {
      packed_ = false;
      if (packer_ != nullptr) {
        // Pieces in host order.
        kernel_.emplace(copy, plan_->from(), plan_->to(), plane_, !packer_->to_host());
        packed_ = kernel_->host_run_bytes(packer_->to_host()) >= rules_.packed_run;
      }
      if (!packed_) kernel_.emplace(copy, plan_->from(), plan_->to(), plane_);
      if (job_ == nullptr) job_ = std::make_unique_for_overwrite<LargeCopyJob>();
    }
    return;
  }
}

Result<Issued> CopyIssuer::issue(cudaStream_t stream, std::uint64_t bytes) {
  if (done()) return Issued{.bytes = 0, .operations = 0, .staged = 0, .stream = stream};
  return engine_ ? issue_engine(stream, bytes) : issue_kernel(stream, bytes);
}

Result<Issued> CopyIssuer::issue_engine(cudaStream_t stream, std::uint64_t bytes) {
  Issued issued;
  issued.stream = stream;
  bool more = true;
  batch_.clear();
  while (issued.bytes < bytes && batch_.to.size() < kBatchCopies) {
    transfer::CopyPiece piece;
    more = engine_->next(&piece);
    if (!more) break;
    batch_.add(plan_->to().address(plane_, piece.to), plan_->from().address(plane_, piece.from), piece.bytes);
    issued.bytes += piece.bytes;
  }
  issued.operations = batch_.to.size();
  if (const cudaError_t status = batch_.issue(stream); status != cudaSuccess)
    return cuda_error(status, "%zu copies of %llu bytes in all cannot be issued", batch_.to.size(),
                      static_cast<unsigned long long>(issued.bytes));
  if (!more) {
    engine_.reset();
    ++plane_;
    open_plane();
  }
  return issued;
}

Result<Issued> CopyIssuer::issue_kernel(cudaStream_t stream, std::uint64_t bytes) {
  Issued issued;
  if (packed_) {
    const Result<Issued> packed = packer_->issue(&*kernel_, bytes, job_.get());
    if (!packed) return packed;
    issued = *packed;
  } else {
    kernel_->next(bytes, job_.get());
    issued = {.bytes = job_->shape.pieces * job_->shape.piece_bytes,
              .operations = 1,
              .staged = 0,
              .stream = stream};
    if (const cudaError_t status = launch_copy(*job_, rules_.blocks, stream); status != cudaSuccess)
      return cuda_error(status, "the copy kernel cannot be launched for %u pieces of %llu bytes",
                        job_->shape.pieces, static_cast<unsigned long long>(job_->shape.piece_bytes));
  }
  ASHLAR_DCHECK(issued.bytes != 0, "a launch of the copy kernel moves nothing");
  if (kernel_->done()) {
    kernel_.reset();
    ++plane_;
    open_plane();
  }
  return issued;
}

}  // namespace ashlar::backend::cuda
