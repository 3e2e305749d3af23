// The records of a journal: their numbers, and the bytes of requests and decisions.
//
// Thread safety: values; JournalCipher is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
  kState,  // of a checkpoint (journal_checkpoint.h), as those that follow
  kStateGroup,
  kStateBlocks,
  kStateEnd,
};

inline constexpr std::uint64_t kJournalMagic = 0x344A'5241'4C48'5341;  // "ASHLARJ4" in the file
inline constexpr std::uint32_t kJournalVersion = 4;
inline constexpr std::uint32_t kOldestJournalVersion = 3;  // that is read
// Of a record's payload. The largest is a store of one message.
inline constexpr std::uint32_t kMaxJournalRecord = std::uint32_t{1} << 28;
inline constexpr std::uint32_t kMaxJournalRanks = 65'535;  // of a worker

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

// The start of a file.
struct JournalHead {
  std::uint32_t version = kJournalVersion;
  std::uint64_t run = 0;
  std::uint32_t number = 0;    // of the file within the run
  std::uint64_t previous = 0;  // the last check of the file before; 0: there is none
  std::uint64_t next_decision = 1;
  RouterOptions options;
};
inline constexpr std::size_t kJournalHeadBytes = 8 + 4 + 8 + 4 + 8 + 8 + 48 + 8;
// Of any version; those that are not read have the length of the latest.
constexpr std::size_t journal_head_bytes(std::uint32_t version) {
  return version == 3 ? kJournalHeadBytes - 16 : kJournalHeadBytes;
}
inline constexpr std::size_t kJournalMagicBytes = 8 + 4;
// What the first kJournalMagicBytes say. Errors: kCorruption: no journal; kUnsupported: of another version.
Result<std::uint32_t> read_journal_version(std::span<const std::byte> start);
// With its check at the end.
std::vector<std::byte> write_head(const JournalHead& head, const JournalCipher& cipher, std::uint64_t& check);

// "a/b.journal" and 0 are "a/b.journal"; with 3 it is "a/b.000003.journal".
std::string journal_file_name(const std::string& path, std::uint32_t number);
// The name and number of a file of a journal; nullopt: it is none.
std::optional<std::pair<std::string, std::uint32_t>> parse_journal_file_name(std::string_view file_name);

void put_time(ByteWriter& out, Clock::TimePoint time);
Clock::TimePoint get_time(ByteReader& in);
void put_text(ByteWriter& out, std::string_view text);
std::string get_text(ByteReader& in);

void put_options(ByteWriter& out, const RouterOptions& options, std::uint32_t version = kJournalVersion);
RouterOptions get_options(ByteReader& in, std::uint32_t version);
void put_spec(ByteWriter& out, const WorkerSpec& spec);
WorkerSpec get_spec(ByteReader& in, std::uint32_t version);
void put_worker(ByteWriter& out, const events::Worker& worker);
events::Worker get_worker(ByteReader& in);

// Hashes pass through the cipher on the way out, and are read as they stand. `locals`: those of the request
// that have passed it.
void put_request(ByteWriter& out, const RouteRequest& request, std::span<const tokens::LocalHash> locals,
                 const JournalCipher& cipher);
void put_store(ByteWriter& out, const events::BlocksStored& event, const JournalCipher& cipher);
struct ReadStore {
  std::vector<events::StoredBlock> blocks;
  events::BlocksStored event;  // points into the other

  ReadStore() = default;
  ReadStore(const ReadStore&) = delete;
  ReadStore& operator=(const ReadStore&) = delete;
};
void get_store(ByteReader& in, ReadStore& out);
void put_removal(ByteWriter& out, const events::Worker& worker, events::StorageTier tier,
                 std::span<const events::BlockName> names, const JournalCipher& cipher);
struct ReadRemoval {
  events::Worker worker;
  events::StorageTier tier = {};
  std::vector<events::BlockName> names;
};
void get_removal(ByteReader& in, ReadRemoval& out);
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
