// Superblock (one page), two copies of the removal log, table (256 bytes per block, whole pages), blocks
// (each plane page-aligned). The file is created under a temporary name and renamed once its superblock is on
// the device, so a superblock is never partial.
//
// Headers go through the page cache and never cross a sector; blocks bypass it. The two never share a page.
#include "tiers/disk/g3_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "ashlar/layout/layout_descriptor.h"
#include "base/wide.h"
#include "storage/file_bytes.h"

namespace ashlar::tiers {
namespace {

using storage::DiskStorage;
using transfer::BlockSet;
using transfer::Plane;
using transfer::PlaneShape;

Result<std::shared_ptr<const BlockSet>> block_set(const G3Options& options, const G3Places& places,
                                                  const std::shared_ptr<storage::Storage>& storage) {
  std::vector<Plane> planes;
  planes.reserve(options.planes.size());
  for (std::size_t i = 0; i < options.planes.size(); ++i)
    planes.push_back({options.planes[i].layout, options.planes[i].shard, {{storage, places.planes[i]}}});
  return BlockSet::create(std::move(planes));
}

std::vector<std::byte> superblock(const G3Options& options, const BlockSet& set) {
  const G3Superblock parts{.keys = options.keys,
                           .scheme_fingerprint = options.scheme_fingerprint,
                           .prefix_key = options.prefix_key,
                           .shard = options.planes[0].shard};
  return parts.encode(set);
}

G3BlockKind kind_of(const BlockSet& set) {
  return {set.block_bytes(), set.planes()[0].shard};
}

Result<void> check_block_count(const G3Options& options, const G3Superblock& superblock) {
  ASHLAR_TRY(const std::vector<layout::LayoutDescriptor> found, superblock.planes());
  const std::uint32_t has = found.front().layout.config().block_count;
  const std::uint32_t wanted = options.planes[0].layout.config().block_count;
  if (has == wanted) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "%s was created for %u blocks, and %u are wanted; keep the block_count and the number of "
                    "files, or name another file, or remove this one: its blocks can be computed again",
                    options.path.c_str(), has, wanted);
}

// Checks that the file is ours and belongs to these options. Other mismatches need the storage to detect.
Result<void> check_owner(const G3Options& options, std::span<const std::byte> found) {
  const char* const path = options.path.c_str();
  ASHLAR_TRY(const G3Superblock superblock, G3Superblock::parse(options.path, found));
  const auto& [planes, keys, scheme, prefix_key, shard, descriptors] = superblock;
  if (keys != options.keys)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s belongs to another namespace (model, dtype, layout or block size): %s, expected %s",
                      path, keys.to_string().c_str(), options.keys.to_string().c_str());
  if (scheme != options.scheme_fingerprint)
    return make_error(ErrorCode::kInvalidArgument,
                      "the blocks of %s are named by another hash scheme or key: %016llx, expected %016llx",
                      path, wide(scheme), wide(options.scheme_fingerprint));
  if (prefix_key != options.prefix_key)
    return make_error(ErrorCode::kInvalidArgument,
                      "the digests of %s were made with another prefix key: %016llx, expected %016llx; give "
                      "KvOptions::prefix_key as before, or name another file",
                      path, wide(prefix_key), wide(options.prefix_key));
  const layout::Shard& wanted = options.planes[0].shard;
  if (shard != wanted && shard.rank == wanted.rank && shard.ranks == wanted.ranks)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s holds blocks of another shape: %s, expected %s; name another file, or remove "
                      "this one: its blocks can be computed again",
                      path, shard.to_string().c_str(), wanted.to_string().c_str());
  if (shard != wanted)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s belongs to %s, and this is %s; give every rank a file of its own", path,
                      shard.to_string().c_str(), wanted.to_string().c_str());
  if (planes != options.planes.size())
    return make_error(ErrorCode::kInvalidArgument, "%s holds blocks of %u planes, %zu are wanted", path,
                      planes, options.planes.size());
  return check_block_count(options, superblock);
}

Result<void> write_bytes(const storage::FileAccess& file, const std::string& path, std::uint64_t offset,
                         std::span<const std::byte> bytes) {
  return storage::write_all(file, path, offset, std::span(&bytes, 1));
}

Result<void> sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) close(descriptor);
  if (!synced)
    return make_error(ErrorCode::kIo, "the folder of %s cannot be synced: %s", path.c_str(),
                      std::generic_category().message(error).c_str());
  return {};
}

Error being_made(const std::string& path) {
  return make_error(ErrorCode::kNotReady, "%s is being created concurrently", path.c_str());
}

// Removes the temporary file of a process that died while creating it. A live creator holds its lock.
Result<void> remove_left_over(const std::string& made_at) {
  const int left = ::open(made_at.c_str(), O_RDWR | O_CLOEXEC);
  if (left < 0) return {};
  const bool busy = flock(left, LOCK_EX | LOCK_NB) != 0;
  struct stat locked{};
  struct stat named{};
  if (!busy && fstat(left, &locked) == 0 && stat(made_at.c_str(), &named) == 0 &&
      locked.st_ino == named.st_ino && locked.st_dev == named.st_dev)
    unlink(made_at.c_str());
  close(left);
  return busy ? Result<void>(being_made(made_at)) : Result<void>();
}

// Creates the file under a temporary name and renames it when complete.
Result<void> make_file(const G3Options& options, const G3Places& places) {
  const std::string made_at = options.path + ".new";
  ASHLAR_RETURN_IF_ERROR(remove_left_over(made_at));
  Result<std::shared_ptr<DiskStorage>> storage = DiskStorage::create(
      {.path = made_at, .bytes = places.end, .direct = options.direct, .faults = options.faults});
  if (!storage && storage.error().code() == ErrorCode::kAlreadyExists) return being_made(made_at);
  if (!storage && storage.error().code() == ErrorCode::kNotFound) return storage::no_folder(options.path);
  if (!storage) return storage.error();
  // Another process may have taken it for a leftover before it was locked, and removed it.
  struct stat named{};
  if (flock((*storage)->file()->buffered, LOCK_EX | LOCK_NB) != 0 || stat(made_at.c_str(), &named) != 0 ||
      named.st_ino != (*storage)->file()->inode)
    return being_made(made_at);
  const auto undo = [&](Error error) {
    unlink(made_at.c_str());
    return error;
  };
  const Result<std::shared_ptr<const BlockSet>> set = block_set(options, places, *storage);
  if (!set) return undo(set.error());
  const std::vector<std::byte> bytes = superblock(options, **set);
  if (const Result<void> written = write_bytes(*(*storage)->file(), made_at, 0, bytes); !written)
    return undo(written.error());
  if (const Result<void> synced = (*storage)->sync(); !synced) return undo(synced.error());
  // Never replaces a file created meanwhile.
  if (link(made_at.c_str(), options.path.c_str()) != 0)
    return undo(make_error(errno == EEXIST ? ErrorCode::kAlreadyExists : ErrorCode::kIo,
                           "%s cannot be created: %s", options.path.c_str(),
                           std::generic_category().message(errno).c_str()));
  unlink(made_at.c_str());
  return {};
}

}  // namespace

Result<void> G3Options::validate() const {
  if (path.empty()) return make_error(ErrorCode::kInvalidArgument, "path is empty; G3 needs a file");
  if (planes.empty())
    return make_error(ErrorCode::kInvalidArgument, "planes is empty; a block has at least one");
  for (const PlaneShape& plane : planes)
    if (plane.layout.regions() != layout::Regions::kOne)
      return make_error(ErrorCode::kInvalidArgument, "a file is one region; the layout has one per layer");
  return {};
}

Result<std::unique_ptr<G3File>> G3File::open(G3Options options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  const G3Places places = G3Places::of(options.planes);
  const storage::DiskOptions disk{
      .path = options.path, .direct = options.direct, .exclusive = true, .faults = options.faults};
  Result<std::shared_ptr<DiskStorage>> storage = DiskStorage::open(disk);
  if (!storage && storage.error().code() == ErrorCode::kNotFound) {
    const Result<void> made = make_file(options, places);
    if (!made && made.error().code() != ErrorCode::kAlreadyExists) return made.error();
    storage = DiskStorage::open(disk);  // another process's file, if one was created meanwhile
  }
  if (!storage) return storage.error();
  // Also for an existing file: its creator may have died, or failed, before this sync.
  if (options.survive_power_loss) ASHLAR_RETURN_IF_ERROR(sync_folder_of(options.path));
  std::vector<std::byte> found(kG3Page);
  const ssize_t read = pread((*storage)->file()->buffered, found.data(), found.size(), 0);
  found.resize(read < 0 ? 0 : static_cast<std::size_t>(read));
  ASHLAR_RETURN_IF_ERROR(check_owner(options, found));
  if ((*storage)->size() < places.end)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s has %llu bytes and its blocks would need %llu: it was truncated, or has another "
                      "layout; name another "
                      "file, or remove this one",
                      options.path.c_str(), wide((*storage)->size()), wide(places.end));
  ASHLAR_TRY(std::shared_ptr<const BlockSet> set, block_set(options, places, *storage));
  if (found != superblock(options, *set))
    return make_error(ErrorCode::kInvalidArgument,
                      "%s has another layout; name another file, or remove this one", options.path.c_str());
  std::unique_ptr<G3File> file(
      new G3File(std::move(options), *std::move(storage), places.table, std::move(set)));
  ASHLAR_RETURN_IF_ERROR(file->read_removals());
  ASHLAR_RETURN_IF_ERROR(file->read_table());
  return file;
}

G3File::G3File(G3Options options, std::shared_ptr<DiskStorage> storage, std::uint64_t table_offset,
               std::shared_ptr<const BlockSet> set)
    : options_(std::move(options)),
      storage_(std::move(storage)),
      table_offset_(table_offset),
      set_(std::move(set)),
      valid_(set_->block_count()) {}

// Reads exactly this many bytes of the file.
Result<void> G3File::read(const char* what, std::uint64_t offset, std::span<std::byte> into) const {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got = pread(storage_->file()->buffered, into.data() + done, into.size() - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return make_error(ErrorCode::kIo, "the %s of %s cannot be read: %s", what, options_.path.c_str(),
                        got == 0 ? "the file ends there" : std::generic_category().message(errno).c_str());
    done += static_cast<std::size_t>(got);
  }
  return {};
}

// The copy written later counts. A new file has neither.
Result<void> G3File::read_removals() {
  for (std::uint64_t copy = 0; copy < 2; ++copy) {
    RemovalLog::Bytes bytes;
    ASHLAR_RETURN_IF_ERROR(read("removals", kG3Removals + copy * RemovalLog::kBytes, bytes));
    std::uint64_t serial = 0;
    std::optional<RemovalLog> log = RemovalLog::decode(bytes, &serial);
    if (!log || serial <= removals_serial_) continue;
    removals_ = *std::move(log);
    removals_serial_ = serial;
  }
  return {};
}

// Overwrites the older copy, so a torn write loses nothing.
Result<void> G3File::write_removals(const RemovalLog& log) const {
  const std::uint64_t serial = removals_serial_ + 1;
  return write_bytes(*storage_->file(), options_.path, kG3Removals + serial % 2 * RemovalLog::kBytes,
                     log.encode(serial));
}

Result<void> G3File::catch_up(const RemovalLog& log) {
  const RemovalLog::Missed missed = log.missed_by(removals_);
  std::vector<std::uint32_t> gone;
  std::erase_if(restored_, [&](const Entry& entry) {
    if (!missed.contains(entry.header.hash)) return false;
    gone.push_back(entry.slot);
    return true;
  });
  ASHLAR_RETURN_IF_ERROR(invalidate(gone));
  if (const Result<void> written = invalidate({}, &log); !written) return written;
  removals_ = log;
  return {};
}

Result<void> G3File::read_table() {
  std::unordered_map<tokens::SequenceHash, std::size_t> places;
  std::vector<std::uint32_t> losers;
  std::vector<std::byte> buffer(kG3ReadAtATime);
  const std::uint64_t total = kG3HeaderBytes * capacity();
  const G3BlockKind kind = kind_of(*set_);
  for (std::uint64_t at = 0; at < total; at += buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(kG3ReadAtATime, total - at));
    ASHLAR_RETURN_IF_ERROR(read("table", table_offset_ + at, buffer));
    for (std::uint64_t inside = 0; inside < buffer.size(); inside += kG3HeaderBytes) {
      const auto slot = static_cast<std::uint32_t>((at + inside) / kG3HeaderBytes);
      const std::optional<G3Header> header =
          decode_g3_header(slot, std::span(buffer).subspan(inside, kG3HeaderBytes), kind);
      if (!header) continue;
      const Entry entry{slot, *header};
      generation_ = std::max(generation_.load(), entry.header.generation);
      valid_[slot] = true;
      const auto [found, fresh] = places.emplace(entry.header.hash, restored_.size());
      if (fresh) {
        restored_.push_back(entry);
      } else if (Entry& other = restored_[found->second]; other.header.generation < entry.header.generation) {
        losers.push_back(std::exchange(other, entry).slot);
      } else {
        losers.push_back(slot);
      }
    }
  }
  return invalidate(losers);
}

// Adjacent headers go in one write; a sector holds whole headers, so a write tears only between them.
Result<void> G3File::write_headers(std::vector<std::pair<std::uint32_t, HeaderBytes>> headers) {
  std::ranges::sort(headers, {}, &std::pair<std::uint32_t, HeaderBytes>::first);
  std::vector<std::byte> run;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    run.insert(run.end(), headers[i].second.begin(), headers[i].second.end());
    if (i + 1 < headers.size() && headers[i + 1].first == headers[i].first + 1) continue;
    const std::uint64_t first = headers[i].first + 1 - run.size() / kG3HeaderBytes;
    ASHLAR_RETURN_IF_ERROR(
        write_bytes(*storage_->file(), options_.path, table_offset_ + first * kG3HeaderBytes, run));
    run.clear();
  }
  return {};
}

Result<void> G3File::sync(std::uint64_t before) const {
  return options_.survive_power_loss ? storage_->sync(before) : Result<void>();
}

Result<void> G3File::invalidate(std::span<const std::uint32_t> slots, const RemovalLog* log) {
  std::vector<std::pair<std::uint32_t, HeaderBytes>> headers;
  for (const std::uint32_t slot : slots)
    if (valid_[slot]) headers.emplace_back(slot, HeaderBytes{});
  if (headers.empty() && log == nullptr) return {};
  const std::uint64_t before = failed_syncs();
  if (log != nullptr) ASHLAR_RETURN_IF_ERROR(write_removals(*log));
  ASHLAR_RETURN_IF_ERROR(write_headers(std::move(headers)));
  ASHLAR_RETURN_IF_ERROR(sync(before));
  if (log != nullptr)
    ++removals_serial_;  // only once it is on the device: until then the other copy is the only one
  for (const std::uint32_t slot : slots) valid_[slot] = false;
  return {};
}

Result<void> G3File::commit(std::span<const Entry> entries, std::uint64_t before) {
  if (entries.empty()) return {};
  ASHLAR_RETURN_IF_ERROR(sync(before));
  before = failed_syncs();
  std::vector<std::pair<std::uint32_t, HeaderBytes>> headers;
  headers.reserve(entries.size());
  const G3BlockKind kind = kind_of(*set_);
  for (const Entry& entry : entries) {
    G3Header header = entry.header;
    if (header.generation == 0) header.generation = ++generation_;
    valid_[entry.slot] = true;
    headers.emplace_back(entry.slot, encode_g3_header(entry.slot, header, kind));
  }
  ASHLAR_RETURN_IF_ERROR(write_headers(std::move(headers)));
  return sync(before);
}

}  // namespace ashlar::tiers
