// Reads a G3 file as its owner would at a restart, without its options: the superblock describes the planes.
#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ashlar/base/check.h"
#include "base/wide.h"
#include "inspect/canonical_block.h"
#include "inspect/inspected_file.h"
#include "tiers/disk/g3_format.h"
#include "transfer/copy/canonical_runs.h"

namespace ashlar::inspect {
namespace {

using tiers::G3Header;

struct G3Plan {
  std::vector<transfer::PlaneShape> planes;
  tiers::G3Places places;
  tiers::G3BlockKind kind;
  tokens::NamespaceFingerprint keys;
  std::uint32_t capacity = 0;
};

Result<G3Plan> plan_of(const InspectedFile& file, const tiers::G3Superblock& superblock) {
  ASHLAR_TRY(const std::vector<layout::LayoutDescriptor> descriptors, superblock.planes());
  G3Plan plan;
  plan.keys = superblock.keys;
  plan.capacity = descriptors.front().layout.config().block_count;
  for (const layout::LayoutDescriptor& descriptor : descriptors) {
    if (descriptor.layout.regions() != layout::Regions::kOne ||
        descriptor.layout.config().block_count != plan.capacity)
      return make_error(ErrorCode::kCorruption, "the superblock of %s describes planes that no file has",
                        file.path().c_str());
    plan.planes.push_back({descriptor.layout, descriptor.shard});
    plan.kind.block_bytes += descriptor.layout.config().block_bytes();
  }
  ASHLAR_CHECK(!plan.planes.empty(), "a superblock describes a plane");
  plan.kind.shard = plan.planes.front().shard;
  plan.places = tiers::G3Places::of(plan.planes);
  return plan;
}

void describe_planes(const G3Plan& plan, Inspection& seen) {
  InspectedList list{.name = "planes"};
  for (const transfer::PlaneShape& plane : plan.planes)
    list.add(plane_fields(plane.layout.config(), plane.shard));
  seen.lists.push_back(std::move(list));
}

// Compares blocks with the checksums in their headers.
class G3Verifier {
 public:
  static Result<G3Verifier> create(const InspectedFile& file, const G3Plan& plan) {
    std::vector<CanonicalBlock::PlanePart> parts;
    for (const transfer::PlaneShape& plane : plan.planes)
      parts.push_back({plane.layout.config(), plane.shard});
    ASHLAR_TRY(CanonicalBlock block, CanonicalBlock::create(parts));
    return G3Verifier(file, plan, std::move(block));
  }
  // Errors: kCorruption: the bytes differ, or the file ends before them; kIo.
  Result<void> verify(std::uint32_t slot, const G3Header& header) {
    ASHLAR_DCHECK(slot < plan_.capacity, "block %u of %u", slot, plan_.capacity);
    std::span<std::byte> to = block_.bytes();
    Result<void> read;
    for (std::size_t i = 0; i < plan_.planes.size(); ++i)
      transfer::for_each_run_offset(plan_.planes[i].layout, slot,
                                    [&](std::uint64_t offset, std::uint64_t bytes) {
                                      if (!read) return;
                                      read = file_.read(plan_.places.planes[i] + offset, to.first(bytes));
                                      to = to.subspan(bytes);
                                    });
    ASHLAR_RETURN_IF_ERROR(read);
    ASHLAR_DCHECK(to.empty(), "%zu bytes of the block were not read", to.size());
    ASHLAR_TRY(const transfer::BlockChecksum checksum,
               block_.checksum({.hash = header.hash, .keys = plan_.keys}));
    if (checksum == header.checksum) return {};
    return make_error(ErrorCode::kCorruption, "its bytes have the checksum %016llx and its header %016llx",
                      wide(checksum.value()), wide(header.checksum.value()));
  }

 private:
  G3Verifier(const InspectedFile& file, const G3Plan& plan, CanonicalBlock block)
      : file_(file), plan_(plan), block_(std::move(block)) {}

  const InspectedFile& file_;
  const G3Plan& plan_;
  CanonicalBlock block_;
};

Result<void> inspect_removals(const InspectedFile& file, Inspection& seen) {
  std::uint64_t newest = 0;
  for (std::uint64_t copy = 0; copy < 2; ++copy) {
    tiers::RemovalLog::Bytes bytes;
    ASHLAR_RETURN_IF_ERROR(file.read(tiers::kG3Removals + copy * tiers::RemovalLog::kBytes, bytes));
    std::uint64_t serial = 0;
    if (tiers::RemovalLog::decode(bytes, &serial)) {
      newest = std::max(newest, serial);
    } else if (std::ranges::any_of(bytes, [](std::byte byte) { return byte != std::byte{0}; })) {
      seen.damage("copy " + std::to_string(copy) + " of the removals does not agree with its checksum");
    }
  }
  seen.add("removals_written", newest);
  return {};
}

struct G3Counts {
  std::uint64_t filled = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t generation = 0;
  std::uint64_t with_parent = 0;
  std::uint64_t with_digest = 0;
};

Result<void> inspect_table(const InspectedFile& file, const G3Plan& plan, G3Verifier* verifier,
                           Inspection& seen, G3Counts& counts) {
  std::unordered_map<tokens::SequenceHash, std::uint64_t> hashes;
  std::vector<std::byte> buffer;
  const std::uint64_t total = tiers::kG3HeaderBytes * plan.capacity;
  for (std::uint64_t at = 0; at < total; at += buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(tiers::kG3ReadAtATime, total - at));
    ASHLAR_RETURN_IF_ERROR(file.read(plan.places.table + at, buffer));
    for (std::uint64_t inside = 0; inside < buffer.size(); inside += tiers::kG3HeaderBytes) {
      const std::span<const std::byte> bytes = std::span(buffer).subspan(inside, tiers::kG3HeaderBytes);
      const auto slot = static_cast<std::uint32_t>((at + inside) / tiers::kG3HeaderBytes);
      if (std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; })) continue;
      const std::optional<G3Header> header = tiers::decode_g3_header(slot, bytes, plan.kind);
      if (!header) {
        seen.damage("the header of block " + std::to_string(slot) + ": it counts as empty");
        continue;
      }
      ++counts.filled;
      counts.generation = std::max(counts.generation, header->generation);
      counts.with_parent += header->has_parent ? 1 : 0;
      counts.with_digest += header->prefix.is_known() ? 1 : 0;
      counts.duplicates += hashes.emplace(header->hash, slot).second ? 0 : 1;
      if (verifier == nullptr) continue;
      const Result<void> same = verifier->verify(slot, *header);
      if (!same && same.error().code() != ErrorCode::kCorruption) return same;
      if (!same) seen.damage("block " + std::to_string(slot) + ": " + same.error().message());
    }
  }
  return {};
}

}  // namespace

Result<void> inspect_g3(const InspectedFile& file, const InspectOptions& options, Inspection& seen) {
  seen.kind = "G3 file";
  std::vector<std::byte> page(tiers::kG3Page);
  ASHLAR_RETURN_IF_ERROR(file.read(0, page));
  ASHLAR_TRY(const tiers::G3Superblock superblock, tiers::G3Superblock::parse(file.path(), page));
  ASHLAR_TRY(const G3Plan plan, plan_of(file, superblock));
  if (file.size() < plan.places.end)
    return make_error(ErrorCode::kCorruption,
                      "%s has %llu bytes and its superblock describes %llu: it was truncated",
                      file.path().c_str(), wide(file.size()), wide(plan.places.end));
  seen.add("version", std::uint64_t{3});
  seen.add("file_bytes", file.size());
  seen.add("namespace", superblock.keys.to_string());
  seen.add("hash_scheme", hex_of(superblock.scheme_fingerprint));
  seen.add("prefix_key", hex_of(superblock.prefix_key));
  seen.add("rank", std::uint64_t{superblock.shard.rank});
  seen.add("ranks", std::uint64_t{superblock.shard.ranks});
  seen.add("blocks", std::uint64_t{plan.capacity});
  seen.add("block_bytes", plan.kind.block_bytes);
  describe_planes(plan, seen);
  ASHLAR_RETURN_IF_ERROR(inspect_removals(file, seen));
  std::optional<G3Verifier> verifier;
  if (options.verify) {
    ASHLAR_TRY(G3Verifier made, G3Verifier::create(file, plan));
    verifier.emplace(std::move(made));
  }
  G3Counts counts;
  ASHLAR_RETURN_IF_ERROR(inspect_table(file, plan, verifier ? &*verifier : nullptr, seen, counts));
  seen.add("filled", counts.filled);
  seen.add("filled_bytes", counts.filled * plan.kind.block_bytes);
  seen.add("duplicates", counts.duplicates);
  seen.add("with_parent", counts.with_parent);
  seen.add("with_prefix_digest", counts.with_digest);
  seen.add("last_generation", counts.generation);
  seen.is_verified = options.verify;
  return {};
}

}  // namespace ashlar::inspect
