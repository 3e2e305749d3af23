// The disk changes in this order; each step is on the device before the next begins:
//
//   a slot is free:     its header is invalid
//   bytes:              overwrite the old content
//   header:             is written; from now on a restart finds the object
//   cleared header:     of an object that was replaced or removed; then the slot is free again
//
// A header whose clearing failed stays in uncleared_, with its slot, until it succeeds; rewriting after a
// failed sync dirties the page again, so the next sync covers it. Of one key the newest header is cleared
// last, so no older object comes back.
#include "tiers/volume/file_volume.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked_math.h"
#include "base/wide.h"
#include "storage/file_bytes.h"
#include "tiers/volume/file_volume_format.h"
#include "tiers/volume/result_per_key.h"

namespace ashlar::tiers {
namespace {

using file_volume::Header;
using file_volume::kHeaderBytes;
using file_volume::kPage;
using storage::DiskStorage;

constexpr std::uint64_t kReadAtATime = std::uint64_t{1} << 20;
constexpr file_volume::HeaderBytes kCleared{};

Result<std::shared_ptr<DiskStorage>> open_storage(const std::string& path,
                                                  std::shared_ptr<storage::IoFaults> faults) {
  return DiskStorage::open(
      {.path = path, .direct = storage::DirectIo::kNever, .exclusive = true, .faults = std::move(faults)});
}

Result<void> read_bytes(const DiskStorage& storage, std::uint64_t offset, std::span<std::byte> into) {
  return storage::read_all(*storage.file(), storage.path(), offset, std::span(&into, 1));
}

Result<void> write_bytes_to(const DiskStorage& storage, std::uint64_t offset,
                            std::span<const std::byte> bytes) {
  return storage::write_all(*storage.file(), storage.path(), offset, std::span(&bytes, 1));
}

// Most file systems and partition tables begin in the first MiB.
Result<void> check_empty(const DiskStorage& storage, std::uint64_t table_end) {
  const std::uint64_t end = std::min(storage.size(), std::max(table_end, kReadAtATime));
  std::vector<std::byte> buffer(kReadAtATime);
  for (std::uint64_t at = 0; at < end; at += buffer.size()) {
    buffer.resize(std::min(kReadAtATime, end - at));
    ASHLAR_RETURN_IF_ERROR(read_bytes(storage, at, buffer));
    const auto found = std::ranges::find_if(buffer, [](std::byte byte) { return byte != std::byte{0}; });
    if (found == buffer.end()) continue;
    return make_error(
        ErrorCode::kAlreadyExists,
        "%s is not empty: byte %llu is not zero; it was left alone. If its content is not needed, "
        "clear its first %llu bytes and provision it again",
        storage.path().c_str(), wide(at + static_cast<std::uint64_t>(found - buffer.begin())), wide(end));
  }
  return {};
}

// The zeros found may be only in memory, above the headers of an older volume, after a failed sync: zeros are
// written again, and are on the device before the superblock.
Result<void> clear_table(const DiskStorage& storage, std::uint64_t table_end) {
  const std::vector<std::byte> zeros(kReadAtATime);
  for (std::uint64_t at = 0; at < table_end; at += zeros.size())
    ASHLAR_RETURN_IF_ERROR(write_bytes_to(
        storage, at, std::span(zeros).first(std::min<std::uint64_t>(zeros.size(), table_end - at))));
  return storage.sync();
}

}  // namespace

Result<FileVolumeShape> provision_file_volume(const std::string& path, const ProvisionOptions& options) {
  FileVolumeShape shape{.slots = options.slots};
  if (options.slot_bytes == 0 || options.slot_bytes > (std::uint64_t{1} << 48) ||
      !align_up(options.slot_bytes, kPage, &shape.slot_bytes))
    return make_error(ErrorCode::kInvalidArgument,
                      "slot_bytes is %llu; it is the size of the largest object, at least 1",
                      wide(options.slot_bytes));
  Result<std::shared_ptr<DiskStorage>> storage = open_storage(path, options.faults);
  if (!storage && storage.error().code() == ErrorCode::kNotFound)
    return make_error(ErrorCode::kNotFound,
                      "%s does not exist; create the file at its final size, then provision it",
                      path.c_str());
  if (!storage) return storage.error();
  const std::uint64_t most = file_volume::slots_in((*storage)->size(), shape.slot_bytes);
  if (most == 0 || options.slots > most)
    return make_error(ErrorCode::kCapacity, "%s has %llu bytes: room for %llu slots of %llu bytes, not %llu",
                      path.c_str(), wide((*storage)->size()), wide(most), wide(shape.slot_bytes),
                      wide(std::max<std::uint64_t>(options.slots, 1)));
  if (options.slots == 0) shape.slots = most;
  const std::uint64_t table_end = file_volume::places_of(shape)->slots;
  ASHLAR_RETURN_IF_ERROR(check_empty(**storage, table_end));
  ASHLAR_RETURN_IF_ERROR(clear_table(**storage, table_end));
  Result<void> made = write_bytes_to(**storage, 0, file_volume::encode(shape));
  if (made) made = (*storage)->sync();
  if (made) return shape;
  static_cast<void>(
      write_bytes_to(**storage, 0, file_volume::Superblock{}));  // so that it can be provisioned again
  return made.error();
}

Result<std::unique_ptr<Volume>> FileVolume::attach(const VolumeDescriptor& descriptor) {
  VolumeOptions options(descriptor);
  const bool sync = options.flag("sync", true);
  ASHLAR_RETURN_IF_ERROR(options.finish());
  return open({.path = descriptor.location, .sync = sync})
      .transform(
          [](std::unique_ptr<FileVolume>&& volume) { return std::unique_ptr<Volume>(std::move(volume)); });
}

Result<std::unique_ptr<FileVolume>> FileVolume::open(FileVolumeOptions options) {
  ASHLAR_TRY(std::shared_ptr<DiskStorage> storage, open_storage(options.path, options.faults));
  // A file that is too short for a superblock has none.
  file_volume::Superblock found{};
  const std::uint64_t readable = std::min<std::uint64_t>(storage->size(), found.size());
  ASHLAR_RETURN_IF_ERROR(read_bytes(*storage, 0, std::span(found).first(readable)));
  ASHLAR_TRY(const FileVolumeShape shape, file_volume::decode(options.path, found));
  const file_volume::FileVolumePlaces places = *file_volume::places_of(shape);
  if (storage->size() < places.end)
    return make_error(ErrorCode::kCorruption,
                      "%s has %llu bytes and its %llu slots need %llu: it was truncated; it was left alone",
                      options.path.c_str(), wide(storage->size()), wide(shape.slots), wide(places.end));
  std::unique_ptr<FileVolume> volume(
      new FileVolume(std::move(options), std::move(storage), shape, places.slots));
  ASHLAR_RETURN_IF_ERROR(volume->read_table());
  return volume;
}

FileVolume::FileVolume(FileVolumeOptions options, std::shared_ptr<DiskStorage> storage,
                       const FileVolumeShape& shape, std::uint64_t first_slot)
    : options_(std::move(options)),
      storage_(std::move(storage)),
      shape_(shape),
      first_slot_(first_slot),
      slots_(shape.slots) {}

// Superseded headers stay until the first write: attaching writes nothing.
Result<void> FileVolume::read_table() {
  const MutexLock table(table_mu_);
  const MutexLock lock(mu_);
  std::unordered_map<std::uint32_t, std::uint64_t> generations;  // of slots in entries_
  std::vector<bool> taken(shape_.slots, false);
  std::vector<std::byte> buffer(kReadAtATime);
  const std::uint64_t total = kHeaderBytes * shape_.slots;
  for (std::uint64_t at = 0; at < total; at += buffer.size()) {
    buffer.resize(std::min(kReadAtATime, total - at));
    ASHLAR_RETURN_IF_ERROR(read_bytes(*storage_, file_volume::kTable + at, buffer));
    for (std::uint64_t inside = 0; inside < buffer.size(); inside += kHeaderBytes) {
      const auto slot = static_cast<std::uint32_t>((at + inside) / kHeaderBytes);
      const std::optional<Header> header =
          file_volume::decode(slot, std::span(buffer).subspan(inside, kHeaderBytes), shape_);
      if (!header) continue;
      taken[slot] = true;
      generation_ = std::max(generation_, header->generation);
      generations[slot] = header->generation;
      const Entry entry{.slot = slot, .bytes = header->bytes, .checksum = header->checksum};
      const auto [found, fresh] = entries_.try_emplace(std::string(header->key), entry);
      if (fresh) continue;
      std::uint32_t loser = slot;
      if (header->generation > generations[found->second.slot])
        loser = std::exchange(found->second, entry).slot;
      uncleared_.push_back({.slot = loser, .key = found->first});
    }
  }
  for (std::uint32_t slot = static_cast<std::uint32_t>(shape_.slots); slot-- > 0;)
    if (!taken[slot]) free_.push_back(slot);
  return {};
}

std::uint64_t FileVolume::free_slots() const {
  const MutexLock lock(mu_);
  return free_.size();
}

Result<void> FileVolume::check_key(std::string_view key) const {
  ASHLAR_RETURN_IF_ERROR(tiers::check_key(key));
  if (key.size() <= kLongestKey) return {};
  return make_error(ErrorCode::kInvalidArgument, "%s: the key '%s...' has %zu characters, %zu are allowed",
                    describe().c_str(), std::string(key.substr(0, 80)).c_str(), key.size(), kLongestKey);
}

Result<void> FileVolume::write_header(std::uint32_t slot, std::span<const std::byte> bytes) const {
  return write_bytes_to(*storage_, file_volume::kTable + slot * kHeaderBytes, bytes);
}

Result<void> FileVolume::sync(std::uint64_t before) const {
  return options_.sync ? storage_->sync(before) : Result<void>();
}

void FileVolume::free_slot(std::uint32_t slot) {
  if (slots_[slot].readers > 0) {
    slots_[slot].leaving = true;
  } else {
    free_.push_back(slot);
  }
}

void FileVolume::end_read(std::uint32_t slot) {
  const MutexLock lock(mu_);
  if (--slots_[slot].readers == 0 && std::exchange(slots_[slot].leaving, false)) free_.push_back(slot);
}

// Frees the slots that could be cleared; the others stay, with their error.
void FileVolume::clear() {
  if (uncleared_.empty()) return;
  const std::uint64_t before = storage_->failed_syncs();
  for (Uncleared& one : uncleared_) one.cleared = write_header(one.slot, kCleared);
  const Result<void> synced = sync(before);
  std::vector<Uncleared> left;
  const MutexLock lock(mu_);
  for (Uncleared& one : uncleared_) {
    if (one.cleared && !synced) one.cleared = synced.error();
    if (one.cleared) {
      free_slot(one.slot);
    } else {
      left.push_back(std::move(one));
    }
  }
  uncleared_ = std::move(left);
}

Result<std::uint32_t> FileVolume::take_slot(const ObjectWrite& object) {
  for (const bool last : {false, true}) {
    {
      const MutexLock lock(mu_);
      if (!free_.empty()) {
        const std::uint32_t slot = free_.back();
        free_.pop_back();
        return slot;
      }
    }
    if (last) break;
    // Waits for a batch that is about to free slots, and retries failed clears.
    const MutexLock table(table_mu_);
    clear();
  }
  return make_error(ErrorCode::kCapacity, "%s: put '%s': all %llu slots of %llu bytes are used",
                    describe().c_str(), std::string(object.key).c_str(), wide(shape_.slots),
                    wide(shape_.slot_bytes));
}

Result<FileVolume::Entry> FileVolume::write_bytes(const ObjectWrite& object) {
  ASHLAR_RETURN_IF_ERROR(check_key(object.key));
  Entry entry{.bytes = object.size()};
  if (entry.bytes > shape_.slot_bytes)
    return make_error(ErrorCode::kCapacity, "%s: put '%s': the object has %llu bytes, a slot has %llu",
                      describe().c_str(), std::string(object.key).c_str(), wide(entry.bytes),
                      wide(shape_.slot_bytes));
  ASHLAR_TRY(entry.slot, take_slot(object));
  entry.checksum = file_volume::checksum_of(object.parts);
  if (const Result<void> written =
          storage::write_all(*storage_->file(), options_.path, place_of(entry.slot), object.parts);
      !written) {
    const MutexLock lock(mu_);
    free_slot(entry.slot);
    return written.error();
  }
  return entry;
}

std::vector<Result<void>> FileVolume::put(std::span<const ObjectWrite> objects, const CallLimits& limits) {
  std::vector<Result<void>> results(objects.size());
  std::vector<Written> written;
  const std::uint64_t before = storage_->failed_syncs();
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (const Result<void> wanted = limits.check(); !wanted) {
      results[i] = wanted;
      continue;
    }
    const Result<Entry> entry = write_bytes(objects[i]);
    if (entry) {
      written.push_back({.object = i, .entry = *entry});
    } else {
      results[i] = entry.error();
    }
  }
  if (written.empty()) return results;
  if (const Result<void> synced = sync(before); !synced) {
    const MutexLock lock(mu_);
    for (const Written& one : written) {
      results[one.object] = synced.error();
      free_slot(one.entry.slot);
    }
    return results;
  }
  commit(objects, written, results);
  return results;
}

// Headers, in batch order: if a key occurs twice the last one counts.
void FileVolume::commit(std::span<const ObjectWrite> objects, std::span<const Written> written,
                        std::span<Result<void>> results) {
  const MutexLock table(table_mu_);
  const std::uint64_t before = storage_->failed_syncs();
  for (const Written& one : written) {
    const Header header{.key = objects[one.object].key,
                        .generation = ++generation_,
                        .bytes = one.entry.bytes,
                        .checksum = one.entry.checksum};
    results[one.object] = write_header(one.entry.slot, file_volume::encode(one.entry.slot, header));
  }
  const Result<void> synced = sync(before);
  {
    const MutexLock lock(mu_);
    for (const Written& one : written) {
      Result<void>& result = results[one.object];
      if (result && !synced) result = synced.error();
      std::string key(objects[one.object].key);
      if (!result) {
        uncleared_.push_back({.slot = one.entry.slot, .key = std::move(key)});
      } else if (const auto [found, fresh] = entries_.try_emplace(std::move(key), one.entry); !fresh) {
        uncleared_.push_back({.slot = std::exchange(found->second, one.entry).slot, .key = found->first});
      }
    }
  }
  clear();
}

std::vector<Result<void>> FileVolume::get(std::span<const ObjectRead> objects, const CallLimits& limits) {
  std::vector<Result<void>> results;
  results.reserve(objects.size());
  for (const ObjectRead& object : objects) {
    const Result<void> wanted = limits.check();
    results.push_back(wanted ? get_one(object) : wanted);
  }
  return results;
}

Result<void> FileVolume::get_one(const ObjectRead& object) {
  ASHLAR_RETURN_IF_ERROR(check_key(object.key));
  const auto place = [&] { return describe() + ": get '" + std::string(object.key) + "'"; };
  Entry entry;
  {
    const MutexLock lock(mu_);
    const auto found = entries_.find(object.key);
    if (found == entries_.end())
      return make_error(ErrorCode::kNotFound, "%s: there is no such object", place().c_str());
    entry = found->second;
    if (entry.bytes != object.size())
      return make_error(ErrorCode::kCorruption, "%s: the object has %llu bytes, %llu are expected",
                        place().c_str(), wide(entry.bytes), wide(object.size()));
    ++slots_[entry.slot].readers;  // blocks reuse of the slot
  }
  Result<void> read = storage::read_all(*storage_->file(), options_.path, place_of(entry.slot), object.parts);
  end_read(entry.slot);
  if (!read) return read;
  if (file_volume::checksum_of(object.parts) != entry.checksum)
    return make_error(ErrorCode::kCorruption, "%s: the bytes in slot %u do not match their checksum",
                      place().c_str(), entry.slot);
  return {};
}

std::vector<Result<bool>> FileVolume::contains(std::span<const std::string_view> keys,
                                               const CallLimits& limits) {
  return result_per_key<bool>(
      keys, limits, [this](std::string_view key) { return check_key(key); },
      [this](std::string_view key) -> Result<bool> {
        const MutexLock lock(mu_);
        return entries_.contains(key);
      });
}

std::vector<Result<void>> FileVolume::remove(std::span<const std::string_view> keys,
                                             const CallLimits& limits) {
  std::vector<Result<void>> results;
  results.reserve(keys.size());
  const Result<void> wanted = limits.check();
  for (const std::string_view key : keys) {
    const Result<void> good = check_key(key);
    results.push_back(good ? wanted : good);
  }
  if (!wanted) return results;
  const MutexLock table(table_mu_);
  // Older headers of the same key are cleared first: otherwise the older object would come back.
  clear();
  const auto refuse_uncleared = [&]() ASHLAR_REQUIRES(table_mu_) {
    for (const Uncleared& left : uncleared_)
      for (std::size_t i = 0; i < keys.size(); ++i)
        if (left.key == keys[i]) results[i] = left.cleared;
  };
  refuse_uncleared();
  {
    const MutexLock lock(mu_);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto found = results[i] ? entries_.find(keys[i]) : entries_.end();
      if (found == entries_.end()) continue;
      uncleared_.push_back({.slot = found->second.slot, .key = found->first});
      entries_.erase(found);
    }
  }
  clear();
  refuse_uncleared();
  return results;
}

}  // namespace ashlar::tiers
