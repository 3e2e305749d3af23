// The requests of the Remote tier and their answers, as bytes between agents. docs/remote.md describes them.
//
// What arrives is not trusted: decode() returns a consistent message or an error, and allocates no more than
// the bytes justify.
//
// Thread safety: plain values; thread-compatible.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/layout/shard.h"
#include "ashlar/tiers/onboard_handle.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/remote_agent.h"
#include "tiers/pool/tier_record.h"

namespace ashlar::tiers {

// Methods of the agent.
enum class RemoteMethod : std::uint16_t {
  kFind = transfer::RemoteAgent::kFirstMethod,
  kRenew,
  kRelease,
  kReserve,
  kCommit,
  kAbort,
  kWithdraw,
  kNames,
  kSlots,
  kCommitPart,
};

// The numbers of a node's block sets.
inline constexpr std::uint64_t kG2Set = 1;
inline constexpr std::uint64_t kLandingSet = 2;

// A part of the model.
struct RemotePart {
  layout::Range layers = {};
  layout::Range heads = {};

  friend bool operator==(const RemotePart&, const RemotePart&) = default;
};

// Which of these blocks are there? With a lease: where, and keep them.
struct FindRequest {
  static constexpr std::size_t kMaxHashes = 65536;

  bool lease = false;
  std::chrono::milliseconds duration = {};  // wanted
  RemotePart part = {};                     // of which checksums are wanted
  std::vector<tokens::SequenceHash> hashes;

  std::vector<std::byte> encode() const;
  static Result<FindRequest> decode(std::span<const std::byte> bytes);
};

// Which blocks are in these slots? The same, always with a lease.
struct SlotRequest {
  std::chrono::milliseconds duration = {};
  RemotePart part = {};
  std::vector<std::uint32_t> slots;  // at most FindRequest::kMaxHashes

  std::vector<std::byte> encode() const;
  static Result<SlotRequest> decode(std::span<const std::byte> bytes);
};

// One block of an answer.
struct FoundBlock {
  Miss miss = Miss::kNone;  // kNone, kUnknown, kRefused, kDamaged, kFailed
  std::uint32_t slot = 0;
  TierRecord record = {};  // its checksum is that of the part
};

struct FindAnswer {
  std::uint64_t lease = 0;                  // 0: none
  std::chrono::milliseconds duration = {};  // of the lease, from when the owner answers
  std::uint64_t load = 0;                   // bytes leased from the owner
  std::string refusal = {};                 // why blocks were refused
  std::vector<FoundBlock> blocks;           // one per hash

  std::vector<std::byte> encode() const;
  static Result<FindAnswer> decode(std::span<const std::byte> bytes,
                                   std::span<const tokens::SequenceHash> hashes);
  // Of an answer to a SlotRequest.
  static Result<FindAnswer> decode_slots(std::span<const std::byte> bytes,
                                         std::span<const std::uint32_t> slots);
  // The lease of an answer that nobody reads; 0: none.
  static std::uint64_t lease_of(std::span<const std::byte> bytes);
};

// A list of numbers: leases, slots.
std::vector<std::byte> encode_numbers(std::span<const std::uint64_t> numbers);
Result<std::vector<std::uint64_t>> decode_numbers(std::span<const std::byte> bytes);
// A list of names, kHashBytes each behind kListHeadBytes.
inline constexpr std::size_t kListHeadBytes = 4;
inline constexpr std::size_t kHashBytes = 16;
std::vector<std::byte> encode_hashes(std::span<const tokens::SequenceHash> hashes);
Result<std::vector<tokens::SequenceHash>> decode_hashes(std::span<const std::byte> bytes);

// Blocks, or one part of each, that were written into a reservation.
struct CommitRequest {
  std::uint64_t reservation = 0;
  std::optional<RemotePart> part = {};  // of a kCommitPart
  // By place in the reservation; an empty record: not written. The checksums are of the part, or of the
  // owner's whole shard.
  std::vector<TierRecord> records;

  std::vector<std::byte> encode() const;
  static Result<CommitRequest> decode(std::span<const std::byte> bytes, bool of_part = false);
};

// The outcome of each block of a commit: what became of it, or an error code and its text.
struct CommitAnswer {
  std::vector<Result<Pushed>> blocks;

  std::vector<std::byte> encode() const;
  // `blocks`: of the request; another number of outcomes is kInvalidArgument.
  static Result<CommitAnswer> decode(std::span<const std::byte> bytes, std::size_t blocks);
};

}  // namespace ashlar::tiers
