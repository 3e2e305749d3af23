// Registration of memory with UCX, and memory that UCX allocates.
//
// Thread safety: free functions.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/remote_transport.h"
#include "backend/ucx/context.h"
#include "backend/ucx/region_table.h"

namespace ashlar::backend::ucx {

// Requires: host memory, or device memory that the responder copies. Errors: kCapacity, kIo: UCX refuses it;
// kUnsupported: its key is too long.
Result<std::unique_ptr<transfer::MemoryRegistration>> register_storage(
    std::shared_ptr<UcxContext> context, std::shared_ptr<RegionTable> table,
    std::shared_ptr<storage::Storage> storage, storage::AccessMode mode);

std::shared_ptr<storage::Allocator> make_allocator(std::shared_ptr<UcxContext> context);

}  // namespace ashlar::backend::ucx
