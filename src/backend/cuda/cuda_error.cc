#include "backend/cuda/cuda_error.h"

#include <array>
#include <cstdarg>
#include <cstdio>

namespace ashlar::backend::cuda {

Error cuda_error(cudaError_t status, const char* format, ...) {
  std::array<char, 512> what{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what.data(), what.size(), format, arguments);
  va_end(arguments);
  static_cast<void>(cudaGetLastError());
  ErrorCode code = ErrorCode::kIo;
  if (status == cudaErrorMemoryAllocation) code = ErrorCode::kCapacity;
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice ||
      status == cudaErrorStubLibrary || status == cudaErrorInitializationError ||
      status == cudaErrorSystemNotReady || status == cudaErrorSystemDriverMismatch ||
      status == cudaErrorDevicesUnavailable)
    code = ErrorCode::kUnavailable;
  return make_error(code, "%s: %s (%s)", what.data(), cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace ashlar::backend::cuda
