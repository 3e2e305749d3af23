#include "backend/cuda/copy_batch.h"

namespace ashlar::backend::cuda {

void CopyBatch::add(std::byte* target, const std::byte* source, std::uint64_t count) {
  to.push_back(target);
  from.push_back(source);
  bytes.push_back(count);
}

void CopyBatch::clear() noexcept {
  to.clear();
  from.clear();
  bytes.clear();
}

cudaError_t CopyBatch::issue(cudaStream_t stream) {
  constexpr std::size_t kFew = 2;
  if (to.size() > kFew && stream != cudaStreamLegacy) {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    return cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &attributes, &first, 1,
                                stream);
  }
  for (std::size_t i = 0; i < to.size(); ++i)
    if (const cudaError_t status = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream);
        status != cudaSuccess)
      return status;
  return cudaSuccess;
}

}  // namespace ashlar::backend::cuda
