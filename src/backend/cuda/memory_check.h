// MemoryCheck: what CUDA knows of the memory of a block set, asked once for each set.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/block_set.h"

namespace ashlar::backend::cuda {

enum class Reach : std::uint8_t {
  kDevice,    // memory of the device
  kLocked,    // host memory that the device reaches at the same address
  kPageable,  // host memory that it does not reach
};

class MemoryCheck {
 public:
  explicit MemoryCheck(int device) : device_(device) {}

  // Host memory is as reachable as the least reachable of its regions.
  // Errors: kInvalidArgument: device memory that CUDA does not know, or that is another device's.
  Result<Reach> reach(const std::shared_ptr<const transfer::BlockSet>& set);

 private:
  struct Known {
    std::weak_ptr<const transfer::BlockSet> set;  // a new set may lie where an old one was
    Reach reach = Reach::kPageable;
  };
  Result<Reach> ask(const transfer::BlockSet& set) const;

  const int device_;
  Mutex mu_;
  std::unordered_map<const transfer::BlockSet*, Known> known_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::backend::cuda
