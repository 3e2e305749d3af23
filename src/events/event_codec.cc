// docs/formats/events.md describes the bytes. The writer reserves space for the longest form of every event
// at once and trims the rest, so that encoding is one pass of plain copies. The reader checks the checksum
// first: any later fault was written wrong, not damaged in transit.
#include "ashlar/events/event_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ashlar/base/check.h"
#include "events/dump_check.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::events {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as little-endian memory");

constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kChecked = 16;       // the checksum covers everything after it
constexpr std::size_t kNameOverhead = 32;  // of a heap-allocated string
constexpr std::size_t kMostBytesOfOne = 16 + 32 + 16 + 4 + 8 + 8 + 4;

enum RunFlag : std::uint8_t {
  kHasParent = 1,
  kHasRoot = 2,
  kHasNames = 4,
  kHasLocals = 8,
  kHasMetadata = 16,
  kHasBlocks = 32,
  kChildren = 64,  // of removals: each block is the child of the one before, as in every run of stores
  kParents = 128,  // of removals: each block is the parent of the one before
};
static_assert(kBatchMagic.size() + sizeof kVersion <= kChecked - sizeof(std::uint64_t),
              "magic and version stand before the checksum");

bool is_alone(KvEventKind kind) {
  return kind == KvEventKind::kResync || kind == KvEventKind::kCleared;
}

// Over everything but the checksum itself: the bytes before it are the seed.
std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  std::uint64_t seed = 0;
  std::memcpy(&seed, bytes.data(), sizeof seed);
  return XXH3_64bits_withSeed(bytes.data() + kChecked, bytes.size() - kChecked, seed);
}

// Names of parents are not encoded, and stand where these do.
std::uint32_t block_of(const KvEvent& event) {
  return event.has_parent_name ? 0 : event.block;
}
std::uint32_t bytes_of(const KvEvent& event) {
  return event.has_parent_name ? 0 : event.bytes;
}

bool is_child(const KvEvent& parent, const KvEvent& child) {
  return child.has_parent && child.parent_bits == parent.hash;
}

// Whether `next` may stand in one run with `last`, whatever their sequences are.
bool is_alike(const KvEvent& last, const KvEvent& next) {
  return next.kind == last.kind && next.tier == last.tier && next.group == last.group &&
         next.location == last.location && bytes_of(next) == bytes_of(last) &&
         next.has_name == last.has_name && next.has_local == last.has_local && !is_alone(next.kind);
}

bool same_root(const KvEvent& last, const KvEvent& next) {
  return next.has_root == last.has_root && (!next.has_root || next.root_bits == last.root_bits);
}

// How the parents of a run follow from its blocks.
enum class Lineage : std::uint8_t { kNone, kChildren, kParents };

struct EncodedRun {
  std::size_t length = 0;
  Lineage lineage = Lineage::kNone;
};

bool continues(Lineage lineage, const KvEvent& last, const KvEvent& next) {
  if (!is_alike(last, next) || !same_root(last, next)) return false;
  switch (lineage) {
    case Lineage::kChildren:
      return is_child(last, next);
    case Lineage::kParents:
      return is_child(next, last);
    case Lineage::kNone:
      return !last.has_parent && !next.has_parent;
  }
  return false;
}

// The first run as it is encoded. The second event decides the lineage.
EncodedRun first_run(std::span<const KvEvent> events) {
  EncodedRun run{.length = events.empty() ? 0u : 1u};
  if (events.size() < 2) return run;
  if (is_child(events[0], events[1])) {
    run.lineage = Lineage::kChildren;
  } else if (events[0].kind == KvEventKind::kStored) {
    return run;
  } else if (is_child(events[1], events[0])) {
    run.lineage = Lineage::kParents;
  }
  while (run.length < events.size() && continues(run.lineage, events[run.length - 1], events[run.length]))
    ++run.length;
  if (run.length == 1) run.lineage = Lineage::kNone;
  return run;
}

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <class T>
  void put(T value) {
    static_assert(std::is_integral_v<T>);
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  void put(const tokens::SequenceHash& hash) {
    put(hash.hi());
    put(hash.lo());
  }
  void put(std::string_view text) {
    std::memcpy(at_, text.data(), text.size());
    at_ += text.size();
  }
  std::byte* at() const { return at_; }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  // Requires: left() >= sizeof(T).
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  tokens::SequenceHash hash() {
    const auto hi = get<std::uint64_t>();
    const auto lo = get<std::uint64_t>();
    return tokens::SequenceHash::from_bits(hi, lo);
  }
  std::string_view text(std::size_t size) {
    const std::string_view out(reinterpret_cast<const char*>(at_), size);
    at_ += size;
    return out;
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
};

void put_run(Writer& out, std::span<const KvEvent> run, Lineage lineage) {
  const KvEvent& head = run.front();
  // The one whose parent is not in the run.
  const KvEvent& top = lineage == Lineage::kParents ? run.back() : head;
  std::uint8_t flags = 0;
  if (head.kind != KvEventKind::kStored && lineage == Lineage::kChildren) flags |= kChildren;
  if (lineage == Lineage::kParents) flags |= kParents;
  if (top.has_parent) flags |= kHasParent;
  if (head.has_root) flags |= kHasRoot;
  if (head.has_name) flags |= kHasNames;
  if (head.has_local) flags |= kHasLocals;
  for (const KvEvent& event : run) {
    if (event.metadata != 0) flags |= kHasMetadata;
    if (block_of(event) != 0) flags |= kHasBlocks;
  }
  out.put(static_cast<std::uint8_t>(head.kind));
  out.put(head.tier.value());
  out.put(flags);
  out.put(std::uint8_t{0});
  out.put(static_cast<std::uint32_t>(run.size()));
  out.put(head.group);
  out.put(head.location);
  out.put(bytes_of(head));
  if (top.has_parent) out.put(top.parent_bits);
  if (head.has_root) out.put(head.root_bits);
  for (const KvEvent& event : run) {
    out.put(event.hash);
    if ((flags & kHasBlocks) != 0) out.put(block_of(event));
    if (event.has_name) out.put(event.name_bits);
    if (event.has_local) out.put(event.local_bits);
    if ((flags & kHasMetadata) != 0) out.put(event.metadata);
  }
}

Error cut_short(const char* where) {
  return make_error(ErrorCode::kCorruption, "a batch of events ends within its %s", where);
}

Result<void> read_run(Reader& in, std::uint32_t wanted, std::vector<KvEvent>& out) {
  if (in.left() < 16) return cut_short("runs");
  const auto kind = in.get<std::uint8_t>();
  const auto tier = in.get<std::uint8_t>();
  const auto flags = in.get<std::uint8_t>();
  in.get<std::uint8_t>();
  const auto count = in.get<std::uint32_t>();
  if (kind > static_cast<std::uint8_t>(KvEventKind::kCleared))
    return make_error(ErrorCode::kUnsupported,
                      "a batch of events holds kind %u, which this version does not know", unsigned{kind});
  const bool is_stored = kind == static_cast<std::uint8_t>(KvEventKind::kStored);
  if ((flags & (kChildren | kParents)) == (kChildren | kParents) || (is_stored && (flags & kParents) != 0))
    return make_error(ErrorCode::kCorruption,
                      "a batch of events has flags %#x: a run of %s goes from parents to children%s",
                      unsigned{flags}, is_stored ? "stores" : "removals", is_stored ? "" : " or back");
  if (count == 0 || count > wanted)
    return make_error(ErrorCode::kCorruption, "a batch of events has a run of %u where %u are left", count,
                      wanted);
  KvEvent event;
  event.kind = static_cast<KvEventKind>(kind);
  event.tier = TierId(tier);
  if (tier >= kMaxTiers && !(event.kind == KvEventKind::kCleared && event.tier == kAllTiers))
    return make_error(ErrorCode::kCorruption, "a batch of events names tier %u, there are %u", unsigned{tier},
                      unsigned{kMaxTiers});
  event.group = in.get<std::uint16_t>();
  event.location = in.get<std::uint16_t>();
  event.bytes = in.get<std::uint32_t>();
  event.has_parent = (flags & kHasParent) != 0;
  event.has_root = (flags & kHasRoot) != 0;
  event.has_name = (flags & kHasNames) != 0;
  event.has_local = (flags & kHasLocals) != 0;
  const bool has_metadata = (flags & kHasMetadata) != 0;
  const bool has_blocks = (flags & kHasBlocks) != 0;
  const std::size_t each = 16u + (has_blocks ? 4u : 0u) + (event.has_name ? 8u : 0u) +
                           (event.has_local ? 8u : 0u) + (has_metadata ? 4u : 0u);
  const std::size_t shared = (event.has_parent ? 16u : 0u) + (event.has_root ? 16u : 0u);
  if (in.left() < shared || (in.left() - shared) / each < count) return cut_short("runs");
  if (event.has_parent) event.parent_bits = in.hash();
  if (event.has_root) event.root_bits = in.hash();
  const KvEvent top = event;
  const std::size_t first = out.size();
  for (std::uint32_t i = 0; i < count; ++i) {
    event.hash = in.hash();
    if (has_blocks) event.block = in.get<std::uint32_t>();
    if (event.has_name) event.name_bits = in.get<std::uint64_t>();
    if (event.has_local) event.local_bits = in.get<std::uint64_t>();
    if (has_metadata) event.metadata = in.get<std::uint32_t>();
    if ((flags & kParents) != 0 && i != 0) out.back().set_parent(event.hash);
    out.push_back(event);
    if (is_stored || (flags & kChildren) != 0) event.set_parent(event.hash);
  }
  ASHLAR_DCHECK(out.size() == first + count, "a run of %u blocks was read as %zu", count, out.size() - first);
  if ((flags & kParents) != 0) out.back().set_parent(top.parent());
  return {};
}

// Memory left by the last batch counts too.
void make_room(OwnedBatch& out, std::uint64_t needed, std::size_t max_bytes) {
  const std::size_t kept =
      out.events.capacity() * sizeof(KvEvent) + out.locations.capacity() * sizeof(LocationName);
  if (kept + needed <= max_bytes) return;
  std::vector<KvEvent>().swap(out.events);
  std::vector<LocationName>().swap(out.locations);
}

}  // namespace

std::size_t run_length(std::span<const KvEvent> events) noexcept {
  std::size_t n = events.empty() ? 0 : 1;
  while (n < events.size() && is_alike(events[n - 1], events[n]) &&
         (events[n].kind != KvEventKind::kStored ||
          (is_child(events[n - 1], events[n]) && same_root(events[n - 1], events[n]))))
    ++n;
  return n;
}

void encode_batch(const EventBatch& batch, std::vector<std::byte>& out) {
  std::size_t most = kBatchHeaderBytes + batch.events.size() * kMostBytesOfOne;
  for (const LocationName& location : batch.locations) most += 4 + location.name.size();
  out.resize(most);
  Writer to(out.data());
  to.put(kBatchMagic);
  to.put(kVersion);
  to.put(static_cast<std::uint8_t>(batch.kind));
  to.put(std::uint8_t{0});
  to.put(std::uint64_t{0});  // the checksum
  to.put(batch.stream.worker.id.value());
  to.put(batch.stream.worker.rank);
  to.put(batch.keys.block_size);
  to.put(batch.stream.incarnation);
  to.put(batch.first);
  to.put(batch.published_ns);
  to.put(batch.keys.scheme);
  to.put(batch.keys.name_space.hi());
  to.put(batch.keys.name_space.lo());
  to.put(batch.part);
  to.put(batch.parts);
  to.put(static_cast<std::uint32_t>(batch.events.size()));
  to.put(static_cast<std::uint32_t>(batch.locations.size()));
  for (const LocationName& location : batch.locations) {
    const auto size = static_cast<std::uint16_t>(std::min<std::size_t>(location.name.size(), UINT16_MAX));
    to.put(location.number);
    to.put(size);
    to.put(std::string_view(location.name).substr(0, size));
  }
  for (std::span<const KvEvent> left = batch.events; !left.empty();) {
    const EncodedRun run = first_run(left);
    put_run(to, left.first(run.length), run.lineage);
    left = left.subspan(run.length);
  }
  out.resize(static_cast<std::size_t>(to.at() - out.data()));
  const std::uint64_t checksum = checksum_of(out);
  std::memcpy(out.data() + 8, &checksum, sizeof checksum);
}

void set_parts(std::span<std::byte> batch, std::uint32_t part, std::uint32_t parts) noexcept {
  ASHLAR_DCHECK(is_whole_batch(batch), "%zu bytes that are no batch", batch.size());
  std::memcpy(batch.data() + 80, &part, sizeof part);
  std::memcpy(batch.data() + 84, &parts, sizeof parts);
  const std::uint64_t checksum = checksum_of(batch);
  std::memcpy(batch.data() + 8, &checksum, sizeof checksum);
}

std::size_t most_events_within(std::size_t max_bytes) noexcept {
  return std::max<std::size_t>(1, max_bytes / (sizeof(KvEvent) + kMostBytesOfOne));
}

bool is_whole_batch(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() < kBatchHeaderBytes) return false;
  Reader in(bytes);
  if (in.text(4) != kBatchMagic) return false;
  in.get<std::uint32_t>();  // version and kind, which the checksum covers
  return in.get<std::uint64_t>() == checksum_of(bytes);
}

Result<void> decode_batch(std::span<const std::byte> bytes, OwnedBatch& out, std::size_t max_bytes) {
  out.events.clear();
  out.locations.clear();
  out.head = {};
  Reader in(bytes);
  if (in.left() < kBatchHeaderBytes || in.text(4) != kBatchMagic)
    return make_error(ErrorCode::kCorruption, "%zu bytes that do not begin as a batch of events does",
                      bytes.size());
  if (const auto version = in.get<std::uint16_t>(); version != kVersion)
    return make_error(ErrorCode::kUnsupported,
                      "a batch of events of version %u; this library reads version %u: update the older side",
                      unsigned{version}, unsigned{kVersion});
  const auto kind = in.get<std::uint8_t>();
  in.get<std::uint8_t>();
  if (in.get<std::uint64_t>() != checksum_of(bytes))
    return make_error(ErrorCode::kCorruption,
                      "a batch of events of %zu bytes does not agree with its checksum", bytes.size());
  if (kind > static_cast<std::uint8_t>(BatchKind::kSnapshot))
    return make_error(ErrorCode::kUnsupported,
                      "a batch of events of kind %u, which this version does not know", unsigned{kind});
  EventBatch& head = out.head;
  head.kind = static_cast<BatchKind>(kind);
  head.stream.worker.id = WorkerId(in.get<std::uint64_t>());
  head.stream.worker.rank = in.get<std::uint32_t>();
  head.keys.block_size = in.get<std::uint32_t>();
  head.stream.incarnation = in.get<std::uint64_t>();
  head.first = in.get<std::uint64_t>();
  head.published_ns = in.get<std::int64_t>();
  head.keys.scheme = in.get<std::uint64_t>();
  const auto hi = in.get<std::uint64_t>();
  const auto lo = in.get<std::uint64_t>();
  head.keys.name_space = tokens::NamespaceFingerprint::from_bits(hi, lo);
  head.part = in.get<std::uint32_t>();
  head.parts = in.get<std::uint32_t>();
  const auto events = in.get<std::uint32_t>();
  const auto locations = in.get<std::uint32_t>();
  if (head.part >= head.parts || head.parts > kMaxSnapshotParts)
    return make_error(ErrorCode::kCorruption, "a batch of events is part %u of %u", head.part, head.parts);
  // No event has fewer than 16 bytes, and no location fewer than 4: a false count cannot make us reserve
  // memory for it.
  if (in.left() / 4 < locations) return cut_short("locations");
  if (in.left() / 16 < events) return cut_short("runs");
  // Memory they take when decoded. Bytes that are not events may be location names, which are heap-allocated.
  const std::uint64_t needed = std::uint64_t{events} * sizeof(KvEvent) +
                               std::uint64_t{locations} * (sizeof(LocationName) + kNameOverhead) +
                               (in.left() - std::uint64_t{events} * 16);
  if (needed > max_bytes)
    return make_error(ErrorCode::kCapacity,
                      "a batch of %u events and %u locations takes %llu bytes of memory; the limit is %zu",
                      events, locations, static_cast<unsigned long long>(needed), max_bytes);
  make_room(out, needed, max_bytes);
  out.locations.reserve(locations);
  for (std::uint32_t i = 0; i < locations; ++i) {
    if (in.left() < 4) return cut_short("locations");
    LocationName location;
    location.number = in.get<std::uint16_t>();
    const auto size = in.get<std::uint16_t>();
    if (in.left() < size) return cut_short("locations");
    location.name = in.text(size);
    out.locations.push_back(std::move(location));
  }
  if (head.kind == BatchKind::kEvents && head.first > UINT64_MAX - events)
    return make_error(ErrorCode::kCorruption, "a batch of %u events begins with number %llu", events,
                      static_cast<unsigned long long>(head.first));
  if (in.left() / 16 < events) return cut_short("runs");
  out.events.reserve(events);
  while (out.events.size() < events) {
    const auto wanted = static_cast<std::uint32_t>(events - out.events.size());
    if (Result<void> read = read_run(in, wanted, out.events); !read) return read;
  }
  if (in.left() != 0)
    return make_error(ErrorCode::kCorruption, "a batch of events has %zu bytes after its end", in.left());
  if (head.kind == BatchKind::kEvents) {
    std::uint64_t number = head.first;
    for (KvEvent& event : out.events) event.sequence = number++;
  }
  return {};
}

}  // namespace ashlar::events
