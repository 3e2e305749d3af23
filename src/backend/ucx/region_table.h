// What peers say to each other: requests for bytes of a region, and replies. RegionTable: the memory that
// this process offers.
//
// A put is granted by the mode in the owner's table, whatever the peer's key says.
//
// Thread safety: RegionTable is thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "ashlar/base/mutex.h"
#include "ashlar/storage/remote_storage.h"
#include "ashlar/storage/storage.h"

namespace ashlar::backend::ucx {

static_assert(std::endian::native == std::endian::little, "headers travel as they lie in memory");

enum MessageId : unsigned { kQuestion = 1, kAnswer, kGet, kPut, kReply };

// Of kGet and kPut; a put has the bytes behind it.
struct RequestHeader {
  std::uint64_t tag = 0;  // of the reply
  std::uint64_t region = 0;
  std::uint64_t token = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// What an owner says to a request.
enum class Verdict : std::uint64_t {
  kNotOffered = 0,
  kGranted = 1,
  kReadOnly = 2,   // a put, into memory that is offered for reading
  kNotCopied = 3,  // device memory, which could not be copied
  kBusy = 4,       // device memory, for which too many requests wait
};

// Of kReply; a get that was granted has the bytes behind it.
struct ReplyHeader {
  std::uint64_t tag = 0;
  Verdict verdict = Verdict::kNotOffered;
};

class RegionTable {
 public:
  struct Name {
    std::uint64_t region = 0;
    std::uint64_t token = 0;
  };

  Name add(std::shared_ptr<storage::Storage> storage, storage::AccessMode mode);
  // No byte is written to it afterwards.
  void remove(std::uint64_t region);
  // Null when the request names nothing that is offered.
  std::shared_ptr<storage::Storage> find(const RequestHeader& request) const;
  // Writes host memory. Nothing is written unless it is granted; and of device memory nothing at all: then
  // `on_device` is set.
  Verdict write(const RequestHeader& request, std::span<const std::byte> bytes, bool* on_device);
  // Device memory that a put may write until end_device_write(), which remove() waits for. Null when the
  // request names nothing that is offered for writing.
  std::shared_ptr<storage::Storage> begin_device_write(const RequestHeader& request);
  void end_device_write(std::uint64_t region);

 private:
  struct Region {
    std::shared_ptr<storage::Storage> storage;
    std::uint64_t token = 0;
    storage::AccessMode mode = storage::AccessMode::kRead;
  };
  const Region* look_up(const RequestHeader& request) const ASHLAR_REQUIRES(mu_);

  mutable Mutex mu_;
  std::unordered_map<std::uint64_t, Region> regions_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t next_ ASHLAR_GUARDED_BY(mu_) = 1;
  std::unordered_map<std::uint64_t, std::uint32_t> device_writes_ ASHLAR_GUARDED_BY(mu_);  // by region
  CondVar write_ended_;
};

}  // namespace ashlar::backend::ucx
