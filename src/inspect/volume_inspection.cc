// File volumes, folders of objects, and single objects. A file volume has a checksum over each object. An
// object in a folder has only that of its block, which depends on the shape of its planes: for a block of one
// plane the shape follows from the header, and its fingerprint confirms it.
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ashlar/base/check.h"
#include "base/wide.h"
#include "inspect/canonical_block.h"
#include "inspect/inspected_file.h"
#include "tiers/volume/file_volume_format.h"
#include "tiers/volume/volume_object.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::inspect {
namespace {

using tiers::VolumeObject;

// What the objects of a volume are, by namespace and rank.
class ObjectCensus {
 public:
  void count(const VolumeObject& object) {
    Kind& kind = kinds_[{object.keys, object.scheme_fingerprint, object.shard.rank, object.shard.ranks}];
    kind.block_size = object.block_size;
    kind.dtype = object.dtype;
    ++kind.objects;
    kind.bytes += VolumeObject::kHeaderBytes + object.payload_bytes;
  }
  InspectedList list() const {
    InspectedList list{.name = "namespaces"};
    for (const auto& [key, kind] : kinds_)
      list.add({{"namespace", std::get<0>(key).to_string()},
                {"hash_scheme", hex_of(std::get<1>(key))},
                {"rank", std::uint64_t{std::get<2>(key)}},
                {"ranks", std::uint64_t{std::get<3>(key)}},
                {"block_size", std::uint64_t{kind.block_size}},
                {"dtype", std::string(to_string(kind.dtype))},
                {"objects", kind.objects},
                {"object_bytes", kind.bytes}});
    return list;
  }

 private:
  struct Kind {
    std::uint32_t block_size = 0;
    layout::Dtype dtype = {};
    std::uint64_t objects = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::tuple<tokens::NamespaceFingerprint, std::uint64_t, std::uint32_t, std::uint32_t>, Kind>
      kinds_;
};

// The block of an object with one plane; nullopt where its shape is not known.
std::optional<CanonicalBlock> block_of(const VolumeObject& object) {
  if (object.planes != 1 || object.payload_bytes > CanonicalBlock::kMostBytes) return std::nullopt;
  for (const std::uint32_t outer : {1u, 2u}) {
    layout::LayoutConfig config{.block_count = 1,
                                .num_layers = object.shard.layers.count,
                                .outer_dim = outer,
                                .block_size = object.block_size,
                                .num_heads = object.shard.heads.count,
                                .dtype = object.dtype};
    const std::uint64_t heads = std::uint64_t{config.num_layers} * outer * config.block_size;
    const std::uint64_t elements = object.payload_bytes / width_of(object.dtype);
    if (heads == 0 || config.num_heads == 0 || heads > elements || config.num_heads > elements / heads)
      continue;
    config.head_dim = static_cast<std::uint32_t>(elements / heads / config.num_heads);
    const std::uint64_t inner = std::uint64_t{config.head_dim} * config.num_heads;
    if (inner > UINT32_MAX) continue;
    config.inner_dim = static_cast<std::uint32_t>(inner);
    const CanonicalBlock::PlanePart plane{config, object.shard};
    auto block = CanonicalBlock::create(std::span(&plane, 1));
    if (block && block->bytes().size() == object.payload_bytes &&
        VolumeObject::describe(block->set(), object.keys, 0, 0).shapes == object.shapes)
      return *std::move(block);
  }
  return std::nullopt;
}

enum class Compared : std::uint8_t { kSame, kShapeUnknown };

// Errors: kCorruption; kIo.
Result<Compared> compare_object(const InspectedFile& file, const VolumeObject& object) {
  std::optional<CanonicalBlock> block = block_of(object);
  if (!block) return Compared::kShapeUnknown;
  ASHLAR_RETURN_IF_ERROR(file.read(VolumeObject::kHeaderBytes, block->bytes()));
  ASHLAR_TRY(const transfer::BlockChecksum checksum,
             block->checksum({.hash = object.hash, .keys = object.keys}));
  if (checksum == object.checksum) return Compared::kSame;
  return make_error(ErrorCode::kCorruption, "the bytes have the checksum %016llx and the header says %016llx",
                    wide(checksum.value()), wide(object.checksum.value()));
}

// The header, and that the file has all of the bytes. Errors: those of VolumeObject::decode(); kIo.
Result<VolumeObject> object_in(const InspectedFile& file) {
  std::array<std::byte, VolumeObject::kHeaderBytes> bytes{};
  ASHLAR_RETURN_IF_ERROR(file.read(0, bytes));
  ASHLAR_TRY(const VolumeObject object, VolumeObject::decode(bytes));
  if (file.size() - VolumeObject::kHeaderBytes != object.payload_bytes)
    return make_error(ErrorCode::kCorruption, "it has %llu bytes behind its header, which says %llu",
                      wide(file.size() - VolumeObject::kHeaderBytes), wide(object.payload_bytes));
  return object;
}

struct FolderCounts {
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
  std::uint64_t unfinished = 0;  // files that a writer has not renamed yet
  std::uint64_t others = 0;      // that are none of ours
  std::uint64_t shape_unknown = 0;
};

// In their order.
Result<std::vector<std::string>> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed))
    names.push_back(entry->path().filename().string());
  if (failed)
    return make_error(ErrorCode::kIo, "cannot read the folder %s: %s", folder.c_str(),
                      failed.message().c_str());
  std::ranges::sort(names);
  return names;
}

Result<void> count_object(const std::string& path, const std::string& name, const InspectOptions& options,
                          ObjectCensus& census, FolderCounts& counts, Inspection& seen) {
  if (name.starts_with(".~")) {
    ++counts.unfinished;
    return {};
  }
  const Result<InspectedFile> file = InspectedFile::open(path);
  if (!file && file.error().code() == ErrorCode::kNotFound) return {};  // removed meanwhile
  if (!file) {
    ++counts.others;
    return {};
  }
  const Result<VolumeObject> object = object_in(*file);
  if (!object && object.error().code() == ErrorCode::kIo) return object.error();
  // Names of objects have the parts of a key.
  if (!object && name.find('~') == std::string::npos) {
    ++counts.others;
    return {};
  }
  if (!object) {
    seen.damage(name + ": " + object.error().message());
    return {};
  }
  ++counts.objects;
  counts.bytes += file->size();
  census.count(*object);
  if (!options.verify) return {};
  const Result<Compared> compared = compare_object(*file, *object);
  if (!compared && compared.error().code() != ErrorCode::kCorruption) return compared.error();
  if (!compared) {
    seen.damage(name + ": " + compared.error().message());
  } else if (*compared == Compared::kShapeUnknown) {
    ++counts.shape_unknown;
  }
  return {};
}

// Errors: kCorruption: the bytes differ; kIo.
Result<void> compare_slot(const InspectedFile& file, std::uint64_t at,
                          const tiers::file_volume::Header& header, std::vector<std::byte>& buffer) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (std::uint64_t done = 0; done < header.bytes; done += buffer.size()) {
    buffer.resize(std::min(kPiece, header.bytes - done));
    ASHLAR_RETURN_IF_ERROR(file.read(at + done, buffer));
    XXH3_64bits_update(&state, buffer.data(), buffer.size());
  }
  if (const std::uint64_t found = XXH3_64bits_digest(&state); found != header.checksum)
    return make_error(ErrorCode::kCorruption, "its bytes have the checksum %016llx and its header %016llx",
                      wide(found), wide(header.checksum));
  return {};
}

}  // namespace

Result<void> inspect_file_volume(const InspectedFile& file, const InspectOptions& options, Inspection& seen) {
  namespace format = tiers::file_volume;
  static_assert((1 << 20) % format::kHeaderBytes == 0, "reads cover whole headers");
  seen.kind = "file volume";
  format::Superblock superblock{};
  ASHLAR_RETURN_IF_ERROR(file.read(0, superblock));
  ASHLAR_TRY(const tiers::FileVolumeShape shape, format::decode(file.path(), superblock));
  const format::FileVolumePlaces places = *format::places_of(shape);
  if (file.size() < places.end)
    return make_error(ErrorCode::kCorruption,
                      "%s has %llu bytes and its superblock describes %llu: it was truncated",
                      file.path().c_str(), wide(file.size()), wide(places.end));
  ObjectCensus census;
  std::unordered_map<std::string, std::uint64_t> keys;
  std::uint64_t filled = 0;
  std::uint64_t bytes = 0;
  std::uint64_t replaced = 0;
  std::uint64_t largest = 0;
  std::uint64_t other_content = 0;
  std::vector<std::byte> buffer;
  std::vector<std::byte> table(format::kHeaderBytes);
  for (std::uint64_t i = 0; i < shape.slots; ++i) {
    const std::uint64_t inside = i * format::kHeaderBytes % (std::uint64_t{1} << 20);
    if (inside == 0) {
      table.resize(std::min<std::uint64_t>(std::uint64_t{1} << 20, (shape.slots - i) * format::kHeaderBytes));
      ASHLAR_RETURN_IF_ERROR(file.read(format::kTable + i * format::kHeaderBytes, table));
    }
    ASHLAR_DCHECK(inside + format::kHeaderBytes <= table.size(), "header %llu is not read", wide(i));
    const std::span<const std::byte> part = std::span(table).subspan(inside, format::kHeaderBytes);
    if (std::ranges::all_of(part, [](std::byte byte) { return byte == std::byte{0}; })) continue;
    const auto slot = static_cast<std::uint32_t>(i);
    const std::optional<format::Header> header = format::decode(slot, part, shape);
    if (!header) {
      seen.damage("the header of slot " + std::to_string(i) + ": the slot counts as free");
      continue;
    }
    ++filled;
    bytes += header->bytes;
    largest = std::max(largest, header->bytes);
    replaced += keys.emplace(std::string(header->key), i).second ? 0 : 1;
    const std::uint64_t at = places.slots + i * shape.slot_bytes;
    std::array<std::byte, VolumeObject::kHeaderBytes> head{};
    ASHLAR_RETURN_IF_ERROR(
        file.read(at, std::span(head).first(std::min<std::uint64_t>(head.size(), header->bytes))));
    if (const auto object = VolumeObject::decode(head)) {
      census.count(*object);
    } else {
      ++other_content;
    }
    if (!options.verify) continue;
    const Result<void> same = compare_slot(file, at, *header, buffer);
    if (!same && same.error().code() != ErrorCode::kCorruption) return same;
    if (!same)
      seen.damage("slot " + std::to_string(i) + " (" + std::string(header->key) +
                  "): " + same.error().message());
  }
  seen.add("version", std::uint64_t{1});
  seen.add("file_bytes", file.size());
  seen.add("slots", shape.slots);
  seen.add("slot_bytes", shape.slot_bytes);
  seen.add("filled", filled);
  seen.add("object_bytes", bytes);
  seen.add("largest_object_bytes", largest);
  seen.add("replaced_headers", replaced);
  if (other_content != 0) seen.add("objects_without_block", other_content);
  seen.lists.push_back(census.list());
  seen.is_verified = options.verify;
  return {};
}

Result<void> inspect_object(const InspectedFile& file, const InspectOptions& options, Inspection& seen) {
  seen.kind = "volume object";
  const Result<VolumeObject> object = object_in(file);
  if (!object)
    return make_error(object.error().code(), "%s: %s", file.path().c_str(), object.error().message().c_str());
  seen.add("version", std::uint64_t{VolumeObject::kVersion});
  seen.add("key", object->key());
  seen.add("hash", object->hash.to_string());
  seen.add("namespace", object->keys.to_string());
  seen.add("hash_scheme", hex_of(object->scheme_fingerprint));
  seen.add("shard", object->shard.to_string());
  seen.add("block_size", std::uint64_t{object->block_size});
  seen.add("planes", std::uint64_t{object->planes});
  seen.add("dtype", std::string(to_string(object->dtype)));
  seen.add("payload_bytes", object->payload_bytes);
  seen.add("group", std::uint64_t{object->group});
  seen.add("priority", std::uint64_t{object->priority});
  if (!options.verify) return {};
  const Result<Compared> compared = compare_object(file, *object);
  if (!compared && compared.error().code() != ErrorCode::kCorruption) return compared.error();
  if (!compared) seen.damage(compared.error().message());
  seen.is_verified = !compared || *compared == Compared::kSame;
  if (!seen.is_verified)
    seen.notes.emplace_back(
        "the bytes were not verified: only a manager with these planes knows their shapes");
  return {};
}

Result<void> inspect_folder(const std::string& path, const InspectOptions& options, Inspection& seen) {
  ASHLAR_TRY(const std::vector<std::string> names, names_in(path));
  if (std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(".journal"); }))
    return inspect_journal(path, options, seen);
  seen.kind = "directory volume";
  ObjectCensus census;
  FolderCounts counts;
  for (const std::string& name : names) {
    const std::string place = (std::filesystem::path(path) / name).string();
    std::error_code failed;
    if (!std::filesystem::is_directory(place, failed)) {
      ASHLAR_RETURN_IF_ERROR(count_object(place, name, options, census, counts, seen));
      continue;
    }
    // Objects are spread over folders by their keys.
    ASHLAR_TRY(const std::vector<std::string> inner, names_in(place));
    for (const std::string& file : inner)
      ASHLAR_RETURN_IF_ERROR(
          count_object((std::filesystem::path(place) / file).string(), file, options, census, counts, seen));
  }
  if (counts.objects == 0 && seen.damaged == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "the folder %s holds neither objects of a volume nor journals (%llu other files)",
                      path.c_str(), wide(counts.others));
  seen.add("objects", counts.objects);
  seen.add("object_bytes", counts.bytes);
  seen.add("unfinished", counts.unfinished);
  seen.add("other_files", counts.others);
  seen.lists.push_back(census.list());
  seen.is_verified = options.verify && counts.shape_unknown == 0;
  if (counts.shape_unknown != 0)
    seen.notes.push_back("the bytes of " + std::to_string(counts.shape_unknown) +
                         " objects were not verified: only a manager with these planes knows their shapes");
  return {};
}

}  // namespace ashlar::inspect
