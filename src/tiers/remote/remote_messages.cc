#include "tiers/remote/remote_messages.h"

#include <algorithm>
#include <utility>

#include "base/byte_io.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

namespace {

constexpr std::size_t kMaxText = 1024;
constexpr std::uint8_t kRecordHasRoot = 1;
constexpr std::uint8_t kRecordHasLocal = 2;
// Outcomes of a commit; between them: 1 + an error code.
constexpr std::uint8_t kOutcomeRegistered = 0;
constexpr std::uint8_t kOutcomeIncomplete = 255;
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(1);

Error malformed(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, "a message of a peer that is no %s", what);
}

void put_pair(ByteWriter& out, const auto& value) {
  out.put(value.hi());
  out.put(value.lo());
}

template <class T>
T get_pair(ByteReader& in) {
  const auto hi = in.get<std::uint64_t>();
  return T::from_bits(hi, in.get<std::uint64_t>());
}

void put_duration(ByteWriter& out, std::chrono::milliseconds duration) {
  out.put(static_cast<std::uint64_t>(std::clamp(duration, std::chrono::milliseconds(0), kLongest).count()));
}

std::chrono::milliseconds get_duration(ByteReader& in) {
  const std::uint64_t count = in.get<std::uint64_t>();
  return std::min(std::chrono::milliseconds(std::min<std::uint64_t>(count, INT32_MAX)), kLongest);
}

void put_text(ByteWriter& out, std::string_view text) {
  text = text.substr(0, kMaxText);
  out.put(static_cast<std::uint32_t>(text.size()));
  out.put_bytes(std::as_bytes(std::span(text)));
}

std::string get_text(ByteReader& in) {
  const auto size = in.get<std::uint32_t>();
  const std::span<const std::byte> bytes = in.get_bytes(std::min<std::size_t>(size, kMaxText + 1));
  if (size > kMaxText) return {};
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The time at which a retention ends is the owner's: it does not travel.
void put_record(ByteWriter& out, const TierRecord& record) {
  put_pair(out, record.hash);
  put_pair(out, record.parent);
  put_pair(out, record.salt);
  put_pair(out, record.prefix);
  put_pair(out, record.root.value_or(SequenceHash()));
  out.put(record.local ? record.local->value() : std::uint64_t{0});
  out.put(record.checksum ? record.checksum->value() : std::uint64_t{0});
  out.put(record.metadata);
  out.put(record.group);
  out.put(record.retention.priority);
  out.put(
      static_cast<std::uint8_t>((record.root ? kRecordHasRoot : 0) | (record.local ? kRecordHasLocal : 0)));
}

constexpr std::size_t kRecordBytes = 5 * 16 + 2 * 8 + 4 + 2 + 2;

TierRecord get_record(ByteReader& in) {
  TierRecord record;
  record.hash = get_pair<SequenceHash>(in);
  record.parent = get_pair<SequenceHash>(in);
  record.salt = get_pair<tokens::SaltFingerprint>(in);
  record.prefix = get_pair<tokens::PrefixDigest>(in);
  const auto root = get_pair<SequenceHash>(in);
  const auto local = in.get<std::uint64_t>();
  record.checksum = transfer::BlockChecksum(in.get<std::uint64_t>());
  record.metadata = in.get<std::uint32_t>();
  record.group = in.get<std::uint16_t>();
  record.retention.priority = std::min(in.get<std::uint8_t>(), block::BlockRetention::kMaxPriority);
  const auto has = in.get<std::uint8_t>();
  if ((has & kRecordHasRoot) != 0) record.root = root;
  if ((has & kRecordHasLocal) != 0) record.local = tokens::LocalHash(local);
  return record;
}

// The number of items that follow, if there are bytes for them.
std::optional<std::uint32_t> get_count(ByteReader& in, std::size_t item_bytes) {
  const auto count = in.get<std::uint32_t>();
  if (!in.ok() || in.left() / item_bytes < count) return std::nullopt;
  return count;
}

bool is_whole(const ByteReader& in) {
  return in.ok() && in.left() == 0;
}

void put_part(ByteWriter& out, const RemotePart& part) {
  for (const layout::Range& range : {part.layers, part.heads}) {
    out.put(range.first);
    out.put(range.count);
  }
}

RemotePart get_part(ByteReader& in) {
  RemotePart part;
  for (layout::Range* const range : {&part.layers, &part.heads}) {
    range->first = in.get<std::uint32_t>();
    range->count = in.get<std::uint32_t>();
  }
  return part;
}

// An answer about `count` blocks, which may be any.
Result<FindAnswer> get_answer(std::span<const std::byte> bytes, std::size_t count) {
  ByteReader in(bytes);
  FindAnswer answer;
  answer.lease = in.get<std::uint64_t>();
  answer.duration = get_duration(in);
  answer.load = in.get<std::uint64_t>();
  answer.refusal = get_text(in);
  const std::optional<std::uint32_t> said = get_count(in, 1);
  if (!said || *said != count) return malformed("answer about blocks");
  answer.blocks.resize(count);
  for (FoundBlock& block : answer.blocks) {
    const auto miss = in.get<std::uint8_t>();
    if (miss >= kMisses) return malformed("answer about blocks");
    block.miss = static_cast<Miss>(miss);
    if (block.miss != Miss::kNone) continue;
    block.slot = in.get<std::uint32_t>();
    block.record = get_record(in);
  }
  if (!is_whole(in)) return malformed("answer about blocks");
  return answer;
}

}  // namespace

std::vector<std::byte> FindRequest::encode() const {
  ByteWriter out;
  out.put(static_cast<std::uint8_t>(lease));
  put_duration(out, duration);
  put_part(out, part);
  out.put(static_cast<std::uint32_t>(hashes.size()));
  for (const SequenceHash& hash : hashes) put_pair(out, hash);
  return std::move(out.bytes());
}

Result<FindRequest> FindRequest::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  FindRequest request;
  request.lease = in.get<std::uint8_t>() != 0;
  request.duration = get_duration(in);
  request.part = get_part(in);
  const std::optional<std::uint32_t> count = get_count(in, kHashBytes);
  if (!count || *count > kMaxHashes) return malformed("request for blocks");
  request.hashes.reserve(*count);
  for (std::uint32_t i = 0; i < *count; ++i) request.hashes.push_back(get_pair<SequenceHash>(in));
  if (!is_whole(in)) return malformed("request for blocks");
  return request;
}

std::vector<std::byte> SlotRequest::encode() const {
  ByteWriter out;
  put_duration(out, duration);
  put_part(out, part);
  out.put(static_cast<std::uint32_t>(slots.size()));
  for (const std::uint32_t slot : slots) out.put(slot);
  return std::move(out.bytes());
}

Result<SlotRequest> SlotRequest::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  SlotRequest request;
  request.duration = get_duration(in);
  request.part = get_part(in);
  const std::optional<std::uint32_t> count = get_count(in, sizeof(std::uint32_t));
  if (!count || *count > FindRequest::kMaxHashes) return malformed("request for slots");
  request.slots.resize(*count);
  for (std::uint32_t& slot : request.slots) slot = in.get<std::uint32_t>();
  if (!is_whole(in)) return malformed("request for slots");
  return request;
}

std::vector<std::byte> FindAnswer::encode() const {
  ByteWriter out;
  out.put(lease);
  put_duration(out, duration);
  out.put(load);
  put_text(out, refusal);
  out.put(static_cast<std::uint32_t>(blocks.size()));
  for (const FoundBlock& block : blocks) {
    out.put(static_cast<std::uint8_t>(block.miss));
    if (block.miss != Miss::kNone) continue;
    out.put(block.slot);
    put_record(out, block.record);
  }
  return std::move(out.bytes());
}

Result<FindAnswer> FindAnswer::decode(std::span<const std::byte> bytes,
                                      std::span<const SequenceHash> hashes) {
  ASHLAR_TRY(FindAnswer answer, get_answer(bytes, hashes.size()));
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (answer.blocks[i].miss == Miss::kNone && answer.blocks[i].record.hash != hashes[i])
      return malformed("answer about the blocks that it was asked for");
  return answer;
}

Result<FindAnswer> FindAnswer::decode_slots(std::span<const std::byte> bytes,
                                            std::span<const std::uint32_t> slots) {
  ASHLAR_TRY(FindAnswer answer, get_answer(bytes, slots.size()));
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (answer.blocks[i].miss == Miss::kNone &&
        (answer.blocks[i].slot != slots[i] || answer.blocks[i].record.hash == SequenceHash()))
      return malformed("answer about the slots that it was asked for");
  return answer;
}

std::uint64_t FindAnswer::lease_of(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto lease = in.get<std::uint64_t>();
  return in.ok() ? lease : 0;
}

std::vector<std::byte> encode_numbers(std::span<const std::uint64_t> numbers) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(numbers.size()));
  for (const std::uint64_t number : numbers) out.put(number);
  return std::move(out.bytes());
}

Result<std::vector<std::uint64_t>> decode_numbers(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const std::optional<std::uint32_t> count = get_count(in, 8);
  if (!count) return malformed("list of numbers");
  std::vector<std::uint64_t> numbers(*count);
  for (std::uint64_t& number : numbers) number = in.get<std::uint64_t>();
  if (!is_whole(in)) return malformed("list of numbers");
  return numbers;
}

std::vector<std::byte> encode_hashes(std::span<const SequenceHash> hashes) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(hashes.size()));
  for (const SequenceHash& hash : hashes) put_pair(out, hash);
  return std::move(out.bytes());
}

Result<std::vector<SequenceHash>> decode_hashes(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const std::optional<std::uint32_t> count = get_count(in, kHashBytes);
  if (!count) return malformed("list of names");
  std::vector<SequenceHash> hashes;
  hashes.reserve(*count);
  for (std::uint32_t i = 0; i < *count; ++i) hashes.push_back(get_pair<SequenceHash>(in));
  if (!is_whole(in)) return malformed("list of names");
  return hashes;
}

std::vector<std::byte> CommitRequest::encode() const {
  ByteWriter out;
  if (part) put_part(out, *part);
  out.put(reservation);
  out.put(static_cast<std::uint32_t>(records.size()));
  for (const TierRecord& record : records) put_record(out, record);
  return std::move(out.bytes());
}

Result<CommitRequest> CommitRequest::decode(std::span<const std::byte> bytes, bool of_part) {
  ByteReader in(bytes);
  CommitRequest request;
  if (of_part) request.part = get_part(in);
  request.reservation = in.get<std::uint64_t>();
  const std::optional<std::uint32_t> count = get_count(in, kRecordBytes);
  if (!count) return malformed("list of written blocks");
  request.records.resize(*count);
  for (TierRecord& record : request.records) record = get_record(in);
  if (!is_whole(in)) return malformed("list of written blocks");
  return request;
}

std::vector<std::byte> CommitAnswer::encode() const {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(blocks.size()));
  for (const Result<Pushed>& block : blocks) {
    out.put(!block ? static_cast<std::uint8_t>(1 + static_cast<unsigned>(block.error().code()))
            : *block == Pushed::kRegistered ? kOutcomeRegistered
                                            : kOutcomeIncomplete);
    if (!block) put_text(out, block.error().message());
  }
  return std::move(out.bytes());
}

Result<CommitAnswer> CommitAnswer::decode(std::span<const std::byte> bytes, std::size_t blocks) {
  ByteReader in(bytes);
  const std::optional<std::uint32_t> count = get_count(in, 1);
  if (!count) return malformed("list of outcomes");
  if (*count != blocks)
    return make_error(ErrorCode::kInvalidArgument, "a peer answers for %u of %zu blocks", *count, blocks);
  CommitAnswer answer;
  answer.blocks.reserve(*count);
  for (std::uint32_t i = 0; i < *count && in.ok(); ++i) {
    const auto code = in.get<std::uint8_t>();
    if (code == kOutcomeRegistered || code == kOutcomeIncomplete) {
      answer.blocks.emplace_back(code == kOutcomeRegistered ? Pushed::kRegistered : Pushed::kIncomplete);
    } else if (code > 1 + static_cast<unsigned>(ErrorCode::kInternal)) {
      return malformed("list of outcomes");
    } else {
      answer.blocks.emplace_back(Error(static_cast<ErrorCode>(code - 1), get_text(in)));
    }
  }
  if (!is_whole(in)) return malformed("list of outcomes");
  return answer;
}

}  // namespace ashlar::tiers
