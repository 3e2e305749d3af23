// IoFaults: makes file operations fail on purpose, and watches them, so that tests see what happens then.
//
// Thread safety: implementations are thread-safe; executors ask from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ashlar::storage {

enum class IoDirection : std::uint8_t { kRead, kWrite };

// What becomes of one operation.
struct IoVerdict {
  int error = 0;                              // an errno instead of the operation
  std::uint64_t at_most = ~std::uint64_t{0};  // only so many bytes of it: a short read or write
};

class IoFaults {
 public:
  virtual ~IoFaults() = default;
  // Before an operation.
  virtual IoVerdict judge(IoDirection direction, std::uint64_t offset, std::uint64_t bytes) = 0;
  // After a write, with what was written.
  virtual void written(std::uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) {}
  // Before a sync: an errno instead of it; and after one.
  virtual int syncing() { return 0; }
  virtual void synced() {}
};

}  // namespace ashlar::storage
