// The records of a journal: their numbers, and the bytes of requests and decisions.
//
// Thread safety: values; JournalCipher is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/service/journal.h"
#include "base/byte_io.h"
#include "tokens/siphash128.h"

namespace ashlar::service {

enum class JournalRecord : std::uint8_t {
  kWorkerAdded = 1,
  kWorkerRemoved,
  kStateChanged,
  kAvailabilityChanged,
  kStored,
  kRemoved,
  kCleared,
  kChosen,
  kFirstByte,
  kReleased,
  kExpected,
};

inline constexpr std::uint64_t kJournalMagic = 0x314A'5241'4C48'5341;  // "ASHLARJ1" in the file
inline constexpr std::uint32_t kJournalVersion = 1;
// Of a record's payload. The largest is a store of one message.
inline constexpr std::uint32_t kMaxJournalRecord = std::uint32_t{1} << 28;

// Keyed hashes of names, and the chain of checksums.
class JournalCipher {
 public:
  explicit JournalCipher(const JournalKey& key) : key_(key) {}

  std::uint64_t block(std::uint64_t hash) const noexcept { return hashed('b', hash); }
  std::uint64_t name(std::uint64_t name) const noexcept { return hashed('n', name); }
  // 0 stands for none.
  std::uint64_t session(std::uint64_t session) const noexcept {
    return session == 0 ? 0 : hashed('s', session) | 1;
  }
  std::uint64_t check(std::uint64_t before, std::span<const std::byte> record) const noexcept {
    tokens::SipHash128 hash(key_);
    hash.update("c", 1);
    hash.update_u64(before);
    hash.update(record.data(), record.size());
    return hash.digest().lo;
  }

 private:
  std::uint64_t hashed(char domain, std::uint64_t value) const noexcept {
    tokens::SipHash128 hash(key_);
    hash.update(&domain, 1);
    hash.update_u64(value);
    return hash.digest().lo;
  }

  JournalKey key_;
};

void put_text(ByteWriter& out, std::string_view text);
std::string get_text(ByteReader& in);

void put_options(ByteWriter& out, const RouterOptions& options);
RouterOptions get_options(ByteReader& in);
void put_spec(ByteWriter& out, const WorkerSpec& spec);
WorkerSpec get_spec(ByteReader& in);
void put_worker(ByteWriter& out, const events::Worker& worker);
events::Worker get_worker(ByteReader& in);

// Hashes pass through the cipher on the way out, and are read as they stand.
void put_request(ByteWriter& out, const RouteRequest& request, const JournalCipher& cipher);
struct ReadRequest {
  std::string group;
  std::vector<tokens::LocalHash> locals;
  std::vector<events::Worker> tried;
  RouteRequest request;  // points into the others

  ReadRequest() = default;
  ReadRequest(const ReadRequest&) = delete;
  ReadRequest& operator=(const ReadRequest&) = delete;
};
void get_request(ByteReader& in, ReadRequest& out);

// A decision, or the code of the error.
void put_decision(ByteWriter& out, const Result<Decision>& decision);
Result<Decision> get_decision(ByteReader& in);

}  // namespace ashlar::service
