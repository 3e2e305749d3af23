// MemoryCheck: how the device reaches the memory of a block set, queried once per set.
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
  kLocked,    // host memory the device reaches at the same address
  kPageable,  // host memory it does not reach
};

class MemoryCheck {
 public:
  explicit MemoryCheck(int device) : device_(device) {}

  // Host memory is as reachable as its least reachable region. Errors: kInvalidArgument: device memory that
  // CUDA does not know, or of another device.
  Result<Reach> reach(const std::shared_ptr<const transfer::BlockSet>& set);

 private:
  struct Known {
    std::weak_ptr<const transfer::BlockSet> set;  // a new set may reuse the address of an old one
    Reach reach = Reach::kPageable;
  };
  Result<Reach> ask(const transfer::BlockSet& set) const;

  const int device_;
  Mutex mu_;
  std::unordered_map<const transfer::BlockSet*, Known> known_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::backend::cuda
